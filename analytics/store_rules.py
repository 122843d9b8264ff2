"""What an update needs of a store's header: its rules, with every entry that is asked for later.

A store.json that lacks one was cut short or changed by hand: that is told before anything is done.

Before: store_updates.py and erasure.py open a store.   After: the rules it was made by.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from analytics import row_rules, rules
from analytics.errors import ConfigError, StoreError
from analytics.preparation import Preparation, preparation_of
from analytics.reasons import FORGOTTEN
from analytics.store import StoreHeader

_SHEET = ("purpose", "lawful_basis", "retention_days", "prepared_utc", "earlier_versions")
_SOURCE = ("name", "sha256", "num_rows", "decision")
_PSEUDONYMS = ("scheme", "key_id")


def rules_of(path: Path, header: StoreHeader) -> Preparation:
    """The rules that the store at `path` was made by.

    Raises StoreError when its header lacks something, or has something else in its place.
    """
    try:
        preparation = preparation_of(header.rules)
        _need(header.rules, ["split_kind"])
        _need(header.data_sheet, _SHEET)
        _need(header.dropped_rows, [*row_rules.REASONS, *rules.REASONS, FORGOTTEN])
        for source in header.sources:
            _need(source, _SOURCE)
        if header.pseudonyms is not None:
            _need(header.pseudonyms, _PSEUDONYMS)
    except (KeyError, TypeError, AttributeError, ConfigError) as error:
        raise StoreError(
            f"{path}: store.json lacks an entry, or has a wrong one ({error}). The store is "
            "damaged; delete it and prepare it again with 'seqscale prepare FILE --out DIR'."
        ) from error
    return preparation


def _need(entries: dict[str, Any], names: Any) -> None:
    """Raise KeyError when an entry is missing."""
    for name in names:
        if name not in entries:
            raise KeyError(name)
