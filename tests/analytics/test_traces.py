"""A search for what should be gone finds it wherever it lies, and says where it could not look."""

from pathlib import Path

import duckdb

from analytics.traces import files_with

NEEDLE = "anna-customer-1001"


def database(path: Path, name: str) -> Path:
    """A DuckDB file of many names, so that their bytes are compressed."""
    with duckdb.connect(str(path)) as con:
        con.execute(
            """
            CREATE TABLE "a table" AS
            SELECT n, 'anna-customer-' || (n % 900 + 2000) AS "who ""is"" it", ['x'] AS more
            FROM range(100_000) AS r(n)
            """
        )
        con.execute('INSERT INTO "a table" VALUES (0, $name, [])', {"name": name})
        con.execute("CREATE TABLE numbers AS SELECT 1 AS n")
        con.execute("CREATE VIEW names AS SELECT 'x' AS text")
    return path


def test_columns_of_databases_are_searched(tmp_path: Path) -> None:
    held = database(tmp_path / "held.duckdb", NEEDLE)
    database(tmp_path / "other.duckdb", "nobody")
    nested = tmp_path / "nested.duckdb"
    with duckdb.connect(str(nested)) as con:
        con.execute("CREATE TABLE t AS SELECT [{'who': $name}] AS deep", {"name": NEEDLE})
    found = files_with([tmp_path], [NEEDLE])
    assert found.holding == [held, nested]
    assert found.unsearched == []


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 torn")
    (tmp_path / "torn.duckdb").write_bytes(b"no database" * 1000)
    (tmp_path / "note.txt").write_text(NEEDLE)
    found = files_with([tmp_path, tmp_path / "nothing"], ["nobody-at-all", NEEDLE])
    assert found.holding == [tmp_path / "note.txt"]
    assert found.unsearched == [tmp_path / "torn.duckdb", tmp_path / "torn.parquet"]


def test_bytes_of_a_torn_file_are_searched_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 torn " + NEEDLE.encode())
    found = files_with([tmp_path], [NEEDLE])
    assert (found.holding, found.unsearched) == ([tmp_path / "torn.parquet"], [])
