"""Imports what Prometheus answers to a query of DCGM metrics: a vector or a matrix, as JSON.

Each value is a row that is read, numbered in the order of the answer. "NaN" and "+Inf" are nothing.
A result without a metric's name, as rate() and avg() give it, is rejected: who knows of what.

Before: recognising.py found the form.   After: dcgm_fields.py says what each metric is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from analytics.errors import InputError
from analytics.telemetry.dcgm_fields import Point, Series
from analytics.telemetry.gathering import Gathering
from analytics.telemetry.instants import epoch_ns
from analytics.telemetry.json_documents import scalar


def looks_like_promql(document: Any) -> bool:
    """Whether a document is an answer of Prometheus."""
    return (
        isinstance(document, dict)
        and "status" in document
        and ("data" in document or "error" in document)
    )


def import_promql(document: Any, gathering: Gathering, where: str) -> None:
    """Gather every value of an answer.

    Raises InputError when the query failed, or its result is neither a vector nor a matrix.
    """
    if document.get("status") != "success":
        raise InputError(
            f"{where}: Prometheus answered that the query failed "
            f"({scalar(document.get('error'))[:200] or 'no reason given'}). Mend the query."
        )
    data = document.get("data")
    kind = data.get("resultType") if isinstance(data, dict) else None
    result = data.get("result") if isinstance(data, dict) else None
    if kind not in ("vector", "matrix"):
        raise InputError(
            f"{where}: the result is {scalar(kind)[:40]!r}; expected 'vector' or 'matrix', the "
            "answer to a query of a DCGM metric by its name."
        )
    if not isinstance(result, list):
        raise InputError(
            f"{where}: the answer's 'result' is {str(result)[:40]!r}; expected a list of series. "
            "Ask again."
        )
    series = Series(gathering)
    number = 0
    for element in result:
        labels = element.get("metric") if isinstance(element, dict) else None
        if not isinstance(labels, dict):
            number += 1
            gathering.reject(number, "not_a_sample", str(element))
            continue
        told = {scalar(name): scalar(value) for name, value in labels.items()}
        for pair in _pairs(element):
            number += 1
            _take(series, gathering, number, told, pair)


def _pairs(element: dict[str, Any]) -> Iterator[Any]:
    if "value" in element:
        yield element["value"]
    values = element.get("values")
    yield from values if isinstance(values, list) else ()


def _take(
    series: Series, gathering: Gathering, number: int, labels: dict[str, str], pair: Any
) -> None:
    name = labels.get("__name__", "")
    text = f"{name} {labels.get('UUID', '')} {str(pair)[:80]}"
    if not isinstance(pair, list) or len(pair) != 2:
        gathering.reject(number, "not_a_sample", text)
    elif not name:
        gathering.reject(number, "metric_untold", text)
    else:
        series.take(
            Point(
                line=number,
                text=text,
                name=name,
                labels=labels,
                value=scalar(pair[1]),
                time_ns=epoch_ns(scalar(pair[0])),
            )
        )
