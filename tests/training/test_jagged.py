from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from training.config import ModelConfig
from training.feed import RankBatch
from training.jagged import JaggedBatch, moved, positions
from training.model import SASRec

CPU = torch.device("cpu")
CONFIG = ModelConfig(embedding_dim=8, num_blocks=2, num_heads=2, ffn_dim=8, max_length=32)
NUM_ROWS = 30


def made(
    lengths: tuple[int, ...],
    num_targets: tuple[int, ...] | None = None,
    begins: tuple[int, ...] | None = None,
) -> JaggedBatch:
    """A batch whose every entry can be told from the others."""
    total = sum(lengths)
    rng = np.random.default_rng(3)
    targets = total if num_targets is None else sum(num_targets)
    return JaggedBatch(
        lengths=lengths,
        inputs_N=torch.arange(total) % NUM_ROWS,
        targets_N=(torch.arange(targets) + 7) % NUM_ROWS,
        negatives_BK=torch.from_numpy(rng.integers(0, NUM_ROWS, (len(lengths), 5))),
        keep_SND=torch.from_numpy(rng.random((5, total, 8)) > 0.2),
        num_targets=num_targets,
        begins=begins,
    )


@pytest.mark.parametrize(
    ("lengths", "num_parts", "wanted"),
    [
        # 12 events, half is 6; ends are 10, 11, 12: 10 is nearest
        ((10, 1, 1), 2, [(10,), (1, 1)]),
        # ends 1, 2, 12: 2 is 4 away, 12 is 6 away
        ((1, 1, 10), 2, [(1, 1), (10,)]),
        # thirds of 9 events are 3 and 6; ends are 2, 4, 5, 7, 9: 2 and 4 tie, the first is taken,
        # then 5 and 7 do
        ((2, 2, 1, 2, 2), 3, [(2,), (2, 1), (2, 2)]),
        ((5, 5), 3, [(5,), (5,)]),  # fewer sequences than parts
        ((7,), 4, [(7,)]),
        ((3, 4), 1, [(3, 4)]),
        ((), 2, []),
    ],
)
def test_parts_are_whole_sequences_of_nearly_even_events(
    lengths: tuple[int, ...], num_parts: int, wanted: list[tuple[int, ...]]
) -> None:
    assert [part.lengths for part in made(lengths).split(num_parts)] == wanted


def test_a_part_keeps_what_belongs_to_its_sequences() -> None:
    batch = made((4, 2, 6), num_targets=(1, 2, 3), begins=(0, 5, 9))
    first, second = batch.split(2)
    assert (first.lengths, second.lengths) == ((4, 2), (6,))
    assert (first.num_targets, second.num_targets) == ((1, 2), (3,))
    assert (first.begins, second.begins) == ((0, 5), (9,))
    assert second.inputs_N.tolist() == [6, 7, 8, 9, 10, 11]
    assert second.targets_N.tolist() == [10, 11, 12]  # those after the first three, plus 7
    assert torch.equal(second.negatives_BK, batch.negatives_BK[2:])
    assert batch.keep_SND is not None and second.keep_SND is not None
    assert torch.equal(second.keep_SND, batch.keep_SND[:, 6:])


@pytest.mark.parametrize("num_parts", [1, 2, 3, 9])
@pytest.mark.parametrize("context", [False, True])
def test_losses_and_gradients_of_the_parts_sum_to_those_of_the_whole(
    num_parts: int, context: bool
) -> None:
    torch.manual_seed(0)
    model = SASRec(CONFIG)
    lengths = (9, 1, 4, 12, 2, 2)
    batch = made(lengths, (3, 1, 4, 5, 1, 2), (2, 0, 0, 20, 0, 1)) if context else made(lengths)
    rows_UD = torch.randn(NUM_ROWS, 8, requires_grad=True)
    whole = model.loss_sum(rows_UD, batch, 1.25)
    (wanted,) = torch.autograd.grad(whole, rows_UD)
    losses = [model.loss_sum(rows_UD, part, 1.25) for part in batch.split(num_parts)]
    found = sum(torch.autograd.grad(loss, rows_UD)[0] for loss in losses)
    assert sum(loss.item() for loss in losses) == pytest.approx(whole.item(), rel=1e-6)
    assert isinstance(found, torch.Tensor)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_a_batch_is_not_cut_into_no_parts() -> None:
    with pytest.raises(ValueError, match="cannot be cut into 0 parts; ask for 1"):
        made((3,)).split(0)


def test_positions_begin_where_the_window_does() -> None:
    assert positions((2, 3), (0, 7), CPU).tolist() == [0, 1, 7, 8, 9]
    assert positions((2, 3), None, CPU).tolist() == [0, 1, 0, 1, 2]


def on_rank(batch: JaggedBatch) -> RankBatch:
    return RankBatch(
        step=0,
        row_ids_U=torch.arange(NUM_ROWS),
        batch=batch,
        num_targets=len(batch.targets_N),
        global_targets=len(batch.targets_N),
    )


def test_what_is_on_the_device_is_not_copied() -> None:
    batch = on_rank(made((3, 2)))
    assert batch.to(CPU) is batch
    assert batch.batch.to(CPU) is batch.batch
    assert moved(batch.row_ids_U, CPU) is batch.row_ids_U


def test_every_tensor_of_a_batch_is_moved() -> None:
    # "meta" is a device without memory that every torch has
    batch = on_rank(made((3, 2), (1, 2), (0, 4))).to(torch.device("meta"))
    tensors = [batch.row_ids_U, *vars(batch.batch).values()]
    devices = {x.device.type for x in tensors if isinstance(x, torch.Tensor)}
    assert devices == {"meta"}
    assert (batch.batch.lengths, batch.batch.begins) == ((3, 2), (0, 4))
    bare = dataclasses.replace(made((3, 2)), keep_SND=None).to(torch.device("meta"))
    assert bare.keep_SND is None


@pytest.mark.gpu
def test_a_loss_on_a_gpu_is_that_of_the_cpu_and_makes_the_host_wait_nowhere() -> None:
    torch.manual_seed(0)
    model = SASRec(CONFIG)
    batch = made((9, 1, 4), (3, 1, 4), (2, 0, 0))
    rows_UD = torch.randn(NUM_ROWS, 8)
    wanted = model.loss_sum(rows_UD, batch, 1.25).item()
    device = torch.device("cuda", 0)
    on_gpu, rows_UD = model.to(device), rows_UD.to(device)
    on_gpu.loss_sum(rows_UD, batch.to(device), 1.25)  # the first call loads libraries
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = on_gpu.loss_sum(rows_UD, batch.to(device), 1.25)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert found.item() == pytest.approx(wanted, rel=1e-4)
