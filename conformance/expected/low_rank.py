"""What a low-rank approximation of the mean gradient must be, and how far a right hook may be from it.

B is the mean over the ranks of M_i, the gradient of rank i with error feedback plus its error. A right result is P P^T
B with orthonormal columns of P. Nothing here asks how P was found, but for warm start. All norms are those of
Frobenius, u is the unit roundoff of the bucket's dtype, and A is the mean over the ranks of |M_i|, the largest so far.

**The bounds.** For matrices of n rows, m columns and approximation rank r, on W ranks, in compressed step t from 0:

1. A product of inner dimension k has an error of at most k u times the product of the norms (1.01 k u, exactly, while
   k u < 0.01). So M^T P is wrong by n u A sqrt(r), its mean by (W + 1) u A sqrt(r) more, P Q^T by r u A sqrt(r) more,
   and storing each of M, P and Q by 3 u A sqrt(r). An error that is carried on was rounded twice in each step: 2 t u
   A. Since sqrt(r) <= r, all that together is at most C u A with C = (n + m + W + 2 t + 10) r. It bounds |E| in out =
   P Q^T + E and |F| in Q = B^T P + F. With halves that are accumulated in float32 less is lost, never more.
2. P of one column is a vector of length 1 to (n + 3) u, which C covers. Of more columns it is orthonormal to a
   multiple of u for QR decomposition, of cond(P) u for Gram-Schmidt, and of cond(P)^2 u for Cholesky. K = 100 allows
   for that: gradients here have condition numbers below 5 on the spaces that count, so those of MQ are below 10.
3. If out = P Q^T + E and Q = B^T P + F then out^T (B - out) = Q (I - P^T P) Q^T - Q F^T + E^T (B - out) - Q P^T E, of
   norm at most 4 K C u A^2 (`projection_bound`). Singular values of out beyond the first r are at most |E|
   (`rounding_bound`), by Weyl's theorem.
4. With warm start P spans B V, V being the row space of the result before. That space is known to E / sigma_r(before);
   so B V is wrong by C u A + A C u A / sigma_r(before), its span by that over sigma_r(B V), and the result by A times
   the latter. (I - P P^T) and P each move once: `predict` doubles it, and adds K C u A.
5. The first Q is unknown, a random matrix. If B has rank k <= r and row space V, what of B is not in the span of P is
   the rounding of MQ, (m + W + 2 t + 6) sqrt(r) u A, over sigma_k(V^T Q). The chance of sigma < s / (k sqrt(m)) is
   about s for a random Q with orthonormal columns. LUCK = 1000 leaves one in a thousand to a hook whose rounding
   errors are all at their bound and add up, and far less to a real one (`exact_bound`).
"""

from dataclasses import dataclass

import numpy as np

from .rounding import Float64Array, FloatArray, float_type

K = 100.0
LUCK = 1000.0


@dataclass(frozen=True)
class Setting:
    """What the bounds depend on.

    Attributes:
        rows: n.
        columns: m.
        rank: The approximation rank r, at most n and m.
        world_size: W.
        unit_roundoff: u of the dtype in which P and Q are.
    """

    rows: int
    columns: int
    rank: int
    world_size: int
    unit_roundoff: float

    @classmethod
    def of(cls, shape: tuple[int, int], rank: int, world_size: int, dtype: str) -> "Setting":
        """The setting for a matrix shape; the rank is lowered to it."""
        return cls(*shape, min(rank, *shape), world_size, float_type(dtype).unit_roundoff)

    def rounding_bound(self, magnitude: float, step: int = 0) -> float:
        """C u A: bounds |E|, |F| and each singular value of the result beyond the approximation rank."""
        count = self.rows + self.columns + self.world_size + 2 * step + 10
        return float(1.01 * count * self.rank * self.unit_roundoff * magnitude)

    def orthogonality_bound(self, magnitude: float, step: int = 0) -> float:
        """K C u A, or C u A for one column: how far the columns of P are from orthonormal, times A."""
        return self.rounding_bound(magnitude, step) * (K if self.rank > 1 else 1.0)

    def projection_bound(self, magnitude: float, step: int = 0) -> float:
        """Bounds |out^T (B - out)|."""
        return 4 * self.orthogonality_bound(magnitude, step) * magnitude

    def exact_bound(self, magnitude: float, step: int = 0) -> float:
        """Bounds |out - B| where the rank of B is at most the approximation rank and Q is random."""
        count = self.columns + self.world_size + 2 * step + 6
        rounding = 1.01 * count * self.rank**0.5 * self.unit_roundoff * magnitude
        return float(self.orthogonality_bound(magnitude, step) + LUCK * self.rank * self.columns**0.5 * rounding)


