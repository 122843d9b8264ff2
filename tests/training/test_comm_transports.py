from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from analytics.errors import ConfigError
from tests.training import comm_programs as programs
from training.comm import nccl
from training.comm.contention import make_transport
from training.comm.host_staged import _HostBuffer


def expected(rank: int, world_size: int, case: str) -> list[list[int]]:
    """What a rank receives, sender by sender."""
    return [
        [programs.row(sender, rank, number)] * 2
        for sender in range(world_size)
        for number in range(programs.counts(sender, rank, case))
    ]


def check_exchange(results_R: list[dict[str, Any]]) -> None:
    world_size = len(results_R)
    for rank, results in enumerate(results_R):
        for case in ("uneven", "one rank is empty", "only to rank 0", "none"):
            for dtype in programs.DTYPES:
                assert results[f"{case} {dtype}"] == expected(rank, world_size, case)
        assert results["even"] == [[float(sender)] * 3 for sender in range(world_size)]
        assert results["gathered"] == [[[float(r)] * 2] * 2 for r in range(world_size)]
        assert results["scalar"] == list(range(world_size))


@pytest.mark.parametrize("kind", ["gloo", "host_staged", "nccl"])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_every_dtype_and_any_count_arrives_where_it_belongs(on_ranks, kind, world_size) -> None:
    check_exchange(on_ranks(programs.exchange, world_size, kind))


@pytest.mark.gpu
def test_nccl_carries_the_same_between_gpus(on_ranks) -> None:
    check_exchange(on_ranks(programs.exchange, torch.cuda.device_count(), "nccl", True))


@pytest.mark.gpu
def test_nccl_reaches_symmetric_memory(on_ranks) -> None:
    world_size = torch.cuda.device_count()
    for received, total, sent in on_ranks(programs.in_symmetric_memory, world_size):
        assert received == [float(sender) for sender in range(world_size)]
        assert total == [world_size * (world_size - 1) / 2]
        # to each other: 4 gathered, 4 KiB exchanged, and 2 x 4 KiB of the sum
        assert sent == (world_size - 1) * (4 + 3 * 4096)


@pytest.mark.parametrize("kind", ["gloo", "host_staged", "nccl"])
def test_sent_bytes_are_those_that_go_to_others(on_ranks, kind) -> None:
    # to the other rank; rows of 2: uneven: rank 0 has 1 + 1 % 4 = 2 for rank 1, rank 1 has
    # 1 + 3 % 4 = 4 for rank 0; "one rank is empty": 0 and 4; "only to rank 0": 0 and 4; none.
    # 8 + 1 + 4 + 2 = 15 bytes over the dtypes, twice for the columns: 30 a row
    # then 12 bytes evenly, 16 gathered, 8 the scalar
    sent = [results["sent"] for results in on_ranks(programs.exchange, 2, kind)]
    assert sent == [30 * 2 + 36, 30 * 12 + 36]


def test_copies_and_the_exchange_between_them_are_told_apart(on_ranks) -> None:
    for result in on_ranks(programs.copies, 2):
        # out and back for each of three collectives, in the order of time
        assert len(result["copies"]) == 6
        assert len(result["in_flight"]) == 3
        assert result["again"] == []
        moments = [result["window"][0]]
        for number, (begin, end) in enumerate(result["in_flight"]):
            moments += [
                *result["copies"][2 * number],
                begin,
                end,
                *result["copies"][2 * number + 1],
            ]
        assert moments == sorted(moments)
        assert moments[-1] <= result["window"][1]


def test_a_host_buffer_is_used_again_and_grows_by_doubling() -> None:
    buffer = _HostBuffer(pinned=False)
    first = buffer.like(torch.zeros(3, 4))
    assert first.shape == (3, 4)
    assert first.dtype == torch.float32
    kept = first.untyped_storage().data_ptr()
    assert buffer.like(torch.zeros(5, dtype=torch.int64)).untyped_storage().data_ptr() == kept
    assert len(buffer.like(torch.zeros(49, dtype=torch.uint8)).untyped_storage()) == 96
    assert len(buffer.like(torch.zeros(0, 7)).flatten()) == 0


