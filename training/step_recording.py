"""The recorder for somebody else's training loop: a context manager round a step.

    recording = StepRecording("runs", run_id="mine")
    ddp.register_comm_hook(None, recording.communication_hook())
    with recording:
        for batch in loader:
            with recording.step(num_sequences=len(batch)):
                train_on(batch)          # inside: busy, but for what is marked as wait
                with recording.wait("loss"):
                    dist.all_reduce(loss)

Then `seqscale load --runs-dir runs`. What lies between two steps counts as waiting for the next
batch. Every rank records as many steps, with the same waits in each: arrivals are exchanged once a
block to tell waiting for the slowest rank from the wire. Definitions: docs/definitions.md.

Before: a user's loop.   After: the journal, analytics/warehouse.py.
Price: 0.08 to 0.12 ms of CPU a step with two waits, in blocks of 50 and of 10 (under 0.5 % of
steps of 25 ms and more; `overhead_share` says it; a third less without `record_collectives`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from analytics.errors import ConfigError
from analytics.journal import JournalWriter
from analytics.schema import DimRun
from training.block_records import BlockRecords
from training.comm.clocks import SHARED, ClockOffset, LastArrivals, alone, last_arrivals
from training.job_records import JobSpans, rank_record
from training.loop_recorder import LoopRecorder
from training.loop_records import RecordedStep, loop_run
from training.ranks import another_group, share_one_clock
from training.recorder import StepRecorder, Wait, Window

logger = logging.getLogger(__name__)

_TOLD = tuple(field.name for field in dataclasses.fields(RecordedStep))
Hook = Callable[[object, Any], "torch.futures.Future[torch.Tensor]"]  # of a dist.GradBucket


@dataclasses.dataclass
class _Backward:
    """The buckets of one backward pass; times of the monotonic clock [ns]."""

    flights: list[list[int]] = dataclasses.field(default_factory=list)  # begin, end; end may lack
    arrival_ns: int = 0  # when the last bucket was ready
    num_bytes: int = 0


class StepRecording:
    """Records every step of one rank's loop into a journal that `seqscale load` takes.

    Of what only the loop knows (placement, batch, price, seed) the run's record holds placeholders
    until `described` tells it. For CPU and gloo: on a GPU it would time launches.

    runs_dir, run_id: the run's folder is runs_dir/run_id; a new start is a new attempt there.
    block_steps: steps between two exchanges of arrivals. timeout_s: of these; the ranks are those
    of torch.distributed, or this process alone. described: columns of dim_run, such as placement,
    schedule, dataset_id, global_batch_sequences, device_hour_cost and currency. record_collectives:
    a record for every wait beside the step's sums.
    Making one is a collective, and so are the end of a block and close.
    Raises ConfigError for a column that dim_run lacks.
    """

    def __init__(
        self,
        runs_dir: Path | str,
        *,
        run_id: str,
        block_steps: int = 50,
        timeout_s: int = 45,
        described: Mapping[str, object] | None = None,
        record_collectives: bool = True,
    ) -> None:
        unknown = sorted(set(described or {}) - {f.name for f in dataclasses.fields(DimRun)})
        if unknown:
            raise ConfigError(f"described: dim_run has no column '{unknown[0]}'.")
        if block_steps < 1:
            raise ConfigError(f"block_steps is {block_steps}; a block has at least 1 step.")
        self._is_alone = not dist.is_initialized() or dist.get_world_size() == 1
        self._rank = 0 if self._is_alone else dist.get_rank()
        self._world_size = 1 if self._is_alone else dist.get_world_size()
        # a group of its own: the loop's collectives keep their order
        self._group = None if self._is_alone else another_group(timeout_s)
        self._run_id = run_id
        folder = Path(runs_dir) / run_id
        self._attempt = self._next_attempt(folder)
        journal_dir = folder / f"attempt-{self._attempt}" / "journal"
        self._journal = JournalWriter(journal_dir, f"rank-{self._rank:05d}")
        self._described = dict(described or {})
        self._shares_clock = self._group is None or share_one_clock(self._group)
        self._clock: ClockOffset | None = None if self._group is not None else SHARED
        self._blocks = BlockRecords(
            self._journal,
            JobSpans(self._journal, pipeline_id=run_id, attempt=self._attempt, rank=self._rank),
            pipeline_id=run_id,
            attempt=self._attempt,
            rank=self._rank,
            record_collectives=record_collectives,
        )
        self._started_unix_ns = time.time_ns()
        self._block_steps = block_steps
        self._recorder = LoopRecorder()
        self._steps: list[RecordedStep] = []  # of the open block
        self._num_steps = 0
        self._block = 0
        self._left = (0, 0)  # monotonic and CPU time at the end of the last step [ns]
        self._lock = threading.Lock()  # collectives complete in threads of torch
        self._backwards: list[_Backward] = []
        self._own_cpu_ns = self._told_cpu_ns = self._windows_ns = 0
        self.waited_s: defaultdict[str, float] = defaultdict(float)  # by name, on this rank
        self._write_run()

    @contextlib.contextmanager
    def step(self, **told: Any) -> Iterator[RecordedStep]:
        """One step of the loop; `told` are fields of RecordedStep, which may be set inside too."""
        with self._accounted():
            self._close_window()
            current = RecordedStep(**({"step": self._num_steps} | told))
            self._steps.append(current)
            self._num_steps += 1
            self._recorder.begin_step()
            self._recorder.is_inside = True
            begin_ns = time.monotonic_ns()
        try:
            yield current
        finally:
            with self._accounted():
                self._take_backwards(current)
                now_ns = time.monotonic_ns()
                self._recorder.add_work(max(0, now_ns - begin_ns - self._recorder.blocked_ns))
                self._recorder.is_inside = False
                self._left = now_ns, time.thread_time_ns()

    @contextlib.contextmanager
    def wait(self, name: str = "collective") -> Iterator[None]:
        """Blocked in a collective, inside a step; every rank marks the same waits in order."""
        with self._recorder.wait(label=name) as record:
            yield
        self.waited_s[name] += (record.end_ns - record.begin_ns) / 1e9

    @contextlib.contextmanager
    def data_wait(self) -> Iterator[None]:
        """Waiting for the next batch, inside a step."""
        with self._recorder.data_wait():
            yield

    def communication_hook(self) -> Hook:
        """For DistributedDataParallel.register_comm_hook: averages the gradients, and is recorded.

        Exposed is what lies between the moment the last bucket is ready and the arrival of the
        last result; the buckets before it travel under the backward pass.
        """

        def all_reduce(_: object, bucket: Any) -> torch.futures.Future[torch.Tensor]:
            begin_ns = time.monotonic_ns()
            buffer = bucket.buffer()
            flight = [begin_ns]
            with self._lock:
                if not self._backwards or self._backwards[-1].arrival_ns:
                    self._backwards.append(_Backward())
                backward = self._backwards[-1]
                backward.flights.append(flight)
                backward.num_bytes += buffer.numel() * buffer.element_size()
                if bucket.is_last():
                    backward.arrival_ns = begin_ns
            buffer.div_(self._world_size)
            work = dist.all_reduce(buffer, async_op=True)
            assert work is not None

            def arrived(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
                flight.append(time.monotonic_ns())
                return future.value()[0]

            reduced: torch.futures.Future[torch.Tensor] = work.get_future().then(arrived)
            return reduced

        # DDP compares annotations with its own types; ours are strings, which it refuses
        all_reduce.__annotations__.clear()
        return all_reduce

    @property
    def recorder(self) -> StepRecorder:
        """For parts of the loop that mark their own waits, as the overlapped tables do."""
        return self._recorder

    def add(self, *, sent_bytes: int = 0, num_rows: int = 0, num_rows_ahead: int = 0) -> None:
        """Add to what the last step tells."""
        if self._steps:
            step = self._steps[-1]
            step.sent_bytes += sent_bytes
            step.num_rows += num_rows
            step.num_rows_ahead += num_rows_ahead

    @property
    def overhead_share(self) -> float:
        """The recording's own CPU time over the time of the windows closed so far, 0..1."""
        return self._own_cpu_ns / self._windows_ns if self._windows_ns else 0.0

    def close(self) -> None:
        """Write the last block and close the journal. A collective."""
        self._end_block(are_others_here=True)
        self._finish()

    def __enter__(self) -> StepRecording:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # after an error the other ranks may be anywhere: nothing is exchanged with them
        self._end_block(are_others_here=error is None)
        self._finish()

    @contextlib.contextmanager
    def _accounted(self) -> Iterator[None]:
        begin = time.thread_time_ns()
        yield
        self._own_cpu_ns += time.thread_time_ns() - begin

    def _close_window(self) -> None:
        """Time since the last step belongs to that step's window; a full block is written."""
        if not self._steps:
            return
        left_ns, left_cpu_ns = self._left
        marked_ns, marked_cpu_ns = self._recorder.take_marked()
        waited_ns = time.monotonic_ns() - left_ns - marked_ns
        cpu_ns = time.thread_time_ns() - left_cpu_ns - marked_cpu_ns
        self._recorder.add_data_wait(waited_ns, cpu_ns)
        if len(self._steps) >= self._block_steps:
            self._end_block(are_others_here=True)

    def _take_backwards(self, current: RecordedStep) -> None:
        with self._lock:
            backwards, self._backwards = self._backwards, []
        now_ns = time.monotonic_ns()
        for backward in backwards:
            flights = [
                (flight[0], flight[-1] if flight[1:] else now_ns) for flight in backward.flights
            ]
            arrival_ns = backward.arrival_ns or flights[-1][0]
            end_ns = max(end for _, end in flights)
            wait = Wait(
                begin_ns=arrival_ns,
                end_ns=max(arrival_ns, end_ns),
                arrival_ns=arrival_ns,
                label="gradients",
            )
            self._recorder.add_wait(wait)
            self._recorder.in_background(flights, 0)
            self.waited_s["gradients"] += (wait.end_ns - wait.begin_ns) / 1e9
            share = 2 * (self._world_size - 1) / self._world_size  # a ring all-reduce's
            current.sent_bytes += round(share * backward.num_bytes)

    def _end_block(self, *, are_others_here: bool) -> None:
        begin_cpu_ns = time.thread_time_ns()
        windows, steps = self._recorder.end_block(), self._steps
        self._steps = []
        lasts = self._last_arrivals(windows) if are_others_here else None
        self._windows_ns += sum(window.end_ns - window.begin_ns for window in windows)
        told: dict[str, list[Any]] = {
            name: [getattr(step, name) for step in steps] for name in _TOLD
        }
        self._blocks.write(
            self._run_id,
            self._block,
            windows,
            told | {"was_skipped": [None] * len(steps)},
            lasts,
            mark_ns=self._recorder.mark_ns,
            begin_cpu_ns=begin_cpu_ns - (self._own_cpu_ns - self._told_cpu_ns),
        )
        # a block's own time is told by then, also where it counts as a step's
        self._told_cpu_ns = self._own_cpu_ns + time.thread_time_ns() - begin_cpu_ns
        self._block += 1

    def _last_arrivals(self, windows: list[Window]) -> LastArrivals | None:
        """When the last rank arrived at each wait; None where it cannot be told. A collective."""
        arrivals = [[wait.arrival_ns for wait in w.sorted_waits()] for w in windows]
        if self._group is None:
            return alone(arrivals)
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(self._world_size)]
        mine = sum(len(of_window) for of_window in arrivals)
        dist.all_gather(counts, torch.tensor([mine]), group=self._group)
        if len({int(count) for count in counts}) > 1:
            logger.warning(
                "rank %d, block %d: the ranks marked %s waits, so waiting for the slowest rank "
                "cannot be told from the wire. Mark the same waits in every step on all ranks.",
                self._rank, self._block, [int(count) for count in counts],
            )  # fmt: skip
            return None
        lasts = last_arrivals(arrivals, self._group, shares_clock=self._shares_clock)
        self._clock = lasts.clock
        return lasts

    def _write_run(self) -> None:
        """The run, by rank 0, and where this rank runs; the loader keeps what came last."""
        if self._rank == 0:
            self._journal.write(
                loop_run(
                    self._run_id,
                    self._described,
                    attempt=self._attempt,
                    world_size=self._world_size,
                    num_steps=self._num_steps,
                    started_unix_ns=self._started_unix_ns,
                )
            )
        self._journal.write(
            rank_record(
                run_id=self._run_id,
                pipeline_id=self._run_id,
                attempt=self._attempt,
                rank=self._rank,
                device=torch.device("cpu"),
                clock=self._clock,
            )
        )

    def _finish(self) -> None:
        self._write_run()
        self._journal.close()

    def _next_attempt(self, folder: Path) -> int:
        """One more than the last attempt in the run's folder; rank 0 decides. A collective."""
        names = [path.name.removeprefix("attempt-") for path in folder.glob("attempt-*")]
        number = torch.tensor([1 + max((int(n) for n in names if n.isdigit()), default=-1)])
        if self._group is not None:
            dist.broadcast(number, src=0, group=self._group)
        return int(number)
