"""What each accelerator can do at most, by its vendor's word: the denominator of MFU.

Dense figures only: a figure "with sparsity" assumes that two of every four weights are zero, which
no training here has, so it is halved. A precision that a device has no dense units for is NULL,
and so is every device that is not listed: a peak is stated or not told, never guessed.

Each row names the vendor's document. AMD's was read itself, NVIDIA's as public places quote them
(among them PyTorch Lightning's and torchtitan's tables of peaks). Every dense figure lies within
2 % of units x operations a clock x clock; tests/analytics/test_mfu.py has the three. Where the
vendor's documents do not agree with each other a doubt says so, and run_mfu shows it beside the
share that rests on the figure.

Before: vendors' data sheets, named row by row.   After: analytics/ddl.py makes the view
device_peak of it; the view run_mfu divides by it.
Price: a device is known by exactly the names its driver gives it, so that a slice of it, or a
variant of other clocks, is unknown rather than wrong.
"""

from __future__ import annotations

import dataclasses

VIEW_NAME = "device_peak"
_TERA = 1e12
_GIGA = 1e9

_VOLTA = "NVIDIA V100 Tensor Core GPU data sheet (1165301 r5)"
_AMPERE = "NVIDIA A100 Tensor Core GPU data sheet (1758950 r4)"
_HOPPER = (
    "NVIDIA H100 Tensor Core GPU Architecture white paper v1.04, tables of peak rates and memory"
)
_CDNA3 = "AMD CDNA 3 Architecture white paper, endnotes"
_ADA_DOUBT = (
    "its data sheet prints 362.05 dense beside 733 with sparsity, which is not twice as much, and "
    "the L40's prints 181 for the same chip"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Doubt:
    """A figure that the vendor's own documents do not agree on."""

    figure: str  # fp32, tf32, bf16, fp16 or memory
    why: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class DevicePeak:
    """The most that one device does; None where it has no dense units for a precision."""

    device: str
    names: tuple[str, ...]  # as drivers tell them
    fp32_tflops: float  # plain fp32, not through tf32 [10^12 FLOP/s]
    tf32_tflops: float | None
    bf16_tflops: float | None
    fp16_tflops: float | None
    memory_gb_per_s: float  # peak memory bandwidth [10^9 bytes/s]
    source: str  # title and publisher of the document
    doubts: tuple[Doubt, ...] = ()


PEAKS: tuple[DevicePeak, ...] = (
    DevicePeak(
        device="V100 SXM2",
        names=("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB"),
        fp32_tflops=15.7,
        tf32_tflops=None,
        bf16_tflops=None,
        fp16_tflops=125.0,
        memory_gb_per_s=900.0,
        source=_VOLTA,
    ),
    DevicePeak(
        device="V100 PCIe",
        names=("Tesla V100-PCIE-16GB", "Tesla V100-PCIE-32GB"),
        fp32_tflops=14.0,
        tf32_tflops=None,
        bf16_tflops=None,
        fp16_tflops=112.0,
        memory_gb_per_s=900.0,
        source=_VOLTA,
    ),
    DevicePeak(
        device="A100 40 GB",
        names=("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB"),
        fp32_tflops=19.5,
        tf32_tflops=156.0,
        bf16_tflops=312.0,
        fp16_tflops=312.0,
        memory_gb_per_s=1555.0,
        source="NVIDIA A100 Tensor Core GPU Architecture white paper v1.0",
    ),
    DevicePeak(
        device="A100 80 GB SXM",
        names=("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        fp32_tflops=19.5,
        tf32_tflops=156.0,
        bf16_tflops=312.0,
        fp16_tflops=312.0,
        memory_gb_per_s=2039.0,
        source=_AMPERE,
    ),
    DevicePeak(
        device="A100 80 GB PCIe",
        names=("NVIDIA A100 80GB PCIe",),
        fp32_tflops=19.5,
        tf32_tflops=156.0,
        bf16_tflops=312.0,
        fp16_tflops=312.0,
        memory_gb_per_s=1935.0,
        source=_AMPERE,
    ),
    DevicePeak(
        device="H100 SXM",
        names=("NVIDIA H100 80GB HBM3",),
        fp32_tflops=66.9,
        tf32_tflops=494.7,
        bf16_tflops=989.4,
        fp16_tflops=989.4,
        memory_gb_per_s=3352.0,
        source=_HOPPER,
    ),
    DevicePeak(
        device="H100 PCIe",
        names=("NVIDIA H100 PCIe",),
        fp32_tflops=51.2,
        tf32_tflops=378.0,
        bf16_tflops=756.0,
        fp16_tflops=756.0,
        memory_gb_per_s=2039.0,
        source=_HOPPER,
    ),
    DevicePeak(
        device="H200 SXM",
        names=("NVIDIA H200",),
        fp32_tflops=67.0,
        tf32_tflops=494.5,
        bf16_tflops=989.5,
        fp16_tflops=989.5,
        memory_gb_per_s=4800.0,
        source="NVIDIA H200 Tensor Core GPU data sheet: 989 and 1,979 TFLOPS with sparsity, halved",
    ),
    DevicePeak(
        device="B200 SXM",
        names=("NVIDIA B200",),
        fp32_tflops=75.0,
        tf32_tflops=1125.0,
        bf16_tflops=2250.0,
        fp16_tflops=2250.0,
        memory_gb_per_s=7700.0,
        source="NVIDIA HGX B200 page: eight give 600 TFLOPS in fp32, 18 and 36 PFLOPS with "
        "sparsity, halved; NVIDIA Blackwell data sheet: one has 7.7 TB/s",
        doubts=(
            Doubt(
                figure="tf32",
                why="the Blackwell data sheet prints 2.2 PFLOPS with sparsity for one, which is "
                "1,100 dense; the page of eight, and units x clock, say 1,125",
            ),
            Doubt(figure="memory", why="DGX B200's data sheet prints 64 TB/s for eight, 8 each"),
        ),
    ),
    DevicePeak(
        device="L40S",
        names=("NVIDIA L40S",),
        fp32_tflops=91.6,
        tf32_tflops=183.0,
        bf16_tflops=362.05,
        fp16_tflops=362.05,
        memory_gb_per_s=864.0,
        source="NVIDIA L40S data sheet, dense figures",
        doubts=(Doubt(figure="bf16", why=_ADA_DOUBT), Doubt(figure="fp16", why=_ADA_DOUBT)),
    ),
    DevicePeak(
        device="L4",
        names=("NVIDIA L4",),
        fp32_tflops=30.3,
        tf32_tflops=60.0,
        bf16_tflops=121.0,
        fp16_tflops=121.0,
        memory_gb_per_s=300.0,
        source="NVIDIA L4 Tensor Core GPU data sheet: 120 and 242 TFLOPS with sparsity, halved",
    ),
    DevicePeak(
        device="A10G",
        names=("NVIDIA A10G",),
        fp32_tflops=35.0,
        tf32_tflops=35.0,
        bf16_tflops=70.0,
        fp16_tflops=70.0,
        memory_gb_per_s=600.0,
        source="NVIDIA A10G Tensor Core GPU data sheet (published by AWS), 17 February 2022, dense "
        "figures",
    ),
    DevicePeak(
        device="T4",
        names=("Tesla T4",),
        fp32_tflops=8.1,
        tf32_tflops=None,
        bf16_tflops=None,
        fp16_tflops=65.0,
        memory_gb_per_s=320.0,
        source="NVIDIA T4 product page: 8.1 and 65 TFLOPS, 320+ GB/s",
        doubts=(Doubt(figure="memory", why="the T4's data sheet prints 300 GB/s"),),
    ),
    DevicePeak(
        device="MI250X, one die",
        names=("AMD Instinct MI250X",),
        fp32_tflops=47.85,
        tf32_tflops=None,
        bf16_tflops=191.5,
        fp16_tflops=191.5,
        memory_gb_per_s=1638.4,
        source=f"{_CDNA3}: 95.7 (fp32 matrix), 383.0 TFLOPS and 3.277 TB/s for two dies, of "
        "which a rank is given one",
    ),
    DevicePeak(
        device="MI300X",
        names=("AMD Instinct MI300X", "AMD Instinct MI300X OAM"),
        fp32_tflops=163.4,
        tf32_tflops=653.7,
        bf16_tflops=1307.4,
        fp16_tflops=1307.4,
        memory_gb_per_s=5325.0,
        source=f"{_CDNA3}: figures without sparsity, 5.325 TB/s",
    ),
)

_HEAD = f"""\
-- {VIEW_NAME}: the dense peak of each known accelerator, by the names its driver gives it.
-- Grain: one row per name of a device. Units: in the names. Reads from: analytics/device_peaks.py.
-- device_name []: Name as the driver tells it, in small letters
-- device []: The product
-- fp32_flops_per_s [1/s]: Dense floating-point operations a second in plain fp32
-- tf32_flops_per_s [1/s]: The same in tf32; NULL where the device has none
-- bf16_flops_per_s [1/s]: The same in bf16; NULL where the device has none
-- fp16_flops_per_s [1/s]: The same in fp16
-- memory_bytes_per_s [bytes/s]: Peak memory bandwidth
-- source []: Where the figures come from: title and publisher
-- not_confirmed []: Figures the vendor's documents do not agree on, such as bf16; NULL when none
-- doubt []: Why, figure by figure; NULL when there is none
"""


def view_text() -> str:
    """The view device_peak as the text of a view file, head comment included."""
    names = (
        "device_name, device, fp32_flops_per_s, tf32_flops_per_s, bf16_flops_per_s, "
        "fp16_flops_per_s, memory_bytes_per_s, source, not_confirmed, doubt"
    )
    rows = ",\n    ".join(_row(peak, name) for peak in PEAKS for name in peak.names)
    return f"{_HEAD}SELECT *\nFROM (VALUES\n    {rows}\n) AS listed ({names});\n"


def _row(peak: DevicePeak, name: str) -> str:
    figures = [peak.fp32_tflops, peak.tf32_tflops, peak.bf16_tflops, peak.fp16_tflops]
    flops = [None if figure is None else figure * _TERA for figure in figures]
    numbers = [*flops, peak.memory_gb_per_s * _GIGA]
    cells = [f"CAST({'NULL' if n is None else repr(n)} AS DOUBLE)" for n in numbers]
    texts = [_text(name.lower()), _text(peak.device)]
    figures_told = ", ".join(doubt.figure for doubt in peak.doubts)
    why = "; ".join(f"{doubt.figure}: {doubt.why}" for doubt in peak.doubts)
    words = [_text(peak.source), _text(figures_told or None), _text(why or None)]
    return f"({', '.join([*texts, *cells, *words])})"


def _text(text: str | None) -> str:
    if text is None:
        return "CAST(NULL AS VARCHAR)"
    return "'" + text.replace("'", "''") + "'"
