"""The overview page: what the bubbles of one pipeline are, what they cost, what was gained.

Before: store.py answers with rows of analytics.metrics.   After: the reader; every section is
question -> number -> chart -> table -> download, and the download holds the rows that are shown.
The selection lives in the URL (`?pipeline=...`), so a link shows what its sender saw.
"""

from __future__ import annotations

import time
from typing import Any

import pandas as pd
import streamlit as st

from analytics.compare import ArmComparison
from analytics.csv_dialects import csv_lines
from analytics.errors import QueryError, WarehouseError
from analytics.metrics import CAUSE_LABELS
from dashboard import charts, empty_states, wording
from dashboard.store import Published, published, runs_dir

Row = dict[str, Any]
_MAX_POINTS = 300


def page() -> None:
    """The whole page, or the empty state that fits."""
    folder = runs_dir()
    st.title("Where does the training time go?")
    try:
        copy = published(folder)
        if copy is None:
            empty_states.no_warehouse(folder)
            return
        pipelines = copy.ask("pipelines")
        if not pipelines:
            empty_states.no_runs(folder)
            return
        _pipeline(copy, pipelines)
    except QueryError as error:
        empty_states.query_failed(folder, str(error))
    except WarehouseError as error:
        empty_states.unreadable(folder, str(error))


def _pipeline(copy: Published, pipelines: list[Row]) -> None:
    by_id = {row["pipeline_id"]: row for row in pipelines}
    left, right = st.columns([2, 3], vertical_alignment="bottom")
    chosen = left.selectbox("Pipeline", list(by_id), key="pipeline", bind="query-params")
    right.markdown(_what_is_shown(copy, by_id[chosen]))
    runs = copy.ask("run_efficiency", chosen)
    arms = {row["arm"]: row for row in runs}
    comparison = None
    if {"baseline", "balanced"} <= set(arms):
        comparison = copy.ask("compare_arms", chosen)
    _headline(runs)
    causes = copy.ask("pipeline_causes", chosen)
    if not causes:
        empty_states.no_part(
            copy.runs_dir, what="steps are", why="the run ended before its first step."
        )
        return
    _bubbles(runs, causes, comparison)
    _speed(copy, runs, comparison)
    _quality(copy, chosen)
    _cost(copy, chosen, runs, causes)


def _what_is_shown(copy: Published, shown: Row) -> str:
    now = time.time()
    data = f"**{shown['dataset_name'] or 'unknown data'}**"
    if shown["num_users"] is not None:
        data += f", {shown['num_users']:,} users, {shown['num_items']:,} items"
    ranks = f"{shown['world_size']} rank{'s' if shown['world_size'] != 1 else ''}"
    started = wording.instant(shown["started_unix_ns"] / 1e9)
    text = f"{data} · {ranks} on {shown['device']} · started {started}"
    if shown["ended_unix_ns"] is not None:
        text += f" · last step {wording.age(now - shown['ended_unix_ns'] / 1e9)} ago"
    return text + f" · published {wording.age(now - copy.published_unix_s)} ago"


def _headline(runs: list[Row]) -> None:
    """The last arm's figures, each against the first arm's."""
    ours, theirs = runs[-1], runs[0] if len(runs) > 1 else {}
    against = f" against {theirs['arm']}" if theirs else ""
    st.caption(f"Arm **{ours['arm']}**{against}")
    quality = ""
    if ours["hr_at_10"] is not None and ours["popularity_hr_at_10"]:
        quality = f"{ours['hr_at_10'] / ours['popularity_hr_at_10']:.2f} x popularity"
    tiles = [
        ("Bubble", wording.percent(ours["bubble_share"]), "bubble_share", "inverse"),
        ("Step time", wording.duration(ours["step_s"]), "step_s", "inverse"),
        ("Sequences a second", wording.number(ours["samples_per_s"]), "samples_per_s", "normal"),
        ("HR@10", wording.number(ours["hr_at_10"], 3), None, "off"),
        (
            "Cost of 1 M sequences",
            wording.money(ours["cost_per_1m_samples"], ours["currency"]),
            "cost_per_1m_samples",
            "inverse",
        ),
    ]
    for place, (label, value, key, colour) in zip(st.columns(5), tiles, strict=True):
        against_first = wording.points if key == "bubble_share" else wording.change
        delta = against_first(ours[key], theirs.get(key)) if key else quality or None
        place.metric(
            label,
            value,
            delta,
            delta_color=colour,  # type: ignore[arg-type]
            delta_arrow="auto" if key else "off",
            border=True,
        )


def _bubbles(runs: list[Row], causes: list[Row], comparison: ArmComparison | None) -> None:
    st.header("How much of the rank time is lost, and to what?")
    lost = [f"**{r['arm']}** loses {wording.percent(r['bubble_share'])}" for r in runs]
    text = "; ".join(lost) + " of its rank time to bubbles."
    if comparison and comparison.bubble_reduction_share.value is not None:
        reduction = comparison.bubble_reduction_share
        text += (
            f" Bubble seconds reduced by **{wording.percent(reduction.value)}**"
            f"{wording.interval(reduction, as_percent=True)} on the same batches."
        )
    st.markdown(text)
    shares = "; ".join(
        f"{c['arm']} {CAUSE_LABELS[c['cause']]} {wording.percent(c['share'])}" for c in causes
    )
    st.altair_chart(
        charts.stacked_causes(
            causes, value="share", axis="share of rank time", number_format=".1%"
        ),
        width="stretch",
        alt=f"Share of rank time by arm and cause: {shares}.",
    )
    _table(causes, "causes", "bubbles by cause")


