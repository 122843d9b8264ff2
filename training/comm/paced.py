"""Collectives delayed as if they went over a slow link, so that a laptop shows what a wire costs.

A rank process has one `Link`, shared by the transports of all its groups, as its processes share a
network card. The data travels at once through the transport inside; the caller is then held until
the emulated link would have carried it. Without privileges, on any machine; every output made with
it must carry the link's label, which says "emulated".

The link is a queue in each direction, emptied at the payload rate, with a token bucket. A transfer
keeps at most a socket's worth of bytes in the queue at a time and adds more as they leave, so
transfers of several groups share the link as connections do: an urgent one waits for what stands
before it, not for all that is still to come. bench/link.py holds it against a real limited link:
transfers of 0.1 s and more of wire within 3 %, alone and of two groups together. Not emulated:
that real connections share unevenly by chance (the first of two equal ones ends 6-42 % sooner than
here), and queues before the receiver. Each collective costs one more thread switch than on a wire,
so chunks of 5 ms took 2-12 % longer than real ones: an error to our disadvantage.

Before: lanes.py.   After: the transport inside.
Price: a few sleeps a collective.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Sequence

from torch import Tensor

from analytics.errors import ConfigError
from training.comm.transport import Interval, Transport

WIRE_PER_PAYLOAD = 1.066  # headers and the acknowledgements of the other direction; measured
BURST_BYTES = 8000  # tokens that a `tbf burst 64kbit` saves up while idle
SOCKET_BYTES = 140_000  # of one connection in the kernel's queue; fitted at 30 mbit/s
READY_BYTES = 100  # the receiver's "ready", which goes before a transfer's data
PIECE_BYTES = 8000  # a transfer enters the queue in pieces of this size, or of PIECE_S of wire
PIECE_S = 1e-3
MOST_MOVING_NS_PER_BYTE = 4.0  # a loopback slower than that is a rank that came late
LARGE_BYTES = 65_536


class _Direction:
    """One direction of the link: when the last byte in its queue will have left."""

    def __init__(self, ns_per_byte: float) -> None:
        self._ns_per_byte = ns_per_byte
        self._lock = threading.Lock()
        self._empty_at_ns = 0.0

    def enqueue(self, num_bytes: int, at_ns: float) -> float:
        """Put bytes behind all others; when they will have left [ns]."""
        with self._lock:
            saved_up = at_ns - BURST_BYTES * self._ns_per_byte
            begin = max(self._empty_at_ns, saved_up)
            self._empty_at_ns = begin + num_bytes * self._ns_per_byte
            return self._empty_at_ns


class _Transfer:
    """What one collective sends in one direction, fed into the queue as its bytes leave.

    begin_ns: when the receiver's "ready" is there.
    """

    def __init__(
        self, direction: _Direction, num_bytes: int, piece_bytes: int, begin_ns: float
    ) -> None:
        self._direction = direction
        self._left_bytes = num_bytes
        self._piece_bytes = piece_bytes
        self._clock_ns = begin_ns
        self._in_queue: collections.deque[tuple[float, int]] = collections.deque()
        self._in_queue_bytes = 0
        self.done_at_ns = 0.0

    def feed(self, now_ns: float) -> float | None:
        """Do what was due by now, each piece at its own time; when to come back [ns], or None.

        A thread that wakes late thus loses nothing: the queue never runs empty by our own doing.
        """
        while self._left_bytes:
            if self._in_queue_bytes >= SOCKET_BYTES:
                left_at, num_bytes = self._in_queue[0]
                if left_at > now_ns:
                    return left_at
                self._in_queue.popleft()
                self._in_queue_bytes -= num_bytes
                self._clock_ns = max(self._clock_ns, left_at)
            elif self._clock_ns > now_ns:
                return self._clock_ns
            else:
                piece = min(self._piece_bytes, self._left_bytes)
                self.done_at_ns = self._direction.enqueue(piece, self._clock_ns)
                self._in_queue.append((self.done_at_ns, piece))
                self._in_queue_bytes += piece
                self._left_bytes -= piece
        return None


class Link:
    """An emulated full-duplex link of one rank; used by several threads at once.

    rate_mbit_per_s: on the wire, as `tc` counts it; payload gets 1 / 1.066 of it.
    Raises ConfigError unless the rate is above 0.
    """

    def __init__(self, rate_mbit_per_s: float) -> None:
        if not rate_mbit_per_s > 0:
            raise ConfigError(
                f"link rate is {rate_mbit_per_s} mbit/s. Give a rate above 0, or no link at all."
            )
        self.rate_mbit_per_s = rate_mbit_per_s
        self.payload_bytes_per_s = rate_mbit_per_s * 1e6 / 8 / WIRE_PER_PAYLOAD
        self._piece_bytes = max(PIECE_BYTES, int(PIECE_S * self.payload_bytes_per_s))
        self._egress = _Direction(1e9 / self.payload_bytes_per_s)
        self._ingress = _Direction(1e9 / self.payload_bytes_per_s)

    @property
    def label(self) -> str:
        """What an output made over this link must say."""
        return f"{self.rate_mbit_per_s:g} mbit/s, emulated"

    def carry(self, sent_bytes: int, received_bytes: int, begin_ns: float) -> None:
        """Wait until the link has carried what one collective sends and receives.

        begin_ns: when both sides were there, on the monotonic clock; not after now.
        """
        transfers = [
            _Transfer(ahead, num_bytes, self._piece_bytes, back.enqueue(READY_BYTES, begin_ns))
            for ahead, back, num_bytes in (
                (self._egress, self._ingress, sent_bytes),
                (self._ingress, self._egress, received_bytes),
            )
            if num_bytes
        ]
        while True:
            now = time.monotonic_ns()
            due = [at for at in [transfer.feed(now) for transfer in transfers] if at is not None]
            if not due:
                break
            _sleep_until(min(due))
        _sleep_until(max((transfer.done_at_ns for transfer in transfers), default=0.0))


class PacedTransport(Transport):
    """Another transport, each of its collectives taking as long as the link makes it."""

    def __init__(self, inner: Transport, link: Link) -> None:
        super().__init__(inner.group, inner.device)
        self.name = inner.name
        self.inner = inner
        self.link = link
        self._moving_ns_per_byte = MOST_MOVING_NS_PER_BYTE

    @property
    def label(self) -> str:
        """The transport and its link, with the word "emulated"."""
        return f"{self.name} over {self.link.label}"

    def take_copies(self) -> list[Interval]:
        """Copies between device and host since the last call, of a transport that makes them."""
        return self.inner.take_copies()

    def _all_to_all(
        self,
        output: Tensor,
        data: Tensor,
        output_R: Sequence[int] | None,
        data_R: Sequence[int] | None,
    ) -> None:
        self.inner.all_to_all(output, data, output_R, data_R)
        self._hold(self._to_others(data, data_R), self._to_others(output, output_R))

    def _all_gather(self, data: Tensor) -> Tensor:
        gathered = self.inner.all_gather(data)
        of_others = (self.world_size - 1) * data.numel() * data.element_size()
        self._hold(of_others, of_others)
        return gathered

    def _hold(self, sent_bytes: int, received_bytes: int) -> None:
        """Let the link carry what the transport inside has just moved.

        Moving it took time as well, which a wire would have used: that much is taken off. It is
        known by the quickest transfer so far, since the others also waited for a late rank.
        """
        end = time.monotonic_ns()
        inner_ns = sum(end_ns - begin_ns for begin_ns, end_ns in self.inner.take_in_flight())
        num_bytes = sent_bytes + received_bytes
        if num_bytes >= LARGE_BYTES:
            self._moving_ns_per_byte = min(self._moving_ns_per_byte, inner_ns / num_bytes)
        moving_ns = min(inner_ns, self._moving_ns_per_byte * num_bytes)
        self.link.carry(sent_bytes, received_bytes, end - moving_ns)

    def _to_others(self, tensor: Tensor, entries_R: Sequence[int] | None) -> int:
        """Bytes of a tensor that are another rank's part."""
        if not len(tensor):
            return 0
        own = entries_R[self.rank] if entries_R is not None else len(tensor) // self.world_size
        return (len(tensor) - own) * (tensor.numel() // len(tensor)) * tensor.element_size()


def _sleep_until(at_ns: float) -> None:
    left_ns = at_ns - time.monotonic_ns()
    if left_ns > 0:
        time.sleep(left_ns / 1e9)
