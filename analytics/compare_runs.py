"""Compares any two runs figure by figure, each ratio with a 95 % bootstrap interval.

Where both ran the same global batches, step k of one and step k of the other are a pair and pairs
are resampled; else each run's steps are resampled by themselves, which tells less. Neighbouring
steps are alike (caches, other load on the machine), so whole stretches of steps are drawn, not
single ones (moving blocks, ends joined: Kuensch 1989, Politis and Romano 1992).
A difference whose interval holds 1 is not called one.

Before: view step_parts.   After: `seqscale compare`.
Price: 2,000 resamples of the sums of stretches, in chunks, so that memory stays small.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt

from analytics.compare import NUM_RESAMPLES, Estimate
from analytics.errors import WarehouseError
from analytics.named_runs import runs_named
from analytics.plain_rows import Row, plain_rows

# figure -> the columns of step_parts whose sums are divided: above, and below; None: by the steps
FIGURES: dict[str, tuple[str, str | None]] = {
    "step_s": ("step_s", None),
    "bubble_s": ("bubble_s", None),
    "bubble_share": ("bubble_s", "step_s"),
    "samples_per_s": ("num_samples", "step_s"),
    "busy_s": ("busy_s", None),
    "straggler_wait_s": ("straggler_wait_s", None),
    "exposed_comm_s": ("exposed_comm_s", None),
    "exposed_comm_total_s": ("exposed_comm_total_s", None),
    "exposed_copy_s": ("exposed_copy_s", None),
    "data_wait_s": ("data_wait_s", None),
    "host_wait_s": ("host_wait_s", None),
    "kernel_gap_s": ("kernel_gap_s", None),
    "unattributed_s": ("unattributed_s", None),
}
HIGHER, LOWER, NO_DIFFERENCE, NOT_TOLD = "higher", "lower", "no difference told", "not told"
PAIRED, UNPAIRED = "paired", "unpaired"
_DESCRIBED = (
    "dataset_id", "seed", "world_size", "global_batch_sequences", "placement", "schedule",
    "transport", "precision", "micro_batches", "table_optimizer", "device", "host",
    "seqscale_version", "config_sha256",
)  # fmt: skip
_SAME_BATCHES = ("dataset_id", "seed", "world_size", "global_batch_sequences")
MIN_STEPS = 20  # fewer make seven stretches or less, and an interval that is too narrow
_TAIL = 0.025
_CHUNK = 250  # resamples at once
_ROUNDING = 1e-9  # runs that are alike differ by this much from adding floats

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure of both runs, and their ratio a / b; None where it was not measured."""

    a: float | None
    b: float | None
    ratio: Estimate
    verdict: str  # of a against b: higher, lower, no difference told, or not told


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunComparison:
    """How run a compares with run b; JSON-able. Ratios are of means over the steps compared."""

    run_a: str
    run_b: str
    kind: str  # paired or unpaired
    reason: str  # why it was the one or the other
    num_steps_a: int
    num_steps_b: int
    differs: dict[str, list[Any]]  # what was set differently: [a's, b's]
    figures: dict[str, Figure]


def run_pairs(con: duckdb.DuckDBPyConnection, first: str, second: str) -> list[tuple[str, str]]:
    """The runs that two names stand for: two runs, or the arms of one name of two pipelines.

    A run beside a pipeline is compared with the pipeline's arm of the same name, or its only one.
    Raises WarehouseError when a name is unknown, or the two have no arm in common.
    """
    ours, theirs = runs_named(con, first), runs_named(con, second)
    if len(ours) == len(theirs) == 1:
        pairs = [(next(iter(ours.values())), next(iter(theirs.values())))]
    else:
        pairs = [(run, theirs[arm]) for arm, run in ours.items() if arm in theirs]
    if not pairs:
        raise WarehouseError(
            f"{first} and {second} have no arm in common: {', '.join(ours)} and "
            f"{', '.join(theirs)}. Name one run of each; a run is named PIPELINE-ARM."
        )
    for run_a, run_b in pairs:
        if run_a == run_b:
            raise WarehouseError(f"{run_a} cannot be compared with itself. Name another run.")
    return pairs


def compare_runs(
    con: duckdb.DuckDBPyConnection, run_a: str, run_b: str, *, seed: int = 0
) -> RunComparison:
    """Compare two runs over the steps that each recorded whole.

    Without such a step every figure is None, with fewer than MIN_STEPS there is no interval;
    deterministic for a seed.
    Raises WarehouseError when a run is unknown.
    """
    about_a, about_b = _about(con, run_a), _about(con, run_b)
    steps_a, steps_b = _steps(con, run_a), _steps(con, run_b)
    is_paired, reason = _same_batches(about_a, about_b, steps_a, steps_b)
    if is_paired:
        common = sorted(steps_a.keys() & steps_b.keys())
        steps_a = {step: steps_a[step] for step in common}
        steps_b = {step: steps_b[step] for step in common}
    tables = (_table(steps_a), _table(steps_b))
    drawn = _resampled(tables, is_paired=is_paired, seed=seed)
    means = [_means(table) for table in tables]
    figures = {
        name: _compared(
            [_figure(mean, name) for mean in means],
            None if drawn is None else [_figure(mean, name) for mean in drawn],
        )
        for name in FIGURES
    }
    return RunComparison(
        run_a=run_a,
        run_b=run_b,
        kind=PAIRED if is_paired else UNPAIRED,
        reason=reason,
        num_steps_a=len(steps_a),
        num_steps_b=len(steps_b),
        differs={
            name: [about_a[name], about_b[name]]
            for name in _DESCRIBED
            if about_a[name] != about_b[name]
        },
        figures=figures,
    )


