"""Model FLOPs over dense peaks: a peak is the vendor's or none, and every rank counts."""

import dataclasses

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


def test_every_name_stands_once_and_every_figure_has_a_source():
    names = [name.lower() for peak in PEAKS for name in peak.names]
    assert len(set(names)) == len(names)
    for peak in PEAKS:
        assert peak.source
        assert all(v is None or v > 0 for v in dataclasses.astuple(peak)[2:7])


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
    assert set(view_column_docs("device_peak")) >= {"fp32_flops_per_s", "source"}
