"""What the environment must say before Prefect and MLflow are imported, and who may say otherwise.

Before: the command line, before any heavy import.   After: flows/server.py, flows/pipeline.py and
every child process, which inherit it. A value that the user has set always wins.
Price: nothing is sent anywhere: the telemetry of Prefect, MLflow and Streamlit is off.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, MutableMapping
from pathlib import Path

DEFAULTS: dict[str, str] = {
    # measured: a fresh database takes 20 s on an idle core and 49 s on a busy one; Prefect gives 20
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "240",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # MLflow takes only the word; "1" is ignored
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "STREAMLIT_BROWSER_GATHER_USAGE_STATS": "false",
    # tracebacks of failed tasks stay readable through the API; the console shows our own progress
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
}


def set_environment(
    runs_dir: Path | None = None, environment: MutableMapping[str, str] | None = None
) -> None:
    """Fill in what the user has not set; to be called before Prefect or MLflow is imported.

    runs_dir: where Prefect keeps its database and results (`.work/prefect`), unless the user has a
    Prefect of his own; None leaves that open.
    """
    target = os.environ if environment is None else environment
    for name, value in DEFAULTS.items():
        target.setdefault(name, value)
    if runs_dir is not None and not _has_own_prefect(target):
        target["PREFECT_HOME"] = str(prefect_home(runs_dir))


def prefect_home(runs_dir: Path) -> Path:
    """The folder of our own Prefect, absolute."""
    return runs_dir.resolve() / ".work" / "prefect"


def configured_api_url(environment: Mapping[str, str] | None = None) -> str | None:
    """The address of the Prefect server that the user has configured, or None.

    Read from PREFECT_API_URL and from the active profile, without importing Prefect.
    """
    source = os.environ if environment is None else environment
    if source.get("PREFECT_API_URL"):
        return source["PREFECT_API_URL"]
    try:
        content = tomllib.loads(_profiles_path(source).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # Prefect itself complains about a profile that cannot be read
    active = source.get("PREFECT_PROFILE") or content.get("active")
    profile = content.get("profiles", {}).get(active, {})
    url = profile.get("PREFECT_API_URL") if isinstance(profile, dict) else None
    return str(url) if url else None


def _has_own_prefect(source: Mapping[str, str]) -> bool:
    named = source.get("PREFECT_HOME") or source.get("PREFECT_API_URL")
    return bool(named) or _profiles_path(source).is_file()


def _profiles_path(source: Mapping[str, str]) -> Path:
    if source.get("PREFECT_PROFILES_PATH"):
        return Path(source["PREFECT_PROFILES_PATH"])
    home = source.get("PREFECT_HOME")
    return (Path(home) if home else Path.home() / ".prefect") / "profiles.toml"
