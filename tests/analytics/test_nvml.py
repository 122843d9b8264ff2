"""A GPU through its driver: every figure by itself, slices, counters, and a driver that goes."""

from __future__ import annotations

import math
import types
from typing import Any

import pytest

from analytics.schema import FactDeviceSample
from analytics.telemetry.devices import devices_here
from analytics.telemetry.nvml import GpuProbe, driver_versions
from analytics.telemetry.sampler import gpu_probes
from tests.analytics.paper_nvml import (
    GPM_IDS,
    GPU_IS_LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    UNKNOWN,
    NVMLError,
    PaperNvml,
)


def probe_of(nvml: PaperNvml) -> GpuProbe:
    [probe] = gpu_probes(nvml)
    return probe


def read(nvml: PaperNvml) -> dict[str, Any]:
    told = probe_of(nvml).read(1.0)
    assert told is not None
    return told


def test_a_gpu_that_tells_everything_is_told_in_our_units() -> None:
    told = read(PaperNvml())
    assert (told["device_id"], told["device_name"]) == ("GPU-0", "Paper H100")
    assert told["collector"] == "NVML 13.1, driver 590.1"
    assert (told["utilization_share"], told["memory_busy_share"]) == (0.9, 0.4)
    assert (told["memory_used_bytes"], told["memory_total_bytes"]) == (3 * 2**30, 80 * 2**30)
    assert (told["power_w"], told["power_limit_w"], told["energy_j"]) == (350.5, 700, 5000)
    assert (told["temperature_c"], told["num_processes"]) == (61, 2)
    assert (told["sm_clock_mhz"], told["memory_clock_mhz"]) == (1980, 2619)
    for share in ("engine_active", "sm_active", "sm_occupancy", "tensor_active", "dram_active"):
        assert told[f"{share}_share"] == 0.5
    for traffic in ("pcie_sent", "pcie_received", "nvlink_sent", "nvlink_received"):
        assert told[f"{traffic}_bytes_per_s"] == 50 * 2**20
    assert (told["gpu_instance_id"], told["compute_instance_id"]) == (None, None)


def test_the_columns_are_those_of_the_record() -> None:
    FactDeviceSample(
        pipeline_id="p", attempt=0, host="h", sampled_unix_ns=1, interval_s=1.0,
        sampler_cpu_s=0.0, **read(PaperNvml()),
    )  # fmt: skip


COLUMNS = {
    "nvmlDeviceGetUtilizationRates": ["utilization_share", "memory_busy_share"],
    "nvmlDeviceGetMemoryInfo": ["memory_used_bytes", "memory_total_bytes"],
    "nvmlDeviceGetPowerUsage": ["power_w"],
    "nvmlDeviceGetEnforcedPowerLimit": ["power_limit_w"],
    "nvmlDeviceGetTotalEnergyConsumption": ["energy_j"],
    "nvmlDeviceGetTemperatureV": ["temperature_c"],
    "nvmlDeviceGetClockInfo": ["sm_clock_mhz", "memory_clock_mhz"],
    "nvmlDeviceGetComputeRunningProcesses": ["num_processes"],
    "nvmlDeviceGetName": ["device_name"],
}
ERRORS = [NVMLError(NOT_SUPPORTED), NVMLError(UNKNOWN), RuntimeError("the binding's own")]


@pytest.mark.parametrize("error", ERRORS, ids=str)
@pytest.mark.parametrize("function", COLUMNS)
def test_one_figure_that_fails_is_null_and_stops_no_other(function: str, error: Exception) -> None:
    # mlflow#14736: the A10 tells no power; the sampling thread died of it and told nothing at all
    whole = read(PaperNvml())
    nvml = PaperNvml()
    nvml.says[function] = error
    told = read(nvml)
    assert {name for name in whole if told.get(name) != whole[name]} == set(COLUMNS[function])
    assert all(told[name] is None for name in COLUMNS[function])


