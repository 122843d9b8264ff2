"""What an importer hands over lies in the landing zone whole and checked, or not at all."""

import dataclasses

import duckdb
import pytest

from analytics import schema
from analytics.errors import InputError, WarehouseError
from analytics.landing import find, insert, insert_arrow, land, landed, landing_tables, manifest
from tests.analytics.landed import START, S, about, land_records, sample


def rows(path) -> list[tuple]:
    return duckdb.sql(f"SELECT * FROM '{path}/fact_device_sample.parquet'").fetchall()


def test_what_is_landed_lies_sorted_by_its_key(tmp_path):
    folder = land_records(tmp_path, "a", sample(2), sample(1), sample(0, device_id="GPU-b"))
    times = [(row[3], (row[5] - START) // S) for row in rows(folder)]
    assert times == [("GPU-a", 1), ("GPU-a", 2), ("GPU-b", 0)]
    assert landed(tmp_path) == [folder]
    assert manifest(folder) == about("a") == find(tmp_path, "a")
    assert find(tmp_path, "b") is None
    assert [p.name for p in folder.parent.iterdir()] == ["a"]


def test_rows_of_one_key_become_one_with_the_larger_figures_and_the_first_arrival(tmp_path):
    twins = [
        sample(1, power_w=100.0, ingested_unix_ns=9, utilization_share=0.25),
        sample(1, power_w=300.0, ingested_unix_ns=7),
    ]
    [row] = rows(land_records(tmp_path, "a", *twins))
    names = [c.name for c in schema.columns(schema.FactDeviceSample)]
    found = dict(zip(names, row, strict=True))
    assert (found["power_w"], found["utilization_share"]) == (300.0, 0.25)
    assert found["ingested_unix_ns"] == 7


def test_an_import_that_is_there_stays_as_it_is(tmp_path):
    first = land_records(tmp_path, "a", sample(1))
    assert land_records(tmp_path, "a", sample(1), sample(2)) == first
    assert len(rows(first)) == 1


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("utilization_share", 1.5, "'utilization_share' is 1.5"),
        ("power_w", -1.0, "'power_w' is -1.0"),
        ("temperature_c", float("nan"), "'temperature_c' is nan"),
        ("host", None, "'host' is None"),
    ],
)
def test_a_figure_that_cannot_be_is_named_and_nothing_is_landed(tmp_path, column, value, message):
    with landing_tables(tmp_path) as con:
        given = {"pipeline_id": [""], "attempt": [0], "host": ["h"], "device_id": ["d"],
                 "sampled_unix_ns": [START]}  # fmt: skip
        insert(con, "fact_device_sample", given | {column: [value]})
        with pytest.raises(InputError, match=message):
            land(con, tmp_path, about("a"))
    assert landed(tmp_path) == []


def test_arrow_rows_go_in_at_once(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow comes with the extra 'bench'")
    given = pyarrow.table({
        "pipeline_id": [""] * 3, "attempt": [0] * 3, "host": ["h"] * 3, "device_id": ["d"] * 3,
        "sampled_unix_ns": [START + 2, START + 1, START], "power_w": [1.0, None, 3.0],
    })  # fmt: skip
    with landing_tables(tmp_path) as con:
        insert_arrow(con, "fact_device_sample", given)
        folder = land(con, tmp_path, about("a"))
    names = [c.name for c in schema.columns(schema.FactDeviceSample)]
    assert [row[names.index("power_w")] for row in rows(folder)] == [3.0, None, 1.0]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "telemetry").write_text("a file where the folder should be")
    with pytest.raises(WarehouseError, match="imports cannot be written here"):
        land_records(tmp_path, "a", sample(1))


def test_a_broken_manifest_is_named(tmp_path):
    folder = land_records(tmp_path, "a", sample(1))
    (folder / "manifest.json").write_text("{")
    with pytest.raises(WarehouseError, match=r"manifest.json: this is not the manifest"):
        manifest(folder)


@pytest.mark.parametrize("column", ["last_unix_ns", "num_bytes", "num_read"])
@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_a_manifest_that_could_not_be_read_again_is_never_landed(tmp_path, column, value):
    with landing_tables(tmp_path) as con, pytest.raises(InputError, match=f"'{column}' is"):
        land(con, tmp_path, dataclasses.replace(about("a"), **{column: value}))
    assert landed(tmp_path) == []
