"""A bill: exact to six places, each line loaded or refused with a reason; beside the estimate."""

import csv
import decimal
import gzip
import io
import json
from decimal import Decimal
from pathlib import Path

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analytics import landing, schema, warehouse
from analytics.billing import import_bill, instant, looks_like_focus, tags
from analytics.billing import money as amount
from analytics.errors import InputError

AWS = {
    "BilledCost": "24.00", "EffectiveCost": "24.00", "ListCost": "32.00", "ContractedCost": "24.00",
    "BillingAccountId": "123", "BillingCurrency": "EUR",
    "BillingPeriodStart": "2026-11-01T00:00:00Z", "BillingPeriodEnd": "2026-12-01T00:00:00Z",
    "ChargePeriodStart": "2026-11-30T12:00:00Z", "ChargePeriodEnd": "2026-11-30T13:00:00Z",
    "ChargeCategory": "Usage", "ProviderName": "AWS",
    "ServiceName": "Amazon Elastic Compute Cloud", "SkuId": "sku", "RegionId": "eu-west-1",
    "ResourceId": "i-1", "ResourceType": "instance", "PricingCategory": "Standard",
    "ConsumedQuantity": "1", "ConsumedUnit": "Hours",
    "Tags": '{"seqscale:pool": "p", "user:seqscale:pipeline": "a"}', "x_Operation": "RunInstances",
}  # fmt: skip


