"""Finds which columns of a file are the user, the item, the time, the action and the rating.

By name where there are names (most telling first), by content where there is no header and the
content leaves no doubt. What a person named always wins.

Before: shapes.py, parquet.py or json_lines.py know the names and a few rows.
After: those modules write the columns into their statement.
Price: none.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence

from analytics.errors import InputError
from analytics.sources.options import NONE, ReadingOptions
from analytics.sources.times import looks_like_times

# compared in lower case without _ - . and blanks
# fmt: off
USUAL_NAMES: dict[str, tuple[str, ...]] = {
    "user": (
        "userid", "user", "uid", "userindex", "customerid", "customer", "visitorid", "memberid",
        "accountid", "reviewerid", "profileid", "playerid", "deviceid",
    ),
    "session": ("sessionid", "session", "sid", "basketid", "orderid"),
    "item": (
        "itemid", "item", "iid", "movieid", "productid", "product", "parentasin", "asin", "sku",
        "articleid", "aid", "trackid", "songid", "artistid", "bookid", "isbn", "newsid",
        "videoid", "businessid", "gmapid", "itemindex", "contentid",
    ),
    "time": (
        "timestamp", "time", "ts", "unixreviewtime", "eventtime", "eventtimestamp", "datetime",
        "date", "createdat", "ratedat", "eventdate", "showtime", "clicktime", "unixtime",
    ),
    "action": (
        "action", "actiontype", "eventtype", "event", "behavior", "behaviour", "behaviortype",
        "behaviourtype", "interactiontype", "eventname", "type",
    ),
    "rating": ("rating", "ratings", "overall", "score", "label", "stars", "reviewscore"),
}
# fmt: on
MISSING = ("", "NA", "NaN", "nan", "NULL", "null", "None", "\\N")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChosenColumns:
    """Places of the columns among a file's names; None: there is none."""

    user: int
    item: int
    time: int | None
    action: int | None
    rating: int | None
    frame: int | None = None  # milliseconds to add to `time`, which then holds days
    notes: dict[str, str] = dataclasses.field(default_factory=dict)  # what to say of a choice
    warnings: tuple[str, ...] = ()


def missing_sql(expression: str) -> str:
    """A text cell, NULL where it is empty or one of the words for a missing value.

    The length is asked first: with it 10 million rows take 0.1 s rather than 0.5 s more.
    """
    words = ", ".join(f"'{word}'" for word in MISSING)
    return f"CASE WHEN strlen({expression}) < 5 AND {expression} IN ({words}) THEN NULL ELSE {expression} END"  # noqa: E501


def untyped(name: str) -> str:
    """A name without RecBole's type: `user_id:token` is `user_id`."""
    return name.split(":", 1)[0]


def plain(name: str) -> str:
    """A name as it is compared with the usual ones."""
    return "".join(c for c in untyped(name).lower() if c not in "_-. ")


def num_known(names: Sequence[str]) -> int:
    """How many of the roles user or session, item, time have a usual name among `names`."""
    found = {plain(name) for name in names}
    return sum(
        any(name in found for role in roles for name in USUAL_NAMES[role])
        for roles in (("user", "session"), ("item",), ("time",))
    )


def choose_named(
    label: str, names: Sequence[str], options: ReadingOptions, sample: Sequence[Sequence[object]]
) -> ChosenColumns:
    """The columns of a file that names them.

    sample: some rows as they are, to see whether the user column is empty. Raises InputError that
    lists the columns when none or several fit.
    """
    notes: dict[str, str] = {}
    warnings: list[str] = []
    user, note = _user(label, names, options, sample)
    if note:
        notes["user"] = note
    item = _wanted(label, names, "item", options.item)
    time, frame = _time(label, names, options, taken={user, item})
    if frame is not None:
        notes["time"] = (
            f"day '{names[time or 0]}' at midnight UTC plus '{names[frame]}' as milliseconds"
        )
        if plain(names[user]) not in USUAL_NAMES["session"]:
            warnings.append(
                f"{label}: '{names[frame]}' counts from the start of a session, so a user's "
                "sessions of one day are mixed. Take the session as the user with --user."
            )
    chosen = [place for place in (user, item, time) if place is not None]
    if len(set(chosen)) < len(chosen):
        roles = zip(("user", "item", "time"), chosen, strict=False)
        said = ", ".join(f"{role} = '{names[place]}'" for role, place in roles)
        raise InputError(
            f"{label}: user, item and time must be three different columns ({said}). "
            "Name each with --user, --item and --time."
        )
    side = {
        role: _side(label, names, role, getattr(options, role), taken=set(chosen))
        for role in ("action", "rating")
    }
    return ChosenColumns(
        user=user, item=item, time=time, frame=frame, notes=notes, warnings=tuple(warnings), **side
    )


