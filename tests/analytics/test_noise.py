"""What the warehouse tells of gradient noise, against values on paper and the planning formulas."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analytics import schema
from tests.analytics.paper_warehouse import run, step, warehouse_of
from training.planning.noise_scale import NoiseScale, noise_and_signal, samples_ratio, steps_ratio


def told(number: int, rank: int, targets: int, own: float | None, whole: float) -> schema.FactStep:
    return step(
        number, 1.0, step=number, rank=rank, num_targets=targets, num_sequences=2,
        rank_gradient_norm_sq=own if targets else None, gradient_norm_sq=whole,
    )  # fmt: skip


def query(sql: str, *records) -> list[tuple]:
    with warehouse_of(*records) as con:
        return con.execute(sql).fetchall()


STEPS = "SELECT step, num_targets, noise, signal FROM step_noise ORDER BY step"


def test_two_ranks_of_unequal_size_on_paper():
    # g_0 = 2 over one target, g_1 = 0 over three: g = 0.5; (1 x 4 + 0 - 4 x 0.25) / 1 = 3
    pair = told(0, 0, 1, 4.0, 0.25), told(0, 1, 3, 0.0, 0.25)
    assert query(STEPS, run(world_size=2), *pair) == [(0, 4, 3.0, 0.25 - 3 / 4)]


def test_a_rank_without_targets_is_left_out_and_one_that_told_nothing_leaves_no_estimate():
    three = run(world_size=3)
    pair = told(0, 0, 1, 4.0, 0.25), told(0, 1, 3, 0.0, 0.25)
    assert query(STEPS, three, *pair, told(0, 2, 0, None, 0.25)) == [(0, 4, 3.0, -0.5)]
    assert query(STEPS, three, *pair) == []  # the third rank's step is not recorded
    unmeasured = step(0, 1.0, step=0, rank=2, num_targets=5, num_sequences=1, gradient_norm_sq=0.25)
    assert query(STEPS, three, *pair, unmeasured) == []
    alone = told(0, 0, 1, 4.0, 4.0), told(0, 1, 0, None, 4.0)
    assert query(STEPS, run(world_size=2), *alone) == []  # one sample size tells no noise


NORMS = st.floats(0.01, 100.0)
MEASURED = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 40), NORMS, NORMS, NORMS), min_size=1, max_size=6
)


@settings(max_examples=30, deadline=None)
@given(MEASURED)
def test_a_run_tells_what_the_planning_formulas_tell(steps):
    expected, records, targets = NoiseScale(), [run(world_size=2)], 0
    for number, (first, second, own, other, whole) in enumerate(steps):
        expected.add(*noise_and_signal([first, second], [own, other], whole))
        targets += first + second
        records += [told(number, 0, first, own, whole), told(number, 1, second, other, whole)]
    [found] = query(
        "SELECT num_noise_steps, noise_scale_targets, noise_scale_sequences, batch_sequences, "
        "steps_ratio, samples_ratio FROM run_noise", *records,
    )  # fmt: skip
    assert found[0] == len(steps)
    if expected.samples is None:
        assert found[1] is None
        return
    sequences = expected.samples * 4 * len(steps) / targets
    assert found[1:] == pytest.approx(
        (expected.samples, sequences, 4, steps_ratio(4, sequences), samples_ratio(4, sequences))
    )


def test_a_run_of_before_has_no_noise_scale():
    assert query("SELECT * FROM run_noise", run(world_size=2), step(0, 1.0)) == []
