"""A store says what it holds, holds out the last two, and refuses to open when parts disagree."""

import json
from pathlib import Path

import numpy as np
import pytest

from analytics.errors import StoreError
from analytics.store import (
    TEST,
    UNUSED,
    VALIDATION,
    StoreHeader,
    open_store,
    read_header,
    write_header,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two users with 4 and 1 events."""
    columns = {
        "items": np.array([3, 1, 2, 0, 1], dtype=np.int32),
        "times": np.array([10, 20, 20, 30, 5], dtype=np.int64),
        "splits": np.array([0, 0, VALIDATION, TEST, UNUSED], dtype=np.uint8),
        "offsets": np.array([0, 4, 5], dtype=np.int64),
        "actions": np.array([1, 0, 1, 2, 1], dtype=np.uint16),
    }
    for name, column in columns.items():
        np.save(tmp_path / f"{name}.npy", column)
    header = StoreHeader(
        schema_version=2, dataset_id="d", dataset_name="n", content_sha256="c", source_sha256="s",
        terms="t", num_rows_read=6, num_events=5, num_users=2, num_items=4,
        dropped_rows={"missing_user": 1}, num_in_split={}, tied_share=0.4, has_times=True,
        actions=["", "buy", "view"], has_ratings=False, sources=[], rules={"order": "by time"},
        pseudonyms=None, data_sheet={},
    )  # fmt: skip
    write_header(tmp_path, header)
    return tmp_path


def test_training_events_are_those_of_the_split_mask(folder: Path) -> None:
    store = open_store(folder)
    assert store.history(0).tolist() == [3, 1, 2, 0]
    assert store.training_items(0).tolist() == [3, 1]
    assert store.training_items(1).tolist() == []
    assert store.target_positions(VALIDATION).tolist() == [2, -1]
    assert store.target_positions(TEST).tolist() == [3, -1]
    actions = store.actions()
    assert actions is not None
    assert [store.header.actions[code] for code in actions] == ["buy", "", "buy", "view", "buy"]
    assert store.ratings() is None
    assert store.lengths().tolist() == [4, 1]
    assert store.training_lengths().tolist() == [2, 0]
    assert store.items.dtype == np.int32
    assert store.times.dtype == np.int64


def test_a_header_survives_the_disk(folder: Path) -> None:
    header = read_header(folder)
    assert header.dropped_rows == {"missing_user": 1}
    write_header(folder, header)
    assert read_header(folder) == header


def test_nothing_in_a_store_can_be_changed_by_a_reader(folder: Path) -> None:
    with pytest.raises(ValueError, match="read-only"):
        open_store(folder).items[0] = 9


def test_a_folder_without_a_store_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no sequence store.*seqscale prepare FILE --out DIR"):
        open_store(tmp_path)


@pytest.mark.parametrize("version", [0, 1, 3, None])
def test_another_version_is_refused(folder: Path, version: int | None) -> None:
    raw = json.loads((folder / "store.json").read_text())
    (folder / "store.json").write_text(json.dumps(raw | {"schema_version": version}))
    with pytest.raises(StoreError) as refused:
        open_store(folder)
    told = str(refused.value)
    assert f"version {version}, but this seqscale reads version 2. " in told
    assert told.endswith(f"delete {folder}, then 'seqscale prepare FILE --out {folder}'.")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("store.json", b"{torn", "not readable as JSON"),
        ("store.json", b"\xff", "not readable as JSON"),
        ("store.json", b'{"schema_version": 2}', "damaged"),
        ("items.npy", b"torn", "items.npy.*damaged"),
        ("offsets.npy", None, "offsets.npy.*damaged"),
    ],
)
def test_a_damaged_part_is_named(
    folder: Path, name: str, content: bytes | None, message: str
) -> None:
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    with pytest.raises(StoreError, match=message):
        open_store(folder)


def test_parts_that_contradict_each_other_are_refused(folder: Path) -> None:
    np.save(folder / "offsets.npy", np.array([0, 4, 6], dtype=np.int64))
    with pytest.raises(StoreError, match="contradict each other"):
        open_store(folder)
