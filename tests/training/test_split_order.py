"""The order of work under `split`: what is promised to travel under what (pipeline/split.py)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.training.order_programs import (
    CHUNK_BYTES,
    NUM_COLLIDING,
    NUM_EXCLUSIVE,
    NUM_STEPS,
    NUM_USERS,
    Event,
    split_events,
)
from tests.training.schedule_programs import HIDDEN, ITEM_WIDTH, USER_WIDTH

LAYERS = (0, 1, 2)
STEPS = range(NUM_STEPS - 1)  # those that have a step after them


class Order:
    """One rank's events by their places in time."""

    def __init__(self, events: list[Event]) -> None:
        self.events = events

    def places(self, step: int, what: str, number: int | None = None) -> list[int]:
        return [
            place
            for place, event in enumerate(self.events)
            if (event.step, event.what) == (step, what) and number in (None, event.number)
        ]

    def place(self, step: int, what: str, number: int | None = None) -> int:
        (place,) = self.places(step, what, number)
        return place

    def of_thread(self, thread: str, step: int) -> list[Event]:
        return [e for e in self.events if (e.thread, e.step) == (thread, step)]

    def submission(self, step: int, layer: int) -> int:
        """The deferred lane's submission that sums a layer's gradients."""
        what = f"piece of sum of layer {layer}"
        (number,) = {self.events[place].number for place in self.places(step, what)}
        return number


@pytest.fixture
def orders(on_ranks: Any) -> list[Order]:
    return [Order(events) for events in on_ranks(split_events, 2)]


def test_the_urgent_chain_is_handed_over_before_any_weight_gradient(orders: list[Order]) -> None:
    for order in orders:
        for step in STEPS:
            weights = order.places(step, "weights")
            assert len(weights) == len(LAYERS)
            assert order.place(step, "submit urgent") < weights[0]
            # nor is it waited for while there is still something to compute
            assert order.place(step, "await urgent") > weights[-1]
            assert [e.what for e in order.of_thread("urgent", step)] == [
                "piece of colliding_gradients",
                "applied colliding_gradients",
                "piece of colliding_rows",
            ]


def test_each_sum_starts_after_its_own_weights_in_the_order_of_the_forward_pass(
    orders: list[Order],
) -> None:
    for order in orders:
        for step in range(NUM_STEPS):
            ran = [order.events[place].number for place in order.places(step, "layer runs")]
            assert ran == list(LAYERS)
            done = [
                (event.what, event.number)
                for event in order.of_thread("loop", step)
                if event.what == "weights"
                or (event.what == "submit deferred" and event.number in sums_of(order, step))
            ]
            assert done == [
                told
                for layer in ran
                for told in (
                    ("weights", layer),
                    ("submit deferred", order.submission(step, layer)),
                )
            ]


def sums_of(order: Order, step: int) -> set[int]:
    return {order.submission(step, layer) for layer in LAYERS}


def test_a_sum_is_waited_for_where_its_layer_runs_again_and_not_before(
    orders: list[Order],
) -> None:
    for order in orders:
        for step in range(NUM_STEPS):
            for layer in LAYERS:
                number = order.submission(step, layer)
                first_wait = next(
                    place
                    for place, event in enumerate(order.events)
                    if (event.what, event.number) == ("await deferred", number)
                )
                if step in STEPS:
                    before = order.place(step + 1, "before layer", layer)
                    assert before < first_wait < order.place(step + 1, "layer runs", layer)
                else:  # nothing follows: when all is settled
                    assert order.events[first_wait].step == NUM_STEPS


def num_pieces(num_bytes: int) -> int:
    return -(-num_bytes // CHUNK_BYTES)


def test_what_can_wait_goes_in_pieces_through_one_queue(orders: list[Order]) -> None:
    # each owner has half of the 20 exclusive items, for both askers: 20 rows of 8 floats, 640 bytes
    exclusive = ITEM_WIDTH * 4 * (NUM_EXCLUSIVE // 2) * 2
    assert num_pieces(exclusive) == 5
    # weights and biases of 12 x 12, 12 x 12 and 12 x 8: 156, 156 and 104 floats; a piece's sum is
    # an exchange and a gathering
    width = ITEM_WIDTH + USER_WIDTH
    sizes = (width * HIDDEN + HIDDEN, HIDDEN * HIDDEN + HIDDEN, HIDDEN * ITEM_WIDTH + ITEM_WIDTH)
    assert [num_pieces(4 * size) for size in sizes] == [5, 5, 4]
    for order in orders:
        for step in STEPS:
            found = [e for e in order.of_thread("deferred", step) if e.what.startswith("piece")]
            expected = ["ids"] * 2 + ["marks"]
            expected += ["exclusive_rows"] * num_pieces(exclusive)
            for layer, size in enumerate(sizes):
                expected += [f"sum of layer {layer}"] * 2 * num_pieces(4 * size)
            expected += ["exclusive_gradients"] * num_pieces(exclusive)
            assert [e.what for e in found] == [f"piece of {what}" for what in expected]
            assert all(e.num_bytes <= CHUNK_BYTES for e in found[3:])
            numbers = [e.number for e in found]
            assert numbers == sorted(numbers)


def test_what_is_urgent_overtakes_what_is_half_sent(orders: list[Order]) -> None:
    # colliding: 4 items and 2 users of which each rank asks each owner for half, and gets for two
    colliding = 4 * (ITEM_WIDTH * NUM_COLLIDING + USER_WIDTH * NUM_USERS)
    for order in orders:
        assert not [event for event in order.events if event.what == "waited in vain"]
        for step in STEPS:
            pieces = order.places(step, "piece of exclusive_rows")
            urgent = order.places(step, "piece of colliding_gradients")
            urgent += order.places(step, "piece of colliding_rows")
            # in one piece each, and both while the exclusive rows are under way
            assert [order.events[place].num_bytes for place in urgent] == [colliding] * 2
            assert pieces[0] < urgent[0] < urgent[1] < pieces[1]
