"""Only what the run was given is sampled and charged, not every GPU of a shared host."""

from __future__ import annotations

import pytest

from analytics.telemetry.devices import Gpu, Slice, given_devices

PLAIN = [Gpu(index=i, uuid=f"GPU-{name}") for i, name in enumerate(("aa", "bb", "cc"))]
CUT = [
    Gpu(
        index=0,
        uuid="GPU-aa",
        slices=(
            Slice(uuid="MIG-11", gpu_instance_id=7, compute_instance_id=0),
            Slice(uuid="MIG-22", gpu_instance_id=8, compute_instance_id=0),
        ),
    ),
    Gpu(index=1, uuid="GPU-bb"),
]


def ids(gpus: list[Gpu], cuda: str | None, container: str | None = None) -> list[str]:
    return [d.device_id for d in given_devices(gpus, cuda=cuda, container=container)]


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        (None, ["GPU-aa", "GPU-bb", "GPU-cc"]),
        ("", []),
        ("-1", []),
        ("1", ["GPU-bb"]),
        ("2,0", ["GPU-cc", "GPU-aa"]),
        ("2, 2", ["GPU-cc"]),
        ("GPU-bb", ["GPU-bb"]),
        ("0,7,1", ["GPU-aa"]),  # CUDA stops at the first entry it does not know
        ("GPU-", []),  # names three devices, so none
        ("MIG-11", []),
    ],
)
def test_cuda_visible_devices_names_what_was_given(setting: str | None, names: list[str]) -> None:
    assert ids(PLAIN, setting) == names


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        (None, ["GPU-aa/7/0", "GPU-aa/8/0", "GPU-bb"]),
        ("MIG-22", ["GPU-aa/8/0"]),
        ("MIG-GPU-aa/7/0", ["GPU-aa/7/0"]),  # the form before driver 470
        ("0", ["GPU-aa/7/0"]),  # of a cut GPU CUDA takes the first slice
        ("1,MIG-11", ["GPU-bb", "GPU-aa/7/0"]),
        ("MIG-", []),
    ],
)
def test_slices_are_told_by_gpu_and_instances(setting: str | None, names: list[str]) -> None:
    assert ids(CUT, setting) == names


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        ("all", ["GPU-aa", "GPU-bb", "GPU-cc"]),
        ("void", ["GPU-aa", "GPU-bb", "GPU-cc"]),
        ("none", []),
        ("GPU-cc", ["GPU-cc"]),
        ("1", ["GPU-bb"]),
        # three were given and three are listed: inside a container, where indices begin at 0 anew
        ("4,5,6", ["GPU-aa", "GPU-bb", "GPU-cc"]),
    ],
)
def test_a_container_s_setting_leaves_out_what_it_does_not_name(
    setting: str, names: list[str]
) -> None:
    assert ids(PLAIN, None, setting) == names


def test_both_settings_hold_at_once() -> None:
    assert ids(PLAIN, "0,1", "GPU-bb") == ["GPU-bb"]
    assert ids(CUT, None, "0:1") == ["GPU-aa/8/0"]
    assert ids(CUT, "0", "MIG-22") == []  # given is the second slice, CUDA would take the first


def test_a_host_without_gpus_has_none() -> None:
    assert ids([], None) == []
    assert ids([], "0", "all") == []
