"""`mktune bench-ops`: each op alone, beside the time that reading its bytes takes and beside the peer's kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mktune.cli import render
from mktune.cli.documents import shape_document
from mktune.cli.options import (
    DEFAULT_WORKLOAD,
    Json,
    OneKv,
    OneM,
    ScaleFormat,
    Tokens,
    Workload,
    check_known,
    example,
    names,
)
from mktune.errors import InputError, SetupError
from mktune.shape import Shape

if TYPE_CHECKING:
    from mktune.measure.op_bench import OpRow

CONFIGS = 24


def add(app: typer.Typer) -> None:
    """Register this group's commands."""
    app.command("bench-ops", **example("mktune bench-ops --m 16 --kv 8192", "mktune bench-ops --ops B0,D0 --all"))(
        bench_ops
    )


def bench_ops(
    workload: Workload = DEFAULT_WORKLOAD,
    m: OneM = 16,
    kv: OneKv = 8192,
    tokens_per_request: Tokens = None,
    ops: Annotated[str | None, typer.Option("--ops", metavar="A0,B0", help="Which ops. [all]")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="A spread of the space's configs too, not only the defaults.")
    ] = False,
    configs: Annotated[int, typer.Option("--configs", metavar="N", help="With --all: configs of each op.")] = CONFIGS,
    scale_format: ScaleFormat = None,
    as_json: Json = False,
) -> None:
    """Measure each op alone on the GPU, weights cold, fastest config first.

    limit: reading the op's bytes, and nothing else. peer: the GEMM of DeepGEMM or cuBLAS, where deep_gemm is installed.
    """
    from mktune.backends.cuda import CudaBackend
    from mktune.graph.workload import workload as known_workload
    from mktune.measure.op_bench import op_table

    if configs < 1:
        raise InputError("--configs must be at least 1")
    known = known_workload(workload, scale_format)
    chosen = names("--ops", ops) or known.ops
    check_known(workload, chosen)
    shape = Shape.from_m(m, kv, tokens_per_request)
    try:
        backend = CudaBackend()
    except SetupError as error:
        raise SetupError(f"bench-ops needs a GPU: {error}") from None
    number = configs if every else 0
    rows, missing = op_table(backend, workload, chosen, shape, number, scale_format=known.scale_format)
    if as_json:
        gpu = {"gpu": backend.device.name, "driver": backend.device.driver, "cuda": backend.device.cuda}
        problem = {"workload": workload, "scale_format": known.scale_format, **shape_document(shape)}
        render.document({**problem, **gpu, "rows": [_data(row) for row in rows], "no_peer": missing})
        return
    render.folded(f"{known.full_name}, M {shape.m}, KV {kv}, {backend.device.name}, times in µs", "bold")
    print_rows(rows)
    for why in dict.fromkeys(missing.values()):
        absent = ", ".join(op for op in missing if missing[op] == why)
        render.folded(f"no peer for {absent}: {why}")


def print_rows(rows: list[OpRow]) -> None:
    """The table, one line for each op, config and mode; a default config is marked with a star."""
    from mktune.cli.summary import short_config

    columns = [
        render.Column("op", whole=True),
        *(render.Column(name, right=True, whole=True) for name in ("µs", "limit", "× limit", "peer", "× peer")),
        render.Column("edges", whole=True),
        render.Column("config"),
    ]
    cells = []
    for row in rows:
        star = "* " if row.is_default else ""
        config = f"{star}{short_config(row.plan.op[row.op])}"
        times = (_number(row.us), _number(row.limit_us), _ratio(row.us, row.limit_us))
        peer = (_number(row.peer_us), _ratio(row.us, row.peer_us))
        edges = "full" if row.mode == "serial" else "pdl"
        cells.append((row.op, *times, *peer, edges, config if row.us else f"{config}  {row.status}: {row.reason}"))
    render.table(columns, cells)


def _data(row: OpRow) -> dict[str, Any]:
    fields = {name: value for name, value in vars(row).items() if name != "plan"}
    return {**fields, "config": row.plan.to_dict()["ops"][row.op], "plan_id": row.plan.plan_id}


def _number(us: float | None) -> str:
    return "" if us is None else f"{us:.2f}"


def _ratio(us: float | None, other: float | None) -> str:
    return "" if us is None or not other else f"{us / other:.2f}"
