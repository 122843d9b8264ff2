"""What holds of an import whatever its form: nothing usable is refused, and twice is told."""

import dataclasses
import json
import os
import pickle
import sqlite3
from pathlib import Path

import duckdb
import pytest
from typer.testing import CliRunner

from analytics import landing
from analytics.telemetry.import_options import KINDS, ImportOptions
from analytics.telemetry.importing import ALREADY, IMPORTED, REFUSED, import_telemetry
from analytics.telemetry.recognising import BILL, DUMP, POOLS, TRACE
from flows.cli import app
from flows.import_command import _text as told_to_a_person
from tests.analytics.test_billing import AWS
from tests.analytics.test_flight_recorder import dump, entry
from tests.analytics.test_import_csv import HEADER
from tests.analytics.test_import_forms import DMON, answer, gpu_xml, prom
from tests.analytics.test_kineto_reading import kernel

AT_MS = 1_767_225_600_000
POWER = "system/gpu_0_power_usage_watts"
RULE = "#" * 80
TOLD = ImportOptions(
    host="h", time_zone="UTC", taken_unix_ns=10**18, started_unix_ns=10**18, interval_s=1.0
)
ROW = "2026/01/01 00:00:00.000, 0, 5 %, 364 MiB, 60.5 W\n"
EVENTS = "pool_id,host,device_id,event,event_utc\n"


def capture(row: str) -> str:
    return (
        f"{RULE}\n# idle :: query\n# $ nvidia-smi --query-gpu=a --format=csv\n{RULE}\n{HEADER}{row}"
    )


def promql(moment: object) -> str:
    name = {"__name__": "DCGM_FI_DEV_GPU_UTIL", "gpu": "0"}
    return answer([{"metric": name, "values": [[moment, "5"]]}])


def mlflow_json(moment: object) -> str:
    return json.dumps({"metrics": [{"key": POWER, "value": 5, "timestamp": moment}]})


def sqlite(path: Path, moment: object) -> None:
    with sqlite3.connect(path) as con:
        con.execute(
            "PRAGMA page_size = 512"
        )  # small, so that a damaged byte is seldom an empty one
        con.execute("CREATE TABLE metrics (key, value, timestamp, run_uuid, step, is_nan BOOLEAN)")
        con.execute("INSERT INTO metrics VALUES (?, 5, ?, 'r', 0, FALSE)", [POWER, moment])
    con.close()


def store(path: Path, moment: object) -> None:
    file = path / "0" / "r1" / "metrics" / POWER
    file.parent.mkdir(parents=True)
    file.write_text(f"{moment} 25 0\n")


def bill(currency: str) -> str:
    values = AWS | {"BillingCurrency": currency, "Tags": ""}
    return ",".join(values) + "\n" + ",".join(values.values()) + "\n"


def bill_parquet(path: Path, currency: str) -> None:
    columns = ", ".join(f"'{v}' AS {k}" for k, v in (AWS | {"BillingCurrency": currency}).items())
    with duckdb.connect() as con:
        con.execute(f"COPY (SELECT {columns}) TO '{path}' (FORMAT parquet)")


def trace(**event: object) -> str:
    about = {"distributedInfo": {"rank": 0, "world_size": 1}}
    return json.dumps({"schemaVersion": 1, **about, "traceEvents": [kernel(1, 2) | event]})


