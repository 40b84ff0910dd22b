"""A plan loaded in a fresh process that imports nothing but `mktune.runtime` and torch."""

import json
import subprocess
import sys
import textwrap

import pytest

from mktune.executors.discovery import find_device
from mktune.graph.builtin import builtin_plans
from mktune.graph.workload import workload
from mktune.shape import Shape

pytestmark = pytest.mark.gpu

PROGRAM = """
    import json, sys
    import torch
    from mktune.runtime import load

    from mktune.plan import Plan
    from mktune.graph.workload import workload
    from mktune.ops.evaluate import differences
    from mktune.ops.inputs import make_inputs
    from mktune.errors import InputError

    plan = Plan.from_json(sys.stdin.read())
    graph = workload(plan.workload).subgraph(plan.op_names)
    first = make_inputs(graph, plan.shape, 1, "cuda:0")
    before = {name: value.clone() for name, value in first.items()}
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    loaded = load(plan, first)
    for _ in range(5):
        loaded.replay(stream)
    loaded.replay(stream.cuda_stream)
    stream.synchronize()
    wrong = differences(graph, before, loaded.tensors, plan.shape)

    second = make_inputs(graph, plan.shape, 2, "cuda:0")
    kept = {name: value.clone() for name, value in second.items()}
    torch.cuda.synchronize()
    loaded.rebind(second)
    loaded.replay()
    torch.cuda.synchronize()
    wrong += differences(graph, kept, loaded.tensors, plan.shape)

    refused = []
    for name, value in (
        ("x", first["x"].float()),
        ("residual", first["residual"][:, :64]),
        ("norm_w", first["norm_w"].cpu()),
        ("W_a", first["W_a"].view(torch.uint8).t().contiguous().t().view(torch.float8_e4m3fn)),
        ("nonsense", first["x"]),
    ):
        try:
            loaded.rebind({name: value})
        except InputError as error:
            refused.append([name, str(error)])
    try:
        load(plan, {name: value for name, value in first.items() if name != "slots"})
    except InputError as error:
        refused.append(["slots", str(error)])
    loaded.close()
    unwanted = [name for name in ("optuna", "typer", "rich", "sqlalchemy") if name in sys.modules]
    print(json.dumps({"wrong": wrong, "refused": refused, "unwanted": unwanted}))
"""


def test_a_fresh_process_loads_replays_and_rebinds():
    arch = find_device(0).arch
    plan = builtin_plans(workload("glm52_attention_prefix"), ("A0", "B0"), Shape.from_m(16, 1024), arch)["serial+pdl"]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)], input=plan.json, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["wrong"] == []
    assert said["unwanted"] == []
    assert [name for name, _ in said["refused"]] == ["x", "residual", "norm_w", "W_a", "nonsense", "slots"]
    assert all(repr(name) in message or name in message for name, message in said["refused"])


FORK = """
    import os, sys
    import torch
    import mktune, mktune.store
    from mktune.executors.discovery import find_device
    from mktune.runtime import PlanBook

    book = PlanBook.open()
    by_name = book.lookup("glm52_attention_prefix", m=16, kv=8192, gpu="NVIDIA H200")
    assert not torch.cuda.is_initialized()
    if child := os.fork():
        sys.exit(os.waitpid(child, 0)[1] != 0)
    device = find_device()
    assert device.name == torch.cuda.get_device_name(0)
    by_device = book.lookup("glm52_attention_prefix", m=16, kv=8192, gpu=device)
    assert by_device or by_device.reason in ("device", "driver", "cuda"), by_device.message
    assert torch.ones(3, device="cuda").sum().item() == 3
    print(device.name, by_device.plan.short_id if by_device else by_device.message, flush=True)
"""


def test_a_child_finds_its_gpu_and_its_plan_where_the_parent_only_looked_up():
    """Opening a book and looking up start no CUDA, so that a fork may."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(FORK)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    print(done.stdout)
