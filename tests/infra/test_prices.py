"""A price is the list's price divided by the accelerators, in a named currency of a named day."""

import csv
import os
from pathlib import Path

import pytest

from analytics.errors import ConfigError
from analytics.schema import from_mapping, to_mapping
from infra.prices import INSTANCES, price

HEADER = "rate_date,from_currency,to_currency,rate\n"


def write_rates(folder: Path, lines: str) -> Path:
    path = folder / "rates.csv"
    path.write_text(HEADER + lines, encoding="utf-8")
    return path


def test_an_instance_price_is_shared_by_its_accelerators():
    # 55.04 USD an hour for 8 H100: 55.04 / 8 = 6.88
    found = price("p5.48xlarge", pipeline_id="p")
    assert (found.device_hour_cost, found.currency, found.num_devices) == (6.88, "USD", 8)
    assert (found.cloud, found.region, found.device_name) == ("aws", "us-east-1", "H100")
    assert (found.price_date, found.pipeline_id) == ("2026-11-30", "p")


def test_division_is_decimal_and_rounds_only_once():
    # 21.957642 / 8 = 2.74470525 exactly
    assert price("p4d.24xlarge").device_hour_cost == 2.74470525
    # 98.32 / 8 = 12.29
    assert price("Standard_ND96isr_H100_v5").device_hour_cost == 12.29


@pytest.mark.parametrize("instance_type", INSTANCES)
def test_every_listed_instance_gives_a_valid_record(instance_type):
    found = price(instance_type)
    assert from_mapping(type(found), to_mapping(found)) == found


def test_the_latest_rate_that_is_not_after_the_price_list_holds(tmp_path):
    rates = write_rates(
        tmp_path,
        "2026-11-27,USD,EUR,0.90\n2026-12-01,USD,EUR,0.50\n"
        "2026-10-30,USD,EUR,0.80\n2026-11-28,USD,GBP,0.70\n",
    )
    found = price("p5.48xlarge", currency="EUR", rates=rates)
    # 6.88 USD x 0.90 = 6.192 EUR; the rate of 1 December is later than the list of 30 November
    assert found.device_hour_cost == 6.192
    assert (found.currency, found.list_currency) == ("EUR", "USD")
    assert found.list_device_hour_cost == 6.88
    assert "1 USD = 0.90 EUR of 2026-11-27" in found.source


def test_a_rate_of_the_day_of_the_list_counts(tmp_path):
    rates = write_rates(tmp_path, "2026-11-30,USD,EUR,0.5\n")
    assert price("p5.4xlarge", currency="EUR", rates=rates).device_hour_cost == 3.44


def test_the_currency_of_the_list_needs_no_rates():
    assert price("g5.4xlarge", currency="USD").device_hour_cost == 1.624


def test_an_unknown_instance_is_answered_with_those_that_are_known():
    with pytest.raises(ConfigError, match=r"'p9\.huge'; known are p5\.48xlarge, .*H100_v5"):
        price("p9.huge")


def test_a_region_without_a_price_is_answered_with_the_one_that_has():
    with pytest.raises(ConfigError, match="in the region 'mars'; the list has us-east-1"):
        price("p5.48xlarge", region="mars")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("2026-12-01,USD,EUR,0.9\n", "first one is of 2026-12-01"),
        ("2026-11-01,EUR,USD,1.1\n", "it has none"),
        ("yesterday,USD,EUR,0.9\n", "line 2: rate_date is 'yesterday'"),
        ("2026-11-01,USD,EUR,-1\n", "line 2: rate is '-1'"),
        ("2026-11-01,USD,EUR\n", "line 2: rate is 'None'"),
        ('2026-11-01,USD,EUR,"0,9"\n', "line 2: rate is '0,9'"),  # azure-migrate-explore#20
        ("2026-11-01,USD,EUR,1\n2026-11-01,USD,EUR,2\n", "two different rates .* 2026-11-01"),
    ],
)
def test_a_rate_table_that_does_not_help_is_refused(tmp_path, lines, message):
    with pytest.raises(ConfigError, match=message):
        price("p5.48xlarge", currency="EUR", rates=write_rates(tmp_path, lines))


def test_another_currency_without_rates_says_what_is_needed(tmp_path):
    with pytest.raises(ConfigError, match="rate_date,from_currency,to_currency,rate"):
        price("p5.48xlarge", currency="EUR")
    with pytest.raises(ConfigError, match="cannot be read"):
        price("p5.48xlarge", currency="EUR", rates=tmp_path / "none.csv")
    with pytest.raises(ConfigError, match="three capital letters"):
        price("p5.48xlarge", currency="euro", rates=tmp_path / "none.csv")


def test_a_rate_table_with_another_header_names_the_missing_column(tmp_path):
    path = tmp_path / "rates.csv"
    path.write_text("day,from_currency,to_currency,rate\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="column 'rate_date' is missing"):
        price("p5.48xlarge", currency="EUR", rates=path)


def test_prices_agree_with_an_independent_list():
    folder = os.environ.get("SEQSCALE_TEST_DATA")
    if not folder or not (Path(folder) / "gpu_prices.csv").exists():
        pytest.skip("SEQSCALE_TEST_DATA names no folder with gpu_prices.csv")
    with (Path(folder) / "gpu_prices.csv").open(encoding="utf-8", newline="") as file:
        listed = {(r["instance_type"], r["region"]): r for r in csv.DictReader(file)}
    for instance_type, instance in INSTANCES.items():
        row = listed[instance_type, instance.region]
        assert float(instance.hour_cost) == float(row["price_usd_h"]), instance_type
        assert (instance.cloud, instance.device_name, instance.num_devices) == (
            row["cloud"],
            row["accelerator"],
            int(row["count"]),
        )
