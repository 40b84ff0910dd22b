"""Least squares over what is there or not, with a penalty for large coefficients: ridge regression.

By conjugate gradients (Hestenes and Stiefel 1952), preconditioned by the diagonal. They go on from coefficients that
are given, so that a few steps are enough where a row was added.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

STEPS = 5
"""At most."""
CLOSE = 1e-6
"""Ends them earlier: what is left of the gradient, to what it is without any coefficient."""

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Incidence:
    """A matrix of ones and zeros, each column less its mean: so no mean of the values need be sought.

    rows, columns  [ones]: where they stand
    height         rows
    in_column      [columns]: ones of each
    """

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    height: int
    in_column: NDArray[np.int64]

    def times(self, vector: Vector) -> Vector:
        """[columns] → [rows]."""
        return _less_mean(_sums(self.rows, vector[self.columns], self.height))

    def transposed_times(self, vector: Vector) -> Vector:
        """[rows] → [columns]; the vector's own mean is nothing."""
        return _sums(self.columns, vector[self.rows], len(self.in_column))

    @property
    def squares(self) -> Vector:
        """[columns]: of each, summed."""
        return self.in_column * (1.0 - self.in_column / self.height)


def ridge(matrix: Incidence, values: Vector, shrink: float, start: Vector) -> tuple[Vector, Vector]:
    """Coefficients nearer than `start` to the least |values - mean - matrix · them|² + shrink · |them|²; and what is
    left of the values.

    start  [columns]
    """
    diagonal = matrix.squares + shrink

    def size_of(gradient: Vector) -> float:
        return float(gradient @ (gradient / diagonal))

    found, centred = start.copy(), _less_mean(values)
    left = centred - matrix.times(start)
    gradient = matrix.transposed_times(left) - shrink * found
    step, size = gradient / diagonal, size_of(gradient)
    enough = CLOSE**2 * size_of(matrix.transposed_times(centred))
    for _ in range(STEPS):
        if size <= enough:
            break
        change = matrix.times(step)
        length = size / float(change @ change + shrink * (step @ step))
        found += length * step
        left -= length * change
        gradient = matrix.transposed_times(left) - shrink * found
        before, size = size, size_of(gradient)
        step = gradient / diagonal + size / before * step
    return found, left


def _sums(places: NDArray[np.int64], weights: Vector, count: int) -> Vector:
    return np.asarray(np.bincount(places, weights, count), np.float64)


def _less_mean(vector: Vector) -> Vector:
    return np.asarray(vector - vector.mean())
