from __future__ import annotations

import types

import pytest
import torch

from analytics.errors import ConfigError
from tests.training import comm_programs as programs
from training.comm.contention import make_transport
from training.comm.host_staged import _HostBuffer
from training.comm.nccl import nccl_group, nccl_options


def expected(rank: int, world_size: int, case: str) -> list[list[int]]:
    """What a rank receives, sender by sender."""
    return [
        [programs.row(sender, rank, number)] * 2
        for sender in range(world_size)
        for number in range(programs.counts(sender, rank, case))
    ]


@pytest.mark.parametrize("kind", ["gloo", "host_staged"])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_every_dtype_and_any_count_arrives_where_it_belongs(on_ranks, kind, world_size) -> None:
    for rank, results in enumerate(on_ranks(programs.exchange, world_size, kind)):
        for case in ("uneven", "one rank is empty", "only to rank 0", "none"):
            for dtype in programs.DTYPES:
                assert results[f"{case} {dtype}"] == expected(rank, world_size, case)
        assert results["even"] == [[float(sender)] * 3 for sender in range(world_size)]
        assert results["gathered"] == [[[float(r)] * 2] * 2 for r in range(world_size)]
        assert results["scalar"] == list(range(world_size))


def test_sent_bytes_are_those_that_go_to_others(on_ranks) -> None:
    # to the other rank; rows of 2: uneven: rank 0 has 1 + 1 % 4 = 2 for rank 1, rank 1 has
    # 1 + 3 % 4 = 4 for rank 0; "one rank is empty": 0 and 4; "only to rank 0": 0 and 4; none.
    # 8 + 1 + 4 + 2 = 15 bytes over the dtypes, twice for the columns: 30 a row
    # then 12 bytes evenly, 16 gathered, 8 the scalar
    sent = [results["sent"] for results in on_ranks(programs.exchange, 2, "host_staged")]
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
        nccl_group(10)


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


def test_priority_and_policy_are_set_on_the_group_and_not_in_the_environment(monkeypatch) -> None:
    monkeypatch.delenv("NCCL_CTA_POLICY", raising=False)
    options = nccl_options(
        fake_module(by_group=True), high_priority=True, zero_cta=True, timeout_s=7
    )
    assert options.is_high_priority_stream is True
    assert options.config.cta_policy == 2
    assert options._timeout.total_seconds() == 7
    assert "NCCL_CTA_POLICY" not in programs.os.environ


def test_a_torch_without_the_policy_is_asked_by_the_environment(monkeypatch) -> None:
    monkeypatch.setenv("NCCL_CTA_POLICY", "")
    nccl_options(fake_module(by_group=False), high_priority=False, zero_cta=False)
    assert programs.os.environ["NCCL_CTA_POLICY"] == ""
    nccl_options(fake_module(by_group=False), high_priority=False, zero_cta=True)
    assert programs.os.environ["NCCL_CTA_POLICY"] == "2"
