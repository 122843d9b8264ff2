"""docs/bug-reports.md names a test for each report, and the test names the report."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOC = ROOT / "docs" / "bug-reports.md"
LATER = {"21"}  # no Power BI project is made yet
NUM_ROWS = 22
ROWS = {
    cells[0]: cells[1:]
    for cells in (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in DOC.read_text(encoding="utf-8").splitlines()
        if re.match(r"\| \d+ ", line)
    )
}


@functools.cache
def named_tests(path: Path) -> dict[str, str]:
    """Name -> source of every test of a file, with its decorators and what is above them."""
    text = path.read_text(encoding="utf-8")
    lines, found, start = text.splitlines(), {}, 0
    for node in ast.parse(text).body:
        end = node.end_lineno or 0
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            found[node.name] = "\n".join(lines[start:end])
        start = end
    return found


def source_of(name: str) -> str:
    """What stands in a test, the `path::name` of pytest."""
    path, _, test = name.partition("::")
    assert (ROOT / path).is_file(), f"{DOC.name} names {path}, which is not there"
    known = named_tests(ROOT / path)
    assert test in known, f"{DOC.name} names {test}, which is no test of {path}"
    return known[test]


def test_every_report_has_its_row():
    assert list(ROWS) == [str(number) for number in range(1, NUM_ROWS + 1)]
    assert all(len(cells) == 4 and all(cells) for cells in ROWS.values())


@pytest.mark.parametrize("number", ROWS)
def test_a_report_is_named_at_a_test_that_is_there(number):
    report, _, _, tests = ROWS[number]
    names = re.findall(r"`([^`]+)`", tests)
    assert (not names) == (number in LATER)
    text = "\n".join(source_of(name) for name in names)
    # at the test the owner is left out: mlflow#14736 for mlflow/mlflow#14736
    reports = [one.strip().split("/")[-1] for one in report.split(",")]
    assert all(re.fullmatch(r"[\w-]+#\d+", one) for one in reports)
    missing = [one for one in reports if not re.search(rf"{re.escape(one)}\b", text)]
    assert names == [] or missing == []
