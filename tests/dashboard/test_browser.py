"""The page in a real browser: the numbers seen are those of metrics, and nothing leaves the host.

With SEQSCALE_UPDATE_PICTURES=1 and SEQSCALE_RUNS_DIR naming the folder of a real run, the picture
of the README is made anew; otherwise the paper pipeline is shown and no picture is kept.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from analytics import metrics
from analytics.warehouse import open_published

pytestmark = pytest.mark.full

playwright_api = pytest.importorskip(
    "playwright.sync_api", reason="the browser extra is not installed"
)

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "images" / "dashboard.png"
TIMEOUT_S = 90
IS_PICTURE_WANTED = (
    os.environ.get("SEQSCALE_UPDATE_PICTURES") == "1" and "SEQSCALE_RUNS_DIR" in os.environ
)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture
def shown_runs(request) -> Path:
    """The folder that is shown: a real run's when the picture is made, else the paper one."""
    if IS_PICTURE_WANTED:
        return Path(os.environ["SEQSCALE_RUNS_DIR"]).resolve()
    return request.getfixturevalue("published").runs_dir


@pytest.fixture
def address(shown_runs: Path, tmp_path: Path):
    """The address of a real server that shows those runs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "SEQSCALE_RUNS_DIR": str(shown_runs),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "streamlit", "run", str(ROOT / "dashboard" / "app.py")]
    command += ["--server.port", str(port), "--server.headless", "true"]
    log = tmp_path / "streamlit.log"
    with (
        log.open("w") as output,
        subprocess.Popen(
            command, env=environment, cwd=tmp_path, stdout=output, stderr=subprocess.STDOUT
        ) as server,
    ):
        try:
            wait_until_up(f"http://127.0.0.1:{port}/_stcore/health", server, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(TIMEOUT_S)


def wait_until_up(url: str, server: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        assert server.poll() is None, f"the server ended: {log.read_text()}"
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    raise AssertionError(f"no answer from {url} within {TIMEOUT_S} s: {log.read_text()}")


@pytest.fixture
def page(address: str):
    """A page of the size of a laptop's screen, and the hosts that it asked."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("Debian's chromium is not installed")
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        opened = browser.new_page(viewport={"width": 1280, "height": 900})
        opened.set_default_timeout(TIMEOUT_S * 1000)
        yield opened
        browser.close()


def test_what_a_reader_sees_is_what_metrics_say(page, address, shown_runs):
    asked: set[str] = set()
    page.on("request", lambda request: asked.add(urllib.parse.urlsplit(request.url).netloc))
    page.goto(address)
    page.get_by_role("heading", name="What does it cost?").wait_for()
    con = open_published(shown_runs)
    pipeline_id = metrics.pipelines(con)[0]["pipeline_id"]
    last = metrics.run_efficiency(con, pipeline_id)[-1]
    con.close()
    tiles = page.get_by_test_id("stMetricValue").all_inner_texts()
    assert tiles[0] == f"{last['bubble_share'] * 100:.1f} %"
    assert tiles[2] == f"{last['samples_per_s']:,.1f}"
    assert tiles[3] == f"{last['hr_at_10']:.3f}"
    # the bars of every chart are drawn, and each chart has words for who cannot see it
    page.locator(".mark-rect path").first.wait_for()
    assert page.locator("[aria-label*='Share of rank time by arm and cause']").count() >= 1
    assert {host for host in asked if host} == {urllib.parse.urlsplit(address).netloc}
    if IS_PICTURE_WANTED:
        take_picture(page, PICTURE)


def test_a_download_holds_the_rows_of_metrics(page, address, shown_runs):
    page.goto(address)
    page.get_by_role("heading", name="What does it cost?").wait_for()
    question = "Table: efficiency of every arm"
    table = page.get_by_test_id("stExpander").filter(has_text=question)
    table.get_by_text(question).click()
    with page.expect_download() as download:
        table.get_by_role("button", name="Download as CSV").click()
    lines = Path(download.value.path()).read_text(encoding="utf-8").splitlines()
    con = open_published(shown_runs)
    rows = metrics.run_efficiency(con, metrics.pipelines(con)[0]["pipeline_id"])
    con.close()
    assert lines[0] == ",".join(rows[0])
    assert [line.split(",")[0] for line in lines[1:]] == [row["run_id"] for row in rows]


def take_picture(page, path: Path) -> None:
    """The whole page in one picture, written aside and renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    page.set_viewport_size({"width": 1280, "height": 2250})
    page.wait_for_function("document.querySelectorAll('.mark-rect path').length > 8")
    page.get_by_test_id("stStatusWidget").wait_for(state="detached")  # the script has ended
    fresh = path.with_name(f"fresh-{path.name}")
    page.screenshot(path=fresh, animations="disabled")
    fresh.replace(path)