def written(path: Path, *lines: dict[str, str], columns=tuple(AWS), **how: str) -> Path:
    """A FOCUS export of these lines, each with what it changes of AWS."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    for line in lines:
        writer.writerow({k: v for k, v in (AWS | line).items() if k in columns})
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.getvalue().encode(how.get("encoding", "utf-8"))
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def landed(runs: Path, about: schema.DimImport, table: str = "fact_cost") -> list[dict]:
    path = runs / landing.FOLDER / about.import_id / f"{table}.parquet"
    if not path.is_file():
        return []
    con = duckdb.connect()
    cursor = con.execute(f"SELECT * FROM '{path}' ORDER BY line")
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def imported(tmp_path: Path, *lines: dict[str, str], **how) -> list[dict]:
    path = written(tmp_path / "bill.csv", *lines, **how)
    return landed(tmp_path / "runs", import_bill(path, tmp_path / "runs"))


def reasons(tmp_path: Path, *lines: dict[str, str], **how) -> list[tuple[int, str]]:
    path = written(tmp_path / "bill.csv", *lines, **how)
    about = import_bill(path, tmp_path / "runs")
    assert about.num_read == about.num_loaded + about.num_rejected
    found = landed(tmp_path / "runs", about, "fact_import_reject")
    assert len(found) == about.num_rejected
    return [(row["line"], row["reason"]) for row in found]


def test_a_line_of_aws_is_kept_in_our_words(tmp_path):
    [row] = imported(tmp_path, {})
    assert row["billed_cost"] == Decimal("24.000000")
    assert row["list_cost"] == Decimal("32.000000")
    assert (row["currency"], row["provider"], row["region"]) == ("EUR", "AWS", "eu-west-1")
    # 30 November 2026, 12:00 UTC
    assert row["charge_began_unix_ns"] == 1_796_040_000_000_000_000
    assert row["charge_ended_unix_ns"] - row["charge_began_unix_ns"] == 3_600_000_000_000
    assert (row["pool_id"], row["pipeline_id"], row["line"]) == ("p", "a", 2)
    assert row["cut_off_cost"] is None


def test_a_line_of_azure_has_tags_without_braces_and_times_without_seconds(tmp_path):
    azure = {
        "Tags": '"seqscale:pool": "p","env": "prod"', "ChargePeriodStart": "2026-11-30T00:00Z",
        "ChargePeriodEnd": "2026-12-01T00:00Z", "ProviderName": "Microsoft",
        "ServiceName": "Virtual Machines", "ResourceType": "Virtual machine",
        "ResourceId": "/subscriptions/1/resourceGroups/g/providers/Microsoft.Compute/"
        "virtualMachines/h1",
    }  # fmt: skip
    [row] = imported(tmp_path, azure)
    assert (row["pool_id"], row["pipeline_id"]) == ("p", None)
    assert row["charge_ended_unix_ns"] - row["charge_began_unix_ns"] == 86_400 * 10**9


@pytest.mark.parametrize("name", ["bill.csv", "bill.csv.gz"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_an_export_may_be_zipped_and_in_any_of_these_encodings(tmp_path, name, encoding):
    path = written(tmp_path / name, {}, {"SkuId": "señal"}, encoding=encoding)
    assert looks_like_focus(path)
    about = import_bill(path, tmp_path / "runs")
    found = landed(tmp_path / "runs", about)
    assert [row["sku_id"] for row in found] == ["sku", "señal"]


def test_parquet_with_a_map_of_tags_and_decimals_gives_the_same_row_as_csv(tmp_path):
    [of_csv] = imported(tmp_path, {})
    money_columns = {"BilledCost", "EffectiveCost", "ListCost", "ContractedCost"}
    picked = []
    for name, value in AWS.items():
        if name == "Tags":
            picked.append("MAP {'seqscale:pool': 'p', 'seqscale:pipeline': 'a'} AS Tags")
        elif name in money_columns:
            picked.append(f"CAST({value} AS DECIMAL(38, 18)) AS {name}")
        elif name.endswith(("Start", "End")):
            picked.append(f"CAST('{value}' AS TIMESTAMP) AS {name}")
        elif name == "ConsumedQuantity":
            picked.append(f"CAST({value} AS DOUBLE) AS {name}")
        else:
            picked.append(f"'{value}' AS {name}")
    path = tmp_path / "part.parquet"
    duckdb.connect().execute(f"COPY (SELECT {', '.join(picked)}) TO '{path}'")
    [row] = landed(tmp_path / "runs", import_bill(path, tmp_path / "runs"))
    told = ("import_id", "line")  # a Parquet file has no header line
    assert {k: v for k, v in row.items() if k not in told} == {
        k: v for k, v in of_csv.items() if k not in told
    }


def test_the_parts_of_a_folder_are_one_export(tmp_path):
    folder = tmp_path / "export"
    written(folder / "BILLING_PERIOD=2026-11" / "part-1.csv", {"SkuId": "one"}, {"SkuId": "two"})
    written(folder / "BILLING_PERIOD=2026-12" / "part-1.csv", {"BillingCurrency": "euro"})
    (folder / "manifest.json").write_text("{}")
    about = import_bill(folder, tmp_path / "runs")
    assert (about.num_files, about.num_read, about.num_rejected) == (2, 3, 1)
    rejects = landed(tmp_path / "runs", about, "fact_import_reject")
    assert [row["file_name"] for row in rejects] == ["BILLING_PERIOD=2026-12/part-1.csv"]


def test_the_same_bytes_are_imported_once(tmp_path):
    path = written(tmp_path / "bill.csv", {})
    first = import_bill(path, tmp_path / "runs")
    again = written(tmp_path / "other-name.csv", {})
    assert import_bill(again, tmp_path / "runs") == first
    assert len(landing.landed(tmp_path / "runs")) == 1


def test_places_beyond_six_are_rounded_to_even_and_the_rest_is_told(tmp_path):
    # half-way cases go to the even neighbour; the true total is 0.0000020000
    found = imported(
        tmp_path, {"BilledCost": "0.0000005"}, {"BilledCost": "0.0000015"}, {"BilledCost": "-1e-9"}
    )
    assert [row["billed_cost"] for row in found] == [
        Decimal("0.000000"), Decimal("0.000002"), Decimal("0.000000"),
    ]  # fmt: skip
    assert [row["cut_off_cost"] for row in found] == [5e-7, -5e-7, -1e-9]


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9))
def test_an_amount_and_what_was_cut_off_add_up_exactly(value):
    text = format(value, "f")
    if len(text) <= 60:
        kept, rest = amount(text)
        assert decimal.Context(prec=100).add(kept, rest) == value
        assert abs(rest) <= Decimal("0.0000005")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"BilledCost": ""}, "missing_billed_cost"),
        ({"BilledCost": "12,5"}, "unreadable_billed_cost"),
        ({"BilledCost": "1,234.50"}, "unreadable_billed_cost"),
        ({"BilledCost": "NaN"}, "unreadable_billed_cost"),
        ({"BilledCost": "1e999"}, "unreadable_billed_cost"),
        ({"ListCost": "free"}, "unreadable_list_cost"),
        ({"BillingCurrency": "Euro"}, "unknown_currency"),
        ({"BillingCurrency": ""}, "missing_currency"),
        ({"ChargePeriodStart": "30/11/2026"}, "unreadable_charge_began"),
        ({"ChargePeriodStart": "0001-01-01T00:00:00Z"}, "unreadable_charge_began"),
        ({"ChargePeriodEnd": "2026-11-30T11:00:00Z"}, "charge_ends_before_it_begins"),
        ({"BillingPeriodStart": "November"}, "unreadable_period_began"),
        ({"ConsumedQuantity": "many"}, "unreadable_consumed_quantity"),
        ({"ChargeCategory": ""}, "missing_charge_category"),
    ],
)
def test_a_line_that_cannot_be_trusted_is_refused_with_its_reason(tmp_path, change, reason):
    assert reasons(tmp_path, {}, change) == [(3, reason)]


def test_a_zero_byte_refuses_its_line_and_in_the_header_the_export(tmp_path):
    # '2\04.00' may have been 24.00 or the rest of 214.00
    assert reasons(tmp_path, {}, {"BilledCost": "2\x004.00"}, {"ResourceId": "i\0"}) == [
        (3, "zero_byte"), (4, "zero_byte"),
    ]  # fmt: skip
    path = tmp_path / "bill.csv"
    path.write_text(path.read_text().replace("Tags", "Ta\0gs"))
    with pytest.raises(InputError, match="zero byte stands in the header"):
        import_bill(path, tmp_path / "runs")


def test_a_line_of_too_few_cells_is_refused_and_a_blank_one_is_none(tmp_path):
    path = written(tmp_path / "bill.csv", {})
    path.write_text(path.read_text() + "\n\n1.5,EUR\n")
    about = import_bill(path, tmp_path / "runs")
    [reject] = landed(tmp_path / "runs", about, "fact_import_reject")
    assert (reject["reason"], reject["line"], reject["text"]) == (
        "wrong_number_of_cells", 5, "1.5,EUR",
    )  # fmt: skip
    assert (about.num_read, about.num_loaded) == (2, 1)


def test_credits_are_negative_and_optional_columns_may_be_missing(tmp_path):
    columns = ("BilledCost", "BillingCurrency", "ChargePeriodStart", "ChargePeriodEnd",
               "ChargeCategory")  # fmt: skip
    credit = {"BilledCost": "-5.25", "ChargeCategory": "Credit"}
    [row] = imported(tmp_path, credit, columns=columns)
    assert row["billed_cost"] == Decimal("-5.250000")
    assert row["service_name"] is row["list_cost"] is row["pool_id"] is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"seqscale:pool": "p"}', {"seqscale:pool": "p"}),
        ('"seqscale:pool": "p", "b": "c"', {"seqscale:pool": "p", "b": "c"}),
        ("{seqscale:pool=p, b=c}", {"seqscale:pool": "p", "b": "c"}),
        ('{"Seqscale:Pool": "p"}', {"seqscale:pool": "p"}),
        ("[1, 2]", {}),
        ("null", {}),
        ("", {}),
        (None, {}),
        ("{" * 5000, {}),
    ],
)
def test_tags_are_read_in_every_form_that_clouds_write(text, found):
    assert tags(text) == found


def test_a_time_keeps_its_offset_and_has_none_only_in_utc():
    assert instant("2026-11-30T12:00:00+01:00") == instant("2026-11-30 11:00:00")
    assert instant("2026-11-30") == instant("2026-11-30T00:00Z")
    with pytest.raises(ValueError, match="Invalid isoformat"):
        instant("noon")


def test_a_file_of_another_form_is_no_bill(tmp_path):
    other = tmp_path / "other.csv"
    other.write_text("index, timestamp, utilization.gpu [%]\n0, now, 5 %\n")
    assert not looks_like_focus(other)
    with pytest.raises(InputError, match="not a cost export in the FOCUS format"):
        import_bill(other, tmp_path / "runs")
    for data in (b"", b"\x1f\x8b\x08", b"PAR1", b"\x00" * 100, b"\xff\xfe\x00"):
        other.write_bytes(data)
        assert not looks_like_focus(other)
    assert not looks_like_focus(tmp_path / "nowhere")


def test_a_file_that_was_cut_short_is_refused_whole(tmp_path):
    lines = [{"SkuId": f"{i * 7919 % 10007:x}"} for i in range(3000)]
    path = written(tmp_path / "bill.csv.gz", *lines)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(InputError, match="cut short or damaged"):
        import_bill(path, tmp_path / "runs")
    assert landing.landed(tmp_path / "runs") == []


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.lists(st.text(max_size=12), max_size=8), max_size=6), st.binary(max_size=40))
def test_whatever_follows_the_header_is_loaded_or_refused_never_lost(tmp_path, lines, tail):
    columns = ("BilledCost", "BillingCurrency", "ChargePeriodStart", "ChargePeriodEnd",
               "ChargeCategory")  # fmt: skip
    path = written(tmp_path / "bill.csv", {}, columns=columns)
    text = io.StringIO()
    csv.writer(text).writerows(lines)
    path.write_bytes(path.read_bytes() + text.getvalue().encode("utf-8", "replace") + tail)
    about = import_bill(path, tmp_path / "runs")
    assert about.num_read == about.num_loaded + about.num_rejected
    assert about.num_loaded >= 1


def test_an_import_says_of_itself_what_it_was(tmp_path):
    path = written(tmp_path / "bill.csv", {})
    about = import_bill(path, tmp_path / "runs")
    kept = json.loads(
        (tmp_path / "runs" / "telemetry" / about.import_id / "manifest.json").read_text()
    )
    assert (kept["source_kind"], kept["num_records"]) == ("focus_bill", 1)


def test_a_category_in_another_case_is_itself_and_an_unknown_one_is_refused(tmp_path):
    [row] = imported(tmp_path, {"ChargeCategory": "usage"})
    assert row["charge_category"] == "Usage"
    found = reasons(tmp_path / "b", {"ChargeCategory": "Nonsense"}, {"ChargeCategory": "Tax"})
    assert found == [(2, "unknown_charge_category")]


def test_sums_beyond_one_lines_most_are_told(tmp_path):
    # three lines of 900,000,000,000 each: 2.7e12 is more than twelve digits before the point
    lines = [{"BilledCost": "900000000000", "ResourceId": f"i-{n}"} for n in range(3)]
    runs = tmp_path / "runs"
    import_bill(written(tmp_path / "bill.csv", *lines), runs)
    warehouse.load(runs)
    warehouse.publish(runs)
    con = warehouse.open_published(runs)
    # the day's line of the pool, and that of the run
    billed = con.execute("SELECT DISTINCT billed_cost FROM bill_vs_estimate").fetchall()
    con.close()
    assert billed == [(2_700_000_000_000,)]
