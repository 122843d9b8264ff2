"""A bill beside the estimate: the difference explained, exactly, in scopes that add up."""

from decimal import Decimal

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analytics import money, schema
from analytics.billing import instant
from tests.analytics.paper_warehouse import event, pool, price, warehouse_of


def bill_line(line: int, **changes) -> schema.FactCost:
    values = dict.fromkeys(c.name for c in schema.columns(schema.FactCost))
    values |= dict(
        import_id="i1", line=line, charge_began_unix_ns=instant("2026-11-30T12:00Z"),
        charge_ended_unix_ns=instant("2026-11-30T13:00Z"), charge_category="Usage",
        billed_cost=Decimal("20"), effective_cost=Decimal("20"), list_cost=Decimal("32"),
        contracted_cost=Decimal("24"), currency="EUR", service_name="Virtual Machines",
        consumed_quantity=1.0, consumed_unit="Hours", pool_id="p", billing_account_id="x",
        billing_period_began_unix_ns=instant("2026-11-01"),
    )  # fmt: skip
    return schema.FactCost(**(values | changes))


def export(import_id: str, imported_unix_ns: int) -> schema.DimImport:
    values = dict.fromkeys(c.name for c in schema.columns(schema.DimImport))
    values |= dict(
        import_id=import_id, source_kind="focus_bill", source_name="bill.csv", source_sha256="0",
        num_bytes=1, num_files=1, num_read=1, num_loaded=1, num_rejected=0, num_records=1,
        num_conflicts=0, imported_unix_ns=imported_unix_ns, pipeline_id="",
    )  # fmt: skip
    return schema.DimImport(**values)


PARTS = ("time_cost", "price_cost", "unsplit_cost", "untagged_cost", "service_cost", "tax_cost",
         "credit_cost", "purchase_cost", "rounding_cost")  # fmt: skip


def beside(*records, scope: str = "pool") -> list[dict]:
    """The rows, each without the parts that are 0."""
    with warehouse_of(*records) as con:
        found = money.bill_vs_estimate(con, scope)
        exact = con.execute(
            f"SELECT difference_cost = {' + '.join(PARTS)} FROM bill_vs_estimate "
            "WHERE is_comparable"
        ).fetchall()
    assert all(row[0] for row in exact)
    return [{k: v for k, v in row.items() if k not in PARTS or v} for row in found]


def test_the_difference_is_time_and_price_and_what_else_was_billed():
    # recorded: 4 device-hours at 3 = 12. Billed: 8 device-hours for 20, storage 1.5, tax 2,
    # a credit of 4: 19.5 in all.
    # time: 4 hours more at 3 = 12; price: 20 - 8 x 3 = -4
    events = [event(0), event(4, "released")]
    found = beside(
        *events, pool(), price(),
        bill_line(1),
        bill_line(2, billed_cost=Decimal("1.5"), service_name="Storage", consumed_unit="GB-Mo"),
        bill_line(3, billed_cost=Decimal("2"), charge_category="Tax"),
        bill_line(4, billed_cost=Decimal("-4"), charge_category="Credit"),
    )  # fmt: skip
    [row] = found
    assert (row["scope_id"], row["date_key"], row["currency"]) == ("p", "2026-11-30", "EUR")
    assert (row["estimate_hours"], row["estimate_cost"]) == (4.0, 12.0)
    assert (row["billed_hours"], row["billed_cost"]) == (8.0, 19.5)
    assert row["difference_cost"] == 7.5
    assert {name: row[name] for name in PARTS if name in row} == {
        "time_cost": 12.0, "price_cost": -4.0, "service_cost": 1.5, "tax_cost": 2.0,
        "credit_cost": -4.0,
    }  # fmt: skip
    # discounts: 32 listed, 24 contracted, 20 effective
    assert (row["negotiated_discount_cost"], row["commitment_discount_cost"]) == (8.0, 4.0)
    assert row["message"] is None


