"""`ElasticSampler`: every sample of a data set once in an epoch, while workers come and go.

Owns the interface for users: batches of indices, epochs, positions. `samples` decides which worker
gets which samples, and the strategy which batches count (`train.sample_counts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Any, Final, Literal, final

from msgspec.structs import replace

from shoal.arguments import flag, whole_number
from shoal.errors import MismatchError, UsageError
from shoal.samples import Ledger, OwnBatches, Rule
from shoal.session import Session
from shoal.strategies import Averaged, Family
from shoal.train.sample_counts import SampleCounts, ledger_of, position_of
from shoal.workloads import epoch_order

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.samples import Batch
    from shoal.strategies import AbstractDefinition

_MEASURED: Final = "measured"

_UNUSED: Final = (
    "No training takes its batches from this ElasticSampler: make it before the"
    " DistributedOptimizer whose steps use them, and one for each."
)


@final
class ElasticSampler:
    """Deals the indices of `dataset` out among the workers: each goes to one worker in an epoch.

    Iterating yields this worker's batches, lists of indices, up to the end of the present `epoch`:
    by itself, or as the `batch_sampler` of torch's DataLoader. Each `step()` of the
    DistributedOptimizer that is made next uses one. A batch counts once other workers have the
    step's update as well; if its worker is lost before, others get its samples.

    `global_batch` is the number of samples in a step of all workers together, however many there
    are, and `batch_size` that of each worker: give one of them. Without `shuffle` samples come in
    the order of `dataset`, else in a new order in each epoch, drawn with `seed`. With `drop_last`
    samples that fill no batch at the end of an epoch are left out. `shares` says how many shares of
    the samples a rank gets, for machines of different speed; other ranks get 1. With "measured"
    shares follow the workers' speeds, in a job that goes on without lost workers. Under all-reduce
    a step's gradient is the mean over its samples, however they are divided.

    All arguments are the same on every worker. Raises `UsageError` for a data set without a length
    or with fewer samples than workers, for a `global_batch` smaller than the number of workers, and
    for measured shares without `global_batch` or in a job that needs all its workers.
    """

    def __init__(
        self,
        dataset: Sized,
        session: Session,
        *,
        global_batch: int | None = None,
        batch_size: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
        shares: Mapping[int, int] | Literal["measured"] | None = None,
    ) -> None:
        _check_session(session)
        if (global_batch is None) == (batch_size is None):
            raise UsageError(
                "Give an ElasticSampler either global_batch, the samples of all workers in a step,"
                " or batch_size, those of each."
            )
        self._num_workers = len({*session.view.members, session.rank})
        size = _length_of(dataset)
        if size < self._num_workers:
            message = f"{self._num_workers} workers cannot share {size} samples: use fewer."
            raise UsageError(message)
        self._rule = Rule(
            size,
            self._checked_batch(global_batch, batch_size),
            is_global=batch_size is None,
            drop_last=flag(drop_last, "drop_last"),
            shares={} if shares == _MEASURED else _checked_shares(shares),
            is_measured=shares == _MEASURED,
        )
        _check_can_be_measured(self._rule, session)
        self._check_there_is_a_batch()
        self._seed: Final = whole_number(seed, "The seed", low=0, high=(1 << 63) - 1)
        self._shuffles: Final = flag(shuffle, "shuffle")
        self._position: dict[str, Any] | None = None
        self._counts: SampleCounts | None = None
        self._turn = 0
        self._orders: dict[int, Tensor] = {}
        session.next_training.sampler = self

    def _checked_batch(self, global_batch: int | None, batch_size: int | None) -> int:
        if batch_size is not None:
            return whole_number(batch_size, "batch_size", low=1)
        size = whole_number(global_batch, "global_batch", low=1)
        if size < self._num_workers:
            message = (
                f"global_batch={size} is too small for {self._num_workers} workers: each needs a"
                " sample in a step."
            )
            raise UsageError(message)
        return size

    def _check_there_is_a_batch(self) -> None:
        rule = self._rule
        needed = rule.batch_size * (1 if rule.is_global else self._num_workers)
        if rule.drop_last and rule.num_samples < needed:
            message = (
                f"drop_last leaves nothing: {rule.num_samples} samples fill no batch of {needed}."
            )
            raise UsageError(message)

    def _options(self) -> dict[str, object]:
        """Return the options that all workers must give alike."""
        rule = self._rule
        return {
            "samples": rule.num_samples,
            "global_batch" if rule.is_global else "batch_size": rule.batch_size,
            "drop_last": rule.drop_last,
            "shuffle": self._shuffles,
            "shares": _MEASURED if rule.is_measured else dict(sorted(rule.shares.items())),
            "sampler seed": self._seed,
        }

    @property
    def epoch(self) -> int:
        """The epoch of the batch that the next step uses; it counts from 0."""
        return self._own().epoch

    def __len__(self) -> int:
        """Return how many batches this worker has in the rest of the epoch, as it is dealt now."""
        own = self._own()
        return own.num_left(own.epoch)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield this worker's batches until the epoch ends; batches no step has used come again.

        Waits while the members change, at most the deadline, and raises `WorkerLost`.
        """
        counts = self._counts
        if counts is None:
            raise UsageError(_UNUSED)
        self._turn += 1
        turn, number, last = self._turn, counts.own.num_taken, self.epoch
        while turn == self._turn:
            batch = counts.next_batch(number, last)
            if batch is None:
                return
            yield self._indices(batch)
            number += 1

    def _own(self) -> OwnBatches:
        """Return this worker's batches; before there is a training, those of a lone worker."""
        if self._counts is not None:
            return self._counts.own
        ledger = Ledger.first(0, (0,)) if self._position is None else self._start()
        return OwnBatches(0, self._rule, ledger)

    def _start(self) -> Ledger:
        assert self._position is not None
        return ledger_of(self._position, 0, (0,))

    def _indices(self, batch: Batch) -> list[int]:
        if not self._shuffles:
            return [each for start, stop in batch.spans for each in range(start, stop)]
        if batch.epoch not in self._orders:
            while len(self._orders) > 1:  # a late batch of an epoch may come in the next
                del self._orders[min(self._orders)]
            order = epoch_order(self._rule.num_samples, self._seed, batch.epoch)
            self._orders[batch.epoch] = order
        order = self._orders[batch.epoch]
        return [each for start, stop in batch.spans for each in order[start:stop].tolist()]

    def begin(
        self, session: Session, training: str, definition: AbstractDefinition
    ) -> SampleCounts:
        """Let the steps of a training use the batches; see `SampleCounts`."""
        is_even = definition.family is Family.SUMS
        is_uneven = bool(self._rule.shares) or self._rule.is_measured
        if is_uneven and not is_even and definition.averaged is Averaged.GRADIENTS:
            message = (
                f"sync={definition.word!r} gives every worker's gradient the same weight: leave out"
                " shares, or use all-reduce."
            )
            raise UsageError(message)
        self._rule = replace(self._rule, is_even=is_even)
        self._counts = SampleCounts(session, training, self._rule, self._options(), self._position)
        return self._counts

    def state_dict(self) -> dict[str, Any]:
        """Return which samples are still to come, as plain values, for any number of workers.

        To be called between two steps; under all-reduce the same on every worker. Where parameters
        are averaged it holds what this worker knows of the others: samples of batches that they
        have not told of yet come again.
        """
        if self._counts is not None:
            position = self._counts.position()
        else:
            position = self._position or position_of(Ledger.first(0, (0,)))
        return {"samples": self._rule.num_samples, **self._drawn_with(), **position}

    def _drawn_with(self) -> dict[str, Any]:
        return {"shuffle": self._shuffles, "seed": self._seed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin where `state` was saved; call it before the DistributedOptimizer is made.

        All workers begin where rank 0 does. Raises `MismatchError` for the state of another data
        set or order, and `UsageError` once training has begun.
        """
        if self._counts is not None:
            raise UsageError(
                "Load an ElasticSampler's state before making the DistributedOptimizer: all workers"
                " begin where rank 0 does, and newcomers where the others are."
            )
        wanted = {"samples": self._rule.num_samples, **self._drawn_with()}
        for name, here in wanted.items():
            if name not in state or "pools" not in state:
                raise MismatchError("This is no state of an ElasticSampler.")
            if state[name] != here:
                message = (
                    f"The state is of an ElasticSampler with {name}={state[name]}, and this one has"
                    f" {name}={here}: give it the same data set and order."
                )
                raise MismatchError(message)
        self._position = {"pools": state["pools"], "fresh": state["fresh"]}


def _check_session(session: object) -> None:
    if not isinstance(session, Session):
        message = f"An ElasticSampler takes what shoal.init() returns, not {session!r}."
        raise UsageError(message)


def _length_of(dataset: object) -> int:
    try:
        return len(dataset)  # type: ignore[arg-type]  # what has no length is refused here
    except (TypeError, NotImplementedError):
        message = (
            f"An ElasticSampler needs a data set with a length, which {type(dataset).__name__} has"
            " not: samples are dealt out by their indices."
        )
        raise UsageError(message) from None


def _check_can_be_measured(rule: Rule, session: Session) -> None:
    """Raise `UsageError` for measured shares where they cannot be measured."""
    if rule.is_measured and not rule.is_global:
        raise UsageError(
            "shares='measured' divides global_batch by the speed of the workers: give that, and no"
            " batch_size."
        )
    if rule.is_measured and not session.is_elastic:
        raise UsageError(
            "shares='measured' needs a job whose workers can agree anew while it runs: begin it"
            " with shoal.init(min_workers=...)."
        )


def _checked_shares(shares: object) -> dict[int, int]:
    if shares is None:
        return {}
    if not isinstance(shares, Mapping):
        message = (
            "shares gives ranks their shares, such as {0: 2, 3: 1}, or is 'measured', not"
            f" {shares!r}."
        )
        raise UsageError(message)
    return {
        whole_number(rank, "A rank in shares", low=0): whole_number(share, "A share", low=1)
        for rank, share in shares.items()
    }
