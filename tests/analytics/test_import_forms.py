"""dmon, XML, DCGM text, PromQL answers and MLflow's system metrics."""

import gzip
import io
import json
import re
import sqlite3
import tarfile

import pytest

from analytics.telemetry.import_options import ImportOptions
from analytics.telemetry.importing import import_telemetry
from tests.analytics.importing_logs import UTC, import_text, refusal, rejects, samples

S = 10**9
TAKEN = ImportOptions(taken_unix_ns=1_767_225_600 * S)
DMON = (
    "#Date       Time        gpu    pwr  gtemp     sm    mem     fb  rxpci  txpci\n"
    "#YYYYMMDD   HH:MM:SS    Idx      W      C      %      %     MB   MB/s   MB/s\n"
)


def test_dmon_with_date_and_time_needs_only_the_zone(tmp_path):
    text = DMON + " 20260101   00:00:01      0    158     40     97     87   3783     12      -\n"
    outcome = import_text(tmp_path, text)
    assert outcome.about.source_kind == "nvidia_smi_dmon"
    assert samples(
        tmp_path / "runs", "sampled_unix_ns", "power_w", "utilization_share", "memory_busy_share",
        "memory_used_bytes", "pcie_received_bytes_per_s", "pcie_sent_bytes_per_s",
    ) == [(1_767_225_601 * S, 158.0, 0.97, 0.87, 3783 * 2**20, 12e6, None)]  # fmt: skip


def test_xml_that_defines_entities_is_refused_before_any_is_expanded(tmp_path):
    laughs = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))
    text = (
        f'<?xml version="1.0"?><!DOCTYPE nvidia_smi_log [<!ENTITY a0 "ha">{laughs}]>'
        "<nvidia_smi_log><gpu>&a9;</gpu></nvidia_smi_log>"
    )
    assert "entity" in refusal(tmp_path, text)


def gpu_xml(second: int, util: str = "5 %") -> str:
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n'
        f"<nvidia_smi_log>\n<timestamp>Thu Jan  1 00:00:0{second} 2026</timestamp>\n"
        '<gpu id="00000000:01:00.0">\n<uuid>GPU-1a</uuid>\n<utilization>\n'
        f"<gpu_util>{util}</gpu_util>\n</utilization>\n<processes>\n<process_info>\n"
        "<pid>1</pid>\n</process_info>\n</processes>\n</gpu>\n</nvidia_smi_log>\n"
    )


def test_xml_documents_one_after_the_other_are_all_read(tmp_path):
    about = import_text(tmp_path, gpu_xml(1) + gpu_xml(2, "N/A")).about
    assert about.num_loaded == 2
    found = samples(tmp_path / "runs", "sampled_unix_ns", "utilization_share", "num_processes")
    assert found == [(1_767_225_601 * S, 0.05, 1), (1_767_225_602 * S, None, 1)]


@pytest.mark.parametrize("end", ["\n", ""], ids=["lines", "one line"])
def test_every_row_of_xml_that_cannot_be_used_is_kept_also_on_one_line(tmp_path, end):
    # two GPUs without any name, one with two slices without an instance: four rows of one reason
    untold = "<gpu>{0}<uuid>N/A</uuid>{0}</gpu>{0}"
    slices = "<mig_device>{0}</mig_device>{0}" * 2
    text = (
        '<?xml version="1.0"?>{0}<nvidia_smi_log>{0}<timestamp>Thu Jan  1 00:00:01 2026</timestamp>'
        f'{{0}}{untold}{untold}<gpu id="00000000:01:00.0">{{0}}<uuid>GPU-1a</uuid>{{0}}'
        f"<mig_devices>{{0}}{slices}</mig_devices>{{0}}</gpu>{{0}}</nvidia_smi_log>"
    ).format(end) + "\n"
    about = import_text(tmp_path, text).about
    assert (about.num_read, about.num_loaded, about.num_rejected) == (5, 1, 4)
    # numbers of the rows: both GPUs, then the third's slices behind itself
    assert rejects(tmp_path / "runs") == [(n, "device_untold") for n in (1, 2, 4, 5)]


