"""Model FLOPs over dense peaks: a peak is the vendor's or none, and every rank counts."""

import dataclasses
import re

import duckdb
import pytest

from analytics import measures, schema
from analytics.ddl import view_column_docs
from analytics.device_peaks import PEAKS, view_text

PIPELINE = "20261130T140000Z-1a2b"
RUN = f"{PIPELINE}-baseline"


def rank(number, device_name="NVIDIA H200", device_id=None):
    return schema.DimRank(
        run_id=RUN, pipeline_id=PIPELINE, attempt=0, rank=number, local_rank=number, host="paper",
        device_id=device_id or f"GPU-{number}", device_name=device_name, clock_offset_ns=None,
        clock_uncertainty_ns=None, peak_memory_bytes=None,
    )  # fmt: skip


def steps(paper, ranks=(0, 1), flops=197.9e12):
    return [paper.step("baseline", r, s, model_flops=flops) for r in ranks for s in range(2)]


def test_mfu_is_model_flops_over_the_dense_peak_of_every_device(paper, filled):
    run = paper.run("baseline", device="cuda", precision="bf16")
    filled.write([run, rank(0), rank(1), *steps(paper)])
    row = measures.run_mfu(filled.con, RUN)
    # four times 197.9 TFLOP in two steps of 4 s on two devices of 989.5 TFLOP/s: 5 %
    assert row["mfu_share"] == pytest.approx(0.05)
    assert row["mfu_reason"] is None
    assert row["device_name"] == "NVIDIA H200"


def test_fp32_runs_are_held_against_plain_fp32(paper, filled):
    run = paper.run("baseline", device="cuda", precision="fp32")
    filled.write([run, rank(0), rank(1), *steps(paper, flops=67e12)])
    # 4 x 67 TFLOP over 8 s x 2 x 67 TFLOP/s
    assert measures.run_mfu(filled.con, RUN)["mfu_share"] == pytest.approx(0.25)


def test_a_share_names_the_document_of_its_peak_and_what_speaks_against_it(paper, filled):
    run = paper.run("baseline", device="cuda", precision="bf16")
    filled.write([run, rank(0), rank(1), *steps(paper)])
    row = measures.run_mfu(filled.con, RUN)
    assert row["peak_source"].startswith("NVIDIA H200")
    assert row["peak_doubt"] is None


@pytest.mark.parametrize(
    ("device", "precision", "is_doubted"),
    [("NVIDIA L40S", "bf16", True), ("NVIDIA L40S", "fp32", False), ("NVIDIA B200", "bf16", False)],
)
def test_a_doubt_is_told_with_the_precision_it_is_about(
    paper, filled, device, precision, is_doubted
):
    run = paper.run("baseline", device="cuda", precision=precision)
    filled.write([run, rank(0, device), rank(1, device), *steps(paper)])
    row = measures.run_mfu(filled.con, RUN)
    assert row["mfu_share"] is not None
    assert (row["peak_doubt"] is not None) == is_doubted


def test_ranks_that_share_a_device_share_its_peak(paper, filled):
    run = paper.run("baseline", device="cuda", precision="bf16")
    shared = [rank(0, device_id="GPU-0"), rank(1, device_id="GPU-0")]
    filled.write([run, *shared, *steps(paper)])
    assert measures.run_mfu(filled.con, RUN)["mfu_share"] == pytest.approx(0.1)


def test_a_rank_that_recorded_nothing_still_counts_below(paper, filled):
    # legion#691, reportseff#19: a wholly idle GPU was missing, and the rest read 100 %
    run = paper.run("baseline", device="cuda", precision="bf16")
    filled.write([run, rank(0), rank(1), *steps(paper, ranks=(0,))])
    assert measures.run_mfu(filled.con, RUN)["mfu_share"] == pytest.approx(0.025)


