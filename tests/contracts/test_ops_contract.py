"""Every op that exists keeps the contract of `mktune.ops.base`: found by itself, so a new op is tested at once.

Those of one's own packages (MKTUNE_PATH) too.
"""

from itertools import product

import pytest
import torch

from mktune.device import Device
from mktune.graph.opgraph import OpGraph
from mktune.graph.tensors import DTYPE_BYTES
from mktune.graph.workload import workload, workload_names
from mktune.ops.inputs import make_inputs
from mktune.ops.registry import all_ops
from mktune.plan import GDC, TRIGGERS, KernelPlan, OpPlan
from mktune.shape import Shape

DEVICES = [
    Device("NVIDIA H200", "sm_90a", 132, 232448, 60 << 20, 4.8e12),
    Device("NVIDIA B200", "sm_100a", 148, 232448, 126 << 20, 8e12),
    Device("NVIDIA B300", "sm_103a", 148, 232448, 126 << 20, 8e12),
]
SHAPES = [Shape(1, 1, 1), Shape(2, 8, 8192), Shape(17, 1, 100), Shape(32, 8, 4096)]
TORCH = {
    "bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn, "f32": torch.float32,
    "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8,
}  # fmt: skip

OPS = {call.op.title: call.op for name in workload_names() for call in workload(name).graph.calls.values()} | all_ops()

IN_EACH_FORMAT = OPS | {
    f"{call.op.title} {work.scale_format}": call.op
    for name in workload_names()
    for work in workload(name).others
    for call in work.graph.calls.values()
}
"""No kernel need compute an op in every format, but its ports and its reference are there."""

each_op = pytest.mark.parametrize("op", OPS.values(), ids=OPS)
each_op_in_each_format = pytest.mark.parametrize("op", IN_EACH_FORMAT.values(), ids=IN_EACH_FORMAT)
each_device = pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.arch)


def alone(op):
    """A graph of this op alone, bound as its ports say."""
    graph = OpGraph(op.title)
    bound = {}
    for port in op.inputs:
        kind = graph.bound_weight if port in op.weights else graph.cache if port in op.outputs else graph.runtime_arg
        bound[port] = kind(port, op.ports[port].dtype, op.ports[port].dims)
    graph.call("X", op, **bound)
    return graph


def variants(op, arch):
    """The default, and the default with each other value of each field of each implementation, and with all values of
    the fields that it leaves out."""
    default = op.default(arch)
    yield default
    for impl, fields in op.choices(arch).items():
        config = {k: v for k, v in default.config if k in fields}
        for name, values in fields.items():
            yield from (OpPlan.of(impl, config | {name: value}) for value in values)
        if left_out := [name for name in op.implied if name in fields]:
            for chosen in product(*(fields[name] for name in left_out)):
                added = dict(zip(left_out, chosen, strict=True))
                yield OpPlan.of(impl, config | added)
                if "split_k" in fields:
                    yield OpPlan.of(impl, config | added | {"split_k": 1})


def placements(op, plan):
    values = [(op.gdc_values(plan, suffix), op.trigger_values(plan, suffix)) for suffix in op.kernels(plan)]
    for gdc, trigger in product(GDC, TRIGGERS):
        if all(gdc in g and trigger in t for g, t in values):
            yield tuple(KernelPlan(gdc=gdc, trigger=trigger) for _ in values)


@each_op_in_each_format
def test_ports_are_described(op):
    assert set(op.ports) == set(op.inputs) | set(op.outputs)
    assert set(op.weights) <= set(op.inputs)
    assert not set(op.weights) & set(op.outputs)
    assert all(port.dtype in DTYPE_BYTES for port in op.ports.values())
    assert set(op.ue8m0_ports) <= set(op.ports)
    assert op.__doc__


@each_op
@each_device
def test_the_default_runs_at_every_shape(op, device):
    plan = op.default(device.arch)
    for kernels, shape in product(placements(op, plan), SHAPES):
        assert op.violations(plan, kernels, shape, device) == []


@each_op
@each_device
def test_a_default_is_made_of_known_values(op, device):
    plan = op.default(device.arch)
    fields = op.choices(device.arch)[plan.impl]
    assert {name: value for name, value in plan.config if value in fields[name]} == dict(plan.config)
    assert plan == OpPlan.of(plan.impl, dict(plan.config))


@each_op_in_each_format
@each_device
def test_an_implementation_says_which_scale_formats_it_computes(op, device):
    offered = op.choices(device.arch)
    served = {impl for impl in offered if op.scale_format in op.scale_formats(impl, device.arch)}
    assert set(op.implementations(device.arch)) == served
    for impl in offered.keys() - served:
        found = op.violations(OpPlan.of(impl, {}), (), SHAPES[1], device)
        assert [violation.rule for violation in found] == ["scale_format"]
    if op.scale_format == "fp32":
        assert served


@each_op
@each_device
def test_facts_cover_every_port(op, device):
    """Each input is read and each output written by some kernel; weights are never written; nothing else is unknown."""
    for plan in variants(op, device.arch):
        scratch = {space.port for space in op.workspaces(plan, SHAPES[1])}
        for kernels in placements(op, plan):
            facts = op.facts(plan, kernels)
            assert tuple(kernel.name for kernel in facts) == op.kernels(plan)
            accesses = [access for kernel in facts for access in kernel.accesses]
            read = {access.buffer for access in accesses if not access.writes}
            written = {access.buffer for access in accesses if access.writes}
            assert set(op.inputs) - set(op.outputs) <= read
            assert set(op.outputs) <= written
            assert not written & set(op.weights)
            assert read | written <= set(op.ports) | scratch
            assert scratch <= read & written
            assert all(access.after_wait for access in accesses if access.writes)


