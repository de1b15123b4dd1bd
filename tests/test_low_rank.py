"""The bounds of low-rank approximations: right hooks keep to them, an error just above is found, wrong hooks too."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from commhooks.conformance.expected import Float64Array, FloatArray, low_rank
from commhooks.conformance.low_rank import full_rank
from commhooks.conformance.low_rank import low_rank as low_rank_gradients

SHAPE, STEPS = (24, 16), 5

Orthogonalize = Callable[[FloatArray], FloatArray]


def qr(P: FloatArray) -> FloatArray:
    """Householder's way."""
    return np.linalg.qr(P)[0]


def gram_schmidt(P: FloatArray) -> FloatArray:
    """Column by column, once."""
    P = P.copy()
    for column in range(P.shape[1]):
        P[:, column] /= np.linalg.norm(P[:, column])
        P[:, column + 1 :] -= np.outer(P[:, column], P[:, column] @ P[:, column + 1 :])
    return P


def cholesky(P: FloatArray) -> FloatArray:
    """By the Cholesky factor of P^T P."""
    return np.asarray(np.linalg.solve(np.linalg.cholesky(P.T @ P), P.T).T, P.dtype)


def run(
    gradients: list[FloatArray], rank: int, orthogonalize: Orthogonalize, fault: str = "", seed: int = 0
) -> tuple[list[Float64Array], list[Float64Array], list[float]]:
    """PowerSGD with warm start and error feedback in float32; gives the results, B and A."""
    world_size = len(gradients[0])
    errors = np.zeros((world_size, *SHAPE), np.float32)
    Q = np.random.default_rng(seed).standard_normal((SHAPE[1], rank)).astype(np.float32)
    results = []
    for step in gradients:
        M = step.reshape(world_size, *SHAPE) + errors
        Q = qr(Q)
        P = orthogonalize(sum(m @ Q / np.float32(world_size) for m in M))
        if fault == "P is not orthogonal":
            P = sum(m @ Q / np.float32(world_size) for m in M)
            P = P / np.linalg.norm(P, axis=0)
        Q = sum(m.T @ P / np.float32(1 if fault == "sum of Q" else world_size) for m in M)
        out = P @ Q.T
        errors = M - out
        errors *= {"no feedback": 0, "feedback doubled": 2, "feedback negative": -1}.get(fault, 1)
        if fault == "redraws":
            Q = np.random.default_rng(seed + len(results) + 1).standard_normal(Q.shape).astype(np.float32)
        results.append(np.asarray(out, np.float64))
    matrices = [step.reshape(world_size, *SHAPE) for step in gradients]
    B = low_rank.targets([np.asarray(one, np.float64).mean(axis=0) for one in matrices], results, feedback=True)
    return results, B, low_rank.magnitudes(matrices, results, feedback=True)


def excesses(
    gradients: list[FloatArray], rank: int, orthogonalize: Orthogonalize, fault: str = "", seed: int = 0
) -> dict[str, float]:
    """The largest error of each kind, in parts of its bound."""
    results, B, A = run(gradients, rank, orthogonalize, fault, seed)
    setting = low_rank.Setting.of(SHAPE, rank, len(gradients[0]), "float32")
    found = {"projection": 0.0, "rank": 0.0, "prediction": 0.0}
    for step, out in enumerate(results):
        residual = float(np.linalg.norm(out.T @ (B[step] - out)))
        found["projection"] = max(found["projection"], residual / setting.projection_bound(A[step], step))
        beyond = float(low_rank.singular_values(out)[rank])
        found["rank"] = max(found["rank"], beyond / setting.rounding_bound(A[step], step))
        if step > 0:
            predicted = low_rank.predict(setting, B[step], results[step - 1], A[step], A[step - 1], step)
            assert predicted is not None
            error = float(np.linalg.norm(out - predicted.value)) / predicted.bound
            found["prediction"] = max(found["prediction"], error)
    return found


def of_full_rank(world_size: int) -> list[FloatArray]:
    """The gradients of some steps."""
    return [full_rank(world_size, SHAPE, seed=seed) for seed in range(STEPS)]


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("rank", [1, 2, 4])
@pytest.mark.parametrize("orthogonalize", [qr, gram_schmidt, cholesky])
def test_right_hooks_keep_to_the_bounds(world_size: int, rank: int, orthogonalize: Orthogonalize) -> None:
    """Three ways to orthogonalize, with several first Qs each, are far inside of the bounds."""
    for seed in range(10):
        assert max(excesses(of_full_rank(world_size), rank, orthogonalize, seed=seed).values()) < 0.5


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("sum of Q", "projection"),
        ("no feedback", "projection"),
        ("feedback doubled", "projection"),
        ("feedback negative", "projection"),
        ("P is not orthogonal", "projection"),
        ("redraws", "prediction"),
    ],
)
def test_wrong_hooks_are_far_outside(fault: str, kind: str) -> None:
    """Each fault goes beyond the bound that it shows in, by a factor of 10 at the least."""
    assert excesses(of_full_rank(2), 2, qr, fault)[kind] > 10


@pytest.mark.parametrize("own", [1, 2, 4])
def test_first_result_is_exact(own: int) -> None:
    """Means of a low rank come out within the bound for an unknown first Q, which is a small part of them."""
    gradients = [low_rank_gradients(2, SHAPE, own)]
    setting = low_rank.Setting.of(SHAPE, own, 2, "float32")
    for seed in range(200):
        results, B, A = run(gradients, own, qr, seed=seed)
        assert np.linalg.norm(results[0] - B[0]) < setting.exact_bound(A[0])
        assert setting.exact_bound(A[0]) < 0.1 * np.linalg.norm(B[0])


def test_result_of_another_rank_is_found() -> None:
    """One singular value more, of a thousandth of the others, is beyond what rounding leaves there."""
    results, _, A = run(of_full_rank(2), 3, qr)
    setting = low_rank.Setting.of(SHAPE, 2, 2, "float32")
    assert low_rank.singular_values(results[0])[2] > 100 * setting.rounding_bound(A[0])
