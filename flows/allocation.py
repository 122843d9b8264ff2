"""Tells which devices of this host a run had, from when until when, and how that ended.

The local pool is this host's devices, priced as the run is. Its events are the denominators of
cost and of device-minutes: a device that nobody sampled was paid for all the same.

Before: flows/training_steps.py starts ranks.   After: dim_pool and fact_pool_event.
Price: two small files an attempt. GPUs are told by NVML in its order, which is CUDA's on a host
with GPUs of one model.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from analytics.errors import SeqscaleError
from analytics.hosts import CPU, host_name
from analytics.journal import JournalWriter, read_journal
from analytics.schema import DimPool, FactPoolEvent
from flows.request import RunRequest
from training.config import RunConfig

LOCAL_POOL = "local"
_ENDS = ("released", "preempted", "failed")


@contextlib.contextmanager
def allocated(request: RunRequest, what: str) -> Iterator[None]:
    """The ranks' devices belong to the run while the block runs.

    what: why they do, in words. An error of the block ends the allocation as failed, with the
    error's first line; anything else that breaks it off, such as Ctrl-C, as released.
    """
    devices = devices_of(request.config)
    with JournalWriter(request.journal_dir, "flow-pool") as journal:
        journal.write(_pool(request, len(devices)))
        journal.write_many(_events(request, devices, "allocated", what))
    event, reason = "released", what
    try:
        yield
    except SeqscaleError as error:
        event, reason = "failed", str(error).partition("\n")[0]
        raise
    except BaseException as error:
        reason = f"{what}, broken off by {type(error).__name__}"
        raise
    finally:
        with (
            contextlib.suppress(OSError) if event == "failed" else contextlib.nullcontext(),
            JournalWriter(request.journal_dir, "flow-pool") as journal,
        ):
            journal.write_many(_events(request, devices, event, reason))


def devices_of(config: RunConfig) -> list[str]:
    """The devices that the ranks of this host take in turn, as the sampler names them."""
    if config.train.device != "cuda":
        return [CPU]
    from analytics.telemetry.devices import given_device_ids

    given = given_device_ids() or [f"gpu-{index}" for index in range(config.num_ranks)]
    return given[: config.num_ranks]


def _device_hour_cost(request: RunRequest) -> float:
    """What an hour of each device costs.

    Every rank on CPU stands for one device of the price list, in the costs of steps as here: the
    processor that they share costs as much as all of them.
    """
    is_shared = request.config.train.device != "cuda"
    return request.price.device_hour_cost * (request.config.num_ranks if is_shared else 1)


def last_end_unix_ns(request: RunRequest) -> int | None:
    """When devices were last given back, UTC; None when they never were."""
    events = read_journal(request.journal_dir, FactPoolEvent).records
    return max((e.event_unix_ns for e in events if e.event in _ENDS), default=None)


def _purchase(request: RunRequest) -> str:
    return "own" if request.price.cloud == "own" else "on_demand"


def _pool(request: RunRequest, num_devices: int) -> DimPool:
    price = request.price
    return DimPool(
        pool_id=LOCAL_POOL,
        cloud=price.cloud,
        region=price.region,
        instance_type=price.instance_type,
        team_id=None,
        num_devices=num_devices,
        purchase=_purchase(request),
    )


def _events(
    request: RunRequest, devices: list[str], event: str, reason: str
) -> list[FactPoolEvent]:
    now_ns = time.time_ns()
    return [
        FactPoolEvent(
            pool_id=LOCAL_POOL,
            host=host_name(),
            device_id=device_id,
            event_unix_ns=now_ns,
            event=event,
            pipeline_id=request.pipeline_id,
            purchase=_purchase(request),
            device_hour_cost=_device_hour_cost(request),
            currency=request.price.currency,
            reason=reason,
        )
        for device_id in devices
    ]