@each_op
@each_device
def test_configs_of_one_kind_are_judged_alike(op, device):
    """Same kernels, same facts and same complaints for any launch that asks for nothing into L2."""
    known = {}
    placed = [KernelPlan(gdc=gdc, trigger=trigger) for gdc, trigger in product((*GDC, "?"), (*TRIGGERS, "?"))]
    for plan in variants(op, device.arch):
        if op.config_violations(plan, SHAPES[1], device):
            continue
        names = op.kernels(plan)
        launches = [(kernel,) * len(names) for kernel in placed]
        facts = [op.facts(plan, kernels) for kernels in placements(op, plan)]
        judged = names, facts, [op.launch_violations(plan, kernels) for kernels in launches]
        assert known.setdefault(op.kind(plan), judged) == judged
        assert any(judged[2])


@each_op
@each_device
def test_the_l2_limit_is_what_a_kernel_may_ask_for(op, device):
    for plan in variants(op, device.arch):
        if op.config_violations(plan, SHAPES[1], device) or "prefetch" not in op.gdc_values(plan, op.kernels(plan)[0]):
            continue
        limit, rest = op.l2_limit(plan), (KernelPlan(),) * (len(op.kernels(plan)) - 1)
        fits, beyond = (KernelPlan(gdc="prefetch", l2_prefetch_bytes=asked) for asked in (limit, limit + 1))
        assert op.launch_violations(plan, (fits, *rest)) == []
        assert [violation.rule for violation in op.launch_violations(plan, (beyond, *rest))] == ["l2_prefetch"]


@each_op
def test_a_kernel_that_waits_at_entry_does_nothing_before(op):
    plan = op.default("sm_90a")
    for kernel in op.facts(plan, (KernelPlan(),) * len(op.kernels(plan))):
        assert kernel.waits
        assert kernel.trigger == "exit"
        assert all(access.after_wait for access in kernel.accesses)


@each_op
@each_device
def test_sizes_are_positive_and_grow_with_the_problem(op, device):
    plan = op.default(device.arch)
    for shape in SHAPES:
        work = op.work(plan, shape)
        assert len(work) == len(op.kernels(plan))
        assert all(kernel.ctas > 0 and 32 <= kernel.threads <= 1024 for kernel in work)
        assert all(0 <= kernel.smem_bytes <= device.smem_per_block for kernel in work)
        assert all(0 <= kernel.prefetch_bytes <= kernel.cold_bytes for kernel in work)
        assert sum(kernel.cold_bytes for kernel in work) == op.bytes_read(shape)
        assert sum(kernel.flops for kernel in work) == op.flops(shape)
        assert all(space.bytes > 0 for space in op.workspaces(plan, shape))
    assert op.bytes_read(SHAPES[0]) <= op.bytes_read(SHAPES[1])
    assert op.flops(SHAPES[0]) < op.flops(SHAPES[1])


@each_op
@each_device
def test_unknown_configs_are_violations_and_never_errors(op, device):
    for plan in (OpPlan.of("nothing", {}), OpPlan.of(op.default(device.arch).impl, {}), OpPlan.of("wgmma", {"x": "y"})):
        assert op.violations(plan, (), SHAPES[1], device)


@each_op
@each_device
def test_violations_say_what_to_do_in_one_line(op, device):
    shape = SHAPES[1]
    for plan in variants(op, device.arch):
        for violation in op.violations(plan, (KernelPlan(gdc="prefetch"),) * len(op.kernels(plan)), shape, device):
            assert violation.rule
            assert violation.where == ""
            assert "\n" not in violation.message


@each_op_in_each_format
def test_the_reference_makes_every_output_and_agrees_with_itself(op):
    shape = Shape(2, 3, 70)
    inputs = make_inputs(alone(op), shape, ragged=True)
    before = {port: tensor.clone() for port, tensor in inputs.items()}
    outputs = op.reference(inputs, shape)
    assert set(outputs) == set(op.outputs)
    for port, tensor in outputs.items():
        assert tuple(tensor.shape) == op.ports[port].size(shape)
        assert tensor.dtype == TORCH[op.ports[port].dtype]
        assert tensor.is_contiguous()
    assert op.compare(inputs, outputs, shape) == []
    assert all(torch.equal(before[port].view(torch.uint8), inputs[port].view(torch.uint8)) for port in inputs)


@each_op_in_each_format
def test_outputs_that_are_not_finite_or_not_written_are_rejected(op):
    shape = Shape(2, 3, 70)
    inputs = make_inputs(alone(op), shape)
    outputs = op.reference(inputs, shape)
    for port in outputs:
        poison = torch.full_like(outputs[port].view(torch.uint8), 0xFF).view(outputs[port].dtype)
        assert op.compare(inputs, {**outputs, port: poison}, shape)
        assert op.compare(inputs, {**outputs, port: torch.zeros_like(outputs[port])}, shape)
