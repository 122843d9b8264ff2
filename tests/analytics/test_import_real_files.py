"""Every file of real telemetry is imported with the counts of its manifest, or refused, and why.

The same table stands in docs/telemetry.md.
"""

import collections
import itertools
import os
import re
import statistics
import tarfile
from pathlib import Path

import pytest

from analytics.telemetry.import_options import ImportOptions
from analytics.telemetry.importing import IMPORTED, REFUSED, import_telemetry
from analytics.telemetry.instants import read_instant
from tests.analytics.importing_logs import rejects, samples

NOON = read_instant("2026-11-30T12:00:00Z")
PLAIN = ImportOptions(host="h")
ZONED = ImportOptions(host="h", time_zone="UTC")
TAKEN = ImportOptions(host="h", taken_unix_ns=NOON)
STARTED = ImportOptions(host="h", started_unix_ns=NOON, interval_s=1.0)
DAY_FIRST = ImportOptions(host="h", time_zone="UTC", day_first=True)
MAPPED = ImportOptions(
    renamed=(
        ("value", "utilization.gpu"),
        ("timestamp_anon", "timestamp"),
        ("container_ip", "hostname"),
    )
)

# file, options, kind, (read, loaded, rejected, records)
IMPORTS = [
    ("nvsmi/miris_v100s_1gpu.csv", ZONED, "nvidia_smi_csv", (107, 107, 0, 107)),
    ("nvsmi/openad_a6000_2gpu.csv", ZONED, "nvidia_smi_csv", (946, 946, 0, 946)),
    ("nvsmi/flame_power_50ms.csv", ZONED, "nvidia_smi_csv", (73, 73, 0, 73)),
    ("nvsmi/plato_noheader.csv", ZONED, "nvidia_smi_csv", (1923, 1923, 0, 1923)),
    ("nvsmi/dcconv_embedded_newline.csv", STARTED, "nvidia_smi_csv", (135, 135, 0, 135)),
    ("nvsmi/adial_datetime_split.csv", DAY_FIRST, "nvidia_smi_csv", (45, 45, 0, 1)),
    ("nvsmi/ratcht_epoch_float_1row.csv", PLAIN, "nvidia_smi_csv", (1, 1, 0, 1)),
    ("nvsmi/nanogpt_8gpu_iso_25.csv", PLAIN, "nvidia_smi_csv", (5112, 5112, 0, 5112)),
    ("nvsmi/nanogpt_8gpu_iso_f4f827dd.csv", PLAIN, "nvidia_smi_csv", (6240, 6240, 0, 6240)),
    (
        "nvidia_gpu_exporter/linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01.txt",
        PLAIN, "nvidia_smi_capture", (26, 2, 24, 2),
    ),
    (
        "nvidia_gpu_exporter/linux-x86_64__nvidia-l40s__595.80.txt",
        PLAIN, "nvidia_smi_capture", (25, 2, 23, 2),
    ),
    ("nvidia_gpu_exporter/query.txt", TAKEN, "nvidia_smi_csv", (2, 2, 0, 2)),
    ("dcgm/aicr_h100x8_metrics.prom", TAKEN, "dcgm_text", (30, 30, 0, 8)),
    ("dcgm/aicr_promql_response_0.json", PLAIN, "promql_json", (16, 16, 0, 16)),
    ("dcgm/aicr_promql_response_1.json", PLAIN, "promql_json", (16, 16, 0, 16)),
    ("dcgm/dcgm_exporter_readme_0.prom", TAKEN, "dcgm_text", (7, 2, 5, 1)),
    ("dmon/dmon_rtxpro6000_busy.txt", STARTED, "nvidia_smi_dmon", (10, 10, 0, 10)),
    ("nvsmi_xml/a100-sxm4-v12.xml", ZONED, "nvidia_smi_xml", (5, 5, 0, 5)),
    (
        "alibaba/pod_gpu_duty_cycle_anon.tar.gz",
        MAPPED, "nvidia_smi_csv", (157_417, 157_417, 0, 157_417),
    ),
]  # fmt: skip
NO_FIGURE = "no column is a figure of a device"
# file, why it is refused when nothing is told
REFUSALS = [
    ("nvsmi/miris_v100s_1gpu.csv", "--time-zone"),
    ("nvsmi/openad_a6000_2gpu.csv", "--time-zone"),
    ("nvsmi/flame_power_50ms.csv", "--time-zone"),
    ("nvsmi/plato_noheader.csv", "--time-zone"),
    ("nvsmi/dcconv_embedded_newline.csv", "--started"),
    ("nvsmi/adial_datetime_split.csv", "--day-first or --month-first"),
    ("nvidia_gpu_exporter/query.txt", "--taken-at"),
    ("nvidia_gpu_exporter/fields.txt", "none of the forms that are known"),
    ("dcgm/aicr_h100x8_metrics.prom", "--taken-at"),
    ("dcgm/dcgm_exporter_readme_0.prom", "--taken-at"),
    ("dmon/dmon_rtxpro6000_busy.txt", "--interval"),
    ("nvsmi_xml/a100-sxm4-v12.xml", "--time-zone"),
    ("alibaba/pod_gpu_duty_cycle_anon.tar.gz", "--map"),
    ("alibaba/openb_pod_list_default.csv", NO_FIGURE),
    ("alibaba/openb_node_list_gpu_node.csv", NO_FIGURE),
    ("alibaba/job_1_norm.csv", NO_FIGURE),
    ("alibaba/lora_request_trace.csv", NO_FIGURE),
    ("acme/cluster_summary.csv", NO_FIGURE),
    ("lucid/single_data.csv", "nothing in it tells when"),
]


