"""What was written is read; a torn last line of an open segment is no error, anything else is."""

from pathlib import Path

import pytest

from analytics.errors import JournalError
from analytics.journal import JournalWriter, read_journal, segments, tables_in
from analytics.schema import DimDataset, DimTeam, FactDroppedRows, FactSpan, FactStep, columns


def dropped(count: int) -> FactDroppedRows:
    return FactDroppedRows(dataset_id="d", reason=f"reason {count}", num_rows=count)


def written(directory: Path, writer: str, *counts: int) -> None:
    with JournalWriter(directory, writer) as journal:
        for count in counts:
            journal.write(dropped(count))


def counts(directory: Path) -> list[int]:
    return [r.num_rows for r in read_journal(directory, FactDroppedRows).records]


def test_closed_segments_are_read_by_writer_then_in_order(tmp_path: Path) -> None:
    written(tmp_path, "rank-00001", 3, 4)
    written(tmp_path, "rank-00000", 1, 2)
    assert counts(tmp_path) == [1, 2, 3, 4]
    assert tables_in(tmp_path) == ["fact_dropped_rows"]
    assert read_journal(tmp_path, DimDataset).records == []


def test_a_writer_that_comes_back_starts_a_new_segment(tmp_path: Path) -> None:
    written(tmp_path, "rank-00000", 1)
    written(tmp_path, "rank-00000", 2)
    names = [path.name for path in segments(tmp_path, "fact_dropped_rows")]
    assert names == ["rank-00000-000000.jsonl", "rank-00000-000001.jsonl"]
    assert counts(tmp_path) == [1, 2]


def test_records_of_a_killed_writer_are_there_without_a_close(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path, "rank-00000")
    journal.write(dropped(1))
    journal.write(dropped(2))
    assert counts(tmp_path) == [1, 2]
    journal.close()


def test_a_torn_last_line_of_an_open_segment_is_skipped_and_counted(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path, "rank-00000")
    journal.write(dropped(1))
    (path,) = segments(tmp_path, "fact_dropped_rows")
    with path.open("a") as file:
        file.write('{"dataset_id": "d", "rea')
    read = read_journal(tmp_path, FactDroppedRows)
    assert ([r.num_rows for r in read.records], read.num_torn_lines) == ([1], 1)
    journal.close()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"dataset_id": "d", "rea', "line 2: the line is not JSON.*closed.*'seqscale load R'"),
        ('{"dataset_id": "d", "reason": "x", "num_rows": "y"}', "line 2: 'num_rows' is 'y'"),
        ('["a list"]', "line 2: "),
        ("", "line 2: the line is not JSON"),
    ],
)
def test_a_bad_line_of_a_closed_segment_is_named(tmp_path: Path, line: str, message: str) -> None:
    written(tmp_path, "rank-00000", 1)
    (path,) = segments(tmp_path, "fact_dropped_rows")
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(JournalError, match=f"rank-00000-000000.jsonl {message}"):
        read_journal(tmp_path, FactDroppedRows, hint="seqscale load R")


def test_a_bad_line_in_the_middle_of_an_open_segment_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "fact_dropped_rows"
    folder.mkdir()
    (folder / "rank-00000-000000.jsonl.open").write_text("torn\n{}\n")
    with pytest.raises(JournalError, match=r"line 1: .*not its last line"):
        read_journal(tmp_path, FactDroppedRows)


def test_two_writers_of_one_name_never_overwrite_each_other(tmp_path: Path) -> None:
    first, second = JournalWriter(tmp_path, "sampler"), JournalWriter(tmp_path, "sampler")
    first.write(dropped(1))
    second.write(dropped(2))  # the first is still open, so this is a segment of its own
    first.close()
    second.close()
    assert counts(tmp_path) == [1, 2]


def test_a_folder_of_no_known_table_is_not_passed_over(tmp_path: Path) -> None:
    assert tables_in(tmp_path / "none") == []
    (tmp_path / "fact_bogus").mkdir()
    with pytest.raises(JournalError, match="fact_bogus: there is no table of this name"):
        tables_in(tmp_path)


def test_many_records_are_one_write_each_table_in_their_order(tmp_path: Path) -> None:
    rank = DimTeam(team_id="t", team_name="Team")
    with JournalWriter(tmp_path, "rank-00000") as journal:
        journal.write(dropped(1))
        journal.write_many([dropped(2), rank, dropped(3)])
        journal.write_many([])
        # nothing is buffered: a writer that is killed now has lost none of them
        assert counts(tmp_path) == [1, 2, 3]
    assert read_journal(tmp_path, DimTeam).records == [rank]