def test_what_is_not_supported_is_not_asked_again_and_what_failed_once_is() -> None:
    nvml = PaperNvml()
    power, limit = "nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit"
    nvml.says[power], nvml.says[limit] = NVMLError(NOT_SUPPORTED), NVMLError(UNKNOWN)
    probe = probe_of(nvml)
    probe.read(1.0)
    nvml.says[power], nvml.says[limit] = 1, 300_000
    told = probe.read(2.0)
    assert told is not None
    assert (nvml.asked.count(power), nvml.asked.count(limit)) == (1, 2)
    assert (told["power_w"], told["power_limit_w"]) == (None, 300)


def test_an_older_driver_tells_by_its_older_functions() -> None:
    nvml = PaperNvml(gpm=False)
    nvml.says["nvmlDeviceGetTemperatureV"] = NVMLError(13)
    nvml.says["nvmlDeviceGetTemperature"] = lambda sensor: 55
    # the binding says so by an error that is none of NVML's
    nvml.says["nvmlDeviceGetComputeRunningProcesses"] = RuntimeError("library mismatch")
    nvml.says["nvmlDeviceGetComputeRunningProcesses_v2"] = ["a"]
    told = read(nvml)
    assert (told["temperature_c"], told["num_processes"]) == (55, 1)


def test_a_device_that_tells_nothing_has_no_sample() -> None:
    nvml = PaperNvml()
    probe = probe_of(nvml)
    assert probe.read(1.0) is not None
    # the driver goes, and comes back
    working = dict(nvml.says)
    nvml.says = dict.fromkeys(working, NVMLError(GPU_IS_LOST))
    nvml.gpm_error = GPU_IS_LOST
    assert probe.read(2.0) is None
    nvml.says, nvml.gpm_error = working, None
    told = probe.read(3.0)
    assert told is not None and told["utilization_share"] == 0.9


