"""Reads a JSON document whole, within bounds, its numbers as they are written.

Before: recognising.py saw that it is JSON.   After: promql_json.py, mlflow_system_metrics.py.
Price: about ten times the document's size in memory, hence the bound on it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from analytics.errors import InputError
from analytics.sources.files import shown, unreadable
from analytics.telemetry.bounded_text import encoding

MOST_BYTES = 64 << 20


def read_json(path: Path, where: str) -> Any:
    """A document; numbers are text, so that times stay exact.

    Raises InputError when it is too large, cut off, or nested without end.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(
                f"{where}: the document is larger than {MOST_BYTES >> 20} MiB. Ask for shorter "
                "ranges of time, and import the folder of answers."
            )
        data = path.read_bytes()
        text = data.decode(encoding(data[:4]), "replace")
        return json.loads(text, parse_float=str, parse_int=str, parse_constant=str)
    except OSError as error:
        raise unreadable(path, error) from error
    except RecursionError as error:
        raise InputError(
            f"{shown(path)}: this JSON is nested deeper than any answer of Prometheus or MLflow. "
            "It was not read."
        ) from error
    except ValueError as error:
        raise InputError(
            f"{shown(path)}: this is not whole JSON ({str(error)[:100]}). It may be cut off; fetch "
            "it again."
        ) from error


def scalar(value: Any) -> str:
    """A JSON value as the text of a cell; what is no scalar is an empty one."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else ""
