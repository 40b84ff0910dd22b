"""The one way from kernel specs to machine code: cache, NVRTC, disassembly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from mktune.errors import CandidateError, MktuneError
from mktune.jit import nvrtc
from mktune.jit.cache import KernelCache
from mktune.jit.disassembly import disassemble_together, nvdisasm
from mktune.jit.sass import read_facts
from mktune.jit.source import Source, load
from mktune.launch import CompiledKernel, KernelSpec
from mktune.trial import Status

LISTED_TOGETHER = 16
"""Kernels that the disassembler, which takes most of its time to start, is started once for."""
_INSTANCES_PER_PROGRAM = 8  # the source is parsed once for that many
_ALIGNED = 1024  # bytes: what our kernels align dynamic shared memory to


@dataclass(frozen=True)
class _Job:
    spec: KernelSpec
    source: Source
    key: str


Read = dict[tuple[str, str], Source]
"""What was read of sources, by path and prelude."""


def build(
    specs: Sequence[KernelSpec],
    arch: str,
    *,
    cache_dir: Path | None = None,
    facts: bool = True,
    sources: Read | None = None,
) -> list[CompiledKernel]:
    """`specs` compiled for `arch` ("sm_90a", …), in their order, from the cache where it has them.

    `facts` False skips the disassembler; `CompiledKernel.facts` may then be None, as it is where nvdisasm is missing.
    `sources` keeps what is read for the caller's next time: files that change meanwhile are not read again.
    Safe in any number of processes at once. Raises CandidateError(compile_error) for code that does not compile,
    InputError for an unknown architecture, SetupError without a compiler, a provider's headers or a cache folder that
    can be written.
    """
    cache = KernelCache(cache_dir)
    reads = facts and nvdisasm() is not None
    found: dict[KernelSpec, CompiledKernel] = {}
    missing: list[_Job] = []
    made: list[tuple[_Job, CompiledKernel]] = []  # what is not yet stored as it is wanted
    for job in _jobs(specs, arch, {} if sources is None else sources):
        kernel = cache.read(job.key, job.spec)
        if kernel is None:
            missing.append(job)
        elif _is_whole(kernel, reads):
            found[job.spec] = kernel
        else:
            made.append((job, kernel))
    failed: CandidateError | None = None
    for jobs in _programs(missing):
        try:
            made += zip(jobs, _compile(jobs, arch), strict=True)
        except CandidateError as error:  # what was compiled before is kept
            failed = error
            break
    for job, kernel in _with_facts(made) if reads else made:
        cache.write(job.key, kernel, job.source)
        found[job.spec] = kernel
    if failed is not None:
        raise failed
    return [found[spec] for spec in specs]


def is_built(spec: KernelSpec, arch: str, sources: Read) -> bool:
    """Whether `build` would find `spec` in the cache, with its facts. Compiles nothing; see `build` for `sources`."""
    try:
        (job,) = _jobs([spec], arch, sources)
        kernel = KernelCache().read(job.key, spec)
    except MktuneError:  # `build` says why
        return False
    return kernel is not None and _is_whole(kernel, nvdisasm() is not None)


def _is_whole(kernel: CompiledKernel, reads: bool) -> bool:
    """Its facts are there, or nobody wants or can read them."""
    return kernel.facts is not None or not reads


def _jobs(specs: Sequence[KernelSpec], arch: str, sources: Read) -> list[_Job]:
    for path, prelude in {(spec.source, spec.prelude) for spec in specs} - sources.keys():
        sources[path, prelude] = load(path, prelude=prelude)
    compiler = nvrtc.compiler()
    jobs = []
    for spec in dict.fromkeys(specs):
        source = sources[spec.source, spec.prelude]
        key = KernelCache.key(spec, source, arch, compiler, nvrtc.options(arch, spec.defines, source.is_provided))
        jobs.append(_Job(spec, source, key))
    return jobs


def _programs(jobs: Sequence[_Job]) -> Iterator[list[_Job]]:
    """Jobs of one source, one prelude and one set of macros, in handfuls."""
    groups: dict[tuple[str, str, tuple[tuple[str, str], ...]], list[_Job]] = {}
    for job in jobs:
        groups.setdefault((job.spec.source, job.spec.prelude, job.spec.defines), []).append(job)
    for group in groups.values():
        rest = iter(group)
        while chunk := list(islice(rest, _INSTANCES_PER_PROGRAM)):
            yield chunk


def _compile(jobs: Sequence[_Job], arch: str) -> list[CompiledKernel]:
    """Jobs of one program, without facts, together as far as each gets what it would have alone."""
    kernels = _program(jobs, arch)
    again = _padded(kernels)
    found = {kernel.spec: kernel for kernel in kernels if kernel.spec not in again}
    apart = [job for job in jobs if job.spec in again]
    for group in [apart] if found and apart else [[job] for job in apart]:
        found |= {kernel.spec: kernel for kernel in _compile(group, arch)}
    return [found[job.spec] for job in jobs]


def _with_facts(made: Sequence[tuple[_Job, CompiledKernel]]) -> Iterator[tuple[_Job, CompiledKernel]]:
    rest = iter(made)
    while chunk := list(islice(rest, LISTED_TOGETHER)):
        cubins = list(dict.fromkeys(kernel.cubin for _, kernel in chunk))
        listings = dict(zip(cubins, disassemble_together(cubins), strict=True))
        for job, kernel in chunk:
            known = replace(kernel, facts=read_facts(kernel, listings[kernel.cubin]))
            if job.source.is_provided:
                _expect_mma(known)
            yield job, known


def _padded(kernels: Sequence[CompiledKernel]) -> set[KernelSpec]:
    """Kernels whose static shared memory may hold padding that it has not alone.

    Where any kernel of a program has a dynamic array, ptxas aligns the end of every kernel's static memory for it.
    """
    static = {kernel.spec for kernel in kernels if kernel.static_smem}
    alone = len(kernels) == 1
    as_alone = len(static) == len(kernels) and all(kernel.static_smem < _ALIGNED for kernel in kernels)
    return set() if alone or as_alone else static


def _program(jobs: Sequence[_Job], arch: str) -> list[CompiledKernel]:
    """Machine code and resources, without facts."""
    names = list(dict.fromkeys(job.spec.name_expression for job in jobs))
    program = nvrtc.compile_program(jobs[0].source, names, arch, jobs[0].spec.defines)
    kernels = []
    for job in jobs:
        symbol, resources = program.kernels[job.spec.name_expression]
        kernels.append(
            CompiledKernel(
                spec=job.spec,
                arch=arch,
                cubin=program.cubin,
                symbol=symbol,
                registers=resources.registers,
                static_smem=resources.static_smem,
                stack_bytes=resources.stack_bytes,
                spill_bytes=resources.spill_bytes,
                compiler=nvrtc.compiler(),
                facts=None,
            )
        )
    return kernels


def _expect_mma(kernel: CompiledKernel) -> None:
    """DeepGEMM's templates compile to nothing, without a word, on an architecture that they were not written for."""
    if kernel.facts is not None and not kernel.facts.mma:
        what = f"{kernel.spec.name_expression.partition('<')[0]} multiplies nothing when compiled for {kernel.arch}"
        raise CandidateError(Status.COMPILE_ERROR, f"{what}: it is a template of another architecture")
