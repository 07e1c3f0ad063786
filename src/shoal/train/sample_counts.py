"""The batches of this worker among those of the others, in a job whose members may change.

Joins `samples`, which decides, to the membership: a member reports which batches it has passed and
which count before a view changes, and hears all reports after it. Knows no data set and no loader.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, final

import msgspec
from msgspec.structs import replace

from shoal.decoding import decode_json, decode_msgpack
from shoal.errors import ProtocolError, UsageError
from shoal.membership import Stage
from shoal.samples import Change, Ledger, OwnBatches, Progress, common, length
from shoal.train.first_word import first_word
from shoal.train.pace import Pace
from shoal.train.told_counts import ToldCounts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.membership import Decision, Report
    from shoal.samples import Batch, Rule, Spans
    from shoal.session import Session

_NO_BATCH: Final = (
    "This step has no batch of the ElasticSampler, of which each step() uses one: take one before,"
    " and split that for several backward passes."
)


_MEASURED: Final = "How fast the workers are was measured anew, to divide the samples."

_log = logging.getLogger(__name__)


@final
class SampleCounts:
    """The batches that `rank` takes, and those that count, as `rule` deals them out in a training.

    `options` are those that all workers must give alike, and `position` is where this one would
    begin. A newcomer has no batches until it takes over the state that another has `handed_on`.
    """

    def __init__(
        self,
        session: Session,
        training: str,
        rule: Rule,
        options: Mapping[str, object],
        position: Mapping[str, Any] | None,
    ) -> None:
        self.rank: Final = session.rank
        self.options: Final = options
        self._position = position
        self._rule, self._session, self._training = rule, session, training
        self._member = session.member
        self._own: OwnBatches | None = None
        self._first_view = 0
        self._told: ToldCounts | None = None
        self._pace = Pace() if rule.is_measured else None
        self._size = 0
        """The samples of the batch that the last step has used."""
        with self._member.changed:
            if not self._member.is_newcomer:
                view = self._member.view
                self._first_view = view.epoch
                self._own = OwnBatches(self.rank, rule, Ledger.first(view.epoch, view.members))
            self._member.keep(self)

    @property
    def own(self) -> OwnBatches:
        """This worker's batches. Raises `UsageError` before it is a member."""
        if self._own is None:
            raise UsageError("This worker has no samples before it has joined the job.")
        return self._own

    def begin(self) -> None:
        """Begin at the first member's position; collective among all but newcomers."""
        if self._own is None:
            return
        own = msgspec.json.encode(self._position)
        first, word = first_word(self._session, f"{self._training}/position", own)
        fault = f"What rank {first} says of where samples begin is not understood"
        begun = decode_json(word, dict[str, Any] | None, fault)  # type: ignore[arg-type]
        with self._member.changed:
            if begun is not None:
                ledger = self._own.deal.ledger
                self._own.restart(ledger_of(begun, ledger.view, ledger.takers))

    def start(self) -> None:
        """Exchange counts of batches with the other workers, where no sum carries them."""
        if self._rule.is_even or self._session.world_size == 1:
            return
        self._told = ToldCounts(self, self._session.facts, self._training)
        self._told.start()

    def next_batch(self, number: int, last_epoch: int) -> Batch | None:
        """Return batch `number` of this worker; None if its epoch is after `last_epoch`.

        Waits while the view changes: the batch is then of the next view.
        """
        with self._member.changed:
            self._member.settled_view()
            return self.own.get(number, last_epoch)

    @property
    def num_taken(self) -> int:
        """The number of batches that steps have taken."""
        with self._member.changed:
            return self.own.num_taken

    def take(self) -> Batch:
        """Return the batch that the present step uses. Raises `UsageError` if there is none."""
        with self._member.changed:
            batch = self.own.take()
        if batch is None:
            raise UsageError(_NO_BATCH)
        self._size = self.size(batch)
        return batch

    def size(self, batch: Batch) -> int:
        """Return how many samples of a batch are trained on; 0 if it only keeps step."""
        return length(batch.spans) if batch.counts else 0

    def measure(self, own_s: float) -> None:
        """Take note of a step that took `own_s` seconds of this worker's own time.

        If shares are measured, one worker has all agree anew on them every so often.
        """
        if self._pace is None:
            return
        self._pace.note(self._size, own_s)
        if self._pace.is_due and self.rank == min(self._member.view.members):
            self._pace.asked()
            self._session.control.refresh(_MEASURED)

    @property
    def is_global(self) -> bool:
        """Whether all members' batches together have a fixed size."""
        return self._rule.is_global

    def weight(self, size: int, num_members: int) -> float:
        """Return the weight of the mean gradient of `size` samples in a sum of `num_members`."""
        return size * (num_members if self._rule.is_global else 1) / self._rule.batch_size

    def count(self, number: int, view: int | None = None) -> None:
        """Count the batches before `number`; if a view is given, only while it lasts."""
        with self._member.changed:
            if view is None or (self._member.view.epoch == view and not self._member.is_fenced):
                self.own.count(number)

    def count_all(self, ranks: Sequence[int], *, since: int | None = None) -> None:
        """Count one more batch of each of `ranks`, as a sum of the present view says.

        A sum that has come from another member is of an earlier view, whose epoch is `since`.
        """
        with self._member.changed:
            self.own.note_all(ranks, since=since)

    def state(self) -> tuple[int, tuple[int, ...], int]:
        """Return the view's epoch, the ranks with batches in it, and how many of its own count."""
        with self._member.changed:
            own = self.own
            ranks = {*own.deal.ledger.takers, *own.deal.ledger.held}
            return own.view, tuple(sorted(ranks)), own.counted[self.rank]

    def hear(self, view: int, counted: Mapping[int, int]) -> None:
        """Take note of how many batches of other workers count in a view."""
        with self._member.changed:
            if self.own.view == view and not self._member.is_fenced:
                for rank, number in counted.items():
                    self.own.note(rank, number)

    def report(self) -> dict[str, bytes]:
        """Return which batches this worker has passed, and knows to count; see `Bookkeeper`."""
        if self._own is None:
            return {}
        speed = 0.0 if self._pace is None else self._pace.speed
        return {self._note: msgspec.msgpack.encode(self._own.progress(speed=speed))}

    def decided(self, decision: Decision) -> None:
        """Go on in the view that is decided; see `Bookkeeper`."""
        if self._own is None or decision.view.epoch <= self._own.view:
            return
        if self.rank in decision.newcomers:  # it gets the others' state
            self._own = None
            return
        said = {rank: self._said(report) for rank, report in decision.reports.items()}
        before = self._own.deal.ledger.shares
        try:
            self._own.go_on(decision.view.epoch, decision.view.members, said)
        except ProtocolError as error:
            self._member.fail(error)
            return
        if self._pace is not None:
            shares = self._own.deal.ledger.shares
            self._pace.begin(has_changed=shares != before)
            _log.info("%s: samples are divided by %s", self._training, shares)

    def _said(self, report: Report) -> Progress:
        """Return a member's progress; a member that has not begun has none in the first view."""
        note = report.notes.get(self._note)
        if note is None:
            return Progress(self._first_view)
        fault = "What a worker says of its samples is not understood"
        stage = report.stages.get(self._training, Stage())
        return replace(decode_msgpack(note, Progress, fault), is_ending=stage.is_ending)

    @property
    def _note(self) -> str:
        return f"{self._training}/samples"

    def handed_on(self) -> object:
        """Return the state that a newcomer of the present view lacks."""
        own = self.own
        return msgspec.to_builtins((own.deal.ledger, own.last, own.heard_by_newcomer()))

    def take_over(self, state: object) -> None:
        """Go on from the state that another worker has `handed_on`."""
        with self._member.changed:
            kind = tuple[Ledger, Change | None, dict[int, int]]
            self._own = OwnBatches(self.rank, self._rule, *msgspec.convert(state, kind))

    def position(self) -> dict[str, Any]:
        """Return where a job may go on from here, with any workers."""
        with self._member.changed:
            return position_of(self.own.remaining())

    def close(self) -> None:
        """Let all workers hear which batches count here, a last time."""
        if self._told is not None:
            self._told.close()


def position_of(ledger: Ledger) -> dict[str, Any]:
    """Return the part of a ledger that does not depend on its workers, as plain values."""
    pools = [[epoch, [list(span) for span in spans]] for epoch, spans in ledger.pools.items()]
    return {"pools": pools, "fresh": ledger.fresh}


def in_common(positions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the position at which all samples have been used that one of `positions` has used."""
    fresh = max(position["fresh"] for position in positions)
    pools: dict[int, Spans] = {}
    for position in positions:
        ledger = ledger_of(position, 0, ())
        for epoch in range(fresh):
            if epoch < ledger.fresh:
                left = ledger.pools.get(epoch, ())
                pools[epoch] = common(pools[epoch], left) if epoch in pools else left
    return position_of(Ledger(0, (), {e: pools[e] for e in sorted(pools) if pools[e]}, fresh))


def ledger_of(position: Mapping[str, Any], view: int, takers: tuple[int, ...]) -> Ledger:
    """Return the ledger of a view that begins at a position; see `position_of`."""
    pools = {epoch: tuple(map(tuple, spans)) for epoch, spans in position["pools"]}
    return Ledger(view, takers, pools, position["fresh"])
