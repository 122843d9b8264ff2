import hashlib
import json
from decimal import Decimal

import duckdb
import pytest

from analytics import schema
from analytics.csv_dialects import DIALECTS, EXCEL_ES, POWERBI, csv_cell, csv_lines, dialect_of
from analytics.errors import ConfigError, WarehouseError
from analytics.export import VIEWS, export
from analytics.warehouse import open_published


def test_every_table_and_measure_is_written_with_its_manifest(published):
    report = export(published.runs_dir)
    root = published.runs_dir / "export"
    manifest = json.loads((root / "manifest.json").read_text(encoding="utf-8"))
    assert [t["table"] for t in manifest["tables"]] == [*schema.TABLES, *VIEWS]
    for entry in manifest["tables"]:
        data = (root / entry["path"]).read_bytes()
        assert entry["path"] == f"csv/{entry['table']}/{entry['table']}.csv"
        assert hashlib.sha256(data).hexdigest() == entry["sha256"]
        header, *rows = data.decode("utf-8").splitlines()
        assert header == ",".join(c["name"] for c in entry["columns"])
        assert len(rows) == entry["rows"] == report.rows[entry["table"]]
        assert all(c["doc"] and c["type"] for c in entry["columns"])
    assert report.rows["fact_step"] == 16
    # two arms of two ranks: what BI reads has a row for each, not for each step
    assert (report.rows["run_efficiency"], report.rows["run_rank_parts"]) == (2, 4)
    assert not {"step_parts", "device_interval", "device_sample_energy"} & report.rows.keys()
    assert manifest["generated_utc"].endswith("+00:00")


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_numbers_come_back_to_the_last_bit(published, dialect):
    # azure-migrate-explore#20, apama-log-analyzer#5, jasp#3608: 12.5 came back as 125, or as a date
    export(published.runs_dir, dialect)
    con = open_published(published.runs_dir)
    for name in ("fact_step", "dim_run", "dim_model", "run_efficiency", "cost_by_day", "day_parts"):
        path = published.runs_dir / "export" / "csv" / name / f"{name}.csv"
        typed = {row[0]: row[1] for row in con.execute(f"DESCRIBE {name}").fetchall()}
        back = duckdb.read_csv(
            str(path), dtype=typed, header=True, null_padding=False,
            delimiter=dialect.delimiter, decimal=dialect.decimal,
        )  # fmt: skip
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
    # example-app-bug-report#11: a cell of a download was run as a formula
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


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (-1.5, "-1,5"),
        (1e-7, "1e-07"),
        (1.5e22, "1,5e+22"),
        (Decimal("1234567.25"), "1234567,25"),
        (1234567, "1234567"),
        ("-1,5", "'-1,5"),
        ("9.10", "9.10"),
        ("a;b", '"a;b"'),
        ("a,b", "a,b"),
        ("=1;2", '"\'=1;2"'),
    ],
)
def test_with_decimal_commas_numbers_have_them_and_texts_stay(value, cell):
    assert csv_cell(value, EXCEL_ES) == cell


def test_the_byte_order_mark_is_for_who_asks(paper):
    # metabase#76028: without it Excel breaks accents, with it other readers break the first name
    paper.pipeline()
    paper.write([paper.dataset(dataset_name="Señal año")], writer="zz", attempt=None)
    paper.publish()
    mark = b"\xef\xbb\xbf"
    path = paper.runs_dir / "export/csv/dim_dataset/dim_dataset.csv"
    asked = {
        POWERBI: b"", EXCEL_ES: mark,
        dialect_of("powerbi", has_bom=True): mark, dialect_of("excel-es", has_bom=False): b"",
    }  # fmt: skip
    for dialect, start in asked.items():
        export(paper.runs_dir, dialect)
        data = path.read_bytes()
        assert data.startswith(start + b"dataset_id" + dialect.delimiter.encode())
        assert data.count(mark) == (1 if start else 0)
        assert "Señal año" in data.decode("utf-8-sig")
        assert data.count(dialect.line_end.encode()) == data.count(b"\n") == 2
        manifest = json.loads((paper.runs_dir / "export/manifest.json").read_text("utf-8"))
        told = manifest["dialect"]
        assert (told["name"], told["has_byte_order_mark"]) == (dialect.name, bool(start))
        assert (told["delimiter"], told["decimal"]) == (dialect.delimiter, dialect.decimal)
        [entry] = [one for one in manifest["tables"] if one["table"] == "dim_dataset"]
        assert entry["sha256"] == hashlib.sha256(data).hexdigest()
        assert entry["rows"] == 1


def test_without_a_word_the_export_is_what_databases_read():
    assert (POWERBI.delimiter, POWERBI.decimal, POWERBI.line_end) == (",", ".", "\n")
    assert not POWERBI.has_bom
    assert dialect_of("powerbi") == POWERBI


def test_an_unknown_dialect_is_refused_with_those_that_are_there():
    with pytest.raises(ConfigError, match=r"'excel-xx'.*powerbi, excel-es"):
        dialect_of("excel-xx")


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
