"""Captures of several nvidia-smi commands in one text: rows read = rows loaded + rows rejected."""

import pytest

from analytics.telemetry import nvidia_smi_capture
from tests.analytics.importing_logs import import_text, rejects, samples

RULER = "#" * 40
QUERY = "# $ nvidia-smi --query-gpu=timestamp,utilization.gpu --format=csv"


@pytest.mark.parametrize(("longest", "num_loaded"), [(3, 2), (7, 6), (100, 6)])
def test_lines_beyond_the_longest_section_are_rejected_with_their_number(
    tmp_path, monkeypatch, longest, num_loaded
):
    monkeypatch.setattr(nvidia_smi_capture, "_MOST_LINES", longest)
    rows = [f"2026/11/30 12:00:0{n}.000, {n} %" for n in range(6)]
    text = [RULER, "# use", QUERY, RULER, "timestamp, utilization.gpu [%]", *rows]
    done = import_text(tmp_path, "\n".join(text) + "\n").about
    assert (done.num_read, done.num_loaded) == (6, num_loaded)
    assert done.num_rejected == 6 - num_loaded
    expected = [(6 + n, "section_too_long") for n in range(num_loaded, 6)]
    assert rejects(tmp_path / "runs") == expected
    assert len(samples(tmp_path / "runs", "device_id")) == num_loaded
