"""A whole graph by its references, and what differs between that and what a GPU made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mktune.graph.opgraph import Call, OpGraph
from mktune.ops.base import Tensors
from mktune.ops.tolerances import END_TO_END_RMS
from mktune.shape import Shape

if TYPE_CHECKING:
    import torch


def evaluate(graph: OpGraph, inputs: Tensors, shape: Shape) -> dict[str, torch.Tensor]:
    """Every tensor that the graph's ops make, by the ops' references. `inputs` is not changed."""
    known, made = dict(inputs), {}
    for call in graph.calls.values():
        outputs = call.op.reference({port: known[tensor] for port, tensor in call.inputs}, shape)
        for port, tensor in call.outputs:
            known[tensor] = made[tensor] = outputs[port]
    return made


def differences(graph: OpGraph, inputs: Tensors, outputs: Tensors, shape: Shape) -> list[str]:
    """What is wrong with `outputs`, every tensor that the graph's ops made (caches as they are afterwards).

    Each op is judged on the inputs that it really had: those of `inputs` (caches as they were before), or what the op
    before it made in `outputs`. One line each, "B0: q_lora_q: …"; empty where all is right. Raises MktuneError where
    a reference is not finite.
    """
    found = []
    for call in graph.calls.values():
        wrong = call.op.compare(actual_inputs(call, inputs, outputs), _outputs(call, outputs), shape)
        found += [f"{call.name}: {line}" for line in wrong]
    return found


def actual_inputs(call: Call, inputs: Tensors, outputs: Tensors) -> dict[str, torch.Tensor]:
    """By port: what `call` read. A tensor that an earlier op made is in `outputs`, else in `inputs`."""
    made = dict(call.sources)
    return {port: (outputs if tensor in made else inputs)[tensor] for port, tensor in call.inputs}


def end_to_end(graph: OpGraph, expected: Tensors, outputs: Tensors) -> list[str]:
    """A sanity bound on the graph's floating-point outputs against `evaluate`; zeros in `expected` are left out.

    Undefined logits are zeros there; caches are left out, since most of their rows stay as they were. It only says
    that something is badly wrong: `differences` decides.
    """
    found = []
    for name in graph.outputs:
        if graph.tensors[name].dtype not in ("bf16", "f32") or graph.tensors[name].kind == "cache":
            continue
        right = expected[name].double()
        error = (outputs[name].double() - right).where(right != 0, 0.0)
        relative = float(error.square().mean().sqrt() / right.square().mean().sqrt().clamp_min(1e-300))
        if not relative <= END_TO_END_RMS:
            found.append(f"{name}: relative RMS error {relative:.3g} end to end, at most {END_TO_END_RMS}")
    return found


def _outputs(call: Call, outputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {port: outputs[tensor] for port, tensor in call.outputs}