def targets(means: list[Float64Array], results: list[Float64Array], feedback: bool) -> list[Float64Array]:
    """B of each step: with error feedback the sum of means so far minus the sum of earlier results, else the mean.

    Example:
        >>> [float(B[0]) for B in targets([np.array([3.0])] * 2, [np.array([1.0])] * 2, feedback=True)]
        [3.0, 5.0]
    """
    if not feedback:
        return list(means)
    B = [means[0]]
    for mean, result in zip(means[1:], results, strict=False):
        B.append(B[-1] - result + mean)
    return B


def magnitudes(gradients: list[FloatArray], results: list[Float64Array], feedback: bool) -> list[float]:
    """A of each step: the mean over the ranks of |M_i|, the largest so far.

    Each rank's error is known too: M_i minus the result. It sums up as B does.

    Args:
        gradients: For each step the matrices of all ranks, of shape ``(W, n, m)``.
        results: The result of each step.
        feedback: Whether there is error feedback.
    """
    found = []
    for rank in range(len(gradients[0])):
        own = targets([np.asarray(step[rank], np.float64) for step in gradients], results, feedback)
        found.append([float(np.linalg.norm(M)) for M in own])
    return [float(A) for A in np.maximum.accumulate(np.mean(found, axis=0))]


def singular_values(matrix: Float64Array) -> Float64Array:
    """The singular values, largest first; NaN for a matrix that is not finite."""
    if not np.isfinite(matrix).all():
        return np.full(min(matrix.shape), np.nan)
    return np.asarray(np.linalg.svd(matrix, compute_uv=False))


def best_error(B: Float64Array, rank: int) -> float:
    """The error of the best approximation of that rank (Eckart and Young).

    Example:
        >>> best_error(np.diag([3.0, 2.0, 1.0]), 2)
        1.0
    """
    return float(np.sqrt((singular_values(B)[rank:] ** 2).sum()))


def row_space(matrix: Float64Array, rank: int) -> Float64Array:
    """An orthonormal basis of the row space, one column for each of the largest ``rank`` singular values."""
    return np.asarray(np.linalg.svd(matrix)[2][:rank].T)


def project(B: Float64Array, V: Float64Array) -> Float64Array:
    """B projected onto the span of B V.

    Example:
        >>> project(np.array([[2.0, 1.0], [0.0, 1.0]]), np.array([[1.0], [0.0]])).round(12).tolist()
        [[2.0, 1.0], [0.0, 0.0]]
    """
    U = np.linalg.svd(B @ V, full_matrices=False)[0]
    return np.asarray(U @ (U.T @ B))


@dataclass(frozen=True)
class Prediction:
    """What a step with warm start must give, and how far from it a right hook may be, as a norm."""

    value: Float64Array
    bound: float


def predict(
    setting: Setting, B: Float64Array, before: Float64Array, magnitude: float, before_magnitude: float, step: int = 1
) -> Prediction | None:
    """Predicts the result of a step with warm start from the result before (4 above).

    Args:
        setting: Shape, ranks and dtype.
        B: What is approximated.
        before: The result of the step before, or another matrix with the row space that its Q has.
        magnitude: A of this step.
        before_magnitude: A of the step before.
        step: Number of the compressed step.

    Returns:
        The prediction; None if ``before``, or what it leads to, has not the full approximation rank, or so little of it
        that the bound is above a tenth of A: then nothing can be predicted.
    """
    if not (np.isfinite(B).all() and np.isfinite(before).all()):
        return None
    smallest_before = float(singular_values(before)[setting.rank - 1])
    V = row_space(before, setting.rank)
    smallest = float(singular_values(B @ V)[setting.rank - 1])
    if smallest_before <= 0 or smallest <= 0:
        return None
    error = setting.rounding_bound(magnitude, step)
    moved = error + magnitude * setting.rounding_bound(before_magnitude, step) / smallest_before
    bound = 2 * moved * magnitude / smallest + setting.orthogonality_bound(magnitude, step)
    if bound > 0.1 * magnitude:
        return None
    return Prediction(project(B, V), bound)


def square_of(flat: FloatArray) -> Float64Array:
    """The smallest square matrix that holds a flat buffer row by row, and then zeros.

    Example:
        >>> square_of(np.array([1.0, 2.0, 3.0])).tolist()
        [[1.0, 2.0], [3.0, 0.0]]
    """
    side = int(np.ceil(np.sqrt(len(flat))))
    square = np.zeros(side * side)
    square[: len(flat)] = flat
    return square.reshape(side, side)
