"""The records of pools and bills: who holds which device from when to when, and what was billed.

Instants are UTC; money is decimal where it was billed. Standard library only.
"""

from __future__ import annotations

import decimal

from analytics.records import column, table


@table("dim_pool", key=("pool_id",), grain="one pool of devices")
class DimPool:
    """Devices that are rented or owned together."""

    pool_id: str = column("Name of the pool")
    cloud: str = column("aws, azure or own")
    region: str | None = column("Region; NULL when untold")
    instance_type: str | None = column("The cloud's name of its instances; NULL when untold")
    team_id: str | None = column("The team that pays; NULL when untold")
    num_devices: int | None = column("Devices in all; NULL when it grows and shrinks", lower=0)
    purchase: str | None = column("on_demand, spot, reserved or own; NULL when untold")


@table("dim_team", key=("team_id",), grain="one team")
class DimTeam:
    """Who pays for a pool or works with it."""

    team_id: str = column("Short name of the team")
    team_name: str = column("Its full name")


@table(
    "fact_pool_event",
    key=("pool_id", "host", "device_id", "event_unix_ns", "event"),
    grain="one change of a device's allocation",
)
class FactPoolEvent:
    """When a device was allocated, released or lost: what every denominator rests on."""

    pool_id: str = column("The pool")
    host: str = column("Host name")
    device_id: str = column("As in fact_device_sample")
    event_unix_ns: int = column("When, UTC", unit="ns", lower=0)
    event: str = column(
        "allocated, or how the allocation ended: released, preempted, or failed with the attempt"
    )
    pipeline_id: str = column("The run it was allocated to; empty for none")
    purchase: str | None = column("on_demand, spot, reserved or own; NULL when untold")
    device_hour_cost: float | None = column(
        "Price of one device-hour from then on; NULL when untold", lower=0
    )
    currency: str | None = column("ISO 4217 code of device_hour_cost")
    reason: str | None = column("Why, when told")


@table("fact_cost", key=("import_id", "line"), grain="one line of a bill")
class FactCost:
    """What was billed, as AWS and Azure export it in the FOCUS format."""

    import_id: str = column("The import")
    line: int = column("Line of the export, from 1", lower=0)
    charge_began_unix_ns: int = column("Start of the charged period, UTC", unit="ns", lower=0)
    charge_ended_unix_ns: int = column("Its end, UTC", unit="ns", lower=0)
    charge_category: str = column("Usage, Purchase, Tax, Credit, Adjustment: ChargeCategory")
    billed_cost: decimal.Decimal = column("What is invoiced: BilledCost")
    effective_cost: decimal.Decimal | None = column(
        "With prepaid charges spread over their use: EffectiveCost"
    )
    list_cost: decimal.Decimal | None = column("At list prices: ListCost")
    contracted_cost: decimal.Decimal | None = column("At contracted prices: ContractedCost")
    currency: str = column("ISO 4217 code: BillingCurrency")
    provider: str | None = column("Who provides it: ProviderName")
    service_name: str | None = column("Service: ServiceName")
    sku_id: str | None = column("Stock-keeping unit: SkuId")
    region: str | None = column("Region: RegionId")
    resource_id: str | None = column("Resource: ResourceId")
    resource_type: str | None = column("Type of resource, such as the instance: ResourceType")
    pricing_category: str | None = column("Standard, Dynamic (spot), Committed: PricingCategory")
    consumed_quantity: float | None = column("Quantity used: ConsumedQuantity")
    consumed_unit: str | None = column("Its unit: ConsumedUnit")
    pool_id: str | None = column("Pool by its tag seqscale:pool; NULL without the tag")
    pipeline_id: str | None = column("Run by its tag seqscale:pipeline; NULL without the tag")
    billing_account_id: str | None = column(
        "Account that is invoiced: BillingAccountId; NULL when untold", added=True
    )
    billing_period_began_unix_ns: int | None = column(
        "Start of the billing period, UTC: BillingPeriodStart", unit="ns", lower=0, added=True
    )
    cut_off_cost: float | None = column(
        "BilledCost less billed_cost: what rounding to six places took; NULL when nothing",
        added=True,
    )


@table("dim_setting", key=("setting",), grain="one setting of the runs folder")
class DimSetting:
    """What a warehouse must know to be read as it was meant."""

    setting: str = column("Name of the setting: time_zone")
    value: str = column("Its value; of time_zone the zone in which a day of date_key begins")
