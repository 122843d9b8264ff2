"""Says in words what an imported bill puts out of force, and what has put it out of force.

Of two exports of one account and billing period the one that was imported later counts. Which lines
that concerns is asked of the view bill_line, over what is landed: the rule stands there alone.

Before: billing.py has landed a bill.   After: importing.py tells the person.
Price: two passes over account, period and time of every landed bill.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import duckdb

from analytics.billing import SOURCE_KIND
from analytics.ddl import quoted, views
from analytics.landing import FOLDER, insert_records, landed, landing_tables, manifest
from analytics.schema import DimImport
from analytics.sources.files import file_sha256

_FILE = "fact_cost.parquet"
# part_1_0001.csv of Azure, name-00002.snappy.parquet of AWS; no month such as bill-2026-11.csv
_PART = re.compile(r"part[-_]?\d+|[-_]0\d{3,}\.", re.IGNORECASE)
_IN_FORCE = """
CREATE OR REPLACE TEMP TABLE {name} AS
SELECT
    import_id,
    line,
    coalesce(billing_account_id, '') AS account,
    strftime(
        make_timestamp(coalesce(billing_period_began_unix_ns, charge_began_unix_ns) // 1000),
        '%Y-%m'
    ) AS period,
    currency,
    billed_cost
FROM bill_line
WHERE is_in_force
"""
_REPLACED = """
SELECT import_id, account, period, currency, count(*), sum(billed_cost)
FROM before_it ANTI JOIN with_it USING (import_id, line)
GROUP BY ALL
ORDER BY ALL
"""


def standing(about: DimImport, files: Sequence[Path], runs_dir: Path) -> list[str]:
    """What a person should know of a landed bill beside others; empty when it stands whole.

    about, files: the bill's import and what it was read from.
    """
    bills = {one.import_id: one for one in _bills(runs_dir)}
    if len(bills) < 2 or about.import_id not in bills:
        return _part_notes(files)
    with landing_tables(runs_dir) as con:
        insert_records(con, list(bills.values()))
        con.execute("ALTER TABLE fact_cost RENAME TO no_cost")
        zone, lines = (view for view in views() if view.name in ("time_zone", "bill_line"))
        con.execute(f"CREATE VIEW time_zone AS\n{zone.query}")
        for name, there in (("before_it", bills.keys() - {about.import_id}), ("with_it", bills)):
            _set_lines(con, runs_dir, there)
            con.execute(f"CREATE OR REPLACE VIEW bill_line AS\n{lines.query}")
            con.execute(_IN_FORCE.format(name=name))
        replaced = con.execute(_REPLACED).fetchall()
        num_in_force = con.execute(
            "SELECT count(*) FROM with_it WHERE import_id = ?", [about.import_id]
        ).fetchall()[0][0]
    if replaced and len(files) > 1:  # parts that were imported alone before are no loss
        inside = {file_sha256(path) for path in files}
        replaced = [row for row in replaced if bills[row[0]].source_sha256 not in inside]
    notes = [_replaced_note(row, bills[row[0]]) for row in replaced]
    if num_in_force < about.num_loaded:
        notes.append(_out_of_force_note(about, about.num_loaded - num_in_force, runs_dir))
    return notes or _part_notes(files)


def _part_notes(files: Sequence[Path]) -> list[str]:
    if len(files) != 1 or not _PART.search(files[0].name):
        return []
    return [
        "Its name is that of one part of several. If there are others, put them into one folder "
        "and import that folder: imported one by one, the later part replaces the earlier."
    ]


def _bills(runs_dir: Path) -> list[DimImport]:
    found = [manifest(path) for path in landed(runs_dir) if (path / _FILE).is_file()]
    return [about for about in found if about.source_kind == SOURCE_KIND]


def _set_lines(con: duckdb.DuckDBPyConnection, runs_dir: Path, import_ids: Iterable[str]) -> None:
    """Let fact_cost be the lines of these imports, as they lie."""
    files = ", ".join(quoted(str(runs_dir / FOLDER / one / _FILE)) for one in import_ids)
    con.execute(
        "CREATE OR REPLACE VIEW fact_cost AS SELECT * FROM no_cost UNION ALL BY NAME "  # noqa: S608
        f"SELECT * FROM read_parquet([{files}], union_by_name = true)"
    )


def _replaced_note(row: Sequence[Any], by: DimImport) -> str:
    _, account, period, currency, num_lines, cost = row
    when = datetime.datetime.fromtimestamp(by.imported_unix_ns // 10**9, tz=datetime.UTC)
    of_account = f" of account {account}" if account else ""
    return (
        f"This replaces {num_lines:,} lines, {cost:,.2f} {currency}, of billing period {period}"
        f"{of_account}, which came from '{by.source_name}' on {when:%Y-%m-%d %H:%M} UTC: of two "
        "exports of one account and period the one imported later counts. If both are parts of "
        "one export, put them into one folder and import that folder; its files count together."
    )


def _out_of_force_note(about: DimImport, num_lines: int, runs_dir: Path) -> str:
    return (
        f"{num_lines:,} of its {about.num_loaded:,} lines do not count: an export of the same "
        "account and billing period was imported later. If both are parts of one export, put them "
        "into one folder and import that folder. If this one is to count instead, delete the "
        f"folder of the later one in {runs_dir / FOLDER} and run 'seqscale load --rebuild "
        f"--drop-gone --runs-dir {runs_dir}'."
    )
