"""What an erasure did, found and left, for a person and as plain values; never whom it erased.

Before: flows/forgetting.py.   After: the console, or one JSON document.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from analytics.erasure import Erasure
from analytics.errors import StoreError
from analytics.reasons import EXPIRED

MIN_SEARCHED_BYTES = 8  # a shorter id occurs by chance in many a file
_NOT_TOUCHED = (
    "not touched: your source files, trained parameters and registered models, backups and other "
    "copies; a file that still has the person brings them back when it is prepared again"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForgetReport:
    """The outcome of one `seqscale forget`."""

    runs_dir: str
    erasures: list[Erasure]  # also those of a call that was killed and finished by this one
    run_ids: list[str]  # trained on a version that held, or may have held, what was erased
    training_now: list[str]  # pipelines that seem to be reading such a version
    at_work: list[str]  # folders in which a store is being made at this moment
    num_on_record: int  # erasures in fact_erasure, of all times
    searched: list[str] = dataclasses.field(default_factory=list)  # the stores
    num_ids: int | None = None  # None: by retention
    not_searched: list[str] = dataclasses.field(default_factory=list)  # why, and how to mend
    num_derived_removed: int = 0
    traces: list[str] = dataclasses.field(default_factory=list)  # files that still hold something
    unsearched: list[str] = dataclasses.field(default_factory=list)  # files that cannot be read
    num_short_ids: int = 0  # too short to be told from chance, so not searched for as they came

    def plain(self) -> dict[str, Any]:
        """As plain values, the rows of few users left out."""
        plain = dataclasses.asdict(self)
        for told, erasure in zip(plain["erasures"], self.erasures, strict=True):
            told["num_rows"] = erasure.told_rows
        return plain

    def check(self) -> None:
        """Raise StoreError when something may be left: to be called after the report was shown."""
        if self.not_searched:
            stores = "\n".join(f"- {why}" for why in self.not_searched)
            raise StoreError(f"Not every store could be searched; the others are done.\n{stores}")
        if self.traces:
            raise StoreError(
                f"The bytes of an id or a pseudonym are still in {', '.join(self.traces)}. Look "
                "into these files and delete them; they are no part of a store."
            )
        if self.unsearched:
            raise StoreError(
                f"Not searched for traces, since it could not be read: "
                f"{', '.join(self.unsearched)}. The erasure is done; make it readable, or end what "
                "writes to it, and run the same command again, or delete it."
            )

    def lines(self) -> list[str]:
        """For a person, a line each."""
        lines = [_line(erasure) for erasure in self.erasures]
        if not lines:
            what = "nothing is past its retention" if self.num_ids is None else _nobody(self)
            lines = [f"{what}: {_list(self.searched)}"] if self.searched else [what]
        earlier = {version for one in self.erasures for version in one.earlier_versions}
        if earlier:
            lines.append(f"earlier versions, which may have held it too: {_list(sorted(earlier))}")
        if self.num_derived_removed:
            lines.append(f"{self.num_derived_removed} plans and cached results were removed")
        lines.append(
            f"searched were {self.runs_dir} and the folders named with --store; a store made with "
            "'seqscale prepare --out' elsewhere is only searched when it is named"
        )
        if self.num_on_record:
            lines.append(f"erasures of all times on record, without any id: {self.num_on_record}")
        if self.num_short_ids:
            lines.append(
                f"{_number(self.num_short_ids, 'id')} shorter than {MIN_SEARCHED_BYTES} bytes: no "
                "file was searched for it as it came, since it occurs by chance; look yourself in "
                "files that are no stores"
            )
        lines += self._runs()
        for folder in self.at_work:
            lines.append(f"{folder}: a store is being made there; run this again when it is done")
        return [*lines, _NOT_TOUCHED]

    def _runs(self) -> list[str]:
        lines = []
        if self.run_ids:
            lines.append(f"runs trained on such a version: {_list(self.run_ids)}")
            lines.append(
                "their parameters are not changed by this; to have them without: erase the person "
                "from the source file, run 'seqscale run --interactions FILE' and delete the old "
                "runs and model versions"
            )
        for pipeline in self.training_now:
            lines.append(f"{pipeline} is training on it now and reads the old files until it ends")
        return lines


def _line(erasure: Erasure) -> str:
    users = _number(erasure.num_users, "user")
    rows = "rows" if erasure.told_rows is None else _number(erasure.told_rows, "row")
    what = f"{erasure.dataset_id}: {rows} of {users}"
    if erasure.new_dataset_id is None:
        return f"{what}, all it had, {erasure.reason}: too little was left, the store is deleted"
    if erasure.reason == EXPIRED:
        what = f"{erasure.dataset_id}: {rows}, {users} with all of theirs"
    return f"{what} {erasure.reason}; the version after it is {erasure.new_dataset_id}"


def _nobody(report: ForgetReport) -> str:
    if report.num_ids == 1:
        return "the user (ids are compared letter by letter) is in no store that was searched"
    return f"none of the {report.num_ids:,} users is in a store that was searched"


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _list(names: list[str]) -> str:
    return ", ".join(names)
