"""The charts of every page: one fixed hue per cause, labels on the marks, never colour alone.

Before: rows of analytics.metrics.   After: overview.py shows them, with an alternative text.
Hues are Okabe and Ito's (distinguishable with any colour vision); they stand in CAUSE_HUES once.
"""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from analytics.metrics import CAUSE_LABELS

Row = dict[str, Any]
Chart = alt.Chart | alt.LayerChart | alt.FacetChart

CAUSE_HUES: dict[str, str] = {
    "busy": "#009E73",
    "straggler_wait": "#D55E00",
    "exposed_comm": "#0072B2",
    "exposed_comm_total": "#0072B2",
    "exposed_copy": "#CC79A7",
    "data_wait": "#E69F00",
    "host_wait": "#F0E442",
    "kernel_gap": "#56B4E9",
    "unattributed": "#999999",
}
_ARM_HUES = ("#8A8A8A", "#0072B2", "#CC79A7", "#E69F00", "#56B4E9")
_DARK_INK = {"#E69F00", "#F0E442", "#56B4E9", "#999999", "#CC79A7"}
_LEAST_LABELLED_SHARE = 0.045  # a narrower piece has no room for its number; the table has it
_ARM_PX = 52  # height of one arm's row
_AROUND_PX = 110  # legend above and axis below; the height of a chart includes them
_BAND_SHARE = 0.72  # of a row that its bar fills
_FONT_PX = 13
_LINES_PX = 250


def stacked_causes(rows: list[Row], *, value: str, axis: str, number_format: str) -> Chart:
    """One horizontal bar per arm, one piece per cause, in the causes' fixed order.

    rows: of metrics.pipeline_causes. value: the column that is stacked. number_format: a Python
    format of one piece's label.
    """
    frame = _pieces(rows, value, number_format)
    order = [c for c in CAUSE_LABELS if c in set(frame["cause"])]
    labels = list(dict.fromkeys(CAUSE_LABELS[c] for c in order))
    hues = [next(CAUSE_HUES[c] for c in order if CAUSE_LABELS[c] == label) for label in labels]
    scale = alt.Scale(domain=[0, 1]) if value == "share" else alt.Scale(nice=True)
    x_axis = alt.Axis(format="%" if value == "share" else ",.4~g", tickCount=6, grid=False)
    arms = list(dict.fromkeys(frame["arm"]))
    base = alt.Chart(frame).encode(y=alt.Y("arm:N", sort=arms, title=None, axis=_arm_axis()))
    bars = base.mark_bar(
        height=alt.RelativeBandSize(_BAND_SHARE), stroke="white", strokeWidth=1
    ).encode(
        x=alt.X("start:Q", title=axis, axis=x_axis, scale=scale),
        x2="end:Q",
        color=alt.Color(
            "label:N",
            scale=alt.Scale(domain=labels, range=hues),
            legend=alt.Legend(
                title=None,
                orient="top",
                columns=6,
                labelLimit=260,
                symbolSize=140,
                symbolStrokeWidth=0,
            ),
        ),
        tooltip=[
            alt.Tooltip("arm:N"),
            alt.Tooltip("label:N", title="cause"),
            alt.Tooltip("seconds:Q", title="rank-seconds", format=".3f"),
            alt.Tooltip("share:Q", title="share of rank time", format=".2%"),
            alt.Tooltip("cost:Q", title="cost", format=".6f"),
        ],
    )
    texts = [
        base.transform_filter(alt.datum.ink == ink)
        .mark_text(fontSize=_FONT_PX, fontWeight="bold", color=ink)
        .encode(x="middle:Q", text="text:N")
        for ink in ("white", "black")
    ]
    return alt.layer(bars, *texts).properties(height=_ARM_PX * len(arms) + _AROUND_PX)


def bars(rows: list[Row], *, value: str, axis: str, number_format: str) -> Chart:
    """One horizontal bar per arm with its number at the end. rows: `arm` and the value's column."""
    frame = pd.DataFrame(rows)
    frame["text"] = [format(number, number_format) for number in frame[value]]
    arms = list(frame["arm"])
    base = alt.Chart(frame).encode(
        y=alt.Y("arm:N", sort=arms, title=None, axis=_arm_axis()),
        x=alt.X(
            f"{value}:Q",
            title=axis,
            axis=alt.Axis(grid=False, tickCount=5),
            scale=alt.Scale(domain=[0, float(frame[value].max()) * 1.2 or 1.0]),
        ),
    )
    marks = base.mark_bar(height=alt.RelativeBandSize(_BAND_SHARE)).encode(
        color=alt.Color("arm:N", scale=_arm_scale(arms), legend=None)
    )
    text = base.mark_text(align="left", dx=6, fontSize=_FONT_PX, color="gray").encode(text="text:N")
    return alt.layer(marks, text).properties(height=_LINES_PX)


