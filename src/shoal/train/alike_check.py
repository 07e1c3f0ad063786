"""Replicas that a strategy keeps alike are compared now and then; ranks that differ are named.

Every so many steps each worker publishes a likeness of its parameters over the control plane, and
at the next such step it reads what the others had published at the one before: nobody waits for it.
A likeness is a digest, which differs if a single bit does, and a sketch: random signs sum the
parameters up to few numbers, whose distance between two workers is about that of their parameters
(Alon, Matias and Szegedy, "The space complexity of approximating the frequency moments", 1996). So
a difference that comes of rounding on unlike processors is told from a fault.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec
import torch

from shoal.carriers import HOST
from shoal.control import name_ranks
from shoal.decoding import decode_msgpack
from shoal.errors import MismatchError, ViewChanging, WorkerLost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from shoal.train.replica import Replica

_WIDTH: Final = 64
_BLOCK: Final = _WIDTH << 12
"""The elements that are summed up at a time: they fit into a processor's cache."""
ROUNDING: Final = 1e-4
"""The share of the parameters' length that replicas may be apart by rounding: rounding adds about
1e-7 of the length in each step, and the same gradients reach all."""

_log = logging.getLogger(__name__)


class Likeness(msgspec.Struct, frozen=True):
    """A digest and sketch of one worker's parameters after a step, for the others to compare."""

    step: int
    digest: bytes
    sketch: tuple[float, ...]

    def distance_from(self, other: Likeness) -> float:
        """Return about how far the parameters are from `other`'s, as a share of their length."""
        here, there = torch.tensor(self.sketch), torch.tensor(other.sketch)
        apart = float((here - there).norm())
        return apart / float(there.norm()) if apart else 0.0

    @property
    def is_finite(self) -> bool:
        """Whether all numbers of the sketch are finite."""
        return all(map(math.isfinite, self.sketch))


class AlikeCheck:
    """Compares a worker's parameters with the others' at every `every`-th step; 0: never.

    `give_up` lets the others know at once that this worker does not go on, and why.
    """

    def __init__(self, replica: Replica, every: int, give_up: Callable[[str], object]) -> None:
        self._replica, self._every, self._give_up = replica, every, give_up
        self._last: int | None = None
        """The step that the last digest was made at."""
        self._has_warned = False

    def look(self, step: int) -> None:
        """Compare the parameters if `step`, which has been made, is an `every`-th one.

        Raises `MismatchError` where parameters differ by more than rounding, or `WorkerLost` in a
        job that goes on without this worker, whose parameters differ from most workers'.
        """
        if self._every and step % self._every == 0:
            self._compare()
            self.publish(step)

    def publish(self, step: int) -> None:
        """Let the others know what the parameters are after `step` steps."""
        if self._every and step != self._last:
            flats = self._replica.flat.buffers
            ends = [each.start for each in self._replica.flat.statistics]
            trained = [flat[:end] for flat, end in zip(flats, ends, strict=True) if end]
            value = msgspec.msgpack.encode(likeness_of(trained, step))
            with suppress(ViewChanging):  # nobody finds it, and compares it
                self._replica.facts.set(self._name(step, self._replica.communicator.rank), value)
                self._last = step

    def end(self) -> None:
        """Compare the parameters published last, once all workers have finished."""
        if self._every:
            self._compare()

    def _compare(self) -> None:
        """Compare the parameters as they were when this worker published them last."""
        step, view = self._last, self._replica.view
        if step is None or len(view) == 1:
            return
        names = [self._name(step, rank) for rank in view.members]
        with suppress(ViewChanging):
            fault = "What a worker says of its parameters is not understood"
            found = zip(view.members, self._replica.facts.read(names), strict=True)
            said = {
                rank: decode_msgpack(each, Likeness, fault)
                for rank, each in found
                if each is not None
            }
            self._judge({rank: each for rank, each in said.items() if each.step == step}, step)

    def _judge(self, said: Mapping[int, Likeness], step: int) -> None:
        """Say which ranks differ from most, and raise if it is by more than rounding."""
        counts = Counter(each.digest for each in said.values())
        if len(counts) < 2 or not any(each.is_finite for each in said.values()):
            return  # a model that has diverged is no worker's fault
        ((most, count),) = counts.most_common(1)
        usual = next(each for each in said.values() if each.digest == most)
        odd = [rank for rank, each in said.items() if each.digest != most]
        apart = max(said[rank].distance_from(usual) for rank in odd)
        is_known = 2 * count > len(said)
        rest = [rank for rank in said if rank not in odd]
        others = "all others" if is_known else name_ranks(rest).replace("R", "r", 1)
        sentence = (
            f"{name_ranks(odd)} had other parameters than {others} after step {step},"
            f" {apart:.1g} of their length apart, though this strategy keeps all alike"
        )
        if apart <= ROUNDING:
            self._warn(
                f"{sentence}. Processors of several kinds, which round differently, do that."
            )
        elif self._replica.member.is_fixed or not is_known:
            raise MismatchError(
                f"{sentence}. Look for what changes weights outside of optimizer.step() there, or"
                " for broken memory, and start again from a checkpoint."
            )
        elif (own := self._replica.communicator.rank) in odd:
            self._give_up(sentence)
            raise WorkerLost(f"{sentence}: it is out, and may join again.", own)
        else:
            self._warn(f"{sentence}. It is out, and may join again.")

    def _warn(self, sentence: str) -> None:
        if not self._has_warned:
            _log.warning("%s: %s", self._replica.session, sentence)
        self._has_warned = True

    def _name(self, step: int, rank: int) -> str:
        """Return a rank's name to publish by: two by turns, as a rank may be one look ahead."""
        return f"{self._replica.session}/alike/{step // self._every % 2}/{rank}"


@torch.no_grad()
def likeness_of(tensors: Sequence[Tensor], step: int) -> Likeness:
    """Return the likeness of flat `tensors` after `step`; its signs are the same on all workers."""
    digest = blake2b(digest_size=16)
    sketch = torch.zeros(_WIDTH, device=HOST)
    generator = torch.Generator().manual_seed(1)
    for tensor in tensors:
        flat = torch.view_as_real(tensor).view(-1) if tensor.is_complex() else tensor
        bits = torch.zeros(_WIDTH, dtype=torch.int64, device=flat.device)
        sums = torch.zeros(_WIDTH, device=flat.device)
        blocks = flat.split(_BLOCK)
        signs = _signs().to(flat.device)
        turns = _drawn((len(blocks), _WIDTH), generator).to(flat.device)  # of a block's rows
        for block, turn in zip(map(_filled_up, blocks), turns, strict=True):
            rows = block.view(_WIDTH, -1)
            bits += rows.view(torch.int64).sum(1)
            sums += torch.linalg.vecdot(rows.float(), signs[:, : rows.shape[1]]).mul_(turn)
        digest.update(bits.cpu().numpy().tobytes())
        sketch += sums.cpu()
    return Likeness(step, digest.digest(), tuple(sketch.tolist()))


@cache
def _signs() -> Tensor:
    """Return the signs that the elements of a block have within its rows."""
    return _drawn((_WIDTH, _BLOCK // _WIDTH), torch.Generator().manual_seed(0))


def _drawn(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    drawn = torch.randint(2, shape, generator=generator, device=HOST)
    return drawn.float().mul_(2).sub_(1)


def _filled_up(block: Tensor) -> Tensor:
    """Return `block` with zeros behind it, so that it has rows of whole words of eight bytes."""
    lacking = -len(block) % (8 * _WIDTH)
    return torch.cat([block, block.new_zeros(lacking)]) if lacking else block
