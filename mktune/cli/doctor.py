"""`mktune doctor`: what this machine has, what it lacks, and whether anything that is needed is broken."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import typer

from mktune import __version__, knobs, resources
from mktune.cli import render
from mktune.cli.options import Json, StoreUrl, example
from mktune.errors import MktuneError, NothingFoundError, SetupError

OK, ABSENT, BROKEN = "ok", "absent", "broken"

CORE = ("optuna", "sqlalchemy", "alembic", "rich", "typer", "pyyaml")
COMPILE = ("cuda-bindings", "nvidia-cuda-nvrtc")
_PROBE = "template <int kStep> __global__ void probe(int* x) { x[threadIdx.x] += kStep; }"
DEEPGEMM = ("sgl-deep-gemm", "apache-tvm-ffi")


@dataclass(frozen=True)
class Check:
    """One finding. `state` is ok, absent (fine, but something cannot be done) or broken."""

    name: str
    state: str
    detail: str


def add(app: typer.Typer) -> None:
    """Register this group's commands."""
    app.command(**example("mktune doctor"))(doctor)


def doctor(store: StoreUrl = None, as_json: Json = False) -> None:
    """Look at the GPU, the packages, the cache and the store. Exit code 3 where something needed is broken."""
    checks = [_python(), *_packages(), *_own_packages(), _compiler(), _gpu(), _cache(), _store(store)]
    broken = [check.name for check in checks if check.state == BROKEN]
    if as_json:
        render.document({"ok": not broken, "checks": [asdict(check) for check in checks]})
    else:
        columns = [render.Column("check", whole=True), render.Column("state", whole=True), render.Column("detail")]
        styles = {OK: "", ABSENT: "yellow", BROKEN: "bold red"}
        rows = [(check.name, check.state, check.detail) for check in checks]
        render.table(columns, rows, [styles[check.state] for check in checks])
    if broken:
        raise SetupError(f"broken: {', '.join(broken)}")


def _python() -> Check:
    return Check("mktune", OK, f"{__version__}, Python {platform.python_version()} ({sys.executable})")


def _packages() -> Iterator[Check]:
    yield _group("core packages", CORE, BROKEN, "pip install mktune")
    yield _group("compile packages", COMPILE, ABSENT, "cannot compile kernels: pip install 'mktune[compile]'")
    yield _group("torch", ("torch",), ABSENT, "no references and no GPU: pip install 'mktune[gpu]'")
    yield _deep_gemm()
    yield _group("postgres driver", ("psycopg",), ABSENT, "SQLite only: pip install 'mktune[postgres]'")


def _group(name: str, packages: tuple[str, ...], state_if_missing: str, hint: str) -> Check:
    found, missing = [], []
    for package in packages:
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            missing.append(package)
    if missing:
        return Check(name, state_if_missing, f"missing {', '.join(missing)}: {hint}")
    return Check(name, OK, ", ".join(found))


def _deep_gemm() -> Check:
    """Installed is not enough: the templates of one version are known, and their headers must be there."""
    from mktune import deep_gemm

    if unusable := deep_gemm.missing():
        return Check("deepgemm packages", ABSENT, unusable)
    return _group("deepgemm packages", DEEPGEMM, ABSENT, f"no peer in bench-ops: {deep_gemm.INSTALL}")


def _own_packages() -> Iterator[Check]:
    """Only where MKTUNE_PATH names some."""
    from mktune import extensions

    try:
        if own := extensions.packages():
            held = ", ".join(f"{package.name} ({package.folder})" for package in own)
            yield Check("own packages", OK, f"{held}: workloads {', '.join(extensions.names('workloads')) or 'none'}")
        for name in extensions.names("workloads"):
            yield _own_workload(name)
    except MktuneError as error:
        yield Check("own packages", BROKEN, str(error))