@pytest.mark.parametrize(
    ("output_R", "data_R", "words"),
    [(None, None, "3 entries do not split"), ([3], [1, 2], "one a rank"), ([3], [2], "add up")],
)
def test_wrong_parts_are_refused_before_anything_is_sent(on_ranks, output_R, data_R, words) -> None:
    with pytest.raises(AssertionError, match=words):
        on_ranks(programs.wrong_parts, 1 if output_R else 2, output_R, data_R)


@pytest.mark.parametrize("name", ["nccl", "rdma"])
def test_a_transport_that_cannot_work_is_refused_with_another_to_choose(name) -> None:
    with pytest.raises(ConfigError, match=r"gloo"):
        make_transport(name, torch.device("cpu"), timeout_s=1)


def test_gloo_is_refused_for_a_gpu_and_names_what_carries_its_tensors() -> None:
    with pytest.raises(ConfigError, match="choose host_staged"):
        make_transport("gloo", torch.device("cuda", 0), timeout_s=1)


@pytest.mark.skipif(torch.distributed.is_nccl_available(), reason="this torch has NCCL")
def test_a_torch_without_nccl_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match="Install torch's CUDA wheel"):
        nccl.nccl_group(10)


def fake_module(*, by_group: bool) -> types.SimpleNamespace:
    """torch.distributed as far as the options need it; older torch lacks the policy by group."""

    class ProcessGroupNCCL:
        class Options:
            def __init__(self) -> None:
                self.is_high_priority_stream = False
                self.config = types.SimpleNamespace(**({"cta_policy": 0} if by_group else {}))

    if by_group:
        ProcessGroupNCCL.NCCL_CTA_POLICY_ZERO = 2
    return types.SimpleNamespace(ProcessGroupNCCL=ProcessGroupNCCL)


def test_a_group_of_nccl_is_made_with_its_options_and_time_out(monkeypatch) -> None:
    asked: dict[str, Any] = {}
    fake = fake_module(by_group=True)
    fake.ProcessGroup = str
    fake.new_group = lambda **given: asked.update(given) or "group"
    monkeypatch.setattr(nccl, "dist", fake)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert nccl.nccl_group(7, high_priority=True, zero_cta=True) == "group"
    assert (asked["backend"], asked["timeout"].total_seconds()) == ("nccl", 7)
    assert asked["pg_options"].is_high_priority_stream is True
    assert asked["pg_options"].config.cta_policy == 2


def test_a_machine_without_a_gpu_is_told_so_before_a_group_is_made(monkeypatch) -> None:
    monkeypatch.setattr(nccl, "dist", fake_module(by_group=True))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="this machine shows none"):
        nccl.nccl_group(7)


def test_priority_and_policy_are_set_on_the_group_and_not_in_the_environment(monkeypatch) -> None:
    monkeypatch.delenv("NCCL_CTA_POLICY", raising=False)
    options = nccl.nccl_options(
        fake_module(by_group=True), high_priority=True, zero_cta=True, timeout_s=7
    )
    assert options.is_high_priority_stream is True
    assert options.config.cta_policy == 2
    assert options._timeout.total_seconds() == 7
    assert "NCCL_CTA_POLICY" not in programs.os.environ


def test_a_torch_without_the_policy_is_asked_by_the_environment(monkeypatch) -> None:
    monkeypatch.setenv("NCCL_CTA_POLICY", "")
    nccl.nccl_options(fake_module(by_group=False), high_priority=False, zero_cta=False)
    assert programs.os.environ["NCCL_CTA_POLICY"] == ""
    nccl.nccl_options(fake_module(by_group=False), high_priority=False, zero_cta=True)
    assert programs.os.environ["NCCL_CTA_POLICY"] == "2"
