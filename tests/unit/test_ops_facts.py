"""What kernels are said to touch, and where relative to their wait."""

import pytest

from mktune.ops.gemm import GemmOp
from mktune.ops.registry import all_ops
from mktune.plan import KernelPlan, OpPlan

OPS = all_ops()
GEMMS = ["qkv_a", "head_gate", "indexer_k", "main_q", "indexer_q", "q_absorb"]


def facts(title, gdc="entry", trigger="exit", **config):
    op = OPS[title]
    default = op.default("sm_90a")
    plan = OpPlan.of(default.impl, {**dict(default.config), **config})
    placed = tuple(
        KernelPlan(gdc=gdc if gdc in op.gdc_values(plan, suffix) else "prologue", trigger=trigger)
        for suffix in op.kernels(plan)
    )
    return {kernel.name: kernel for kernel in op.facts(plan, placed)}


def before_wait(kernel):
    return {access.buffer for access in kernel.accesses if not access.after_wait}


def touched(kernel, writes):
    return {access.buffer for access in kernel.accesses if access.writes == writes}


@pytest.mark.parametrize("title", sorted(OPS))
def test_with_gdc_entry_everything_stands_after_the_wait(title):
    for kernel in facts(title).values():
        assert before_wait(kernel) == set()
        assert kernel.waits


@pytest.mark.parametrize("title", GEMMS)
def test_only_weights_stand_before_the_wait_of_a_gemm(title):
    op = OPS[title]
    first = next(iter(facts(title, "prefetch").values()))
    assert before_wait(first) == set(op.operands)
    first = next(iter(facts(title, "prologue").values()))
    assert before_wait(first) == set(op.operands[1:])


def test_norms_read_their_constants_in_the_prologue():
    assert before_wait(facts("add_rmsnorm_quant", "prologue")[""]) == {"norm_w"}
    places = {"cos", "sin", "positions", "slots"}
    assert before_wait(facts("qkv_a", "prologue")["f"]) == {"q_norm_w", "kv_norm_w", *places}
    assert before_wait(facts("indexer_k", "prologue")["f"]) == {"k_ln_w", "k_ln_b", *places}
    assert before_wait(facts("indexer_q", "prologue")["f"]) == places - {"slots"}


def test_only_prefetch_reads_pages_before_the_wait():
    """They are not constants: the closure rule decides whether that may be."""
    assert before_wait(facts("paged_indexer_score", "prologue")[""]) == set()
    assert before_wait(facts("paged_indexer_score", "prefetch")[""]) == {"index_k_cache", "block_table", "context_lens"}


def test_finalizer_kernels_read_what_producers_wrote():
    split = facts("qkv_a", split_k=6)
    assert touched(split["p"], writes=True) == {"partials"}
    assert touched(split["f"], writes=False) >= {"partials", "positions", "slots", "cos", "sin"}
    assert touched(split["f"], writes=True) == {"q_lora_q", "q_lora_s", "mla_cache"}
    whole = facts("qkv_a", split_k=1)
    assert touched(whole["p"], writes=True) == {"y"}
    assert "y" in touched(whole["f"], writes=False)


@pytest.mark.parametrize(
    ("title", "config", "scratch"),
    [
        ("qkv_a", {"split_k": 6}, {"partials", "tile_counters", "y", "row_counters"}),
        ("qkv_a", {"split_k": 1}, {"y", "row_counters"}),
        ("indexer_q", {"split_k": 4, "block_n": 128}, {"partials", "tile_counters"}),
        ("indexer_q", {"split_k": 4, "block_n": 64}, {"partials", "tile_counters"}),
        ("indexer_q", {"split_k": 1, "block_n": 64}, {"y", "row_counters"}),
        ("indexer_k", {"split_k": 1, "block_n": 128}, set()),
    ],
)
def test_a_last_arriver_reads_and_writes_its_own_workspaces(title, config, scratch):
    (kernel,) = facts(title, finalizer="last_arriver", **config).values()
    assert kernel.name == "p"
    assert touched(kernel, writes=True) == scratch | set(OPS[title].outputs)
    assert touched(kernel, writes=False) >= scratch | set(OPS[title].constants) | set(OPS[title].arguments)


@pytest.mark.parametrize(("split_k", "scratch"), [(1, set()), (16, {"partials", "tile_counters"})])
def test_a_gemm_without_finalizer_adds_its_own_splits(split_k, scratch):
    (kernel,) = facts("head_gate", split_k=split_k, finalizer="last_arriver").values()
    assert touched(kernel, writes=True) == scratch | {"g"}


@pytest.mark.parametrize(("title", "kernel"), [("head_gate", ""), ("indexer_k", "p"), ("indexer_q", "p")])
def test_a_cluster_needs_no_scratch_memory(title, kernel):
    found = facts(title, split_k=4, finalizer="cluster")
    assert list(found) == [kernel]
    assert touched(found[kernel], writes=True) == set(OPS[title].outputs)


@pytest.mark.parametrize(
    ("trigger", "kind"),
    [("exit", "exit"), ("start", "before_wait"), ("after_wait", "after_wait"), ("before_epilogue", "after_wait")],
)
@pytest.mark.parametrize("title", sorted(OPS))
def test_trigger_classes(title, trigger, kind):
    for gdc in ("entry", "prologue", "prefetch"):
        assert {kernel.trigger for kernel in facts(title, gdc, trigger).values()} == {kind}


@pytest.mark.parametrize("title", sorted(OPS))
def test_facts_are_made_once(title):
    one, two = facts(title, "prologue"), facts(title, "prologue", **({"block_m": 32} if title in GEMMS else {}))
    assert all(one[name] is two[name] for name in one)


def test_a_port_of_a_gemm_cannot_have_the_name_of_a_workspace():
    with pytest.raises(TypeError, match="Wrong: a GEMM has a workspace partials, y: rename the port"):
        type("Wrong", (GemmOp,), {"ports": {"y": None, "partials": None}})
