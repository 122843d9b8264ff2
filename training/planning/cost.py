"""What a sequence costs a rank, and how that is learned from measured step times.

Time of a rank's step = t_step + sum over its sequences of (c0 + a L + b L^2), all coefficients
>= 0, fitted by least squares; t_step is the same on every rank and stays outside balance.
Definition: the cost of a sequence, docs/definitions.md.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CostModel:
    """Seconds of one rank as a function of its sequences' lengths."""

    t_step_s: float  # once a step, whatever the rank holds
    c0_s: float  # once a sequence
    a_s: float  # once an event
    b_s: float  # once an event pair
    source: str  # where the coefficients come from: a calibration or a named device
    residual_share: float = 0.0  # mean |measured - fitted| / mean measured

    def sequence_cost_s(self, lengths: npt.ArrayLike) -> Floats:
        """Cost of each sequence [s]; lengths: shape (N,), events; result: shape (N,)."""
        length_N = np.asarray(lengths, dtype=np.float64)
        return self.c0_s + self.a_s * length_N + self.b_s * length_N**2


def fit_cost_model(
    num_sequences: npt.ArrayLike,
    sum_lengths: npt.ArrayLike,
    sum_squares: npt.ArrayLike,
    step_s: npt.ArrayLike,
    *,
    source: str,
) -> CostModel:
    """Least squares with coefficients >= 0.

    One row a measured step: sequences, their summed lengths [events], summed squared lengths, and
    the time it took [s]; each of shape (S,), S >= 4.
    Raises ValueError when there are fewer than four steps or a time is not positive.
    """
    columns = [np.ones_like(np.asarray(step_s, dtype=np.float64))]
    columns += [np.asarray(c, dtype=np.float64) for c in (num_sequences, sum_lengths, sum_squares)]
    design_SC = np.stack(columns, axis=1)
    time_S = np.asarray(step_s, dtype=np.float64)
    if len(time_S) < 4:
        raise ValueError(f"{len(time_S)} measured steps cannot fix four coefficients")
    if not (time_S > 0).all():
        raise ValueError("every measured step time must be positive")
    # relative errors: a step of 1 ms tells as much as one of 1 s
    coefficients = _non_negative_least_squares(design_SC / time_S[:, None], np.ones_like(time_S))
    residual = np.abs(design_SC @ coefficients - time_S).mean() / time_S.mean()
    t_step, c0, a, b = (float(c) for c in coefficients)
    return CostModel(
        t_step_s=t_step, c0_s=c0, a_s=a, b_s=b, source=source, residual_share=float(residual)
    )


def _non_negative_least_squares(design_SC: Floats, target_S: Floats) -> Floats:
    """The best x >= 0, by trying every subset of the few columns; shape (C,)."""
    num_columns = design_SC.shape[1]
    scale_C = np.abs(design_SC).max(axis=0)
    scale_C[scale_C == 0] = 1.0
    best_C, best_error = np.zeros(num_columns), float(target_S @ target_S)
    for size in range(1, num_columns + 1):
        for chosen in itertools.combinations(range(num_columns), size):
            part = (design_SC / scale_C)[:, chosen]
            solution, *_ = np.linalg.lstsq(part, target_S, rcond=None)
            if (solution < 0).any():
                continue
            error = float(((part @ solution - target_S) ** 2).sum())
            if error < best_error * (1 - 1e-12):
                best_error = error
                best_C = np.zeros(num_columns)
                best_C[list(chosen)] = solution / scale_C[list(chosen)]
    return best_C


# Stated coefficients for a host that cannot calibrate: FLOPs of the model divided by a published
# rate. HSTU, 8 layers, hidden 1024, 4 heads x 256: projections 2*1024*(4+1)*1024 FLOPs an event
# and layer, causal attention 2*1024 FLOPs an event pair and layer (half of 4*1024), forward and
# backward together three times the forward. Rate: 30 % of the H100's 989 TFLOP/s in bf16, near
# NVIDIA recsys-examples' best jagged run (31.4 % MFU). Shares depend on a : b, not on the rate.
_HSTU_RATE = 0.30 * 989e12
NAMED_COSTS: dict[str, CostModel] = {
    "hstu-8x1024@h100": CostModel(
        t_step_s=0.0,
        c0_s=0.0,
        a_s=3 * 8 * 2 * 1024 * 5 * 1024 / _HSTU_RATE,
        b_s=3 * 8 * 2 * 1024 / _HSTU_RATE,
        source="HSTU 8 layers x 1024 on H100, FLOPs at 30 % of 989 TFLOP/s (stated, not measured)",
    ),
}
