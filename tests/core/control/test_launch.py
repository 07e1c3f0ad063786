"""What launchers say: which worker this is, and where rank 0 is reached."""

from __future__ import annotations

import pytest

import shoal
from shoal.control.rendezvous import meeting_place
from shoal.errors import UsageError
from shoal.launch import (
    hosts_of,
    rank_on_host,
    read_launch,
    read_master,
    says_hosts,
    tasks_per_node,
    workers_on_host,
)

OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}
MASTER = {"MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "29500"}


def test_open_mpi_says_who_this_is_and_nobody_where_rank_0_is() -> None:
    launch = read_launch(OPEN_MPI)
    assert (launch.rank, launch.world_size, launch.workers_per_host) == (1, 4, 4)
    with pytest.raises(UsageError, match=r"^MASTER_ADDR and MASTER_PORT must say .*\.$"):
        read_master(OPEN_MPI)
    assert read_master({**OPEN_MPI, **MASTER}) == ("192.0.2.1", 29500)


def slurm(rank: int, node: int, local: int, **more: str) -> dict[str, str]:
    """Return what srun sets for one of 7 tasks."""
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": "7",
        "SLURM_NODEID": str(node),
        "SLURM_LOCALID": str(local),
        **more,
    }


def test_slurm_says_what_each_node_has_though_nobody_asked_for_it() -> None:
    """Without --ntasks-per-node all tasks counted as being on one host."""
    listed = {"SLURM_TASKS_PER_NODE": "2(x3),1"}
    last = read_launch(slurm(6, 3, 0, **listed))
    assert (last.host, last.workers_per_host, last.local_rank) == (3, 1, 0)
    other = read_launch(slurm(3, 1, 1, **listed))
    assert (other.host, other.workers_per_host, other.local_rank) == (1, 2, 1)
    # more could have been on each node; the step's own list comes before the job's
    asked = slurm(6, 3, 0, **listed, SLURM_NTASKS_PER_NODE="4")
    assert read_launch(asked).workers_per_host == 1
    step = slurm(5, 1, 2, SLURM_TASKS_PER_NODE="3(x2),1", SLURM_STEP_TASKS_PER_NODE="3,4")
    assert read_launch(step).workers_per_host == 4


def test_a_list_of_another_number_of_tasks_is_of_another_step() -> None:
    whole_job = slurm(6, 3, 0, SLURM_TASKS_PER_NODE="8(x4)")
    assert read_launch(whole_job).workers_per_host == 7
    assert read_launch({**whole_job, "SLURM_NTASKS_PER_NODE": "2"}).workers_per_host == 2


@pytest.mark.parametrize(
    ("text", "counts"), [("4", [4]), ("2(x3),1", [2, 2, 2, 1]), ("1,2,1(x2)", [1, 2, 1, 1])]
)
def test_slurms_notation(text: str, counts: list[int]) -> None:
    assert tasks_per_node(text) == counts


@pytest.mark.parametrize("text", ["", "2x3", "2(x)", "2(x3", "-1", "2,,1"])
def test_what_is_not_slurms_notation_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"numbers such as 2\(x3\),1, not"):
        tasks_per_node(text)


def test_mpirun_inside_a_slurm_job_is_not_slurms_one_task() -> None:
    """Ranks that mpirun starts beside a batch script have its SLURM_PROCID, all of them."""
    script = {
        "SLURM_PROCID": "0",
        "SLURM_NTASKS": "4",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURM_TASKS_PER_NODE": "2(x2)",
    }
    local = {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    launch = read_launch({**script, **OPEN_MPI, **local})
    assert (launch.rank, launch.local_rank, launch.host) == (1, 1, 0)
    assert rank_on_host(1, {**script, **OPEN_MPI, **local}) == 1
    far = {**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "3", **local}
    assert read_launch({**script, **far}).host == 1


def test_torchrun_inside_a_slurm_job_speaks_for_itself() -> None:
    node = slurm(1, 1, 0, SLURM_NTASKS="2", SLURM_TASKS_PER_NODE="1(x2)")
    own = {"RANK": "6", "WORLD_SIZE": "8", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4"}
    launch = read_launch({**node, **own, "GROUP_RANK": "1"})
    assert (launch.rank, launch.host, launch.workers_per_host, launch.local_rank) == (6, 1, 4, 2)
    assert workers_on_host(8, {**node, **own}) == 4


def mpi(rank: int, local: int) -> dict[str, str]:
    """Return what mpirun sets for one of 8 ranks on 4 hosts."""
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": "8",
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local),
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    }