# form -> (one that can be used, one of which no row can be), each as content or as a writer of it
FORMS = {
    "nvidia_smi_csv": (HEADER + ROW, HEADER + "nonsense\n"),
    "nvidia_smi_dmon": (
        DMON + " 20260101 00:00:01 0 158 40 97 87 3783 12 -\n",
        DMON + " 20260101 00:00:01 0 158\n",
    ),
    "nvidia_smi_xml": (
        gpu_xml(1), gpu_xml(1).replace(' id="00000000:01:00.0"', "").replace("GPU-1a", "N/A"),
    ),
    "nvidia_smi_capture": (capture(ROW), capture("nonsense\n")),
    "dcgm_text": (prom("DCGM_FI_DEV_GPU_UTIL", "25"), prom("DCGM_FI_DEV_NOT_KEPT", "25")),
    "promql_json": (promql(AT_MS // 1000), promql("noon")),
    "mlflow_json": (mlflow_json(AT_MS), mlflow_json("noon")),
    "mlflow_csv": (
        f"key,value,timestamp\n{POWER},5,{AT_MS}\n", f"key,value,timestamp\n{POWER},5,noon\n",
    ),
    "mlflow_sqlite": (lambda at: sqlite(at, AT_MS), lambda at: sqlite(at, "noon")),
    "mlflow_store": (lambda at: store(at, AT_MS), lambda at: store(at, "noon")),
    POOLS: ("pool_id,cloud\np,own\n", "pool_id,cloud\np,moon\n"),
    "teams": ("team_id,team_name\na,A\n", "team_id,team_name\n,A\n"),
    "allocations": (
        EVENTS + "p,h,gpu-0,allocated,2026-11-30T12:00:00Z\n",
        EVENTS + "p,h,gpu-0,allocated,noon\n",
    ),
    BILL: (bill("EUR"), bill("Euro")),
    "bill in Parquet": (lambda at: bill_parquet(at, "EUR"), lambda at: bill_parquet(at, "Euro")),
    TRACE: (trace(), trace(ts="noon")),
    DUMP: (pickle.dumps(dump(entry(1, 0)), protocol=2), pickle.dumps(dump(7), protocol=2)),
}  # fmt: skip
# headers without a row below; other forms have none
EMPTY = {
    "nvidia_smi_csv": HEADER, "nvidia_smi_dmon": DMON, "mlflow_csv": "key,value,timestamp\n",
    POOLS: "pool_id,cloud\n", "teams": "team_id,team_name\n", "allocations": EVENTS,
    BILL: ",".join(AWS) + "\n", TRACE: '{"schemaVersion": 1, "traceEvents": []}',
    DUMP: pickle.dumps(dump(), protocol=2),
}  # fmt: skip


def source_of(folder: Path, content) -> Path:
    """A source named as no form is: its rank at the end, which dumps need."""
    path = folder / "source_0"
    if callable(content):
        content(path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_every_form_that_is_known_is_here():
    assert set(FORMS) >= {*KINDS, BILL, DUMP, POOLS, TRACE, "mlflow_sqlite", "mlflow_store"}


@pytest.mark.parametrize("form", FORMS)
def test_a_source_of_which_no_row_can_be_used_is_refused_and_leaves_nothing(tmp_path, form):
    path = source_of(tmp_path, FORMS[form][1])
    [outcome] = import_telemetry(path, tmp_path / "runs", TOLD)
    assert (outcome.status, outcome.about) == (REFUSED, None)
    assert "rows can be used (" in outcome.reason or "entries are no events" in outcome.reason
    assert landing.landed(tmp_path / "runs") == []


@pytest.mark.parametrize("form", EMPTY)
def test_a_source_without_a_row_is_refused_and_leaves_nothing(tmp_path, form):
    [outcome] = import_telemetry(source_of(tmp_path, EMPTY[form]), tmp_path / "runs", TOLD)
    assert (outcome.status, outcome.about) == (REFUSED, None)
    assert "no row to import" in outcome.reason or "no event with a time" in outcome.reason
    assert landing.landed(tmp_path / "runs") == []


@pytest.mark.parametrize("form", FORMS)
def test_a_source_that_was_imported_before_is_told_as_such(tmp_path, form):
    path = source_of(tmp_path, FORMS[form][0])
    [first] = import_telemetry(path, tmp_path / "runs", TOLD)
    assert (first.status, first.reason) == (IMPORTED, None)
    [again] = import_telemetry(path, tmp_path / "runs", TOLD)
    assert (again.status, again.about) == (ALREADY, first.about)
    told = f"(the same bytes were imported before as {first.about.import_id}; nothing was changed)"
    assert told in told_to_a_person(again)
    assert told not in told_to_a_person(first)
    assert len(landing.landed(tmp_path / "runs")) == 1


def test_a_command_of_which_nothing_can_be_used_ends_in_two(tmp_path):
    path = source_of(tmp_path, FORMS[BILL][1])
    runs = ["--runs-dir", str(tmp_path / "runs")]
    result = CliRunner().invoke(app, ["import-telemetry", str(path), *runs])
    assert result.exit_code == 2
    assert (
        "none of its 1 rows can be used (unknown_currency: 1). See docs/costs.md" in result.output
    )


@pytest.mark.parametrize("form", FORMS)
def test_a_source_whose_name_is_not_utf8_is_refused_and_told_in_words(tmp_path, form):
    path = tmp_path / os.fsdecode(b"log\xff_0")
    source_of(tmp_path, FORMS[form][0]).rename(path)
    [outcome] = import_telemetry(path, tmp_path / "runs", TOLD)
    assert outcome.status == REFUSED
    assert "log\\xff_0" in outcome.reason and "Rename" in outcome.reason
    json.dumps(dataclasses.asdict(outcome), ensure_ascii=False).encode()
    assert landing.landed(tmp_path / "runs") == []


def test_a_name_within_a_folder_that_is_not_utf8_refuses_what_it_is_part_of(tmp_path):
    store = source_of(tmp_path, FORMS["mlflow_store"][0])
    metrics = store / "0" / "r1" / "metrics" / "system"
    bills = tmp_path / "bills"
    bills.mkdir()
    for folder, content in ((metrics, "1 2 3\n"), (bills, FORMS[BILL][0])):
        (folder / os.fsdecode(b"part\xff")).write_text(content)
        [outcome] = import_telemetry(store if folder == metrics else bills, tmp_path / "runs", TOLD)
        assert outcome.status == REFUSED
        assert "part\\xff" in outcome.reason
