"""Makes `.venv` ready: the first thing that runs on a fresh machine, by `make setup`.

Before: a Python 3.11 with venv.   After: `.venv/bin/seqscale`, tests, and the demo's data.
Price: about five minutes and the download it announces, once; afterwards a tenth of a second.

Standard library only, and nothing of this project, for neither is there yet. A stamp written last
tells a whole set-up from a half one; a half or broken one is mended, or made anew if that fails.

Which torch, in this order: where pip is configured with wheels of its own, those; on a host without
an NVIDIA driver the CPU build; else the CUDA build. The address of PyTorch's CPU wheels is read
from README.md, which is the only file to name it, or from SEQSCALE_TORCH_INDEX (a mirror).

The extra `bench` also brings TorchRec, without its dependencies: it asks for fbgemm-gpu, the CUDA
build, while the CPU build that serves as oracle is named fbgemm-gpu-cpu and stands in the extra.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "seqscale-setup.json"
LOCK = ROOT / ".cache" / "setup.lock"
WANTED = (3, 11)
BENCH = "bench"  # the extra that TorchRec comes with
INSTALL_TIMEOUT_S = 3600
FETCH_TIMEOUT_S = 180

# Measured on 30 November 2026 for `.[all,dev]` without a cache: 397 MB received besides torch,
# whose CPU wheel has 192 MB; the CUDA build with its 19 libraries has 2.7 GB by the index's sizes.
DOWNLOADS = {"cpu": "about 0.6 GB", "cuda": "about 3.1 GB", "given": "about 0.4 GB plus torch"}
BENCH_DOWNLOAD = " and 61 MB for bench"


def main() -> int:
    """Set up; the exit code."""
    parser = argparse.ArgumentParser(prog="bootstrap", description="Make .venv ready.")
    parser.add_argument("--extras", default="all,dev", help="extras to install, by comma")
    extras = sorted(set(parser.parse_args().extras.split(",")))
    if sys.version_info[:2] != WANTED:
        return _fail(
            f"seqscale needs Python 3.11, and {sys.executable} is {sys.version.split()[0]}. "
            "Install Python 3.11 and name it: make setup PYTHON=/path/to/python3.11"
        )
    with _only_one():
        stamp = _read_stamp()
        if not _is_ready(stamp, extras):
            extras = sorted({*extras, *stamp.get("extras", [])})
            try:
                _make_ready(extras)
            except (subprocess.SubprocessError, OSError) as error:
                return _fail(f"The set-up did not succeed: {error}")
            stamp = {"key": _key(), "extras": extras, "data": False}
            _write_stamp(stamp)
        if not stamp["data"]:
            stamp["data"] = _fetch_demo_data()
            _write_stamp(stamp)
    return 0


def _fail(message: str) -> int:
    print(message, file=sys.stderr)
    return 2


@contextlib.contextmanager
def _only_one() -> Iterator[None]:
    """Hold the set-up's lock, waiting for another set-up of this checkout to end."""
    LOCK.parent.mkdir(exist_ok=True)
    with LOCK.open("w") as file:
        deadline = time.monotonic() + INSTALL_TIMEOUT_S
        told = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
            if not told:
                print("Another set-up of this folder is running; waiting for it.")
                told = True
            time.sleep(0.2)  # between two tries of the lock, until the deadline
        yield


def _key() -> str:
    """Hash of what an installation depends on: requirements, versions, interpreter and place."""
    parts = [sys.version, str(ROOT)]
    for path in [ROOT / "pyproject.toml", *sorted((ROOT / "infra" / "locks").glob("*.txt"))]:
        parts.append(path.read_text(encoding="utf-8"))
    return hashlib.sha256("\0".join(parts).encode("utf-8")).hexdigest()


def _read_stamp() -> dict[str, Any]:
    try:
        stamp = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def _write_stamp(stamp: dict[str, Any]) -> None:
    aside = STAMP.with_suffix(".tmp")
    aside.write_text(json.dumps(stamp), encoding="utf-8")
    aside.replace(STAMP)


def _is_ready(stamp: dict[str, Any], extras: list[str]) -> bool:
    return (
        stamp.get("key") == _key()
        and set(extras) <= set(stamp.get("extras", []))
        and (VENV / "bin" / "seqscale").exists()
        and _interpreter_works()
    )


def _interpreter_works() -> bool:
    """Whether the venv's Python starts and is the wanted version."""
    code = f"import sys; sys.exit(sys.version_info[:2] != {WANTED!r})"
    try:
        return subprocess.run([str(PYTHON), "-S", "-c", code], timeout=60).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def _make_ready(extras: list[str]) -> None:
    """Install into the venv there is, or into a new one when that is missing or beyond repair."""
    build, reason, index = _torch_build()
    print(f"Setting up {VENV} for {', '.join(extras)}.")
    size = DOWNLOADS[build] + (BENCH_DOWNLOAD if BENCH in extras else "")
    print(f"torch: {reason}. To download: {size}, less what is cached.", flush=True)
    STAMP.unlink(missing_ok=True)
    if _interpreter_works():
        try:
            _install(build, index, extras)
            return
        except subprocess.SubprocessError as error:
            print(f"The present .venv cannot be completed ({error}); making it anew.", flush=True)
    if VENV.exists():
        shutil.rmtree(VENV)
    _make_venv()
    _install(build, index, extras)


