"""What a copy costs a matrix product that runs beside it. See gpu_check.py.

On a GPU a product runs alone, beside a copy by a kernel (which takes compute units, as a collective
library's kernels do), and beside copies to and from page-locked host memory (copy engines, what the
host_staged transport uses). A kernel's copy is far faster than the host's link, so it is measured
twice: as fast as it goes for the whole product, and moving only as many bytes as the host's link
moves meanwhile. Not measured: a collective's kernels also hold their units while they wait.

On a CPU the product runs beside a second thread that copies, which shows that the script works.
Slow-down is the product's time beside the copy over its time alone, of interleaved medians.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import torch
from checked import Checked, Figure, interleaved_medians, wall_s

REPEATS = 9
NUM_PRODUCTS = 20
_MARGIN = 1.5  # copies are launched for this much longer than the product should take


def contention_part(device: torch.device, small: bool) -> Checked:
    """Alone and beside each kind of copy."""
    if device.type == "cuda":
        return _on_gpu(device, 1024 if small else 8192, (2**22) if small else (2**26))
    return _on_cpu(256 if small else 1024)


class GpuCopies:
    """Copies on streams of their own, beside a product on the current one."""

    def __init__(self, device: torch.device, num_bytes: int) -> None:
        self._device = device
        self.num_bytes = num_bytes
        self._streams = [torch.cuda.Stream(device) for _ in range(2)]
        here = [torch.ones(num_bytes // 4, device=device) for _ in range(4)]
        self._a, self._b, self._sent, self._received = here
        self._to_host = torch.empty(num_bytes // 4, pin_memory=True)
        self._from_host = torch.ones(num_bytes // 4, pin_memory=True)

    def by_kernel(self, count: int) -> None:
        """Launch copies by an elementwise kernel; a plain copy might take a copy engine."""
        with torch.cuda.stream(self._streams[0]):
            for _ in range(count):
                torch.mul(self._a, 1.0, out=self._b)

    def by_copy_engine(self, count: int) -> None:
        """Launch copies to the host and, at once, from it."""
        for _ in range(count):
            with torch.cuda.stream(self._streams[0]):
                self._to_host.copy_(self._sent, non_blocking=True)
            with torch.cuda.stream(self._streams[1]):
                self._received.copy_(self._from_host, non_blocking=True)

    def one_s(self, copies: Callable[[int], None]) -> float:
        """Time of one copy, alone [s]."""
        wall_s(lambda: copies(2), self._device)
        return wall_s(lambda: copies(10), self._device) / 10


def _on_gpu(device: torch.device, width: int, num_bytes: int) -> Checked:
    left = torch.randn(width, width, device=device, dtype=torch.bfloat16)
    right, out = torch.randn_like(left), torch.empty_like(left)
    copies = GpuCopies(device, num_bytes)

    def products() -> None:
        for _ in range(NUM_PRODUCTS):
            torch.mm(left, right, out=out)

    def beside(launch: Callable[[], None]) -> float:
        """The products' own time while the launched copies run [s]."""
        torch.cuda.synchronize(device)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        launch()
        begin.record()
        products()
        end.record()
        torch.cuda.synchronize(device)
        return float(begin.elapsed_time(end)) / 1000

    wall_s(products, device)
    alone_s = wall_s(products, device)
    kernel_s, engine_s = copies.one_s(copies.by_kernel), copies.one_s(copies.by_copy_engine)
    through_link = max(1, round(alone_s / engine_s))  # copies each way in the time of the products
    num_kernel = math.ceil(_MARGIN * alone_s / kernel_s)
    num_engine = math.ceil(_MARGIN * alone_s / engine_s)
    medians = interleaved_medians(
        {
            "alone": lambda: beside(lambda: None),
            "beside a kernel's copy": lambda: beside(lambda: copies.by_kernel(num_kernel)),
            "beside a kernel's copy of the link's bytes": lambda: beside(
                lambda: copies.by_kernel(2 * through_link)
            ),
            "beside host_staged copies": lambda: beside(lambda: copies.by_copy_engine(num_engine)),
        },
        REPEATS,
    )
    gb = num_bytes / 1e9
    rates = [
        Figure(what="kernel's copy alone", value=gb / kernel_s, unit="GB/s"),
        Figure(what="host_staged copies alone, each way", value=gb / engine_s, unit="GB/s"),
    ]
    return Checked(figures=_slow_downs(medians) + rates)


def _on_cpu(width: int) -> Checked:
    left, right = torch.randn(width, width), torch.randn(width, width)
    source, target = torch.ones(2**20), torch.empty(2**20)
    cpu = torch.device("cpu")

    def products() -> None:
        for _ in range(NUM_PRODUCTS):
            torch.mm(left, right)

    def beside_thread() -> float:
        stop = threading.Event()

        def copy() -> None:
            while not stop.is_set():
                target.copy_(source)

        thread = threading.Thread(target=copy)
        thread.start()
        try:
            return wall_s(products, cpu)
        finally:
            stop.set()
            thread.join()

    products()
    medians = interleaved_medians(
        {"alone": lambda: wall_s(products, cpu), "beside a thread's copy": beside_thread}, REPEATS
    )
    return Checked(figures=_slow_downs(medians))


def _slow_downs(medians: dict[str, float]) -> list[Figure]:
    """The time alone, then every other time as a multiple of it."""
    alone_s = medians["alone"]
    figures = [Figure(what=f"{NUM_PRODUCTS} products alone", value=1000 * alone_s, unit="ms")]
    for name, seconds in medians.items():
        if name != "alone":
            figures.append(Figure(what=f"slow-down {name}", value=seconds / alone_s, unit="x"))
    return figures
