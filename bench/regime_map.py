"""Shows what bench/regimes.py measured: a map of letters, tables in Markdown, a picture in SVG.

A cell's letter is the faster of the two overlapped schedules: P prioritised, S split. Lower case
where it loses to ids_ahead by more than the noise, `=` where the difference is noise (1 % of the
step, or the spread of the steps when that is more), `!` behind it where the machine did not keep up
with the ranks, `x` where a result differed from synchronous.
"""

from __future__ import annotations

import statistics
from typing import Any

from training.planning.overlap_forecast import FORECAST_SCHEDULES

Row = dict[str, Any]
EMULATED = "Link and compute are emulated (PacedTransport; sleeps)."
NOISE_SHARE = 0.01
LETTERS = {"prioritised": "P", "split": "S"}
LEGEND = (
    "P prioritised, S split: the faster of the two; lower case where it loses to ids_ahead, = "
    "where they are equal within noise, ! machine did not keep up, x not exact. "
    "In tables: Y synchronous, I ids_ahead, P prioritised, S split."
)
# Shares of exposed communication in published steps become ratios by x / (1 - x).
POINTS = (
    "- NVIDIA recsys-examples, jagged HSTU on 16 H100: 3.3 % of a step is exposed NCCL, so about "
    "ratio 0.034; collision share not published.",
    "- FreeScale: collision shares of 2 % and 12 % (two readers of the paper disagree); exposed "
    "111 ms -> 13 ms (88 % removed) at 8K events; the step's length is not published, so only the "
    "columns can be marked.",
    "- ours: MovieLens-100K, 96 % collisions (next to column 0.9); bench/overlap, 30 % at 2 ranks "
    "and 120 ms of compute: ratios 1.1, 0.33 and 0.11 at 30, 100 and 300 mbit/s.",
)
MARKED_SHARES = {0.02: "FreeScale", 0.12: "FreeScale", 0.3: "bench/overlap", 0.9: "MovieLens"}
MARKED_RATIOS = ((0.034, "NVIDIA"), (0.11, "300 mbit"), (0.33, "100 mbit"), (1.1, "30 mbit"))


def gain_share(row: Row, schedule: str) -> float:
    """Share of ids_ahead's step that a schedule saves; below 0 where it loses."""
    return 1 - float(row[schedule]["step_s"]) / float(row["ids_ahead"]["step_s"])


def noise_share(row: Row, schedule: str) -> float:
    """What a gain must exceed: half the middle spread of both schedules' steps, at least 1 %."""
    spread = sum(
        row[name]["step_high_s"] - row[name]["step_low_s"] for name in (schedule, "ids_ahead")
    )
    return max(NOISE_SHARE, spread / 2 / float(row["ids_ahead"]["step_s"]))


def verdict(row: Row, schedule: str) -> str:
    """`wins`, `loses` or `equal`, against ids_ahead."""
    gain = gain_share(row, schedule)
    if abs(gain) <= noise_share(row, schedule):
        return "equal"
    return "wins" if gain > 0 else "loses"


def letter(row: Row) -> str:
    """The cell's letter, and ! or x."""
    best = min(LETTERS, key=lambda name: row[name]["step_s"])
    found = {"wins": LETTERS[best], "loses": LETTERS[best].lower(), "equal": "="}[
        verdict(row, best)
    ]
    exact = all(row[name]["difference"] == 0 for name in FORECAST_SCHEDULES)
    return found + ("" if exact else "x") + ("" if row["kept_up"] else "!")


