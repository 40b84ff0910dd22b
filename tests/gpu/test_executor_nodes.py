"""What the driver holds of a graph: nodes by name, edge kinds, layers in a row, other addresses without rebuilding."""

import pytest
from test_executor_numbers import compiled, lowered, memory, plans

from mktune.executors.cuda_graph import CudaGraph
from mktune.executors.driver_calls import synchronize

pytestmark = pytest.mark.gpu

FULL, PROGRAMMATIC = 0, 1
AFTER_TRIGGER = 1


def build_graph(plan, gpu, layers):
    graph = lowered(plan, gpu)
    held = memory(16, ragged=False)
    buffers, spaces = held.timing(plan)
    kernels = compiled(gpu, [launch.kernel for _, launch in graph.launches])
    return CudaGraph(graph, kernels, type(buffers)(buffers.layers[:layers])), held, spaces


def test_the_driver_reports_the_plans_edges_and_full_ones_between_layers(device):
    built, _, _ = build_graph(plans(16, device, "default")["branches+pdl"], device, 3)
    inside = [
        ((layer, source), (layer, target), PROGRAMMATIC, AFTER_TRIGGER)
        for layer in range(3)
        for source, target in (("A0", "B0p"), ("B0p", "B0f"))
    ]
    between = [((layer, "B0f"), (layer + 1, "A0"), FULL, 0) for layer in range(2)]
    assert built.edges() == sorted(inside + between)
    assert set(built.nodes) == {(layer, name) for layer in range(3) for name in ("A0", "B0p", "B0f")}
    built.close()


def test_serial_plans_have_full_edges_only(device):
    built, _, _ = build_graph(plans(16, device, "default")["serial"], device, 2)
    assert {edge[2:] for edge in built.edges()} == {(FULL, 0)}
    built.close()


def test_every_layer_runs_on_its_own_weights(device):
    import torch

    plan = plans(16, device, "default")["branches+pdl"]
    results = []
    for layers in (1, 2, 3):
        built, held, spaces = build_graph(plan, device, layers)
        built.replay(torch.cuda.current_stream().cuda_stream)
        synchronize()
        assert not any(spaces[name].any() for name in spaces if "counters" in name)
        results.append(held.results["q_lora_q"].view(torch.uint8).clone())
        built.close()
    assert not torch.equal(results[0], results[1])
    assert not torch.equal(results[1], results[2])


def test_rebinding_changes_addresses_without_building(device):
    import torch

    plan = plans(16, device, "default")["branches+pdl"]
    built, held, spaces = build_graph(plan, device, 1)
    stream = torch.cuda.current_stream().cuda_stream
    built.replay(stream)
    synchronize()
    before = held.results["q_lora_q"].view(torch.uint8).clone()
    other = torch.empty_like(held.results["q_lora_q"])
    buffers, _ = held.timing(plan)
    addresses = {**buffers.layers[0], **{name: space.data_ptr() for name, space in spaces.items()}}
    built.rebind(type(buffers)(({**addresses, "q_lora_q": other.data_ptr()},)))
    held.results["q_lora_q"].view(torch.uint8).fill_(0xFF)
    built.replay(stream)
    synchronize()
    assert torch.equal(other.view(torch.uint8), before)
    assert bool((held.results["q_lora_q"].view(torch.uint8) == 0xFF).all())
    built.close()
