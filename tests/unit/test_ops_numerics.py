"""The references' arithmetic at sizes that can be worked out by hand."""

import pytest

torch = pytest.importorskip("torch")

from mktune.ops.numerics import block_fp8_matmul, quantise, rope, store_scales, with_rows  # noqa: E402

E4M3 = torch.float8_e4m3fn


def test_rows_go_to_their_slots_and_padding_goes_nowhere():
    cache = torch.arange(10.0).view(5, 2)
    found = with_rows(cache, torch.tensor([3, -1, 0]), torch.tensor([[30.0, 31.0], [99.0, 99.0], [50.0, 51.0]]))
    assert found.tolist() == [[50, 51], [2, 3], [4, 5], [30, 31], [8, 9]]
    assert cache.tolist() == torch.arange(10.0).view(5, 2).tolist()


def test_a_group_is_scaled_by_its_largest_value_or_the_least_one():
    x = torch.zeros(1, 256)
    x[0, 5], x[0, 6] = -896.0, 448.0
    codes, scales = quantise(x, 1e-10)
    assert scales.tolist() == [[2.0, pytest.approx(1e-10 / 448)]]
    assert (codes[0, 5].float(), codes[0, 6].float()) == (-448.0, 224.0)
    assert not codes[0, 128:].float().any()


def test_scales_are_stored_by_group_and_padded_with_zeros():
    assert store_scales(torch.tensor([[1.0, 2.0], [3.0, 4.0]])).tolist() == [[1, 3, 0, 0], [2, 4, 0, 0]]


def test_a_product_takes_the_scale_of_each_block():
    a, w = torch.zeros(1, 256), torch.zeros(130, 256)
    a[0, 0], a[0, 200] = 2.0, 4.0
    w[0, 0], w[129, 200] = 8.0, 16.0
    row_scales = torch.tensor([[0.5, 0, 0, 0], [0.25, 0, 0, 0]])
    blocks = torch.tensor([[3.0, 5.0], [7.0, 11.0]])
    found = block_fp8_matmul(a.to(E4M3), row_scales, w.to(E4M3), blocks)
    assert found.shape == (1, 130)
    assert (found[0, 0].item(), found[0, 129].item()) == (2 * 8 * 0.5 * 3, 4 * 16 * 0.25 * 11)
    assert found[0, 1:129].abs().sum() == 0


def test_rope_turns_neighbours_by_the_angle_of_their_position():
    cos, sin = torch.tensor([[1.0, 1.0], [0.0, 1.0]]), torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    x = torch.tensor([[[1.0, 2.0, 3.0, 4.0]], [[1.0, 2.0, 3.0, 4.0]]])
    found = rope(x, cos, sin, torch.tensor([0, 1]))
    assert found.tolist() == [[[1, 2, 3, 4]], [[-2, 1, 3, 4]]]
