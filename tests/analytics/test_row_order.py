"""Rows come into order as a stable sort would put them, whatever their times."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics import row_order
from analytics.row_order import Columns, in_order

LATEST = 2**62


def check(rows: Columns, num_users: int, chunk_rows: int = 1 << 20) -> None:
    num_rows = len(rows["users"])
    chunks = (
        {name: column[start : start + chunk_rows] for name, column in rows.items()}
        for start in range(0, num_rows, chunk_rows)
    )
    length_U = np.bincount(rows["users"], minlength=num_users)
    events = in_order(chunks, length_U)
    keys = [rows["times"], rows["users"]]
    if "splits" in rows:
        keys = [rows["times"], rows["splits"], rows["users"]]
    order = np.lexsort(keys)  # stable: of equals the earlier row stands first
    np.testing.assert_array_equal(events.items, rows["items"][order])
    np.testing.assert_array_equal(events.times, rows["times"][order])
    np.testing.assert_array_equal(events.lengths(), length_U)
    if "ratings" in rows:
        assert events.ratings is not None
        np.testing.assert_array_equal(events.ratings, rows["ratings"][order])


@given(st.data())
def test_rows_of_any_times_come_into_order(data: st.DataObject) -> None:
    num_rows = data.draw(st.integers(1, 60))
    unit = data.draw(st.sampled_from([1, 1_000, 1_000_000, 2**40]))
    times = st.integers(-(LATEST // unit), LATEST // unit)
    if data.draw(st.booleans()):
        times = st.integers(0, 3)

    def drawn(values: st.SearchStrategy[int]) -> list[int]:
        return data.draw(st.lists(values, min_size=num_rows, max_size=num_rows))

    splits = np.array(drawn(st.integers(0, 2)), dtype=np.uint8)
    rows = {
        "users": np.array(drawn(st.integers(0, 6)), dtype=np.int32),
        "items": np.arange(num_rows, dtype=np.int32),
        "times": np.array(drawn(times), dtype=np.int64) * unit,
    }
    check(rows | ({"splits": splits} if data.draw(st.booleans()) else {}), 9, chunk_rows=7)


@pytest.mark.parametrize("unit", [1, 1_000, 1_000_000])
def test_many_buckets_and_chunks_are_one_sort(unit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_order, "BUCKET_ROWS", 512)
    draw = np.random.default_rng(unit)
    rows = {
        "users": np.minimum(draw.zipf(1.5, 20_000), 400).astype(np.int32),  # some beyond a bucket
        "items": np.arange(20_000, dtype=np.int32),
        "times": draw.integers(0, 10**7, 20_000) * unit,
        "ratings": draw.random(20_000).astype(np.float32),
    }
    check(rows, 500, chunk_rows=3_000)
