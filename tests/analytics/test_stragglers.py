"""Who the others waited for, and whether it is the rank or its data."""

import dataclasses

import pytest

from analytics import measures, schema

PIPELINE = "20261130T140000Z-1a2b"
RUN = f"{PIPELINE}-baseline"


def ranking(filled):
    return {row["rank"]: row for row in measures.straggler_ranking(filled.con, RUN)}


def work(paper, rank, step, busy_s, cost_s, **changes):
    """A step of a rank that works so long; what is left of 4 s it waits for others."""
    wait_s = 4.0 - busy_s
    values = dict(
        busy_s=busy_s, cpu_s=busy_s, predicted_cost_s=cost_s, straggler_wait_s=wait_s,
        exposed_comm_s=0.0, exposed_comm_total_s=wait_s, data_wait_s=0.0, unattributed_s=0.0,
    )  # fmt: skip
    return paper.step("baseline", rank, step, **(values | changes))


def collective(rank, step, place, last_rank, wait_s, kind="rows", **changes):
    began = 1_796_047_200_000_000_000 + step * 4 * 10**9 + place
    values = dict(
        run_id=RUN, pipeline_id=PIPELINE, attempt=0, rank=rank, step=step, collective=place,
        kind=kind, label="", process_group=None, arrived_unix_ns=began,
        last_arrived_unix_ns=began, began_unix_ns=began, duration_s=wait_s + 0.25,
        exposed_s=wait_s + 0.25, straggler_wait_s=wait_s, wire_s=0.25, last_rank=last_rank,
        sent_bytes=100,
    )  # fmt: skip
    return schema.FactCollective(**(values | changes))


def test_a_rank_that_is_slow_at_the_same_cost_is_persistent(paper, filled):
    steps = [work(paper, r, s, 3.0 if r == 0 else 1.5, 1.5) for s in range(12) for r in range(2)]
    filled.write([paper.run("baseline"), *steps])
    rows = ranking(filled)
    assert rows[0]["basis"] == "steps"
    assert (rows[0]["num_last"], rows[0]["last_share"]) == (12, 1.0)
    # by chance: (1/2)^12
    assert rows[0]["chance_share"] == pytest.approx(2**-12)
    # the other rank waited 2.5 s in each step; what rank 0 waited was not for itself
    assert rows[0]["waited_for_s"] == pytest.approx(12 * 2.5)
    assert rows[0]["cost_ratio"] == pytest.approx(2.0)
    assert rows[0]["straggler_kind"] == "persistent"
    assert (rows[1]["num_last"], rows[1]["straggler_kind"]) == (0, None)
    assert rows[1]["chance_share"] == pytest.approx(1.0)


def test_a_rank_that_is_last_where_it_holds_the_most_work_is_data_driven(paper, filled):
    # rank 0 has the longer histories in every step, and takes no longer for them
    steps = [work(paper, r, s, 3.0 if r == 0 else 1.5, 3.0 if r == 0 else 1.5)
             for s in range(12) for r in range(2)]  # fmt: skip
    filled.write([paper.run("baseline"), *steps])
    row = ranking(filled)[0]
    assert (row["num_last"], row["num_last_by_cost"]) == (12, 12)
    assert row["cost_ratio"] == pytest.approx(1.0)
    assert row["straggler_kind"] == "data_driven"


def test_ranks_that_take_turns_with_the_longest_data_are_data_driven_each(paper, filled):
    steps = [
        work(paper, r, s, 3.0 if s % 2 == r else 1.5, 3.0 if s % 2 == r else 1.5)
        for s in range(20)
        for r in range(2)
    ]
    filled.write([paper.run("baseline"), *steps])
    rows = ranking(filled)
    # ten of twenty is what chance gives; ten of ten with the larger cost is (1/2)^10
    for row in rows.values():
        assert row["num_last"] == 10
        assert row["chance_share"] > 0.5
        assert row["chance_by_cost_share"] == pytest.approx(2**-10)
        assert row["cost_correlation"] == pytest.approx(1.0)
        assert row["straggler_kind"] == "data_driven"


@pytest.mark.parametrize("costs", [(1.5, 1.5, 1.5), (3.0, 1.5, 3.0), (1.5, 1.49, 1.49)])
def test_most_work_is_held_by_one_rank_and_beyond_noise(paper, filled, costs):
    # rank 0 is last in every step; all hold as much, two hold the most, or it holds 0.4 % more
    steps = [
        dataclasses.replace(work(paper, 0, s, 2.02 if r == 0 else 2.0, costs[r]), rank=r)
        for s in range(20)
        for r in range(3)
    ]
    filled.write([paper.run("baseline", world_size=3), *steps])
    row = ranking(filled)[0]
    assert (row["num_last"], row["num_last_by_cost"]) == (20, 0)
    assert row["straggler_kind"] == "undecided"


def test_work_is_told_in_one_unit_for_a_whole_run(paper, filled):
    # rank 0 takes twice as long for as many events; half of its steps have a predicted cost
    steps = [
        work(paper, r, s, 3.0 if r == 0 else 1.5, 100.0 if r == s % 2 else None, num_tokens=50)
        for s in range(12)
        for r in range(2)
    ]
    filled.write([paper.run("baseline"), *steps])
    rows = ranking(filled)
    assert rows[0]["work_basis"] == "num_tokens"
    assert rows[0]["cost_ratio"] == pytest.approx(2.0)
    assert rows[0]["straggler_kind"] == "persistent"


def test_own_time_is_told_in_one_unit_for_a_whole_run(paper, filled):
    # CPU time is half of the work and lacks in a step: added up with it, rank 0 would be 1.5 times
    # as slow; in time alone it is twice as slow
    steps = [
        work(paper, r, s, 3.0 if r == 0 else 1.5, 1.5, cpu_s=None if s == r == 0 else 0.75)
        for s in range(12)
        for r in range(2)
    ]
    filled.write([paper.run("baseline"), *steps])
    assert ranking(filled)[0]["cost_ratio"] == pytest.approx(2.0)