def test_records_given_by_columns_are_the_lines_of_records_given_one_by_one(tmp_path: Path) -> None:
    texts = ["", 'a "quoted", 100 % one', "Grüße], [\n"]
    spans = [
        FactSpan(
            pipeline_id="p, 5 %s", attempt=1, run_id=run_id, rank=0, span_kind="other", label=label,
            began_unix_ns=2**62 + place, duration_s=duration_s,
        )
        for place, (label, run_id, duration_s) in enumerate(
            zip(texts, ["r", None, "r"], [0.1, 1e-9, 3.0], strict=True)
        )
    ]  # fmt: skip
    shared = {"pipeline_id": "p, 5 %s", "attempt": 1, "rank": 0, "span_kind": "other"}
    names = ["duration_s", "label", "run_id", "began_unix_ns"]  # in any order
    columns = {name: [getattr(span, name) for span in spans] for name in names}
    with (
        JournalWriter(tmp_path / "a", "w") as by_columns,
        JournalWriter(tmp_path / "b", "w") as one,
    ):
        by_columns.write_columns(FactSpan, shared, columns)
        one.write_many(spans)
    (a,), (b,) = (segments(tmp_path / name, "fact_span") for name in "ab")
    assert a.read_bytes() == b.read_bytes()
    assert read_journal(tmp_path / "a", FactSpan).records == spans


def test_a_column_that_was_added_later_may_be_left_out_and_is_null(tmp_path: Path) -> None:
    given = {c.name: [0] for c in columns(FactStep) if not c.added}
    given |= {"run_id": ["r"], "pipeline_id": ["p"]}
    with JournalWriter(tmp_path, "w") as journal:
        journal.write_columns(FactStep, {}, given | {"recorder_cpu_s": [0.5]})
    (step,) = read_journal(tmp_path, FactStep).records
    assert (step.recorder_cpu_s, step.model_flops) == (0.5, None)


def test_columns_without_a_record_write_nothing(tmp_path: Path) -> None:
    shared = {"dataset_id": "d"}
    with JournalWriter(tmp_path, "w") as journal:
        journal.write_columns(FactDroppedRows, shared, {"reason": [], "num_rows": []})
    assert tables_in(tmp_path) == []


@pytest.mark.parametrize(
    ("shared", "given", "words"),
    [
        ({}, {"reason": ["a"], "num_rows": [1]}, "'dataset_id' is missing"),
        ({"dataset_id": "d", "rows": 1}, {"reason": ["a"], "num_rows": [1]}, "'rows' is"),
        ({"dataset_id": "d", "reason": "a"}, {"reason": ["a"], "num_rows": [1]}, "given twice"),
        ({"dataset_id": "d"}, {"reason": ["a", "b"], "num_rows": [1]}, "zip"),
        ({"dataset_id": "d"}, {"reason": ["a"], "num_rows": [float("nan")]}, "not JSON compliant"),
        ({"dataset_id": "d"}, {"reason": ["a"], "num_rows": ["1, 2"]}, "zip"),
    ],
)
def test_columns_that_are_not_the_tables_are_refused_before_a_line_is_written(
    tmp_path: Path, shared: dict, given: dict, words: str
) -> None:
    with JournalWriter(tmp_path, "w") as journal, pytest.raises(ValueError, match=words):
        journal.write_columns(FactDroppedRows, shared, given)
    assert tables_in(tmp_path) == []


def test_a_writer_killed_within_many_records_tears_the_last_one_alone(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, "rank-00000") as journal:
        journal.write_many([dropped(1), dropped(2), dropped(3)])
        (path,) = segments(tmp_path, "fact_dropped_rows")
        whole = path.read_bytes()
    (path,) = segments(tmp_path, "fact_dropped_rows")
    torn_path = path.with_name(path.name + ".open")
    path.rename(torn_path)
    for length in range(len(whole)):
        torn_path.write_bytes(whole[:length])
        read = read_journal(tmp_path, FactDroppedRows)
        num_whole = whole[:length].count(b"\n")
        is_torn = not whole[:length].endswith(b"\n") and length > 0
        # a line that lacks its end of line alone is whole all the same
        is_cut = is_torn and whole[length : length + 1] != b"\n"
        assert [r.num_rows for r in read.records] == [1, 2, 3][: num_whole + is_torn - is_cut]
        assert read.num_torn_lines == int(is_cut)
