"""Says which GPUs, or slices of them, a run was given: not all of a shared host's.

CUDA_VISIBLE_DEVICES and, for containers, NVIDIA_VISIBLE_DEVICES name them by index, by UUID or by
the UUID of a MIG slice. Indices are NVML's, which are CUDA's where all GPUs are of one model or
CUDA_DEVICE_ORDER is PCI_BUS_ID.

Before: the launcher's environment.   After: nvml.py reads each; flows/allocation.py prices them.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

_NO_FILTER = ("", "all", "void")  # void: whoever made the container has chosen the devices


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slice:
    """A MIG slice: a compute instance of a GPU instance."""

    uuid: str
    gpu_instance_id: int
    compute_instance_id: int
    handle: Any = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU as NVML lists it; with slices when it is cut into some."""

    index: int
    uuid: str
    slices: tuple[Slice, ...] | None = None  # None: it is not in MIG mode
    handle: Any = dataclasses.field(default=None, compare=False)

    @property
    def devices(self) -> list[Device]:
        """The GPU itself, or its slices."""
        if self.slices is None:
            return [Device(gpu=self, part=None)]
        return [Device(gpu=self, part=part) for part in self.slices]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
    """What a rank can compute on: a GPU, or a slice of one."""

    gpu: Gpu
    part: Slice | None

    @property
    def device_id(self) -> str:
        """As the warehouse names it: the GPU's UUID, for a slice with its instances."""
        if self.part is None:
            return self.gpu.uuid
        return f"{self.gpu.uuid}/{self.part.gpu_instance_id}/{self.part.compute_instance_id}"


def given_devices(
    gpus: Sequence[Gpu], *, cuda: str | None, container: str | None = None
) -> list[Device]:
    """The devices that were given, in the order in which CUDA counts them.

    cuda, container: the values of CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES; None: unset.
    """
    allowed = _of_container(gpus, container)
    if cuda is None:
        return allowed
    found: list[Device] = []
    for entry in (part.strip() for part in cuda.split(",")):
        named = _named(gpus, entry)
        if not named:
            break  # CUDA stops at the first entry it does not know
        found.append(named[0])  # of a GPU in MIG mode CUDA takes the first slice
    return [device for device in dict.fromkeys(found) if device in allowed]


def open_nvml() -> Any | None:
    """NVIDIA's library, started; None without the driver or its Python binding."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError, OSError):
        return None
    return pynvml


def listed_gpus(nvml: Any) -> list[Gpu]:
    """Every GPU that NVML can reach; one that is lost is left out and keeps its index."""
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError:
        return []
    found = []
    for index in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = as_text(nvml.nvmlDeviceGetUUID(handle))
        except nvml.NVMLError:
            continue
        found.append(Gpu(index=index, uuid=uuid, slices=_slices(nvml, handle), handle=handle))
    return found


def devices_here(nvml: Any, environment: Mapping[str, str] | None = None) -> list[Device]:
    """The devices that this process was given."""
    told = os.environ if environment is None else environment
    return given_devices(
        listed_gpus(nvml),
        cuda=told.get("CUDA_VISIBLE_DEVICES"),
        container=told.get("NVIDIA_VISIBLE_DEVICES"),
    )


def given_device_ids() -> list[str]:
    """What the devices of this process are called; none without a driver."""
    nvml = open_nvml()
    return [] if nvml is None else [device.device_id for device in devices_here(nvml)]


def as_text(value: str | bytes) -> str:
    """A text of NVML; old bindings give bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _slices(nvml: Any, handle: Any) -> tuple[Slice, ...] | None:
    """The GPU's slices; None when it is not in MIG mode, or cannot be."""
    try:
        if nvml.nvmlDeviceGetMigMode(handle)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return None
        places = range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))
    except (nvml.NVMLError, AttributeError):
        return None
    found = []
    for place in places:
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
            found.append(
                Slice(
                    uuid=as_text(nvml.nvmlDeviceGetUUID(part)),
                    gpu_instance_id=int(nvml.nvmlDeviceGetGpuInstanceId(part)),
                    compute_instance_id=int(nvml.nvmlDeviceGetComputeInstanceId(part)),
                    handle=part,
                )
            )
        except nvml.NVMLError:
            continue  # no slice in this place
    return tuple(found)


def _of_container(gpus: Sequence[Gpu], setting: str | None) -> list[Device]:
    """What the container's setting leaves of them.

    Inside a container NVML lists only what was given, counted from 0 again. So the setting's own
    indices, which are the host's, count only where they are fewer than the GPUs that NVML lists.
    """
    everything = [device for gpu in gpus for device in gpu.devices]
    entries = [entry.strip() for entry in (setting or "").split(",")]
    if entries == ["none"]:
        return []
    are_indices = all(entry.replace(":", "").isdigit() for entry in entries)
    if entries[0] in _NO_FILTER or (are_indices and len(entries) >= len(gpus)):
        return everything
    allowed = {device for entry in entries for device in _named(gpus, entry)}
    return [device for device in everything if device in allowed]


def _named(gpus: Sequence[Gpu], entry: str) -> list[Device]:
    """The devices that an index, a UUID (its beginning will do) or "GPU:slice" names."""
    if not entry:
        return []
    if entry.isdigit():
        return [device for gpu in gpus if gpu.index == int(entry) for device in gpu.devices]
    index, colon, place = entry.partition(":")
    if colon and index.isdigit() and place.isdigit():
        return _named(gpus, index)[int(place) : int(place) + 1]
    if entry.startswith("MIG-"):
        parts = [device for gpu in gpus for device in gpu.devices if _is_slice(device, entry)]
        return parts if len(parts) == 1 else []
    matching = [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
    return matching[0].devices if len(matching) == 1 else []


def _is_slice(device: Device, entry: str) -> bool:
    """Whether the entry names the slice, by its UUID or in the form MIG-GPU-.../gi/ci."""
    if device.part is None:
        return False
    return device.part.uuid.startswith(entry) or f"MIG-{device.device_id}" == entry
