"""Lays a profile out as Markdown for a person: tables, and the assumptions beside the numbers.

Before: profile.py's numbers.   After: the console and the run's Markdown artifact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # profile.py offers profile_markdown as its own
    from analytics.profile import Profile

PLACEMENT_WORDS = {
    "random_equal": "random, equal counts",
    "lpt_equal": "balanced, equal counts",
    "lpt_free": "balanced by cost",
    "lookahead": "balanced over a window of 4 batches",
}
KIND_WORDS = {
    "history_cap": "cap of histories",
    "lookahead_window": "look-ahead",
    "cut_giants": "cutting the longest histories",
    "hot_rows": "hot rows",
}
_BAR_WIDTH = 24


def profile_markdown(profile: Profile) -> str:
    """The profile as Markdown: advice and money first, assumptions last."""
    parts = [
        _dataset(profile.dataset),
        _advice(profile.advice),
        _money(profile.forecasts, profile.price),
        _lengths(profile.lengths, profile.min_group_users),
        _items(profile.popularity, profile.hot_rows),
        _batches(profile.batches),
        _gaps(profile.gaps, profile.dataset),
        _memory(profile.memory),
        "### Assumptions\n\n" + "\n".join(f"- {line}" for line in profile.assumptions),
    ]
    return "\n\n".join(parts) + "\n"


def placement_words(placement: str) -> str:
    """A placement as a reader meets it; its own name when nobody has put it in words."""
    return PLACEMENT_WORDS.get(placement, placement)


def _dataset(dataset: dict[str, Any]) -> str:
    dropped = {reason: count for reason, count in dataset["dropped_rows"].items() if count}
    words = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in dropped.items())
    splits = ", ".join(f"{count:,} {name}" for name, count in dataset["num_in_split"].items())
    return (
        f"## Profile of {dataset['name']}\n\n"
        f"{dataset['num_users']:,} users, {dataset['num_items']:,} items, "
        f"{dataset['num_events']:,} of {dataset['num_rows_read']:,} rows "
        f"(dropped: {words or 'none'}, reasons of too few users not told); events by split: "
        f"{splits}. "
        f"Data set {dataset['dataset_id']}. Terms: {dataset['terms']}."
    )


def _advice(advice: list[dict[str, Any]]) -> str:
    rows = [
        [
            KIND_WORDS.get(entry["kind"], entry["kind"]),
            entry["recommendation"],
            "" if entry["number"] is None else f"{entry['number']:,.0f} {entry['unit']}",
            f"{entry['measure'].replace('_', ' ')} -{entry['effect_share']:.1%}"
            if entry["is_needed"]
            else "none",
        ]
        for entry in advice
    ]
    where = f"{advice[0]['num_ranks']:,} ranks x {advice[0]['sequences_per_rank']:,} sequences"
    return f"### Advice for {where}\n\n" + _table(
        ["on", "advice", "number", "expected effect (percentage points)"], rows, "llrl"
    )


def _money(forecasts: list[dict[str, Any]], price: dict[str, Any]) -> str:
    currency = price["currency"]
    rows = [
        [
            f"{entry['num_ranks']:,}",
            f"{entry['sequences_per_rank']:,}",
            placement_words(entry["placement"]),
            f"{entry['straggler_share']:.1%}",
            f"{entry['bound_share']:.1%}",
            f"{entry['straggler_cost_per_1000_device_hours']:,.2f}",
            f"{entry['straggler_cost_per_hour']:,.2f}",
        ]
        for entry in forecasts
    ]
    names = ["ranks", "sequences per rank", "placement", "lost", "bound"]
    names += [f"{currency} per 1,000 device-hours", f"{currency} per hour on all ranks"]
    return (
        "### Rank time lost to the slowest rank, predicted\n\n"
        + _table(names, rows, "rrlrrrr")
        + f"\n\nPrice: {price['device_hour_cost']:.4g} {currency} per device-hour, "
        f"{price['instance_type']}, {price['price_date']}."
    )


def _lengths(lengths: dict[str, Any] | None, min_group_users: int) -> str:
    title = "### Lengths of training histories [events]\n\n"
    if lengths is None:
        return (
            f"{title}Withheld: there are fewer than {min_group_users} users, the minimum group, so "
            "any figure could tell of one person."
        )
    return "\n\n".join(
        [
            title + _quantiles(lengths, min_group_users),
            _longest(lengths),
            _tail(lengths["tail"]),
            _histogram(lengths, min_group_users),
        ]
    )


def _quantiles(lengths: dict[str, Any], min_group_users: int) -> str:
    quantiles = lengths["quantiles"]
    if quantiles is None:
        return (
            f"Mean {lengths['mean']:,.1f}. Quantiles are withheld: none has {min_group_users} "
            "users on either side."
        )
    names = {"0": "least", "0.5": "median", "1": "most"}
    head = [names.get(q, f"{float(q):.0%}") for q in quantiles]
    cells = [f"{value:,.0f}" for value in quantiles.values()]
    table = _table([*head, "mean"], [[*cells, f"{lengths['mean']:,.1f}"]], "r" * (len(head) + 1))
    if min_group_users == 1:
        return table
    return (
        f"{table}\n\nLeast and most are lengths that at least {min_group_users} users do not "
        "exceed or do reach; no quantile lies further out."
    )


def _longest(lengths: dict[str, Any]) -> str:
    one_percent = max(1, round(lengths["num_users"] * 0.01))
    number = lengths["num_longest"]
    who = f"1 % of users ({number:,})" if number == one_percent else f"{number} users, the minimum,"
    return (
        f"The longest {who} hold {lengths['longest_event_share']:.1%} of the events and "
        f"{lengths['longest_pair_share']:.1%} of the event pairs that attention works on. Padded "
        f"to {lengths['longest_rounded_up']:,} events, the longest history "
        f"rounded up to a power of two, {lengths['padded_to_longest_share']:.1%} would be padding."
    )


def _tail(tail: dict[str, Any]) -> str:
    if tail["index"] is None:
        return f"Tail index: none that can be defended; {tail['reason']}."
    return (
        f"Tail index {tail['index']:.2f} (standard error {tail['error']:.2f}; Hill 1975 over the "
        f"{tail['num_users']:,} longest, 1 % of users and at least 50): below 2 lengths have no "
        "finite variance."
    )


def _histogram(lengths: dict[str, Any], min_group_users: int) -> str:
    largest = max(entry["num_users"] for entry in lengths["histogram"])
    rows = [
        [
            f"{entry['from']:,}-{entry['to'] - 1:,}",
            f"{entry['num_users']:,}",
            f"{entry['num_events']:,}",
            "█" * max(1, round(_BAR_WIDTH * entry["num_users"] / largest)),
        ]
        for entry in lengths["histogram"]
    ]
    text = _table(["length", "users", "events", ""], rows, "rrrl")
    if lengths["num_merged_bins"]:
        text += (
            f"\n\nBins with fewer than {min_group_users} users are merged with a neighbour: "
            f"{lengths['num_merged_bins']} fewer."
        )
    return text


def _items(popularity: dict[str, Any], hot: list[dict[str, Any]]) -> str:
    heads = popularity["head_event_shares"]
    rows = [
        ["Zipf exponent of item popularity", f"{popularity['zipf_exponent']:.2f}"],
        ["events on the most popular 1 % of items", f"{heads['0.01']:.1%}"],
        ["events on the most popular 10 % of items", f"{heads['0.1']:.1%}"],
        ["items seen once", f"{popularity['once_item_share']:.1%}"],
    ]
    hot_cells = [
        [
            f"{entry['num_hot_rows']:,}",
            f"{entry['id_share']:.1%}",
            f"{entry['collision_share']:.1%}",
            f"{entry['collision_share_without']:.1%}",
        ]
        for entry in hot
    ]
    names = ["hottest rows", "of a batch's ids", "collision share", "without them"]
    return (
        "### Item rows\n\n"
        + _table(["measure", "value"], rows, "lr")
        + f"\n\nZipf: {popularity['zipf_method']}.\n\n"
        + _table(names, hot_cells, "rrrr")
    )


def _batches(batches: list[dict[str, Any]]) -> str:
    rows = [
        [
            f"{entry['batch_sequences']:,}",
            _percent(entry["share"]),
            _percent(entry["history_share"]),
            f"{entry['mean_ids']:,.0f}",
            f"{entry['mean_rows']:,.0f}",
            f"{entry['deduplication_factor']:.2f}",
            _percent(entry["padding_share"]),
        ]
        for entry in batches
    ]
    names = ["sequences", "collision share", "without negatives", "ids", "distinct rows"]
    names += ["ids per row", "padding"]
    return (
        "### Batches that follow each other\n\n"
        + _table(names, rows, "r" * len(names))
        + "\n\nCollision share: of a batch's distinct rows, those that the batch before also "
        f"touches; with {batches[0]['num_negatives']:,} drawn negatives a sequence. Padding: share "
        "of the places that would hold no event if each sequence were padded to the longest of its "
        "batch; not told where a batch would hold more than half of the users."
    )


def _gaps(gaps: dict[str, Any] | None, dataset: dict[str, Any]) -> str:
    title = "### Time between a user's events\n\n"
    if gaps is None:
        return f"{title}The data has no times."
    ties = f"{dataset['tied_share']:.1%} of the events share their user's time with another"
    if gaps["zero_gap_share"] is None:
        return f"{title}Nobody has two events."
    ties += f"; {gaps['zero_gap_share']:.1%} of the gaps are 0."
    quantiles = gaps["quantiles_s"]
    if quantiles is None:
        return f"{title}Quantiles are withheld: too few users. {ties}"
    drawn = ", a draw" if gaps["is_drawn"] else ""
    return (
        title
        + _table(
            [f"{float(q):.0%}" for q in quantiles],
            [[_duration(value) for value in quantiles.values()]],
            "r" * len(quantiles),
        )
        + f"\n\nOver {gaps['num_gaps']:,} gaps of {gaps['num_users']:,} users{drawn}. {ties}"
    )


def _memory(memory: dict[str, Any]) -> str:
    rows = [
        [
            f"{entry['num_ranks']:,}",
            f"{entry['sequences_per_rank']:,}",
            placement_words(entry["placement"]),
            _size(entry["table_bytes"]),
            f"{entry['fullest_rank_events']:,}",
            _size(entry["fullest_rank_bytes"]),
        ]
        for entry in memory["by_ranks"]
    ]
    names = ["ranks", "sequences per rank", "placement", "table on a rank"]
    names += ["events of the fullest rank", "their activations"]
    return (
        "### Memory of a rank, by formula\n\n"
        + _table(names, rows, "rrlrrr")
        + f"\n\nItem table: {_size(memory['table_bytes'])} in all, {memory['row_bytes']:,} bytes a "
        f"row. Longest history: {memory['longest_events']:,} events, rounded up, "
        f"{_size(memory['longest_activation_bytes'])} of activations.\n\n"
        + "\n".join(f"- {line}" for line in memory["assumptions"])
    )


def _table(names: list[str], rows: list[list[str]], align: str) -> str:
    """A Markdown table; align: 'l' or 'r' a column."""
    rule = "|" + "|".join("---:" if side == "r" else "---" for side in align) + "|"
    lines = ["| " + " | ".join(names) + " |", rule]
    return "\n".join([*lines, *("| " + " | ".join(cells) + " |" for cells in rows)])


def _percent(value: float | None) -> str:
    return "not told" if value is None else f"{value:.1%}"


def _duration(seconds: float) -> str:
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.1f} s"


def _size(num_bytes: float) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= size:
            return f"{num_bytes / size:,.1f} {unit}"
    return f"{num_bytes:,.0f} bytes"
