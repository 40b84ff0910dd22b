"""Digests on a GPU: what they are defined as, for any size and place of a tensor."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from mktune.jit.build import build  # noqa: E402
from mktune.measure.digests import KERNEL, PIECE_BYTES, digests  # noqa: E402

_MASK = (1 << 64) - 1


def digest(tensor):
    return digests([{"t": tensor}])[0]["t"] & _MASK


def weight(place):
    z = (place + 1) * 0x9E3779B97F4A7C15 & _MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
    return (z ^ z >> 31) | 1


def defined(tensor):
    data = tensor.reshape(-1).view(torch.uint8).cpu().numpy().tobytes()
    words = (int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4))
    return sum(word * weight(place) for place, word in enumerate(words)) & _MASK


def drawn(size):
    draw = torch.Generator("cuda").manual_seed(size)
    return torch.randint(0, 256, (size,), generator=draw, dtype=torch.uint8, device="cuda")


@pytest.mark.parametrize("arch", ["sm_90a", "sm_103a"])
def test_the_kernel_compiles_without_a_gpu(arch):
    (kernel,) = build([KERNEL], arch)
    assert (kernel.spill_bytes, kernel.stack_bytes) == (0, 0)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [0, 1, 3, 4, 16, 17, 1021, 4096, PIECE_BYTES, PIECE_BYTES + 6, 3 * PIECE_BYTES + 20])
def test_they_are_as_defined(size, device):
    assert digest(drawn(size)) == defined(drawn(size))


@pytest.mark.gpu
@pytest.mark.parametrize("offset", [4, 8, 12, 16, 20])
def test_a_view_that_begins_within_a_tensor_has_the_digest_of_its_own_bits(offset, device):
    whole = drawn(PIECE_BYTES + 64)
    assert digest(whole[offset:]) == defined(whole[offset:])


@pytest.mark.gpu
def test_every_bit_counts_and_equal_bits_are_equal_wherever_they_lie(device):
    tensor = drawn(5 * PIECE_BYTES + 3)
    found = {digest(tensor)}
    places = [0, 1, 2, 3, PIECE_BYTES - 1, PIECE_BYTES, 3 * PIECE_BYTES + 5, len(tensor) - 2, len(tensor) - 1]
    for place in places:
        for bit in (0, 3, 7):
            other = tensor.clone()
            other[place] ^= 1 << bit
            found.add(digest(other))
    assert len(found) == 1 + 3 * len(places)
    assert digest(tensor.clone()) == digest(tensor)


@pytest.mark.gpu
def test_each_tensor_of_each_layer_has_its_own(device):
    first, second, third = drawn(100), drawn(PIECE_BYTES * 2), drawn(8).view(torch.bfloat16)
    found = digests([{"a": first, "b": second}, {"a": second, "c": third}])
    assert [list(layer) for layer in found] == [["a", "b"], ["a", "c"]]
    assert found[0]["b"] == found[1]["a"]
    assert [value & _MASK for layer in found for value in layer.values()] == [
        defined(tensor) for tensor in (first, second, second, third)
    ]
    first[7] += 1
    assert digests([{"a": first}])[0]["a"] & _MASK == defined(first)
