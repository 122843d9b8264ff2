"""One record, defined once: what goes out comes back, and nothing else is taken."""

import dataclasses
import decimal
import json
import typing

import pytest

from analytics.schema import (
    TABLES,
    FactCost,
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
    not_measured = {"straggler_wait_s", "exposed_comm_s", "host_wait_s", "kernel_gap_s"}
    # of a trace, which tells when kernels ran and nothing of the batch behind them
    untold = {
        "epoch", "cpu_s", "predicted_cost_s", "num_sequences", "num_tokens", "num_targets",
        "loss_sum", "num_rows", "num_rows_ahead", "sent_bytes",
    }  # fmt: skip
    assert nullable == not_measured | untold


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
        assert spec.sql_type in ("VARCHAR", "BIGINT", "DOUBLE", "BOOLEAN", "DECIMAL(18,6)")
        if spec.name.endswith("_share"):
            assert (spec.lower, spec.upper) == (0, 1)
        if spec.name.startswith("num_"):
            assert spec.python_type is int
        if spec.added:  # rows of before hold NULL there
            assert spec.nullable


def test_records_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        typing.cast(typing.Any, DROPPED).num_rows = 4


def cost(**changes: object) -> dict[str, object]:
    """A line of a bill as plain values."""
    values: dict[str, object] = {c.name: None for c in columns(FactCost)}
    values |= {
        "import_id": "i", "line": 1, "charge_began_unix_ns": 0, "charge_ended_unix_ns": 1,
        "charge_category": "Usage", "billed_cost": "12.345678", "currency": "EUR",
    }  # fmt: skip
    return values | changes


def test_money_survives_the_way_through_json_to_the_last_digit() -> None:
    record = from_mapping(FactCost, cost(billed_cost="123456789012.000001"))
    assert record.billed_cost == decimal.Decimal("123456789012.000001")  # type: ignore[attr-defined]
    plain = json.loads(json.dumps(to_mapping(record)))
    assert plain["billed_cost"] == "123456789012.000001"
    assert from_mapping(FactCost, plain) == record


@pytest.mark.parametrize(
    ("given", "amount"), [("-0.5", "-0.500000"), (3, "3.000000"), ("1E+3", "1000.000000")]
)
def test_an_amount_has_six_places_whatever_it_came_with(given: object, amount: str) -> None:
    assert to_mapping(from_mapping(FactCost, cost(billed_cost=given)))["billed_cost"] == amount


@pytest.mark.parametrize(
    "given", [0.1, True, "0.0000001", "1000000000000", "NaN", "Infinity", "twelve", [1]]
)
def test_what_is_no_exact_amount_is_refused(given: object) -> None:
    with pytest.raises(ValueError, match=r"'billed_cost' is .*, expected an amount as text"):
        from_mapping(FactCost, cost(billed_cost=given))


def test_an_amount_that_must_be_there_is_named() -> None:
    with pytest.raises(ValueError, match="'billed_cost' is null"):
        from_mapping(FactCost, cost(billed_cost=None))
    assert from_mapping(FactCost, cost(list_cost=None)) is not None
