"""SASRec on jagged sequences: causal attention without a padded position anywhere.

Shape letters: N events of all sequences of a rank, one after another; B sequences; L events of one
sequence; D embedding_dim; H heads; K negatives a sequence; U distinct embedding rows of the batch.

Source: Kang and McAuley 2018 (SASRec), with cosine scores and a temperature as in Meta's
generative-recommenders (there called L2-normalised sampled softmax). Attention's back ends are in
training/attention.py.

Under `autocast_for("bf16", ...)` the products of the blocks run in bf16. Explicitly in fp32, so
that the CPU's autocast, which has a shorter list of such operations, agrees with CUDA's: the
residual stream with its dropout, every layer norm, and the loss from the last norm on. A cosine in
bf16 is off by up to 2^-9, divided by a temperature of 0.05 that is 0.04 of a logit.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.attention import attend
from training.config import ModelConfig
from training.jagged import JaggedBatch, positions

__all__ = ["Block", "JaggedBatch", "SASRec", "autocast_for"]


def autocast_for(precision: str, device: torch.device) -> torch.autocast:
    """The context of a forward pass in this precision, one of config.PRECISIONS.

    Parameters, their gradients and what leaves the model stay fp32; bf16 needs no loss scaling.
    """
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


class Block(nn.Module):
    """Pre-norm causal attention and feed-forward, each on a residual branch."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.embedding_dim
        self.num_heads = config.num_heads
        self.attention = config.attention
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.ffn_norm = nn.LayerNorm(width)
        self.ffn_in = nn.Linear(width, config.ffn_dim)
        self.ffn_out = nn.Linear(config.ffn_dim, width)

    def attend(self, x_ND: Tensor, lengths: tuple[int, ...]) -> Tensor:
        """Attention within each sequence; shape (N, D)."""
        num_events, width = x_ND.shape
        qkv = self.qkv(self.attention_norm(x_ND))
        heads = (num_events, 3, self.num_heads, width // self.num_heads)
        q_NHd, k_NHd, v_NHd = qkv.view(heads).unbind(1)
        mixed_NHd = attend(self.attention, q_NHd, k_NHd, v_NHd, lengths)
        projected: Tensor = self.project(mixed_NHd.reshape(num_events, width))
        return projected

    def feed(self, x_ND: Tensor) -> Tensor:
        """Feed-forward of each event; shape (N, D)."""
        fed: Tensor = self.ffn_out(functional.gelu(self.ffn_in(self.ffn_norm(x_ND))))
        return fed


class SASRec(nn.Module):
    """The dense part of the model; item rows come from outside, from the sharded table."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.positions = nn.Embedding(config.max_length, config.embedding_dim)
        nn.init.normal_(self.positions.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_blocks))
        self.final_norm = nn.LayerNorm(config.embedding_dim)

    @property
    def num_dropout_sites(self) -> int:
        """Places where dropout acts: the input and both branches of every block."""
        return 1 + 2 * self.config.num_blocks

    def encode(
        self,
        rows_ND: Tensor,
        lengths: tuple[int, ...],
        keep_SND: Tensor | None = None,
        kept_scale: float = 1.0,
        begins: tuple[int, ...] | None = None,
    ) -> Tensor:
        """Hidden state after each event, knowing only this and earlier events; shape (N, D).

        rows_ND: item rows of the events; lengths: events of each sequence, summing to N >= 1;
        begins: the position of each sequence's first event in its history; None: 0 for all.
        """

        def drop(x_ND: Tensor, site: int) -> Tensor:
            x_ND = x_ND.float()  # what a block adds to the residual stream may be bf16
            return x_ND if keep_SND is None else x_ND * keep_SND[site] * kept_scale

        position_N = positions(lengths, begins, rows_ND.device)
        x_ND = drop(rows_ND + self.positions(position_N), 0)
        for index, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            x_ND = x_ND + drop(block.attend(x_ND, lengths), 1 + 2 * index)
            x_ND = x_ND + drop(block.feed(x_ND), 2 + 2 * index)
        hidden_ND: Tensor = self.final_norm(x_ND)
        return hidden_ND

    def loss_sum(self, rows_UD: Tensor, batch: JaggedBatch, kept_scale: float) -> Tensor:
        """Sum over all targets of the sampled softmax loss of the next item; a scalar.

        rows_UD: the batch's distinct item rows. A negative that equals the target is left out.
        """
        rows_ND = rows_UD[batch.inputs_N]
        hidden_ND = self.encode(rows_ND, batch.lengths, batch.keep_SND, kept_scale, batch.begins)
        if batch.num_targets is not None:  # from here on N counts targets
            parts = torch.split(hidden_ND, list(batch.lengths))
            hidden_ND = torch.cat(
                [h_LD[len(h_LD) - n :] for h_LD, n in zip(parts, batch.num_targets, strict=True)]
            )
        with torch.autocast(hidden_ND.device.type, enabled=False):
            return self._sampled_softmax(hidden_ND.float(), rows_UD, batch)

    def _sampled_softmax(self, hidden_ND: Tensor, rows_UD: Tensor, batch: JaggedBatch) -> Tensor:
        """Sum of the losses of these hidden states, one a target; all in fp32."""
        lengths = batch.lengths if batch.num_targets is None else batch.num_targets
        hidden_ND = functional.normalize(hidden_ND, dim=1)
        unit_UD = functional.normalize(rows_UD, dim=1)
        target_N1 = (hidden_ND * unit_UD[batch.targets_N]).sum(1, keepdim=True)
        negative_NK = torch.cat(
            [
                (h_LD @ unit_UD[rows_K].T).masked_fill(rows_K[None, :] == t_L[:, None], -torch.inf)
                for h_LD, rows_K, t_L in zip(
                    torch.split(hidden_ND, list(lengths)),
                    batch.negatives_BK,
                    torch.split(batch.targets_N, list(lengths)),
                    strict=True,
                )
            ]
        )
        logits = torch.cat([target_N1, negative_NK], dim=1) / self.config.temperature
        return (torch.logsumexp(logits, dim=1) - logits[:, 0]).sum()
