"""Whatever a file holds, it is imported or refused: never a traceback, a hang or a flood of memory.

The importers are run without landing what they read, so that hundreds of files take seconds; what
they hand to the landing zone is checked by the other tests.
"""

import functools
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analytics import billing, focus_files, pools
from analytics.errors import SeqscaleError
from analytics.telemetry import gathering as gathering_module
from analytics.telemetry.bounded_text import is_packed, unpacked
from analytics.telemetry.gathering import Gathering
from analytics.telemetry.import_options import KINDS, ImportOptions
from analytics.telemetry.importing import _read
from analytics.telemetry.recognising import BILL, POOLS, form_of
from tests.analytics.importing_logs import refusal, rejects
from tests.analytics.test_import_csv import HEADER
from tests.analytics.test_import_forms import DMON, answer, gpu_xml, prom
from tests.analytics.test_import_outcomes import FORMS, POWER, source_of

SEEDS = {
    "nvidia_smi_csv": HEADER + "2026/01/01 00:00:00.000, 0, 5 %, 364 MiB, 60.5 W\n" * 3,
    "nvidia_smi_dmon": DMON + " 20260101 00:00:01  0  158  40  97  87  3783  12  -\n" * 3,
    "nvidia_smi_xml": gpu_xml(1) + gpu_xml(2),
    "nvidia_smi_capture": (
        f"{'#' * 80}\n# idle :: query\n# $ nvidia-smi --query-gpu=a --format=csv\n{'#' * 80}\n"
        + HEADER + "2026/01/01 00:00:00.000, 0, 5 %, 364 MiB, 60.5 W\n"
    ),
    "dcgm_text": prom("DCGM_FI_DEV_GPU_UTIL", "25") + prom("DCGM_FI_PROF_SM_ACTIVE", "0.5"),
    "promql_json": answer(
        [{"metric": {"__name__": "DCGM_FI_DEV_GPU_UTIL", "gpu": "0"}, "values": [[1, "5"]]}]
    ),
    "mlflow_json": '{"metrics": [{"key": "system/gpu_0_power_usage_watts", "value": 5, '
    '"timestamp": 1767225600000}]}',
    "mlflow_csv": "key,value,timestamp\nsystem/gpu_0_power_usage_watts,5,1767225600000\n",
}  # fmt: skip
ALL_TOLD = ImportOptions(
    time_zone="Europe/Madrid", day_first=True, started_unix_ns=10**18, taken_unix_ns=10**18,
    interval_s=1.0,
)  # fmt: skip
QUIET = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


# read by rooms of their own; binary ones are damaged in place, so that most of them stays readable
MONEY = (POOLS, "teams", "allocations", BILL, "bill in Parquet")
BINARY = ("mlflow_sqlite", "bill in Parquet")
JUNK = [
    b"", b'"', b",", b"\n", b"\0", b"9" * 30, b"1e999", b"{", b"]", b"\\ud800", b"\xff\xfe",
    b"[N/A]", b"2026/10/25 02:30:00", b"9999/12/31 23:59:59", b"<!ENTITY",
]  # fmt: skip


@functools.cache
def sound(kind: str) -> bytes:
    """A source of this kind that can be used; of a folder its one file."""
    if kind in SEEDS:
        return SEEDS[kind].encode()
    with tempfile.TemporaryDirectory() as folder:
        return file_of(source_of(Path(folder), FORMS[kind][0]), kind).read_bytes()


def file_of(source: Path, kind: str) -> Path:
    """The file itself, or the one metric of an MLflow store."""
    return source / "0" / "r1" / "metrics" / POWER if kind == "mlflow_store" else source


@pytest.fixture
def counted(monkeypatch) -> list[tuple[str, int]]:
    """Instead of the landing tables: which rows, and how many, they would have got."""
    got: list[tuple[str, int]] = []

    def take(_con, table, values):
        sizes = {len(column) for column in values.values()}
        assert len(sizes) == 1
        got.append((table, sizes.pop()))

    monkeypatch.setattr(gathering_module, "insert", take)
    monkeypatch.setattr(billing, "insert", take)
    monkeypatch.setattr(billing, "insert_records", lambda _con, rows: got.append(("", len(rows))))
    return got