def _about(con: duckdb.DuckDBPyConnection, run_id: str) -> Row:
    rows = plain_rows(con, "SELECT * FROM dim_run WHERE run_id = ?", [run_id])
    if not rows:
        runs_named(con, run_id)  # tells which runs there are
        raise WarehouseError(f"{run_id} is a pipeline. Name one of its runs, PIPELINE-ARM.")
    return rows[0]


def _steps(con: duckdb.DuckDBPyConnection, run_id: str) -> dict[int, Row]:
    query = "SELECT * FROM step_parts WHERE run_id = ? ORDER BY step"
    return {row["step"]: row for row in plain_rows(con, query, [run_id])}


def _same_batches(
    about_a: Row, about_b: Row, steps_a: dict[int, Row], steps_b: dict[int, Row]
) -> tuple[bool, str]:
    """Whether step k of both runs held the same sequences, and how that is known."""
    for name in _SAME_BATCHES:
        if about_a[name] is None or about_a[name] != about_b[name]:
            return False, f"{name} is {about_a[name]} and {about_b[name]}"
    common = steps_a.keys() & steps_b.keys()
    if not common:
        return False, "no step was recorded whole by both"
    if about_a["pipeline_id"] == about_b["pipeline_id"]:
        return True, "two arms of one pipeline, which run the same global batches"
    for step in sorted(common):
        ours, theirs = steps_a[step]["num_targets"], steps_b[step]["num_targets"]
        if ours is None or ours != theirs:
            return False, f"step {step} had {ours} and {theirs} targets, so other sequences"
    return True, "same data set, seed, ranks and batch, and as many targets in every step"


_COLUMNS = tuple(dict.fromkeys(c for pair in FIGURES.values() for c in pair if c is not None))


def _table(steps: dict[int, Row]) -> Floats:
    """One line a step, one column for each of _COLUMNS; NaN where it was not measured."""
    lines = [[np.nan if row[c] is None else row[c] for c in _COLUMNS] for row in steps.values()]
    return np.array(lines, dtype=np.float64).reshape(len(lines), len(_COLUMNS))


def _resampled(tables: tuple[Floats, Floats], *, is_paired: bool, seed: int) -> list[Floats] | None:
    """Means over the steps of each resample, (R, columns) for each run; None for too few steps.

    Stretches of about steps^(1/3) steps are drawn; for pairs the same ones of both runs.
    """
    if min(map(len, tables)) < MIN_STEPS:
        return None
    rng = np.random.default_rng(seed)
    found: list[Floats] = []
    starts: list[npt.NDArray[np.int64]] = []
    for table in tables:
        num_steps = len(table)
        length = max(1, round(num_steps ** (1 / 3)))
        if not (is_paired and starts):
            shape = (NUM_RESAMPLES // _CHUNK, _CHUNK, -(-num_steps // length))
            starts = list(rng.integers(0, num_steps, size=shape))
        joined = np.concatenate([table, table[: length - 1]])
        stretches = np.lib.stride_tricks.sliding_window_view(joined, length, axis=0).mean(axis=-1)
        found.append(np.concatenate([stretches[chunk].mean(axis=1) for chunk in starts]))
    return found


def _means(table: Floats) -> Floats:
    """Mean over the steps, (columns,); NaN without a step."""
    return table.mean(axis=0) if len(table) else np.full(len(_COLUMNS), np.nan)


def _figure(means: Floats, name: str) -> Floats:
    """A figure from the means of its columns, the last axis; NaN where it has no value."""
    above, below = FIGURES[name]
    value = means[..., _COLUMNS.index(above)]
    if below is None:
        return np.asarray(value)
    base = means[..., _COLUMNS.index(below)]
    return np.divide(value, base, out=np.full_like(base, np.nan), where=base > 0)


def _compared(values: list[Floats], drawn: list[Floats] | None) -> Figure:
    """The ratio of the two runs' values, its interval, and what may be said of it."""
    of_a, of_b = map(_told, values)
    if of_a is None or of_b is None or of_b <= 0:
        nothing = Estimate(value=None, lower=None, upper=None)
        return Figure(a=of_a, b=of_b, ratio=nothing, verdict=NOT_TOLD)
    lower = upper = None
    if drawn is not None and (drawn[1] > 0).all():
        lower, upper = (float(q) for q in np.quantile(drawn[0] / drawn[1], [_TAIL, 1 - _TAIL]))
    verdict = NOT_TOLD
    if lower is not None and upper is not None:
        is_higher, is_lower = lower > 1 + _ROUNDING, upper < 1 - _ROUNDING
        verdict = HIGHER if is_higher else LOWER if is_lower else NO_DIFFERENCE
    ratio = Estimate(value=of_a / of_b, lower=lower, upper=upper)
    return Figure(a=of_a, b=of_b, ratio=ratio, verdict=verdict)


def _told(value: Floats) -> float | None:
    return float(value) if np.isfinite(value) else None
