"""Makes synthetic interactions of any size: log-normal histories, Zipf items, rows in no order.

    .venv/bin/python bench/make_events.py events --rows 100000000 --users 1000000 --items 2000000

Writes a folder of files of ten million rows each (Parquet or CSV; integer or string ids). The same
seed makes the same rows. Needs 13 bytes of memory a row.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import duckdb
import numpy as np
import numpy.typing as npt

SPREAD = 1.1  # of the log-normal law of history lengths: the longest of a million is 200 x median
ZIPF_EXPONENT = 1.05
ROWS_A_FILE = 10_000_000
FIRST_S, SPAN_S = 1_600_000_000, 100_000_000  # about three years from September 2020
NAMES = {
    "integer": ("user", "item"),
    "string": (
        "'user-' || left(md5(user::VARCHAR), 20)",
        "'B' || upper(left(md5(item::VARCHAR), 9))",
    ),
}


def users_of_rows(num_rows: int, num_users: int, rng: np.random.Generator) -> npt.NDArray[np.int32]:
    """The user of each row, in random order; shape (num_rows,). Every user has a row."""
    weight_U = rng.lognormal(0.0, SPREAD, num_users)
    length_U = 1 + np.floor(weight_U / weight_U.sum() * (num_rows - num_users)).astype(np.int64)
    length_U[np.argmax(length_U)] += num_rows - length_U.sum()
    user_N = np.repeat(np.arange(num_users, dtype=np.int32), length_U)
    rng.shuffle(user_N)
    return user_N


def write_events(
    folder: Path, *, num_rows: int, num_users: int, num_items: int, kind: str, form: str, seed: int
) -> None:
    """Write the rows into a new folder; kind: integer or string ids; form: parquet or csv."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    user_N = users_of_rows(num_rows, num_users, rng)
    weight_I = np.arange(1, num_items + 1, dtype=np.float64) ** -ZIPF_EXPONENT
    upto_I = np.cumsum(weight_I / weight_I.sum())
    popular_I = rng.permutation(num_items)  # which item has which rank
    user_sql, item_sql = NAMES[kind]
    options = "(FORMAT parquet)" if form == "parquet" else "(FORMAT csv, HEADER)"
    with duckdb.connect() as connection:
        for number, start in enumerate(range(0, num_rows, ROWS_A_FILE)):
            user = user_N[start : start + ROWS_A_FILE]
            rank = np.searchsorted(upto_I, rng.random(len(user)), side="right")
            rows = {  # noqa: F841 - DuckDB finds it by its name
                "user": user,
                "item": popular_I[np.minimum(rank, num_items - 1)],
                "time": FIRST_S + rng.integers(0, SPAN_S, len(user)),
            }
            path = folder / f"part-{number:04d}.{form}"
            connection.execute(
                f"COPY (SELECT {user_sql} AS user, {item_sql} AS item, time FROM rows) "
                f"TO '{path}' {options}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--items", type=int, default=2_000_000)
    parser.add_argument("--ids", choices=sorted(NAMES), default="integer")
    parser.add_argument("--format", choices=("parquet", "csv"), default="parquet")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    write_events(
        given.folder,
        num_rows=given.rows,
        num_users=given.users,
        num_items=given.items,
        kind=given.ids,
        form=given.format,
        seed=given.seed,
    )


if __name__ == "__main__":
    main()
