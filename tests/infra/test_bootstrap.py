"""The set-up knows when it is done, which torch to take, and that another one is running."""

import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from infra import bootstrap

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout of its own: what the set-up depends on, and a venv that runs."""
    (tmp_path / "infra" / "locks").mkdir(parents=True)
    (tmp_path / "infra" / "locks" / "py311-cpu.txt").write_text("torch==2.13.0\n")
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    binaries = tmp_path / ".venv" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "python").symlink_to(sys.executable)
    (binaries / "seqscale").write_text("#!/bin/sh\nexit 0\n")
    (binaries / "seqscale").chmod(0o755)
    venv = tmp_path / ".venv"
    for name, value in {
        "ROOT": tmp_path,
        "VENV": venv,
        "PYTHON": binaries / "python",
        "STAMP": venv / "seqscale-setup.json",
        "LOCK": tmp_path / ".cache" / "setup.lock",
    }.items():
        monkeypatch.setattr(bootstrap, name, value)
    return tmp_path


def stamp_as_ready(extras: list[str]) -> None:
    bootstrap._write_stamp({"key": bootstrap._key(), "extras": extras, "data": True})


def is_ready(extras: list[str]) -> bool:
    return bootstrap._is_ready(bootstrap._read_stamp(), extras)


def test_a_finished_set_up_is_not_repeated(checkout):
    assert not is_ready(["all", "dev"])
    stamp_as_ready(["all", "dev"])
    assert is_ready(["all", "dev"])
    assert is_ready(["all"])
    assert not is_ready(["all", "browser", "dev"])


@pytest.mark.parametrize("name", ["pyproject.toml", "infra/locks/py311-cpu.txt"])
def test_changed_requirements_call_for_a_new_set_up(checkout, name):
    stamp_as_ready(["all"])
    (checkout / name).write_text("# changed\n")
    assert not is_ready(["all"])


def test_a_broken_venv_is_not_ready(checkout):
    stamp_as_ready(["all"])
    bootstrap.PYTHON.unlink()
    bootstrap.PYTHON.symlink_to("/nowhere/python3.11")
    assert not is_ready(["all"])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"extras": ["all"]}'])
def test_a_half_written_stamp_is_not_ready(checkout, text):
    bootstrap.STAMP.write_text(text)
    assert not is_ready(["all"])


def test_a_ready_set_up_only_says_so(checkout, monkeypatch, capfd):
    stamp_as_ready(["all", "dev"])
    monkeypatch.setattr(sys, "argv", ["bootstrap.py"])
    assert bootstrap.main() == 0
    assert capfd.readouterr() == ("", "")


def test_without_the_demos_data_the_set_up_warns_and_succeeds(checkout, monkeypatch, capfd):
    stamp = {"key": bootstrap._key(), "extras": ["all", "dev"], "data": False}
    bootstrap._write_stamp(stamp)
    (bootstrap.VENV / "bin" / "seqscale").write_text("#!/bin/sh\nexit 2\n")
    monkeypatch.setattr(sys, "argv", ["bootstrap.py"])
    assert bootstrap.main() == 0
    assert "run '.venv/bin/seqscale fetch ml-100k' with network" in capfd.readouterr().err
    assert bootstrap._read_stamp()["data"] is False  # so the next set-up tries again


def test_another_python_is_refused_with_what_to_do(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bootstrap.py"])
    monkeypatch.setattr(bootstrap, "WANTED", (3, 2))
    assert bootstrap.main() == 2
    assert "make setup PYTHON=/path/to/python3.11" in capsys.readouterr().err


def test_a_second_set_up_waits_for_the_first(checkout, capfd):
    bootstrap.LOCK.parent.mkdir()
    code = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX);"
        "print('held', flush=True); input(); print('released', flush=True)"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, str(bootstrap.LOCK)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
    ) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        waiter = [sys.executable, "-c", "import sys; sys.path.insert(0, sys.argv[1])\n" + WAITER]
        with subprocess.Popen(
            [*waiter, str(ROOT), str(bootstrap.LOCK)], stdout=subprocess.PIPE, encoding="utf-8"
        ) as second:
            assert second.stdout is not None
            assert "waiting for it" in second.stdout.readline()
            holder.stdin.write("\n")
            holder.stdin.flush()
            assert second.stdout.readline() == "mine\n"


WAITER = """
from pathlib import Path
from infra import bootstrap
import functools, builtins
print = functools.partial(builtins.print, flush=True)
bootstrap.print = print
bootstrap.LOCK = Path(sys.argv[2])
with bootstrap._only_one():
    print("mine")
