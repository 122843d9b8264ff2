"""What one accelerator costs for one hour, so that a share of waste becomes an amount of money.

Before: nothing; the list below is written by hand.   After: profile, plan and receipt use it.
Price: on-demand list prices of one day; spot and negotiated prices differ.

Money is decimal until it reaches the record. A price keeps the currency of its list; another
currency needs a dated rate table, and then the latest rate that is not later than the day of the
price list holds: the list and its rate belong to the same day, whenever the command runs.
"""

from __future__ import annotations

import csv
import dataclasses
import datetime
import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path

from analytics.errors import ConfigError
from analytics.schema import DimPrice

LIST_DATE = datetime.date(2026, 11, 30)
LIST_CURRENCY = "USD"
RATE_COLUMNS = ("rate_date", "from_currency", "to_currency", "rate")
# wider than any two currencies are apart
_RATE_RANGE = (Decimal("0.000001"), Decimal(1_000_000))
_SOURCES = {"aws": "AWS on-demand list price", "azure": "Azure on-demand list price"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Instance:
    """A machine that can be rented: its accelerators and its on-demand price on Linux."""

    cloud: str
    device_name: str
    num_devices: int
    hour_cost: Decimal  # the whole instance for one hour, in LIST_CURRENCY
    region: str


def _aws(device_name: str, num_devices: int, hour_cost: str) -> Instance:
    return Instance(
        cloud="aws",
        device_name=device_name,
        num_devices=num_devices,
        hour_cost=Decimal(hour_cost),
        region="us-east-1",
    )


def _azure(device_name: str, num_devices: int, hour_cost: str) -> Instance:
    return Instance(
        cloud="azure",
        device_name=device_name,
        num_devices=num_devices,
        hour_cost=Decimal(hour_cost),
        region="eastus",
    )


INSTANCES: dict[str, Instance] = {
    "p5.48xlarge": _aws("H100", 8, "55.04"),
    "p5.4xlarge": _aws("H100", 1, "6.88"),
    "p4de.24xlarge": _aws("A100-80GB", 8, "27.44705"),
    "p4d.24xlarge": _aws("A100", 8, "21.957642"),
    "p3.2xlarge": _aws("V100", 1, "3.06"),
    "g5.48xlarge": _aws("A10G", 8, "16.288"),
    "g5.4xlarge": _aws("A10G", 1, "1.624"),
    "Standard_ND96isr_H100_v5": _azure("H100", 8, "98.32"),
    "Standard_NC40ads_H100_v5": _azure("H100", 1, "6.98"),
}


def price(
    instance_type: str,
    *,
    region: str | None = None,
    currency: str = LIST_CURRENCY,
    rates: Path | None = None,
    pipeline_id: str = "",
) -> DimPrice:
    """The price of one accelerator-hour of a named instance.

    region: None takes the region the list is for.
    currency: ISO 4217 code of the result; other than the list's it needs `rates`, a CSV file with
    the columns rate_date (YYYY-MM-DD), from_currency, to_currency and rate (units of to_currency
    for one unit of from_currency).
    Raises ConfigError for an instance, region or currency that cannot be priced.
    """
    instance = _instance(instance_type, region)
    listed = instance.hour_cost / instance.num_devices
    source = f"{_SOURCES[instance.cloud]}, Linux, {LIST_DATE.isoformat()}"
    rate = Decimal(1)
    if currency != LIST_CURRENCY:
        rate, rate_date = _rate(currency, rates)
        source += f"; 1 {LIST_CURRENCY} = {rate} {currency} of {rate_date.isoformat()}"
    return DimPrice(
        pipeline_id=pipeline_id,
        instance_type=instance_type,
        cloud=instance.cloud,
        region=instance.region,
        device_name=instance.device_name,
        num_devices=instance.num_devices,
        device_hour_cost=float(listed * rate),
        currency=currency,
        list_device_hour_cost=float(listed),
        list_currency=LIST_CURRENCY,
        price_date=LIST_DATE.isoformat(),
        source=source,
    )


def _instance(instance_type: str, region: str | None) -> Instance:
    """The listed instance, or ConfigError that names those which are listed."""
    if instance_type not in INSTANCES:
        raise ConfigError(
            f"There is no price for the instance '{instance_type}'; known are "
            f"{', '.join(INSTANCES)}. Name one of these."
        )
    instance = INSTANCES[instance_type]
    if region not in (None, instance.region):
        raise ConfigError(
            f"There is no price for {instance_type} in the region '{region}'; the list has "
            f"{instance.region}. Leave the region out or name that one."
        )
    return instance


def _rate(currency: str, rates: Path | None) -> tuple[Decimal, datetime.date]:
    """The rate from the list's currency that was valid on the day of the list, and its day."""
    if not re.fullmatch(r"[A-Z]{3}", currency):
        raise ConfigError(
            f"The currency '{currency}' is not a code of ISO 4217; give three capital letters, "
            "such as USD or EUR."
        )
    if rates is None:
        raise ConfigError(
            f"Prices are listed in {LIST_CURRENCY}; for {currency} a table of dated rates is "
            f"needed: give --rates a CSV file with the columns {','.join(RATE_COLUMNS)}."
        )
    pair = [r for r in _read_rates(rates) if r[1] == LIST_CURRENCY and r[2] == currency]
    valid = [r for r in pair if r[0] <= LIST_DATE]
    if not valid:
        found = f"the first one is of {min(pair)[0].isoformat()}" if pair else "it has none"
        raise ConfigError(
            f"{rates}: no rate from {LIST_CURRENCY} to {currency} on or before "
            f"{LIST_DATE.isoformat()}, the day of the price list; {found}. Add such a line."
        )
    latest = max(valid)
    if len({r[3] for r in valid if r[0] == latest[0]}) > 1:
        raise ConfigError(
            f"{rates}: two different rates from {LIST_CURRENCY} to {currency} on "
            f"{latest[0].isoformat()}. Remove the wrong one."
        )
    return latest[3], latest[0]


def _read_rates(path: Path) -> list[tuple[datetime.date, str, str, Decimal]]:
    """Every line of a rate table as (day, from, to, rate)."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return list(_parse_rates(path, file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(
            f"{path}: the rate table cannot be read ({error}). Give a CSV file in UTF-8 with the "
            f"columns {','.join(RATE_COLUMNS)}."
        ) from error


def _parse_rates(
    path: Path, lines: Iterator[str]
) -> Iterator[tuple[datetime.date, str, str, Decimal]]:
    reader = csv.DictReader(lines)
    missing = [name for name in RATE_COLUMNS if name not in (reader.fieldnames or [])]
    if missing:
        raise ConfigError(
            f"{path}: the column '{missing[0]}' is missing; a rate table has the columns "
            f"{','.join(RATE_COLUMNS)}."
        )
    for row in reader:
        where = f"{path} line {reader.line_num}"
        try:
            day = datetime.date.fromisoformat((row["rate_date"] or "").strip())
        except ValueError as error:
            raise ConfigError(
                f"{where}: rate_date is '{row['rate_date']}', expected YYYY-MM-DD."
            ) from error
        try:
            rate = Decimal((row["rate"] or "").strip())
        except InvalidOperation:
            rate = Decimal("nan")
        if not (rate.is_finite() and _RATE_RANGE[0] <= rate <= _RATE_RANGE[1]):
            raise ConfigError(
                f"{where}: rate is '{row['rate']}', expected a number from {_RATE_RANGE[0]} to "
                f"{_RATE_RANGE[1]}."
            )
        yield day, (row["from_currency"] or "").strip(), (row["to_currency"] or "").strip(), rate
