from __future__ import annotations

import pytest

from analytics.errors import ConfigError
from tests.training import comm_programs as programs
from training.comm.contention import CHUNK_BOUNDS, TransportTrial, choice


def trial(name: str, slowdown: float, bytes_per_s: float) -> TransportTrial:
    return TransportTrial(
        name=name,
        alone_s=1e-3,
        beside_s=1e-3 / (1 - slowdown),
        slowdown_share=slowdown,
        bytes_per_s=bytes_per_s,
        available=True,
    )


def test_the_transport_that_loses_least_compute_a_byte_is_chosen() -> None:
    # a GiB: 0.4 x 1 s = 0.4 s lost against 0.05 x 2 s = 0.1 s
    name, reason = choice([trial("nccl", 0.4, 2.0**30), trial("host_staged", 0.05, 2.0**29)])
    assert name == "host_staged"
    assert "it takes 0.1 s of compute a GiB sent (nccl 0.4 s)" in reason
    assert "536.9 MB/s a rank" in reason


def test_a_transport_far_slower_than_the_quickest_is_not_chosen_for_being_gentle() -> None:
    assert choice([trial("nccl", 0.4, 100.0), trial("host_staged", 0.0, 33.0)])[0] == "nccl"
    assert choice([trial("nccl", 0.4, 100.0), trial("host_staged", 0.0, 34.0)])[0] == "host_staged"


def test_without_any_transport_every_reason_is_told() -> None:
    absent = [
        TransportTrial(name="nccl", available=False, reason="no CUDA"),
        TransportTrial(name="gloo", available=False, reason="no CPU"),
    ]
    with pytest.raises(ConfigError, match="nccl: no CUDA; gloo: no CPU"):
        choice(absent)


def test_all_ranks_choose_the_same_by_the_same_figures(on_ranks) -> None:
    results = on_ranks(programs.choose, 2, None)
    assert results[0][:3] == results[1][:3]
    name, trials, reason, _ = results[0]
    assert name == "gloo"
    assert reason.startswith("the only one that can work here; ")
    by_name = {trial.name: trial for trial in trials}
    assert [by_name[n].available for n in ("nccl", "host_staged", "gloo")] == [False, False, True]
    assert "two more copies" in by_name["host_staged"].reason
    gloo = by_name["gloo"]
    assert gloo.slowdown_share == pytest.approx(max(0.0, 1 - gloo.alone_s / gloo.beside_s))
    assert gloo.bytes_per_s > 0
    # 5 ms of the slower rank's 10 MB/s
    assert [result[3] for result in results] == [50_000, 50_000]


def test_a_slow_link_is_seen_in_the_trial(on_ranks) -> None:
    # 10 mbit/s carry 1.17 MB/s of payload; a burst of 8 KB before 11 KB paced is the most gained
    trials = on_ranks(programs.choose, 2, 10.0)[0][1]
    assert {t.name: t for t in trials}["gloo"].bytes_per_s < 1.17e6 * 2


def test_one_rank_sends_nothing_and_chooses_without_a_trial(on_ranks) -> None:
    ((name, trials, reason, chunk),) = on_ranks(programs.choose, 1, None)
    assert (name, reason) == ("gloo", "the only one that can work here")
    assert trials[-1].bytes_per_s is None
    assert CHUNK_BOUNDS[0] <= chunk <= CHUNK_BOUNDS[1]