"""


def test_wheels_that_pip_is_configured_with_come_first(checkout, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels")
    assert bootstrap._torch_build()[0] == "given"


def test_a_host_without_a_driver_takes_the_cpu_build_the_readme_names(checkout, monkeypatch):
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this host has an NVIDIA driver")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.delenv("SEQSCALE_TORCH_INDEX", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    build, reason, index = bootstrap._torch_build()
    assert (build, index) == ("cuda", None)
    assert "neither README.md nor SEQSCALE_TORCH_INDEX" in reason
    (checkout / "README.md").write_text("- PyTorch CPU wheels: <https://wheels.test/cpu>\n")
    assert bootstrap._torch_build()[::2] == ("cpu", "https://wheels.test/cpu")
    monkeypatch.setenv("SEQSCALE_TORCH_INDEX", "https://mirror.test/cpu")
    assert bootstrap._torch_build()[::2] == ("cpu", "https://mirror.test/cpu")


def test_a_host_with_a_driver_takes_the_cuda_build(checkout, monkeypatch):
    (checkout / "nvidia-smi").write_text("#!/bin/sh\n")
    (checkout / "nvidia-smi").chmod(0o755)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PATH", str(checkout))
    assert bootstrap._torch_build()[0] == "cuda"


def test_uv_is_told_what_pip_is_told_unless_it_was_told_itself(checkout, monkeypatch):
    for name in [n for n in os.environ if n.startswith(("PIP_", "UV_")) or n == "SSL_CERT_FILE"]:
        monkeypatch.delenv(name)
    configured = checkout / "pip.conf"
    configured.write_text("[global]\nextra-index-url = https://a.test\n    https://b.test\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(configured))
    monkeypatch.setenv("PIP_FIND_LINKS", "/one /two")
    monkeypatch.setenv("PIP_CERT", "/ca.crt")
    monkeypatch.setenv("UV_HTTP_TIMEOUT", "7")
    monkeypatch.setenv("PIP_DEFAULT_TIMEOUT", "180")
    settings = bootstrap._uv_settings()
    assert settings["UV_FIND_LINKS"] == "/one,/two"  # pip separates by spaces, uv by commas
    assert settings["SSL_CERT_FILE"] == "/ca.crt"
    assert settings["UV_EXTRA_INDEX_URL"].split() == ["https://a.test", "https://b.test"]
    assert settings["UV_INDEX_STRATEGY"] == "unsafe-best-match"
    assert "UV_HTTP_TIMEOUT" not in settings


@pytest.mark.parametrize("extras", [["all", "dev"], ["all", "bench", "dev"]])
def test_torchrec_comes_last_and_alone_with_the_bench_extra(checkout, monkeypatch, extras):
    steps = []
    monkeypatch.setattr(bootstrap, "_uv", lambda lock: None)
    monkeypatch.setattr(
        bootstrap, "_installer", lambda uv, lock, arguments: steps.append(arguments)
    )
    bootstrap._install("cpu", "https://wheels.test/cpu", extras)
    torch = ["--no-deps", "--index-url", "https://wheels.test/cpu", "torch"]
    ours = ["-e", f"{checkout}[{','.join(extras)}]"]
    torchrec = [["--no-deps", "torchrec"]] if "bench" in extras else []
    assert steps == [torch, ours, *torchrec]


@pytest.mark.parametrize(
    ("settings", "extras"),
    [
        ([], "all,dev"),
        (["BROWSER=1"], "all,dev,browser"),
        (["BENCH=1"], "all,dev,bench"),
        (["BROWSER=1", "BENCH=1"], "all,dev,browser,bench"),
    ],
)
def test_make_setup_names_the_extras(settings, extras):
    command = ["make", "--dry-run", "setup", "PYTHON=python", *settings]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f"infra/bootstrap.py --extras {extras}\n" in told


def test_the_bench_extra_holds_what_torchrec_needs_but_the_cuda_build():
    requires = importlib.metadata.requires
    try:
        wanted = [Requirement(text) for text in requires("torchrec") or []]
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("TorchRec is not installed; 'make setup BENCH=1' brings it")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bench = {Requirement(text).name for text in project["optional-dependencies"]["bench"]}
    needed = {requirement.name for requirement in wanted if not requirement.marker}
    assert needed - bench == {"fbgemm-gpu"}
    assert "fbgemm-gpu-cpu" in bench
    for build in ("cpu", "cuda"):
        versions = locked(build)
        assert versions["torchrec"] == importlib.metadata.version("torchrec")
        assert versions["fbgemm-gpu-cpu"] == versions["torchrec"]
        for requirement in wanted:
            if requirement.name in bench:
                assert requirement.specifier.contains(versions[requirement.name])


def locked(build: str) -> dict[str, str]:
    lines = (ROOT / "infra" / "locks" / f"py311-{build}.txt").read_text(encoding="utf-8")
    pairs = [line.split("==") for line in lines.splitlines() if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


@pytest.mark.parametrize("build", ["cpu", "cuda"])
def test_the_locks_hold_names_and_versions_of_every_extra(build):
    text = (ROOT / "infra" / "locks" / f"py311-{build}.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        assert re.fullmatch(r"#.*|[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line), line
    versions = locked(build)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    for requirement in (Requirement(text) for group in groups for text in group):
        if requirement.name != "seqscale":
            assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)])


def test_both_locks_agree_on_what_they_share():
    cpu, cuda = locked("cpu"), locked("cuda")
    assert set(cpu) <= set(cuda)
    assert {name: cuda[name] for name in cpu} == cpu
