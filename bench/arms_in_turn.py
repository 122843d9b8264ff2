"""Runs arms in turn on real ranks and tells where their steps went: a bench's ranks and its door.

    python bench/arms_in_turn.py SPEC.json FOLDER       what a rank runs; `run` starts it

All arms train on the same global batches, block by block; the order rotates from block to block;
the first block warms up: it is trained, not counted. Each rank writes FOLDER/rank-R.json.

Ranks either have a host each, joined by a limited link (link.py: two namespaces), or share this
host's loopback device and are held as if over a link (training/comm/paced.py): then it says
"emulated".
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # run as a script, the packages lie beside it

from bench.link import rank_environment, run_ranks, two_hosts  # noqa: E402

TORCHREC = "torchrec"
REFERENCE = "synchronous"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
    """How the batches are placed and what trains on them."""

    name: str
    schedule: str  # one of ours, or TORCHREC
    placement: str = "even"  # of the placements that the bench has drawn


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
    """What the ranks run."""

    model: str  # emulated or real
    arms: tuple[Arm, ...]
    num_blocks: int
    block_steps: int
    chunk_bytes: int
    link: str | None = None  # emulate this link on the loopback device
    # of the emulated model, fields of EmulatedLoad; of each placement the factors of compute
    load: dict[str, Any] = dataclasses.field(default_factory=dict)
    scale_PSR: dict[str, list[list[float]]] = dataclasses.field(default_factory=dict)
    # of the real model: events of each history, sequences of a global batch
    lengths: tuple[int, ...] = ()
    batch_sequences: int = 0

    @property
    def num_steps(self) -> int:
        """Of each arm, with the warm-up."""
        return (self.num_blocks + 1) * self.block_steps


def run(
    spec: Spec, *, num_ranks: int = 2, rate: str | None = None, namespaces: bool, timeout_s: float
) -> list[dict[str, Any]]:
    """What each rank found. With namespaces, over a real link of `rate` (None: unlimited).

    From here on a SIGTERM ends ranks and removes namespaces, as an interrupt does.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.json"
        path.write_text(json.dumps(dataclasses.asdict(spec)), encoding="utf-8")
        argv = [sys.executable, str(Path(__file__)), str(path), folder]
        if namespaces:
            assert num_ranks == 2, "a link joins two hosts"
            with two_hosts(rate) as hosts:
                hosts.run(argv, timeout_s=timeout_s)
        else:
            _on_loopback(argv, num_ranks, timeout_s)
        return [
            json.loads((Path(folder) / f"rank-{rank}.json").read_text(encoding="utf-8"))
            for rank in range(num_ranks)
        ]


def _on_loopback(argv: list[str], num_ranks: int, timeout_s: float) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environments = [
        rank_environment(rank, num_ranks, "127.0.0.1", port) | {"GLOO_SOCKET_IFNAME": "lo"}
        for rank in range(num_ranks)
    ]
    run_ranks([argv] * num_ranks, environments, timeout_s=timeout_s)


def turns(arms: Sequence[Arm], block: int) -> list[Arm]:
    """The arms in the order of a block's turn, rotated by one from block to block."""
    first = block % len(arms)
    return [*arms[first:], *arms[:first]]


def reference_of(arm: Arm, spec: Spec) -> Arm:
    """The first of our arms that must end as this one does.

    The emulated model's rows do not depend on the placement; the real model's steps do.
    """
    return next(
        other
        for other in spec.arms
        if other.schedule != TORCHREC
        and (spec.model == "emulated" or other.placement == arm.placement)
    )


def train(spec: Spec, folder: Path) -> None:
    """A rank: train all arms and write what was found."""
    import torch.distributed as dist

    from bench.training_arms import EngineArm, largest_difference, transport_factory
    from training.planning.collisions import collision_share
    from training.ranks import joined

    with joined(120) as group:
        rank, world_size = dist.get_rank(group), dist.get_world_size(group)
        task, batches_P = _prepared(spec, rank, world_size)
        transport = transport_factory(spec.link)
        trained: dict[str, Any] = {}
        for arm in spec.arms:
            if arm.schedule == TORCHREC:
                from bench.sparsedist import SparseDistArm

                trained[arm.name] = SparseDistArm(task)
            else:
                trained[arm.name] = EngineArm(
                    task, arm.schedule, chunk_bytes=spec.chunk_bytes, transport=transport
                )
        steps: dict[str, list[list[dict[str, float]]]] = {arm.name: [] for arm in spec.arms}
        for block in range(spec.num_blocks + 1):
            mine = slice(block * spec.block_steps, (block + 1) * spec.block_steps)
            for arm in turns(spec.arms, block):
                dist.barrier(group)
                steps[arm.name].append(trained[arm.name].run(batches_P[arm.placement][mine]))
        references = {arm.name: reference_of(arm, spec) for arm in spec.arms}
        difference: dict[str, dict[str, float]] = {}
        for arm in spec.arms:
            reference = references[arm.name]
            if arm.schedule == TORCHREC:
                found = _from_torchrec(trained[arm.name], trained[reference.name], folder, group)
            else:
                of_reference = trained[reference.name].state()
                found = largest_difference(of_reference, trained[arm.name].state())
            found["loss"] = max(
                abs(a["loss"] - b["loss"])
                for ours, theirs in zip(steps[arm.name], steps[reference.name], strict=True)
                for a, b in zip(ours, theirs, strict=True)
            )
            difference[arm.name] = found
        rows = [[batch.row_ids[0].tolist() for batch in batches] for batches in batches_P.values()]
        compared = {name: reference.name for name, reference in references.items()}
        found = {"steps": steps, "difference": difference, "compared_with": compared}
        (folder / f"rank-{rank}.json").write_text(json.dumps(found), encoding="utf-8")
        (folder / f"rows-{rank}.json").write_text(json.dumps(rows[0]), encoding="utf-8")
        dist.barrier(group)
        if rank == 0:
            of_ranks = [
                json.loads((folder / f"rows-{r}.json").read_text(encoding="utf-8"))
                for r in range(world_size)
            ]
            share = collision_share(
                [list(itertools.chain(*rows)) for rows in zip(*of_ranks, strict=True)]
            )
            found["collision_share"] = share
            (folder / "rank-0.json").write_text(json.dumps(found), encoding="utf-8")
        for made in trained.values():
            made.close()