def choose_by_content(
    label: str, num_columns: int, options: ReadingOptions, sample: Sequence[Sequence[str]]
) -> ChosenColumns:
    """The columns of a file without a header: by position when named, else by what they hold.

    Known is the order user, item [, rating] with one column of times anywhere. Raises InputError,
    which repeats no cell, when no column or several could be the time.
    """
    user, item, time = (
        _position(label, role, getattr(options, role), num_columns)
        for role in ("user", "item", "time")
    )
    has_all = user is not None and item is not None
    if time is None and options.time != NONE:
        time = _time_by_content(label, num_columns, sample, taken={user, item})
    if not has_all and num_columns > 5 and (options.user is None or options.item is None):
        raise InputError(
            f"{label}: has no header and {num_columns} columns, so which is the user and which the "
            "item cannot be known. Give their positions, for example --user 1 --item 2 --time 4."
        )
    free = [place for place in range(num_columns) if place not in (user, item, time)]
    if user is None and free:
        user = free.pop(0)
    if item is None and free:
        item = free.pop(0)
    if user is None or item is None or len({user, item, time}) < 3:
        raise InputError(
            f"{label}: user, item and time must be different columns, and there are {num_columns}. "
            "Give their positions, for example --user 1 --item 2 --time 3, or --time none."
        )
    action, rating = (
        None if getattr(options, role) == NONE
        else _position(label, role, getattr(options, role), num_columns)
        for role in ("action", "rating")
    )  # fmt: skip
    if rating is None and options.rating is None and _is_rating(user, item, time, sample):
        rating = item + 1
    if action is None and options.action is None:
        action = _action_by_content({user, item, time, rating}, num_columns, sample)
    return ChosenColumns(
        user=user, item=item, time=time, action=action, rating=rating,
        notes={role: "by content" for role in ("user", "item", "time", "action", "rating")
               if getattr(options, role) is None},
    )  # fmt: skip


def no_time(label: str, what: str) -> InputError:
    """What to say when a file has no time column."""
    return InputError(
        f"{label}: no time column was found{what}. Name it with --time COLUMN; if the file has "
        "none and each user's rows stand in the order in which they happened, say --time none: "
        "then the order of the file is taken as the order of time."
    )


def _user(
    label: str, names: Sequence[str], options: ReadingOptions, sample: Sequence[Sequence[object]]
) -> tuple[int, str]:
    """The user's place, and what to say when it is a session."""
    if options.user is not None:
        return _wanted(label, names, "user", options.user), ""
    session = _usual(names, "session")
    if not _usual(names, "user") and len(session) == 1:
        return session[0], "each session is taken as a user, for there is no user column"
    user = _wanted(label, names, "user", None)
    cells = [row[user] for row in sample if len(row) > user]
    num_missing = sum(cell is None or str(cell) in MISSING for cell in cells)
    if len(session) == 1 and 2 * num_missing > len(cells):
        return session[0], (
            f"each session is taken as a user, for '{names[user]}' is mostly empty or NA"
        )
    return user, ""


def _time(
    label: str, names: Sequence[str], options: ReadingOptions, taken: set[int]
) -> tuple[int | None, int | None]:
    """The time's place, and that of milliseconds to add to it."""
    if options.time == NONE:
        return None, None
    if options.time is not None:
        return _wanted(label, names, "time", options.time), None
    usual = [place for place in _usual(names, "time") if place not in taken]
    frames = [place for place, name in enumerate(names) if plain(name) == "timeframe"]
    if not usual:
        listed = _listed(names)
        raise no_time(
            label,
            f": no column has one of the usual names of a time ({USUAL_NAMES['time'][0]}, ...) "
            f"among {listed}",
        )
    if len(usual) > 1:
        raise _several(label, names, "time", len(usual))
    days = plain(names[usual[0]]) in ("eventdate", "date")
    return usual[0], frames[0] if len(frames) == 1 and days else None