def test_a_line_without_a_tag_belongs_to_the_pool_of_its_host():
    untagged = dict(pool_id=None, resource_id="/subscriptions/1/virtualMachines/H1")
    events = [event(0), event(4, "released")]
    [row] = beside(*events, pool(), price(), bill_line(1, **untagged))
    assert row["scope_id"] == "p"


def test_what_names_no_pool_is_untagged_and_its_difference_is_that():
    stranger = bill_line(1, pool_id=None, resource_id="i-unknown")
    [row] = beside(stranger)
    assert (row["scope_id"], row["untagged_cost"], row["difference_cost"]) == (None, 20.0, 20.0)


def test_without_devices_per_instance_time_and_price_stay_one():
    [row] = beside(event(0), event(4, "released"), bill_line(1))
    # billed 20, estimated 12
    assert (row["unsplit_cost"], row["billed_hours"]) == (8.0, None)


def test_two_currencies_are_not_summed_and_it_is_said():
    found = beside(event(0), event(4, "released"), bill_line(1, currency="USD"))
    assert [(row["currency"], row["difference_cost"]) for row in found] == [
        ("EUR", None), ("USD", None),
    ]  # fmt: skip
    assert all("EUR and USD" in row["message"] for row in found)


def test_a_run_has_its_bill_by_its_tag_and_its_estimate_by_its_steps(paper):
    # no allocation is known: 8 s of two ranks at 9 an hour are 0.02
    steps = [paper.step("baseline", rank, 0, pipeline_id="a") for rank in range(2)]
    tagged = bill_line(1, pipeline_id="a", billed_cost=Decimal("0.05"))
    [row] = beside(paper.run("baseline", pipeline_id="a"), *steps, tagged, scope="run")
    assert (row["scope_id"], row["estimate_cost"], row["difference_cost"]) == ("a", 0.02, 0.03)


def test_a_later_export_of_the_same_period_replaces_the_one_before():
    lines = [bill_line(1), bill_line(1, import_id="i2", billed_cost=Decimal("25"))]
    other_account = bill_line(1, import_id="i3", billing_account_id="y", billed_cost=Decimal("7"))
    exports = [export("i1", 1), export("i2", 2), export("i3", 0)]
    with warehouse_of(*lines, other_account, *exports) as con:
        found = {row["import_id"]: row for row in money.bills(con)}
        total = money.bill_vs_estimate(con)[0]["billed_cost"]
    assert found["i1"]["billed_cost_in_force"] is None
    assert (found["i1"]["num_lines"], found["i1"]["num_lines_in_force"]) == (1, 0)
    assert total == 32.0  # 25 + 7


AMOUNTS = st.decimals("-1000", "1000", places=6)


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(
            AMOUNTS, st.sampled_from(["Usage", "Tax", "Credit", "Purchase"]),
            st.sampled_from(["p", "q", None]), st.sampled_from(["Hours", "GB"]),
            st.floats(0, 100),
        ),
        max_size=8,
    ),
    st.floats(0, 9),
)  # fmt: skip
def test_the_parts_add_up_to_the_difference_and_the_scopes_to_the_bill(told, rate):
    lines = [
        bill_line(number, billed_cost=cost, charge_category=category, pool_id=pool_id,
                  consumed_unit=unit, consumed_quantity=quantity)
        for number, (cost, category, pool_id, unit, quantity) in enumerate(told)
    ]  # fmt: skip
    records = [event(0, device_hour_cost=rate), event(4.5, "released"), pool(), price(), *lines]
    whole = sum((line.billed_cost for line in lines), Decimal(0))
    with warehouse_of(*records) as con:
        found = con.execute(
            f"SELECT sum(billed_cost), bool_and(difference_cost = {' + '.join(PARTS)}) "
            "FROM bill_vs_estimate GROUP BY scope"
        ).fetchall()
    assert found == [(whole, True), (whole, True)]
