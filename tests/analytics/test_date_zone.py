"""The zone in which a day begins: kept with the runs, and known to a published warehouse."""

import pytest

from analytics import money
from analytics.date_zone import SETTINGS_NAME, set_time_zone, time_zone
from analytics.errors import ConfigError
from analytics.warehouse import open_published


def days(runs_dir) -> list[str]:
    con = open_published(runs_dir)
    try:
        return [row["date_key"] for row in money.cost_by(con, "date_key")]
    finally:
        con.close()


def test_a_published_warehouse_knows_its_zone_also_when_it_is_made_anew(published):
    # the paper pipeline begins at 14:00 UTC, 04:00 of the next day in Kiritimati
    assert days(published.runs_dir) == ["2026-11-30"]
    set_time_zone(published.runs_dir, "Pacific/Kiritimati")
    published.publish()
    assert days(published.runs_dir) == ["2026-12-01"]
    (published.runs_dir / ".work" / "warehouse.duckdb").unlink()
    published.publish()
    assert days(published.runs_dir) == ["2026-12-01"]


def test_a_missing_folder_is_named_as_such(tmp_path):
    with pytest.raises(ConfigError, match=r"absent: there is no such folder.*--runs-dir"):
        set_time_zone(tmp_path / "absent", "UTC")
    assert not (tmp_path / "absent").exists()


def test_an_unknown_zone_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="'Madrid', which is no zone"):
        set_time_zone(tmp_path, "Madrid")
    assert time_zone(tmp_path) == "UTC"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"time_zone": 1}', '{"time_zone": "Moon"}'])
def test_a_damaged_setting_is_named(tmp_path, text):
    (tmp_path / SETTINGS_NAME).write_text(text)
    with pytest.raises(ConfigError, match="--time-zone ZONE"):
        time_zone(tmp_path)