def _make_venv() -> None:
    try:
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True, timeout=600)
    except subprocess.SubprocessError as error:
        raise OSError(
            f"{sys.executable} -m venv failed ({error}). On Debian and Ubuntu the package "
            "python3.11-venv brings what is missing."
        ) from error


def _torch_build() -> tuple[str, str, str | None]:
    """Which build of torch, why, and the index to take it from (None: pip's own)."""
    if os.environ.get("PIP_FIND_LINKS"):
        return "given", "the wheels that pip is configured with (PIP_FIND_LINKS is set)", None
    if shutil.which("nvidia-smi") or Path("/proc/driver/nvidia/version").exists():
        return "cuda", "CUDA build, because this host has an NVIDIA driver", None
    index = _cpu_index()
    if index is None:
        return (
            "cuda",
            "the package index's default (CUDA) build: this host has no NVIDIA driver, but neither "
            "README.md nor SEQSCALE_TORCH_INDEX names an index of CPU wheels",
            None,
        )
    return "cpu", f"CPU build from {index}, because this host has no NVIDIA driver", index


def _cpu_index() -> str | None:
    """The index of CPU wheels: SEQSCALE_TORCH_INDEX, else the README's line about it."""
    given = os.environ.get("SEQSCALE_TORCH_INDEX")
    if given:
        return given
    try:
        text = (ROOT / "README.md").read_text(encoding="utf-8")
    except OSError:
        return None
    named = re.search(r"PyTorch CPU wheels:\W*?(https?://[^\s>`)\"]+)", text)
    return named.group(1) if named else None


def _install(build: str, index: str | None, extras: list[str]) -> None:
    """Install torch from `index` alone when one is given, then the rest from pip's own index.

    Two steps, so that the second index never supplies anything but torch; and a third for TorchRec,
    so that its wish for another build of FBGEMM is not heard.
    """
    lock = ROOT / "infra" / "locks" / ("py311-cuda.txt" if build == "cuda" else "py311-cpu.txt")
    uv = _uv(lock)
    if index is not None:
        _installer(uv, lock, ["--no-deps", "--index-url", index, "torch"])
    _installer(uv, lock, ["-e", f"{ROOT}[{','.join(extras)}]"])
    if BENCH in extras:
        _installer(uv, lock, ["--no-deps", "torchrec"])


def _uv(lock: Path) -> str | None:
    """uv, which installs 5 to 20 times faster than pip; None when it cannot be had."""
    found = shutil.which("uv")
    if found:
        return found
    own = VENV / "bin" / "uv"
    if not own.exists():
        command = [str(PYTHON), "-m", "pip", "install", "-qq", "-c", str(lock), "uv"]
        try:
            subprocess.run(command, timeout=600, check=True)
        except subprocess.SubprocessError:
            print("uv cannot be installed; going on with pip, which takes longer.", flush=True)
            return None
    return str(own)


def _installer(uv: str | None, lock: Path, arguments: list[str]) -> None:
    """Run uv, and pip when uv fails, with the versions of `lock`."""
    quiet = [] if sys.stdout.isatty() else ["-q"]
    tail = ["-c", str(lock), *quiet, *arguments]
    if uv is not None:
        command = [uv, "pip", "install", "--python", str(PYTHON), "--compile-bytecode", *tail]
        environment = {**os.environ, **_uv_settings()}
        done = subprocess.run(command, env=environment, timeout=INSTALL_TIMEOUT_S)
        if done.returncode == 0:
            return
        print("uv did not succeed; trying again with pip.", flush=True)
    command = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", *tail]
    subprocess.run(command, timeout=INSTALL_TIMEOUT_S, check=True)


def _uv_settings() -> dict[str, str]:
    """pip's settings under uv's names, for uv reads none of pip's; settings of uv itself win."""
    pip = _pip_settings()
    settings = {}
    for name, option, separator in [
        ("UV_FIND_LINKS", "find-links", ","),
        ("UV_INDEX_URL", "index-url", " "),
        ("UV_EXTRA_INDEX_URL", "extra-index-url", " "),
        ("SSL_CERT_FILE", "cert", " "),
        ("UV_HTTP_TIMEOUT", "timeout", " "),
    ]:
        if option in pip and name not in os.environ:
            settings[name] = separator.join(pip[option].split())
    if "UV_EXTRA_INDEX_URL" in settings:
        # pip takes the best version of all its indexes; uv would stop at the first with the name
        settings.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    return settings


def _pip_settings() -> dict[str, str]:
    """pip's settings from its files and, before these, from PIP_ variables."""
    command = [str(PYTHON), "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    settings = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        place, _, option = name.partition(".")
        if place in ("global", "install"):
            settings[option] = value.strip("'\"").replace("\\n", " ")
    names = {"default-timeout": "timeout"}
    for name, value in os.environ.items():
        if name.startswith("PIP_") and value:
            option = name[4:].lower().replace("_", "-")
            settings[names.get(option, option)] = value
    return settings


def _fetch_demo_data() -> bool:
    """Put the demo's data into the cache; whether it is there."""
    command = [str(VENV / "bin" / "seqscale"), "fetch", "ml-100k"]
    try:
        if subprocess.run(command, timeout=FETCH_TIMEOUT_S).returncode == 0:
            return True
    except (OSError, subprocess.SubprocessError) as error:
        print(error, file=sys.stderr)
    print(
        "The demo's data was not fetched. The demo needs it: "
        "run '.venv/bin/seqscale fetch ml-100k' with network.",
        file=sys.stderr,
    )
    return False


if __name__ == "__main__":
    sys.exit(main())
