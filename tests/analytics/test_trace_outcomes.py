"""docs/traces.md says of every open trace what becomes of it, and that is what becomes of it."""

import os
import re
from pathlib import Path

import pytest

from analytics.errors import InputError
from analytics.kineto.reading import looks_like_trace, read

TRACES = Path(os.environ.get("SEQSCALE_TEST_DATA", "")) / "traces"
DOC = Path(__file__).parents[2] / "docs" / "traces.md"
ROWS = {
    cells[0]: cells[1:]
    for cells in (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in DOC.read_text().partition("## Outcomes")[2].splitlines()
        if re.match(r"\| \w+/", line)
    )
}
pytestmark = pytest.mark.skipif(
    not os.environ.get("SEQSCALE_TEST_DATA"), reason="SEQSCALE_TEST_DATA is not set"
)


def test_the_table_names_every_file():
    there = {str(p.relative_to(TRACES)) for p in TRACES.rglob("*") if p.is_file()}
    assert set(ROWS) == there


@pytest.mark.parametrize("name", ROWS)
def test_a_file_is_imported_with_its_counts_or_refused_with_its_reason(name):
    *counts, outcome = ROWS[name]
    if outcome == "imported":
        assert looks_like_trace(TRACES / name)
        found = list(read(TRACES / name))
        assert counts == [
            str(len(found)),
            str(sum(trace.num_read for trace in found)),
            str(sum(len(trace.spans) for trace in found)),
            str(sum(len(trace.rejects) for trace in found)),
        ]
    else:
        assert not looks_like_trace(TRACES / name)
        reason = outcome.removeprefix("refused: ")
        with pytest.raises(InputError, match=re.escape(reason)):
            list(read(TRACES / name))