def _speed(copy: Published, runs: list[Row], comparison: ArmComparison | None) -> None:
    st.header("How fast is a step, and how many sequences a second?")
    speeds = "; ".join(
        f"**{r['arm']}** {wording.duration(r['step_s'])} a step, "
        f"{wording.number(r['samples_per_s'])} sequences/s"
        for r in runs
    )
    if comparison and comparison.step_time_ratio.value is not None:
        ratio = comparison.step_time_ratio
        speeds += (
            f". Step time {comparison.candidate} / {comparison.baseline}: "
            f"**{ratio.value:.3f}**{wording.interval(ratio, as_percent=False)}"
        )
    st.markdown(speeds + ".")
    series = [
        {"arm": run["arm"], **point}
        for run in runs
        for point in copy.ask("step_series", run["run_id"], _MAX_POINTS)
    ]
    left, right = st.columns([3, 2])
    left.altair_chart(
        charts.step_lines(series, value="step_s", axis="step time [s]"),
        width="stretch",
        alt="Step time over the steps of every arm; the table has the numbers.",
    )
    measured = [r for r in runs if r["samples_per_s"] is not None]
    right.altair_chart(
        charts.bars(
            measured, value="samples_per_s", axis="sequences per second", number_format=",.1f"
        ),
        width="stretch",
        alt="Sequences a second: "
        + "; ".join(f"{r['arm']} {wording.number(r['samples_per_s'])}" for r in measured)
        + ".",
    )
    _table(runs, "efficiency", "efficiency of every arm")


def _quality(copy: Published, pipeline_id: str) -> None:
    st.header("Are the recommendations as good?")
    rows = copy.ask("quality", pipeline_id)
    if not rows:
        empty_states.no_part(
            copy.runs_dir, what="evaluation is", why="the run ended before it was evaluated."
        )
        return
    shown = _one_popularity(rows)
    st.markdown(
        "HR@10 "
        + "; ".join(f"**{r['who']}** {wording.number(r['hr_at_10'], 3)}" for r in shown)
        + f", over {rows[0]['num_users']:,} users with every item ranked. Targets never seen in "
        f"training count as misses; there are {rows[0]['num_cold_targets']:,}."
    )
    st.altair_chart(
        charts.quality_bars(shown),
        width="stretch",
        alt="Quality on the test split: "
        + "; ".join(
            f"{r['who']} HR@10 {r['hr_at_10']:.3f}, NDCG@10 {r['ndcg_at_10']:.3f}" for r in shown
        )
        + ".",
    )
    _table(rows, "quality", "quality of every arm and of popularity ranking")


def _cost(copy: Published, pipeline_id: str, runs: list[Row], causes: list[Row]) -> None:
    st.header("What does it cost?")
    currency = runs[0]["currency"]
    st.markdown(
        "; ".join(
            f"**{r['arm']}** {wording.money(r['cost'], currency)}, of which "
            f"{wording.money(r['bubble_cost'], currency)} for bubbles"
            for r in runs
        )
        + ". At this bubble, 1,000 device-hours would lose "
        + "; ".join(
            f"{wording.money(r['bubble_cost_per_1000_device_hours'], currency)} ({r['arm']})"
            for r in runs
        )
        + "."
    )
    st.altair_chart(
        charts.stacked_causes(
            causes,
            value="cost",
            axis=f"cost of the run [{currency}]",
            number_format=wording.money_format(max(c["cost"] for c in causes)),
        ),
        width="stretch",
        alt="Cost by arm and cause: "
        + "; ".join(
            f"{c['arm']} {CAUSE_LABELS[c['cause']]} {wording.money(c['cost'], currency)}"
            for c in causes
        )
        + ".",
    )
    prices = copy.ask("price", pipeline_id)
    for p in prices:
        st.caption(
            f"Rank time priced as {p['instance_type']} ({p['cloud']}, {p['region']}): "
            f"{wording.money(p['device_hour_cost'], p['currency'])} per device-hour, "
            f"{p['source']}."
        )
    _table(prices, "price", "price that was applied")


def _one_popularity(rows: list[Row]) -> list[Row]:
    """Every arm's model, then popularity ranking once: it is the same for all arms."""
    models = [{"who": r["arm"], **r} for r in rows if r["ranker"] == "model"]
    popular = [{"who": "popularity", **r} for r in rows if r["ranker"] == "popularity"]
    return models + popular[:1]


def _table(rows: list[Row], name: str, what: str) -> None:
    """The rows behind a chart, and the same rows as a CSV file."""
    if not rows:
        return
    with st.expander(f"Table: {what}"):
        st.dataframe(pd.DataFrame(rows), hide_index=True, width="stretch")
        st.download_button(
            "Download as CSV",
            csv_text(rows),
            file_name=f"{name}.csv",
            mime="text/csv",
            key=f"download_{name}",
        )


def csv_text(rows: list[Row]) -> str:
    """Rows in the dialect of the exports, cells that a spreadsheet would run disarmed."""
    names = list(rows[0])
    return "".join(csv_lines(names, ([row[name] for name in names] for row in rows)))
