import csv
import io
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pytest

pytest.importorskip("streamlit", reason="the dashboard extra is not installed")

from streamlit.testing.v1 import AppTest

from analytics import metrics
from analytics.warehouse import open_published

APP = Path(__file__).parents[2] / "dashboard" / "app.py"
PIPELINE = "20261130T140000Z-1a2b"
OLDER = "20261129T140000Z-0000"


@pytest.fixture
def show(paper, monkeypatch):
    """Runs the page on the test's runs folder; `query` is the URL's."""

    def run(**query: str) -> AppTest:
        monkeypatch.setenv("SEQSCALE_RUNS_DIR", str(paper.runs_dir))
        app = AppTest.from_file(str(APP), default_timeout=60)
        for key, value in query.items():
            app.query_params[key] = value
        app.run()
        assert not app.exception, app.exception
        return app

    return run


def words(app: AppTest) -> str:
    parts = [app.title, app.subheader, app.markdown, app.caption, app.info, app.warning, app.error]
    return "\n".join(element.value for part in parts for element in part)


def commands(app: AppTest) -> list[str]:
    return [element.value for element in app.code]


def test_the_tiles_show_the_last_arm_against_the_first(published, show):
    tiles = {m.label: (m.value, m.delta) for m in show().metric}
    # balanced against baseline: bubble 0.2 against 0.5, step 2.5 s against 4 s
    assert tiles["Bubble"] == ("20.0 %", "-30.0 points")
    assert tiles["Step time"] == ("2.50 s", "-37.5 %")
    assert tiles["Sequences a second"] == ("3.2", "+60.0 %")
    assert tiles["HR@10"] == ("0.160", "2.00 x popularity")
    # 0.05 EUR for 32 sequences
    assert tiles["Cost of 1 M sequences"] == ("1,562.50 EUR", "-37.5 %")


def test_every_question_has_its_number_on_the_page(published, show):
    app = show()
    text = words(app)
    assert [h.value for h in app.header] == [
        "How much of the rank time is lost, and to what?",
        "How fast is a step, and how many sequences a second?",
        "Are the recommendations as good?",
        "What does it cost?",
    ]
    assert "**baseline** loses 50.0 %; **balanced** loses 20.0 %" in text
    assert "Bubble seconds reduced by **75.0 %** (95 %: 75.0 % to 75.0 %)" in text
    assert "**baseline** 4.00 s a step, 2.0 sequences/s" in text
    assert "Step time balanced / baseline: **0.625**" in text
    assert "**balanced** 0.160; **popularity** 0.080, over 8 users" in text
    assert "**baseline** 0.0800 EUR, of which 0.0400 EUR for bubbles" in text
    assert "4,500.00 EUR (baseline)" in text
    assert "9.00 EUR per device-hour" in text
    assert "started 2026-11-30 14:00 UTC" in text


def test_the_table_and_the_download_hold_the_rows_of_metrics(published, show):
    app = show()
    con = open_published(published.runs_dir)
    efficiency = metrics.run_efficiency(con, PIPELINE)
    causes = metrics.pipeline_causes(con, PIPELINE)
    con.close()
    frames = [table.value for table in app.dataframe]
    assert list(frames[0]["cost"]) == [row["cost"] for row in causes]
    assert list(frames[1]["step_s"]) == [row["step_s"] for row in efficiency]
    from dashboard.overview import csv_text

    back = list(csv.DictReader(io.StringIO(csv_text(efficiency))))
    assert [float(row["bubble_share"]) for row in back] == [r["bubble_share"] for r in efficiency]


def test_the_pipeline_of_the_url_is_shown(paper, show):
    paper.pipeline()
    paper.pipeline(OLDER)
    older = paper.step("balanced", 0, 0, pipeline_id=OLDER, window_s=100.0)
    paper.write([older], writer="zz", pipeline_id=OLDER)
    paper.publish()
    assert show().selectbox[0].options == [PIPELINE, OLDER]
    newest, chosen = show(), show(pipeline=OLDER)
    assert newest.selectbox[0].value == PIPELINE
    assert chosen.selectbox[0].value == OLDER
    assert chosen.metric[0].value != newest.metric[0].value


def test_a_url_with_an_unknown_pipeline_shows_the_newest(published, show):
    assert show(pipeline="nosuch").selectbox[0].value == PIPELINE


@pytest.fixture
def in_madrid(monkeypatch):
    """The server's own zone is Madrid's."""
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "Europe/Madrid")
        time.tzset()
        yield
    time.tzset()