@pytest.mark.parametrize("name", ["dmon", "dcgm", "mlflow_csv", "capture"])
def test_a_line_with_a_zero_byte_is_rejected_in_every_form(tmp_path, name):
    ruler = "#" * 80
    csv = "timestamp, index, utilization.gpu [%]\n"
    head, row = {
        "dmon": (DMON, " 20260101 00:00:0{} 0 158 40 {} 87 3783 12 -\n"),
        "dcgm": ("", 'DCGM_FI_DEV_GPU_UTIL{{gpu="0",UUID="GPU-{}"}} {}\n'),
        "mlflow_csv": (
            "key,value,timestamp\n", "system/gpu_{}_power_usage_watts,{},1767225600000\n"
        ),
        "capture": (
            f"{ruler}\n# a :: b\n# $ nvidia-smi --query-gpu=a --format=csv\n{ruler}\n{csv}",
            "2026/01/01 00:00:0{}, 0, {} %\n",
        ),
    }[name]  # fmt: skip
    text = head + row.format(1, 25) + row.format(2, "2\x005") + row.format(3, 25)
    options = ImportOptions(time_zone="UTC", host="h", taken_unix_ns=TAKEN.taken_unix_ns)
    about = import_text(tmp_path, text, options).about
    assert (about.num_loaded, about.num_rejected) == (2, 1)
    assert rejects(tmp_path / "runs") == [(head.count("\n") + 2, "zero_byte")]


def test_a_zero_byte_in_a_store_of_mlflow_rejects_its_line(tmp_path):
    file = tmp_path / "mlruns" / "0" / "r1" / "metrics" / "system" / "gpu_0_power_usage_watts"
    file.parent.mkdir(parents=True)
    file.write_text("1767225600000 25 0\n1767225601000 2\x005 0\n")
    (outcome,) = import_telemetry(tmp_path / "mlruns", tmp_path / "runs", ImportOptions())
    assert (outcome.about.num_loaded, outcome.rejected) == (1, {"zero_byte": 1})


def test_xml_that_is_cut_off_or_of_another_kind_is_refused(tmp_path):
    assert "not whole XML" in refusal(tmp_path, gpu_xml(1)[:200])
    assert "not <nvidia_smi_log>" in refusal(tmp_path, '<?xml version="1.0"?>\n<html></html>')


def prom(name: str, value: str, more: str = "", time: str = "") -> str:
    return f'{name}{{gpu="0",UUID="GPU-1a",Hostname="n1"{more}}} {value}{time}\n'


