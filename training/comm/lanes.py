"""A lane: one thread that issues all collectives of one transport, in program order.

A rank has a lane per priority, each with a process group of its own, so that what is urgent never
stands behind what can wait (bytes of one group go in the order in which they were issued). Every
rank submits the same work to a lane in the same order; the thread keeps that order.

On a GPU the thread works on a stream of its own, which waits for what the submitter has launched
so far, and is finished before the result is handed over. What was submitted stays alive until then,
so the submitter's memory is not used again under the lane's work. The result lies in memory of the
lane's stream: it is marked as used by the submitter's stream, or else the lane's next work could
get the same memory while the loop still reads it.

Before: a schedule submits.   After: transport.py carries.
Price: one thread a lane; it holds Python's lock only between collectives.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from training.comm.transport import Interval, Transport

Result = TypeVar("Result")
CLOSE_S = 2.0  # what is still on its way when a lane is closed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traffic:
    """What a lane did since it was last asked."""

    in_flight: list[Interval]  # of its collectives, monotonic clock [ns]
    copies: list[Interval]  # between device and host, for these
    cpu_ns: int  # CPU time of its thread
    sent_bytes: int


class Lane:
    """Runs submitted work one after another on its thread, with its transport.

    After a failure everything submitted later fails with the same error: the other ranks may have
    gone on, so nothing of this lane can be trusted any more.
    """

    def __init__(self, name: str, transport: Transport) -> None:
        self.name = name
        self.transport = transport
        self._pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix=name)
        on_gpu = transport.device.type == "cuda"
        self._stream: torch.cuda.Stream | None = None
        if on_gpu:
            self._stream = torch.cuda.Stream(transport.device)  # type: ignore[no-untyped-call]
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._cpu_ns = 0
        self._sent_before = 0
        self._last: concurrent.futures.Future[Any] | None = None

    def submit(self, work: Callable[[Transport], Result]) -> concurrent.futures.Future[Result]:
        """Run `work(transport)` after everything submitted before; its result by the future."""
        submitter: torch.cuda.Stream | None = None
        ready: torch.cuda.Event | None = None
        if self._stream is not None:
            submitter = torch.cuda.current_stream(self.transport.device)
            ready = submitter.record_event()
        future = self._pool.submit(self._run, work, submitter, ready)
        self._last = future
        return future

    def settle(self) -> None:
        """Wait until everything submitted is done; raises its first failure."""
        if self._last is not None:
            self._last.result()

    def take_traffic(self) -> Traffic:
        """What the lane did since the last call; work still running is told next time."""
        with self._lock:
            cpu_ns, self._cpu_ns = self._cpu_ns, 0
            sent = self.transport.sent_bytes
            taken, self._sent_before = sent - self._sent_before, sent
            in_flight, copies = self.transport.take_in_flight(), self.transport.take_copies()
        return Traffic(in_flight=in_flight, copies=copies, cpu_ns=cpu_ns, sent_bytes=taken)

    def close(self, wait_s: float = CLOSE_S) -> None:
        """End the thread; never waits longer than wait_s.

        Work that other ranks may have begun is let end, so that none of them is left waiting and
        the group can be taken down; what is not done by then is dropped.
        """
        if self._last is not None and self._failure is None:
            concurrent.futures.wait([self._last], timeout=wait_s)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(
        self,
        work: Callable[[Transport], Result],
        submitter: torch.cuda.Stream | None,
        ready: torch.cuda.Event | None,
    ) -> Result:
        if self._failure is not None:
            raise self._failure
        begin = time.thread_time_ns()
        try:
            if self._stream is None:
                return work(self.transport)
            with torch.cuda.stream(self._stream):
                assert ready is not None and submitter is not None
                self._stream.wait_event(ready)
                result = work(self.transport)
                self._stream.synchronize()
            for tensor in tensors_in(result):
                tensor.record_stream(submitter)
            return result
        except BaseException as error:
            self._failure = error
            raise
        finally:
            with self._lock:
                self._cpu_ns += time.thread_time_ns() - begin


def tensors_in(result: object) -> Iterator[Tensor]:
    """Every device tensor in a result, through lists, tuples and dataclasses."""
    if isinstance(result, Tensor):
        if result.device.type == "cuda":
            yield result
    elif isinstance(result, (list, tuple)):
        for part in result:
            yield from tensors_in(part)
    elif dataclasses.is_dataclass(result):
        for field in dataclasses.fields(result):
            yield from tensors_in(getattr(result, field.name))
