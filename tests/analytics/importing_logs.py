"""What the tests of importers share: import a text, and read what was landed."""

from pathlib import Path

import duckdb

from analytics import landing
from analytics.schema import DimImport
from analytics.telemetry.import_options import ImportOptions
from analytics.telemetry.importing import REFUSED, Outcome, import_telemetry

UTC = ImportOptions(time_zone="UTC", host="h")


def import_text(
    folder: Path, text: str | bytes, options: ImportOptions = UTC, name="log"
) -> Outcome:
    """The outcome of a file of this content; its landing zone is `folder/runs`."""
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    (outcome,) = import_telemetry(path, folder / "runs", options)
    if outcome.about is not None:
        check_conserved(folder / "runs", outcome.about)
    return outcome


def check_conserved(runs_dir: Path, about: DimImport) -> None:
    """Every row that was read is loaded or rejected, and each rejected one is kept by itself."""
    assert about.num_read == about.num_loaded + about.num_rejected
    path = runs_dir / landing.FOLDER / about.import_id / "fact_import_reject.parquet"
    num_kept = 0
    if path.is_file():
        kept = f"SELECT count(*) FROM '{path}' WHERE NOT starts_with(reason, 'cell_')"
        num_kept = duckdb.sql(kept).fetchall()[0][0]
    assert num_kept == about.num_rejected


def refusal(folder: Path, text: str | bytes, options: ImportOptions = UTC) -> str:
    """Why a file of this content was refused."""
    outcome = import_text(folder, text, options)
    assert outcome.status == REFUSED
    assert outcome.reason is not None
    return outcome.reason


def samples(runs_dir: Path, *names: str) -> list[tuple]:
    """These columns of all landed samples, merged as the warehouse does, by device and time."""
    files = [str(p) for p in runs_dir.glob(f"{landing.FOLDER}/*/fact_device_sample.parquet")]
    merged = landing.merged_query("fact_device_sample", f"read_parquet({files})")
    picked = ", ".join(names)
    return duckdb.sql(
        f"SELECT {picked} FROM ({merged}) ORDER BY host, device_id, sampled_unix_ns"
    ).fetchall()


def rejects(runs_dir: Path) -> list[tuple[int, str]]:
    """Line and reason of all that was kept as rejected or left out."""
    files = [str(p) for p in runs_dir.glob(f"{landing.FOLDER}/*/fact_import_reject.parquet")]
    if not files:
        return []
    return duckdb.sql(
        f"SELECT line, reason FROM read_parquet({files}) ORDER BY file_name, line, reason"
    ).fetchall()
