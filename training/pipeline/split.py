"""As prioritised, and the backward pass in two: the colliding rows travel under compute, too.

After the activation gradients have reached the embeddings, everything the next forward pass needs
of the tables can be on its way: colliding gradients, their update, colliding rows. Meanwhile the
weight gradients are computed, in the order of the forward pass; each bucket's sum over ranks starts
when it is ready and is waited for just before the bucket's layers run again.

    loop      forward N | activation gradients N | weight gradients N, bucket by bucket
    urgent                                       | colliding gradients N, apply, colliding rows N+1
    deferred  ids N+1, marks, exclusive rows N+1 | dense N, bucket by bucket
              (and under the next forward pass)  | exclusive gradients N, apply

All deferrable traffic goes through one lane in pieces of about five milliseconds, one in flight: a
second process group alone is no priority, since bytes already in the kernel go first.

When it pays: with forward F, activation gradients A, weight gradients W, colliding gradients and
rows of C bytes, all traffic of S bytes, a rate of b bytes/s and a latency l, a step takes
max(F + A + W, F + A + C/b + l, S/b). The urgent chain must fit into W, all bytes into the compute;
beyond that only fewer bytes help.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from analytics.errors import ConfigError
from training.comm.reduce import ordered_sum
from training.comm.transport import Transport
from training.embeddings.exchange import Exchange, Request, Split
from training.pipeline.dense import Backward, Bucket, DenseSide
from training.pipeline.lanes import Lanes
from training.pipeline.rows_ahead import Future, RowsAhead
from training.pipeline.step import Schedule, StepResult
from training.pipeline.workload import Batch
from training.recorder import StepRecorder


class Outstanding:
    """A bucket whose sum over ranks is on its way."""

    def __init__(
        self,
        future: Future[Tensor],
        arrival_ns: int,
        global_targets: int,
        settings: list[dict[str, Any]],
    ) -> None:
        self.future = future
        self.settings = settings  # the optimiser's, at the end of the step it belongs to
        self.arrival_ns = arrival_ns
        self.global_targets = global_targets


class SplitRefusedError(ConfigError):
    """A model whose backward pass cannot be taken apart; raised on every rank alike."""


class SplitBackward(Schedule):
    """The urgent chain under the weight gradients, the dense sums under the next forward pass."""

    name = "split"

    def __init__(
        self, exchange: Exchange, dense: DenseSide, lanes: Lanes, recorder: StepRecorder
    ) -> None:
        super().__init__(exchange, dense, lanes, recorder)
        self._rows = RowsAhead(exchange, lanes, recorder)
        self._outstanding: dict[Bucket, Outstanding] = {}
        self._is_agreed = False
        self._is_forward = False
        self.held_bytes = 0  # the most that a step has held for its weight gradients so far
        self.weights_share = 0.0  # of the last step's own work, computing weight gradients
        self._handles = [
            # first of all hooks: one that makes a weight from others must find them updated
            layer.register_forward_pre_hook(self._before_layer(bucket), prepend=True)
            for bucket in dense.buckets
            for layer in bucket.layers
        ]

    def step(self, batch: Batch, following: Batch | None) -> StepResult:
        """One step; its dense update ends in the forward pass of the next."""
        recorder, dense = self._recorder, self._dense
        next_T = None if following is None else following.row_ids
        ready, coming = self._rows.begin(batch.row_ids, next_T)
        for bucket in dense.buckets:
            if batch.num_targets == 0 or dense.must_be_whole(bucket):
                self._finish(bucket)
        begin_ns = time.monotonic_ns()
        self._is_forward = True
        with recorder.work():
            backward = dense.forward_and_first_pass(ready.rows_T, batch)
        self._is_forward = False
        self.held_bytes = max(self.held_bytes, backward.held_bytes)
        first_ns = time.monotonic_ns() - begin_ns
        self._finish_all()  # of layers that this forward pass did not need
        self._agree(backward)
        split = self._rows.compared(coming)
        arrival_ns = time.monotonic_ns()
        chain = self._urgent_chain(ready.request, split, backward.gradient_T)
        self._weight_gradients(backward, batch)
        second_ns = time.monotonic_ns() - arrival_ns
        self.weights_share = second_ns / (first_ns + second_ns)
        if split is not None:
            self._rows.defer(ready.request, split, backward.gradient_T, dense.num_updates)
        with recorder.wait("rows", arrival_ns=arrival_ns, label="colliding"):
            colliding_T = chain.result()
        if coming is not None:
            self._rows.keep(coming, colliding_T)
        dense.num_updates += 1
        return StepResult(
            batch=batch,
            local_loss_sum=backward.loss_sum,
            num_rows_ahead=ready.num_rows_ahead,
            sent_bytes=self._lanes.tell(recorder),
        )

    def settle(self) -> None:
        """Finish the dense update and the exclusive gradients."""
        self._finish_all()
        self._rows.settle()
        super().settle()

    def forget(self) -> None:
        """Drop the coming batch's rows."""
        self._rows.forget()

    def close(self) -> None:
        """Take the hooks off the model."""
        for handle in self._handles:
            handle.remove()

    def _agree(self, backward: Backward) -> None:
        """Until some rank has compared the backward passes: all ranks go on, or none. A collective.

        Raises SplitRefusedError when this model's backward pass cannot be taken apart; nothing has
        been updated then.
        """
        if self._is_agreed and backward.problem is not None:  # of a rank that had no target before
            raise ConfigError(backward.problem)
        if self._is_agreed:
            return
        transport = self._lanes.urgent.transport
        flags = torch.tensor(
            [backward.problem is not None, self._dense.is_checked or backward.problem is not None],
            dtype=torch.uint8,
        )
        with self._recorder.wait("dense", label="agreement"):
            flag_R2 = transport.all_gather(flags.to(transport.device)).cpu()
        if bool(flag_R2[:, 0].any()):
            raise SplitRefusedError(
                backward.problem or "Another rank found that the schedule 'split' cannot be used."
            )
        self._is_agreed = bool(flag_R2[:, 1].any())

    def _urgent_chain(
        self, running: Request, split: Split | None, gradient_T: list[Tensor]
    ) -> Future[list[Tensor]]:
        """Colliding gradients, their update, and the rows that come of it, on the urgent lane."""
        exchange, update = self._exchange, self._dense.num_updates
        part = self._rows.first_part(running, split)

        def chain(transport: Transport) -> list[Tensor]:
            applied_T = exchange.send_gradients(transport, part, running, gradient_T)
            exchange.apply(part, applied_T, update)
            return [] if split is None else exchange.send_rows(transport, split.colliding_rows)

        return self._lanes.urgent.submit(chain)

    def _weight_gradients(self, backward: Backward, batch: Batch) -> None:
        """Bucket by bucket in the order of the forward pass; each sum starts when it can."""
        for bucket in self._dense.buckets:
            with self._recorder.work():
                gradient = backward.weight_gradient(bucket)
            arrival_ns = time.monotonic_ns()
            future = self._lanes.deferred.submit(self._summing(gradient))
            self._outstanding[bucket] = Outstanding(
                future, arrival_ns, batch.global_targets, bucket.settings()
            )
        backward.release()

    def _summing(self, gradient: Tensor) -> Callable[[Transport], Tensor]:
        """The sum over ranks in pieces; how it is cut changes no bit."""
        pieces = torch.split(gradient, max(1, self._lanes.chunk_bytes // gradient.element_size()))
        return lambda transport: torch.cat([ordered_sum(transport, piece) for piece in pieces])

    def _before_layer(self, bucket: Bucket) -> Callable[[nn.Module, object], None]:
        def finish(module: nn.Module, inputs: object) -> None:
            del module, inputs
            if self._is_forward:  # not when a checkpoint runs a layer again in a backward pass
                self._finish(bucket)

        return finish

    def _finish(self, bucket: Bucket) -> None:
        """Wait for the bucket's sum and update its parameters."""
        outstanding = self._outstanding.pop(bucket, None)
        if outstanding is None:
            return
        with self._recorder.wait("dense", arrival_ns=outstanding.arrival_ns, label=bucket.label):
            gradient = outstanding.future.result()
        with self._recorder.work():
            if outstanding.global_targets:
                settings = outstanding.settings
                bucket.update_with(settings, gradient, outstanding.global_targets)

    def _finish_all(self) -> None:
        for bucket in self._dense.buckets:
            self._finish(bucket)
