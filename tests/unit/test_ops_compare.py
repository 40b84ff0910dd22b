"""Comparisons count what the contract says, and no odd value slips through them."""

import pytest
import torch

from mktune.errors import MktuneError
from mktune.ops import compare
from mktune.ops.numerics import quantise
from mktune.ops.tolerances import DIRECT, THROUGH_GEMM

F8 = torch.float8_e4m3fn


def e4m3(*values):
    return torch.tensor([values]).to(F8)


def codes_with(n, changed, bits=1):
    """`n` codes of 1.0, and a copy with the first `changed` of them `bits` codes higher."""
    right = torch.full((n,), 0x38, dtype=torch.uint8)
    given = right.clone()
    given[:changed] += bits
    return given.view(F8).view(1, -1), right.view(F8).view(1, -1)


@pytest.mark.parametrize(
    ("tolerance", "n", "most"),
    [(DIRECT, 2000, 10), (DIRECT, 100, 2), (THROUGH_GEMM, 2000, 60), (THROUGH_GEMM, 100, 16)],
)
def test_share_of_unequal_codes(tolerance, n, most):
    assert compare.codes("c", *codes_with(n, most), tolerance) == []
    assert f"{most + 1} of {n} codes differ" in compare.codes("c", *codes_with(n, most + 1), tolerance)[0]


def test_codes_may_be_one_apart_or_close():
    assert "further off than a neighbour" in compare.codes("c", *codes_with(1000, 1, bits=2), DIRECT)[0]
    assert compare.codes("c", *codes_with(1000, 1, bits=2), THROUGH_GEMM) == []
    assert compare.codes("c", *codes_with(1000, 1, bits=0x20), THROUGH_GEMM) != []


def test_minus_zero_is_zero_and_signs_are_neighbours():
    assert compare.codes("c", e4m3(-0.0, 1.0), e4m3(0.0, 1.0), DIRECT) == []
    smallest = 2.0**-9
    one_apart = compare.codes("c", e4m3(-smallest, *[1.0] * 999), e4m3(0.0, *[1.0] * 999), DIRECT)
    assert one_apart == []


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_are_rejected(bad):
    right = torch.ones(4, 8)
    given = right.clone()
    given[2, 3] = bad
    found = compare.relative_rms("g", given, right, 1e3)
    assert found == ["g: 1 values are not finite, the first at 2, 3"]
    assert compare.bf16_rows("q", given.bfloat16(), right.bfloat16(), 2, 8e-3)
    assert compare.scales("s", given, right, THROUGH_GEMM)
    assert compare.relative_rms("g", torch.full_like(right, bad), right, 1e3)
    assert compare.codes("c", torch.full((4, 8), 0x7F, dtype=torch.uint8).view(F8), right.to(F8), THROUGH_GEMM)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_reference_that_is_not_finite_stops_everything(bad):
    given, right = torch.ones(4, 8), torch.full((4, 8), bad)
    for found in (
        lambda: compare.relative_rms("g", given, right, 1.0),
        lambda: compare.bf16_rows("q", given.bfloat16(), right.bfloat16(), 2, 8e-3),
        lambda: compare.scales("s", given, right, DIRECT),
        lambda: compare.codes("c", given.to(F8), torch.full((4, 8), 0x7F, dtype=torch.uint8).view(F8), DIRECT),
    ):
        with pytest.raises(MktuneError, match=r"the reference of . is not finite"):
            found()


def test_anything_against_zeros_is_rejected():
    right = torch.zeros(3, 64)
    given = right.clone()
    given[1, 5] = 1e-30
    assert compare.relative_rms("g", given, right, 1e-2)
    assert compare.scales("s", given, right, THROUGH_GEMM)
    assert compare.bf16_rows("q", given.bfloat16(), right.bfloat16(), 2, 8e-3)
    given[1, 5] = 2.0**-9
    assert compare.codes("c", given.to(F8), right.to(F8), THROUGH_GEMM)
    assert compare.relative_rms("g", right, right, 0.0) == []
    assert compare.codes("c", right.to(F8), right.to(F8), DIRECT) == []


def test_a_row_is_measured_by_its_own_size():
    """An error that a large row could have is too much for a small one."""
    right = torch.stack((torch.full((256,), 1.0), torch.full((256,), 1e-3)))
    given = right + 2e-3 * torch.tensor([1.0, 0.0])[:, None]
    assert compare.relative_rms("g", given, right, 3e-3) == []
    assert "the first row 1" in compare.relative_rms("g", given.flip(1) + 2e-3, right, 4.5e-3)[0]


def test_bf16_peaks_are_counted_in_ulp_of_the_rows_largest_value():
    right = torch.zeros(1, 4096)
    right[0, :] = 0.5
    right[0, 0] = 1.5  # one ulp is 2^-7
    given = right.clone()
    given[0, 9] += 2 * 2.0**-7
    assert compare.bf16_rows("q", given.bfloat16(), right.bfloat16(), 2, 8e-3) == []
    given[0, 9] += 2.0**-7
    assert "beyond 2 ulp" in compare.bf16_rows("q", given.bfloat16(), right.bfloat16(), 2, 8e-3)[0]


def test_scales_are_exact_but_for_a_few():
    right = torch.full((16, 16), 0.01)
    assert compare.scales("s", right * (1 + 5e-7), right, DIRECT) == []
    for tolerance, share, limit in ((DIRECT, 2, 2.0**-7), (THROUGH_GEMM, 25, 2.0**-6)):
        given = right.clone()
        given.view(-1)[:share] *= 1 + 0.9 * limit
        assert compare.scales("s", given, right, tolerance) == []
        given.view(-1)[share] *= 1 + 0.9 * limit
        assert compare.scales("s", given, right, tolerance) != []
        far = right.clone()
        far[0, 0] *= 1 + 1.1 * limit
        assert compare.scales("s", far, right, tolerance) != []


def test_peak_and_rms_of_logits():
    right = torch.ones(2, 4096)
    given = right.clone()
    given[1, 77] += 0.02
    assert compare.relative_rms("l", given, right, 1e-3) == []
    assert "the first row 1" in compare.relative_rms("l", given, right, 1e-3, 1e-2)[0]


def test_untouched_rows_are_bit_equal():
    before = torch.randn(8, 4).bfloat16()
    before[7] = float("nan")
    after = before.clone()
    after[3] = 0
    assert compare.untouched("cache", after, before, torch.tensor([3])) == []
    assert compare.untouched("cache", after, before, torch.tensor([2])) != []
    after[1, 1] = -after[1, 1]
    assert "the first row 1" in compare.untouched("cache", after, before, torch.tensor([3]))[0]
    assert compare.untouched("cache", before, before, torch.tensor([], dtype=torch.long)) == []


def test_quantise_follows_the_contract():
    x = torch.zeros(2, 256).bfloat16()
    x[0, 0], x[0, 1], x[0, 128] = 448.0, -0.3, 1.0
    codes, scales = quantise(x, 1e-10)
    assert scales.dtype == torch.float32
    assert scales.tolist() == [[1.0, torch.tensor(1 / 448, dtype=torch.float32).item()], [scales[1, 0].item()] * 2]
    assert scales[1, 0] == torch.tensor(1e-10) / 448
    assert codes.float()[0, [0, 1, 128]].tolist() == [448.0, -0.3125, 448.0]
    assert not codes.float()[1].any()
