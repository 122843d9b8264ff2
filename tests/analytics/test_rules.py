"""Rules over whole histories, against paper and against a plain implementation."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics import rules
from analytics.errors import ConfigError
from analytics.events import Events, insertion_places, interleaved
from analytics.rules import HistoryRules, counts_of, reasons_of

ALL = HistoryRules(min_history=1)


def events_of(histories: list[list[tuple[int, int]]], **columns: object) -> Events:
    """Events from each user's (item, time) pairs, in order."""
    rows = [row for history in histories for row in history]
    offsets = np.cumsum([0, *map(len, histories)]).astype(np.int64)
    return Events(
        items=np.array([item for item, _ in rows], dtype=np.int32),
        times=np.array([time for _, time in rows], dtype=np.int64),
        offsets=offsets,
        **columns,  # type: ignore[arg-type]
    )


def kept(events: Events, history: HistoryRules) -> list[list[tuple[int, int]]]:
    left = events.chosen(reasons_of(events, history) == rules.KEPT)
    return histories_of(left)


def histories_of(events: Events) -> list[list[tuple[int, int]]]:
    bounds = zip(events.offsets[:-1], events.offsets[1:], strict=True)
    return [
        [(int(i), int(t)) for i, t in zip(events.items[a:b], events.times[a:b], strict=True)]
        for a, b in bounds
    ]


def test_the_newest_events_of_a_long_history_stay() -> None:
    # case of RecBole 1478 and of loaders that keep the oldest: 5 events, at most 3, so 3, 4, 5 stay
    events = events_of([[(item, item) for item in (1, 2, 3, 4, 5)], [(9, 1)]])
    assert kept(events, dataclasses.replace(ALL, max_history=3)) == [
        [(3, 3), (4, 4), (5, 5)],
        [(9, 1)],
    ]


def test_a_short_user_is_dropped_whole_and_counted() -> None:
    events = events_of([[(1, 1)], [(1, 1), (2, 2)], []])
    reason = reasons_of(events, HistoryRules(min_history=2))
    assert kept(events, HistoryRules(min_history=2)) == [[], [(1, 1), (2, 2)], []]
    assert counts_of(reason)["user_too_short"] == 1


def test_core_is_iterated_to_its_fixed_point() -> None:
    # 2-core: item 3 has one event, without it user 1 has one, without that item 2 has one, without
    # that user 0 has item 1 twice and stays
    events = events_of([[(1, 1), (1, 2), (2, 3)], [(2, 1), (3, 2)]])
    assert kept(events, HistoryRules(min_history=1, core=2)) == [[(1, 1), (1, 2)], []]
    assert counts_of(reasons_of(events, HistoryRules(min_history=1, core=2)))["outside_core"] == 3


def test_repeated_pairs_keep_the_first_or_the_last() -> None:
    events = events_of([[(1, 1), (2, 2), (1, 3)], [(1, 4), (1, 5)]])
    assert kept(events, dataclasses.replace(ALL, repeats="first")) == [[(1, 1), (2, 2)], [(1, 4)]]
    assert kept(events, dataclasses.replace(ALL, repeats="last")) == [[(2, 2), (1, 3)], [(1, 5)]]
    assert kept(events, ALL) == histories_of(events)


def test_exact_duplicates_differ_in_no_column() -> None:
    # rows 0 and 2 are equal but for row 1 between them; row 3 has another rating
    events = events_of(
        [[(1, 1), (2, 1), (1, 1), (1, 1)]],
        ratings=np.array([5, 5, 5, 4], dtype=np.float32),
        actions=np.array([1, 1, 1, 1], dtype=np.uint16),
    )
    reason = reasons_of(events, dataclasses.replace(ALL, drop_exact_duplicates=True))
    assert reason.tolist() == [0, 0, 1 + rules.REASONS.index("exact_duplicate"), 0]
    nothing = dataclasses.replace(events, ratings=np.full(4, np.nan, dtype=np.float32))
    dropped = reasons_of(nothing, dataclasses.replace(ALL, drop_exact_duplicates=True))
    assert counts_of(dropped)["exact_duplicate"] == 2  # no rating equals no rating


