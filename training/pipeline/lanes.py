"""The two priorities of one arm, each a lane with a process group of its own."""

from __future__ import annotations

import dataclasses

from training.comm.lanes import Lane
from training.recorder import StepRecorder


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lanes:
    """What the next step cannot start without, and what can wait."""

    urgent: Lane
    deferred: Lane  # in the order in which it comes up, in pieces, one in flight
    chunk_bytes: int  # the most one piece carries from a rank

    def tell(self, recorder: StepRecorder) -> int:
        """Tell the recorder what the lanes did; returns the bytes this rank sent since last time.

        What runs on the urgent lane is waited for by the loop, as waits of their own.
        """
        urgent, deferred = self.urgent.take_traffic(), self.deferred.take_traffic()
        recorder.in_background(
            [*urgent.in_flight, *deferred.in_flight], urgent.cpu_ns + deferred.cpu_ns
        )
        recorder.copied([*urgent.copies, *deferred.copies])
        return urgent.sent_bytes + deferred.sent_bytes

    def close(self) -> None:
        """End both threads."""
        self.urgent.close()
        self.deferred.close()