def step_lines(rows: list[Row], *, value: str, axis: str) -> Chart:
    """A value over the steps, a line per arm, told apart by dashes and by the legend's order.

    rows: of metrics.step_series with `arm` added.
    """
    frame = pd.DataFrame(rows)
    arms = list(dict.fromkeys(frame["arm"]))
    dashes = [[5, 3], [1, 0], [2, 2], [8, 2], [3, 1]]
    legend = alt.Legend(title=None, orient="top", symbolStrokeWidth=3)
    lines: Chart = (
        alt.Chart(frame)
        .mark_line(strokeWidth=2)
        .encode(
            x=alt.X("step:Q", title="step", axis=alt.Axis(grid=False, tickMinStep=1)),
            y=alt.Y(f"{value}:Q", title=axis, scale=alt.Scale(zero=True)),
            color=alt.Color("arm:N", scale=_arm_scale(arms), legend=legend),
            strokeDash=alt.StrokeDash(
                "arm:N", scale=alt.Scale(domain=arms, range=dashes[: len(arms)]), legend=legend
            ),
            tooltip=["arm:N", "step:Q", alt.Tooltip(f"{value}:Q", format=".4g")],
        )
        .properties(height=_LINES_PX)
    )
    return lines


def quality_bars(rows: list[Row]) -> Chart:
    """HR@10, NDCG@10 and MRR side by side for every ranker. rows: `who` and the three numbers."""
    names = {"hr_at_10": "HR@10", "ndcg_at_10": "NDCG@10", "mrr": "MRR"}
    whos = list(dict.fromkeys(row["who"] for row in rows))
    frame = pd.DataFrame(
        [
            {"who": row["who"], "measure": names[key], "value": row[key]}
            for row in rows
            for key in names
        ]
    )
    hues = ["#CFCFCF" if who == "popularity" else hue for who, hue in _hued(whos)]
    base = alt.Chart(frame).encode(
        x=alt.X("measure:N", sort=list(names.values()), title=None, axis=alt.Axis(labelAngle=0)),
        xOffset=alt.XOffset("who:N", sort=whos),
        y=alt.Y("value:Q", title="test split, all items ranked", axis=alt.Axis(tickCount=4)),
    )
    marks = base.mark_bar().encode(
        color=alt.Color(
            "who:N",
            scale=alt.Scale(domain=whos, range=hues),
            legend=alt.Legend(title=None, orient="top"),
        ),
        tooltip=["who:N", "measure:N", alt.Tooltip("value:Q", format=".4f")],
    )
    text = base.mark_text(dy=-7, fontSize=_FONT_PX - 1, color="gray").encode(
        text=alt.Text("value:Q", format=".3f")
    )
    return alt.layer(marks, text).properties(height=260)


def _pieces(rows: list[Row], value: str, number_format: str) -> pd.DataFrame:
    """Start, middle and end of every piece that is not 0, its label, and the ink for its hue."""
    seen = [row for row in rows if row[value] > 0] or rows
    frame = pd.DataFrame(seen).sort_values(["arm", "cause_rank"], kind="stable")
    frame["end"] = frame.groupby("arm")[value].cumsum()
    frame["start"] = frame["end"] - frame[value]
    frame["middle"] = (frame["start"] + frame["end"]) / 2
    frame["label"] = frame["cause"].map(CAUSE_LABELS)
    widest = float(frame["end"].max()) or 1.0
    frame["text"] = [
        format(number, number_format) if number / widest >= _LEAST_LABELLED_SHARE else ""
        for number in frame[value]
    ]
    frame["ink"] = ["black" if CAUSE_HUES[c] in _DARK_INK else "white" for c in frame["cause"]]
    first_seen = {row["arm"]: place for place, row in reversed(list(enumerate(rows)))}
    return frame.sort_values(
        "arm", key=lambda arms: arms.map(first_seen), kind="stable"
    ).reset_index(drop=True)


def _arm_axis() -> alt.Axis:
    return alt.Axis(labelFontSize=_FONT_PX, ticks=False, domain=False, labelPadding=8)


def _arm_scale(arms: list[str]) -> alt.Scale:
    return alt.Scale(domain=arms, range=[hue for _, hue in _hued(arms)])


def _hued(names: list[str]) -> list[tuple[str, str]]:
    """Every name with its hue: the baseline grey, further ones in a fixed order."""
    plain = [n for n in names if n not in ("baseline", "popularity")]
    hues = {name: _ARM_HUES[1 + i % (len(_ARM_HUES) - 1)] for i, name in enumerate(plain)}
    return [(name, hues.get(name, _ARM_HUES[0])) for name in names]
