"""Which kernel sources a plan is compiled from, as hashes: what a stored span depends on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from mktune import deep_gemm
from mktune.device import ARCHITECTURES
from mktune.errors import InputError, MktuneError
from mktune.graph.fused import fused_among
from mktune.graph.workload import workload as find
from mktune.jit.source import source_fingerprint
from mktune.launch import KernelSpec
from mktune.ops.deep_gemm import WithDeepGemm
from mktune.ops.gemm_schedules import SOURCES, has_schedule
from mktune.ops.launch import fused_source
from mktune.ops.paged_indexer_score import AHEAD_SOURCE, scores_ahead
from mktune.plan import Plan

if TYPE_CHECKING:
    from mktune.trial import Winner


def kernels_fingerprint(
    workload: str,
    ops: Sequence[str] | None = None,
    fused: Sequence[str] = (),
    scheduled: bool = False,
    provided: Sequence[str] = (),
    ahead: bool = False,
) -> str:
    """The value for `Fingerprint.kernels` of plans of `ops` (None: all): a hash over their sources and includes.

    Behind it, each after a "+", that of every kernel in `fused`, if `scheduled` that of GEMMs with a schedule, one of
    all that DeepGEMM's templates need for the ops that they compute, `provided`, and if `ahead` that of scores that
    multiply ahead: so that the build of the ops stands by itself. Another op's kernel may change, or be added, and
    stored plans of these ops stay valid.
    Raises InputError for an unknown workload, op or fused kernel, SetupError where an op has no kernel source or the
    package with the templates is missing.
    """
    known = find(workload)
    calls = known.subgraph(ops).calls
    stems = sorted({type(call.op).__module__.rpartition(".")[2] for call in calls.values()})
    found = [source_fingerprint([KernelSpec(f"standalone/{stem}.cu", "") for stem in stems])]
    there_are = known.fused_kernels(ops, ARCHITECTURES[0])
    for name in sorted(fused):
        if name not in there_are:
            raise InputError(f"{workload} has no kernel {name}; there are {', '.join(there_are) or 'none'}")
        found.append(source_fingerprint([KernelSpec(fused_source([calls[op].op.title for op in there_are[name]]), "")]))
    if scheduled:
        found.append(source_fingerprint([KernelSpec(source, "") for source in SOURCES]))
    sources: set[str] = set()
    for name in provided:
        op = calls[name].op
        assert isinstance(op, WithDeepGemm), name
        sources.update(op.provided.sources)
    if sources:
        found.append(source_fingerprint([KernelSpec(source, "") for source in sorted(sources)]))
    if ahead:
        found.append(source_fingerprint([KernelSpec(AHEAD_SOURCE, "")]))
    return "+".join(found)


class Sources(NamedTuple):
    """What of a plan decides which sources it is compiled from: the arguments of `kernels_fingerprint`."""

    workload: str
    ops: tuple[str, ...]
    fused: tuple[str, ...]
    scheduled: bool
    provided: tuple[str, ...]
    ahead: bool

    @classmethod
    def of(cls, plan: Plan) -> Sources:
        provided = tuple(name for name, op in plan.ops if op.impl == deep_gemm.IMPL)
        fused, scheduled = fused_among(plan.kernel), has_schedule(plan.op.values())
        return cls(plan.workload, plan.op_names, fused, scheduled, provided, scores_ahead(plan.op.values()))

    @property
    def own(self) -> bool:
        """Whether some are not those of the ops' plain kernels."""
        return bool(self.fused or self.scheduled or self.provided or self.ahead)

    @property
    def packages(self) -> tuple[tuple[str, str], ...]:
        """The value for `Fingerprint.packages`: those whose kernels the plan runs, with the versions that are used."""
        return ((deep_gemm.PACKAGE, deep_gemm.VERSION),) if self.provided else ()


def is_own_build(winner: Winner) -> bool:
    """Whether the plan's span is that of this package's kernels (a model's span never depends on them)."""
    return winner.measurement.policy.simulated or winner.fingerprint.kernels == _own_build(Sources.of(winner.plan))


@cache
def _own_build(sources: Sources) -> str | None:
    try:
        return kernels_fingerprint(*sources)
    except MktuneError:  # a workload, an op, a kernel or a package that is not here
        return None
