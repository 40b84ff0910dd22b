"""Numbers that stand for bits: what differs anywhere, by any bit, has another."""

import pytest

torch = pytest.importorskip("torch")

from mktune.measure.digests import digests  # noqa: E402


def digest(tensor):
    return digests([{"t": tensor}])[0]["t"]


@pytest.mark.parametrize("words", [1, 3, 1000, 1 << 16, (1 << 16) + 1, 200_001])
def test_every_bit_counts_wherever_it_stands(words):
    draw = torch.Generator().manual_seed(words)
    tensor = torch.randint(-(1 << 31), 1 << 31, (words,), generator=draw, dtype=torch.int64).to(torch.int32)
    found = {digest(tensor)}
    for place in {0, words // 2, words - 1}:
        for bit in (0, 15, 30, 31):
            other = tensor.clone()
            other[place] ^= torch.tensor(1 << bit, dtype=torch.int64).to(torch.int32)
            found.add(digest(other))
    assert len(found) == 1 + 4 * len({0, words // 2, words - 1})
    assert digest(tensor.clone()) == digest(tensor)


def test_words_that_change_places_are_other_bits():
    for size in (16, 1 << 18):
        tensor = torch.arange(size, dtype=torch.int32)
        rolled = tensor.roll(1 << 16 if size > 1 << 16 else 1)
        assert digest(rolled) != digest(tensor)


def test_signs_of_zero_and_kinds_of_nan_are_told_apart():
    tensor = torch.zeros(4, dtype=torch.bfloat16)
    nan = torch.full((4,), float("nan"), dtype=torch.bfloat16)
    poison = torch.full((8,), 0xFF, dtype=torch.uint8).view(torch.bfloat16)
    assert len({digest(tensor), digest(-tensor), digest(nan), digest(poison)}) == 4


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.bfloat16, torch.int64, torch.uint8])
def test_any_dtype_and_number_of_bytes(kind):
    tensor = torch.arange(7 * 3).to(kind).view(7, 3)
    other = tensor.clone()
    other[6, 2] = 0
    assert digest(other) != digest(tensor)


def test_layers_and_names_are_kept_and_nothing_is_nothing():
    a, b = torch.ones(5), torch.zeros(5)
    first, second = digests([{"a": a, "b": b}, {"a": b}])
    assert first["a"] != first["b"] == second["a"]
    assert digests([]) == []
    assert digests([{}]) == [{}]
