"""A loaded plan inside the caller's own `torch.cuda.graph`: several layers, several batch sizes, other tensors."""

import pytest

from mktune.errors import CandidateError
from mktune.executors.driver_calls import call
from mktune.graph.builtin import builtin_plans, make_plan
from mktune.graph.workload import workload
from mktune.measure.memory import layers_for, make_memory
from mktune.measure.span import GraphTimer
from mktune.ops.evaluate import differences
from mktune.ops.inputs import make_inputs
from mktune.runtime import PlanBook, load
from mktune.shape import Shape
from tests.benchmarks.streams_vs_graph import BAR, measured, tuned_like

pytestmark = pytest.mark.gpu

WORKLOAD = workload("glm52_attention_prefix")
KV = 1024
LAYERS = 4
MS = (1, 16, 64)
OUTPUTS = tuple(name for name, spec in WORKLOAD.graph.tensors.items() if spec.kind == "output")


def plan_of(mode, m, arch):
    return make_plan(WORKLOAD, None, Shape.from_m(m, KV), arch, mode)


def inputs(m, seed):
    return make_inputs(WORKLOAD.graph, Shape.from_m(m, KV), seed, "cuda:0")


def layers_of(mode, m, arch):
    """One loaded plan for each layer: its own weights and caches, the activations of the first."""
    made = [inputs(m, seed) for seed in range(LAYERS)]
    shared = {name: made[0][name] for name, spec in WORKLOAD.graph.tensors.items() if spec.kind == "arg"}
    return [load(plan_of(mode, m, arch), {**own, **shared}) for own in made]


def step(layers, run):
    """A decode step: what a layer leaves becomes the next one's input, by torch's own kernels between them."""
    for loaded in layers:
        run(loaded)
        tensors = loaded.tensors
        tensors["residual"].copy_(tensors["residual_out"])
        tensors["x"].copy_(tensors["h"] * 0.5)


def state(layers):
    """All that the step left in every layer, as bytes."""
    import torch

    names = (*OUTPUTS, "mla_cache", "index_k_cache", "residual", "x")
    return [{name: loaded.tensors[name].view(torch.uint8).clone() for name in names} for loaded in layers]


def restore(layers, before):
    for loaded, kept in zip(layers, before, strict=True):
        for name, value in kept.items():
            loaded.tensors[name].copy_(value)


def kept(layers):
    names = ("mla_cache", "index_k_cache", "residual", "x")
    return [{name: loaded.tensors[name].clone() for name in names} for loaded in layers]


def poison(layers):
    import torch

    for loaded in layers:
        for name in OUTPUTS:
            loaded.tensors[name].view(torch.uint8).fill_(0xFF)


def unequal(ours, theirs):
    import torch

    pairs = enumerate(zip(ours, theirs, strict=True))
    return [(i, name) for i, (mine, other) in pairs for name in mine if not torch.equal(mine[name], other[name])]


@pytest.mark.parametrize("mode", ["serial", "branches+pdl"])
def test_four_layers_in_one_captured_graph_over_several_batch_sizes(device, mode):
    """Graphs of all batch sizes are captured first and then replayed in turn, as an engine does."""
    import torch

    steps = {m: layers_of(mode, m, device.arch) for m in MS}
    before = {m: kept(layers) for m, layers in steps.items()}
    expected, graphs = {}, {}
    for m, layers in steps.items():
        poison(layers)  # also what no kernel writes must be equal
        step(layers, lambda loaded: loaded.replay())
        torch.cuda.synchronize()
        expected[m] = state(layers)
        restore(layers, before[m])
        torch.cuda.synchronize()
        graphs[m] = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graphs[m]):
            step(layers, lambda loaded: loaded.launch())
        graphs[m].instantiate()
    for _ in range(5):
        for m, layers in steps.items():
            restore(layers, before[m])
            poison(layers)
            graphs[m].replay()
            torch.cuda.synchronize()
            assert unequal(state(layers), expected[m]) == [], m
    assert early_edges(graphs[16]) == (0 if mode == "serial" else LAYERS * 12)
    for layers in steps.values():
        for loaded in layers:
            loaded.close()


def early_edges(graph):
    """Programmatic edges that the driver holds in a captured graph."""
    raw = graph.raw_cuda_graph()
    count = call("cuGraphGetEdges", raw)[3]
    return sum(int(edge.type) == 1 for edge in call("cuGraphGetEdges", raw, count)[2])


@pytest.mark.gpu_alone
@pytest.mark.parametrize(("m", "kv"), [(16, 8192), (64, 65536)])
def test_captured_launches_take_at_most_three_percent_more_than_a_replay(device, m, kv):
    """`Streams` captured by the caller and `CudaGraph`, which are what `launch` and `replay` run: all layers, cold."""
    shape = Shape.from_m(m, kv)
    plans = {**builtin_plans(WORKLOAD, None, shape, device.arch), "tuned": tuned_like(shape, device.arch)}
    layers = layers_for(WORKLOAD.graph, shape, device)
    memory, timer = make_memory(WORKLOAD.graph, shape, layers, 0, "cuda:0"), GraphTimer(layers)
    rows = [measured(name, plan, memory, device, timer, rounds=24) for name, plan in plans.items()]
    for row in rows:
        spans = f"replayed {row.graph_us:.2f} µs, captured launches {row.captured_us:.2f} µs"
        print(f"M {m}, KV {kv}, {row.plan}: {spans}, × {row.ratio:.4f} ({row.low:.4f}–{row.high:.4f}), bar {BAR}")
    assert {row.plan: row.ratio for row in rows if row.ratio > BAR} == {}


