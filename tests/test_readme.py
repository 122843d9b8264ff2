"""What the README tells a newcomer to type exists, parses, and does what it says."""

import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import duckdb
import pytest
import typer

from flows.cli import app

ROOT = Path(__file__).parents[1]
DEMO_TIMEOUT_S = 1500
# Commands of others that a README may use; ours are checked one by one.
TOOLS_OF_OTHERS = {"git", "cd", "pip", "python", "python3.11", "apt-get", "sudo", "cat", "ls"}


def readme_commands() -> list[list[str]]:
    """Every command of the README's sh blocks as words, without comments and variables."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    commands = []
    for line in lines:
        for part in line.split("&&"):
            words = shlex.split(part.removeprefix("$ "), comments=True)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words.pop(0)
            if words:
                commands.append(words)
    return commands


def make_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z-]+):", text, flags=re.MULTILINE))


def test_the_first_two_commands_of_ours_are_the_demo_and_the_tests():
    ours = [words for words in readme_commands() if words[0] not in TOOLS_OF_OTHERS]
    assert ours[:2] == [["make", "demo"], ["make", "test"]]


def test_every_make_target_in_the_readme_exists():
    named = {
        word
        for words in readme_commands()
        if words[0] == "make"
        for word in words[1:]
        if "=" not in word
    }
    assert named <= make_targets()


def test_every_seqscale_command_in_the_readme_parses():
    group = typer.main.get_command(app)
    for words in readme_commands():
        if Path(words[0]).name != "seqscale":
            continue
        context = group.make_context("seqscale", words[1:], resilient_parsing=not words[2:])
        if words[1:] and not words[1].startswith("-"):
            name, command, arguments = group.resolve_command(context, words[1:])
            assert command is not None, words
            command.make_context(name, arguments, parent=context)


def test_the_readme_uses_no_other_command():
    known = TOOLS_OF_OTHERS | {"make", "seqscale"}
    assert {Path(words[0]).name for words in readme_commands()} <= known


def run_bounded(command: list[str], folder: Path, timeout_s: float) -> tuple[int, str]:
    """Exit code and output of a command; it and its children are killed when it takes too long."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SEQSCALE_", "COV_"))}
    for name in ("VIRTUAL_ENV", "PYTHONPATH", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"):
        kept.pop(name, None)
    with subprocess.Popen(
        command,
        cwd=folder,
        env=kept,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return process.returncode, output


@pytest.mark.full
@pytest.mark.timeout(DEMO_TIMEOUT_S + 120)
def test_the_first_command_works_as_written_in_a_fresh_clone(tmp_path):
    if not shutil.which("git"):
        pytest.skip("git is not installed")
    clone = tmp_path / "seqscale"
    code, output = run_bounded(["git", "clone", "-q", str(ROOT), str(clone)], tmp_path, 120)
    if code or not (clone / "README.md").exists():
        pytest.skip(f"this is no git checkout with a commit: {output.strip()}")
    first = next(words for words in readme_commands() if words[0] not in TOOLS_OF_OTHERS)
    code, output = run_bounded(first, clone, DEMO_TIMEOUT_S)
    assert code == 0, output[-4000:]
    runs = clone / "runs"
    with duckdb.connect(runs / "warehouse.duckdb", read_only=True) as con:
        arms = con.execute(
            "SELECT arm, pipeline_id, hr_at_10, popularity_hr_at_10, ndcg_at_10, "
            "popularity_ndcg_at_10 FROM run_efficiency ORDER BY arm"
        ).fetchall()
    assert [arm for arm, *_ in arms] == ["balanced", "baseline"]
    pipeline_id = arms[0][1]
    receipt = (runs / pipeline_id / "receipt.md").read_text(encoding="utf-8")
    assert pipeline_id in receipt
    assert pipeline_id in output
    for _, _, hr, popular_hr, ndcg, popular_ndcg in arms:  # what the demo promises to reach
        assert hr >= 1.5 * popular_hr
        assert ndcg >= 1.5 * popular_ndcg
    assert (runs / "export" / "manifest.json").exists()
