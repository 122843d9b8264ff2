"""Chooses among several files or members of an archive those that hold the interactions.

A folder, a pattern or a zip may hold ratings beside movies and links. What can be opened as
interactions qualifies. Files of one kind (the same format and columns) belong together; of several
kinds the one with the most telling name (ratings before tags) is taken, and else none is guessed.

Before: files.py's list.   After: scan.py opens each.
Price: each candidate's head; of a zip at most 4 MB a member, and the chosen one whole.
"""

from __future__ import annotations

import dataclasses
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Protocol, TypeVar

import duckdb

from analytics.errors import InputError
from analytics.sources.files import find_files, is_data_name, shown
from analytics.sources.options import ReadingOptions
from analytics.sources.unpacked import PlainFile, is_zip, make_plain

# fmt: off
_TELLING = (
    "interactions", "ratings", "events", "clicks", "views", "behaviors", "behavior", "reviews",
    "purchases", "transactions", "sessions",
)
# fmt: on
_MEMBER_HEAD_BYTES = 4 << 20
_MOST_MEMBERS = 200


class _Opened(Protocol):
    """A scan, as far as choosing must know it."""

    @property
    def decision(self) -> dict[str, str]: ...
    @property
    def label(self) -> str: ...
    @property
    def warnings(self) -> tuple[str, ...]: ...


ScanT = TypeVar("ScanT", bound=_Opened)


def files_to_read(
    path: str | Path,
    options: ReadingOptions,
    *,
    scratch: Path,
    connection: duckdb.DuckDBPyConnection,
    open_file: Callable[[PlainFile, int], ScanT],
) -> list[ScanT]:
    """Open what a path means, one scan a file, in the order of the names.

    open_file: makes a scan of a plain file and its number. Raises InputError when nothing
    qualifies, or when files of several kinds do and no name tells which.
    """
    found = find_files(path)
    opened: list[ScanT] = []
    refused: list[tuple[str, InputError]] = []

    def plain(file: Path, member: str | None, most_bytes: int | None = None) -> PlainFile:
        return make_plain(
            file, options=options, scratch=scratch, connection=connection, member=member,
            most_bytes=most_bytes,
        )  # fmt: skip

    for file in found.files:
        try:
            member = found.member
            left_out: tuple[str, ...] = ()
            if is_zip(file):
                member, left_out = _member(file, member, plain, open_file)
            scan = open_file(plain(file, member), len(opened))
            opened.append(_with_warning(scan, left_out, shown(file)))
        except InputError as error:
            if not found.is_many:
                raise
            refused.append((shown(file.name), error))
    if not opened:
        raise _none_qualifies(shown(path), refused)
    chosen = _one_kind(shown(path), opened) if found.is_many else opened
    left = (
        *found.skipped,
        *(name for name, _ in refused),
        *(shown(Path(scan.label).name) for scan in opened if scan not in chosen),
    )
    return [_with_warning(chosen[0], left, shown(path)), *chosen[1:]]


def _with_warning(scan: ScanT, left_out: tuple[str, ...], label: str) -> ScanT:
    if not left_out:
        return scan
    named = ", ".join(left_out[:10]) + (", ..." if len(left_out) > 10 else "")
    said = f"{label}: {len(left_out)} files in it were left out ({named})."
    return dataclasses.replace(scan, warnings=(said, *scan.warnings))  # type: ignore[type-var]


