"""Times are read exactly in every usual form, and the form is settled once for the file."""

from pathlib import Path

import pytest

from analytics.errors import InputError
from analytics.interactions import InteractionColumns, PreparedData, prepare
from analytics.store import SequenceStore, open_store


def from_cells(tmp_path: Path, cells: list[str]) -> tuple[SequenceStore, PreparedData]:
    """A store of users a and b, each with an event at every cell; a's events come first."""
    path = tmp_path / "events.csv"
    rows = [f"{user},x{place},{cell}" for user in "ab" for place, cell in enumerate(cells)]
    path.write_text("\n".join(["user,item,time", *rows]))
    data = prepare(
        path,
        tmp_path / "stores",
        columns=InteractionColumns(),
        min_history=1,
        max_history=99,
        drop_unparsable_times=True,
    )
    return open_store(Path(data.store_dir)), data


@pytest.mark.parametrize(
    ("cells", "expected_us", "unit"),
    [
        (["1700000000", "1700000001"], [1_700_000_000_000_000, 1_700_000_001_000_000], "seconds"),
        (
            ["1700000000123", "1700000000124"],
            [1_700_000_000_123_000, 1_700_000_000_124_000],
            "milliseconds",
        ),
        (
            ["1700000000123456", "1700000000123457"],
            [1_700_000_000_123_456, 1_700_000_000_123_457],
            "microseconds",
        ),
        (
            ["1700000000123456789", "1700000000123457789"],
            [1_700_000_000_123_456, 1_700_000_000_123_457],
            "nanoseconds",
        ),
        # a double of this size is good to 0.24 us, a float32 to 128 s
        (
            ["1396861869.277001", "1396861869.277002"],
            [1_396_861_869_277_001, 1_396_861_869_277_002],
            "seconds",
        ),
        (["8.81250949E8", "881250950.0"], [881_250_949_000_000, 881_250_950_000_000], "seconds"),
        # 1 January 2024, 00:00 UTC is 1,704,067,200 s; at +02:00 it came two hours earlier
        (
            ["2024-01-01T00:00:00+02:00", "2024-01-01T00:00:00Z"],
            [1_704_060_000_000_000, 1_704_067_200_000_000],
            "ISO 8601",
        ),
        (
            ["2024-01-01", "2024-01-01 00:00:00.25"],
            [1_704_067_200_000_000, 1_704_067_200_250_000],
            "ISO 8601",
        ),
        (["20240101", "20240102"], [1_704_067_200_000_000, 1_704_153_600_000_000], "YYYYMMDD"),
        (["-2", "-1"], [-2_000_000, -1_000_000], "seconds"),
        # small numbers, as of relative times, are seconds
        (["0", "604800"], [0, 604_800_000_000], "seconds"),
        # decided by the median, not by the odd one out
        (
            ["9223372036854", "9223372036855", "5"],
            [5_000, 9_223_372_036_854_000, 9_223_372_036_855_000],
            "milliseconds",
        ),
    ],
)
def test_times_are_exact_in_every_form(
    tmp_path: Path, cells: list[str], expected_us: list[int], unit: str
) -> None:
    store, _ = from_cells(tmp_path, cells)
    assert store.times[: store.offsets[1]].tolist() == expected_us
    assert str(store.header.rules["time_unit"]).startswith((unit, f"days written as {unit}"))


def test_the_time_zone_of_the_host_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    store, data = from_cells(tmp_path, ["2024-01-01 00:00:00", "2024-01-01 00:00:01"])
    assert store.times[0] == 1_704_067_200_000_000
    assert data.first_event_utc == "2024-01-01T00:00:00Z"


@pytest.mark.parametrize(
    "odd", ["", "inf", "nan", "soon", "2024-01-01", "99999999999999999999", "1e30", "9e18"]
)
def test_an_odd_cell_among_numbers_is_dropped_and_counted(tmp_path: Path, odd: str) -> None:
    store, data = from_cells(tmp_path, ["5", odd, "6"])
    assert store.times.tolist() == [5_000_000, 6_000_000] * 2
    assert data.dropped_rows["unparsable_time"] == 2
    assert str(store.header.rules["first_unparsable_time"]).endswith("in line 3")


@pytest.mark.parametrize("odd", ["2024-13-01", "01/02/2024", "1700000000", "infinity", "epoch"])
def test_an_odd_cell_among_dates_is_dropped_and_counted(tmp_path: Path, odd: str) -> None:
    store, data = from_cells(tmp_path, ["2024-01-01", odd, "2024-01-02"])
    assert data.dropped_rows["unparsable_time"] == 2
    assert len(store.times) == 4


def test_more_odd_cells_than_times_end_the_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"4 of 6 values of column 'time'.*'soon' in line 3"):
        from_cells(tmp_path, ["5", "soon", "later"])
