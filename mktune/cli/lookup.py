"""`mktune lookup`: what `mktune.runtime` would serve for a shape on a GPU, or why it has nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from mktune.cli import render
from mktune.cli.book import Accept, Aliases, AllowSimulated, AnyBuild, LookedUpOps, asked_gpu, open_book
from mktune.cli.options import Gpu, Json, OneKv, OneM, ScaleFormat, StoreUrl, Tokens, Workload, example, names
from mktune.cli.summary import does, shape_words
from mktune.graph.workload import workload as known_workload

if TYPE_CHECKING:
    from mktune.plan import Plan
    from mktune.runtime import Hit


def add(app: typer.Typer) -> None:
    """Register this group's commands."""
    shown = "mktune lookup glm52_attention_prefix --m 16 --kv 8192 --gpu 'NVIDIA H200'"
    app.command(**example(shown))(lookup)


def lookup(
    workload: Workload,
    m: OneM,
    kv: OneKv,
    tokens_per_request: Tokens = None,
    gpu: Gpu = None,
    ops: LookedUpOps = None,
    allow_simulated: AllowSimulated = False,
    any_build: AnyBuild = False,
    accept: Accept = None,
    alias: Aliases = None,
    scale_format: ScaleFormat = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Look up the plan for a shape on a GPU; a miss says why and exits with 5."""
    known_workload(workload, scale_format)
    hit = open_book(store, accept, any_build, alias).get(
        workload,
        gpu=asked_gpu(gpu),
        m=m,
        kv=kv,
        tokens_per_request=tokens_per_request,
        ops=names("--ops", ops) or None,
        allow_simulated=allow_simulated,
        scale_format=scale_format,
    )
    if as_json:
        render.document(_document(hit))
    else:
        _print(hit)


def _document(hit: Hit) -> dict[str, Any]:
    from mktune.records import winner_to_dict

    found = {"source": hit.source, "simulated": hit.simulated, "differs": list(hit.differs), "alias": hit.alias or None}
    return found | winner_to_dict(hit.winner)


def _rows(plan: Plan) -> str:
    """The M that the plan serves: whole requests of as many tokens as it was tuned for."""
    from mktune.runtime.explanations import rows

    tokens = plan.shape.tokens_per_request
    return f"{rows(*plan.m_range, tokens)} with {tokens} {'token' if tokens == 1 else 'tokens'} per request"


def _print(hit: Hit) -> None:
    from mktune.runtime.explanations import span

    winner, measured = hit.winner, hit.winner.measurement
    mark = " simulated" if hit.simulated else ""
    plan = hit.plan
    rows = [
        ("plan", f"{plan.plan_id}{mark}"),
        ("from", "the plans that ship with mktune" if hit.source == "bundle" else "the store"),
        ("ops", ",".join(plan.op_names)),
        ("scales", plan.scale_format),
        ("tuned for", f"{shape_words(plan.shape)}, {winner.fingerprint.gpu}"),
        ("holds for", f"M {_rows(plan)}, KV {span(*plan.kv_range)}"),
        ("span", f"{measured.span_us:.2f} µs ({measured.low_us:.2f}–{measured.high_us:.2f}){mark}"),
        ("speed-up", f"×{1 / winner.ratio:.2f} over the built-in serial plan"),
        ("does", does(plan)),
    ]
    if hit.alias:
        rows.append(("alias", f"{hit.alias} uses the plans of {winner.fingerprint.gpu}"))
    if hit.differs:
        rows.append(("differs", "; ".join(hit.differs)))
    render.pairs(rows)
