"""Real ranks for tests: processes forked from a server that has torch loaded (0.1 s each)."""

from __future__ import annotations

import multiprocessing
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

DEADLINE_S = 90

RankProgram = Callable[..., Any]


def _child(
    program: RankProgram, channel: Connection, rank: int, arguments: tuple[Any, ...]
) -> None:
    # pytest's own filter does not reach here; torch announces what it will take away so
    warnings.simplefilter("error", FutureWarning)
    try:
        channel.send((True, program(rank, *arguments)))
    except BaseException:
        channel.send((False, traceback.format_exc()))
    finally:
        channel.close()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test marked gpu is skipped where torch sees no NVIDIA GPU."""
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("torch sees no NVIDIA GPU")


@pytest.fixture(scope="session")
def rank_server() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["training.trainer", "training.evaluate", "torch._dynamo"])
    return context


@pytest.fixture
def on_ranks(rank_server: Any, tmp_path: Path) -> Callable[..., list[Any]]:
    """Run `program(rank, world_size, init_method, *arguments)` on every rank; results in order."""
    starts = iter(range(1000))

    def run(program: RankProgram, world_size: int, *arguments: Any) -> list[Any]:
        init_method = f"file://{tmp_path}/rendezvous-{next(starts)}"
        running = []
        for rank in range(world_size):
            mine, theirs = rank_server.Pipe()
            given = (world_size, init_method, *arguments)
            process = rank_server.Process(target=_child, args=(program, theirs, rank, given))
            process.start()
            theirs.close()
            running.append((process, mine))
        results, failures = [], []
        for rank, (_, mine) in enumerate(running):
            if mine.poll(DEADLINE_S):
                succeeded, value = mine.recv()
                (results if succeeded else failures).append(value)
            else:
                failures.append(f"rank {rank} said nothing for {DEADLINE_S} s")
            mine.close()
        for process, _ in running:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join(10)
        assert not failures, "\n".join(failures)
        return results

    return run