def test_a_given_target_that_is_older_than_its_history_is_dropped() -> None:
    # train at 10, validation at 9 (wrong) and 11, test at 10 (older than validation's 11) and 11
    events = events_of(
        [[(1, 10), (2, 9), (3, 11), (4, 10), (5, 11)]],
        given_splits=np.array([0, 1, 1, 2, 2], dtype=np.uint8),
    )
    assert kept(events, ALL) == [[(1, 10), (3, 11), (5, 11)]]


def test_an_event_that_stands_in_an_earlier_split_is_no_target() -> None:
    # (2, 11) is trained on and given for validation again; (3, 12) is validation and test
    events = events_of(
        [[(1, 10), (2, 11), (2, 11), (3, 12), (3, 12), (4, 13)]],
        given_splits=np.array([0, 0, 1, 1, 2, 2], dtype=np.uint8),
    )
    assert kept(events, ALL) == [[(1, 10), (2, 11), (3, 12), (4, 13)]]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"min_history": 5, "max_history": 4}, "min_history is 5 and max_history is 4"),
        ({"min_history": 0}, "1 <= min_history"),
        ({"core": 0}, "core is 0"),
        ({"repeats": "newest"}, "repeats is 'newest'; known are keep, first, last"),
    ],
)
def test_rules_that_make_no_sense_are_refused(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        HistoryRules(**wrong)  # type: ignore[arg-type]


history = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), max_size=7).map(
    lambda rows: sorted(rows, key=lambda row: row[1])
)
histories = st.lists(history, min_size=1, max_size=6)


@given(histories, st.integers(1, 4), st.integers(1, 3))
def test_the_core_is_the_largest_set_that_keeps_its_own_rule(
    rows: list[list[tuple[int, int]]], core: int, min_history: int
) -> None:
    mine = kept(events_of(rows), HistoryRules(min_history=min_history, core=core))
    # a plain one: drop whatever is too few, again and again
    left = [[*history] for history in rows]
    while core > 1:
        count: dict[int, int] = {}
        for history in left:
            for item, _ in history:
                count[item] = count.get(item, 0) + 1
        next_left = [
            [row for row in history if count[row[0]] >= core]
            if len(history) >= max(core, min_history)
            else []
            for history in left
        ]
        if next_left == left:
            break
        left = next_left
    left = [history if len(history) >= min_history else [] for history in left]
    assert mine == left


@given(histories, st.integers(1, 4), st.integers(1, 4), st.sampled_from(rules.REPEATS))
def test_every_event_is_kept_or_dropped_for_one_reason(
    rows: list[list[tuple[int, int]]], core: int, longest: int, repeats: str
) -> None:
    events = events_of(rows)
    wanted = HistoryRules(
        min_history=1, max_history=longest, core=core, repeats=repeats, drop_exact_duplicates=True
    )
    reason = reasons_of(events, wanted)
    assert len(events) == (reason == rules.KEPT).sum() + sum(counts_of(reason).values())
    assert all(len(history) <= longest for history in kept(events, wanted))


@given(histories, histories)
def test_two_sets_of_events_interleave_as_one_stable_sort(
    old: list[list[tuple[int, int]]], new: list[list[tuple[int, int]]]
) -> None:
    num_users = max(len(old), len(new))
    old += [[] for _ in range(num_users - len(old))]
    new += [[] for _ in range(num_users - len(new))]
    one, other = events_of(old), events_of(new)
    merged = interleaved(one, other, insertion_places(one, other))
    expected = [
        sorted([*a, *b], key=lambda row: row[1])  # stable: of equal times the old stands first
        for a, b in zip(old, new, strict=True)
    ]
    assert histories_of(merged) == expected
