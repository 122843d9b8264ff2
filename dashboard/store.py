"""Asks the published warehouse, one short connection a question, and remembers the answers.

Before: analytics.warehouse publishes by rename; analytics.metrics holds the questions.
After: overview.py shows the rows. Price: an answer is cached until another file is published
(inode, size or time of change differ); no connection is kept, so the next copy is seen at once.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import streamlit as st

from analytics import compare, metrics
from analytics.errors import WarehouseError
from analytics.warehouse import PUBLISHED_NAME, open_published

Row = dict[str, Any]
Version = tuple[int, int, int]

_QUESTIONS: dict[str, Callable[..., Any]] = {
    "pipelines": metrics.pipelines,
    "run_efficiency": metrics.run_efficiency,
    "pipeline_causes": metrics.pipeline_causes,
    "step_series": metrics.step_series,
    "quality": metrics.quality,
    "price": metrics.price,
    "compare_arms": compare.compare_arms,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """One published copy of the warehouse."""

    runs_dir: Path
    version: Version  # (mtime_ns, inode, size)

    @property
    def published_unix_s(self) -> float:
        """When it was published, UTC."""
        return self.version[0] / 1e9

    def ask(self, question: str, *arguments: Any) -> Any:
        """The answer of a function of analytics.metrics or analytics.compare.

        Raises WarehouseError when the file is gone, busy or damaged, QueryError when a query does
        not fit it.
        """
        return _ask(str(self.runs_dir), self.version, question, arguments)


def runs_dir() -> Path:
    """The folder that is shown: SEQSCALE_RUNS_DIR, or `runs` where the server was started."""
    return Path(os.environ.get("SEQSCALE_RUNS_DIR") or "runs")


def published(folder: Path) -> Published | None:
    """The published copy in a runs folder, None when there is none."""
    try:
        stat = (folder / PUBLISHED_NAME).stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise WarehouseError(
            f"{folder}: the runs folder cannot be read ({error}). "
            "Run 'seqscale dashboard --runs-dir DIR' with a folder that can."
        ) from error
    return Published(runs_dir=folder, version=(stat.st_mtime_ns, stat.st_ino, stat.st_size))


@st.cache_data(max_entries=256, show_spinner=False)
def _ask(folder: str, version: Version, question: str, arguments: tuple[Any, ...]) -> Any:
    con = open_published(Path(folder))
    try:
        with metrics.query_errors():
            return _QUESTIONS[question](con, *arguments)
    finally:
        con.close()
