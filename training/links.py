"""A link's rate as a user writes it; standard library only, so that the command line reads it.

Before: `--link 100mbit`.   After: training/comm/paced.py emulates it.
"""

from __future__ import annotations

import re

from analytics.errors import ConfigError

MBIT_OF_UNIT = {"kbit": 1e-3, "mbit": 1.0, "gbit": 1e3}


def parse_link(text: str) -> float:
    """Rate of a link such as '100mbit' or '1.5gbit' [mbit/s].

    Raises ConfigError unless it is a number above 0 followed by kbit, mbit or gbit.
    """
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(kbit|mbit|gbit)\s*", text.lower())
    rate = float(found[1]) * MBIT_OF_UNIT[found[2]] if found else 0.0
    if rate <= 0:
        raise ConfigError(
            f"link {text!r} is not a rate. Write a number above 0 and kbit, mbit or gbit, "
            "for example 100mbit."
        )
    return rate
