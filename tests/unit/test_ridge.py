"""Ridge regression over what is there or not, against a dense solution of its normal equations."""

from __future__ import annotations

import numpy as np
import pytest

from mktune.search.ridge import Incidence, Vector, ridge

SHRINK = 0.5


def problem(height: int, width: int, seed: int = 0) -> tuple[Incidence, Vector, Vector]:
    """A matrix, its dense form, and values that a mean and its columns explain but for some noise."""
    draw = np.random.default_rng(seed)
    there = draw.random((height, width)) < 0.3
    rows, columns = np.nonzero(there)
    values = 3.0 + there @ draw.normal(0.0, 0.1, width) + draw.normal(0.0, 0.01, height)
    return Incidence(rows, columns, height, there.sum(axis=0)), there - there.mean(axis=0), values


def solution(dense: Vector, values: Vector) -> Vector:
    penalty = SHRINK * np.eye(dense.shape[1])
    return np.asarray(np.linalg.solve(dense.T @ dense + penalty, dense.T @ values))


def test_products_are_those_of_the_dense_matrix() -> None:
    matrix, dense, values = problem(30, 12)
    vector, centred = np.arange(12.0), values - values.mean()
    assert matrix.times(vector) == pytest.approx(dense @ vector)
    assert matrix.transposed_times(centred) == pytest.approx(dense.T @ centred)
    assert matrix.squares == pytest.approx((dense**2).sum(axis=0))


@pytest.mark.parametrize(("height", "width"), [(200, 40), (40, 200), (1, 5)], ids=["tall", "wide", "one row"])
def test_repeated_calls_come_to_the_solution(height: int, width: int) -> None:
    matrix, dense, values = problem(height, width)
    found = np.zeros(width)
    for _ in range(40):
        found, left = ridge(matrix, values, SHRINK, found)
    assert found == pytest.approx(solution(dense, values), abs=1e-3)
    assert left == pytest.approx(values - values.mean() - dense @ found)


def loss(dense: Vector, values: Vector, found: Vector) -> float:
    left = values - values.mean() - dense @ found
    return float(left @ left + SHRINK * (found @ found))


def test_after_a_row_more_one_call_goes_most_of_the_way() -> None:
    matrix, dense, values = problem(300, 60)
    before, exact = solution(dense[:-1], values[:-1]), solution(dense, values)
    found, _ = ridge(matrix, values, SHRINK, before)
    least = loss(dense, values, exact)
    assert loss(dense, values, found) - least < 0.1 * (loss(dense, values, before) - least)


def test_columns_that_no_row_or_every_row_has_stay_at_nothing() -> None:
    matrix = Incidence(np.array([0, 1, 1]), np.array([0, 0, 1]), 2, np.array([2, 1, 0]))
    found, left = ridge(matrix, np.array([3.0, 4.0]), SHRINK, np.zeros(3))
    assert found == pytest.approx([0.0, 0.5, 0.0])  # x of least (0.5 - x / 2)^2 * 2 + x^2 / 2
    assert left == pytest.approx([-0.25, 0.25])
