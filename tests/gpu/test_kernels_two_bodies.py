"""Role functions own no grid and no CTA: A0's rows and then GEMM tiles run in one CTA, over one ring."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from test_kernels import case  # noqa: E402

from mktune.executors.arguments import pack  # noqa: E402
from mktune.executors.driver_calls import call, driver  # noqa: E402
from mktune.jit import nvrtc  # noqa: E402
from mktune.jit.source import Source, load  # noqa: E402
from mktune.launch import BufferArg, ScalarArg, TensorMapArg  # noqa: E402
from mktune.ops.add_rmsnorm_quant import AddRmsnormQuant  # noqa: E402
from mktune.ops.qkv_a import QkvA  # noqa: E402

PAIRS = [("kWgmma", 16, 7), ("kMmaSync", 16, 7), ("kWgmma", 8, 12)]


def _name(mma: str, block_m: int, stages: int) -> str:
    return f"mktune::two_bodies<mktune::Mma::{mma}, {block_m}, {stages}>"


def _source() -> Source:
    files = {path: text for body in ("add_rmsnorm_quant", "qkv_a") for path, text in load(f"ops/{body}.cuh").files}
    text = (Path(__file__).parent / "two_bodies.cu").read_text()
    return Source("two_bodies.cu", (("two_bodies.cu", text), *files.items()))


def test_they_compile_without_a_gpu():
    names = [_name(*pair) for pair in PAIRS]
    assert sorted(nvrtc.compile_program(_source(), names, "sm_90a", ()).kernels) == sorted(names)


@pytest.mark.gpu
@pytest.mark.parametrize(("mma", "block_m", "stages"), PAIRS)
@pytest.mark.parametrize(("m", "ctas"), [(16, 41), (17, 9), (5, 1)])
def test_two_bodies_run_back_to_back_in_one_cta(mma, block_m, stages, m, ctas):
    name = _name(mma, block_m, stages)
    program = nvrtc.compile_program(_source(), [name], "sm_90a", ())
    of = case(m)
    outputs = of.fresh_outputs()
    y = torch.full((m, 2624), float("nan"), dtype=torch.bfloat16, device="cuda")
    memory = {**of.inputs, **outputs, "y": y}
    args = (
        TensorMapArg("W_a", "u8", (6144, 2624), (6144,), (128, 64)),
        TensorMapArg("h_q", "u8", (6144, m), (6144,), (128, block_m)),
        TensorMapArg("h_s", "f32", (-(-m // 4) * 4, 48), (-(-m // 4) * 16,), (block_m, 48), swizzle=0, l2=0),
        *(BufferArg(port) for port in ("W_a_s", "x", "residual", "norm_w", "residual_out", "h", "h_q", "h_s", "y")),
        ScalarArg(m),
    )
    module = call("cuModuleLoadData", program.cubin)
    function = call("cuModuleGetFunction", module, program.kernels[name][0].encode())
    smem = stages * (128 * (64 + block_m) + 24) + 48 * 4 * block_m + 16
    limit = driver().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    call("cuFuncSetAttribute", function, limit, smem)
    packed = pack(args, lambda buffer: memory[buffer].data_ptr())
    stream = torch.cuda.current_stream().cuda_stream
    call("cuLaunchKernel", function, ctas, 1, 1, 192, 1, 1, smem, stream, packed.address, 0)
    torch.cuda.synchronize()
    assert AddRmsnormQuant().compare(of.inputs, outputs, of.shape) == []
    op = QkvA()
    given = {**of.inputs, "h_q": outputs["h_q"], "h_s": outputs["h_s"]}
    expected = op.product(given)
    unequal = (y != expected).float().mean().item()
    assert unequal < 0.15
    assert torch.allclose(y.double(), expected.double(), rtol=2**-6, atol=expected.double().abs().max().item() * 2**-7)
    call("cuModuleUnload", module)
