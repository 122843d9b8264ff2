"""What a page says when there is nothing to show: why, and the command that fills it.

Before: store.py found no, or no readable, warehouse.   After: the reader runs the command.
"""

from __future__ import annotations

from pathlib import Path

import streamlit as st


def no_warehouse(folder: Path) -> None:
    """Nothing was ever published in this folder."""
    st.subheader("No warehouse yet")
    st.info(
        f"There is no warehouse in `{folder}`. A run trains both arms, measures every step and "
        "publishes what it measured here."
    )
    st.caption("Fill it with")
    st.code(f"seqscale run --runs-dir {folder}", language="bash")
    st.caption("or, when the runs are there already, with")
    st.code(f"seqscale load --runs-dir {folder}", language="bash")


def no_runs(folder: Path) -> None:
    """A warehouse without a run."""
    st.subheader("No runs yet")
    st.info(f"The warehouse in `{folder}` is whole, but no training run has been recorded in it.")
    st.caption("Fill it with")
    st.code(f"seqscale run --runs-dir {folder}", language="bash")


def unreadable(folder: Path, reason: str) -> None:
    """A warehouse that is busy, damaged or not a warehouse; never shown as zeros."""
    is_busy = "busy" in reason
    st.subheader("The warehouse is busy" if is_busy else "The warehouse cannot be read")
    st.warning(reason)
    st.caption("Publish a fresh copy with")
    st.code(f"seqscale load --runs-dir {folder}", language="bash")


def query_failed(folder: Path, reason: str) -> None:
    """A query that does not fit the warehouse: most likely it is of another version."""
    st.subheader("This warehouse is of another version")
    st.error(f"A question could not be answered: {reason}")
    st.caption("Build its tables and views anew with")
    st.code(f"seqscale load --runs-dir {folder}", language="bash")


def no_part(folder: Path, *, what: str, why: str) -> None:
    """A run that lacks one part, such as evaluations; the rest of the page stays."""
    st.info(f"No {what} recorded: {why}")
    st.code(f"seqscale run --runs-dir {folder}", language="bash")
