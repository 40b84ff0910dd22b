"""The reference executor, and what a plan says of tensors that it cannot run on."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from mktune.device import Device  # noqa: E402
from mktune.errors import InputError, PlanError, SetupError  # noqa: E402
from mktune.executors.reference import op_order, run_reference  # noqa: E402
from mktune.executors.torch_memory import counters, workspaces  # noqa: E402
from mktune.graph.builtin import builtin_plans  # noqa: E402
from mktune.graph.workload import workload  # noqa: E402
from mktune.lowering.graph import lower  # noqa: E402
from mktune.ops.evaluate import evaluate  # noqa: E402
from mktune.ops.inputs import make_inputs  # noqa: E402
from mktune.plan import OpPlan  # noqa: E402
from mktune.runtime.replay import check_plan, check_tensors, load  # noqa: E402
from mktune.shape import Shape  # noqa: E402

KNOWN = workload("glm52_attention_prefix")
GRAPH = KNOWN.subgraph(("A0", "B0"))
SHAPE = Shape.from_m(2, 128)
PLAN = builtin_plans(KNOWN, ("A0", "B0"), SHAPE, "sm_90a")["serial+pdl"]
H200 = Device("NVIDIA H200", "sm_90a", 132, 232448, 60 << 20, 4.8e12)


@pytest.fixture(scope="module")
def tensors():
    return make_inputs(GRAPH, SHAPE)


def test_a_lowered_plan_gives_what_the_graph_means(tensors):
    before = tensors["mla_cache"].clone()
    found = run_reference(lower(PLAN, GRAPH, SHAPE), GRAPH, SHAPE, tensors)
    for name, value in evaluate(GRAPH, tensors, SHAPE).items():
        assert torch.equal(found[name].view(torch.uint8), value.view(torch.uint8)), name
    assert torch.equal(tensors["mla_cache"], before)


def test_ops_run_where_their_last_kernel_stands():
    whole = builtin_plans(KNOWN, None, Shape.from_m(16, 8192), "sm_90a")["branches+pdl"]
    order = op_order(lower(whole, KNOWN.graph, whole.shape))
    assert set(order) == set(KNOWN.ops)
    assert order[0] == "A0"
    assert order.index("B0") < order.index("D0") < order.index("D2")
    assert max(order.index("D1"), order.index("B1")) < order.index("E1")


def test_an_order_against_the_data_flow_is_refused(tensors):
    lowered = lower(PLAN, GRAPH, SHAPE)
    backwards = replace(lowered, kernels=tuple(reversed(lowered.kernels)))
    with pytest.raises(PlanError, match="B0 runs before anything has made h_q"):
        run_reference(backwards, GRAPH, SHAPE, tensors)


def test_missing_tensors_are_named(tensors):
    kept = {name: value for name, value in tensors.items() if name not in ("W_a", "slots")}
    with pytest.raises(InputError, match="W_a, slots"):
        run_reference(lower(PLAN, GRAPH, SHAPE), GRAPH, SHAPE, kept)


def test_counters_start_at_zero_and_are_known_by_name():
    base = KNOWN.graph.calls["B0"].op.default("sm_90a")
    op = OpPlan.of(base.impl, {**dict(base.config), "finalizer": "last_arriver"})
    plan = builtin_plans(KNOWN, ("A0", "B0"), SHAPE, "sm_90a", {"B0": op})["serial"]
    spaces = workspaces(plan, GRAPH, SHAPE, "cpu")
    assert set(counters(plan, GRAPH, SHAPE)) == {"B0.tile_counters", "B0.row_counters"} <= set(spaces)
    assert not any(spaces[name].any() for name in counters(plan, GRAPH, SHAPE))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("x", lambda t: t.float(), "'x' is torch.float32, not torch.bfloat16"),
        ("residual", lambda t: t[:1], r"'residual' is \[1, 6144\], not \[2, 6144\]"),
        ("W_a", lambda t: t.t().contiguous().t(), "'W_a' is not contiguous"),
        ("x", lambda t: t, "'x' is on cpu, not on cuda:0"),
        ("mla_cache", lambda t: t[:1], r"'mla_cache' is \[1, 64, 576\], not \[2, 64, 576\]"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named_with_what_is_wrong(tensors, name, change, message):
    with pytest.raises(InputError, match=message):
        check_tensors(GRAPH, SHAPE, {name: change(tensors[name])}, 0)


@pytest.mark.parametrize(
    ("device", "index", "address", "message"),
    [
        ("cuda:0", 0, 0x7F0000000010, None),
        ("cuda:0", 0, 0x7F0000000008, "does not start at a multiple of 16 bytes"),
        ("cuda:1", 0, 0x7F0000000010, "is on cuda:1, not on cuda:0"),
        ("cuda:1", 1, 0x7F0000000010, None),
    ],
)
def test_a_tensor_must_be_on_the_gpu_and_aligned(tensors, device, index, address, message):
    x = tensors["x"]
    placed = SimpleNamespace(
        dtype=x.dtype,
        shape=x.shape,
        device=torch.device(device),
        is_contiguous=lambda: True,
        data_ptr=lambda: address,
    )
    if message is None:
        check_tensors(GRAPH, SHAPE, {"x": placed}, index)
    else:
        with pytest.raises(InputError, match=f"'x' {message}"):
            check_tensors(GRAPH, SHAPE, {"x": placed}, index)


def test_an_unknown_tensor_is_named(tensors):
    with pytest.raises(InputError, match="'y' is not of"):
        check_tensors(GRAPH, SHAPE, {"y": tensors["x"]}, 0)


def test_a_larger_pool_than_the_shape_asks_for_is_fine(tensors):
    larger = torch.cat([tensors["mla_cache"]] * 2)
    with pytest.raises(InputError, match="is on cpu"):  # and nothing else
        check_tensors(GRAPH, SHAPE, {"mla_cache": larger}, 0)


def test_a_plan_is_refused_outside_its_range_and_beyond_the_devices_limits():
    check_plan(PLAN, GRAPH, SHAPE, H200)
    with pytest.raises(PlanError, match="serves M from 2 to 2, not 16"):
        check_plan(PLAN, GRAPH, Shape.from_m(16, 128), H200)
    with pytest.raises(PlanError, match="serves KV from 2 to 128, not 256"):
        check_plan(PLAN, GRAPH, Shape.from_m(2, 256), H200)
    small = replace(H200, name="a small GPU", smem_per_block=64 << 10)
    with pytest.raises(PlanError, match="does not fit a small GPU: B0: "):
        check_plan(PLAN, GRAPH, SHAPE, small)


def test_replaying_without_a_gpu_says_that_it_needs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_gpu(index: int) -> None:
        raise SetupError("no NVIDIA driver on this machine")

    monkeypatch.setattr("mktune.runtime.replay.find_device", no_gpu)
    for device in (None, 0, "cuda", "cuda:0"):
        with pytest.raises(SetupError, match=r"^replaying needs a GPU: no NVIDIA driver on this machine$"):
            load(PLAN, {}, device)
