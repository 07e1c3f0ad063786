"""Checkpoints of a job: written beside training by one worker, loaded by any workers.

The lowest rank of the view writes alone, without a collective: torch.distributed's groups keep the
members that they began with. A file gets its final name only when it is whole, and names tell the
steps, so a worker that stood still cannot put an old file in place of a newer one.
"""

from __future__ import annotations

import os
import re
import threading
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, Final, final

import torch

from shoal.arguments import whole_number
from shoal.carriers import HOST
from shoal.errors import DataError, MismatchError, ResourceError, ShoalError, UsageError
from shoal.session import current_session
from shoal.strategies import Family
from shoal.train.alike_at_first import fingerprint_model
from shoal.train.state_memory import mapped

if TYPE_CHECKING:
    from torch import Tensor, nn

    from shoal.session import Session
    from shoal.strategies import AbstractDefinition
    from shoal.train.elastic_sampler import ElasticSampler
    from shoal.train.optimizer import DistributedOptimizer

_NAME: Final = re.compile(r"step-(\d{12})\.pt")
_UNFINISHED: Final = re.compile(r"\.step-(\d{12})\.pt\.\d+")
_FORMAT: Final = 1


@final
class Saving:
    """A checkpoint that is being written, or one that this worker need not write."""

    def __init__(self, path: Path | None = None) -> None:
        self.path: Final = path
        """The file of the checkpoint; None where another worker writes it."""
        self._thread: threading.Thread | None = None
        self._failure: ShoalError | None = None

    def begin(self, state: dict[str, Any], keep: int) -> None:
        """Write `state` in a thread, which the interpreter's end waits for."""
        assert self.path is not None
        self._thread = threading.Thread(target=self._write, args=(self.path, state, keep))
        self._thread.start()

    def wait(self) -> None:
        """Return once it is written. Raises `ResourceError` if it cannot be."""
        if self._thread is not None:
            self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _write(self, path: Path, state: dict[str, Any], keep: int) -> None:
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with fresh.open("wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
            for old in (*_there(path.parent)[:-keep], *_left_behind(path)):
                old.unlink(missing_ok=True)
        except (OSError, RuntimeError) as error:  # torch's writer raises the latter on a full disk
            reason = str(error).partition("\n")[0]
            self._failure = ResourceError(f"The checkpoint {path} cannot be written ({reason}).")
            with suppress(OSError):
                fresh.unlink()


def save_checkpoint(
    folder: str | os.PathLike[str],
    optimizer: DistributedOptimizer,
    sampler: ElasticSampler | None = None,
    *,
    keep: int = 2,
) -> Saving:
    """Write the model, the optimizer's state and the sampler's position into `folder`.

    To be called between two steps, by every worker: the lowest rank of the view writes its state.
    Training goes on meanwhile; the copy that is written takes as much memory as the model and the
    optimizer's state. Waits for the previous checkpoint. The last `keep` stay.

    Raises `UsageError` for parameter servers, whose state no single worker has, and `ResourceError`
    if the previous checkpoint could not be written.
    """
    whole_number(keep, "keep, the number of checkpoints that stay,", low=1)
    definition = optimizer.strategy
    if definition.family is Family.SERVERS:
        message = (
            f"sync={definition.word!r} keeps the optimizer's state in all workers' shards: save"
            " optimizer.state_dict() on each of them."
        )
        raise UsageError(message)
    session = current_session()
    replica = optimizer.replica
    if replica.saving is not None:
        replica.saving.wait()
    replica.saving = None
    if session.rank != session.view.members[0]:
        return Saving()
    optimizer.settle()
    state = {
        "format": _FORMAT,
        "strategy": definition.word,
        "fingerprint": fingerprint_model(replica.model, replica.optimizer),
        "num_steps": optimizer.num_steps,
        "model": replica.model.state_dict(),
        "optimizer": replica.optimizer.state_dict(),
        "sampler": None if sampler is None else sampler.state_dict(),
    }
    saving = Saving(Path(folder) / f"step-{optimizer.num_steps:012}.pt")
    saving.begin(mapped(state, _copy), keep)
    replica.saving = saving
    return saving


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to(HOST, copy=True)


def load_checkpoint(
    folder: str | os.PathLike[str],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    sampler: ElasticSampler | None = None,
) -> int:
    """Load the newest checkpoint in `folder`, if there is one; return how many steps led to it.

    To be called by every worker after `init`, before its DistributedOptimizer is made, which goes
    on counting from there. A newcomer to a running job loads nothing: it gets the others' state.
    Raises `MismatchError` for a checkpoint of another model, and for workers that found different
    checkpoints, `DataError` for a file of another kind.
    """
    session = current_session()
    there = _there(Path(folder))
    if session.member.is_newcomer or not there:
        return 0
    state = _read(there[-1])
    own = fingerprint_model(model, optimizer)
    for saved, mine in zip_longest(state["fingerprint"], own, fillvalue="nothing"):
        if saved != mine:
            message = (
                f"{there[-1]} is a checkpoint of another model or optimizer: it has {saved!r} where"
                f" this has {mine!r}."
            )
            raise MismatchError(message)
    if sampler is not None:
        if state["sampler"] is None:
            message = f"{there[-1]} has no position of an ElasticSampler: it was saved without one."
            raise MismatchError(message)
        sampler.load_state_dict(state["sampler"])
    model.load_state_dict(state["model"])
    try:
        optimizer.load_state_dict(state["optimizer"])
    except ValueError as error:  # its groups are others
        message = f"{there[-1]} does not fit this optimizer ({str(error).rstrip('.')})."
        raise MismatchError(message) from None
    session.next_training.loaded = int(state["num_steps"]), str(state["strategy"])
    return int(state["num_steps"])


def agree_on_loaded(session: Session, training: str, strategy: AbstractDefinition) -> int:
    """Return the number of steps in the checkpoint that a training begins from; collective.

    Raises `UsageError` if the checkpoint is another strategy's, and `MismatchError` if rank 0 has
    loaded another checkpoint.
    """
    coming = session.next_training
    loaded, coming.loaded = coming.loaded, None
    if session.member.is_newcomer:
        return 0
    steps, word = loaded or (0, strategy.word)
    name = f"{training}/loaded"
    if session.rank == 0:
        session.facts.set(name, str(steps).encode())
    first = int(session.facts.get(name))
    if first != steps:
        message = (
            f"Rank {session.rank} goes on from a checkpoint after {steps} steps and rank 0 from one"
            f" after {first}: let all workers load the same, from a folder that all can read."
        )
        raise MismatchError(message)
    if word != strategy.word:
        message = (
            f"The checkpoint was made with sync={word!r}, not {strategy.word!r}: use the same"
            " strategy, or load the model and the optimizer from its file yourself."
        )
        raise UsageError(message)
    return steps


def _there(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the newest last."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))


def _left_behind(path: Path) -> list[Path]:
    """Return unfinished files of checkpoints before `path`, whose writers are dead or out."""
    found = [(_UNFINISHED.fullmatch(each.name), each) for each in path.parent.iterdir()]
    return [each for match, each in found if match and f"step-{match[1]}.pt" < path.name]


def _read(path: Path) -> dict[str, Any]:
    try:
        state = torch.load(path, map_location=HOST, weights_only=True)
    except (RuntimeError, OSError, EOFError, ValueError, KeyError, UnpicklingError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        message = f"{path} is no checkpoint ({type(error).__name__}: {reason})."
        raise DataError(message) from None
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        message = f"{path} is no checkpoint of this version of Shoal."
        raise DataError(message)
    return state
