"""What a table takes, what is free, and the refusal that names both."""

from __future__ import annotations

from pathlib import Path

import pytest

from analytics.errors import ConfigError
from training.config import TableConfig
from training.embeddings.memory import free_host_bytes, refuse_what_does_not_fit, share_bytes

GIB = 1 << 30


@pytest.mark.parametrize(
    ("optimizer", "numbers_a_row"),
    # width 64: weights alone; one sum; 64 sums; two averages of 64 and their two weights
    [("sgd", 64), ("rowwise_adagrad", 65), ("adagrad", 128), ("lazy_adam", 194)],
)
def test_a_share_takes_weights_and_state(optimizer: str, numbers_a_row: int) -> None:
    config = TableConfig(name="item", num_rows=10, width=64, optimizer=optimizer)
    # 10 rows over 4 ranks: the largest share has 3
    assert share_bytes(config, 4) == 3 * numbers_a_row * 4


def test_a_replicated_table_takes_all_its_rows_on_every_rank() -> None:
    config = TableConfig(name="hot", num_rows=10, width=64, optimizer="sgd", placement="replicated")
    assert share_bytes(config, 4) == 10 * 64 * 4


def test_a_refusal_gives_the_figures_and_what_to_change() -> None:
    # 2^24 rows over 2 ranks: 2^23 rows x 128 numbers x 4 bytes = 4 GiB a rank, 8 GiB for both
    config = TableConfig(name="item", num_rows=1 << 24, width=64, optimizer="adagrad")
    fits = {"world_size": 2, "ranks_on_device": 2}
    refuse_what_does_not_fit([config], **fits, free_bytes=8 * GIB)
    with pytest.raises(ConfigError) as caught:
        refuse_what_does_not_fit([config], **fits, free_bytes=2 * GIB)
    message = str(caught.value)
    assert "table 'item' (16,777,216 rows of 64, adagrad, round_robin)" in message
    assert "4.00 GiB a rank" in message
    assert "8,589,934,592 bytes are needed (8.00 GiB)" in message
    assert "2,147,483,648 are free (2.00 GiB)" in message
    # a quarter of the memory: a quarter of the rows
    assert "at most 4,194,304 rows" in message
    assert "rowwise_adagrad" in message


def test_several_tables_must_fit_together() -> None:
    # 3 GiB and 1 GiB of weights: each fits into 3.5 GiB, both do not
    tables = [
        TableConfig(name="user", num_rows=3 << 20, width=256, optimizer="sgd"),
        TableConfig(name="item", num_rows=1 << 20, width=256, optimizer="sgd"),
    ]
    for table in tables:
        refuse_what_does_not_fit([table], world_size=1, free_bytes=7 * GIB // 2)
    with pytest.raises(ConfigError, match=r"'user' .* of 2 tables.* needed \(4.00 GiB\)"):
        refuse_what_does_not_fit(tables, world_size=1, free_bytes=7 * GIB // 2)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = "MemTotal:  16777216 kB\nMemFree: 1048576 kB\nMemAvailable:  8388608 kB\n"


def test_without_a_limit_the_kernels_word_counts(tmp_path: Path) -> None:
    files = {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/user\n"}
    files["sys/fs/cgroup/user/memory.max"] = "max\n"
    files["sys/fs/cgroup/user/memory.current"] = str(GIB)
    assert free_host_bytes(write(tmp_path, files)) == 8 * GIB


def test_the_tightest_group_above_the_process_counts(tmp_path: Path) -> None:
    # own group: 6 GiB - 1 = 5 GiB left; its parent: 4 GiB - (3 - 1 reclaimable) = 2 GiB left
    files = {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/job/step\n"}
    files |= {
        "sys/fs/cgroup/job/step/memory.max": str(6 * GIB),
        "sys/fs/cgroup/job/step/memory.current": str(GIB),
        "sys/fs/cgroup/job/memory.max": str(4 * GIB),
        "sys/fs/cgroup/job/memory.current": str(3 * GIB),
        "sys/fs/cgroup/job/memory.stat": f"anon 5\ninactive_file {GIB}\n",
    }
    assert free_host_bytes(write(tmp_path, files)) == 2 * GIB


def test_version_1_groups_and_a_container_whose_path_is_the_hosts(tmp_path: Path) -> None:
    files = {"proc/meminfo": MEMINFO, "proc/self/cgroup": "4:memory:/docker/abc\n0::/\n"}
    files |= {
        "sys/fs/cgroup/memory/memory.limit_in_bytes": str(3 * GIB),
        "sys/fs/cgroup/memory/memory.usage_in_bytes": str(2 * GIB),
    }
    assert free_host_bytes(write(tmp_path, files)) == GIB


def test_a_host_that_says_nothing_refuses_nothing(tmp_path: Path) -> None:
    assert free_host_bytes(tmp_path) is None
