"""Bits that do not repeat from run to run, or beside other requests, are found and named; those that do are said to."""

import pytest

torch = pytest.importorskip("torch")

from mktune.device import Device  # noqa: E402
from mktune.graph.builtin import make_plan  # noqa: E402
from mktune.graph.workload import workload  # noqa: E402
from mktune.lowering.graph import lower  # noqa: E402
from mktune.measure import correctness  # noqa: E402
from mktune.measure.correctness import Checked  # noqa: E402
from mktune.measure.memory import make_memory  # noqa: E402
from mktune.measure.repeatability import ONE_REQUEST, beside_others, others_changed, repeatability  # noqa: E402
from mktune.ops.evaluate import evaluate  # noqa: E402
from mktune.shape import Shape  # noqa: E402

KNOWN = workload("glm52_attention_prefix")
H200 = Device("NVIDIA H200", "sm_90a", 132, 232448, 60 << 20, 4.8e12)
OPS = ("A0", "B0", "B1")
SHAPE = Shape(3, 2, 128)  # six rows, which two columns of padding follow where scales are stored


class Stage:
    """A plan whose launches are the references, after which `spoil(checked, run)` may change what they left."""

    def __init__(self, ops, shape):
        self.graph, self.shape = KNOWN.subgraph(ops), shape
        self.copies = make_memory(self.graph, shape, 2, 0, "cpu").verification()
        self.plan = make_plan(KNOWN, ops, shape, "sm_90a", "serial")
        self.lowered = lower(self.plan, self.graph, shape, H200, launches=True)
        self.runs = 0
        self.spoil = lambda copies, run: None

    def replay(self):
        for made, layer in zip(self.copies.made, self.copies.memory.bound, strict=True):
            results = evaluate(self.graph, {**self.copies.memory.args, **layer}, self.shape)
            for name, tensor in made.items():
                tensor.copy_(results[name])
        self.spoil(self.copies, self.runs)
        self.runs += 1

    def beside_others(self):
        return beside_others(self.plan, self.lowered, {}, self.copies)


@pytest.fixture
def stage(monkeypatch):
    class Graph:
        def __init__(self, lowered, kernels, buffers, poison):
            pass

        def close(self):
            pass

    def make(ops=OPS, shape=SHAPE):
        made = Stage(ops, shape)
        monkeypatch.setattr(Checked, "replay", lambda checked: made.replay())
        return made

    monkeypatch.setitem(correctness.EXECUTABLES, "cuda_graph", Graph)
    return make


def test_references_give_a_request_the_same_bits_beside_any_others(stage):
    made = stage()
    before = {name: value.clone() for name, value in made.copies.memory.args.items()}
    found = repeatability(made.plan, made.lowered, {}, made.copies, 16, 0)
    assert found.to_dict() == {"deterministic": "yes", "batch invariant": "yes"}
    assert made.runs == 2
    assert all(torch.equal(value, before[name]) for name, value in made.copies.memory.args.items())


def test_other_data_really_stand_beside_it_and_its_own_stay(stage):
    made = stage(("B0",))
    args = made.copies.memory.args
    codes, scales = args["h_q"].view(torch.uint8).clone(), args["h_s"].clone()
    with others_changed(made.copies):
        now, own = args["h_q"].view(torch.uint8), SHAPE.tokens_per_request
        assert torch.equal(now[:own], codes[:own])
        assert torch.equal(now[own:], codes[:1].expand(SHAPE.m - own, -1))
        assert not torch.equal(codes[own:], codes[:1].expand(SHAPE.m - own, -1))
        assert torch.equal(args["h_s"][:, own : SHAPE.m], scales[:, :1].expand(-1, SHAPE.m - own))
        assert torch.equal(args["h_s"][:, SHAPE.m :], scales[:, SHAPE.m :])  # padding stays zero


@pytest.mark.parametrize("name", ["residual_out", "h_s", "q_lora_q", "mla_cache", "index_k_cache"])
def test_a_row_that_depends_on_its_batch_is_named_with_its_tensor(stage, name):
    made = stage()

    def leak(copies, run):
        """In the second run one bit of the first request's last row differs."""
        if run != 1:
            return
        value, row = copies.made[1][name], SHAPE.tokens_per_request - 1
        flat = value.view(-1).view(torch.uint8)
        if name.endswith("cache"):
            op = made.graph.calls["B0" if name == "mla_cache" else "B1"].op
            first, _ = op.written(name, copies.memory.args)[0]
            flat[first] ^= 1
        elif name == "h_s":
            value.view(torch.int32)[3, row] ^= 1
        else:
            value.view(torch.uint8 if name == "q_lora_q" else torch.int16)[row, 5] ^= 1

    made.spoil = leak
    assert made.beside_others() == [name]
    found = repeatability(made.plan, made.lowered, {}, made.copies, 16, 2)
    assert found.deterministic == "no: 2 of 16 replays differ in bits within tolerance"


def test_what_happens_to_other_requests_is_no_matter(stage):
    made = stage(("A0",))

    def elsewhere(copies, run):
        if run == 1:
            copies.made[0]["h"][SHAPE.tokens_per_request :] = 0

    made.spoil = elsewhere
    assert made.beside_others() == []


def test_a_single_request_has_nothing_beside_it(stage):
    made = stage(("A0",), Shape(1, 4, 128))
    assert repeatability(made.plan, made.lowered, {}, made.copies, 16, 0).batch_invariant == ONE_REQUEST
    assert made.runs == 0
