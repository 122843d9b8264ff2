"""What a query answers is ready for JSON, whatever it holds."""

import ast
import json
from pathlib import Path

import duckdb

from analytics.plain_rows import plain_rows

ROOT = Path(__file__).parents[2]


def test_what_is_no_number_is_none_in_json():
    # duckdb#17329, duckdb#14905: NaN and infinity made JSON that nobody could read
    query = """
        SELECT
            CAST('nan' AS DOUBLE) AS a,
            CAST('inf' AS DOUBLE) AS b,
            -1 / CAST(0 AS DOUBLE) AS c,
            0.5 AS d,
            CAST(1.25 AS DECIMAL(18, 6)) AS e,
            NULL AS f,
            7 AS g,
            'x' AS h
    """
    [row] = plain_rows(duckdb.connect(), query)
    assert row["a"] is row["b"] is row["f"] is None
    assert row["c"] is None
    assert (row["d"], row["e"], row["g"], row["h"]) == (0.5, 1.25, 7, "x")
    assert json.loads(json.dumps(row, allow_nan=False)) == row


def is_call(node: ast.AST, *names: str) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in names


def test_json_that_others_read_cannot_hold_nan():
    # duckdb#17329, duckdb#14905: Python writes NaN too, unless it is told not to
    lenient, num_seen = [], 0
    for path in sorted(p for room in ("analytics", "flows") for p in (ROOT / room).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        # what is hashed at once is read by nobody
        hashed = {id(arg) for node in ast.walk(tree) if is_call(node, "content_hash")
                  for arg in node.args}  # fmt: skip
        for node in ast.walk(tree):
            if is_call(node, "json.dumps", "json.dump") and id(node) not in hashed:
                num_seen += 1
                told = {word.arg: ast.unparse(word.value) for word in node.keywords}
                if told.get("allow_nan") != "False":
                    lenient.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert lenient == []
    assert num_seen > 10


def test_days_and_instants_are_text():
    query = "SELECT DATE '2026-11-30' AS day, TIMESTAMP '2026-11-30 12:00:00' AS instant"
    [row] = plain_rows(duckdb.connect(), query)
    assert row == {"day": "2026-11-30", "instant": "2026-11-30T12:00:00"}
