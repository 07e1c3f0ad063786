"""What a training meets once in a while: an earlier state, a failed pass, a fork, a wrong size."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from forked_process import printed_by_forks
from worker_processes import run_script

from thoroughness import seldom

if TYPE_CHECKING:
    from worker_processes import RunWorkers

torch = pytest.importorskip("torch")

from shoal.carriers.tensor_memory import round_to  # noqa: E402 - needs torch

ROLL_BACK = """
import copy, json, os, torch, shoal
from torch import nn
session = shoal.init(deadline_s=20)
torch.manual_seed(0)
model = nn.Linear(8, 8)
optimizer = shoal.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), model,
    sync=os.environ["SYNC"], transport=os.environ["OVER"],
)
def steps(numbers):
    for number in numbers:
        torch.manual_seed(10 * number + session.rank)
        optimizer.zero_grad()
        model(torch.randn(4, 8)).pow(2).mean().backward()
        optimizer.step()
    return model.weight.detach().clone()
steps(range(4))
kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
first = steps(range(4, 8))
model.load_state_dict(kept[0])
optimizer.load_state_dict(kept[1])
again = steps(range(4, 8))
optimizer.finish()
print(json.dumps(bool(torch.equal(first, again))))
"""

FAIL_A_PASS = """
import json, torch, shoal
from torch import nn
shoal.init(deadline_s=20)
class Fails(torch.autograd.Function):
    armed = False
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        if Fails.armed:
            raise RuntimeError("out of memory, say")
        return gradient
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rear, self.front = nn.Linear(4, 1), nn.Linear(4, 4)
    def forward(self, x):
        return self.rear(Fails.apply(self.front(x)))
model = Model()
optimizer = shoal.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1), model)
def step():
    optimizer.zero_grad()
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
Fails.armed = True
failed = False
try:
    step()
except RuntimeError:
    failed = True
Fails.armed = False
before = model.rear.bias.item()
step()
print(json.dumps([failed, round(model.rear.bias.item() - before, 5)]))
"""

FORK = """
import json, os, sys, torch, shoal
session = shoal.init(deadline_s=20)
model = torch.nn.Linear(2, 1)
optimizer = shoal.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), model, transport="shoal"
)
def step():
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
step()
code = 0
if session.rank == 1:
    child = os.fork()
    if child == 0:
        sys.exit(7)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
step()
optimizer.finish()
print(json.dumps(code))
"""

GENERATORS_IN_TURN = """
import json, numpy as np, shoal
from shoal.adapters.arrays.array_means import ArrayMeans
from shoal.adapters.arrays.generated_groups import GeneratedGroups
with shoal.connect(deadline_s=20) as communicator:
    means, values = ArrayMeans(communicator), [np.full(9, communicator.rank, np.float32)]
    for _ in range(2):
        with GeneratedGroups(communicator) as groups:
            for _ in range(3):
                for group in groups.owed():
                    values = means.parameters(values, group.members, sequence=group.group_id)
print(json.dumps(float(values[0][0])))
"""

WRONG_SIZE = """
import json, time, torch, shoal
from shoal.errors import MismatchError
from shoal.carriers.transport_communicator import TransportCommunicator
refused = False
with shoal.connect(deadline_s=20) as ours:
    communicator = TransportCommunicator(ours._engine)
    try:
        if ours.rank == 1:
            communicator.send(torch.zeros(4), 0, channel=5).wait()
        else:
            communicator.receive_any(torch.zeros(2), channel=5, senders=(1,))
    except MismatchError:
        refused = True
print(json.dumps(refused))
"""

UNEVEN = """
import json, torch, torch.distributed as dist
dist.init_process_group("shoal")
me, size, right = dist.get_rank(), dist.get_world_size(), []
for kib in (64, 400, 1500, 3000, 5000):
    mine = torch.full((kib * 256,), float(me))
    parts = [torch.empty_like(mine) for _ in range(size)] if me == 0 else None
    dist.gather(mine, parts, dst=0)
    right += [bool((part == rank).all()) for rank, part in enumerate(parts or [])]
    sent = [kib * 256 if rank == 0 else 256 for rank in range(size)]  # rank 0 gets the most
    received = [(kib * 256 if me == 0 else 256)] * size
    target = torch.empty(sum(received))
    dist.all_to_all_single(target, torch.full((sum(sent),), float(me)), received, sent)
    right += [bool((part == rank).all()) for rank, part in enumerate(target.split(received))]
print(json.dumps(all(right)))
"""

WRONG_LISTS = """
import json, torch, torch.distributed as dist
from shoal.errors import UsageError
dist.init_process_group("shoal")
me, size = dist.get_rank(), dist.get_world_size()
def two(count=2, length=3):
    return [torch.zeros(length) for _ in range(count)]
