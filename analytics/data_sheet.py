"""The data sheet of a store: what it holds of whom, from where, what for, and for how long.

Made from the header alone, so it can not say anything else; it names no user and no item. Purpose
and lawful basis are given when a file is prepared and handed on by every update; a filled-in one is
not lost when the same file is prepared again without it.

Before: store_making.py, just before the header.   After: a person.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from analytics.reasons import FORGOTTEN
from analytics.store import StoreHeader, read_header

SHEET_NAME = "data_sheet.md"
TO_FILL = "to be filled in"
_FILLED_BY_A_PERSON = ("purpose", "lawful_basis")
_DAY_US = 86_400_000_000


def write_data_sheet(folder: Path, header: StoreHeader, *, first_us: int, last_us: int) -> None:
    """Write `data_sheet.md`; first_us, last_us: of the events kept [us since 1970]."""
    text = data_sheet(header, first_us=first_us, last_us=last_us)
    (folder / SHEET_NAME).write_text(text, encoding="utf-8")


def says_more(made: Path, there: Path) -> bool:
    """Whether the one store's sheet has an entry of a person's that the other's has not."""
    new, old = read_header(made).data_sheet, read_header(there).data_sheet
    return any(new[name] not in (TO_FILL, old.get(name, TO_FILL)) for name in _FILLED_BY_A_PERSON)


def data_sheet(header: StoreHeader, *, first_us: int, last_us: int) -> str:
    """The sheet as Markdown."""
    lines = [f"# Data sheet of {_cell(header.dataset_name)}", ""]
    lines += _table("", _identity(header))
    lines += _sources(header)
    lines += _table("## Columns", _columns(header))
    lines += _table("## What is in it", _content(header, first_us, last_us))
    lines += _table("## Rows left out, by reason", _dropped(header))
    lines += _table("## The rules in words", _words(header.rules["words"]))
    lines += _table("## People", _people(header))
    lines += _table("## Purpose and retention", _purpose(header, first_us, last_us))
    lines += _how_to_change()
    return "\n".join(lines) + "\n"


def _identity(header: StoreHeader) -> dict[str, str]:
    sheet = header.data_sheet
    earlier = sheet["earlier_versions"]
    return {
        "version": header.dataset_id,
        "content SHA-256": header.content_sha256,
        "prepared": sheet["prepared_utc"],
        "last updated": sheet.get("updated_utc", "never"),
        "versions before this one": ", ".join(earlier) or "none",
        "terms of use": header.terms,
    }


def _sources(header: StoreHeader) -> list[str]:
    lines = ["## Sources", "", "| file | SHA-256 | rows |", "|---|---|---:|"]
    for source in header.sources:
        lines.append(f"| {_cell(source['name'])} | {source['sha256']} | {source['num_rows']:,} |")
    return [*lines, ""]


def _columns(header: StoreHeader) -> dict[str, str]:
    """What was read of the files, and how; other columns were not."""
    decisions = [source["decision"] for source in header.sources]
    entries = {}
    for name in dict.fromkeys(name for decision in decisions for name in decision):
        said = dict.fromkeys(str(decision[name]) for decision in decisions if name in decision)
        entries[name.replace("_", " ")] = "; ".join(said)
    return entries | {"any other column": "not read"}


def _content(header: StoreHeader, first_us: int, last_us: int) -> dict[str, str]:
    splits = ", ".join(f"{name} {count:,}" for name, count in header.num_in_split.items())
    entries = {
        "rows read": f"{header.num_rows_read:,}",
        "events kept": f"{header.num_events:,} ({splits})",
        "users": f"{header.num_users:,}",
        "items": f"{header.num_items:,}",
    }
    if header.has_times:
        entries["first and last event"] = f"{_day(first_us)} to {_day(last_us)}"
    return entries


def _dropped(header: StoreHeader) -> dict[str, str]:
    named = {reason: f"{count:,}" for reason, count in header.dropped_rows.items() if count}
    return named or {"none": "0"}


def _words(words: dict[str, Any]) -> dict[str, str]:
    return {name.replace("_", " "): str(said) for name, said in words.items()}


def _people(header: StoreHeader) -> dict[str, str]:
    if header.pseudonyms is None:
        who = "as they came: this store holds personal data in the clear"
        key = "none"
    else:
        who = f"pseudonyms ({header.pseudonyms['scheme']}), still personal data for who has the key"
        key = f"fingerprint {header.pseudonyms['key_id']}; the key itself is not kept here"
    return {
        "user ids": who,
        "key": key,
        "rows of people erased so far": f"{header.dropped_rows.get(FORGOTTEN, 0):,}",
        "to erase a person": "seqscale forget --user ID --store THIS-FOLDER (--store is not needed "
        "for stores under the runs folder)",
    }


def _purpose(header: StoreHeader, first_us: int, last_us: int) -> dict[str, str]:
    sheet = header.data_sheet
    return {
        "purpose": str(sheet["purpose"]),
        "lawful basis": str(sheet["lawful_basis"]),
        "retention": _retention(sheet["retention_days"], first_us, last_us),
    }


def _retention(days: int | None, first_us: int, last_us: int) -> str:
    if days is None:
        return "not limited; prepare with --keep-days N to limit it"
    first, last = (_day(int(time_us) + days * _DAY_US) for time_us in (first_us, last_us))
    return (
        f"{days:,} days after an event; the first kept event expires on {first}, the last on "
        f"{last}. Nothing expires by itself: run 'seqscale forget --expired' regularly"
    )


def _how_to_change() -> list[str]:
    return [
        "Purpose and lawful basis are stated when the data is prepared (--purpose,",
        "--lawful-basis), and every append, erasure and expiry hands them on. Do not fill them in",
        "here: this file is written anew with each version. To state them for data that is there",
        "already, prepare the same file again with these options.",
    ]


def _table(title: str, entries: dict[str, str]) -> list[str]:
    lines = [title, ""] if title else []
    lines += ["| | |", "|---|---|"]
    lines += [f"| {name} | {_cell(value)} |" for name, value in entries.items()]
    return [*lines, ""]


def _cell(text: str) -> str:
    """Text that cannot break out of a table's cell."""
    return " ".join(text.replace("|", "\\|").split())


def _day(time_us: int) -> str:
    since = datetime.timedelta(microseconds=int(time_us))
    try:
        return (datetime.datetime.fromtimestamp(0, datetime.UTC) + since).date().isoformat()
    except OverflowError:
        return "beyond the year 9999" if time_us > 0 else "before the year 1"
