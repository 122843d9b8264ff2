"""Starts the dashboard as a child: Streamlit bound to this host, telling nobody.

Before: `seqscale dashboard`.   After: dashboard/app.py reads the published warehouse.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from analytics.errors import ConfigError
from analytics.pseudonyms import KEY_VARIABLE
from flows.run import require
from flows.settings import set_environment

STOP_TIMEOUT_S = 10.0


def serve(runs_dir: Path, *, port: int, open_browser: bool) -> int:
    """Serve the dashboard until it ends or is interrupted; its exit code.

    Raises ConfigError when Streamlit is not installed.
    """
    require({"streamlit": "dashboard", "altair": "dashboard"}, "dashboard")
    set_environment()
    environment = {**os.environ, "SEQSCALE_RUNS_DIR": str(runs_dir.resolve())}
    environment.pop(KEY_VARIABLE, None)
    command = dashboard_command(port=port, open_browser=open_browser)
    with subprocess.Popen(command, env=environment) as child:
        try:
            return child.wait()
        except KeyboardInterrupt:  # the terminal has sent it to the child as well
            return 0
        finally:  # also when this process is told to end: Streamlit must not outlive it
            child.terminate()
            child.wait(timeout=STOP_TIMEOUT_S)


def dashboard_command(*, port: int, open_browser: bool) -> list[str]:
    """The command that starts Streamlit on the dashboard."""
    found = importlib.util.find_spec("dashboard")
    if found is None or not found.submodule_search_locations:
        raise ConfigError("The dashboard is not installed; install seqscale again.")
    app = Path(found.submodule_search_locations[0]) / "app.py"
    command = [sys.executable, "-m", "streamlit", "run", str(app)]
    command += ["--server.address", "127.0.0.1", "--server.port", str(port)]
    command += ["--server.headless", "false" if open_browser else "true"]
    return [*command, "--browser.gatherUsageStats", "false"]