@pytest.fixture(scope="module")
def telemetry() -> Path:
    folder = os.environ.get("SEQSCALE_TEST_DATA")
    if not folder or not (Path(folder) / "telemetry").is_dir():
        pytest.skip("SEQSCALE_TEST_DATA names no folder with telemetry/")
    return Path(folder) / "telemetry"


@pytest.mark.parametrize(("name", "options", "kind", "counts"), IMPORTS)
def test_a_real_file_is_imported_with_the_counts_of_its_manifest(
    telemetry, tmp_path, name, options, kind, counts
):
    (outcome,) = import_telemetry(telemetry / name, tmp_path, options)
    assert outcome.status == IMPORTED, outcome.reason
    about = outcome.about
    assert about.source_kind == kind
    assert (about.num_read, about.num_loaded, about.num_rejected, about.num_records) == counts
    assert sum(outcome.rejected.values()) == about.num_rejected == len(rejects(tmp_path))
    assert not outcome.left_out


@pytest.mark.parametrize(("name", "why"), REFUSALS)
def test_a_real_file_that_leaves_something_open_is_refused_and_says_what(
    telemetry, tmp_path, name, why
):
    (outcome,) = import_telemetry(telemetry / name, tmp_path)
    assert outcome.status == REFUSED
    assert why in outcome.reason


def test_no_real_file_is_without_its_outcome_here_and_in_the_docs(telemetry):
    names = {str(p.relative_to(telemetry)) for p in telemetry.rglob("*") if p.is_file()}
    assert {name for name, *_ in [*IMPORTS, *REFUSALS]} == names
    docs = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text()
    rows = re.findall(r"^\| `([\w./-]+)` \|.*\| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", docs, re.M)
    told = {name: tuple(map(int, counts)) for name, *counts in rows}
    assert told == {name: counts for name, _, _, counts in IMPORTS}
    refused = set(re.findall(r"^\| `([\w./-]+)` \| refused", docs, re.M))
    assert refused == {name for name, _ in REFUSALS} - {name for name, *_ in IMPORTS}


def test_a_busy_and_an_idle_gpu_of_one_log_stay_apart(telemetry, tmp_path):
    # GPU 1 of this log never gets above 1 %
    import_telemetry(telemetry / "nvsmi/openad_a6000_2gpu.csv", tmp_path, ZONED)
    found = samples(tmp_path, "device_id", "utilization_share", "memory_used_bytes")
    assert max(share for device, share, _ in found if device == "gpu-1") == 0.01
    assert max(share for device, share, _ in found if device == "gpu-0") == 1.0
    assert {used for device, _, used in found if device == "gpu-1"} == {15 * 2**20}


