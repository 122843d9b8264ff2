"""Takes up landed imports into the warehouse, so that order, repetition and pieces do not matter.

Device samples have no index. An import that can share no key with a row of the warehouse is
appended as it lies; else rows of one key become one, each figure the larger, and what they tell
differently is kept in fact_sample_conflict. In every other table
the row of the latest import counts, by when it was imported, whatever order they are loaded in;
and what was imported for a run counts more than what the run's own journal says.

Before: landing.py holds checked, sorted Parquet files.   After: warehouse.py ends its transaction.
Price: one look at the times of an import; a merge reads the stretch of time that is shared.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import duckdb

from analytics.contradictions import CONFLICTS, SAMPLES, contradictions_query
from analytics.ddl import quoted
from analytics.errors import WarehouseError
from analytics.landing import landed, manifest, merged_query
from analytics.records import is_bulk
from analytics.schema import TABLES, DimImport, columns, table_key

_DEVICE = ("pipeline_id", "host", "device_id")
_SAME_DEVICE = " AND ".join(f"there.{name} = arriving.{name}" for name in _DEVICE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LandedImport:
    """One folder of the landing zone."""

    folder: Path
    about: DimImport

    def file(self, name: str) -> Path | None:
        """Its Parquet file of a table, or None when it has no row of it."""
        path = self.folder / f"{name}.parquet"
        return path if path.is_file() else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TakenUp:
    """What the new imports of a load hold."""

    rows: dict[str, int]  # by table
    num_conflicts: int  # figures that a row of before contradicts; the larger is kept


def landed_imports(runs_dir: Path) -> list[LandedImport]:
    """Every import of the landing zone, in the order in which they were imported.

    Raises WarehouseError when a manifest cannot be read.
    """
    found = [LandedImport(folder=path, about=manifest(path)) for path in landed(runs_dir)]
    return sorted(found, key=lambda one: (one.about.imported_unix_ns, one.about.import_id))


def known_imports(con: duckdb.DuckDBPyConnection) -> set[str]:
    """The ids of the imports that the warehouse holds."""
    return {name for (name,) in con.execute("SELECT import_id FROM dim_import").fetchall()}


def pipelines_in(con: duckdb.DuckDBPyConnection, imports: Iterable[LandedImport]) -> set[str]:
    """The pipelines that rows of these imports belong to."""
    found: set[str] = set()
    for one in imports:
        for name, record in TABLES.items():
            path = one.file(name)
            if path is not None and _has_pipeline(record):
                with _readable(one, path):
                    rows = con.execute(
                        f"SELECT DISTINCT pipeline_id FROM {_rows([path])}"  # noqa: S608
                    ).fetchall()
                found |= {pipeline_id for (pipeline_id,) in rows if pipeline_id}
    return found


def take_up(
    con: duckdb.DuckDBPyConnection,
    imports: Sequence[LandedImport],
    *,
    known: set[str],
    replaced: Sequence[str],
    journaled: set[str],
) -> TakenUp:
    """Bring the tables up to date with all landed imports.

    imports: in the order in which they were imported. known: ids that the warehouse holds.
    replaced: pipelines whose rows have just been replaced by those of their journals.
    journaled: tables that got rows from journals just now.
    Raises WarehouseError naming an import that cannot be read or is of a newer version.
    """
    num_rows: dict[str, int] = {}
    num_conflicts = 0
    for name, record in TABLES.items():
        holding = [one for one in imports if one.file(name) is not None]
        pending = [one for one in holding if one.about.import_id not in known]
        for one in pending:
            num_rows[name] = num_rows.get(name, 0) + _check_file(con, one, name)
        if is_bulk(record):
            num_conflicts += _take_up_samples(con, name, holding, pending, replaced)
        else:
            first = holding.index(pending[0]) if pending else len(holding)
            _take_up_rows(con, name, holding, first, replaced, is_journaled=name in journaled)
    return TakenUp(rows=num_rows, num_conflicts=num_conflicts)


def merge_samples(
    con: duckdb.DuckDBPyConnection, name: str, source: str, *, is_distinct: bool
) -> int:
    """Add the rows of a query to a table without an index; rows of one key become one.

    is_distinct: the query gives no key twice, so that rows which meet none may go in as they are.
    Returns how many figures of samples of one key contradicted each other; each is then a row of
    fact_sample_conflict.
    """
    time = table_key(TABLES[name])[-1]
    device = ", ".join(_DEVICE)
    con.execute(
        f"CREATE OR REPLACE TEMP TABLE arriving AS SELECT {device}, "  # noqa: S608
        f"min({time}) AS first_ns, max({time}) AS last_ns FROM ({source}) GROUP BY {device}"
    )
    first, last = con.execute("SELECT min(first_ns), max(last_ns) FROM arriving").fetchall()[0]
    if first is None:
        return 0
    # the outer bounds are constants, so that DuckDB skips what lies outside of them
    meets = (
        f"{_SAME_DEVICE} AND there.{time} BETWEEN arriving.first_ns AND arriving.last_ns "
        f"AND there.{time} BETWEEN {first} AND {last}"
    )
    is_met = con.execute(
        f"SELECT 1 FROM {name} AS there JOIN arriving ON {meets} LIMIT 1"  # noqa: S608
    ).fetchall()
    if is_distinct and not is_met:
        con.execute(f"INSERT INTO {name} BY NAME {source}")
        return 0
    both = f"(SELECT there.* FROM {name} AS there JOIN arriving ON {meets} "  # noqa: S608
    both += f"UNION ALL BY NAME {source})"
    if name == SAMPLES:
        told = contradictions_query(both)
        con.execute(f"CREATE OR REPLACE TEMP TABLE contradicted AS {told}")
    con.execute(f"CREATE OR REPLACE TEMP TABLE merged AS {merged_query(name, both)}")
    con.execute(f"DELETE FROM {name} AS there USING arriving WHERE {meets}")  # noqa: S608
    con.execute(f"INSERT INTO {name} BY NAME SELECT * FROM merged")  # noqa: S608
    con.execute("DROP TABLE merged")
    return _keep_contradictions(con) if name == SAMPLES else 0


def landed_rows(files: Sequence[Path]) -> str:
    """SQL for all rows of one table's files."""
    return f"SELECT * FROM {_rows(files)}"  # noqa: S608


