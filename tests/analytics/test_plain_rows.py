"""What a query answers is ready for JSON, whatever it holds."""

import json

import duckdb

from analytics.plain_rows import plain_rows


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