@pytest.mark.parametrize(
    ("run", "ranks", "flops", "reason"),
    [
        ({"device": "cpu"}, ["NVIDIA H200"] * 2, 1.0, "no peak of a CPU is stated"),
        ({}, ["NVIDIA H300"] * 2, 1.0, "no dense peak of NVIDIA H300 in bf16 is known"),
        ({}, ["NVIDIA A100-SXM4-40GB MIG 1g.5gb"] * 2, 1.0, "no dense peak of NVIDIA A100"),
        ({}, ["Tesla T4"] * 2, 1.0, "no dense peak of Tesla T4 in bf16 is known"),
        ({}, ["NVIDIA H200", "NVIDIA H300"], 1.0, "no dense peak of NVIDIA H200, NVIDIA H300"),
        ({}, ["NVIDIA H200"], 1.0, "not every rank told its device"),
        ({}, ["NVIDIA H200"] * 2, None, "no step told its model_flops"),
        ({"precision": None}, ["NVIDIA H200"] * 2, 1.0, "did not tell its precision"),
    ],
)
def test_what_is_not_known_is_told_and_never_guessed(paper, filled, run, ranks, flops, reason):
    about = paper.run("baseline", **({"device": "cuda", "precision": "bf16"} | run))
    told = [rank(n, name) for n, name in enumerate(ranks)]
    filled.write([about, *told, *steps(paper, flops=flops)])
    row = measures.run_mfu(filled.con, RUN)
    assert row["mfu_share"] is None
    assert reason in row["mfu_reason"]


FIGURES = ("fp32", "tf32", "bf16", "fp16", "memory")


def figures(peak):
    """The four peaks by precision, in TFLOPS."""
    return {name: getattr(peak, f"{name}_tflops") for name in FIGURES[:4]}


def test_every_name_stands_once_and_every_figure_has_a_source():
    names = [name.lower() for peak in PEAKS for name in peak.names]
    assert len(set(names)) == len(names)
    for peak in PEAKS:
        assert re.match(r"(NVIDIA|AMD) \S+", peak.source), peak.device
        assert all(v is None or v > 0 for v in dataclasses.astuple(peak)[2:7])
        for doubt in peak.doubts:
            assert doubt.figure in FIGURES and doubt.why
            assert doubt.figure == "memory" or figures(peak)[doubt.figure] is not None


@pytest.mark.parametrize("peak", PEAKS, ids=lambda peak: peak.device)
def test_a_narrower_number_is_never_slower(peak):
    # units for tf32 are those for 16 bits at half the rate; 16 bits of either kind run at one rate
    told = figures(peak)
    wide = [told[name] for name in ("fp32", "tf32", "fp16") if told[name] is not None]
    assert wide == sorted(wide)
    assert told["bf16"] in (None, told["fp16"])
    if told["tf32"] is not None:
        assert told["fp16"] / told["tf32"] == pytest.approx(2, rel=0.02)


# SMs or CUs, operations a clock of each (a multiply-add is two) in fp32, tf32 and 16 bits, clock in
# GHz (a second one where the matrix units run slower) and bits x Gbit/s of the memory: the white
# papers of Volta, Turing, Ampere, Hopper, Ada, CDNA 2 and 3; clocks of the A10G, L4 and B200 and
# the B200's units as public lists of GPUs have them
HARDWARE = {
    "V100 SXM2": (80, 128, None, 1024, 1.53, 1.53, 4096 * 1.756),
    "V100 PCIe": (80, 128, None, 1024, 1.38, 1.38, 4096 * 1.756),
    "A100 40 GB": (108, 128, 1024, 2048, 1.41, 1.41, 5120 * 2.43),
    "A100 80 GB SXM": (108, 128, 1024, 2048, 1.41, 1.41, 5120 * 3.186),
    "A100 80 GB PCIe": (108, 128, 1024, 2048, 1.41, 1.41, 5120 * 3.024),
    "H100 SXM": (132, 256, 2048, 4096, 1.98, 1.83, 5120 * 5.238),
    "H100 PCIe": (114, 256, 2048, 4096, 1.755, 1.62, 5120 * 3.186),
    "H200 SXM": (132, 256, 2048, 4096, 1.98, 1.83, 6144 * 6.25),
    "B200 SXM": (148, 256, 4096, 8192, 1.98, 1.86, 8192 * 7.5),
    "L40S": (142, 256, 512, 1024, 2.52, 2.52, 384 * 18),
    "L4": (58, 256, 512, 1024, 2.04, 2.04, 192 * 12.5),
    "A10G": (80, 256, 256, 512, 1.71, 1.71, 384 * 12.5),
    "T4": (40, 128, None, 1024, 1.59, 1.59, 256 * 10),
    "MI250X, one die": (110, 256, None, 1024, 1.7, 1.7, 4096 * 3.2),
    "MI300X": (304, 256, 1024, 2048, 2.1, 2.1, 8192 * 5.2),
}