def test_free_memory_without_a_header_is_not_taken_for_the_total(telemetry, tmp_path):
    # used + free stay at 20,148 MiB, so the fifth column is free memory, which has no place here
    import_telemetry(telemetry / "nvsmi/plato_noheader.csv", tmp_path, ZONED)
    found = samples(tmp_path, "memory_used_bytes", "memory_total_bytes", "power_w", "temperature_c")
    assert found[0] == (2 * 2**20, None, 11.64, 27.0)


def test_scripts_that_call_used_over_total_memory_util_are_not_believed(telemetry, tmp_path):
    # 10.53 % is 4851/46068, not the activity of the memory
    import_telemetry(telemetry / "nvsmi/ratcht_epoch_float_1row.csv", tmp_path, PLAIN)
    found = samples(tmp_path, "memory_busy_share", "memory_used_bytes", "sampled_unix_ns")
    assert found == [(None, 4851 * 2**20, 1_740_565_077_475_975_300)]


def test_a_gpu_in_slices_has_no_utilisation_and_each_slice_its_own_row(telemetry, tmp_path):
    import_telemetry(telemetry / "nvsmi_xml/a100-sxm4-v12.xml", tmp_path, ZONED)
    uuid = "GPU-513536b6-7d19-9063-b049-1e69664bb298"
    found = samples(
        tmp_path, "device_id", "utilization_share", "gpu_instance_id", "compute_instance_id",
        "memory_used_bytes", "power_w",
    )  # fmt: skip
    assert found[0] == (uuid, None, None, None, 50 * 2**20, 67.03)
    assert found[1:] == [(f"{uuid}/{gi}/0", None, gi, 0, 12 * 2**20, None) for gi in (3, 4, 5, 6)]


def test_blanks_of_dcgm_and_lines_that_are_no_samples_leave_no_figure(telemetry, tmp_path):
    import_telemetry(telemetry / "dcgm/dcgm_exporter_readme_0.prom", tmp_path, TAKEN)
    assert samples(tmp_path, "sm_clock_mhz", "memory_clock_mhz", "temperature_c") == [
        (139.0, 405.0, None)
    ]
    assert [reason for _, reason in rejects(tmp_path)] == [
        "not_a_sample", "not_a_sample", "not_a_sample", "metric_not_kept", "not_a_sample",
    ]  # fmt: skip


def test_a_masked_uuid_is_no_identity(telemetry, tmp_path):
    name = "nvidia_gpu_exporter/linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01.txt"
    import_telemetry(telemetry / name, tmp_path, PLAIN)
    found = samples(tmp_path, "device_id", "power_w", "power_limit_w", "device_name", "collector")
    assert found[0] == (
        "gpu-0", 69.85, 700.0, "NVIDIA H100 80GB HBM3", "nvidia-smi, driver 590.48.01",
    )  # fmt: skip


# What the manifest of these files knows of their values: of all rows together the length [s], mean
# of the utilisation and shares of rows at 100 % and at 0, least and most power [W].
VALUES = [
    ("nvsmi/nanogpt_8gpu_iso_25.csv", PLAIN, {
        "num_devices": 8, "length_s": 158, "full": 0.975, "least_w": 238, "most_w": 424}),
    ("nvsmi/nanogpt_8gpu_iso_f4f827dd.csv", PLAIN, {
        "num_devices": 8, "length_s": 266, "mean": 0.836, "idle": 0.154, "least_w": 72,
        "most_w": 698, "gap_s": 2.3}),
    ("nvsmi/openad_a6000_2gpu.csv", ZONED, {"num_devices": 2, "length_s": 479}),  # 8 minutes
    ("nvsmi/flame_power_50ms.csv", ZONED, {"num_devices": 1, "every_s": 0.05, "mean": None}),
    ("nvsmi/plato_noheader.csv", ZONED, {"num_devices": 1, "every_s": 5.0, "length_s": 9637}),
    ("nvsmi/miris_v100s_1gpu.csv", ZONED, {"num_devices": 1, "every_s": 1.0}),  # -l 1
    ("nvsmi/adial_datetime_split.csv", DAY_FIRST, {"least_w": 1, "most_w": 1, "length_s": 0}),
    ("dcgm/aicr_h100x8_metrics.prom", TAKEN, {"num_devices": 8}),
    ("dmon/dmon_rtxpro6000_busy.txt", STARTED, {"num_devices": 1, "length_s": 9}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "expected"), VALUES)
