"""What a person can tell about a log that the log itself does not.

Before: the command line.   After: importing.py hands it to every importer.
Price: nothing is guessed; what is needed and was not told ends in a question, see the messages.
"""

from __future__ import annotations

import dataclasses
import zoneinfo

from analytics.errors import ConfigError

KINDS = (
    "nvidia_smi_csv",
    "nvidia_smi_dmon",
    "nvidia_smi_xml",
    "nvidia_smi_capture",
    "dcgm_text",
    "promql_json",
    "mlflow_sqlite",
    "mlflow_store",
    "mlflow_json",
    "mlflow_csv",
)
UNTOLD_HOST = "unknown"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """What was told about one import; None is untold.

    started_unix_ns: when a log of elapsed seconds, or one without times, began [ns, UTC].
    taken_unix_ns: when a log that holds one moment was taken [ns, UTC].
    interval_s: time between the samples of a log without times [s].
    clock_offset_ns: how far the source's clock was ahead of UTC [ns]; taken off every time.
    estimate_clock: whether that is found from the steps of pipeline_id.
    fields: names of the columns of a CSV without a header, as --query-gpu names them.
    renamed: column of a CSV -> the --query-gpu field that it is.
    Raises ConfigError when a value is out of its bounds or the zone is unknown.
    """

    kind: str | None = None
    host: str | None = None
    time_zone: str | None = None
    day_first: bool | None = None
    started_unix_ns: int | None = None
    taken_unix_ns: int | None = None
    interval_s: float | None = None
    pipeline_id: str = ""
    clock_offset_ns: int | None = None
    estimate_clock: bool = False
    fields: tuple[str, ...] | None = None
    renamed: tuple[tuple[str, str], ...] = ()

    def meaning(self) -> dict[str, object]:
        """What changes the meaning of rows and is told nowhere else in an import's own record."""
        return {
            "day_first": self.day_first,
            "fields": self.fields,
            "interval_s": self.interval_s,
            "kind": self.kind,
            "map": self.renamed,
            "started_unix_ns": self.started_unix_ns,
            "taken_unix_ns": self.taken_unix_ns,
        }

    def without_effect(self, but: tuple[str, ...] = ()) -> list[str]:
        """A note on the options that were given for a source which takes none but these."""
        told = {
            "--kind": self.kind,
            "--host": self.host,
            "--time-zone": self.time_zone,
            "--day-first/--month-first": self.day_first,
            "--started": self.started_unix_ns,
            "--taken-at": self.taken_unix_ns,
            "--interval": self.interval_s,
            "--pipeline": self.pipeline_id or None,
            "--clock-offset": self.clock_offset_ns,
            "--estimate-clock": self.estimate_clock or None,
            "--fields": self.fields,
            "--map": self.renamed or None,
        }
        given = [name for name, value in told.items() if value is not None and name not in but]
        if not given:
            return []
        return [f"{', '.join(given)}: without effect here, this source tells all of it itself"]

    def __post_init__(self) -> None:
        """Check what could be mistyped."""
        if self.kind is not None and self.kind not in KINDS:
            raise ConfigError(
                f"--kind is {self.kind!r}; expected one of {', '.join(KINDS)}, or leave it out "
                "and the form is found by content."
            )
        if self.interval_s is not None and not 0 < self.interval_s <= 86_400:
            raise ConfigError(
                f"--interval is {self.interval_s!r}; expected seconds above 0, a day at most."
            )
        if self.host is not None and not self.host.strip():
            raise ConfigError("--host is empty; give the name of the host, or leave it out.")
        if self.estimate_clock and (not self.pipeline_id or self.clock_offset_ns is not None):
            raise ConfigError(
                "--estimate-clock fits the clock to the steps of a run: name it with --pipeline, "
                "and leave --clock-offset out."
            )
        if self.time_zone is not None:
            zone(self.time_zone)


def zone(name: str) -> zoneinfo.ZoneInfo:
    """The time zone of this name.

    Raises ConfigError for a name that the time zone database does not have.
    """
    try:
        return zoneinfo.ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ConfigError(
            f"--time-zone is {name!r}, which is no zone that this system knows. Give a name such "
            "as Europe/Madrid or UTC."
        ) from error