def _side(
    label: str, names: Sequence[str], role: str, wanted: str | None, taken: set[int]
) -> int | None:
    if wanted == NONE:
        return None
    if wanted is not None:
        return _wanted(label, names, role, wanted)
    usual = [place for place in _usual(names, role) if place not in taken]
    return usual[0] if len(usual) == 1 else None


def _usual(names: Sequence[str], role: str) -> list[int]:
    """The places of the most telling usual name of a role."""
    found = [plain(name) for name in names]
    usual = next((name for name in USUAL_NAMES[role] if name in found), None)
    return [place for place, name in enumerate(found) if name == usual]


def _wanted(label: str, names: Sequence[str], role: str, wanted: str | None) -> int:
    """The place of the column of a role; `wanted` is its name or None for the usual ones."""
    if wanted is not None:
        exact = [place for place, name in enumerate(names) if name == wanted]
        typed = [place for place, name in enumerate(names) if untyped(name) == wanted]
        candidates = exact or typed
    else:
        candidates = _usual(names, role)
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise _several(label, names, role, len(candidates))
    if wanted is None:
        what = f"no column has one of the usual names of a {role} ({USUAL_NAMES[role][0]}, ...)"
        mend = f"Name it with --{role} COLUMN"
    else:
        what = f"there is no column '{wanted}' for the {role}"
        close = difflib.get_close_matches(wanted, names, n=1)
        mend = f"Did you mean '{close[0]}'?" if close else f"Name another with --{role} COLUMN"
    raise InputError(
        f"{label}: {what}. The columns are {_listed(names)}. {mend}; if the first line names no "
        "columns, say --no-header, and name the delimiter with --delimiter if it is another."
    )


def _several(label: str, names: Sequence[str], role: str, count: int) -> InputError:
    return InputError(
        f"{label}: {count} columns could be the {role} ({_listed(names)}). "
        f"Name the right one with --{role} COLUMN; every column needs its own name."
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name[:60]}'" for name in names[:40])


def _position(label: str, role: str, wanted: str | None, num_columns: int) -> int | None:
    if wanted is None or wanted == NONE:
        return None
    if wanted.isascii() and wanted.isdigit() and 1 <= int(wanted[:9]) <= num_columns:
        return int(wanted) - 1
    raise InputError(
        f"{label}: --{role} is {wanted!r}, but the first line names no columns. Give a position "
        f"from 1 to {num_columns}, or say --header if the first line does name them."
    )


def _time_by_content(
    label: str, num_columns: int, sample: Sequence[Sequence[str]], taken: set[int | None]
) -> int:
    times = [
        place
        for place in range(num_columns)
        if place not in taken and looks_like_times([row[place] for row in sample])
    ]
    if len(times) == 1:
        return times[0]
    if times:
        said = ", ".join(str(place + 1) for place in times)
        raise InputError(
            f"{label}: has no header, and columns {said} could all be the time. Give the "
            "positions, for example --user 1 --item 2 --time 4."
        )
    hint = (
        "; if every line is one user and then that user's items, say --format lists"
        if num_columns > 3
        else ""
    )
    raise no_time(
        label,
        f": there is no header, and none of the {num_columns} columns holds times between 1990 and "
        f"2100 (give positions, for example --user 1 --item 2 --time 4{hint})",
    )


def _is_rating(user: int, item: int, time: int | None, sample: Sequence[Sequence[str]]) -> bool:
    """Whether the column between item and time (or the last of three) holds small numbers."""
    place = item + 1
    is_there = place + 1 == time if time is not None else sample and len(sample[0]) == place + 1
    if not is_there or place == user:
        return False
    try:
        values = {float(row[place]) for row in sample}
    except ValueError:
        return False
    return len(values) <= 21 and all(0 <= value <= 10 for value in values)


def _action_by_content(
    taken: set[int | None], num_columns: int, sample: Sequence[Sequence[str]]
) -> int | None:
    """A column of a few words, such as pv, cart, buy."""
    found = []
    for place in (p for p in range(num_columns) if p not in taken):
        values = {row[place] for row in sample}
        if 2 <= len(values) <= 10 < len(sample) and all(value.isalpha() for value in values):
            found.append(place)
    return found[0] if len(found) == 1 else None
