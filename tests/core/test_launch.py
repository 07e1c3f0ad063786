"""What launchers say: which worker this is, and where rank 0 is reached."""

from __future__ import annotations

import pytest

import shoal
from shoal.errors import UsageError
from shoal.runtime.launch import read_launch, read_master
from shoal.runtime.rendezvous import meeting_place

OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}
MASTER = {"MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "29500"}


def test_open_mpi_says_who_this_is_and_nobody_where_rank_0_is() -> None:
    launch = read_launch(OPEN_MPI)
    assert (launch.rank, launch.world_size, launch.workers_per_host) == (1, 4, 4)
    with pytest.raises(UsageError, match=r"^MASTER_ADDR and MASTER_PORT must say .*\.$"):
        read_master(OPEN_MPI)
    assert read_master({**OPEN_MPI, **MASTER}) == ("192.0.2.1", 29500)


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
