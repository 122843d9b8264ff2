"""Opens an interactions file and copies its three columns, as text and in file order, into DuckDB.

Text files (.csv .tsv .inter .txt .dat) have a header and one of , ; tab | between the columns;
quotes, a byte order mark and RecBole's typed headers (`user_id:token`) are understood. Parquet is
told by its first bytes. Ids never pass through a number: what is in the file is what is kept.

Before: a user's file.   After: event_times.py reads the time column, sequencing.py the rest.
Price: one pass; DuckDB keeps the order of the rows, so `rowid` is the row's place in the file.
"""

from __future__ import annotations

import codecs
import csv
import dataclasses
import glob
import io
from pathlib import Path

import duckdb

from analytics.columns import USUAL_NAMES, InteractionColumns, find_column
from analytics.errors import InputError, StoreError

DELIMITERS = ",;\t|"
_HEAD_BYTES = 1 << 20  # enough for any header
_NESTED = ("STRUCT", "MAP", "UNION", "VARIANT")

_OUR_FAULTS = (
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.InternalException,
    duckdb.ParserException,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """An interactions file whose three columns are known."""

    path: Path
    delimiter: str  # empty for Parquet
    names: tuple[str, ...]  # all columns, as the file names them
    user: int  # places of the three among the names
    item: int
    time: int
    time_is_typed: bool  # a Parquet date or timestamp, read as microseconds

    @property
    def is_parquet(self) -> bool:
        """Whether the file is Parquet rather than text."""
        return not self.delimiter


def open_source(
    path: Path, columns: InteractionColumns, connection: duckdb.DuckDBPyConnection
) -> Source:
    """Look at a file's head and settle its columns.

    Raises InputError when it is missing, empty, not readable, or lacks a column.
    """
    head = _read_head(path)
    if head.startswith(b"PAR1") or path.suffix.lower() in (".parquet", ".pq"):
        names, types = _parquet_columns(path, connection)
        delimiter = ""
    else:
        delimiter, names = _text_header(path, head)
        types = ["VARCHAR"] * len(names)
    places = {role: find_column(path, names, role, getattr(columns, role)) for role in USUAL_NAMES}
    if len(set(places.values())) < len(places):
        chosen = ", ".join(f"{role} = '{names[place]}'" for role, place in places.items())
        raise InputError(
            f"{path}: user, item and time must be three different columns ({chosen}). "
            "Name each with --user, --item and --time."
        )
    for place in places.values():
        if types[place].endswith("]") or types[place].startswith(_NESTED):
            raise InputError(
                f"{path}: column '{names[place]}' holds {types[place]}, but one row must be one "
                "event. Unnest the lists first."
            )
    return Source(
        path=path,
        delimiter=delimiter,
        names=tuple(names),
        time_is_typed=types[places["time"]].startswith(("TIMESTAMP", "DATE")),
        **places,
    )


def load_rows(connection: duckdb.DuckDBPyConnection, source: Source) -> int:
    """Copy the three columns into the table `rows` and return how many rows there are.

    rows: user_text, item_text, time_text, each VARCHAR and NULL where the cell is empty; `rowid` is
    the place of the row in the file, from 0. Raises InputError for a row that cannot be read.
    """
    # only numbers of ours and quoted names are put into the statement
    statement = "CREATE TABLE rows AS " + (
        _parquet_select(source) if source.is_parquet else _text_select(source)
    )
    parameters = {"path": glob.escape(str(source.path))}
    if not source.is_parquet:
        parameters["delimiter"] = source.delimiter
    try:
        connection.execute(statement, parameters)
    except duckdb.Error as error:
        if is_storage_failure(error) or isinstance(error, _OUR_FAULTS):
            raise
        raise InputError(_unreadable(source, error)) from error
    counted = connection.execute("SELECT count(*) FROM rows").fetchone()
    num_rows = int(counted[0]) if counted else 0
    if num_rows == 0:
        raise InputError(
            f"{source.path}: there is a header ({', '.join(source.names)}) but no row below it. "
            "Give a file with interactions."
        )
    return num_rows


def place_in_file(source: Source, row: int) -> str:
    """Where a row stands, for a person: 'line 12' of a text file, 'row 11' of Parquet.

    row: its `rowid`, from 0. Lines are counted from 1 with the header; blank lines and cells that
    hold line breaks are counted right.
    """
    if source.is_parquet:
        return f"row {row + 1}"
    try:
        with source.path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=source.delimiter)
            seen, line_before = -1, 0  # the header is record -1
            for record in reader:
                if record:
                    if seen == row:
                        return f"line {line_before + 1}"
                    seen += 1
                line_before = reader.line_num
    except csv.Error:
        pass  # a cell longer than the csv module takes; the row's number still helps
    return f"data row {row + 1}"