def test_work_that_nobody_told_decides_nothing(paper, filled):
    steps = [
        work(paper, r, s, 3.0 if r == 0 else 1.5, None, num_tokens=None)
        for s in range(12)
        for r in range(2)
    ]
    filled.write([paper.run("baseline"), *steps])
    row = ranking(filled)[0]
    assert (row["work_basis"], row["cost_ratio"]) == (None, None)
    assert row["is_beyond_chance"]
    assert row["straggler_kind"] == "undecided"


def test_few_steps_decide_nothing(paper, filled):
    filled.write(paper.arm("baseline"))
    row = ranking(filled)[0]
    # four of four is 1/16, which is not beyond chance
    assert row["chance_share"] == pytest.approx(1 / 16)
    assert row["straggler_kind"] == "undecided"


def test_arrivals_at_collectives_tell_more_than_the_longest_work(paper, filled):
    # by its work rank 0 is longest, but rank 1 arrives last at most collectives
    steps = [work(paper, r, s, 3.0 if r == 0 else 1.5, 1.5) for s in range(2) for r in range(2)]
    waits = [
        collective(0, 0, 0, 1, 0.5), collective(1, 0, 0, 1, 0.0),
        collective(0, 0, 1, 0, 0.0), collective(1, 0, 1, 0, 0.2),
        collective(0, 1, 0, 1, 0.5), collective(1, 1, 0, 1, 0.0),
    ]  # fmt: skip
    filled.write([paper.run("baseline"), *steps, *waits])
    rows = ranking(filled)
    assert rows[1]["basis"] == "collectives"
    assert (rows[0]["num_last"], rows[1]["num_last"]) == (0, 2)
    assert rows[1]["waited_for_s"] == pytest.approx(1.0)
    assert rows[0]["waited_for_s"] == pytest.approx(0.2)
    assert rows[1]["waited_for_share"] == pytest.approx(1.0 / 1.2)


def test_ranks_that_were_waited_for_as_long_have_no_last_among_them(paper, filled):
    # 0.1 + 0.2 s for one and 0.3 s for the other are the same, whatever floats make of it
    steps = [work(paper, r, s, 1.5, 1.5) for s in range(2) for r in range(2)]
    waits = [
        collective(1, 0, 0, 0, 0.1), collective(0, 0, 0, 0, 0.0),
        collective(1, 0, 1, 0, 0.2), collective(0, 0, 1, 0, 0.0),
        collective(0, 0, 2, 1, 0.3), collective(1, 0, 2, 1, 0.0),
        collective(0, 1, 0, 1, 0.5), collective(1, 1, 0, 1, 0.0),
    ]  # fmt: skip
    filled.write([paper.run("baseline"), *steps, *waits])
    rows = ranking(filled)
    assert [rows[r]["num_last"] for r in range(2)] == [0, 1]
    assert [rows[r]["waited_for_s"] for r in range(2)] == pytest.approx([0.3, 0.8])


def test_steps_whose_collectives_nobody_recorded_are_not_counted(paper, filled):
    # two of twelve steps were recorded: rank 1 is last in both, not in two of twelve
    steps = [work(paper, r, s, 1.5, 1.5) for s in range(12) for r in range(2)]
    waits = [collective(r, s, 0, 1, 0.5 * (1 - r)) for s in (3, 7) for r in range(2)]
    filled.write([paper.run("baseline"), *steps, *waits])
    row = ranking(filled)[1]
    assert (row["num_steps_told"], row["num_last"], row["last_share"]) == (2, 2, 1.0)
    assert row["chance_share"] == pytest.approx(1 / 4)


def test_a_tie_has_no_last_rank_and_one_rank_no_ranking(paper, filled):
    steps = [work(paper, r, s, 2.0, 1.0) for s in range(4) for r in range(2)]
    filled.write([paper.run("baseline"), *steps])
    filled.write([paper.run("balanced", world_size=1), paper.step("balanced", 0, 0)])
    assert [row["num_last"] for row in ranking(filled).values()] == [0, 0]
    assert measures.straggler_ranking(filled.con, f"{PIPELINE}-balanced") == []


def test_exposure_is_told_by_kind_and_split_only_where_arrivals_are_known(paper, filled):
    unsplit = dict(straggler_wait_s=None, wire_s=None, last_arrived_unix_ns=None)
    waits = [
        collective(0, 0, 0, 1, 0.5), collective(1, 0, 0, 1, 0.0),
        collective(0, 0, 1, None, 0.75, kind="dense", **unsplit),
        collective(1, 0, 1, None, 0.25, kind="dense", **unsplit),
    ]  # fmt: skip
    steps = [paper.step("baseline", r, s) for s in range(2) for r in range(2)]
    filled.write([paper.run("baseline"), *steps, *waits])
    dense, rows = measures.collective_exposure(filled.con, RUN)
    # 1 s and 0.5 s of the two windows of 4 s of the one step that has collectives
    assert (dense["kind"], dense["exposed_s"], dense["exposed_share"]) == ("dense", 1.5, 1.5 / 8)
    assert (dense["straggler_wait_s"], dense["wire_s"], dense["unsplit_comm_s"]) == (
        None, None, 1.5,
    )  # fmt: skip
    assert (rows["num_collectives"], rows["num_rank_collectives"]) == (1, 2)
    assert (rows["straggler_wait_s"], rows["wire_s"], rows["unsplit_comm_s"]) == (0.5, 0.5, None)
    assert rows["sent_bytes"] == 200