def _prepared(spec: Spec, rank: int, world_size: int) -> tuple[Any, dict[str, list[Any]]]:
    """(the task, this rank's batches of each placement)."""
    import numpy as np

    from bench.emulated import EmulatedLoad, batches
    from bench.training_arms import emulated_task, real_batches, real_config, real_task

    placements = dict.fromkeys(arm.placement for arm in spec.arms)
    if spec.model == "emulated":
        drawn: dict[str, list[Any]] = {}
        for name in placements:
            scale = np.array(spec.scale_PSR[name]) if spec.scale_PSR else None
            load = EmulatedLoad(**spec.load, scale_SR=scale)
            drawn[name] = list(
                batches(load, rank=rank, world_size=world_size, num_steps=spec.num_steps)
            )
        return emulated_task(EmulatedLoad(**spec.load)), drawn
    config = real_config(max(spec.lengths))
    length_N = np.array(spec.lengths)
    found = {}
    for name in placements:
        plan = plan_of(name, length_N, world_size, spec.batch_sequences)
        made = real_batches(config, length_N, plan, name, rank=rank)
        found[name] = made[: spec.num_steps]
        assert len(found[name]) == spec.num_steps, "too few histories were drawn"
    return real_task(config), found


def plan_of(placement: str, length_N: Any, num_ranks: int, batch_sequences: int) -> Any:
    """The plan of a placement by its name here: even, random, or balanced.

    even: histories as they come, for those of one length. balanced: longest first with free counts,
    giants cut, looking four batches ahead.
    """
    from bench.length_laws import COST
    from training.config import ArmConfig
    from training.planning.plan import make_plan

    is_balanced = placement == "balanced"
    arm = ArmConfig(
        name=placement,
        placement="lpt_free" if is_balanced else "random_equal",
        schedule="synchronous",
    )
    return make_plan(
        length_N,
        COST,
        (arm,),
        num_ranks=num_ranks,
        batch_sequences=batch_sequences,
        num_epochs=1,
        seed=1,
        lookahead_batches=4 if is_balanced else 1,
        split_giants=is_balanced,
    )


def _from_torchrec(torchrec: Any, ours: Any, folder: Path, group: Any) -> dict[str, float]:
    """Largest differences between TorchRec's arm and one of ours; rows travel by the disk."""
    import torch
    import torch.distributed as dist

    from bench.training_arms import largest_difference

    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    (table,) = ours.engine.tables
    torch.save(
        {"table/weight": table.weight_MD, "table/accumulator": table.state["accumulator"]},
        folder / f"ours-{rank}.pt",
    )
    dist.barrier(group)
    theirs = torchrec.rows()
    first = theirs.pop("first_row")
    num_rows = table.config.num_rows
    whole = {name: torch.empty((num_rows, *rows.shape[1:])) for name, rows in theirs.items()}
    for other in range(world_size):
        ids = torch.from_numpy(table.placement.local_ids(other))
        for name, value in torch.load(folder / f"ours-{other}.pt").items():
            whole[name][ids] = value.view(len(ids), *whole[name].shape[1:])
    last = first + len(theirs["table/weight"])
    ours_here = {name: value[first:last] for name, value in whole.items()}
    dense = {n: v for n, v in ours.state().items() if n.startswith("dense/")}
    return largest_difference(ours_here | dense, theirs | torchrec.dense())


def read_spec(path: Path) -> Spec:
    """A spec as `run` has written it."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    raw["arms"] = tuple(Arm(**arm) for arm in raw["arms"])
    raw["lengths"] = tuple(raw["lengths"])
    return Spec(**raw)


if __name__ == "__main__":
    train(read_spec(Path(sys.argv[1])), Path(sys.argv[2]))
