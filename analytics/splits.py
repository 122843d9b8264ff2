"""Which events are trained on and which are targets: one code an event, for every kind of split.

Whatever the kind, two laws hold. Of a history the training events stand first, so no target is
older than what it is predicted from; and no validation or test event is inside the training part.

Before: the events that rules.py keeps.   After: splits.npy of the store.
Price: a pass over the events.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from analytics.errors import ConfigError, InputError
from analytics.events import Events
from analytics.store import TEST, TRAIN, UNUSED, VALIDATION, Splits

KINDS = ("last", "time", "given")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitRule:
    """How validation and test events are chosen.

    last: of a history of three or more the last event is for test, the last but one for validation.
    time: events from test_from on are for test, those from validation_from on for validation.
    given: the files say it.
    """

    kind: str = "last"
    validation_from_us: int | None = None  # [us since 1970], for `time`
    test_from_us: int | None = None
    validation_share: float | None = None  # for `time` without instants: of all events, the newest
    test_share: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"split is '{self.kind}'; known are {', '.join(KINDS)}.")
        instants = (self.validation_from_us, self.test_from_us)
        shares = (self.validation_share, self.test_share)
        is_whole = [None not in pair for pair in (instants, shares)]
        is_empty = [set(pair) == {None} for pair in (instants, shares)]
        if self.kind == "time" and not (
            (is_whole[0] and is_empty[1]) or (is_whole[1] and is_empty[0])
        ):
            raise ConfigError(
                "A split by time needs --validation-from and --test-from (ISO 8601), or "
                "--validation-share and --test-share."
            )
        if self.kind != "time" and not all(is_empty):
            raise ConfigError(
                "Instants and shares of validation and test belong to a split by time: give "
                "--split time."
            )
        if self.kind == "time" and is_whole[1]:
            validation, test = self._shares()
            if not (validation > 0 and test > 0 and validation + test < 1):
                raise ConfigError(
                    f"The shares of validation and test are {validation} and {test}; both must be "
                    "above 0 and their sum below 1."
                )

    def _shares(self) -> tuple[float, float]:
        assert self.validation_share is not None and self.test_share is not None
        return self.validation_share, self.test_share

    def words(self) -> str:
        """The rule in words, for a report and for store.json."""
        if self.kind == "last":
            return "leave last one out: test = last, validation = last but one"
        if self.kind == "given":
            return "as the files say: train, validation, test"
        if self.validation_share is not None:
            validation, test = self._shares()
            return f"by time: the newest {test:g} of events test, {validation:g} before validation"
        assert self.validation_from_us is not None and self.test_from_us is not None
        return (
            f"by time: validation from {_utc(self.validation_from_us)}, "
            f"test from {_utc(self.test_from_us)}"
        )


def split_codes(events: Events, rule: SplitRule) -> Splits:
    """TRAIN, VALIDATION, TEST or UNUSED for every event; shape (N,).

    UNUSED: a target that has no event before it, or a user's later part that cannot be used.
    Raises InputError when there are no times to split by.
    """
    if rule.kind == "last":
        return _leave_last_one_out(events)
    if rule.kind == "given":
        assert events.given_splits is not None
        codes = events.given_splits.copy()
    else:
        codes = _by_time(events, rule)
    if len(codes):  # a first event has no history to be predicted from
        first = events.offsets[:-1][events.lengths() > 0]
        codes[first[codes[first] != TRAIN]] = UNUSED
    return codes


def _leave_last_one_out(events: Events) -> Splits:
    codes = np.full(len(events), TRAIN, dtype=np.uint8)
    length_U, end_U = events.lengths(), events.offsets[1:]
    codes[end_U[length_U >= 2] - 1] = TEST
    codes[end_U[length_U >= 3] - 2] = VALIDATION
    return codes


def _by_time(events: Events, rule: SplitRule) -> Splits:
    if len(events) and not events.times.any():
        raise InputError(
            "The data has no times, so it cannot be split by time. Use --split last, or name the "
            "time column with --time COLUMN."
        )
    validation_us, test_us = instants(events, rule)
    codes = np.full(len(events), TRAIN, dtype=np.uint8)
    codes[events.times >= validation_us] = VALIDATION
    codes[events.times >= test_us] = TEST
    return codes


def instants(events: Events, rule: SplitRule) -> tuple[int, int]:
    """Where validation and test begin [us since 1970]; of shares, the time of the event there.

    Raises ConfigError when validation would not begin before test.
    """
    if rule.validation_share is not None and rule.test_share is not None:
        validation_share, test_share = rule.validation_share, rule.test_share
        num_test = int(len(events) * test_share)
        num_validation = int(len(events) * validation_share)
        places = [len(events) - num_test - num_validation, len(events) - num_test]
        places = [min(place, len(events) - 1) for place in places]
        validation_us, test_us = (int(t) for t in np.partition(events.times, places)[places])
    else:
        assert rule.validation_from_us is not None and rule.test_from_us is not None
        validation_us, test_us = rule.validation_from_us, rule.test_from_us
    if not validation_us < test_us:
        raise ConfigError(
            f"validation begins at {_utc(validation_us)} and test at {_utc(test_us)}; validation "
            "must begin earlier. Give other instants, or larger shares."
        )
    return validation_us, test_us


def _utc(time_us: int) -> str:
    return f"{np.datetime_as_string(np.datetime64(time_us, 'us'), unit='s')}Z"  # of any year