one = torch.zeros(3)
calls = [
    lambda: dist.all_to_all(two(3), two(3)),
    lambda: dist.reduce(one, 9),
    lambda: dist.broadcast(one, 9),
    lambda: dist.all_gather(two(1), one),
    lambda: dist.all_gather(two(3), one),
    lambda: dist.reduce_scatter(one, two(3)),
    lambda: dist.reduce_scatter(one, two(2, 4)),
    lambda: dist.send(one, 5),
    lambda: dist.recv(one, -2),
]
if me == 0:
    calls += [
        lambda: dist.gather(one, two(1), dst=0),
        lambda: dist.gather(one, two(2, 4), dst=0),
        lambda: dist.scatter(one, two(3), src=0),
        lambda: dist.scatter(one, two(2, 4), src=0),
    ]
heard = []
for number, call in enumerate(calls):
    try:
        call()
    except (UsageError, ValueError) as error:  # ValueError: torch's own checks
        continue
    heard.append(number)
print(json.dumps(heard))
"""

REASSIGNED = """
import json, os, torch, shoal
from torch import nn
session = shoal.init(deadline_s=20)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.register_buffer("new", torch.zeros(1))
        self.register_buffer("same", torch.zeros(1))
    def forward(self, x):
        self.new = 0.5 * self.new + session.rank + 1
        self.same.mul_(0.5).add_(session.rank + 1)
        return self.layer(x)
model = Model()
optimizer = shoal.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), model, sync=os.environ["SYNC"]
)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
optimizer.finish()
optimizer.average_model()
print(json.dumps([model.new.item(), model.same.item()]))
"""


Printed = Callable[..., list[Any]]


@pytest.fixture
def printed(run_workers: RunWorkers) -> Printed:
    """Run a script as every rank of a job; return what each printed last."""

    def run(code: str, size: int, **environment: str) -> list[Any]:
        return run_workers(run_script, size, code, environment=environment, initialize=False)

    return run


@pytest.mark.parametrize(
    ("over", "sync"),
    seldom(
        itertools.product(("gloo", "shoal"), ("ds-sync", "local-sgd", "ripples-static")),
        often=[("shoal", "local-sgd")],
    ),
)
def test_from_an_earlier_state_the_same_steps_come_to_the_same(
    printed: Printed, sync: str, over: str
) -> None:
    assert printed(ROLL_BACK, 2, SYNC=sync, OVER=over) == [True, True]


def test_a_backward_pass_that_raised_is_forgotten_with_its_gradients(printed: Printed) -> None:
    assert printed(FAIL_A_PASS, 1) == [[True, -1.0]]


def test_a_forked_process_that_ends_takes_nothing_of_its_parent_s_apart() -> None:
    assert printed_by_forks(FORK, 2) == [0, 7]


def test_groups_of_a_second_generator_are_not_taken_for_the_first_one_s(printed: Printed) -> None:
    assert printed(GENERATORS_IN_TURN, 2) == [0.5, 0.5]


def test_a_message_of_another_size_is_an_error_for_who_receives_from_anyone(
    printed: Printed,
) -> None:
    assert printed(WRONG_SIZE, 2) == [True, True]


@pytest.mark.parametrize("ranks", seldom([2, 3], often=[3]))
def test_parts_of_any_size_are_gathered_and_exchanged_unevenly(
    printed: Printed, ranks: int
) -> None:
    assert printed(UNEVEN, ranks) == [True] * ranks


def test_lists_roots_and_peers_that_do_not_fit_the_group_are_refused(printed: Printed) -> None:
    assert printed(WRONG_LISTS, 2) == [[], []]


@pytest.mark.parametrize("sync", seldom(["all-reduce", "ds-sync", "local-sgd"], often=["ds-sync"]))
def test_a_buffer_that_forward_assigns_anew_is_averaged_like_others(
    printed: Printed, sync: str
) -> None:
    one, other = printed(REASSIGNED, 2, SYNC=sync)
    assert one == other
    assert one[0] == one[1]


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wire", ["float32", "bfloat16", "float16"])
def test_numbers_of_any_type_are_rounded_to_any_wire(kind: torch.dtype, wire: str) -> None:
    tensor = torch.tensor([1.5, -3.0, torch.finfo(kind).max, torch.finfo(kind).min], dtype=kind)
    round_to(tensor, wire)
    sent = tensor.to(getattr(torch, wire))
    assert sent.isfinite().all()
    assert sent[:2].tolist() == [1.5, -3.0]
    assert tensor.tolist() == sent.tolist()


SWAPPED = """
import json, torch, shoal
shoal.init(deadline_s=20)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1)
heard = []
for first, second in ((model, optimizer), ("sgd", model), (optimizer, list(model.parameters()))):
    try:
        shoal.DistributedOptimizer(first, second)
    except shoal.errors.UsageError as error:
        heard.append(str(error).startswith("DistributedOptimizer takes an optimizer, then"))
print(json.dumps(heard))
"""


def test_what_is_no_optimizer_or_no_model_is_refused_in_a_sentence(printed: Printed) -> None:
    assert printed(SWAPPED, 1) == [[True] * 3]