def _member(
    archive: Path,
    wanted: str | None,
    plain: Callable[[Path, str | None, int | None], PlainFile],
    open_file: Callable[[PlainFile, int], ScanT],
) -> tuple[str, tuple[str, ...]]:
    """The member of a zip to read, and those left out."""
    label = shown(archive)
    names = _member_names(archive, label)
    if wanted is not None:
        if wanted not in names:
            listed = ", ".join(shown(name) for name in names[:20])
            raise InputError(
                f"{label}: has no member '{wanted}'. Its members are {listed}. Give one as "
                f"{label}:MEMBER."
            )
        return wanted, ()
    usable = [name for name in names if is_data_name(PurePosixPath(name).name)]
    usable = [name for name in usable if not name.startswith("__MACOSX/")]
    if not usable:
        raise InputError(f"{label}: holds no file that could be interactions. Give another file.")
    if len(usable) == 1:
        return usable[0], tuple(shown(name) for name in names if name != usable[0])
    qualified: dict[str, ScanT] = {}
    refused: list[tuple[str, InputError]] = []
    for name in usable[:_MOST_MEMBERS]:
        most = None if name.lower().endswith((".parquet", ".pq")) else _MEMBER_HEAD_BYTES
        try:
            qualified[name] = open_file(plain(archive, name, most), 0)
        except InputError as error:
            refused.append((shown(name), error))
    if not qualified:
        raise _none_qualifies(label, refused)
    chosen = next(iter(qualified))
    if len(qualified) > 1:
        telling = _most_telling(list(qualified))
        if telling is None:
            listed = ", ".join(shown(name) for name in qualified)
            raise InputError(
                f"{label}: {len(qualified)} of its files could be the interactions ({listed}). "
                f"Choose one as {label}:MEMBER, or unpack it and give a folder or a pattern of "
                "those that belong together."
            )
        chosen = telling
    return chosen, tuple(shown(name) for name in names if name != chosen)


def _member_names(archive: Path, label: str) -> list[str]:
    try:
        with zipfile.ZipFile(archive) as opened:
            names = [entry.filename for entry in opened.infolist() if not entry.is_dir()]
    # what zipfile raises on damaged, encrypted or unknown archives; refused below
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError) as error:
        raise InputError(
            f"{label}: is a zip archive that is damaged or cut off. Fetch the file again."
        ) from error
    if "[Content_Types].xml" in names:
        raise InputError(f"{label}: is an Excel workbook. Save its sheet as CSV.")
    if not names:
        raise InputError(f"{label}: is an empty zip archive. Give a file with interactions.")
    return names


def _one_kind(label: str, opened: list[ScanT]) -> list[ScanT]:
    """The scans that belong together: all of one kind, or those of the most telling name."""
    kinds: dict[tuple[str, ...], list[ScanT]] = {}
    for scan in opened:
        decision = scan.decision
        key = tuple(decision.get(name, "") for name in ("format", "user", "item", "time"))
        kinds.setdefault((*key, decision.get("header", "")), []).append(scan)
    if len(kinds) == 1:
        return opened
    telling = _most_telling([scan.label for scan in opened])
    for scans in kinds.values():
        if telling is not None and any(scan.label == telling for scan in scans):
            return scans
    firsts = ", ".join(shown(Path(scans[0].label).name) for scans in kinds.values())
    raise InputError(
        f"{label}: holds interactions of {len(kinds)} different kinds (for example {firsts}). "
        "Give one of the files, or a pattern such as 'folder/part-*.csv' of those that belong "
        "together."
    )


def _most_telling(names: list[str]) -> str | None:
    """The one name that says 'interactions' most plainly, or None when several or none do."""
    stems = {name: PurePosixPath(name).name.lower().split(".", 1)[0] for name in names}
    for word in _TELLING:
        exact = [name for name, stem in stems.items() if stem == word]
        if exact:
            return exact[0] if len(exact) == 1 else None
    for word in _TELLING:
        held = [name for name, stem in stems.items() if word.removesuffix("s") in stem]
        if held:
            return held[0] if len(held) == 1 else None
    return None


def _none_qualifies(label: str, refused: list[tuple[str, InputError]]) -> InputError:
    if len(refused) == 1:
        return refused[0][1]
    reasons = " | ".join(str(error) for _, error in refused[:3])
    return InputError(f"{label}: none of its {len(refused)} files can be used. {reasons}")
