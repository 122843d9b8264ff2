"""Lays a profile out as Markdown for a person: a screen of tables, the assumptions beside them.

Before: profile.py's numbers.   After: the console and the run's Markdown artifact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # profile.py offers profile_markdown as its own
    from analytics.profile import Profile

PLACEMENT_WORDS = {"random_equal": "random, equal counts", "lpt_free": "balanced by cost"}
_BAR_WIDTH = 24


def profile_markdown(profile: Profile) -> str:
    """The profile as Markdown, tables first, assumptions last."""
    parts = [
        _dataset(profile.dataset),
        _money(profile.forecasts, profile.price),
        _lengths(profile.lengths),
        _skew(profile.popularity, profile.collisions),
        "### Assumptions\n\n" + "\n".join(f"- {line}" for line in profile.assumptions),
    ]
    return "\n\n".join(parts) + "\n"


def _dataset(dataset: dict[str, Any]) -> str:
    dropped = {reason: count for reason, count in dataset["dropped_rows"].items() if count}
    words = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in dropped.items())
    return (
        f"## Profile of {dataset['name']}\n\n"
        f"{dataset['num_users']:,} users, {dataset['num_items']:,} items, "
        f"{dataset['num_events']:,} of {dataset['num_rows_read']:,} rows "
        f"(dropped: {words or 'none'}); {dataset['tied_share']:.1%} of the events share their "
        f"user's time with another. Data set {dataset['dataset_id']}. Terms: {dataset['terms']}."
    )


def _money(forecasts: list[dict[str, Any]], price: dict[str, Any]) -> str:
    currency = price["currency"]
    lines = [
        "### Rank time lost to the slowest rank, predicted",
        "",
        f"| ranks | placement | lost | bound | {currency} per 1,000 device-hours "
        f"| {currency} per hour on all ranks |",
        "|---:|---|---:|---:|---:|---:|",
    ]
    for entry in forecasts:
        lines.append(
            f"| {entry['num_ranks']} | {PLACEMENT_WORDS[entry['placement']]} "
            f"| {entry['straggler_share']:.1%} | {entry['bound_share']:.1%} "
            f"| {entry['straggler_cost_per_1000_device_hours']:,.2f} "
            f"| {entry['straggler_cost_per_hour']:,.2f} |"
        )
    lines += ["", f"Price: {price['device_hour_cost']:.4g} {currency} per device-hour, "]
    lines[-1] += f"{price['instance_type']}, {price['price_date']}."
    return "\n".join(lines)


def _lengths(lengths: dict[str, Any]) -> str:
    quantiles = lengths["quantiles"]
    names = {"0": "least", "0.5": "median", "1": "most"}
    head = " | ".join(names.get(q, f"{float(q):.0%}") for q in quantiles)
    cells = " | ".join(f"{value:,.0f}" for value in quantiles.values())
    largest = max(entry["num_users"] for entry in lengths["histogram"])
    lines = [
        "### Lengths of training histories [events]",
        "",
        f"| {head} | mean |",
        "|" + "---:|" * (len(quantiles) + 1),
        f"| {cells} | {lengths['mean']:,.1f} |",
        "",
        f"The longest 1 % of users ({lengths['num_longest']:,}) hold "
        f"{lengths['longest_event_share']:.1%} of the events and "
        f"{lengths['longest_pair_share']:.1%} of the event pairs that attention works on.",
        "",
        "| length | users | events | |",
        "|---|---:|---:|---|",
    ]
    for entry in lengths["histogram"]:
        bar = "█" * max(1, round(_BAR_WIDTH * entry["num_users"] / largest))
        lines.append(
            f"| {entry['from']:,}-{entry['to'] - 1:,} | {entry['num_users']:,} "
            f"| {entry['num_events']:,} | {bar} |"
        )
    return "\n".join(lines)


def _skew(popularity: dict[str, Any], collisions: dict[str, Any]) -> str:
    heads = popularity["head_event_shares"]
    rows = [
        ("Zipf exponent of item popularity", f"{popularity['zipf_exponent']:.2f}"),
        ("events on the most popular 1 % of items", f"{heads['0.01']:.1%}"),
        ("events on the most popular 10 % of items", f"{heads['0.1']:.1%}"),
        ("items seen once", f"{popularity['once_item_share']:.1%}"),
        (
            f"collision share, batches of {collisions['batch_sequences']:,} sequences",
            _percent(collisions["history_share"]),
        ),
        (
            f"the same with {collisions['num_negatives']:,} drawn negatives a sequence",
            _percent(collisions["share"]),
        ),
    ]
    lines = ["### Item rows", "", "| measure | value |", "|---|---:|"]
    lines += [f"| {name} | {value} |" for name, value in rows]
    lines += [
        "",
        f"Zipf: {popularity['zipf_method']}. Collision share: of a batch's distinct rows, those "
        f"that the batch before also touches, over {collisions['num_batches']} consecutive batches "
        f"of {collisions['mean_rows']:,.0f} rows.",
    ]
    return "\n".join(lines)


def _percent(share: float | None) -> str:
    return "not defined" if share is None else f"{share:.1%}"