def test_ranks_dealt_to_hosts_are_told_from_ranks_host_by_host() -> None:
    by_slot = [read_launch(mpi(rank, rank % 2)) for rank in range(8)]
    assert [each.host for each in by_slot] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert not any(each.shows_dealing for each in by_slot)
    by_node = [read_launch(mpi(rank, rank // 4)) for rank in range(8)]
    assert any(each.shows_dealing for each in by_node)
    assert [each.dealt().host for each in by_node] == [0, 1, 2, 3, 0, 1, 2, 3]
    # who names the host needs no such reasoning
    named = read_launch(slurm(6, 3, 0, SLURM_TASKS_PER_NODE="2(x3),1"))
    assert named.dealt() == named
    assert not named.shows_dealing


def test_without_a_launcher_the_variables_to_set_are_named() -> None:
    with pytest.raises(UsageError, match="or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"):
        read_launch({})


@pytest.mark.parametrize(
    ("rank", "size"), [("0", "0"), ("0", "-1"), ("2", "2"), ("-1", "2"), ("5", "2")]
)
def test_a_rank_that_cannot_be_is_refused(rank: str, size: str) -> None:
    with pytest.raises(UsageError, match=rf"this is rank {rank} of {size}, but .*\.$"):
        read_launch({"RANK": rank, "WORLD_SIZE": size})


@pytest.mark.parametrize("port", ["x", "0", "-1", "65536", "1.5"])
def test_a_port_that_cannot_be_is_refused_by_its_name(port: str) -> None:
    with pytest.raises(UsageError, match="MASTER_PORT must be a number from 1 to 65535, not"):
        read_master({**MASTER, "MASTER_PORT": port})
    with pytest.raises(UsageError, match="SHOAL_PORT must be a number from 1 to 65535, not"):
        meeting_place({**MASTER, "SHOAL_PORT": port})


def test_where_ranks_meet_without_torch() -> None:
    agents = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    assert meeting_place(MASTER) == ("192.0.2.1", range(29500, 29501))
    assert meeting_place({**MASTER, **agents}) == ("192.0.2.1", range(29501, 29505))
    told = meeting_place({**MASTER, **agents, "SHOAL_PORT": "7000"})
    assert told == ("192.0.2.1", range(7000, 7001))
    with pytest.raises(UsageError, match="from 1 to 65531"):  # others must come after torchrun's
        meeting_place({**MASTER, **agents, "MASTER_PORT": "65535"})
    with pytest.raises(UsageError, match="MASTER_ADDR and SHOAL_PORT must say"):
        meeting_place({"SHOAL_PORT": "7000"})


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({}, "MASTER_ADDR and MASTER_PORT must say where rank 0"),
        ({**MASTER, "MASTER_PORT": "x"}, "MASTER_PORT must be a number"),
        ({**MASTER, "OMPI_COMM_WORLD_SIZE": "0"}, "this is rank 1 of 0"),
    ],
)
def test_joining_a_job_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], complaint: str
) -> None:
    pytest.importorskip("torch")
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", *MASTER):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**OPEN_MPI, **given}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=complaint):
        shoal.init(deadline_s=1)


def test_pods_with_a_rank_alone_do_not_say_who_shares_a_host() -> None:
    pod = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "job-0", "MASTER_PORT": "1"}
    assert not says_hosts(pod)
    assert says_hosts({**pod, "LOCAL_WORLD_SIZE": "2"})
    assert says_hosts({**pod, "SLURM_TASKS_PER_NODE": "2(x2)"})


def test_hosts_are_numbered_in_the_order_of_ranks() -> None:
    assert hosts_of(["a", "a", "b", "a", "c"]) == [0, 0, 1, 0, 2]