def test_dcgm_ratios_are_not_percent_and_energy_is_joules(tmp_path):
    text = (
        prom("DCGM_FI_PROF_SM_ACTIVE", "0.25") + prom("DCGM_FI_DEV_GPU_UTIL", "25")
        + prom("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "1500000")
        + prom("DCGM_FI_DEV_FB_USED", "2") + prom("DCGM_FI_PROF_PCIE_TX_BYTES", "1e6")
        + prom("DCGM_FI_PROF_DRAM_ACTIVE", "12.5") + prom("DCGM_FI_DEV_POWER_USAGE", "NaN")
    )  # fmt: skip
    outcome = import_text(tmp_path, text, TAKEN)
    assert outcome.about.num_records == 1
    assert outcome.left_out == {"cell_out_of_range: dram_active_share": 1}
    assert samples(
        tmp_path / "runs", "host", "sm_active_share", "utilization_share", "energy_j",
        "memory_used_bytes", "pcie_sent_bytes_per_s", "dram_active_share", "power_w",
    ) == [("n1", 0.25, 0.25, 1500.0, 2 * 2**20, 1e6, None, None)]  # fmt: skip


def test_a_slice_has_its_engine_activity_and_a_key_of_its_own(tmp_path):
    # distributed#8739, nvidia_gpu_exporter#203, serve#3090: no utilisation under MIG, shown as 0
    slices = "".join(
        prom("DCGM_FI_PROF_GR_ENGINE_ACTIVE", f"0.{n}", f',GPU_I_ID="{n}"') for n in (1, 2)
    )
    import_text(tmp_path, slices, TAKEN)
    assert samples(
        tmp_path / "runs", "device_id", "engine_active_share", "utilization_share",
        "gpu_instance_id", "compute_instance_id",
    ) == [("GPU-1a/1", 0.1, None, 1, None), ("GPU-1a/2", 0.2, None, 2, None)]  # fmt: skip


def test_two_exporters_of_one_gpu_are_one_row_with_its_contradiction(tmp_path):
    # gpustack#5902, gpu-monitoring-tools#174: the same series from two exporters
    text = "".join(prom("DCGM_FI_DEV_GPU_UTIL", v, f',job="{v}"', " 1767225600000") for v in "57")
    about = import_text(tmp_path, text, ImportOptions()).about
    assert (about.num_loaded, about.num_records, about.num_conflicts) == (2, 1, 1)
    assert samples(tmp_path / "runs", "utilization_share", "sampled_unix_ns") == [
        (0.07, 1_767_225_600 * S)
    ]


@pytest.mark.parametrize("blank", ["140737488355328.0", "140737488355328.000000",
                                   "9223372036854775792", "9.223372036854775794e+18"])  # fmt: skip
def test_a_blank_in_the_text_of_dcgm_is_nothing_for_every_field(tmp_path, blank):
    # slurm-job-exporter#30, gpu-monitoring-tools#92
    fields = ["DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_FB_USED",
              "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_PROF_SM_ACTIVE"]  # fmt: skip
    text = "".join(prom(field, blank) for field in fields) + prom("DCGM_FI_DEV_GPU_TEMP", "40")
    outcome = import_text(tmp_path, text, TAKEN)
    assert not outcome.left_out
    assert samples(
        tmp_path / "runs", "utilization_share", "power_w", "memory_used_bytes", "energy_j",
        "sm_active_share", "temperature_c",
    ) == [(None, None, None, None, None, 40.0)]  # fmt: skip


def answer(result: list, kind: str = "matrix") -> str:
    return json.dumps({"status": "success", "data": {"resultType": kind, "result": result}})


@pytest.mark.parametrize(
    "content",
    [
        gpu_xml(1, "5\0 %"),
        answer([{"metric": {"__name__": "a"}, "value": [1, "2#5"]}], "vector").replace("#", "\0"),
    ],
    ids=["xml", "json"],
)
def test_a_document_with_a_zero_byte_is_refused(tmp_path, content):
    assert re.search("zero byte|not whole JSON", refusal(tmp_path, content))


def test_a_matrix_of_prometheus_has_a_row_for_each_value(tmp_path):
    metric = {"__name__": "DCGM_FI_DEV_POWER_USAGE", "UUID": "GPU-1a", "Hostname": "n1"}
    values = [[1767225600.25, "60.5"], [1767225601, "NaN"], [1767225602, "9223372036854775794"]]
    result = [{"metric": metric, "values": values}, {"metric": {}, "values": [[1, "5"]]}]
    about = import_text(tmp_path, answer(result), ImportOptions()).about
    assert (about.num_read, about.num_loaded, about.num_rejected) == (4, 3, 1)
    assert rejects(tmp_path / "runs") == [(4, "metric_untold")]
    assert samples(tmp_path / "runs", "sampled_unix_ns", "power_w") == [
        (1_767_225_600_250_000_000, 60.5), (1_767_225_601 * S, None), (1_767_225_602 * S, None),
    ]  # fmt: skip


def test_a_query_that_failed_is_refused_with_what_prometheus_said(tmp_path):
    assert "timed out" in refusal(tmp_path, '{"status": "error", "error": "query timed out"}')
    assert "'scalar'" in refusal(tmp_path, answer([], "scalar"))
    assert "not whole JSON" in refusal(tmp_path, answer([])[:-3])


POINTS = [
    ("system/gpu_0_utilization_percentage", 50.0, 0),
    ("system/gpu_0_memory_usage_megabytes", 2.5, 0),
    ("system/gpu_0_power_usage_watts", 60.0, 0),
    ("system/gpu_0_memory_usage_percentage", 10.0, 0),
    ("system/node_1/gpu_1_utilization_percentage", 20.0, 0),
    ("system/cpu_utilization_percentage", 30.0, 1000),
    ("loss", 1.0, 0),
]
EXPECTED = [
    ("cpu", 1_767_225_601 * S, 0.3, None, None),
    ("gpu-0", 1_767_225_600 * S, 0.5, 2_500_000, 60.0),
    ("gpu-1", 1_767_225_600 * S, 0.2, None, None),
]
NAMES = ("device_id", "sampled_unix_ns", "utilization_share", "memory_used_bytes", "power_w")
AT_MS = 1_767_225_600_000


def mlflow_sqlite(path):
    with sqlite3.connect(path) as con:
        con.execute("CREATE TABLE metrics (key, value, timestamp, run_uuid, step, is_nan BOOLEAN)")
        rows = [(key, value, AT_MS + ms, "r1", 0, False) for key, value, ms in POINTS]
        con.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", rows)
    con.close()


def mlflow_store(path):
    for key, value, ms in POINTS:
        file = path / "0" / "r1" / "metrics" / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{AT_MS + ms} {value} 0\n")


def mlflow_json(path):
    keys = ("key", "value", "timestamp", "step", "run_id")
    found = [dict(zip(keys, (k, v, AT_MS + ms, 0, "r1"), strict=True)) for k, v, ms in POINTS]
    path.write_text(json.dumps({"metrics": found}))


def mlflow_csv(path):
    rows = [f"r1,{key},{value},{AT_MS + ms}" for key, value, ms in POINTS]
    path.write_text("run_id,key,value,timestamp\n" + "\n".join(rows) + "\n")


@pytest.mark.parametrize("write", [mlflow_sqlite, mlflow_store, mlflow_json, mlflow_csv])
def test_system_metrics_are_the_same_from_every_form_of_mlflow(tmp_path, write):
    path = tmp_path / "source"
    write(path)
    (outcome,) = import_telemetry(path, tmp_path / "runs", ImportOptions(host="h"))
    about = outcome.about
    assert about is not None, outcome.reason
    # a store's other metrics are not read at all; in a list they are read and rejected
    num_other = 1 if write in (mlflow_json, mlflow_csv) else 0
    assert (about.num_loaded, about.num_rejected) == (5, 1 + num_other)
    assert about.num_read == about.num_loaded + about.num_rejected
    assert samples(tmp_path / "runs", *NAMES) == EXPECTED


def test_runs_of_mlflow_that_name_no_host_stay_apart(tmp_path):
    mlflow_csv(tmp_path / "source")
    import_telemetry(tmp_path / "source", tmp_path / "runs")
    assert {row[0] for row in samples(tmp_path / "runs", "host")} == {"r1", "r1/node_1"}


def test_a_database_of_another_kind_or_damaged_is_refused(tmp_path):
    assert "MLflow store" in refusal(tmp_path, b"SQLite format 3\0" + b"\xff" * 5000)


def test_packed_logs_are_read_and_bombs_are_not(tmp_path):
    text = b"timestamp,gpu_util\n2026-01-01T00:00:00Z,5\n"
    assert import_text(tmp_path, gzip.compress(text)).about.num_loaded == 1
    assert "damaged" in refusal(tmp_path, gzip.compress(text * 500)[:60])
    bomb = io.BytesIO()
    with gzip.GzipFile(fileobj=bomb, mode="wb", compresslevel=9) as packed:
        for _ in range(100):
            packed.write(b"timestamp,gpu_util\n" + bytes(1 << 20))
    assert "200 times" in refusal(tmp_path, bomb.getvalue())


def test_an_archive_of_several_files_is_not_guessed_at(tmp_path):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in ("a.csv", "b.csv"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO(b""))
    assert "2 files" in refusal(tmp_path, packed.getvalue())


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\0\0\0"])
def test_an_empty_file_says_so(tmp_path, content):
    assert "empty" in refusal(tmp_path, content, UTC)


def one_line(document: str) -> str:
    return document.replace("\n", "")


def test_xml_documents_may_begin_behind_blanks_and_in_the_middle_of_a_line(tmp_path):
    text = "\n \n  " + one_line(gpu_xml(1)) + one_line(gpu_xml(2)) + "  " + gpu_xml(3)
    assert import_text(tmp_path, text).about.num_loaded == 3
    found = samples(tmp_path / "runs", "sampled_unix_ns")
    assert found == [(1_767_225_600 * S + n * S,) for n in (1, 2, 3)]


def test_xml_on_too_long_a_line_says_how_to_break_it(tmp_path):
    long = one_line(gpu_xml(1)).replace("<uuid>", "<filler>" + "x" * (1 << 17) + "</filler><uuid>")
    told = refusal(tmp_path, long)
    assert "more than 131,072 characters" in told and "xmllint --format" in told


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_json_is_read_in_every_encoding_that_text_is(tmp_path, encoding):
    metric = {"__name__": "DCGM_FI_DEV_POWER_USAGE", "UUID": "GPU-1a", "Hostname": "n1"}
    text = answer([{"metric": metric, "value": [1767225600, "60.5"]}], "vector")
    assert import_text(tmp_path, text.encode(encoding), ImportOptions()).about.num_loaded == 1


def test_json_that_is_no_answer_says_what_is_wrong_with_it(tmp_path):
    nothing = answer([], "vector").replace("[]", "null")
    assert "'result' is 'None'; expected a list of series" in refusal(tmp_path, nothing)
    deep = '{"status": "success", "data": ' + "[" * 100_000 + "]" * 100_000 + "}"
    told = refusal(tmp_path, deep)
    assert "nested deeper" in told and "cut off" not in told


def test_a_value_beyond_all_bounds_is_rejected_alone(tmp_path):
    points = [
        {"key": "system/gpu_0_power_usage_watts", "value": value, "step": 0, "run_id": "r",
         "timestamp": 1_767_225_600_000 + n}
        for n, value in enumerate([60.0, "big", 61.0])
    ]  # fmt: skip
    text = json.dumps({"metrics": points}).replace('"big"', "1e400")
    about = import_text(tmp_path, text, ImportOptions(host="h")).about
    assert about.num_read == 3
    powers = [power for (power,) in samples(tmp_path / "runs", "power_w") if power is not None]
    assert powers == [60.0, 61.0]


def test_zero_bytes_that_a_crash_left_are_told_for_what_they_are(tmp_path):
    csv = "timestamp,index,gpu_util\n2026-01-01T00:00:00Z,0,5\n"
    told = refusal(tmp_path, b"\0" * 70_000 + csv.encode())
    assert "its first 65,536 bytes are blanks and zero bytes" in told
    for tail, reasons in ((b"\0" * 300_000, []), (b"2026-01-01T00:0" + b"\0" * 300_000, [3])):
        folder = tmp_path / str(len(tail))
        folder.mkdir()
        about = import_text(folder, csv.encode() + tail).about
        assert (about.num_loaded, about.num_rejected) == (1, len(reasons))
        assert rejects(folder / "runs") == [(line, "zero_byte") for line in reasons]
