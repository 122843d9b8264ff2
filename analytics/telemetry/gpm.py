"""Reads the performance counters of Hopper GPUs and newer through NVML, which needs no root.

NVML takes a sample into a buffer; two samples give the figures of the time between them. On other
devices, older drivers and bindings the reader tells nothing.

Before: nvml.py makes one a device.   After: SM, tensor and memory activity in fact_device_sample.
Price: two calls into the driver a reading. Slices of one GPU instance share its counters.
"""

from __future__ import annotations

import logging
from typing import Any

from analytics.telemetry.counters import in_range, share_of_percent

logger = logging.getLogger(__name__)

_SHARES = {
    "NVML_GPM_METRIC_GRAPHICS_UTIL": "engine_active_share",
    "NVML_GPM_METRIC_SM_UTIL": "sm_active_share",
    "NVML_GPM_METRIC_SM_OCCUPANCY": "sm_occupancy_share",
    "NVML_GPM_METRIC_ANY_TENSOR_UTIL": "tensor_active_share",
    "NVML_GPM_METRIC_DRAM_BW_UTIL": "dram_active_share",
}
_MEBIBYTES = {
    "NVML_GPM_METRIC_PCIE_TX_PER_SEC": "pcie_sent_bytes_per_s",
    "NVML_GPM_METRIC_PCIE_RX_PER_SEC": "pcie_received_bytes_per_s",
    "NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC": "nvlink_sent_bytes_per_s",
    "NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC": "nvlink_received_bytes_per_s",
}
_MOST_MEBIBYTES = 1e8  # a second
_MOST_FAILURES = 5  # in a row, after which they are not read any more


class GpmReader:
    """The counters of one GPU or GPU instance since the reading before."""

    def __init__(self, nvml: Any, handle: Any, gpu_instance_id: int | None) -> None:
        """handle: the whole GPU's; gpu_instance_id: None for the whole GPU."""
        self._nvml = nvml
        self._handle = handle
        self._gpu_instance_id = gpu_instance_id
        self._buffers: list[Any] = []
        self._has_sample = False  # whether the first buffer holds one
        self._failures = 0  # in a row
        # a binding may be too old to know one of them
        self._columns = {
            getattr(nvml, name): column
            for name, column in (_SHARES | _MEBIBYTES).items()
            if hasattr(nvml, name)
        }

    @classmethod
    def of(cls, nvml: Any, handle: Any, gpu_instance_id: int | None) -> GpmReader:
        """A reader with its first sample taken; one that tells nothing where that cannot be."""
        reader = cls(nvml, handle, gpu_instance_id)
        try:
            if nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                for _ in range(2):
                    reader._buffers.append(nvml.nvmlGpmSampleAlloc())
                reader.read()
        except Exception as error:  # bindings raise more than their own kind of error
            logger.info("no performance counters: %s", error)
            reader.close()
        return reader

    def read(self) -> dict[str, float | None]:
        """Activity and traffic between the sample before and now; {} where nothing is told."""
        if len(self._buffers) < 2:
            return {}
        try:
            self._sample_into(self._buffers[1])
            told = self._figures() if self._has_sample else {}
        except Exception as error:  # as above; the next reading spans the time of this one as well
            self._failed(error)
            return {}
        self._buffers.reverse()
        self._has_sample, self._failures = True, 0
        return told

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        if self._failures == 1:
            logger.info("the performance counters told nothing: %s", error)
        if self._failures == _MOST_FAILURES:
            logger.info("the performance counters are given up after %d failures", self._failures)
            self.close()

    def close(self) -> None:
        """Free the driver's buffers."""
        while self._buffers:
            try:
                self._nvml.nvmlGpmSampleFree(self._buffers.pop())
            except Exception as error:  # the driver may be gone, and its buffers with it
                logger.info("a buffer of the performance counters was not freed: %s", error)

    def _sample_into(self, buffer: Any) -> None:
        if self._gpu_instance_id is None:
            self._nvml.nvmlGpmSampleGet(self._handle, buffer)
        else:
            self._nvml.nvmlGpmMigSampleGet(self._handle, self._gpu_instance_id, buffer)

    def _figures(self) -> dict[str, float | None]:
        """What NVML makes of the two buffers; a figure that it refuses is None."""
        asked = self._nvml.c_nvmlGpmMetricsGet_t()
        asked.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(self._columns)
        asked.sample1, asked.sample2 = self._buffers
        for place, metric_id in enumerate(self._columns):
            asked.metrics[place].metricId = metric_id
        self._nvml.nvmlGpmMetricsGet(asked)
        return {
            column: _value(column, asked.metrics[place])
            for place, column in enumerate(self._columns.values())
        }


def _value(column: str, metric: Any) -> float | None:
    if metric.nvmlReturn != 0:
        return None
    if column in _MEBIBYTES.values():
        mebibytes = in_range(metric.value, _MOST_MEBIBYTES)
        return None if mebibytes is None else mebibytes * 2**20
    return share_of_percent(metric.value)
