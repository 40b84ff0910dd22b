"""Shapes: M from requests and tokens, the default tokens per request, and what is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mktune.errors import InputError
from mktune.shape import MAX_KV, MAX_M, Shape


@given(st.integers(1, MAX_M), st.integers(8, MAX_KV))
def test_tokens_per_request_are_gcd_of_m_and_8(m: int, kv: int) -> None:
    shape = Shape.from_m(m, kv)
    assert shape.tokens_per_request == math.gcd(m, 8)
    assert shape.m == m
    assert shape.kv == kv


@given(st.integers(1, 16), st.integers(1, 16))
def test_m_is_requests_times_tokens(requests: int, tokens: int) -> None:
    assert Shape(requests, tokens, 8192).m == requests * tokens
    assert Shape.from_m(requests * tokens, 8192, tokens) == Shape(requests, tokens, 8192)


def test_the_articles_case() -> None:
    assert Shape.from_m(16, 8192) == Shape(2, 8, 8192)


@pytest.mark.parametrize("m", [0, -1, MAX_M + 1, 2**40, True, 8.0, "8", None])
def test_m_that_is_no_row_count_is_refused(m: object) -> None:
    with pytest.raises(InputError, match="M = "):
        Shape.from_m(m, 8192)


@pytest.mark.parametrize("kv", [0, -1, MAX_KV + 1, True, 8192.0, "8192", None])
def test_kv_that_is_no_capacity_is_refused(kv: object) -> None:
    with pytest.raises(InputError):
        Shape.from_m(8, kv)


@pytest.mark.parametrize("tokens", [0, -8, 3, 32, True, 8.0, "8"])
def test_tokens_per_request_must_divide_m(tokens: object) -> None:
    with pytest.raises(InputError, match="must divide M = 16"):
        Shape.from_m(16, 8192, tokens)


def test_tokens_per_request_do_not_exceed_kv() -> None:
    with pytest.raises(InputError, match="exceed KV"):
        Shape.from_m(16, 4, 8)
    assert Shape.from_m(16, 8, 8).kv == 8


@given(st.integers(1, MAX_M), st.integers(8, MAX_KV))
def test_a_plan_claims_more_than_half_of_its_rows_and_every_smaller_context(m: int, kv: int) -> None:
    shape = Shape.from_m(m, kv)
    low, high = shape.served_m
    assert (high, shape.served_kv) == (m, (shape.tokens_per_request, kv))
    assert 2 * low > m >= 2 * (low - 1)


def test_shapes_sort_and_hash() -> None:
    shapes = [Shape(2, 8, 8192), Shape(1, 8, 8192), Shape(1, 8, 4096)]
    assert sorted(shapes) == [shapes[2], shapes[1], shapes[0]]
    assert len({*shapes, Shape(2, 8, 8192)}) == 3
