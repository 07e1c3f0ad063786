"""Any sequence of posting, cancelling, waiting and network trouble ends well for what remains.

Three hosts; transfers in all directions, many with equal keys, posted at either end first; the
network changes its mind at any time and may carry nothing for a while. In the end it heals: then
every transfer that was not cancelled is complete, all others are untouched since they were, and all
hosts agree on what was sent.
"""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from link_state import check_consistency
from test_transfers import conserved
from transfers import Transfer
from virtual_link import Faults, joined

from shoal.transport.endpoint import TransportConfig
from shoal.transport.rates import ALL_RATE_CONTROLS
from shoal.transport.tables import ADD, WRITE
from thoroughness import examples

HOSTS = 3
PAIRS = [(source, target) for source in range(HOSTS) for target in range(HOSTS) if source != target]
NETWORKS = [
    Faults(),
    Faults(loss=0.3, duplication=0.3, reordering=0.5),
    Faults(loss=1.0),
    Faults(delay_us=20_000, reordering=0.5, reorder_us=30_000, duplication=0.5),
    Faults(loss=0.1, truncation=0.2, corruption=0.2, marks=0.5, host_delay_us=2_000),
]


class Exchange(Transfer):
    """A transfer that knows which of its ends are posted, and whether it has been given up."""

    posted_sender = posted_receiver = cancelled = False

    def cancel(self) -> None:
        """Give it up at both ends, wherever they stand."""
        if self.posted_sender:
            self.link.cancel(self.source, self.sender_ticket)
        if self.posted_receiver:
            self.link.cancel(self.target, self.receiver_ticket)
        self.cancelled = True
        self.left = self.received.copy()


class TransportMachine(RuleBasedStateMachine):
    """Rules are what Python may do to endpoints, and what may happen to a network."""

    @initialize(
        seed=st.integers(0, 1 << 30),
        rate_control=st.sampled_from(sorted(ALL_RATE_CONTROLS)),
        budget=st.sampled_from([1, 16, 64]),
        stop_early=st.booleans(),
    )
    def start(self, seed: int, rate_control: str, budget: int, stop_early: bool) -> None:
        config = TransportConfig(
            segment_bytes=16,
            rate_control=rate_control,
            rate_bytes_per_us=5.0,
            budget_packets=budget,
            stop_early=stop_early,
        )
        self.link, self.endpoints = joined(HOSTS, config, seed=seed, limit_us=600_000_000)
        self.exchanges: list[Exchange] = []
        self.keys = {pair: itertools.count(1) for pair in PAIRS}

    @rule(
        pair=st.sampled_from(PAIRS),
        count=st.integers(1, 200),
        bound=st.sampled_from([0.0, 0.0, 0.3]),
        mode=st.sampled_from([WRITE, ADD]),
        layer_class=st.integers(0, 7),
    )
    def plan(
        self, pair: tuple[int, int], count: int, bound: float, mode: int, layer_class: int
    ) -> None:
        values = np.arange(1, count + 1, dtype=np.float32)
        exchange = Exchange(
            self.link,
            *pair,
            values,
            before=values[::-1].copy(),
            mode=mode,
            loss_bound=bound,
            keeps_missing=True,
            layer_class=layer_class,
            iteration=next(self.keys[pair]),
        )
        self.exchanges.append(exchange)

    @precondition(lambda self: any(not each.posted_sender for each in self.open()))
    @rule(data=st.data())
    def post_sender(self, data: st.DataObject) -> None:
        waiting = [each for each in self.open() if not each.posted_sender]
        self._post_sender(data.draw(st.sampled_from(waiting)))

    @precondition(lambda self: any(not each.posted_receiver for each in self.open()))
    @rule(data=st.data())
    def post_receiver(self, data: st.DataObject) -> None:
        waiting = [each for each in self.open() if not each.posted_receiver]
        self._post_receiver(data.draw(st.sampled_from(waiting)))

    @precondition(lambda self: len(self.open()) > 2)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.open())).cancel()

    @rule(network=st.sampled_from(NETWORKS))
    def change_network(self, network: Faults) -> None:
        self.link.faults = network

    @rule(duration=st.sampled_from([1, 100, 3_000, 50_000]))
    def wait(self, duration: int) -> None:
        self.link.pass_time(duration)

    @invariant()
    def places_are_right_and_nothing_else_is_written(self) -> None:
        for exchange in getattr(self, "exchanges", []):
            if not exchange.posted_receiver:
                np.testing.assert_array_equal(exchange.received, exchange.before)
            elif exchange.cancelled:
                np.testing.assert_array_equal(exchange.received, exchange.left)
            else:
                exchange.check_places()

    @invariant()
    def tables_agree(self) -> None:
        for endpoint in getattr(self, "endpoints", []):
            check_consistency(endpoint)

    def teardown(self) -> None:
        if not hasattr(self, "link"):
            return
        self.link.faults = Faults()
        for exchange in self.open():
            if not exchange.posted_sender:
                self._post_sender(exchange)
            if not exchange.posted_receiver:
                self._post_receiver(exchange)
        self.link.run()
        self.places_are_right_and_nothing_else_is_written()
        for exchange in self.open():
            assert exchange.sender_ticket in self.link.finished[exchange.source]
            assert exchange.receiver_ticket in self.link.finished[exchange.target]
            np.testing.assert_array_equal(exchange.missing(), ~exchange.arrived())
            received = int(exchange.receiving.incoming["received"][0])
            assert received >= int(exchange.receiving.incoming["target"][0])
        conserved(self.link)
        for endpoint in self.endpoints:
            assert (endpoint.state.peers["expecting"] == 0).all()
            assert (endpoint.state.peers["queue"] == -1).all()
            assert endpoint.state.core["receiving_peers"][0] == 0

    def open(self) -> list[Exchange]:
        """Exchanges that have not been given up."""
        return [each for each in getattr(self, "exchanges", []) if not each.cancelled]

    def _post_sender(self, exchange: Exchange) -> None:
        exchange.post_sender()
        exchange.posted_sender = True

    def _post_receiver(self, exchange: Exchange) -> None:
        exchange.post_receiver()
        exchange.posted_receiver = True


TestTransportMachine = TransportMachine.TestCase
TestTransportMachine.settings = settings(
    max_examples=examples(60),
    stateful_step_count=40,
    report_multiple_bugs=False,
)