def try_all(path: Path, counted, kinds=KINDS) -> None:
    """Read a file as what it seems to be and as each kind that it is not."""
    for kind in (None, *kinds):
        counted.clear()
        gathering = Gathering(None, import_id="x", options=ALL_TOLD, now_unix_ns=10**18)
        try:
            is_file = path.is_file()  # a store of MLflow is a folder
            plain = unpacked(path, path.parent) if is_file and is_packed(path) else path
            form = kind or (form_of(plain, ALL_TOLD) if is_file else "mlflow_store")
            gathering.kind = form
            _read(plain, form, gathering, "log")
            gathering.finish()
        except SeqscaleError:
            continue
        assert sum(n for table, n in counted if table == "fact_device_sample") == (
            gathering.num_loaded
        )


def try_money(path: Path, counted) -> None:
    """Read a file as pools and as a bill where it seems to be one; each row is counted once."""
    counted.clear()
    try:
        for file in focus_files.export_files(path):
            counts = billing._load(None, "x", {"log": file})
            assert counts.num_read == counts.num_loaded + counts.num_rejected
            assert counts.num_read == sum(num for _, num in counted)
        found: dict[type, pools._Rows] = {}
        for file in pools._files(path):
            pools._read(file, "x", found)
    except SeqscaleError:
        return
    for rows in found.values():
        assert len(rows.records) + len(rows.rejects) <= rows.num_read


@QUIET
@given(content=st.binary(max_size=400))
def test_any_bytes_are_answered(tmp_path, counted, content):
    path = tmp_path / "log"
    path.write_bytes(content)
    try_all(path, counted, ("nvidia_smi_csv", "dcgm_text", "nvidia_smi_xml", "promql_json"))


@pytest.mark.parametrize("kind", [*SEEDS, "mlflow_sqlite", "mlflow_store", *MONEY])
@QUIET
@given(data=st.data())
def test_a_log_with_a_part_replaced_or_cut_off_is_answered(tmp_path, counted, kind, data):
    text = sound(kind)
    begin = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(begin, min(len(text), begin + 40)))
    junk = data.draw(st.one_of(st.binary(max_size=12), st.sampled_from(JUNK)))
    if kind in BINARY:
        end = begin + len(junk)
    rest = text[end:] if data.draw(st.booleans()) or kind in BINARY else b""
    path = tmp_path / "log"
    file_of(path, kind).parent.mkdir(parents=True, exist_ok=True)
    file_of(path, kind).write_bytes(text[:begin] + junk + rest)
    if kind in MONEY:
        try_money(path, counted)
    else:
        try_all(path, counted, (kind,))


@pytest.mark.parametrize(
    "content",
    [
        b"x" * (8 << 20),  # one endless line
        HEADER.encode() + b"9" * (8 << 20),
        b"timestamp,gpu_util" + b",a" * (2 << 20),  # millions of columns
        HEADER.encode() + b'"' + b"a\n" * 50_000,  # a quote that is never closed
        b"[" * (2 << 20),
        b'{"status": "success", "data": ' + b"[" * (2 << 20),
        b"pool_id,cloud\np," + b"9" * (8 << 20),
        b"pool_id,cloud" + b",a" * (2 << 20),
        FORMS[BILL][0].encode() + b"9" * (8 << 20),
        b"SQLite format 3\0" + b"\xff" * (8 << 20),
        b"PAR1" + b"\xff" * (8 << 20) + b"\x7f\xff\xff\x00PAR1",
    ],
    ids=["line", "cell", "columns", "quote", "brackets", "nested", "pool", "pools", "bill",
         "database", "parquet"],
)  # fmt: skip
def test_memory_stays_small_whatever_the_shape(tmp_path, counted, content):
    path = tmp_path / "log"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        try_all(path, counted, ())
        try_money(path, counted)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 60 << 20


def test_a_flood_of_bad_rows_is_rejected_row_by_row(tmp_path):
    why = refusal(tmp_path, HEADER + "nonsense\n" * 3000)
    assert "none of its 3,000 rows can be used (wrong_number_of_cells: 3,000)" in why
    assert rejects(tmp_path / "runs") == []