@pytest.mark.parametrize("peak", PEAKS, ids=lambda peak: peak.device)
def test_no_device_does_more_than_its_units_in_its_clock(peak):
    # a figure with sparsity is twice what the units do, a base clock's well below: both would show
    units, fp32, tf32, narrow, clock_ghz, matrix_ghz, memory_gbit_per_s = HARDWARE[peak.device]
    told = figures(peak)
    possible = {
        "fp32": units * fp32 * clock_ghz / 1e3,
        "tf32": None if tf32 is None else units * tf32 * matrix_ghz / 1e3,
        "fp16": units * narrow * matrix_ghz / 1e3,
    }
    for name, most in possible.items():
        assert (told[name] is None) == (most is None), name
        if most is not None:
            assert 0.98 * most <= told[name] <= 1.005 * most, name
    most = memory_gbit_per_s / 8
    assert 0.99 * most <= peak.memory_gb_per_s <= 1.01 * most


@pytest.mark.parametrize(
    ("name", "fp32", "narrow"),
    [  # TFLOPS as PyTorch Lightning's _CUDA_FLOPS and torchtitan's get_peak_flops have them
        ("NVIDIA H100 80GB HBM3", 67, 1979 / 2),
        ("NVIDIA H100 PCIe", 51, 1513 / 2),
        ("NVIDIA H200", None, 989),
        ("NVIDIA B200", None, 2250),
        ("NVIDIA A100-PCIE-40GB", 19.5, 312),
        ("Tesla V100-SXM2-16GB", 15.7, 125),
        ("Tesla V100-PCIE-32GB", 14, 112),
        ("Tesla T4", 8.1, 65),
        ("AMD Instinct MI250X", None, 191.5),
        ("AMD Instinct MI300X", None, 1300),
    ],
)
def test_others_tables_have_the_same_peaks(name, fp32, narrow):
    [peak] = [peak for peak in PEAKS if name in peak.names]
    assert peak.fp16_tflops == pytest.approx(narrow, rel=0.006)
    assert fp32 is None or peak.fp32_tflops == pytest.approx(fp32, rel=0.006)


@pytest.mark.parametrize(
    ("name", "sparse_bf16_tflops"),
    [  # what the vendors print "with sparsity"; a dense figure is half of it
        ("NVIDIA A100-SXM4-80GB", 624),
        ("NVIDIA H100 80GB HBM3", 1979),
        ("NVIDIA H200", 1979),
        ("NVIDIA L4", 242),
        ("NVIDIA B200", 4500),
        ("AMD Instinct MI300X", 2614.9),
    ],
)
def test_peaks_are_dense(name, sparse_bf16_tflops):
    [peak] = [peak for peak in PEAKS if name in peak.names]
    assert peak.bf16_tflops == pytest.approx(sparse_bf16_tflops / 2, rel=1e-3)


def test_the_view_of_peaks_is_the_table_with_its_words():
    rows = duckdb.sql(view_text().rstrip().rstrip(";")).fetchall()
    assert len(rows) == sum(len(peak.names) for peak in PEAKS)
    by_name = {row[0]: row for row in rows}
    assert by_name["tesla t4"][2:7] == (8.1e12, None, None, 65e12, 320e9)
    assert by_name["tesla t4"][8] == "memory"
    assert by_name["nvidia a100-sxm4-80gb"][8:] == (None, None)
    assert set(view_column_docs("device_peak")) >= {"fp32_flops_per_s", "source", "doubt"}
