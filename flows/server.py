"""Prefect's API for the time of one run: nothing to start, no account, gone when the run is over.

Before: flows/settings.py.   After: flows/pipeline.py talks to it; a server of the user's is used
instead when one is configured.
Price: 8 s of one core, 20 s with a fresh database. So it is a child that starts first, while the
data is prepared and the cost model calibrated. Prefect would start the same child itself, but only
at the first call and after it has imported the server's code into this process as well: 40 s.

The child opens its port before it imports anything, so the address is known at once, no other
process can take the port in between, and an early caller waits instead of being refused.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from analytics.errors import LaunchError
from analytics.locks import held
from flows.private import private_folder
from flows.settings import configured_api_url, prefect_home
from infra.launchers.local import background_child

PORT_TIMEOUT_S = 60.0
MIGRATION_TIMEOUT_S = 300.0
_SERVER_ENVIRONMENT = {
    "PREFECT_UI_ENABLED": "0",
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT__SERVER_FINAL": "1",
}


@contextlib.contextmanager
def api_server(runs_dir: Path) -> Iterator[Callable[[], None]]:
    """An API for Prefect; the block's value waits until it answers.

    Raises LaunchError, when waited for, if the server ended or is not there in time.
    """
    if configured_api_url() is not None:
        yield lambda: None
        return
    home = private_folder(prefect_home(runs_dir))
    port_path = home / f"port-{os.getpid()}"
    port_path.unlink(missing_ok=True)
    log_path = home / "server.log"
    command = [sys.executable, "-m", "flows.server", "--port-file", str(port_path)]
    command += ["--lock-file", str(home / "migration.lock")]
    with background_child(command, what="Prefect's server", log_path=log_path):
        try:
            port = _wait_for_port(port_path, log_path)
            with _addressed(port):
                yield lambda: _wait_until_healthy(port, log_path)
        finally:
            port_path.unlink(missing_ok=True)


def drain() -> None:
    """Send what Prefect's log and event threads still hold; to be called before the server stops.

    Otherwise they find nobody to talk to and say so on the console.
    """
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for worker in (APILogWorker, EventsWorker):
        worker.drain_all(timeout=10)


@contextlib.contextmanager
def _addressed(port: int) -> Iterator[None]:
    """The environment names the server, and no proxy stands before it."""
    changed = {"PREFECT_API_URL": f"http://127.0.0.1:{port}/api"}
    for name in ("NO_PROXY", "no_proxy"):
        changed[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1"]))
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _wait_for_port(port_path: Path, log_path: Path) -> int:
    deadline = time.monotonic() + PORT_TIMEOUT_S
    while time.monotonic() < deadline:
        if port_path.exists():
            return int(port_path.read_text(encoding="utf-8"))
        time.sleep(0.02)  # between two looks, until the deadline
    raise LaunchError(_no_server(log_path, f"did not start within {PORT_TIMEOUT_S:g} s"))


def _wait_until_healthy(port: int, log_path: Path) -> None:
    timeout_s = float(os.environ["PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("GET", "/api/health")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        late = isinstance(error, TimeoutError)
        what = f"did not answer within {timeout_s:g} s" if late else "ended before it answered"
        raise LaunchError(_no_server(log_path, what)) from error
    finally:
        connection.close()
    if status != 200:
        raise LaunchError(_no_server(log_path, f"answered with status {status}"))


def _no_server(log_path: Path, what: str) -> str:
    try:
        tail = log_path.read_text(encoding="utf-8", errors="replace").strip()[-600:]
    except OSError:
        tail = ""
    return (
        f"Prefect's server {what}; its log is {log_path}. Delete {log_path.parent} to begin with a "
        "fresh database, or raise PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS."
        + (f" Its last lines: {tail}" if tail else "")
    )


def serve(port_path: Path, lock_path: Path) -> None:
    """Serve Prefect's API on a free port of this host until told to stop; the child's main."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=128)
    aside = port_path.with_name(port_path.name + ".tmp")
    aside.write_text(str(listening.getsockname()[1]), encoding="utf-8")
    aside.replace(port_path)
    os.environ.update(_SERVER_ENVIRONMENT)

    def late() -> LaunchError:
        return LaunchError(
            f"{lock_path}: another start has been migrating Prefect's database for "
            f"{MIGRATION_TIMEOUT_S:g} s. End it, or delete {lock_path.parent} to begin anew."
        )

    with contextlib.ExitStack() as migrating:
        # two first runs at once must not migrate one database at the same time
        migrating.enter_context(held(lock_path, timeout_s=MIGRATION_TIMEOUT_S, late=late))
        import uvicorn
        from prefect.server.api.server import create_app

        class Server(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                migrating.close()

        config = uvicorn.Config(create_app(), log_level="error", lifespan="on")
        Server(config).run(sockets=[listening])


def _main() -> None:
    parser = argparse.ArgumentParser(description=serve.__doc__)
    parser.add_argument("--port-file", type=Path, required=True)
    parser.add_argument("--lock-file", type=Path, required=True)
    arguments = parser.parse_args()
    serve(arguments.port_file, arguments.lock_file)


if __name__ == "__main__":
    _main()
