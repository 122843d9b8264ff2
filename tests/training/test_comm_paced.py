from __future__ import annotations

import time

import pytest

from analytics.errors import ConfigError
from tests.training import comm_programs as programs
from training.comm.paced import BURST_BYTES, SOCKET_BYTES, Link, _Direction, _Transfer
from training.links import parse_link


@pytest.mark.parametrize(
    ("text", "mbit"),
    [("100mbit", 100.0), ("1.5gbit", 1500.0), (" 250 kbit ", 0.25), ("30MBIT", 30.0)],
)
def test_a_link_is_read_as_tc_reads_it(text, mbit) -> None:
    assert parse_link(text) == pytest.approx(mbit)


@pytest.mark.parametrize("text", ["", "100", "0mbit", "-5mbit", "fast", "1.mbit", "10 mb"])
def test_a_link_that_is_no_rate_is_refused_with_an_example(text) -> None:
    with pytest.raises(ConfigError, match="for example 100mbit"):
        parse_link(text)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_link_needs_a_rate_above_0(rate) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        Link(rate)


def test_payload_gets_the_wires_rate_less_headers_and_the_label_says_emulated() -> None:
    # 106.6 mbit/s on the wire carry 100 of payload, 12.5 MB/s
    link = Link(106.6)
    assert link.payload_bytes_per_s == pytest.approx(12.5e6)
    assert link.label == "106.6 mbit/s, emulated"


def test_bytes_stand_in_line_and_a_burst_goes_at_once() -> None:
    # 1 ns a byte; idle until 100,000: 8,000 bytes of tokens are saved up, the rest is paced
    direction = _Direction(1.0)
    assert direction.enqueue(8_000, 100_000) == 100_000
    assert direction.enqueue(5_000, 100_000) == 105_000
    assert direction.enqueue(5_000, 103_000) == 110_000
    # at 111,000 only 1,000 tokens were saved up since the queue ran empty
    assert direction.enqueue(5_000, 111_000) == 115_000
    assert BURST_BYTES == 8_000


IDLE_UNTIL = 1_000_000.0  # long enough to have saved up a burst


def finish(transfers: list[_Transfer]) -> list[float]:
    """Feed transfers in turn as threads would; when each was done [ns after the idle time]."""
    now = IDLE_UNTIL
    while True:
        due = [at for at in [transfer.feed(now) for transfer in transfers] if at is not None]
        if not due:
            return [transfer.done_at_ns - IDLE_UNTIL for transfer in transfers]
        now = min(due)


def test_two_transfers_share_the_link_fairly_and_together_take_their_sum() -> None:
    direction = _Direction(1.0)
    transfers = [_Transfer(direction, 2_000_000, 8_000, IDLE_UNTIL) for _ in range(2)]
    first, second = finish(transfers)
    # 4 MB less the burst; one is done at most a socket's worth before the other
    assert second == 4_000_000 - BURST_BYTES
    assert second - SOCKET_BYTES - 8_000 <= first <= second


def test_an_urgent_transfer_waits_for_the_queue_and_not_for_the_whole_large_one() -> None:
    direction = _Direction(1.0)
    large = _Transfer(direction, 2_000_000, 8_000, IDLE_UNTIL)
    large.feed(IDLE_UNTIL)
    urgent = _Transfer(direction, 32_000, 8_000, IDLE_UNTIL)
    urgent.feed(IDLE_UNTIL)
    # a burst has left; 18 pieces of 8,000 bytes stand before it, a socket's 140,000 rounded up
    assert urgent.done_at_ns - IDLE_UNTIL == 144_000 + 32_000
    assert finish([large, urgent])[0] == 2_032_000 - BURST_BYTES


def test_a_thread_that_wakes_late_loses_no_wire() -> None:
    late = _Transfer(_Direction(1.0), 2_000_000, 8_000, IDLE_UNTIL)
    late.feed(IDLE_UNTIL)
    late.feed(IDLE_UNTIL + 5_000_000)
    assert late.done_at_ns - IDLE_UNTIL == 2_000_000 - BURST_BYTES


def test_nothing_to_carry_takes_no_time() -> None:
    begin = time.monotonic()
    Link(0.001).carry(0, 0, time.monotonic_ns())
    assert time.monotonic() - begin < 1


def test_an_exchange_takes_as_long_as_the_link_makes_it(on_ranks) -> None:
    # 250 KB each way over 10 mbit/s: 0.25e6 x 8 / 10e6 x 1.066 = 0.2132 s, less 8 KB of burst and
    # what the move over the loopback took (4 ns a byte at most); never shorter
    for (alone,) in on_ranks(programs.paced_times, 2, 10.0, [250_000]):
        assert alone > 0.2132 - 8_000 * 8 / 10e6 * 1.066 - 0.003
    # two groups at once: none ends before the wire has carried both, less a socket's worth
    for times in on_ranks(programs.paced_times, 2, 10.0, [250_000, 250_000]):
        assert max(times) > 2 * 0.2132 - 0.0069 - 0.003


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_what_arrives_over_a_paced_link_is_what_was_sent(on_ranks, world_size) -> None:
    plain = on_ranks(programs.exchange, world_size, "gloo")
    assert on_ranks(programs.exchange, world_size, "paced") == plain
