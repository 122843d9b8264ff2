"""What the numbers of a profile rest on, in words that stand beside them.

Before: what profile.py was asked.   After: the report and the JSON of a profile.
"""

from __future__ import annotations

from typing import Any

from analytics.schema import DimPrice
from analytics.store import SequenceStore
from training.planning.cost import CostModel


def assumptions(
    store: SequenceStore,
    cost: CostModel,
    price: DimPrice,
    forecasts: list[dict[str, Any]],
    *,
    seed: int,
    num_negatives: int,
    max_trained_events: int | None,
    min_group_users: int,
) -> list[str]:
    """Cost, lengths, batches, groups and price; one sentence or two a line."""
    header = store.header
    split = header.rules.get("words", {}).get("split", "as the store says")
    newest = "all" if max_trained_events is None else f"at most the newest {max_trained_events:,}"
    batches = sorted({entry["num_batches"] for entry in forecasts})
    how_many = f"{batches[0]}" if len(batches) == 1 else f"{batches[0]} to {batches[-1]}"
    lines = [
        _cost_line(cost),
        f"Lengths are training histories, {newest} of their events. Split: {split}.",
        f"{how_many} global batches for each number of ranks and sequences, drawn with seed "
        f"{seed}; consecutive batches and their {num_negatives:,} negatives a sequence with the "
        "same seed.",
        "Straggler share: rank time lost to waiting for the slowest rank, 1 - sum of mean loads / "
        "sum of largest loads; communication and input are not in it.",
        "Bound: the least that any placement of whole sequences reaches on the same batches; "
        "look-ahead deals these anew and may lie below.",
        _group_line(min_group_users),
        f"Price: {price.device_hour_cost:.4g} {price.currency} per device-hour of "
        f"{price.instance_type} ({price.device_name or 'no accelerator'}, {price.region}, "
        f"{price.price_date}); {price.source}.",
        "Money: share lost x price; nothing is said of what else could be saved.",
    ]
    if any(entry["with_replacement"] for entry in forecasts):
        lines.append(
            f"Global batches larger than the {header.num_users:,} users of the data are drawn with "
            "replacement, as if there were more users like these; consecutive batches then hold "
            "every user once."
        )
    return lines


def _cost_line(cost: CostModel) -> str:
    line = (
        f"Cost of a sequence of L events: {cost.c0_s:.3g} s + {cost.a_s:.3g} s x L + "
        f"{cost.b_s:.3g} s x L^2. Source: {cost.source}."
    )
    if cost.residual_share:
        line += f" The fit is off by {cost.residual_share:.1%} on average."
    return line


def _group_line(min_group_users: int) -> str:
    if min_group_users == 1:
        return "No minimum group: values of single users are told."
    return (
        f"Nothing about users is told that fewer than {min_group_users} of them stand behind: "
        "quantiles are moved inwards to where so many are further out, bins of the histogram are "
        "merged, the one longest history and the fullest rank are rounded up to a power of two."
    )
