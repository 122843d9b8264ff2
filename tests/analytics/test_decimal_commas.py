"""A decimal comma is a decimal point or a reason, and never ten or a hundred times the number."""

import duckdb
import pytest

from analytics.pools import import_pools
from tests.analytics.importing_logs import import_text, rejects, samples
from tests.analytics.reading_scans import Opener

# Bills are in test_billing.py, rates of currencies in tests/infra/test_prices.py.
NAMES = ("utilization_share", "memory_used_bytes", "power_w")


def log(delimiter: str, *cells: str) -> str:
    header = ("timestamp", "index", "utilization.gpu [%]", "memory.used [MiB]", "power.draw [W]")
    rows = (header, ("2026/01/01 00:00:00,250", "0", *cells))
    return "".join(delimiter.join(row) + "\n" for row in rows)


def test_where_semicolons_part_the_cells_a_comma_is_the_decimal_point(tmp_path):
    # azure-migrate-explore#20, apama-log-analyzer#5, jasp#3608: 12.5 became 125, or a date
    outcome = import_text(tmp_path, log(";", "45,5 %", "364,5 MiB", "60,25 W"))
    assert not outcome.left_out
    assert samples(tmp_path / "runs", "sampled_unix_ns % 1000000000", *NAMES) == [
        (250_000_000, 0.455, 729 * 2**19, 60.25)
    ]


@pytest.mark.parametrize("power", ["1.060,25 W", "1.060.250 W", "1,060,250"])
def test_with_thousands_in_it_a_number_is_left_out_and_not_guessed(tmp_path, power):
    outcome = import_text(tmp_path, log(";", "45,5 %", "364", power))
    assert outcome.left_out == {"cell_not_a_number: power_w": 1}
    assert rejects(tmp_path / "runs") == [(2, "cell_not_a_number: power_w")]
    assert samples(tmp_path / "runs", *NAMES) == [(0.455, 364 * 2**20, None)]


@pytest.mark.parametrize("delimiter", ["\t", "|"])
def test_where_nothing_tells_what_a_comma_is_its_cell_is_left_out(tmp_path, delimiter):
    # jasp#3608: values were multiplied where decimals have commas
    outcome = import_text(tmp_path, log(delimiter, "45,5 %", "364", "60,25"))
    names = ("power_w", "utilization_share")
    assert outcome.left_out == {f"cell_not_a_number: {name}": 1 for name in names}
    assert samples(tmp_path / "runs", *NAMES) == [(None, 364 * 2**20, None)]


def test_between_quotes_a_comma_parts_no_cells_and_its_cell_is_left_out(tmp_path):
    text = log(",", '"45,5 %"', "364", '"60,25"').replace("00,250", "00.250")
    outcome = import_text(tmp_path, text)
    assert sum(outcome.left_out.values()) == 2
    assert samples(tmp_path / "runs", *NAMES) == [(None, 364 * 2**20, None)]


def test_bare_commas_make_a_row_of_too_many_cells(tmp_path):
    good = "2026/01/01 00:00:00.250,0,45 %,364,60\n"
    text = log(",", "45,5 %", "364", "60,25").replace("00,250", "00.250") + good
    assert import_text(tmp_path, text).rejected == {"wrong_number_of_cells": 1}
    assert samples(tmp_path / "runs", *NAMES) == [(0.45, 364 * 2**20, 60.0)]


@pytest.mark.parametrize(("delimiter", "told"), [(";", 4.5), ("\t", None), ("|", None)])
def test_a_rating_is_what_it_was_or_none(tmp_path, delimiter, told):
    lines = [("user", "item", "rating", "time"), ("a", "x", "4,5", "1700000000"),
             ("b", "y", "3", "1700000001")]  # fmt: skip
    opener = Opener(tmp_path)
    scan = opener.text("".join(delimiter.join(line) + "\n" for line in lines))
    assert opener.run(scan, "rating") == [(told,), (3.0,)]


def test_a_price_with_a_comma_is_refused_and_a_point_is_kept(tmp_path):
    row = "p,h1,gpu-0,allocated,2026-11-30T{}:00:00Z,a,spot,{},EUR\n"
    path, runs = tmp_path / "pool_events.csv", tmp_path / "runs"
    path.write_text(
        "pool_id,host,device_id,event,event_utc,pipeline_id,purchase,device_hour_cost,currency\n"
        + row.format(12, "1.25") + row.format(13, '"1,25"')
    )  # fmt: skip
    about = import_pools(path, runs)
    folder = runs / "telemetry" / about.import_id
    costs = duckdb.sql(f"SELECT device_hour_cost FROM '{folder}/fact_pool_event.parquet'")
    reasons = duckdb.sql(f"SELECT line, reason FROM '{folder}/fact_import_reject.parquet'")
    assert costs.fetchall() == [(1.25,)]
    assert reasons.fetchall() == [(3, "unreadable_device_hour_cost")]
