"""A driver on paper: the module `pynvml` as far as the sampler asks it, for hosts without a GPU.

Every answer is data of one GPU; what is to fail names its error. The real module raises for a
function by code, and so does this one.
"""

from __future__ import annotations

import types
from typing import Any

NOT_SUPPORTED, NO_PERMISSION, UNKNOWN, GPU_IS_LOST, NOT_FOUND = 3, 4, 999, 15, 6
GPM_IDS = {
    "GRAPHICS_UTIL": 1, "SM_UTIL": 2, "SM_OCCUPANCY": 3, "ANY_TENSOR_UTIL": 5, "DRAM_BW_UTIL": 10,
    "PCIE_TX_PER_SEC": 20, "PCIE_RX_PER_SEC": 21,
    "NVLINK_TOTAL_RX_PER_SEC": 60, "NVLINK_TOTAL_TX_PER_SEC": 61,
}  # fmt: skip


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


def answers() -> dict[str, Any]:
    """What the functions say; a callable is called with the arguments behind the handle."""
    return {
        "nvmlDeviceGetName": b"Paper H100",
        "nvmlDeviceGetUtilizationRates": types.SimpleNamespace(gpu=90, memory=40),
        "nvmlDeviceGetMemoryInfo": types.SimpleNamespace(used=3 * 2**30, total=80 * 2**30),
        "nvmlDeviceGetPowerUsage": 350_500,
        "nvmlDeviceGetEnforcedPowerLimit": 700_000,
        "nvmlDeviceGetTotalEnergyConsumption": 5_000_000,
        "nvmlDeviceGetTemperatureV": lambda sensor: 61,
        "nvmlDeviceGetClockInfo": lambda clock: {1: 1980, 2: 2619}[clock],
        "nvmlDeviceGetPcieThroughput": lambda way: {0: 2_000, 1: 3_000}[way],
        "nvmlDeviceGetFieldValues": lambda fields: [
            types.SimpleNamespace(
                nvmlReturn=0, value=types.SimpleNamespace(ullVal=fields[0][0] * 1024)
            )
        ],
        "nvmlDeviceGetComputeRunningProcesses": ["a", "b"],
    }


class PaperNvml:
    """The module; `says` may be changed while it runs."""

    NVMLError = NVMLError
    NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NO_PERMISSION = 2, 3, 4
    NVML_ERROR_FUNCTION_NOT_FOUND, NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 13, 25
    NVML_ERROR_DEPRECATED = 26
    NVML_TEMPERATURE_GPU, NVML_CLOCK_SM, NVML_CLOCK_MEM = 0, 1, 2
    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 138, 139
    NVML_DEVICE_MIG_ENABLE = 1
    NVML_GPM_METRICS_GET_VERSION = 1

    def __init__(
        self, *, gpm: bool = True, slices: dict[int, tuple[int, int]] | None = None, gpus: int = 1
    ) -> None:
        """gpm: whether the GPU has performance counters; slices: place -> (gi, ci) in MIG mode."""
        self.says = answers()
        self.asked: list[str] = []
        self.gpm, self.slices, self.gpus = gpm, slices, gpus
        self.num_samples = 0
        self.freed = 0
        self.gpm_error: int | None = None
        self.gpm_says = dict.fromkeys(GPM_IDS.values(), 50.0)
        self.gpm_refuses: set[int] = set()
        self.instances: list[int] = []
        for name, value in GPM_IDS.items():
            setattr(self, f"NVML_GPM_METRIC_{name}", value)

    def __getattr__(self, name: str) -> Any:
        said = self.__dict__.get("says", {})
        if name not in said:
            raise AttributeError(name)

        def function(handle: Any, *arguments: Any) -> Any:
            self.asked.append(name)
            answer = self.says[name]
            if isinstance(answer, Exception):
                raise answer
            return answer(*arguments) if callable(answer) else answer

        return function

    def nvmlInit(self) -> None:
        pass

    def nvmlSystemGetNVMLVersion(self) -> str:
        return "13.1"

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"590.1"

    def nvmlDeviceGetCount(self) -> int:
        return self.gpus

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        return f"GPU-{handle}" if isinstance(handle, int) else f"MIG-{handle}"

    def nvmlDeviceGetMigMode(self, handle: Any) -> list[int]:
        if self.slices is None:
            raise NVMLError(NOT_SUPPORTED)
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, place: int) -> str:
        if place not in (self.slices or {}):
            raise NVMLError(NOT_FOUND)
        return str(place)

    def nvmlDeviceGetGpuInstanceId(self, handle: str) -> int:
        assert self.slices is not None
        return self.slices[int(handle)][0]

    def nvmlDeviceGetComputeInstanceId(self, handle: str) -> int:
        assert self.slices is not None
        return self.slices[int(handle)][1]

    def nvmlGpmQueryDeviceSupport(self, handle: Any) -> Any:
        return types.SimpleNamespace(isSupportedDevice=int(self.gpm))

    def nvmlGpmSampleAlloc(self) -> dict[str, int]:
        return {"sample": 0}

    def nvmlGpmSampleFree(self, buffer: Any) -> None:
        self.freed += 1

    def nvmlGpmSampleGet(self, handle: Any, buffer: dict[str, int]) -> None:
        if self.gpm_error is not None:
            raise NVMLError(self.gpm_error)
        self.num_samples += 1
        buffer["sample"] = self.num_samples

    def nvmlGpmMigSampleGet(self, handle: Any, instance: int, buffer: dict[str, int]) -> None:
        self.instances.append(instance)
        self.nvmlGpmSampleGet(handle, buffer)

    def c_nvmlGpmMetricsGet_t(self) -> Any:
        metrics = [types.SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0) for _ in range(20)]
        return types.SimpleNamespace(metrics=metrics)

    def nvmlGpmMetricsGet(self, asked: Any) -> None:
        assert asked.sample1["sample"] < asked.sample2["sample"], "the older sample comes first"
        for metric in asked.metrics[: asked.numMetrics]:
            metric.value = self.gpm_says[metric.metricId]
            metric.nvmlReturn = NOT_SUPPORTED if metric.metricId in self.gpm_refuses else 0
