from __future__ import annotations

import pytest

from tests.training import comm_programs as programs
from training.comm.clocks import ClockOffset, offset_of_pings


def test_the_quickest_ping_tells_the_offset_and_half_of_it_the_uncertainty() -> None:
    # 1000..1040 on rank 0 with 7021 read: the middle is 1020, so 6001 ahead, within 20;
    # the slower ping would have said 5970
    found = offset_of_pings([(0, 6020, 100), (1000, 7021, 1040), (2000, 8000, 2060)])
    assert found == ClockOffset(offset_ns=6001, uncertainty_ns=20)
    assert found.to_common_ns(7021) == 1020
    assert found.to_local_ns(1020) == 7021


def test_an_odd_round_trip_is_rounded_so_that_the_truth_stays_within() -> None:
    assert offset_of_pings([(0, 10, 5)]) == ClockOffset(offset_ns=8, uncertainty_ns=3)


@pytest.mark.parametrize(("skew_s", "drift"), [(3.0, 0.0), (-2.5, 0.0), (1.0, 1e-4)])
def test_clocks_set_apart_by_seconds_come_back_within_the_uncertainty(
    on_ranks, skew_s, drift
) -> None:
    results = on_ranks(programs.align, 3, skew_s, drift)
    assert results[0][0] == ClockOffset(offset_ns=0, uncertainty_ns=0)
    for rank, (found, common_ns, true_ns) in enumerate(results):
        if rank == 0:
            continue
        # what a clock drifts while the ranks talk: at most a second's worth here
        drifted_ns = abs(rank * drift * 1e9)
        assert 0 < found.uncertainty_ns < 1e9
        assert abs(found.offset_ns - rank * skew_s * 1e9) <= found.uncertainty_ns + drifted_ns
        # the reading came just before the true one; 50 ms for a rank that was put aside between
        assert abs(common_ns - true_ns) <= found.uncertainty_ns + drifted_ns + 50e6


def test_ranks_of_one_host_need_no_ping(on_ranks) -> None:
    shared = ClockOffset(offset_ns=0, uncertainty_ns=0)
    assert [found for found, _, _ in on_ranks(programs.align, 2, None, 0.0)] == [shared] * 2
