"""Opens scans the way the pipeline does: offline, one gigabyte, two threads, file order kept."""

from pathlib import Path
from typing import Any

import duckdb

from analytics.sources.scan import ReadingOptions, Scan, explain, open_scans


def connect(folder: Path) -> duckdb.DuckDBPyConnection:
    opened = duckdb.connect(
        config={
            "memory_limit": "1GiB",
            "threads": "2",
            "temp_directory": str(folder / "spill"),
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        }
    )
    opened.execute("SET TimeZone = 'UTC'")
    opened.execute("SET disabled_optimizers = 'join_order,build_side_probe_side'")
    return opened


class Opener:
    """Opens paths in one connection; what goes wrong while a statement runs is explained too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self.connection = connect(folder)

    def all(self, path: Path | str, **options: Any) -> list[Scan]:
        return open_scans(
            path, ReadingOptions(**options), scratch=self.scratch, connection=self.connection
        )

    def one(self, path: Path | str, **options: Any) -> Scan:
        (scan,) = self.all(path, **options)
        return scan

    def text(self, content: str | bytes, name: str = "events.csv", **options: Any) -> Scan:
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return self.one(path, **options)

    def run(self, scan: Scan, columns: str = "*") -> list[tuple[Any, ...]]:
        try:
            return self.connection.execute(
                f"SELECT {columns} FROM ({scan.select})", scan.parameters
            ).fetchall()
        except duckdb.Error as error:
            answer = explain(scan.label, error)
            if answer is None:
                raise
            raise answer from error