def _keep_contradictions(con: duckdb.DuckDBPyConnection) -> int:
    """Put what a merge of samples found into the table of contradictions; how many there were."""
    num_conflicts: int = con.execute("SELECT count(*) FROM contradicted").fetchall()[0][0]
    if num_conflicts:
        merge_samples(con, CONFLICTS, "SELECT * FROM contradicted", is_distinct=True)
    con.execute("DROP TABLE contradicted")
    return num_conflicts


def _take_up_samples(
    con: duckdb.DuckDBPyConnection,
    name: str,
    holding: list[LandedImport],
    pending: list[LandedImport],
    replaced: Sequence[str],
) -> int:
    before = [_file(one, name) for one in holding if one not in pending]
    if before and replaced:  # what was imported for these pipelines went with their rows
        rows = f"{landed_rows(before)} WHERE {_is_of(replaced)}"
        merge_samples(con, name, rows, is_distinct=False)
    return sum(
        merge_samples(con, name, landed_rows([_file(one, name)]), is_distinct=True)
        for one in pending
    )


def _take_up_rows(
    con: duckdb.DuckDBPyConnection,
    name: str,
    holding: list[LandedImport],
    first: int,
    replaced: Sequence[str],
    *,
    is_journaled: bool,
) -> None:
    """first: where in `holding` the first import stands that the warehouse does not hold."""
    before = [_file(one, name) for one in holding[:first]]
    later = [_file(one, name) for one in holding[first:]]
    if before and _has_pipeline(TABLES[name]):
        if replaced:
            _insert_latest(con, name, before, _is_of(replaced))
    elif before and is_journaled:
        _insert_latest(con, name, before, "TRUE")
    if later:  # also those that it holds, when an earlier import comes after them
        _insert_latest(con, name, later, "TRUE")


def _insert_latest(
    con: duckdb.DuckDBPyConnection, name: str, files: Sequence[Path], condition: str
) -> None:
    """Put in the rows of files, of each key that of the last file which has it."""
    key = ", ".join(table_key(TABLES[name]))
    rows = (
        f"SELECT * EXCLUDE (filename) FROM {_rows(files, names=True)} WHERE {condition} "  # noqa: S608
        f"QUALIFY row_number() OVER (PARTITION BY {key} "
        f"ORDER BY list_position({_list(files)}, filename) DESC) = 1"
    )
    con.execute(f"INSERT OR REPLACE INTO {name} BY NAME {rows}")


def _check_file(con: duckdb.DuckDBPyConnection, one: LandedImport, name: str) -> int:
    """How many rows an import has of a table.

    Raises WarehouseError when its file is damaged, or has columns that are not known here.
    """
    path = _file(one, name)
    with _readable(one, path):
        described = con.execute(f"DESCRIBE {landed_rows([path])}").fetchall()
        num_rows = con.execute(f"SELECT count(*) FROM {_rows([path])}").fetchall()[0][0]  # noqa: S608
    unknown = {row[0] for row in described} - {c.name for c in columns(TABLES[name])}
    if unknown:
        raise WarehouseError(
            f"{path}: the import has the column '{min(unknown)}', which this seqscale does not "
            "know. A newer one wrote it; load with that one. Nothing was loaded."
        )
    return int(num_rows)


@contextlib.contextmanager
def _readable(one: LandedImport, path: Path) -> Iterator[None]:
    """What DuckDB refuses of a file becomes a WarehouseError that names the import."""
    try:
        yield
    except duckdb.Error as error:
        raise WarehouseError(
            f"{path}: this file of an import cannot be read ({str(error).splitlines()[0]}). Delete "
            f"the folder {one.folder}, import its source '{one.about.source_name}' again, then "
            "load again; nothing was loaded."
        ) from error


def _file(one: LandedImport, name: str) -> Path:
    path = one.file(name)
    assert path is not None, "the import was chosen because it has this table"
    return path


def _has_pipeline(record: type) -> bool:
    return record is not DimImport and any(c.name == "pipeline_id" for c in columns(record))


def _is_of(pipelines: Sequence[str]) -> str:
    return f"pipeline_id IN ({', '.join(quoted(name) for name in pipelines)})"


def _rows(files: Sequence[Path], *, names: bool = False) -> str:
    with_names = ", filename = true" if names else ""
    return f"read_parquet({_list(files)}, union_by_name = true{with_names})"


def _list(files: Sequence[Path]) -> str:
    return f"[{', '.join(quoted(str(path)) for path in files)}]"
