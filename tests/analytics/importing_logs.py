"""What the tests of importers share: import a text, and read what was landed."""

from pathlib import Path

import duckdb

from analytics import landing
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
    return outcome


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