@pytest.mark.parametrize(
    ("function", "said", "column"),
    [
        ("nvmlDeviceGetUtilizationRates", types.SimpleNamespace(gpu=808_334_905, memory=0),
         "utilization_share"),
        ("nvmlDeviceGetPowerUsage", 4_294_967_295, "power_w"),
        ("nvmlDeviceGetTotalEnergyConsumption", 140_737_488_355_328, "energy_j"),
        ("nvmlDeviceGetMemoryInfo", types.SimpleNamespace(used=2**63 - 14, total=80 * 2**30),
         "memory_used_bytes"),
        ("nvmlDeviceGetMemoryInfo", types.SimpleNamespace(used=90 * 2**30, total=80 * 2**30),
         "memory_used_bytes"),
        ("nvmlDeviceGetClockInfo", lambda clock: 4_294_967_295, "sm_clock_mhz"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_null(function: str, said: Any, column: str) -> None:
    nvml = PaperNvml()
    nvml.says[function] = said
    assert read(nvml)[column] is None


def test_without_performance_counters_the_buses_are_told_by_nvml_itself() -> None:
    nvml = PaperNvml(gpm=False)
    probe = probe_of(nvml)
    first = probe.read(1.0)
    links = {138: 0, 139: 0}

    def fields(asked: Any) -> Any:
        [(field, scope)] = asked
        assert scope == 0xFFFFFFFF  # all links
        value = types.SimpleNamespace(ullVal=links[field] + field * 1024)
        return [types.SimpleNamespace(nvmlReturn=0, value=value)]

    links[138], links[139] = 4_000, 10_000  # KiB in 2 s
    nvml.says["nvmlDeviceGetFieldValues"] = fields
    second = probe.read(3.0)
    assert first is not None and second is not None
    assert "sm_active_share" not in first
    assert (second["pcie_sent_bytes_per_s"], second["pcie_received_bytes_per_s"]) == (2e6, 3e6)
    assert first["nvlink_sent_bytes_per_s"] is None  # a counter tells nothing the first time
    assert second["nvlink_sent_bytes_per_s"] == 2_000 * 1024
    assert second["nvlink_received_bytes_per_s"] == 5_000 * 1024


def test_counters_that_fail_once_tell_again_and_free_their_buffers() -> None:
    nvml = PaperNvml()
    probe = probe_of(nvml)
    nvml.gpm_error = UNKNOWN  # at the second sample
    told = probe.read(1.0)
    assert told is not None and "sm_active_share" not in told
    assert told["pcie_sent_bytes_per_s"] == 2e6  # from NVML itself
    nvml.gpm_error = None
    told = probe.read(2.0)
    assert told is not None and told["sm_active_share"] == 0.5
    probe.close()
    assert nvml.freed == 2
    assert probe.read(3.0) is not None


@pytest.mark.parametrize("error", [NO_PERMISSION, UNKNOWN])
def test_counters_that_keep_failing_are_given_up(error: int) -> None:
    nvml = PaperNvml()
    nvml.gpm_error = error
    probe = probe_of(nvml)
    for second in range(10):
        told = probe.read(float(second))
        assert told is not None and told["utilization_share"] == 0.9
    assert nvml.freed == 2


def test_one_counter_that_is_refused_or_is_no_number_is_null() -> None:
    nvml = PaperNvml()
    nvml.gpm_refuses = {GPM_IDS["ANY_TENSOR_UTIL"]}
    nvml.gpm_says[GPM_IDS["SM_UTIL"]] = math.nan
    nvml.gpm_says[GPM_IDS["DRAM_BW_UTIL"]] = 2619.0
    told = read(nvml)
    assert (told["tensor_active_share"], told["sm_active_share"]) == (None, None)
    assert (told["dram_active_share"], told["engine_active_share"]) == (None, 0.5)


def test_slices_are_devices_of_their_own_and_have_no_utilisation() -> None:
    # distributed#8739, serve#3090: asking a slice for its utilisation crashed
    nvml = PaperNvml(slices={0: (7, 0), 3: (8, 1)})
    probes = gpu_probes(nvml)
    told = [probe.read(1.0) for probe in probes]
    assert [t["device_id"] for t in told if t] == ["GPU-0/7/0", "GPU-0/8/1"]
    assert nvml.instances == [7, 8, 7, 8]
    for one in told:
        assert one is not None
        # not measurable is NULL; drawing 0 has made busy slices look idle elsewhere
        assert one["utilization_share"] is None and one["power_w"] is None
        assert one["engine_active_share"] == 0.5
        assert one["memory_total_bytes"] == 80 * 2**30
    assert (told[1] or {})["gpu_instance_id"] == 8
    assert (told[1] or {})["compute_instance_id"] == 1
    assert "nvmlDeviceGetUtilizationRates" not in nvml.asked


def test_of_a_shared_host_only_the_given_gpus_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    # mlflow#13398, wandb#538, wandb#9062: all eight GPUs were put down to a run on one
    monkeypatch.delenv("NVIDIA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-2")
    nvml = PaperNvml(gpus=8)
    assert [p.read(1.0)["device_id"] for p in gpu_probes(nvml)] == ["GPU-5", "GPU-2"]
    # the run has one rank, which takes the first
    assert [p.read(1.0)["device_id"] for p in gpu_probes(nvml, 1)] == ["GPU-5"]
    assert [d.device_id for d in devices_here(nvml, {})] == [f"GPU-{i}" for i in range(8)]


def test_a_gpu_that_is_lost_at_the_start_keeps_its_index() -> None:
    nvml = PaperNvml(gpus=3)

    def handle(index: int) -> int:
        if index == 0:
            raise NVMLError(GPU_IS_LOST)
        return index

    nvml.nvmlDeviceGetHandleByIndex = handle  # type: ignore[method-assign]
    found = devices_here(nvml, {"CUDA_VISIBLE_DEVICES": "1"})
    assert [device.device_id for device in found] == ["GPU-1"]


def test_a_driver_that_tells_no_version_is_named_so() -> None:
    nvml = PaperNvml()

    def refuses() -> str:
        raise NVMLError(UNKNOWN)

    nvml.nvmlSystemGetDriverVersion = refuses  # type: ignore[method-assign,assignment]
    assert driver_versions(nvml) == "NVML 13.1, driver of unknown version"


def test_without_a_driver_there_is_no_probe() -> None:
    assert gpu_probes(None) == []
