"""Finds which column of a file is the user, the item and the time.

Before: the header that reading.py took from a file.   After: reading.py reads those three columns.
"""

from __future__ import annotations

import dataclasses
import difflib
from pathlib import Path

from analytics.errors import InputError

# most telling first; compared in lower case without _ - and blanks
# fmt: off
USUAL_NAMES: dict[str, tuple[str, ...]] = {
    "user": (
        "userid", "user", "uid", "userindex", "customerid", "customer", "visitorid", "memberid",
        "accountid", "reviewerid", "profileid", "sessionid", "session",
    ),
    "item": (
        "itemid", "item", "iid", "movieid", "productid", "product", "parentasin", "asin", "sku",
        "articleid", "aid", "trackid", "songid", "artistid", "bookid", "isbn", "newsid",
        "videoid", "businessid", "gmapid",
    ),
    "time": (
        "timestamp", "time", "ts", "unixreviewtime", "eventtime", "eventtimestamp", "datetime",
        "date", "createdat", "ratedat", "eventdate",
    ),
}
# fmt: on


@dataclasses.dataclass(frozen=True, kw_only=True)
class InteractionColumns:
    """Which columns hold user, item and time; None means: find it among the usual names.

    A name is the header's, with or without the type that RecBole's headers carry
    (`user_id:token`).
    """

    user: str | None = None
    item: str | None = None
    time: str | None = None


def find_column(path: Path, names: list[str], role: str, wanted: str | None) -> int:
    """The place of the column that plays a role ('user', 'item' or 'time') among `names`.

    wanted: its name, or None to look among the usual names. Raises InputError that lists the
    columns there are when none or several fit.
    """
    if wanted is not None:
        exact = [place for place, name in enumerate(names) if name == wanted]
        typed = [place for place, name in enumerate(names) if _untyped(name) == wanted]
        candidates = exact or typed
    else:
        plain = [_plain(name) for name in names]
        usual = next((name for name in USUAL_NAMES[role] if name in plain), None)
        candidates = [place for place, name in enumerate(plain) if name == usual]
    if len(candidates) == 1:
        return candidates[0]
    listed = ", ".join(f"'{name[:60]}'" for name in names[:40])
    if candidates:
        raise InputError(
            f"{path}: {len(candidates)} columns could be the {role} ({listed}). "
            f"Name the right one with --{role} COLUMN; every column needs its own name."
        )
    if wanted is None:
        what = f"no column has one of the usual names of a {role} ({USUAL_NAMES[role][0]}, ...)"
        mend = f"Name it with --{role} COLUMN"
    else:
        what = f"there is no column '{wanted}' for the {role}"
        close = difflib.get_close_matches(wanted, names, n=1)
        mend = f"Did you mean '{close[0]}'?" if close else f"Name another with --{role} COLUMN"
    raise InputError(
        f"{path}: {what}. The columns are {listed}. {mend}; the first line of a text file must "
        "name the columns, with , ; tab or | between them."
    )


def _untyped(name: str) -> str:
    """A name without RecBole's type: `user_id:token` is `user_id`."""
    return name.split(":", 1)[0]


def _plain(name: str) -> str:
    """A name as it is compared with the usual ones."""
    return "".join(c for c in _untyped(name).lower() if c not in "_- ")