def _own_workload(name: str) -> Check:
    """Whether one of one's own workloads has all that tuning it on a GPU needs."""
    from mktune.graph.workload import workload
    from mktune.jit.fingerprint import kernels_fingerprint
    from mktune.ops.launch import has_kernels

    place = f"workload {name}"
    try:
        calls = workload(name).graph.calls
        titles = {call.op.title for call in calls.values()}
        together = {"_".join(calls[op].op.title for op in ops) for ops in workload(name).fusions}
        if not resources.search_space(name).is_file():
            return Check(place, BROKEN, f"it has no search_spaces/{name}.yaml, so that nothing can be tuned")
        if without := sorted(title for title in titles | together if not has_kernels(title)):
            return Check(
                place, ABSENT, f"no ops/launch/<op>.py for {', '.join(without)}: only the simulator can tune it"
            )
        kernels_fingerprint(name)
    except MktuneError as error:
        return Check(place, BROKEN, str(error))
    return Check(place, OK, f"ops {', '.join(sorted(titles))} with kernels and a search space")


def _compiler() -> Check:
    """Compile a small kernel for each architecture, past the cache, and look for the shipped sources."""
    from mktune.device import ARCHITECTURES
    from mktune.jit import nvrtc
    from mktune.jit.disassembly import nvdisasm
    from mktune.jit.source import Source

    if not any(resources.kernels().rglob("*.cu")):
        return Check("compiler", BROKEN, f"the kernel sources are missing from {resources.kernels()}: install again")
    try:
        for arch in ARCHITECTURES:
            nvrtc.compile_program(Source("probe.cu", (("probe.cu", _PROBE),)), ["probe<1>"], arch, ())
    except SetupError as error:
        return Check("compiler", ABSENT, str(error))
    except MktuneError as error:
        return Check("compiler", BROKEN, str(error))
    detail = f"{nvrtc.compiler()} compiles for {', '.join(ARCHITECTURES)}"
    if nvdisasm() is None:
        return Check("compiler", ABSENT, f"{detail}; nvdisasm is missing, so machine code cannot be checked")
    return Check("compiler", OK, f"{detail}; nvdisasm reads the result")


def _cache() -> Check:
    try:
        folder = knobs.cache_dir()
    except MktuneError as error:
        return Check("kernel cache", BROKEN, str(error))
    nearest = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    if not (os.path.isdir(nearest) and os.access(nearest, os.W_OK)):
        return Check("kernel cache", BROKEN, f"cannot write {folder}: set MKTUNE_CACHE_DIR to a folder of yours")
    if nearest != folder:
        return Check("kernel cache", OK, f"{folder} (empty)")
    return Check("kernel cache", OK, f"{folder} ({_size(folder) / 1e6:.1f} MB)")


def _store(url: str | None) -> Check:
    from mktune.location import OLDEST, SCHEMA
    from mktune.store import Store

    try:
        with Store.open(url, write=False, oldest=OLDEST) as store:
            damage, winners = store.damage(), store.winners()
            old = store.schema if store.schema != SCHEMA else ""
            studies = [] if old else store.studies()
    except NothingFoundError as error:
        return Check("store", OK, str(error))
    except MktuneError as error:
        return Check("store", BROKEN, str(error))
    if damage:
        return Check(
            "store", BROKEN, f"{store.location} is damaged ({damage}): restore a copy, or let `mktune tune` go on"
        )
    measured = sum(not winner.measurement.policy.simulated for winner in winners)
    held = f"{measured} measured and {len(winners) - measured} simulated winners"
    if old:
        upgrade = f"schema {old}, which look-ups read; the next `mktune tune` with it upgrades it to {SCHEMA}"
        return Check("store", OK, f"{store.location}: {held}, {upgrade}")
    return Check("store", OK, f"{store.location}: {len(studies)} studies, {held}")


def _size(folder: Path) -> int:
    """Bytes of the files in a folder, without those that may not be looked at or are just being removed."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total


def _gpu() -> Check:
    try:
        from mktune.backends import get

        device = get("cuda").device
    except MktuneError as error:
        nodes = sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]*"))
        state = BROKEN if nodes else ABSENT
        return Check("GPU", state, f"{error} ({', '.join(nodes)} exists)" if nodes else str(error))
    memory = f"{device.sms} SMs, {device.arch}, L2 {device.l2_bytes / 2**20:.0f} MiB"
    return Check("GPU", OK, f"{device.name}, {memory}, driver {device.driver}, CUDA {device.cuda}")