def test_no_instant_reaches_the_page_by_the_clock_of_a_wall(paper, show, in_madrid):
    # streamlit#1346, streamlit#2388, streamlit#2369: shifted by the browser's zone, or a crash in
    # the hour that a clock repeats: both of these are 02:30 in Madrid, on 25 October 2026
    for hour, name in enumerate((PIPELINE, OLDER)):
        paper.pipeline(name)
        started_ns = (1_792_888_200 + hour * 3600) * 10**9
        runs = [
            paper.run(arm, pipeline_id=name, started_unix_ns=started_ns)
            for arm in ("baseline", "balanced")
        ]
        paper.write(runs, writer="zz", pipeline_id=name)
    paper.publish()
    for name, told in ((PIPELINE, "00:30"), (OLDER, "01:30")):
        app = show(pipeline=name)
        assert f"started 2026-10-25 {told} UTC" in words(app)
        kinds = [kind for table in app.dataframe for kind in table.value.dtypes]
        assert kinds and not [kind for kind in kinds if kind.kind == "M"]


def test_a_newly_published_copy_is_shown_at_once(published, show):
    assert show().metric[1].value == "2.50 s"
    published.write(
        [published.step("balanced", r, s, window_s=5.0) for r in range(2) for s in range(4)],
        writer="zz",
    )
    published.publish()
    assert show().metric[1].value == "5.00 s"


def test_without_a_warehouse_the_page_names_the_commands(paper, show):
    app = show()
    assert "No warehouse yet" in words(app)
    assert commands(app) == [
        f"seqscale run --runs-dir {paper.runs_dir}", f"seqscale load --runs-dir {paper.runs_dir}"
    ]  # fmt: skip


def test_without_runs_the_page_names_the_command(paper, show):
    paper.write([paper.dataset()], attempt=None)
    paper.publish()
    app = show()
    assert "No runs yet" in words(app)
    assert commands(app) == [f"seqscale run --runs-dir {paper.runs_dir}"]


def test_a_damaged_warehouse_is_told_and_never_shown_as_zeros(paper, show):
    paper.runs_dir.mkdir()
    (paper.runs_dir / "warehouse.duckdb").write_bytes(b"not a database" * 1000)
    app = show()
    assert "The warehouse cannot be read" in words(app)
    assert commands(app) == [f"seqscale load --runs-dir {paper.runs_dir}"]
    assert len(app.metric) == 0


def test_a_busy_warehouse_is_told_and_never_shown_as_zeros(published, show):
    # builder#644, builder#655: a lost race for the lock was shown as tiles of 0
    path = published.runs_dir / "warehouse.duckdb"
    code = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('open', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as writer:  # fmt: skip
        assert writer.stdout.readline() == "open\n"
        app = show()
        writer.communicate("\n", timeout=30)
    assert "The warehouse is busy" in words(app)
    assert len(app.metric) == 0
    assert commands(app) == [f"seqscale load --runs-dir {published.runs_dir}"]


def test_a_warehouse_of_another_version_is_told(published, show):
    con = duckdb.connect(published.runs_dir / "warehouse.duckdb")
    con.execute("DROP VIEW run_efficiency")
    con.close()
    app = show()
    assert "This warehouse is of another version" in words(app)
    assert commands(app) == [f"seqscale load --runs-dir {published.runs_dir}"]


def test_a_run_without_evaluations_keeps_the_rest_of_the_page(paper, show):
    for arm in ("baseline", "balanced"):
        steps = [paper.step(arm, r, s) for r in range(2) for s in range(4)]
        paper.write([paper.run(arm), *steps], writer=arm)
    paper.publish()
    app = show()
    assert "No evaluation is recorded" in words(app)
    assert commands(app) == [f"seqscale run --runs-dir {paper.runs_dir}"]
    assert {m.label: m.value for m in app.metric}["HR@10"] == "–"
    assert "What does it cost?" in [h.value for h in app.header]


def test_a_run_that_ended_before_its_first_step_is_told(paper, show):
    paper.write([paper.run("baseline")])
    paper.publish()
    app = show()
    assert "No steps are recorded" in words(app)
    assert commands(app) == [f"seqscale run --runs-dir {paper.runs_dir}"]


def test_one_arm_alone_is_shown_without_a_comparison(paper, show):
    steps = [paper.step("baseline", r, s) for r in range(2) for s in range(4)]
    paper.write([paper.run("baseline"), *steps])
    paper.publish()
    app = show()
    assert [m.delta for m in app.metric][:3] == ["", "", ""]
    assert "**baseline** loses 50.0 %" in words(app)
