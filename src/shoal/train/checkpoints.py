"""Checkpoints of a job: written beside training, loaded by any workers.

The lowest rank of the view writes alone; under parameter servers every worker writes what its
servers keep. There is no collective: torch.distributed's groups keep the members that they began
with. A file gets its final name only when it is whole, and names tell the
steps and which part of how many it is, so a worker that stood still cannot put an old file in place
of a newer one, and a checkpoint that lacks a part is none.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections import defaultdict
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
from shoal.train.alike_at_first import fingerprint_model
from shoal.train.first_word import first_word
from shoal.train.sample_counts import in_common
from shoal.train.servers.slices import put_together
from shoal.train.state_memory import mapped

if TYPE_CHECKING:
    from torch import Tensor, nn

    from shoal.session import Session
    from shoal.strategies import AbstractDefinition
    from shoal.train.elastic_sampler import ElasticSampler
    from shoal.train.executor import CheckpointPart
    from shoal.train.optimizer import DistributedOptimizer

_NAME: Final = re.compile(r"step-(\d{12})(?:\.view-(\d+)\.part-(\d+)-of-(\d+))?\.pt")
_UNFINISHED: Final = re.compile(r"\.step-(\d{12}).*\.pt\.\d+")
_FORMAT: Final = 1
_MOST_UNFINISHED: Final = 2
"""Checkpoints that a job may have begun to write, and not finished, when it died."""

_log = logging.getLogger(__name__)


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
            for old in _outdated(path.parent, keep):
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

    To be called between two steps, by every worker: the lowest rank of the view writes its state,
    and under parameter servers the others write what their servers keep, into the same folder.
    Training goes on meanwhile; the copy that is written takes as much memory as the model and the
    optimizer's state. Waits for the previous checkpoint. The last `keep` stay.

    Raises `ResourceError` if the previous checkpoint could not be written.
    """
    whole_number(keep, "keep, the number of checkpoints that stay,", low=1)
    replica = optimizer.replica
    if replica.saving is not None:
        replica.saving.wait()
    replica.saving = None
    part = optimizer.checkpoint_part()
    if part is None:
        return Saving()
    state: dict[str, Any] = {
        "format": _FORMAT,
        "sampler": None if sampler is None else sampler.state_dict(),
        **part.state,
    }
    if part.number == 0:
        state |= {
            "strategy": optimizer.strategy.word,
            "fingerprint": fingerprint_model(replica.model, replica.optimizer),
            "num_steps": optimizer.num_steps,
            "model": replica.model.state_dict(),
            "optimizer": replica.optimizer.state_dict(),
        }
    saving = Saving(Path(folder) / _name(optimizer.num_steps, part))
    saving.begin(mapped(state, _copy), keep)
    replica.saving = saving
    return saving


def _name(steps: int, part: CheckpointPart) -> str:
    place = f".view-{part.epoch}.part-{part.number}-of-{part.count}" if part.count > 1 else ""
    return f"step-{steps:012}{place}.pt"


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
    checkpoints, `DataError` for a file of another kind, and for parts without a whole checkpoint.
    """
    session = current_session()
    if session.member.is_newcomer:
        return 0
    there = _there(Path(folder))
    if not there:
        _check_shared(Path(folder))
        return 0
    path = there[-1][0]
    state, *parts = map(_read, there[-1])
    own = fingerprint_model(model, optimizer)
    for saved, mine in zip_longest(state["fingerprint"], own, fillvalue="nothing"):
        if saved != mine:
            message = (
                f"{path} is a checkpoint of another model or optimizer: it has {saved!r} where this"
                f" has {mine!r}."
            )
            raise MismatchError(message)
    if sampler is not None:
        if state["sampler"] is None:
            message = f"{path} has no position of an ElasticSampler: it was saved without one."
            raise MismatchError(message)
        positions = [each["sampler"] for each in (state, *parts)]
        sampler.load_state_dict(state["sampler"] | in_common(positions))
    model.load_state_dict(state["model"])
    try:
        known = state["optimizer"]
        if "slices" in state:
            known = put_together([state, *parts], optimizer, path)
        optimizer.load_state_dict(known)
    except ValueError as error:  # its groups are others
        message = f"{path} does not fit this optimizer ({str(error).rstrip('.')})."
        raise MismatchError(message) from None
    session.next_training.loaded = int(state["num_steps"]), str(state["strategy"])
    return int(state["num_steps"])


def agree_on_loaded(session: Session, training: str, strategy: AbstractDefinition) -> int:
    """Return the number of steps in the checkpoint that a training begins from; collective.

    Raises `UsageError` if the checkpoint is another strategy's, and `MismatchError` if the first
    member has loaded another checkpoint.
    """
    coming = session.next_training
    loaded, coming.loaded = coming.loaded, None
    if session.member.is_newcomer:
        return 0
    steps, word = loaded or (0, strategy.word)
    first, word_of_first = first_word(session, f"{training}/loaded", str(steps).encode())
    if int(word_of_first) != steps:
        message = (
            f"Rank {session.rank} goes on from a checkpoint after {steps} steps and rank {first}"
            f" from one after {int(word_of_first)}: let all workers load the same, from a folder"
            " that all can read."
        )
        raise MismatchError(message)
    if word != strategy.word:
        message = (
            f"The checkpoint was made with sync={word!r}, not {strategy.word!r}: use the same"
            " strategy, or load the model and the optimizer from its file yourself."
        )
        raise UsageError(message)
    return steps


def _there(folder: Path) -> list[list[Path]]:
    """Return the parts of each whole checkpoint in a folder, in order, the newest last."""
    found: dict[tuple[int, int, int], dict[int, Path]] = defaultdict(dict)
    for path in folder.iterdir() if folder.is_dir() else ():
        if match := _NAME.fullmatch(path.name):
            steps, epoch, number, count = (int(each or 0) for each in match.groups())
            found[steps, epoch, max(count, 1)][number] = path
    whole = [(key, parts) for key, parts in found.items() if len(parts) == key[-1]]
    return [[parts[n] for n in sorted(parts)] for _, parts in sorted(whole, key=lambda at: at[0])]


def _check_shared(folder: Path) -> None:
    """Raise `DataError` if workers have saved parts into `folder` that never made a whole.

    A job that died while it wrote its first checkpoint leaves some, too, but not of several steps.
    """
    parts = [p for p in folder.iterdir() if _NAME.fullmatch(p.name)] if folder.is_dir() else []
    if not parts:
        return
    has = f"{folder} has parts of checkpoints, such as {min(parts).name}, and no whole one"
    if len({_steps_of(path) for path in parts}) > _MOST_UNFINISHED:
        raise DataError(f"{has}: all workers must save into one folder that they share.")
    _log.warning("%s: nothing is loaded", has)


def _outdated(folder: Path, keep: int) -> list[Path]:
    """Return the files of all but the last `keep` checkpoints.

    Older parts that lack others, and unfinished files, are of writers that are dead or out: whoever
    has written a part of the newest checkpoint has finished those before.
    """
    whole = _there(folder)
    if not whole:
        return []
    newest, stay = _steps_of(whole[-1][0]), {path for parts in whole[-keep:] for path in parts}
    return [
        path
        for path in folder.iterdir()
        if (_NAME.fullmatch(path.name) or _UNFINISHED.fullmatch(path.name))
        and path not in stay
        and _steps_of(path) < newest
    ]


def _steps_of(path: Path) -> int:
    return int(path.name.removeprefix(".").removeprefix("step-")[:12])


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
