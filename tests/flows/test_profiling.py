"""`seqscale profile` says the same of a file and of the store made from it, and names nobody."""

import json
import shutil
import tempfile
from pathlib import Path

import pytest

from analytics.errors import ConfigError, InputError, StoreError
from analytics.interactions import prepare
from analytics.schema import DimPrice
from analytics.store import SequenceStore
from analytics.traces import files_with
from analytics.warehouse import open_published
from flows import profiling
from flows.profiling import DEFAULT_PREPARATION, FileProfile, profile_file, throwaway_key

PRICE = DimPrice(
    pipeline_id="", instance_type="x", cloud="aws", region="r", device_name="H100", num_devices=8,
    device_hour_cost=5.0, currency="USD", list_device_hour_cost=5.0, list_currency="USD",
    price_date="2026-11-01", source="a price list",
)  # fmt: skip
START_S = 1_700_000_000


def profiled(source: Path, **changes: object) -> FileProfile:
    options: dict[str, object] = {
        "price": PRICE, "num_gpus": 2, "sequences_per_rank": 4,
        "cost_name": "hstu-8x1024@h100", "seed": 1, "sizes_per_rank": (),
    }  # fmt: skip
    return profile_file(source, **(options | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 users with 5 to 44 events."""
    lines = ["user,item,time"]
    for user in range(40):
        lines += [f"u{user},i{(user * at) % 17},{START_S + 60 * at}" for at in range(5 + user)]
    path = tmp_path_factory.mktemp("file") / "events.csv"
    path.write_text("\n".join(lines))
    return path


def test_a_store_is_profiled_as_the_file_it_came_from(file: Path, tmp_path: Path) -> None:
    # under the same pseudonyms: users stand in their order, and batches are drawn of that
    key = throwaway_key([file])
    store = prepare(file, tmp_path, preparation=DEFAULT_PREPARATION, key=key)
    of_file, of_store = profiled(file).plain(), profiled(Path(store.store_dir)).plain()
    assert of_store == of_file
    assert Path(store.store_dir).is_dir()  # it was opened where it lies
    json.dumps(of_store, allow_nan=False)


def test_a_killed_profile_leaves_no_user_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, temporary = tmp_path / "events.csv", tmp_path / "tmp"
    # `brief` is set aside: too few events
    lines = [f"paper-user-{u},i{(u + e) % 6},{START_S + e}" for u in range(6) for e in range(6)]
    source.write_text("\n".join(["user,item,time", *lines, f"paper-brief,i1,{START_S}"]))
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    left = []

    def killed(store: SequenceStore, *_: object, **__: object) -> None:
        left.extend(path.name for path in store.path.iterdir())
        shutil.copytree(temporary, tmp_path / "left")
        raise KeyboardInterrupt

    monkeypatch.setattr(profiling, "profile_store", killed)
    with pytest.raises(KeyboardInterrupt):
        profiled(source)
    assert {"user_map.parquet", "set_aside.parquet"} <= set(left)
    assert files_with([tmp_path / "left"], ["paper-user", "paper-brief"]).holding == []
    assert list(temporary.iterdir()) == []


def test_the_throwaway_key_is_of_the_bytes_of_every_file(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_bytes(file.read_bytes())
    key_id = throwaway_key([file]).key_id
    assert throwaway_key([other]).key_id == key_id
    other.write_bytes(file.read_bytes() + b"\n")
    assert len({key_id, throwaway_key([other]).key_id, throwaway_key([file, other]).key_id}) == 3
    with pytest.raises(InputError, match=r"nowhere\.csv"):
        throwaway_key([tmp_path / "nowhere.csv"])


def test_what_is_printed_tells_lengths_of_groups_and_days(file: Path) -> None:
    # 5..44 events, one user each: ten have at most 14, ten at least 35
    told = profiled(file).plain()["dataset"]
    assert (told["min_length"], told["max_length"]) == (14, 35)
    assert told["first_event_utc"] == told["last_event_utc"] == "2023-11-14"
    assert "store_dir" not in told
    assert profiled(file, min_group_users=1).plain()["dataset"]["max_length"] == 44


def test_what_cannot_be_profiled_is_named(file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no cost model 'x'"):
        profiled(file, cost_name="x")
    with pytest.raises(ConfigError, match=r"Lower --gpus"):
        profiled(file, num_gpus=65_536, sequences_per_rank=4096)
    with pytest.raises(ConfigError, match=r"minimum group is 0 users"):
        profiled(file, min_group_users=0)
    (tmp_path / "store.json").write_text("{")
    with pytest.raises(StoreError, match="The store is damaged"):
        profiled(tmp_path)


def test_a_profile_goes_into_the_warehouse_without_a_run(file: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    made = profiled(file, record_in=runs)
    with open_published(runs) as con:
        (dataset,) = con.execute("SELECT num_rows_read, num_rows_kept FROM dim_dataset").fetchall()
        (dropped,) = con.execute("SELECT sum(num_rows) FROM fact_dropped_rows").fetchall()
        forecasts = con.execute("SELECT count(*) FROM fact_straggler_forecast").fetchall()
        (profiles,) = con.execute("SELECT count(*) FROM fact_profile").fetchall()
    assert dataset[0] == dataset[1] + dropped[0] == made.prepared.num_rows_read
    assert forecasts == [(len(made.profile.forecasts),)]
    assert profiles == (1,)