@pytest.mark.parametrize("place", ["torch's current", "default", "own", "address"])
def test_live_launches_on_any_stream_equal_the_reference(device, place):
    import torch

    plan, given = plan_of("branches+pdl", 16, device.arch), inputs(16, 7)
    before = {name: value.clone() for name, value in given.items()}
    own = torch.cuda.Stream()
    stream = {"torch's current": None, "default": 0, "own": own, "address": own.cuda_stream}[place]
    torch.cuda.synchronize()
    with load(plan, given) as loaded:
        poison([loaded])
        torch.cuda.synchronize()
        for _ in range(20):
            loaded.launch(stream)
        torch.cuda.synchronize()
        assert differences(WORKLOAD.graph, before, loaded.tensors, plan.shape) == []
        assert loaded.stricter == ()


def test_work_around_a_live_launch_keeps_its_order(device):
    """What the caller's stream does before and after is ordered with every stream of the plan."""
    import torch

    plan, given = plan_of("branches+pdl", 16, device.arch), inputs(16, 8)
    before = {name: value.clone() for name, value in given.items()}
    stream, late = torch.cuda.Stream(), {}
    torch.cuda.synchronize()
    with load(plan, given) as loaded, torch.cuda.stream(stream):
        loaded.tensors["x"].fill_(0)
        torch.cuda._sleep(2_000_000)  # the input comes late, and the plan was enqueued long before
        loaded.tensors["x"].copy_(before["x"])
        loaded.launch(stream)
        late = {name: loaded.tensors[name].clone() for name in OUTPUTS}
        poison([loaded])
        stream.synchronize()
        assert differences(WORKLOAD.graph, before, {**loaded.tensors, **late}, plan.shape) == []


def test_launches_take_other_tensors_and_captured_ones_keep_theirs(device):
    import torch

    plan = plan_of("branches+pdl", 16, device.arch)
    first, second = inputs(16, 1), inputs(16, 2)
    before = [{name: value.clone() for name, value in each.items()} for each in (first, second)]
    torch.cuda.synchronize()
    with load(plan, first) as loaded:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            loaded.launch()
        loaded.rebind(second)
        loaded.launch()
        torch.cuda.synchronize()
        assert differences(WORKLOAD.graph, before[1], loaded.tensors, plan.shape) == []
        poison([loaded])
        captured.replay()
        torch.cuda.synchronize()
        held = {**loaded.tensors, **first}
        assert differences(WORKLOAD.graph, before[0], held, plan.shape) == []


@pytest.mark.parametrize("kernel", ["A0", "D1p"])
def test_a_launch_that_fails_in_a_capture_spoils_neither_the_stream_nor_the_next_capture(device, kernel):
    """The driver refuses one launch; the caller ends the capture as torch does, and captures again."""
    import torch

    plan, given = plan_of("branches+pdl", 16, device.arch), inputs(16, 3)
    before = {name: value.clone() for name, value in given.items()}
    torch.cuda.synchronize()
    with load(plan, given) as loaded:
        config = loaded._launches._captured[kernel]
        right, config.gridDimX = config.gridDimX, 0
        broken = torch.cuda.CUDAGraph()
        with pytest.raises((CandidateError, RuntimeError)), torch.cuda.graph(broken):
            loaded.launch()
        config.gridDimX = right
        assert not torch.cuda.is_current_stream_capturing()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            loaded.launch()
        poison([loaded])
        captured.replay()
        torch.cuda.synchronize()
        assert differences(WORKLOAD.graph, before, loaded.tensors, plan.shape) == []


def test_a_look_up_inside_a_capture_calls_no_cuda(device):
    """Of a shape that is known and of one that is not, by the name and by the device; the capture goes on."""
    import torch

    plan, given = plan_of("branches+pdl", 16, device.arch), inputs(16, 4)
    before = {name: value.clone() for name, value in given.items()}
    torch.cuda.synchronize()
    book = PlanBook.open()
    with load(plan, given) as loaded:
        captured = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(captured):
            assert not book.lookup(WORKLOAD.name, m=3, kv=77, gpu=device)
            book.refresh()
            assert not book.lookup(WORKLOAD.name, m=3, kv=77, gpu=device.name)
            book.lookup(WORKLOAD.name, m=16, kv=8192, gpu=device)
            loaded.launch()
        assert call("cuGraphGetNodes", captured.raw_cuda_graph())[1] == len(plan.order)
        captured.instantiate()
        poison([loaded])
        captured.replay()
        torch.cuda.synchronize()
        assert differences(WORKLOAD.graph, before, loaded.tensors, plan.shape) == []


def test_torch_allocates_nothing_for_launches(device):
    import torch

    plan, given = plan_of("branches+pdl", 16, device.arch), inputs(16, 9)
    with load(plan, given) as loaded:
        loaded.launch()
        torch.cuda.synchronize()
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        for _ in range(200):
            loaded.launch()
        torch.cuda.synchronize()
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
