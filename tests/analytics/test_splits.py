"""Splits: what is trained on stands before what is predicted, whatever the kind."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics.errors import ConfigError, InputError
from analytics.events import Events
from analytics.splits import SplitRule, instants, split_codes
from analytics.store import TEST, TRAIN, UNUSED, VALIDATION
from analytics.store_making import check_split_laws


def with_times(histories: list[list[int]], given_splits: list[int] | None = None) -> Events:
    times = np.array([time for history in histories for time in history], dtype=np.int64)
    return Events(
        items=np.zeros(len(times), dtype=np.int32),
        times=times,
        offsets=np.cumsum([0, *map(len, histories)]).astype(np.int64),
        given_splits=None if given_splits is None else np.array(given_splits, dtype=np.uint8),
    )


def by_time(validation_us: int, test_us: int) -> SplitRule:
    return SplitRule(kind="time", validation_from_us=validation_us, test_from_us=test_us)


def test_the_last_is_for_test_and_the_last_but_one_for_validation() -> None:
    codes = split_codes(with_times([[1, 2, 3, 4], [1, 2, 3], [1, 2], [1], []]), SplitRule())
    assert codes.tolist() == [
        *(TRAIN, TRAIN, VALIDATION, TEST),
        *(TRAIN, VALIDATION, TEST),
        *(TRAIN, TEST),
        TRAIN,
    ]


def test_an_instant_belongs_to_the_later_part() -> None:
    codes = split_codes(with_times([[1, 5, 9, 10, 12]]), by_time(5, 10))
    assert codes.tolist() == [TRAIN, VALIDATION, VALIDATION, TEST, TEST]


def test_a_first_event_is_never_a_target() -> None:
    # the second user comes after the cut: the first event has no history, the second has one
    codes = split_codes(with_times([[1, 10], [11, 12]]), by_time(5, 10))
    assert codes.tolist() == [TRAIN, TEST, UNUSED, TEST]
    codes = split_codes(with_times([[3, 4]], [1, 2]), SplitRule(kind="given"))
    assert codes.tolist() == [UNUSED, TEST]


def test_shares_of_a_time_split_are_of_the_newest_events() -> None:
    # of ten events at 0..9 the newest two are for test, the two before for validation
    events = with_times([[*range(10)]])
    rule = SplitRule(kind="time", validation_share=0.2, test_share=0.2)
    assert instants(events, rule) == (6, 8)
    assert split_codes(events, rule).tolist() == [TRAIN] * 6 + [VALIDATION] * 2 + [TEST] * 2


@given(
    st.lists(st.lists(st.integers(1, 30), max_size=8).map(sorted), min_size=1, max_size=6),
    st.sampled_from([SplitRule(), by_time(10, 20), by_time(1, 2), by_time(29, 30)]),
)
def test_no_training_event_stands_after_a_target(
    histories: list[list[int]], rule: SplitRule
) -> None:
    events = with_times(histories)
    codes = split_codes(events, rule)
    check_split_laws(events, codes)
    for start, stop in zip(events.offsets[:-1], events.offsets[1:], strict=True):
        mine, times = codes[start:stop].tolist(), events.times[start:stop].tolist()
        trained = [time for time, code in zip(times, mine, strict=True) if code == TRAIN]
        targets = [time for time, code in zip(times, mine, strict=True) if code in (1, 2)]
        assert not trained or not targets or max(trained) <= min(targets)
        assert mine[:1] not in ([VALIDATION], [TEST])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "random"}, "known are last, time, given"),
        ({"kind": "time"}, "--validation-from and --test-from"),
        ({"kind": "time", "validation_from_us": 1, "test_share": 0.1}, "--validation-share and"),
        ({"kind": "time", "validation_share": 0.5, "test_share": 0.5}, "their sum below 1"),
        ({"kind": "last", "test_share": 0.5}, "give --split time"),
    ],
)
def test_a_split_that_makes_no_sense_is_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SplitRule(**wrong)  # type: ignore[arg-type]


def test_a_split_by_time_needs_times_and_an_order() -> None:
    with pytest.raises(ConfigError, match="validation must begin earlier"):
        split_codes(with_times([[1, 2]]), by_time(5, 5))
    with pytest.raises(InputError, match=r"no times.*--split last"):
        split_codes(with_times([[0, 0]]), by_time(1, 2))