def test_the_values_of_a_real_file_are_those_of_its_manifest(
    telemetry, tmp_path, name, options, expected
):
    import_telemetry(telemetry / name, tmp_path, options)
    found = samples(tmp_path, "device_id", "sampled_unix_ns", "utilization_share", "power_w")
    times = [time for _, time, _, _ in found]
    shares = [share for _, _, share, _ in found if share is not None]
    powers = [power for *_, power in found if power is not None]
    steps = [
        (later - sooner) / 1e9
        for (before, sooner, *_), (device, later, *_) in itertools.pairwise(found)
        if before == device
    ]
    told = {
        "num_devices": len({device for device, *_ in found}),
        "length_s": (max(times) - min(times)) / 1e9,
        "gap_s": max(steps, default=None),
        "every_s": statistics.median(steps) if steps else None,
        "mean": statistics.mean(shares) if shares else None,
        "full": shares.count(1.0) / len(found),
        "idle": shares.count(0.0) / len(found),
        "least_w": min(powers, default=None),
        "most_w": max(powers, default=None),
    }
    # half a unit of the manifest's last digit; it cuts 15.45 % off at 15.4
    within = {"mean": 6e-4, "full": 6e-4, "idle": 6e-4, "every_s": 0.01, "gap_s": 0.05}
    for key, value in expected.items():
        assert told[key] == pytest.approx(value, abs=within.get(key, 0.5)), key


def test_the_gpu_that_stands_out_is_the_one_of_the_manifest(telemetry, tmp_path):
    import_telemetry(telemetry / "nvsmi/nanogpt_8gpu_iso_25.csv", tmp_path, PLAIN)
    found = samples(tmp_path, "power_w", "device_id", "temperature_c")
    assert max(found) == (424.07, "gpu-1", 60.0)


def test_gpus_of_one_log_keep_their_own_moments(telemetry, tmp_path):
    # as the file has it: of 473 pairs 53 lie 1 ms apart, one 2 ms and the others none
    import_telemetry(telemetry / "nvsmi/openad_a6000_2gpu.csv", tmp_path, ZONED)
    found = samples(tmp_path, "device_id", "sampled_unix_ns")
    first, second = ([t for d, t in found if d == name] for name in ("gpu-0", "gpu-1"))
    apart = collections.Counter(b - a for a, b in zip(first, second, strict=True))
    assert apart == {0: 419, 1_000_000: 53, 2_000_000: 1}


def test_a_series_that_some_gpus_lack_is_missing_for_them_alone(telemetry, tmp_path):
    # MEM_COPY_UTIL stands there for GPUs 0 to 5 only, the utilisation for all
    import_telemetry(telemetry / "dcgm/aicr_h100x8_metrics.prom", tmp_path, TAKEN)
    found = samples(tmp_path, "memory_busy_share", "utilization_share", "device_name")
    assert sorted(busy is None for busy, _, _ in found) == [False] * 6 + [True] * 2
    assert [share for _, share, _ in found] == [0.0] * 8
    assert {name for *_, name in found} == {"NVIDIA H100 80GB HBM3"}


def test_duty_cycles_of_an_archive_are_percent_of_each_container(telemetry, tmp_path):
    name = "alibaba/pod_gpu_duty_cycle_anon.tar.gz"
    import_telemetry(telemetry / name, tmp_path, MAPPED)
    shares = [share for (share,) in samples(tmp_path, "utilization_share")]
    with tarfile.open(telemetry / name) as archive:
        (member,) = (one for one in archive if one.isfile())
        lines = archive.extractfile(member).read().decode().splitlines()
    told = [float(line.split(",")[0]) / 100 for line in lines[1:]]
    assert len(shares) == len(told) == 157_417
    assert sum(shares) == pytest.approx(sum(told))
    assert (min(shares), max(shares)) == (min(told), pytest.approx(max(told)))
