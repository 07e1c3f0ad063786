"""One worker of a job with a fault: trains until it is told to end, and says what came of it.

Knows its own place in the job and where the fault is due, not what is right: see `judge`.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import torch
from msgspec.structs import replace
from torch import nn

from shoal.errors import ShoalError
from shoal.jobs.chaos.faults import Case, Phase
from shoal.jobs.chaos.notes import Notes
from shoal.jobs.chaos.outcomes import Ended, Told
from shoal.jobs.chaos.places import Place
from shoal.jobs.worker import die_with_launcher
from shoal.session import init, shutdown
from shoal.train import DistributedOptimizer, Saving, load_checkpoint, save_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.session import Session

DEADLINE_S: Final = 16.0
WIND_DOWN: Final = "wind-down"
STEPS_TO_THE_END: Final = 8
"""Steps that each worker makes once it is told to end."""
_STEPS_AHEAD: Final = 40
"""More steps than one worker is ahead of another when they hear that they are to end."""
_STEPS_BEFORE: Final = 4
"""Steps of a first training, where the fault is due in a second one."""
_FEATURES: Final = 8
_SAVED_EVERY: Final = 2
"""Steps from one checkpoint to the next."""


def chaos_worker(
    case: Case, rank: int, size: int, folder: str, environment: dict[str, str]
) -> None:
    """Be a worker of `case`'s job; a rank from `size` on is a newcomer's."""
    os.setsid()  # else a shell that ends would let go on who is stopped
    threading.Thread(target=die_with_launcher, args=(Path(folder),), daemon=True).start()
    with Path(folder, f"output-{rank}").open("ab") as output:
        for descriptor in (1, 2):
            os.dup2(output.fileno(), descriptor)
    os.environ.update(environment)
    torch.set_num_threads(1)
    notes = Notes(folder)
    told = _outcome(case, rank, size, notes)
    notes.write(f"told-{rank}", msgspec.json.encode(told))
    with suppress(ShoalError):
        shutdown()
    sys.stderr.flush()
    os._exit(0)  # connections that a fault has broken would hold up an orderly exit


def _outcome(case: Case, rank: int, size: int, notes: Notes) -> Told:
    place = Place(case, rank, size, notes)
    place.watch_carrier()
    try:
        return _train(case, place, notes)
    except ShoalError as error:
        return Told(Ended.NAMED, f"{type(error).__name__}: {error}")
    except Exception:  # noqa: BLE001 - whatever it is, it is what became of this worker
        return Told(Ended.RAISED, traceback.format_exc())


def _train(case: Case, place: Place, notes: Notes) -> Told:
    session = init(deadline_s=DEADLINE_S, min_workers=1)
    place.watch_views(session)
    place.watch_checkpoints()
    place.come_to(Phase.START)
    place.come_to(Phase.JOINING)
    trainings = [_Training(session, case, place, notes)]
    if case.phase is Phase.NEXT_TRAINING:
        for _ in range(_STEPS_BEFORE):
            trainings[0].step()
        trainings.pop().finish()
    if case.phase in (Phase.NEXT_TRAINING, Phase.SIDE_BY_SIDE):
        trainings.append(_Training(session, case, place, notes))
    notes.write(f"is-in-{session.rank}")
    made, end = 0, _End(notes, is_for_all=len(trainings) > 1)
    while (last := end.after(made)) is None or made < last:
        for training in trainings:
            training.step()
        made += 1
    for training in trainings:
        training.finish()
    for training in trainings:
        training.average()
    told = trainings[-1].told()
    if len(trainings) > 1:
        told = replace(told, model=" ".join(each.told().model for each in trainings))
    shutdown()
    return told


class _End:
    """The number of steps after which a worker ends: some after it is told to wind down.

    With several trainings, whose steps all have to make in one order, it `is_for_all` workers.
    """

    def __init__(self, notes: Notes, *, is_for_all: bool) -> None:
        self._notes, self._is_for_all = notes, is_for_all
        self._after: int | None = None

    def after(self, made: int) -> int | None:
        """Return that number, once it is known; this worker has `made` so many."""
        if self._after is None and self._notes.has(WIND_DOWN):
            self._after = made + STEPS_TO_THE_END
            if self._is_for_all:
                if self._notes.claim("end-claimed"):
                    self._notes.write("end", b"%d" % (made + _STEPS_AHEAD))
                self._notes.wait_for("end", DEADLINE_S)
                self._after = int(self._notes.read("end"))
        return self._after


class _Training:
    """A model with statistics, an optimizer with state, and what became of them step by step.

    The model learns to give back its input, so that its parameters neither vanish nor grow.
    """

    def __init__(self, session: Session, case: Case, place: Place, notes: Notes) -> None:
        self._session, self._place, self._notes = session, place, notes
        torch.manual_seed(session.rank)
        layers = (nn.Linear(_FEATURES, 16), nn.BatchNorm1d(16), nn.Linear(16, _FEATURES))
        self._model = nn.Sequential(*layers)
        inner = torch.optim.Adam(self._model.parameters(), lr=0.01)
        word, _, overlap = case.sync.partition(",")
        self._saves_into = notes.folder / "checkpoints" if case.phase is Phase.CHECKPOINT else None
        self._saving = Saving()
        options: dict[str, Any] = {"overlap": overlap} if overlap else {}
        self._optimizer = DistributedOptimizer(inner, self._model, sync=word, **options)
        place.watch_gradient(layers[0].weight)
        self._made = 0
        self._data = torch.Generator().manual_seed(session.rank)
        self._states = {self._optimizer.num_steps: self._state()}

    def step(self) -> None:
        """Make one step, and note how many there are and to what they have led."""
        self._optimizer.zero_grad()
        inputs = torch.randn(16, _FEATURES, generator=self._data)
        (self._model(inputs) - inputs).square().mean().backward()
        if not self._made:
            self._place.come_to(Phase.FIRST_STEP)
        self._optimizer.step()
        self._made += 1
        self._states[self._optimizer.num_steps] = self._state()
        self._notes.write(f"steps-{self._session.rank}", b"%d" % self._made)
        if self._saves_into is not None and self._optimizer.num_steps % _SAVED_EVERY == 0:
            self._saving = save_checkpoint(self._saves_into, self._optimizer)

    def finish(self) -> None:
        """End the training."""
        self._place.come_to(Phase.FINISH, "before finish")
        self._optimizer.finish()
        self._place.come_to(Phase.FINISH, "after finish")

    def average(self) -> None:
        """Take the mean of all models."""
        self._place.is_averaging = True
        self._optimizer.average_model()
        self._place.is_averaging = False
        self._place.come_to(Phase.FINISH, "after average_model")

    def told(self) -> Told:
        """Return what this worker has to say at its end."""
        parameters = [each.detach() for each in self._model.parameters()]
        final, saved, steps = hash_of(parameters), "", 0
        if self._saves_into is not None:
            self._saving.wait()
            inner = torch.optim.Adam(self._model.parameters(), lr=0.01)
            steps = load_checkpoint(self._saves_into, self._model, inner)
            saved = self._state()
        return Told(
            Ended.FINISHED,
            model=final,
            saved=saved,
            saved_steps=steps,
            largest=max(float(each.abs().max()) for each in parameters),
            states=self._states,
            members=self._session.view.members,
        )

    def _state(self) -> str:
        return hash_of([*self._model.parameters(), *self._model.buffers()])


def hash_of(tensors: Iterable[torch.Tensor]) -> str:
    """Return what tells tensors from others."""
    values = b"".join(each.detach().numpy().tobytes() for each in tensors)
    return blake2b(values, digest_size=8).hexdigest()
