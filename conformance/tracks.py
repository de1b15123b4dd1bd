"""One compressed matrix, followed over the steps of a run, and what its results are expected to be."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from commhooks.conformance.cells import ClauseFailure
from commhooks.conformance.expected import Float64Array, FloatArray, low_rank
from commhooks.conformance.low_rank import Run

# A wrong hook is far off; so a check whose bound is above this part of the magnitude would say too little.
TELLING = 0.2


class Track:
    """One matrix from the first compressed step on. Compressed steps are counted from 0.

    Args:
        run: The run.
        rank: The approximation rank; lowered to the matrix.
        start: The step of the run in which compression begins for this matrix.
        feedback: Whether there is error feedback.
        bucket: Number of the bucket.
        part: Number of the parameter in the bucket; None for the whole bucket as one square matrix.
        wire: dtype of P and Q, where a wrapper makes it another than that of the buckets.
        steps: How many steps to look at; all by default.
    """

    def __init__(
        self,
        run: Run,
        rank: int,
        start: int,
        feedback: bool,
        bucket: int = 0,
        part: int | None = 0,
        wire: str | None = None,
        steps: int | None = None,
    ) -> None:
        self.run, self.start, self.bucket, self.feedback = run, start, bucket, feedback
        gradients = run.steps[start][bucket]
        if part is None:
            self.part = slice(0, gradients.values.shape[1])
            side = len(low_rank.square_of(gradients.values[0]))
            self.shape = (side, side)
        else:
            self.part = gradients.part(part)
            rows = gradients.shapes[part][0]
            self.shape = (rows, (self.part.stop - self.part.start) // rows)
        self.rank = min(rank, *self.shape)
        self.setting = low_rank.Setting.of(self.shape, rank, len(run.members), wire or run.dtype)
        self.count = (len(run.steps) if steps is None else start + steps) - start

    def matrix(self, flat: FloatArray) -> Float64Array:
        """The matrix, padded with zeros where the bucket is one square, out of a flat buffer."""
        return low_rank.square_of(flat[self.part]) if self._is_square else self._reshaped(flat)

    def out(self, step: int, rank: int | None = None) -> Float64Array:
        """The result of a compressed step."""
        return self.matrix(self.run.values(self.start + step, self.bucket, rank))

    @functools.cached_property
    def gradients(self) -> list[Float64Array]:
        """The matrices of all ranks, by compressed step, each of shape ``(W, n, m)``."""
        buffers = [self.run.gradients(self.start + step, self.bucket) for step in range(self.count)]
        return [np.stack([self.matrix(flat) for flat in ranks]) for ranks in buffers]

    @functools.cached_property
    def B(self) -> list[Float64Array]:
        """What each step approximates."""
        means = [ranks.mean(axis=0) for ranks in self.gradients]
        return low_rank.targets(means, [self.out(step) for step in range(self.count)], self.feedback)

    @functools.cached_property
    def A(self) -> list[float]:
        """The magnitude of each step that bounds are in proportion to."""
        results = [self.out(step) for step in range(self.count)]
        return low_rank.magnitudes([*self.gradients], results, self.feedback)

    def expect_projection(self, *steps: int) -> None:
        """Expects each result to be B projected onto the span of its own columns."""
        for step in self._chosen(steps):
            self._expect_projection(step, self.B[step])

    def expect_low_rank(self, *steps: int) -> None:
        """Expects each result to have the approximation rank, and no smaller error than the best one of that rank."""
        for step in self._chosen(steps):
            if self.rank < min(self.shape):
                self._expect_rank(step)
            self._expect_no_better(step, self.B[step], low_rank.best_error(self.B[step], self.rank))

    def expect_exact(self, *steps: int) -> None:
        """Expects each result to equal B, whose rank must be at most the approximation rank."""
        for step in self._chosen(steps):
            self.expect_near(step, self.B[step], self.setting.exact_bound(self.A[step], step), "B, whose rank is low")

    def expect_predicted(self, *steps: int, before: Float64Array | None = None) -> None:
        """Expects each result to be the one that warm start determines.

        Args:
            steps: Compressed steps from 1 on; by default all of these.
            before: A matrix that has the row space of the result before, if that is known from elsewhere.
        """
        predicted = 0
        for step in steps or range(1, self.count):
            known = self.out(step - 1) if before is None else before
            prediction = low_rank.predict(self.setting, self.B[step], known, self.A[step], self.A[step - 1], step)
            if prediction is None:
                continue
            predicted += 1
            self.expect_near(step, prediction.value, prediction.bound, "what warm start leads to")
        if not predicted:
            raise ClauseFailure(
                "rank",
                f"no result has the full approximation rank {self.rank}, so no step begins where warm start should",
                expected=f"results of rank {self.rank}",
                found=f"singular values {low_rank.singular_values(self.out(0)).round(6).tolist()} in the first step",
                place=self.run.place(self.start, self.bucket, self.run.members[0]),
                holds="False",
            )

    def expect_near(self, step: int, expected: Float64Array, bound: float, what: str) -> None:
        """Expects a result within a distance of ``expected``, leaving out the padding."""
        if self._is_square:
            expected = low_rank.square_of(expected.ravel()[: self.part.stop - self.part.start])
        if not bound <= TELLING * max(self.A[step], 1e-300) and np.linalg.norm(expected) > 0:
            raise RuntimeError(f"step {step}: a bound of {bound:.3g} says nothing about a matrix of {self.A[step]:.3g}")
        self._expect(
            step,
            lambda out: float(np.linalg.norm(out - expected)),
            lambda: f"np.linalg.norm(out - {_literal(expected)})",
            bound,
            f"not {what}: its distance",
            "value",
        )

    def expect_error(self, step: int, allowed: float, what: str) -> None:
        """Expects an error that is no larger than another one."""
        B = self.B[step]
        self._expect(
            step,
            lambda out: float(np.linalg.norm(B - out)),
            lambda: f"np.linalg.norm({_literal(B)} - out)",
            allowed,
            f"further from B than {what}: its error",
            "value",
        )

    def distance(self, step: int, other: Float64Array) -> float:
        """How far the result of a step is from another matrix, in parts of B."""
        return float(np.linalg.norm(self.out(step) - other) / np.linalg.norm(self.B[step]))

    def _expect_projection(self, step: int, B: Float64Array) -> None:
        self._expect(
            step,
            lambda out: float(np.linalg.norm(out.T @ (B - out))),
            lambda: f"np.linalg.norm(out.T @ ({_literal(B)} - out))",
            self.setting.projection_bound(self.A[step], step),
            "not the projection of B onto its own column space: |out^T (B - out)|",
            "projection",
        )

    def _expect_rank(self, step: int) -> None:
        self._expect(
            step,
            lambda out: float(low_rank.singular_values(out)[self.rank]),
            lambda: f"np.linalg.svd(out, compute_uv=False)[{self.rank}]",
            self.setting.rounding_bound(self.A[step], step),
            f"of more than rank {self.rank}: singular value {self.rank + 1}",
            "rank",
        )

    def _expect_no_better(self, step: int, B: Float64Array, best: float) -> None:
        self._expect(
            step,
            lambda out: best - float(np.linalg.norm(B - out)),
            lambda: f"{best!r} - np.linalg.norm({_literal(B)} - out)",
            2 * self.setting.rounding_bound(self.A[step], step),
            "better than the best approximation of its rank: the difference of their errors",
            "rank",
        )

    @property
    def _is_square(self) -> bool:
        return self.shape[0] * self.shape[1] != self.part.stop - self.part.start or self.shape[0] == self.shape[1]

    def _reshaped(self, flat: FloatArray) -> Float64Array:
        return np.asarray(flat[self.part], np.float64).reshape(self.shape)

    def _chosen(self, steps: Sequence[int]) -> Sequence[int]:
        return steps or range(self.count)

    def _expect(
        self,
        step: int,
        measure: Callable[[Float64Array], float],
        formula: Callable[[], str],
        bound: float,
        what: str,
        kind: str,
    ) -> None:
        """Expects a number that is measured on the result, on every rank, to be at most ``bound``."""
        number = self.start + step
        for rank in self.run.differing(number, self.bucket):
            found = measure(self.out(step, rank))
            if found <= bound:
                continue
            in_script = _from_flat(self.part, self.shape)
            raise ClauseFailure(
                kind,
                f"rank {rank}, step {number} (compressed step {step}), bucket {self.bucket}: the result for the matrix "
                f"of shape {self.shape} is {what} is {found:.3g}, |B| is {np.linalg.norm(self.B[step]):.3g}",
                expected=f"at most {bound:.3g}",
                found=f"{found:.3g}",
                bound=f"{bound:.3g}",
                excess=f"{found / bound:.3g} times the bound" if bound > 0 else "",
                place=self.run.place(number, self.bucket, rank),
                holds=f"(lambda out: {formula()} <= {bound!r})({in_script})",
            )


def _literal(matrix: Float64Array) -> str:
    return f"np.array({matrix.ravel().tolist()!r}).reshape({matrix.shape})"


def _from_flat(part: slice, shape: tuple[int, int]) -> str:
    taken = f"np.array(found[{part.start}:{part.stop}], np.float64)"
    if shape[0] * shape[1] == part.stop - part.start:
        return f"{taken}.reshape({shape})"
    return f"np.resize(np.append({taken}, np.zeros({shape[0] * shape[1]})), {shape})"