def is_storage_failure(error: duckdb.Error) -> bool:
    """Whether DuckDB failed for want of disk or memory rather than for what it read."""
    text = str(error).lower()
    words = ("could not write", "no space", "failed to write", "offload", "fsync", "truncate")
    return isinstance(error, duckdb.OutOfMemoryException) or any(word in text for word in words)


def storage_error(path: Path, error: Exception) -> StoreError:
    """What to tell a user whose disk or memory did not suffice."""
    reason = str(error).splitlines()[0]
    return StoreError(
        f"{path}: the sequence store could not be written ({reason}). Nothing half-written was "
        "left. Free disk space (about four times the size of the file is needed), check that the "
        "folder is writable, or choose another with --runs-dir."
    )


def _read_head(path: Path) -> bytes:
    """The first megabyte of a regular file that is not empty."""
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a folder. Give the interactions file itself.")
        if not path.exists():
            raise InputError(f"{path}: there is no such file. Check the path.")
        if not path.is_file():
            raise InputError(
                f"{path}: is not a regular file, and it is read twice. Save it to disk first."
            )
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error}). Check its permissions.") from error
    if not head.strip(b"\xef\xbb\xbf \t\r\n"):
        raise InputError(f"{path}: the file is empty. Give a file with a header and interactions.")
    return head


def _text_header(path: Path, head: bytes) -> tuple[str, list[str]]:
    """Delimiter and column names of a text file, from its first lines."""
    if head.startswith((b"PK\x03\x04", b"\x1f\x8b", b"BZh", b"\x28\xb5\x2f\xfd")):
        raise InputError(f"{path}: is a compressed archive. Unpack it and give the file inside.")
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(head)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: is not UTF-8 text (byte {error.start} is 0x{head[error.start]:02x}). "
            "Save it as UTF-8, or as Parquet."
        ) from error
    if "\x00" in text:
        raise InputError(f"{path}: holds zero bytes, so it is not text. Save it as UTF-8 text.")
    found: list[tuple[int, str, list[str]]] = []
    for delimiter in DELIMITERS:
        names = _first_record(text, delimiter)
        found.append((len(names), delimiter, names))
    _, delimiter, names = max(found, key=lambda entry: entry[0])  # the first of equals
    return delimiter, [name.strip() for name in names]


def _first_record(text: str, delimiter: str) -> list[str]:
    try:
        for record in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter):
            if record:
                return record
    except csv.Error:
        pass  # a first line of more than 128 KiB is no header in this delimiter
    return []


def _parquet_columns(
    path: Path, connection: duckdb.DuckDBPyConnection
) -> tuple[list[str], list[str]]:
    """Names and DuckDB types of a Parquet file's columns."""
    try:
        relation = connection.execute(
            "SELECT * FROM read_parquet($path, binary_as_string = true) LIMIT 0",
            {"path": glob.escape(str(path))},
        )
    except duckdb.Error as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{path}: is not a readable Parquet file ({reason}). Write it again, or give CSV."
        ) from error
    description = relation.description or []
    return [str(c[0]) for c in description], [str(c[1]) for c in description]


def _text_select(source: Source) -> str:
    columns = ", ".join(f"'c{place}': 'VARCHAR'" for place in range(len(source.names)))
    return (
        f"SELECT c{source.user} AS user_text, c{source.item} AS item_text, "  # noqa: S608
        f"c{source.time} AS time_text "
        "FROM read_csv($path, auto_detect = false, header = true, delim = $delimiter, "
        f"quote = '\"', escape = '\"', columns = {{{columns}}})"
    )


def _parquet_select(source: Source) -> str:
    quoted = ['"' + name.replace('"', '""') + '"' for name in source.names]
    user, item, time = quoted[source.user], quoted[source.item], quoted[source.time]
    if source.time_is_typed:
        # DuckDB has no epoch_us of nanoseconds with a zone; both casts keep the instant
        time = f"epoch_us(CAST({time} AS TIMESTAMPTZ))"
    cells = ", ".join(
        f"nullif(CAST({cell} AS VARCHAR), '') AS {name}_text"
        for name, cell in (("user", user), ("item", item), ("time", time))
    )
    return f"SELECT {cells} FROM read_parquet($path, binary_as_string = true)"  # noqa: S608


def _unreadable(source: Source, error: duckdb.Error) -> str:
    """DuckDB's complaint about a row, cut to what a person can use."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    keep = [line for line in lines[:4] if not line.lower().startswith("possible")]
    what = "; ".join(line.removeprefix("Invalid Input Error: ")[:160] for line in keep)
    hint = (
        "Write it again."
        if source.is_parquet
        else (
            "Every row must have the header's columns, in UTF-8; a cell that holds the delimiter "
            "stands in double quotes. Mend that line."
        )
    )
    return f"{source.path}: cannot be read ({what}). {hint}"
