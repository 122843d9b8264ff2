"""What a preparation is asked to do, as one record that a store keeps and can be told to repeat.

Standard library only but for the rules it is made of.

Before: the command line or a flow.   After: interactions.py; as plain values, rules in store.json.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from typing import Any

from analytics.errors import ConfigError
from analytics.rules import HistoryRules
from analytics.splits import SplitRule

DAY_US = 86_400_000_000
MAX_KEEP_DAYS = 36_500  # a hundred years; more is a slip, and leaves what a date can say


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preparation:
    """Every rule that rows go through; the same rules serve a later append or erasure."""

    history: HistoryRules = dataclasses.field(default_factory=HistoryRules)
    split: SplitRule = dataclasses.field(default_factory=SplitRule)
    drop_unparsable_times: bool = False  # False: a file with such a time is refused
    not_after: str | None = None  # ISO 8601; None: the moment of the preparation
    keep_days: int | None = None  # retention: events older than so many days are dropped
    min_rating: float | None = None  # rows rated lower are dropped

    def __post_init__(self) -> None:
        if self.keep_days is not None and not 1 <= self.keep_days <= MAX_KEEP_DAYS:
            raise ConfigError(
                f"keep_days is {self.keep_days}; it must be 1 to {MAX_KEEP_DAYS:,}. Leave "
                "--keep-days out to keep events without a limit."
            )
        if self.min_rating is not None and not math.isfinite(self.min_rating):
            raise ConfigError(
                f"min_rating is {self.min_rating}; it must be a finite number. Change --min-rating."
            )
        if self.not_after is not None:
            instant_us(self.not_after, "--not-after")

    def not_after_us(self, now_us: int) -> int:
        """The last time that is not in the future [us since 1970]."""
        return now_us if self.not_after is None else instant_us(self.not_after, "--not-after")

    def oldest_us(self, now_us: int) -> int | None:
        """The first time within retention [us since 1970]; None: no bound."""
        return None if self.keep_days is None else now_us - self.keep_days * DAY_US

    def plain(self) -> dict[str, Any]:
        """As plain values, for store.json."""
        return {
            "history": dataclasses.asdict(self.history),
            "split": dataclasses.asdict(self.split),
            "split_kind": self.split.kind,
            "drop_unparsable_times": self.drop_unparsable_times,
            "not_after": self.not_after,
            "keep_days": self.keep_days,
            "min_rating": self.min_rating,
            "words": self.words(),
        }

    def words(self) -> dict[str, str]:
        """The rules in words, for a person."""
        history = self.history
        return {
            "order": "by time, equal times by their order in the files",
            "time_resolution": "microseconds; finer differences count as equal",
            "future_times": f"dropped after {self.not_after or 'the moment of the preparation'}",
            "retention": f"{self.keep_days} days" if self.keep_days else "not limited",
            "rating": "any" if self.min_rating is None else f"at least {self.min_rating:g}",
            "exact_duplicates": "dropped" if history.drop_exact_duplicates else "kept",
            "repeated_pairs": history.repeats,
            "core": f"{history.core}-core, to a fixed point" if history.core > 1 else "not applied",
            "lengths": f"{history.min_history} to {history.max_history} events, the newest stay",
            "split": self.split.words(),
            "user_index": "by MD5 of the user id or pseudonym",
            "item_index": "by MD5 of the item id",
        }


def preparation_of(raw: dict[str, Any]) -> Preparation:
    """The rules that a store was made by, from its header's plain values."""
    return Preparation(
        history=HistoryRules(**raw["history"]),
        split=SplitRule(**raw["split"]),
        drop_unparsable_times=raw["drop_unparsable_times"],
        not_after=raw["not_after"],
        keep_days=raw["keep_days"],
        min_rating=raw["min_rating"],
    )


def instant_us(text: str, option: str) -> int:
    """An ISO 8601 instant as microseconds since 1970; without a zone it is UTC.

    option: named when it cannot be read. Raises ConfigError.
    """
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(
            f"{option} is '{text}', expected ISO 8601 such as 2024-01-31 or 2024-01-31T12:00:00Z."
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    since = moment - datetime.datetime.fromtimestamp(0, datetime.UTC)
    return since // datetime.timedelta(microseconds=1)
