"""One record, defined once: what goes out comes back, and nothing else is taken."""

import dataclasses
import typing

import pytest

from analytics.schema import (
    TABLES,
    FactDroppedRows,
    FactEvaluation,
    FactStep,
    columns,
    from_mapping,
    table_key,
    table_name,
    to_mapping,
)

DROPPED = FactDroppedRows(dataset_id="d", reason="missing_user", num_rows=3)
EVALUATION = {
    "run_id": "r", "pipeline_id": "p", "attempt": 0, "split": "test", "ranker": "model",
    "num_users": 10, "num_cold_targets": 0, "hr_at_10": 0.5, "ndcg_at_10": 0.25, "mrr": 0.125,
    "parameters_sha256": "0",
}  # fmt: skip


def test_a_record_survives_the_way_through_plain_values() -> None:
    assert from_mapping(FactDroppedRows, to_mapping(DROPPED)) == DROPPED


def test_a_whole_number_is_a_number_where_one_is_expected() -> None:
    record = from_mapping(FactEvaluation, EVALUATION | {"hr_at_10": 1})
    assert isinstance(record.hr_at_10, float)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra": 1}, "'extra' is not a column of fact_evaluation"),
        ({"num_users": "10"}, "'num_users' is '10', expected a whole number"),
        ({"num_users": True}, "'num_users' is True, expected a whole number"),
        ({"num_users": 1.0}, "'num_users' is 1.0, expected a whole number"),
        ({"num_users": None}, "'num_users' is null"),
        ({"num_users": -1}, "expected at least 0"),
        ({"mrr": float("nan")}, "'mrr' is nan, expected a finite number"),
        ({"mrr": float("inf")}, "expected a finite number"),
        ({"mrr": 1.5}, "'mrr' is 1.5, expected at most 1"),
        ({"split": 3}, "'split' is 3, expected text"),
    ],
)
def test_a_wrong_value_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_mapping(FactEvaluation, EVALUATION | change)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(ValueError, match="'mrr' is missing"):
        from_mapping(FactEvaluation, {k: v for k, v in EVALUATION.items() if k != "mrr"})


def test_null_is_taken_only_where_missing_has_a_meaning() -> None:
    nullable = {c.name for c in columns(FactStep) if c.nullable and not c.added}
    assert nullable == {"straggler_wait_s", "exposed_comm_s", "host_wait_s", "kernel_gap_s"}


@pytest.mark.parametrize("name", sorted(TABLES))
def test_every_table_is_documented_keyed_and_named_by_the_house(name: str) -> None:
    record = TABLES[name]
    found = columns(record)
    assert table_name(record) == name
    assert name.startswith(("dim_", "fact_"))
    assert set(table_key(record)) <= {c.name for c in found if not c.nullable}
    assert record.__doc__
    for spec in found:
        assert spec.doc
        assert spec.sql_type in ("VARCHAR", "BIGINT", "DOUBLE", "BOOLEAN")
        if spec.name.endswith("_share"):
            assert (spec.lower, spec.upper) == (0, 1)
        if spec.name.startswith("num_"):
            assert spec.python_type is int
        if spec.added:  # rows of before hold NULL there
            assert spec.nullable


def test_records_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        typing.cast(typing.Any, DROPPED).num_rows = 4
