import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import psutil
import pytest

from analytics import schema
from analytics.journal import read_journal
from analytics.telemetry.sampler import CpuProbe, GpuProbe, in_range, visible_devices

TIMEOUT_S = 60


def command(journal: Path) -> list[str]:
    return [
        sys.executable, "-m", "analytics.telemetry.sampler", "--journal", str(journal),
        "--pipeline-id", "p", "--attempt", "0", "--interval-s", "0.1",
    ]  # fmt: skip


def samples(journal: Path) -> list[schema.FactDeviceSample]:
    return read_journal(journal, schema.FactDeviceSample).records


def wait_for(condition, what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {TIMEOUT_S} s for {what}"
        time.sleep(0.02)


def test_it_samples_until_it_is_told_to_stop_and_closes_its_journal(tmp_path):
    with subprocess.Popen(command(tmp_path)) as sampler:
        wait_for(lambda: len(samples(tmp_path)) >= 3, "three samples")
        assert psutil.Process(sampler.pid).nice() == 19
        sampler.send_signal(signal.SIGTERM)
        assert sampler.wait(TIMEOUT_S) == 0
    [segment] = (tmp_path / "fact_device_sample").iterdir()
    assert segment.suffix == ".jsonl"
    found = [s for s in samples(tmp_path) if s.device_id == "cpu"]
    assert [s.sampled_unix_ns for s in found] == sorted(s.sampled_unix_ns for s in found)
    assert all(s.memory_total_bytes == psutil.virtual_memory().total for s in found)
    assert all(s.interval_s >= 0.1 for s in found)
    assert all(s.power_w is None for s in found)  # not measured is NULL, never 0
    # its own cost is told: CPU time of one process, growing
    costs = [s.sampler_cpu_s for s in found]
    assert 0 < costs[0] <= costs[-1]


def test_it_ends_when_its_parent_is_gone(tmp_path):
    middle = "import subprocess, sys; p = subprocess.Popen(sys.argv[1:]); print(p.pid, flush=True)"
    middle += "; input()"
    with subprocess.Popen(
        [sys.executable, "-c", middle, *command(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as parent:  # fmt: skip
        pid = int(parent.stdout.readline())
        wait_for(lambda: samples(tmp_path), "a first sample")
        parent.kill()
        parent.wait(TIMEOUT_S)
    wait_for(
        lambda: [p.suffix for p in (tmp_path / "fact_device_sample").iterdir()] == [".jsonl"],
        f"sampler {pid} to close its journal",
    )


def test_an_interval_of_nothing_is_refused(tmp_path):
    arguments = [*command(tmp_path)[:-1], "0"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 2
    assert "the least is 0.05" in done.stderr


def test_the_cpu_probe_tells_shares_and_bytes():
    sample = CpuProbe().read()
    assert 0 <= sample["utilization_share"] <= 1
    assert 0 < sample["memory_used_bytes"] <= sample["memory_total_bytes"]
    assert os.cpu_count() and sample["device_name"]


@pytest.mark.parametrize(
    ("setting", "indices"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("1", [1]),
        ("2,0", [2, 0]),
        ("GPU-bb", [1]),
        ("0,7,1", [0]),  # CUDA stops at the first entry it does not know
        ("GPU-", []),  # names three devices, so none
    ],
)
def test_only_visible_devices_are_sampled(setting, indices):
    assert visible_devices(setting, ["GPU-aa", "GPU-bb", "GPU-cc"]) == indices


def test_blank_and_impossible_values_of_a_driver_are_not_values():
    # blanks that drivers gave as data elsewhere, and utilisation beyond 100 %
    assert in_range(140_737_488_355_328, 2**62) is None
    assert in_range(9_223_372_036_854_775_794, 2**63) is None
    assert in_range(2_619, 100) is None
    assert in_range(-1, 100) is None
    assert in_range(100, 100) == 100


def test_one_metric_that_fails_does_not_stop_the_others():
    class NVMLError(Exception):
        pass

    def unsupported(handle):
        raise NVMLError

    # A driver that cannot tell utilisation and power (as MIG and some cards cannot).
    nvml = types.SimpleNamespace(
        NVMLError=NVMLError,
        nvmlDeviceGetName=lambda handle: b"Paper GPU",
        nvmlDeviceGetUtilizationRates=unsupported,
        nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(used=1, total=2),
        nvmlDeviceGetPowerUsage=unsupported,
    )
    assert GpuProbe(nvml, object(), "GPU-aa").read() == {
        "device_id": "GPU-aa",
        "device_name": "Paper GPU",
        "utilization_share": None,
        "memory_used_bytes": 1,
        "memory_total_bytes": 2,
        "power_w": None,
    }
