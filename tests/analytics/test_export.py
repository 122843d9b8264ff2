import hashlib
import json
from decimal import Decimal

import duckdb
import pytest

from analytics import schema
from analytics.errors import WarehouseError
from analytics.export import csv_cell, csv_lines, export
from analytics.warehouse import open_published


def test_every_table_and_the_view_are_written_with_their_manifest(published):
    report = export(published.runs_dir)
    root = published.runs_dir / "export"
    manifest = json.loads((root / "manifest.json").read_text(encoding="utf-8"))
    assert [t["table"] for t in manifest["tables"]] == [*schema.TABLES, "run_efficiency"]
    for entry in manifest["tables"]:
        data = (root / entry["path"]).read_bytes()
        assert entry["path"] == f"csv/{entry['table']}/{entry['table']}.csv"
        assert hashlib.sha256(data).hexdigest() == entry["sha256"]
        header, *rows = data.decode("utf-8").splitlines()
        assert header == ",".join(c["name"] for c in entry["columns"])
        assert len(rows) == entry["rows"] == report.rows[entry["table"]]
        assert all(c["doc"] and c["type"] for c in entry["columns"])
    assert report.rows["fact_step"] == 16
    assert manifest["generated_utc"].endswith("+00:00")


def test_numbers_come_back_to_the_last_bit(published):
    export(published.runs_dir)
    con = open_published(published.runs_dir)
    for name in ("fact_step", "dim_run", "dim_model", "run_efficiency"):
        path = published.runs_dir / "export" / "csv" / name / f"{name}.csv"
        typed = {row[0]: row[1] for row in con.execute(f"DESCRIBE {name}").fetchall()}
        back = duckdb.read_csv(str(path), dtype=typed, header=True, null_padding=False)
        stored = con.execute(f"SELECT * FROM {name} ORDER BY ALL").fetchall()
        assert back.order(", ".join(typed)).fetchall() == stored
    con.close()


def test_exporting_twice_gives_the_same_files_and_leaves_no_others(published):
    export(published.runs_dir)
    root = published.runs_dir / "export"
    first = {p: p.read_bytes() for p in root.rglob("*.csv")}
    export(published.runs_dir)
    assert {p: p.read_bytes() for p in root.rglob("*.csv")} == first
    assert sorted(p.name for p in root.iterdir()) == ["csv", "manifest.json"]
    assert all(len(list(folder.iterdir())) == 1 for folder in (root / "csv").iterdir())


def test_a_text_that_a_spreadsheet_would_run_is_disarmed(paper):
    paper.pipeline()
    name = '=cmd|" /C calc"!A0'
    paper.write([paper.dataset(dataset_name=name)], writer="zz", attempt=None)
    paper.publish()
    export(paper.runs_dir)
    text = (paper.runs_dir / "export/csv/dim_dataset/dim_dataset.csv").read_text("utf-8")
    assert '"\'=cmd|"" /C calc""!A0"' in text


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (None, ""),
        ("", '""'),
        (True, "1"),
        (-1.5, "-1.5"),
        (0.1, "0.1"),
        (-3, "-3"),
        (Decimal("0.000001"), "0.000001"),
        ("-1.5", "'-1.5"),
        ("+a", "'+a"),
        ("@a", "'@a"),
        ("\tx", "'\tx"),
        ("\rx", '"\'\rx"'),
        ("a,b", '"a,b"'),
        ('say "so"', '"say ""so"""'),
        ("two\nlines", '"two\nlines"'),
        ("Señal", "Señal"),
    ],
)
def test_a_cell_is_written_as_the_dialect_says(value, cell):
    assert csv_cell(value) == cell


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_would_turn_a_column_into_text_is_refused(value):
    with pytest.raises(ValueError, match="cannot be exported"):
        list(csv_lines(["x"], [[value]]))


def test_exporting_without_a_warehouse_names_the_command(tmp_path):
    with pytest.raises(WarehouseError, match="seqscale run"):
        export(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_export_folder_that_cannot_be_written_is_named(published):
    (published.runs_dir / "export").write_text("a file where the folder should be")
    with pytest.raises(WarehouseError, match=r"export: the export cannot be written"):
        export(published.runs_dir)
