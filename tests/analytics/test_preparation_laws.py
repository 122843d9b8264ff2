"""Preparation against a plain implementation, on rows of every kind."""

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analytics import staging
from analytics.errors import ConfigError, InputError
from analytics.interactions import PreparedData, prepare
from analytics.preparation import DAY_US, Preparation, preparation_of
from analytics.rules import HistoryRules
from analytics.sources.options import ReadingOptions
from analytics.splits import SplitRule
from analytics.store import SPLIT_NAMES, open_store

NOW_S = 1_000_000_000
Row = tuple[str, str, str, str]  # user, item, time, rating, as they stand in the file
READING = ReadingOptions(
    user="user", item="item", time="time", time_unit="s", rating="rating", action="none"
)


def store_of(tmp_path: Path, rows: list[Row], wanted: Preparation) -> PreparedData:
    path = tmp_path / "rows.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerows([("user", "item", "time", "rating"), *rows])
    now_us = NOW_S * 1_000_000
    return prepare(path, tmp_path, reading=READING, preparation=wanted, now_us=now_us)


def told(made: PreparedData) -> dict[str, list[tuple[str, int, str]]]:
    """{user: [(item, time in seconds, split), ...]} as it lies in the store."""
    store = open_store(Path(made.store_dir))
    names: dict[str, dict[int, str]] = {}
    for role in ("user", "item"):
        path = f"{made.store_dir}/{role}_map.parquet"
        names[role] = dict(duckdb.sql(f"SELECT {role}_index, {role}_id FROM '{path}'").fetchall())
    return {
        names["user"][user]: [
            (
                names["item"][int(store.items[at])],
                int(store.times[at]) // 1_000_000,
                SPLIT_NAMES[store.splits[at]],
            )
            for at in range(store.offsets[user], store.offsets[user + 1])
        ]
        for user in range(store.header.num_users)
    }


def plainly(
    rows: list[Row], wanted: Preparation
) -> tuple[dict[str, list[tuple[str, int, str]]], Counter[str]]:
    """The same by hand, row by row."""
    dropped: Counter[str] = Counter()
    histories: dict[str, list[tuple[int, str]]] = {}
    for user, item, time, rating in rows:
        reason = None
        if not user:
            reason = "missing_user"
        elif not item:
            reason = "missing_item"
        elif not time.lstrip("-").isdigit():
            reason = "unparsable_time"
        elif int(time) > NOW_S:
            reason = "future_time"
        elif wanted.keep_days and int(time) < NOW_S - wanted.keep_days * 86_400:
            reason = "beyond_retention"
        elif wanted.min_rating is not None and not rating:
            reason = "missing_rating"
        elif wanted.min_rating is not None and float(rating) < wanted.min_rating:
            reason = "below_min_rating"
        if reason:
            dropped[reason] += 1
        else:
            histories.setdefault(user, []).append((int(time), item))
    kept = {}
    for user, events in histories.items():
        events.sort(key=lambda event: event[0])  # stable: the file's order among equal times
        if wanted.history.repeats == "first":
            seen = list(dict.fromkeys(item for _, item in events))
            first = [events[[i for _, i in events].index(item)] for item in seen]
            dropped["repeated_pair"] += len(events) - len(first)
            events = first
        if len(events) < wanted.history.min_history:
            dropped["user_too_short"] += len(events)
            continue
        newest = events[-wanted.history.max_history :]
        dropped["beyond_max_history"] += len(events) - len(newest)
        splits = ["train"] * len(newest)
        if len(newest) >= 2:
            splits[-1] = "test"
        if len(newest) >= 3:
            splits[-2] = "validation"
        kept[user] = [(item, time, s) for (time, item), s in zip(newest, splits, strict=True)]
    return kept, dropped


rows_of = st.lists(
    st.tuples(
        st.sampled_from(["ann", "bo", "007", "7", "çé 東京", "a,b", 'q"q', ""]),
        st.sampled_from(["x", "y", "z", "9007199254740993", "9007199254740992", ""]),
        st.sampled_from(
            ["100", "200", "300", "-5", str(NOW_S), str(NOW_S + 1), str(NOW_S - 86_400 * 3), "soon"]
        ),
        st.sampled_from(["", "1", "2.5", "4"]),
    ),
    min_size=5,
    max_size=40,
)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=rows_of,
    history=st.builds(
        HistoryRules,
        min_history=st.integers(1, 3),
        max_history=st.integers(3, 5),
        repeats=st.sampled_from(["keep", "first"]),
    ),
    keep_days=st.sampled_from([None, 2, 5]),
    min_rating=st.sampled_from([None, 2.0]),
)
def test_a_preparation_equals_the_plain_one_and_loses_no_row(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[Row],
    history: HistoryRules,
    keep_days: int | None,
    min_rating: float | None,
) -> None:
    wanted = Preparation(
        history=history, keep_days=keep_days, min_rating=min_rating, drop_unparsable_times=True
    )
    expected, dropped = plainly(rows, wanted)
    num_bad = sum(not row[2].lstrip("-").isdigit() for row in rows)
    try:
        made = store_of(tmp_path_factory.mktemp("law"), rows, wanted)
    except InputError:
        items = {item for events in expected.values() for item, *_ in events}
        assert len(expected) < 2 or len(items) < 2 or 2 * num_bad > len(rows)
        return
    assert told(made) == expected
    assert +Counter(made.dropped_rows) == +dropped
    assert made.num_rows_read == len(rows) == made.num_rows_kept + sum(dropped.values())


def test_two_ids_of_one_hash_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a hash that only knows the first letter, until salt is added
    weak = staging.hash_sql

    def first_letter(cell: str, salt: int) -> str:
        return weak(f"left(CAST({cell} AS VARCHAR), 1)" if salt == 0 else cell, salt)

    monkeypatch.setattr(staging, "hash_sql", first_letter)
    rows = [(user, item, "1", "") for user in ("ann", "abe") for item in ("xy", "xz", "y")]
    made = store_of(tmp_path, rows, Preparation(history=HistoryRules(min_history=1)))
    assert (made.num_users, made.num_items, made.num_rows_kept) == (2, 3, 6)
    assert [item for item, *_ in told(made)["abe"]] == ["xy", "xz", "y"]


def test_rules_survive_the_store_that_keeps_them() -> None:
    wanted = Preparation(
        history=HistoryRules(min_history=2, core=3, repeats="last", drop_exact_duplicates=True),
        split=SplitRule(kind="time", validation_share=0.1, test_share=0.2),
        drop_unparsable_times=True,
        not_after="2024-02-29T12:00:00Z",
        keep_days=30,
        min_rating=3.5,
    )
    plain: dict[str, Any] = wanted.plain()
    assert preparation_of(plain) == wanted
    # 29 February 2024, noon UTC, is 1709208000 s
    assert wanted.not_after_us(0) == 1_709_208_000_000_000
    assert wanted.oldest_us(40 * DAY_US) == 10 * DAY_US


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"keep_days": 0}, "keep_days is 0"),
        ({"not_after": "tomorrow"}, "--not-after is 'tomorrow', expected ISO 8601"),
    ],
)
def test_a_preparation_that_makes_no_sense_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Preparation(**wrong)