def grid_rows(rows: list[Row]) -> dict[int, list[Row]]:
    """The map's cells by number of ranks; those that stand beside the map left out."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        if not row["label"]:
            found.setdefault(row["world_size"], []).append(row)
    return found


def _axes(rows: list[Row]) -> tuple[list[float], list[float]]:
    return sorted({r["ratio"] for r in rows}), sorted({r["collision_share"] for r in rows})


def _mark(ratio: float, ratios: list[float]) -> str:
    """Published points whose nearest row (by quotient) this is."""
    return ", ".join(
        name
        for point, name in MARKED_RATIOS
        if min(ratios, key=lambda r: max(r / point, point / r)) == ratio
        and 0.5 <= ratio / point <= 2
    )


def text_map(rows: list[Row]) -> list[str]:
    """One block of letters a number of ranks."""
    lines = [LEGEND]
    for world_size, cells in sorted(grid_rows(rows).items()):
        ratios, shares = _axes(cells)
        by_place = {(c["ratio"], c["collision_share"]): c for c in cells}
        lines += ["", f"{world_size} ranks", "  ratio | collision share"]
        lines.append("        | " + " ".join(f"{share:>5g}" for share in shares))
        for ratio in ratios:
            marks = [
                letter(by_place[ratio, share]) if (ratio, share) in by_place else "."
                for share in shares
            ]
            points = _mark(ratio, ratios)
            lines.append(
                f"{ratio:>7g} | "
                + " ".join(f"{mark:>5}" for mark in marks)
                + (f"   <- {points}" if points else "")
            )
        names = [MARKED_SHARES.get(share, "") for share in shares]
        if any(names):
            lines.append(
                "columns: "
                + ", ".join(f"{s:g} {n}" for s, n in zip(shares, names, strict=True) if n)
            )
    return lines


def table(rows: list[Row]) -> list[str]:
    """Every cell: times, what is hidden, exactness, the formula beside each."""
    lines = [
        "| cell | ranks | ratio | collisions | synchronous [ms] | ids ahead | prioritised | split "
        "| deviation as run (Y / I / P / S) | exposed, of it wire [ms] (Y; I; P; S) "
        "| hidden P / S | wire hidden P / S "
        "| difference | late | CPU |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|---|---|---|---:|---:|---:|",
    ]
    for row in rows:
        steps = [f"{1e3 * row[name]['step_s']:.1f}" for name in FORECAST_SCHEDULES]
        off = [f"{row[name]['deviation_as_run_share']:+.0%}" for name in FORECAST_SCHEDULES]
        exposed = [
            f"{1e3 * row[name]['exposed_s']:.0f}, {1e3 * row[name]['wire_s']:.0f}"
            for name in FORECAST_SCHEDULES
        ]
        hidden, of_wire = (
            " / ".join("-" if row[n][key] is None else f"{row[n][key]:.0%}" for n in LETTERS)
            for key in ("hidden_share", "hidden_wire_share")
        )
        difference = max(row[name]["difference"] for name in FORECAST_SCHEDULES)
        lines.append(
            f"| {row['label'] or 'map'} {letter(row)} | {row['world_size']} | {row['ratio']:.3g} "
            f"| {row['collision_share']:g} | {' | '.join(steps)} | {' / '.join(off)} "
            f"| {'; '.join(exposed)} "
            f"| {hidden} | {of_wire} | {difference:g} | {row['late_share']:.1%} "
            f"| {row['cpu_share']:.0%} |"
        )
    return lines


def deviations(rows: list[Row]) -> list[str]:
    """How far the formulas are off, by ranks and schedule; and where overlap loses.

    As run: the formula with the compute as long as it took on this machine, against the step
    without its wait for ranks that came late.
    """
    lines = [
        "| ranks | schedule | within 10 % | median (least to most) | as run: within 10 % "
        "| median (least to most) | CPU of a rank's step [ms] | wins | equal | loses |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for world_size, cells in sorted(grid_rows(rows).items()):
        for name in FORECAST_SCHEDULES:
            both = [_spread([cell[name][key] for cell in cells]) for key in _DEVIATIONS]
            counts = [
                str(sum(verdict(cell, name) == which for cell in cells)) if name in LETTERS else ""
                for which in ("wins", "equal", "loses")
            ]
            cpu_ms = f"{1e3 * statistics.median(cell[name]['cpu_s'] for cell in cells):.1f}"
            lines.append(f"| {world_size} | {name} | {' | '.join([*both, cpu_ms, *counts])} |")
    return lines


_DEVIATIONS = ("deviation_share", "deviation_as_run_share")


def _spread(shares: list[float]) -> str:
    """How many are within 10 %, and the median, least and most, as two columns."""
    found = sorted(shares)
    within = sum(abs(value) <= 0.1 for value in found)
    middle = found[len(found) // 2]
    return f"{within} of {len(found)} | {middle:+.1%} ({found[0]:+.1%} to {found[-1]:+.1%})"


def svg(rows: list[Row]) -> str:
    """The maps side by side: colour and number are the share of ids_ahead's step saved."""
    wide, high, left, top = 46, 26, 70, 60
    parts, at_x, tallest = [], 10, 0
    for world_size, cells in sorted(grid_rows(rows).items()):
        ratios, shares = _axes(cells)
        parts.append(_text(at_x + left, 20, f"{world_size} ranks", "start"))
        parts.append(_text(at_x + left, 36, "columns: collision share; rows: ratio", "start"))
        for column, share in enumerate(shares):
            parts.append(_text(at_x + left + column * wide + wide // 2, top - 6, f"{share:g}"))
        for line, ratio in enumerate(ratios):
            parts.append(_text(at_x + left - 6, top + line * high + 17, f"{ratio:g}", "end"))
        for cell in cells:
            x = at_x + left + shares.index(cell["collision_share"]) * wide
            y = top + ratios.index(cell["ratio"]) * high
            gain = max(gain_share(cell, name) for name in LETTERS)
            parts.append(
                f'<rect x="{x}" y="{y}" width="{wide}" height="{high}" fill="{_colour(gain)}" '
                'stroke="white"/>'
            )
            parts.append(_text(x + wide // 2, y + 17, f"{letter(cell)} {100 * gain:.0f}"))
        at_x += left + len(shares) * wide + 20
        tallest = max(tallest, top + len(ratios) * high)
    note = f"Percent of ids_ahead's step saved. {EMULATED} {LEGEND}"
    parts.append(_text(10, tallest + 22, note, "start"))
    size = f'width="{max(at_x, 1250)}" height="{tallest + 34}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    )
    return (
        "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>"])
        + "\n"
    )


def _text(x: int, y: int, words: str, anchor: str = "middle") -> str:
    words = words.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{words}</text>'


def _colour(gain: float) -> str:
    """White at 0, green where time is saved, orange where it is lost; full at 50 % and 10 %."""
    if gain >= 0:
        pale = 1 - min(1.0, gain / 0.5) * 0.6
        return f"rgb({int(255 * pale)},{int(235 + 20 * pale) - 20},{int(255 * pale)})"
    pale = 1 - min(1.0, -gain / 0.1) * 0.7
    return f"rgb(255,{int(170 + 85 * pale)},{int(255 * pale)})"
