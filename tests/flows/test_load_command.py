"""The commands that fill the warehouse: one JSON document, and one message for a mistake."""

import json
import sys

import pytest

from flows.cli import main
from tests.analytics.landed import land_records, query, sample


def cli(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """The exit code of `seqscale ...` in this process."""
    monkeypatch.setattr(sys, "argv", ["seqscale", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_load_takes_up_imports_and_purge_rolls_them_up(tmp_path, monkeypatch, capsys):
    land_records(tmp_path, "a", *(sample(-90 * 86_400 + n, interval_s=1.0) for n in range(60)))
    assert cli(monkeypatch, "load", "--rebuild", "--runs-dir", tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["imports"] == ["a"]
    arguments = ("purge", "--older-than-days", 0, "--runs-dir", tmp_path, "--json")
    assert cli(monkeypatch, *arguments) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["num_samples_purged"], told["num_samples_kept"], told["num_minutes"]) == (60, 0, 1)
    assert query(tmp_path, "SELECT num_device_samples, sampled_s FROM device_use") == [(60, 60.0)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("load", "--drop-gone"), "--drop-gone goes with --rebuild"),
        (("load", "r7", "--rebuild"), "leave the run's folder out"),
        (("purge", "--older-than-days", 3), "no pipeline has run here"),
    ],
)
def test_a_mistake_ends_with_code_2_and_one_message(
    arguments, message, tmp_path, monkeypatch, capsys
):
    assert cli(monkeypatch, *arguments, "--runs-dir", tmp_path) == 2
    told = capsys.readouterr()
    assert message in told.err
    assert told.out == ""
    assert list(tmp_path.iterdir()) == []
