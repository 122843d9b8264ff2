from __future__ import annotations

import time

import pytest

from training.recorder import StepRecorder, Wait, Window, _dealt
from training.step_parts import step_parts, union_ns


def window(**changes: object) -> Window:
    made = Window(begin_ns=0, started_unix_ns=0, end_ns=100)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_a_wait_is_the_stragglers_until_the_last_rank_arrives() -> None:
    # blocked 10-40; the last rank comes at 25: 15 waited for it, 15 on the wire
    waits = [Wait(begin_ns=10, end_ns=40, arrival_ns=10)]
    parts = step_parts(window(waits=waits, work_ns=60, data_wait_ns=5), [25])
    assert parts.straggler_wait_s == pytest.approx(15e-9)
    assert parts.exposed_comm_s == pytest.approx(15e-9)
    assert parts.exposed_comm_total_s == pytest.approx(30e-9)
    # 100 = 60 work + 30 blocked + 5 data + 5 unattributed
    assert parts.unattributed_s == pytest.approx(5e-9)
    assert parts.comm_s == pytest.approx(30e-9)
    assert parts.overlapped_comm_s == 0.0


@pytest.mark.parametrize(("last", "straggler"), [(10, 0), (5, 0), (40, 30), (70, 30)])
def test_the_last_rank_waits_for_nobody_and_no_wait_is_longer_than_itself(
    last: int, straggler: int
) -> None:
    waits = [Wait(begin_ns=10, end_ns=40, arrival_ns=10)]
    parts = step_parts(window(waits=waits), [last])
    assert parts.straggler_wait_s == pytest.approx(straggler * 1e-9)
    assert parts.exposed_comm_s == pytest.approx((30 - straggler) * 1e-9)


def test_the_last_rank_does_not_wait_for_itself() -> None:
    # blocked 10-40 on its own thread, which is ready at 30; no other rank is later than 20 or 30
    waits = [Wait(begin_ns=10, end_ns=40, arrival_ns=30)]
    for last in (20, 30):
        parts = step_parts(window(waits=waits), [last])
        assert parts.straggler_wait_s == 0.0
        assert parts.exposed_comm_s == pytest.approx(30e-9)
    # another rank comes at 35: 5 waited for it
    assert step_parts(window(waits=waits), [35]).straggler_wait_s == pytest.approx(5e-9)


def test_communication_under_compute_is_overlapped_not_exposed() -> None:
    # in flight 20-50 in the background, of which the loop was blocked 45-50
    waits = [Wait(begin_ns=45, end_ns=50, arrival_ns=20)]
    parts = step_parts(window(waits=waits, background=[(20, 50)], work_ns=95), [20])
    assert parts.comm_s == pytest.approx(30e-9)
    assert parts.overlapped_comm_s == pytest.approx(25e-9)
    assert parts.exposed_comm_s == pytest.approx(5e-9)
    assert parts.straggler_wait_s == 0.0


def test_without_a_common_clock_the_split_is_unknown_and_the_total_is_not() -> None:
    waits = [Wait(begin_ns=10, end_ns=40, arrival_ns=10)]
    parts = step_parts(window(waits=waits), None)
    assert parts.straggler_wait_s is None
    assert parts.exposed_comm_s is None
    assert parts.exposed_comm_total_s == pytest.approx(30e-9)


def test_ranks_that_ran_different_steps_are_found_out() -> None:
    with pytest.raises(ValueError, match="shorter"):
        step_parts(window(waits=[Wait(begin_ns=1, end_ns=2, arrival_ns=1)]), [])


def test_windows_tile_a_block() -> None:
    recorder = StepRecorder()
    for _ in range(3):
        recorder.begin_step()
        with recorder.work():
            sum(range(1000))
        with recorder.wait(), recorder.data_wait():
            pass
    windows = recorder.end_block()
    assert [w.end_ns for w in windows[:-1]] == [w.begin_ns for w in windows[1:]]
    assert all(w.work_ns > 0 and len(w.waits) == 1 for w in windows)
    assert recorder.end_block() == []


def test_a_window_gets_of_the_background_what_lies_in_it() -> None:
    recorder = StepRecorder()
    for _ in range(3):
        recorder.begin_step()
    windows = recorder.windows
    recorder.end_block()
    begins = [w.begin_ns for w in windows]
    ends = [w.end_ns for w in windows]
    # before all; over all; in the second; from the first into the third; after all
    given = [
        (begins[0] - 9, begins[0]),
        (begins[0] - 5, ends[2] + 5),
        (begins[1], ends[1]),
        (ends[0] - 1, begins[2] + 1),
        (ends[2], ends[2] + 7),
    ]
    assert _dealt(given, windows) == [
        [(begins[0], ends[0]), (ends[0] - 1, ends[0])],
        [(begins[1], ends[1]), (begins[1], ends[1]), (begins[1], ends[1])],
        [(begins[2], ends[2]), (begins[2], begins[2] + 1)],
    ]
    assert _dealt(given, []) == []


def test_overlapping_intervals_count_once() -> None:
    # 0-4 and 2-6 cover 6; 8-9 one more; 5-5 nothing
    assert union_ns([(2, 6), (0, 4), (8, 9), (5, 5)]) == 7
    assert union_ns([]) == 0


def test_copies_are_told_apart_from_the_wire_where_the_loop_is_blocked() -> None:
    # blocked 10-50: copy 10-15, on the wire 15-40, copy 38-48; another copy under work, 60-70
    waits = [Wait(begin_ns=10, end_ns=50, arrival_ns=10, kind="rows")]
    made = window(
        waits=waits, background=[(15, 40)], copies=[(10, 15), (38, 48), (60, 70)], work_ns=60
    )
    parts = step_parts(made, None)
    assert parts.exposed_copy_s == pytest.approx(13e-9)  # 10-15 and 40-48
    assert parts.exposed_comm_total_s == pytest.approx(27e-9)
    assert parts.exposed_rows_s == pytest.approx(27e-9)
    assert parts.comm_s == pytest.approx(27e-9)
    # the last rank comes at 14: 4 of the first copy's 5 were waiting for it
    parts = step_parts(made, [14])
    assert parts.straggler_wait_s == pytest.approx(4e-9)
    assert parts.exposed_copy_s == pytest.approx(9e-9)
    assert parts.exposed_comm_s == pytest.approx(27e-9)


def test_windows_tile_a_block_by_utc_as_well() -> None:
    recorder = StepRecorder()
    for _ in range(4):
        recorder.begin_step()
    windows = recorder.end_block()
    ends = [w.started_unix_ns + w.end_ns - w.begin_ns for w in windows]
    assert ends[:-1] == [w.started_unix_ns for w in windows[1:]]
    assert abs(time.time_ns() - ends[-1]) < 60e9
