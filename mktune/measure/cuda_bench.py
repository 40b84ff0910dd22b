"""A bench on the GPU of this machine. All that touches it runs in a worker process; this one never imports torch."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

from mktune import __version__
from mktune.backends.base import Bench, Problem, Stamps
from mktune.backends.cuda import TRIAL_SECONDS
from mktune.device import Device
from mktune.errors import CandidateError, InputError, MktuneError, NothingFoundError, SetupError
from mktune.jit.fingerprint import Sources, kernels_fingerprint
from mktune.jit.nvrtc import compiler
from mktune.launch import KernelSpec
from mktune.lowering.graph import lower
from mktune.lowering.kernel_graph import specs_of
from mktune.measure import promotion
from mktune.measure.attribution import attribute, put_back
from mktune.measure.compile_ahead import CompileAhead
from mktune.measure.deadline import Deadlines
from mktune.measure.gpu_lock import gpu_lock
from mktune.measure.memory import layers_for, shares_kv
from mktune.measure.narrowing import FIRST_PAIRS, Compared, compared, may_return
from mktune.measure.promotion import Arm
from mktune.measure.screening import BRIEF, ScreeningBudget
from mktune.measure.session import TRIES
from mktune.measure.stream import graphs as stream_graphs
from mktune.measure.tracing import trace_of, traced
from mktune.measure.worker import START_SECONDS, Reply, Worker, WorkerDied
from mktune.phases import Phases
from mktune.plan import Plan
from mktune.trace import Trace
from mktune.trial import NO, Fingerprint, Measurement, Outcome, Policy, Status, Winner

HOST = "mktune.measure.host:CudaHost"
ROUNDS_SECONDS = 120.0
VALIDATE_SECONDS = 300.0
PROCESSES = 2
_KNOWN = 500  # plans whose kernels are remembered
ROUNDS = 16  # two pairs of every two arms each, every pair of new builds
FIRST_ROUNDS = FIRST_PAIRS // 2
STRUCTURED = 2  # finalists whose configs are tried in the built-in structures too
TRACED_ROUNDS = 64

Compare = Callable[[Sequence[Arm]], Compared]
"""Arms → what all their rounds gave. Raises CandidateError."""


class _DoesNotRepeat(CandidateError):
    """A plan is right, but its bits do not repeat, where only one may win whose bits do."""


@dataclass(frozen=True)
class _Survivor:
    """The arm that validation did not refute, how it was validated, and what else that found."""

    arm: Arm
    validated: str
    notes: Mapping[str, str]


class CudaBench(Bench):
    """See `Bench`. `budget` is what one screening may cost; `trial_seconds` caps what `deadlines` allow a trial.

    host      the class that lives in the worker process, as "module:class"
    compiler  that of a bench of the problem on another GPU of the kind, which is closed after this one

    A part of another bench's problem uses the processes of that one, its `whole`; so may the same at another shape.
    """

    builds_differ = True

    def __init__(
        self,
        device: Device,
        index: int,
        problem: Problem,
        trial_seconds: float = TRIAL_SECONDS,
        whole: CudaBench | None = None,
        host: str = HOST,
        compiler: CompileAhead | None = None,
    ) -> None:
        self.problem = problem
        self.budget = ScreeningBudget()
        self.deadlines = Deadlines(trial_seconds)
        self._device, self._index, self._trial_seconds, self._whole = device, index, trial_seconds, whole
        self._workload = problem.known
        self._graph = self._workload.subgraph(problem.ops)
        layers = layers_for(self._graph, problem.shape, device)
        self.policy = Policy("cuda", layers=layers, shared_kv=shares_kv(self._graph, problem.shape, layers))
        self.fingerprint = fingerprint_of(device, problem)
        self._borrows = compiler is not None
        self._compiler: CompileAhead = whole._compiler if whole else compiler or CompileAhead(device.arch)
        self._worker: Worker = whole._worker if whole else _worker(host, device, index, problem)
        self._started, self._began_in = 0, 0  # the process, and how many candidates of ours were begun in it
        self._is_warm = False
        self._known_specs: dict[str, list[KernelSpec]] = {}

    def alone(self, ops: Sequence[str]) -> CudaBench:
        return CudaBench(self._device, self._index, self.problem.part(ops), self._trial_seconds, self._whole or self)

    @property
    def compiler(self) -> CompileAhead:
        """What compiles for this bench."""
        return self._compiler

    def prepare(self, plans: Sequence[Plan]) -> None:
        self._worker.start()
        for plan in plans:
            try:
                self._compiler.submit(self._specs(plan))
            except MktuneError:
                continue  # `measure` says what is wrong with it

    def ready(self, plan: Plan) -> bool:
        try:
            return self._compiler.ready(self._specs(plan))
        except MktuneError:
            return True  # `measure` says at once what is wrong with it

    def compiled(self, plan: Plan) -> bool:
        try:
            return self._compiler.has(self._specs(plan))
        except MktuneError:
            return False

    def measure(self, plan: Plan, incumbent_us: float | None) -> Outcome:
        begin = time.perf_counter()
        try:
            self._compiler.wait(self._specs(plan))
            waited = time.perf_counter() - begin
            request = {"do": "trial", "plan": plan.json, "incumbent_us": incumbent_us, "budget": asdict(self.budget)}
            reply = self._try(request, TRIES * self.budget.seconds)
        except CandidateError as error:
            return Outcome(Status(error.status), str(error), seconds=(("total", time.perf_counter() - begin),))
        except InputError as error:
            return Outcome(Status.BUILD_ERROR, str(error))
        seconds = {"compile": waited, **reply["seconds"], "total": time.perf_counter() - begin}
        return Outcome(
            Status(reply["status"]), reply["reason"], self._measurement(reply), tuple(sorted(seconds.items()))
        )

    def brief(self) -> None:
        self.budget = BRIEF

    def calibrate(self) -> dict[str, float]:
        """Timer step (ns), event quantum and empty-graph time (µs) of this GPU."""
        reply = self._ask({"do": "calibrate"}, self._trial_seconds)
        return {name: float(value) for name, value in reply.items() if isinstance(value, int | float)}

    def verify(self, plan: Plan) -> str:
        status, reason = self._checked(plan)
        return "" if status == Status.OK else f"{status}: {reason}"

    def rounds(self, plans: Mapping[str, Plan], rounds: int = ROUNDS) -> tuple[promotion.Samples, dict[str, float]]:
        """Paired spans of plans that were verified, two a round, and the device's state. Raises CandidateError."""
        for plan in plans.values():
            self._compiler.wait(self._specs(plan))
        request = {"do": "rounds", "plans": {name: plan.json for name, plan in plans.items()}, "rounds": rounds}
        reply = self._ask(request, ROUNDS_SECONDS)
        return reply["samples"], reply["device_state"]

    def paired(self, plans: Mapping[str, Plan]) -> tuple[dict[str, list[float]], dict[str, float]]:
        """From `PROCESSES` fresh processes, in each in another order; the state is that of the last."""
        merged: dict[str, list[float]] = {name: [] for name in plans}
        state: dict[str, float] = {}
        for process in range(PROCESSES):
            self.restart()
            samples, state = self.rounds(_shuffled(plans, process))
            for name in plans:
                merged[name] += samples[name]
        return merged, state

    def validate(self, plan: Plan, effort: Mapping[str, int] | None = None) -> str:
        """How `plan` was validated. Raises CandidateError with what failed."""
        return self._survives(plan, effort)[0]

    def _survives(self, plan: Plan, effort: Mapping[str, int] | None = None) -> tuple[str, dict[str, str]]:
        """How `plan` was validated, and notes: whether its bits repeat (`repeatability`), and what the probe says.

        Raises CandidateError with what failed; where only a plan may win whose bits repeat, also with what does not.
        """
        request = {"do": "validate", "plan": plan.json, "effort": dict(effort or {})}
        reply = self._ask(request, VALIDATE_SECONDS)
        repeats = {str(name): str(said) for name, said in reply["repeats"].items()}
        for name, said in repeats.items():
            if self.deterministic and said.startswith(NO):
                raise _DoesNotRepeat(Status.WRONG_RESULT, f"not {name}: {said.removeprefix(NO)}")
        return str(reply["validated"]), {**repeats, "probe": str(reply["probe"])}

    def stamps(self, plan: Plan, kernels: Sequence[str], replays: int = 60) -> Stamps:
        """Medians over replays of a diagnostic build; see `measure.stamps`."""
        request = {"do": "stamps", "plan": plan.json, "kernels": list(kernels), "replays": replays}
        reply = self._ask(request, ROUNDS_SECONDS)
        times = {name: (float(begin), float(end)) for name, (begin, end) in reply["kernels"].items()}
        return Stamps(times, float(reply["stamped_span_us"]))

    def trace(self, plan: Plan, rounds: int = TRACED_ROUNDS) -> Trace:
        """Medians over `rounds` layers, and the CTAs of one; see `measure.tracing`."""
        lowered = lower(plan, self._graph, plan.shape, self._device, launches=True)
        self._compiler.wait([*specs_of(lowered), *specs_of(traced(lowered))])
        reply = self._ask({"do": "trace", "plan": plan.json, "rounds": rounds}, ROUNDS_SECONDS)
        return trace_of(plan, lowered, self._device.name, self._device.sms, reply)

    @property
    def cold_bytes(self) -> int:
        """Bytes of a layer that must come from memory."""
        return sum(call.op.bytes_read(self.problem.shape) for call in self._graph.calls.values())

    def stream_limit(self, size: int) -> float:
        """µs that reading `size` cold bytes takes on this GPU, kernel boundary included; see `measure.stream`."""
        self._compiler.wait([spec for graph in stream_graphs(size, self._device) for spec in specs_of(graph)])
        return float(self._ask({"do": "limit", "size": size}, ROUNDS_SECONDS)["us"])

    def peer(self, op: str) -> float:
        """µs of the peer's kernel for `op`; see `measure.peer`. Raises CandidateError where there is none."""
        return float(self._ask({"do": "peer", "op": op}, ROUNDS_SECONDS)["us"])

    def restart(self) -> None:
        """Go on in a fresh process."""
        self._worker.restart()

    def promote(self, finalists: Sequence[Plan], builtins: dict[str, Plan]) -> Winner:
        others = promotion.structures(finalists[:STRUCTURED], self._workload, self.problem.ops, self._device.arch)
        arms = promotion.arms(finalists, builtins, others)
        self.prepare([arm.plan for arm in arms])
        outcomes = {arm.name: self._checked(arm.plan) for arm in arms}
        right = promotion.right_arms(arms, outcomes)
        rounds, failed = self._without_failing(right, self._narrowed)
        decision, survivor, refuted = self._decided(rounds)
        if refuted and may_return(rounds, decision, survivor.arm if survivor else None):
            rounds, more = self._without_failing([arm for arm in right if _key(arm) not in failed], self._unnarrowed)
            failed |= more
            decision, survivor, refuted = self._decided(rounds, refuted)
        if survivor is None:
            raise _nothing_survived(refuted)
        plan = survivor.arm.plan
        losses, missing = attribute(plan, self._device, self.verify, lambda plans: self.rounds(plans)[0])
        notes = {"clocks": _clocks(self.calibrate()), **survivor.notes, **rounds.notes}
        notes |= {f"refuted {name}": str(why) for name, why in refuted.items()}
        notes |= {f"left out {arm.name}": failed[_key(arm)] for arm in arms if _key(arm) in failed}
        notes |= {f"attribution of {group}": why for group, why in missing.items()}
        return promotion.winner(
            decision,
            survivor.arm,
            rounds.samples,
            policy=self.policy,
            fingerprint=self._built_as(plan),
            validated=survivor.validated,
            device_state=tuple(sorted(rounds.state.items())),
            notes=notes,
            attribution=losses,
        )

    def close(self) -> None:
        if self._whole is None:
            self._worker.close()
            if not self._borrows:
                self._compiler.close()

    @property
    def build(self) -> str:
        ops = self.problem.ops
        fused = tuple(self._workload.fused_kernels(ops, self._device.arch))
        implied = {field for call in self._workload.subgraph(ops).calls.values() for field in call.op.implied}
        scheduled, ahead = "schedule" in implied, "ahead" in implied
        return kernels_fingerprint(self.problem.workload, ops, fused, scheduled, ahead=ahead)

    def _built_as(self, plan: Plan) -> Fingerprint:
        """The fingerprint of a plan."""
        return fingerprint_of_plan(self.fingerprint, plan)

    def _checked(self, plan: Plan) -> tuple[Status, str]:
        try:
            self._compiler.wait(self._specs(plan))
            self._try({"do": "verify", "plan": plan.json})
        except CandidateError as error:
            return Status(error.status), str(error)
        except InputError as error:
            return Status.BUILD_ERROR, str(error)
        return Status.OK, ""

    def _without_failing(self, arms: Sequence[Arm], compare: Compare) -> tuple[Compared, dict[str, str]]:
        """What `compare` gives of the arms, without those that fail in it, and why they do, by `_key`.

        What failed once may have been chance, such as a clock that moved. Where it fails again, each plan is run by
        itself. Raises CandidateError where none of them is to blame.
        """
        try:
            return compare(arms), {}
        except CandidateError:
            pass
        try:
            return compare(arms), {}
        except CandidateError as error:
            plans = {_key(arm): arm.plan for arm in arms}
            failed = self._failing(plans)
            if not failed or len(failed) == len(plans):
                raise error from None
        return compare([arm for arm in arms if _key(arm) not in failed]), failed

    def _narrowed(self, arms: Sequence[Arm]) -> Compared:
        """As many rounds as `paired`, without those of what is surely slower in the rounds before."""
        first = partial(self._block, 0, FIRST_ROUNDS, afresh=True)
        rest = partial(self._block, 1, ROUNDS - FIRST_ROUNDS, afresh=False)
        return compared(
            arms, [first, rest, *(partial(self._block, n, ROUNDS, afresh=True) for n in range(2, PROCESSES + 1))]
        )

    def _unnarrowed(self, arms: Sequence[Arm]) -> Compared:
        """All rounds of all arms."""
        samples, state = self.paired({_key(arm): arm.plan for arm in arms})
        return Compared(tuple(arms), _by_arm(arms, samples), state)

    def _block(
        self, number: int, rounds: int, arms: Sequence[Arm], *, afresh: bool
    ) -> tuple[promotion.Samples, dict[str, float]]:
        """`rounds` in an order that goes with `number`; afresh: in a fresh process."""
        if afresh:
            self.restart()
        samples, state = self.rounds(_shuffled({_key(arm): arm.plan for arm in arms}, number), rounds)
        return _by_arm(arms, samples), state

    def _decided(
        self, rounds: Compared, refuted: Mapping[str, CandidateError] | None = None
    ) -> tuple[promotion.Decision, _Survivor | None, dict[str, CandidateError]]:
        """The decision, what survives of its ranking but for those `refuted` before, and all that were refuted."""
        decision, refuted = promotion.decide(rounds.arms, rounds.samples), refuted or {}
        ranked = [arm for arm in decision.ranked if arm.name not in refuted]
        if ranked:
            likely = put_back(ranked[0].plan, self._device).values()
            self.prepare([changed.plan for changed in likely])  # compiled while the likely winner is validated
        survivor, more = self._validated(ranked)
        return decision, survivor, {**refuted, **more}

    def _failing(self, plans: Mapping[str, Plan]) -> dict[str, str]:
        """Which of the plans cannot be timed even alone, and why."""
        failed: dict[str, str] = {}
        for name, plan in plans.items():
            try:
                self.rounds({name: plan}, 1)
            except CandidateError as error:
                failed[name] = f"{error.status}: {error}"
        return failed

    def _validated(self, ranked: Sequence[Arm]) -> tuple[_Survivor | None, dict[str, CandidateError]]:
        """The first arm that validation does not refute, if any, and what refuted those before it."""
        refuted: dict[str, CandidateError] = {}
        for arm in ranked:
            try:
                return _Survivor(arm, *self._survives(arm.plan)), refuted
            except CandidateError as error:
                refuted[arm.name] = error
        return None, refuted

    def _measurement(self, reply: Reply) -> Measurement:
        state = tuple(sorted(reply["device_state"].items()))
        span, low, high = reply["span"]
        return Measurement(span, low, high, tuple(reply["samples"]), self.policy, state)

    def _ask(self, request: Reply, seconds: float) -> Reply:
        with gpu_lock(self._device.uuid):
            self._open()
            return self._worker.ask(request, seconds)

    def _try(self, request: Reply, measuring: float = 0.0) -> Reply:
        """Ask for a candidate, until its deadline. The reply's `seconds` also say what came before its turn.

        Where the process dies and others were begun in it before, the candidate has another try, in a process that is
        its own: what dies there is its doing.
        """
        phases = Phases()
        begin = time.perf_counter()
        with gpu_lock(self._device.uuid):
            phases.seconds["queue"] = time.perf_counter() - begin
            try:
                reply = self._one_try(request, measuring, phases)
            except WorkerDied:
                if self._began_in == 1:
                    raise
                reply = self._one_try(request, measuring, phases)  # one before may have been what killed it
        return {**reply, "seconds": {**reply.get("seconds", {}), **phases.seconds}}

    def _one_try(self, request: Reply, measuring: float, phases: Phases) -> Reply:
        with phases("start"):
            self._open()
        first, begin = not self._is_warm, time.perf_counter()
        self._began_in += 1
        reply = self._worker.ask(request, self.deadlines.seconds(first=first, measuring=measuring))
        took = time.perf_counter() - begin
        self.deadlines.ended(took - reply.get("seconds", {}).get("measure", 0.0), first=first)
        self._is_warm = True
        return reply

    def _open(self) -> None:
        """Have the problem in the worker's memory, before any candidate's turn: what goes wrong is not its fault.

        A process that the candidate before left behind broken is replaced once. Raises SetupError.
        """
        request = {"do": "open", "ops": list(self.problem.ops), "shape": _numbers(self.problem)}
        try:
            made = self._worker.ask(request, START_SECONDS).get("made", True)
        except CandidateError:
            self._worker.restart()
            made = True
            try:
                self._worker.ask(request, START_SECONDS)
            except CandidateError as error:
                raise SetupError(f"the GPU cannot be used for this problem: {error.status}: {error}") from None
        if made or self._worker.starts != self._started:
            self._is_warm = False
        if self._worker.starts != self._started:
            self._started, self._began_in = self._worker.starts, 0

    def _specs(self, plan: Plan) -> list[KernelSpec]:
        """Asked for again and again while a plan waits. Raises what `lower` does."""
        found = self._known_specs.get(plan.plan_id)
        if found is None:
            found = specs_of(lower(plan, self._graph, plan.shape, self._device, launches=True))
            if len(self._known_specs) >= _KNOWN:
                del self._known_specs[next(iter(self._known_specs))]  # what waits was asked for later
            self._known_specs[plan.plan_id] = found
        return found


def _numbers(problem: Problem) -> list[int]:
    return [problem.shape.requests, problem.shape.tokens_per_request, problem.shape.kv]


def _worker(host: str, device: Device, index: int, problem: Problem) -> Worker:
    return Worker(
        host,
        {
            "workload_name": problem.workload,
            "ops": list(problem.ops),
            "shape": _numbers(problem),
            "seed": problem.seed,
            "scale_format": problem.scale_format,
            "device": asdict(device),
            "index": index,
        },
        spare=True,
    )


def _key(arm: Arm) -> str:
    return arm.plan.plan_id + (promotion.AGAIN if arm.role == "noise" else "")


def _by_arm(arms: Sequence[Arm], samples: promotion.Samples) -> dict[str, Sequence[float]]:
    """Samples by arm name: arms with equal plans share theirs, but for noise."""
    return {arm.name: samples[_key(arm)] for arm in arms}


def _shuffled(plans: Mapping[str, Plan], seed: int) -> dict[str, Plan]:
    return {name: plans[name] for name in random.Random(seed).sample(sorted(plans), len(plans))}


def _nothing_survived(refuted: Mapping[str, CandidateError]) -> MktuneError:
    """NothingFoundError where some are right but do not repeat."""
    reasons = "; ".join(f"{name}: {why}" for name, why in refuted.items())
    if any(isinstance(why, _DoesNotRepeat) for why in refuted.values()):
        return NothingFoundError(f"no plan has bits that repeat (leave --deterministic out to store one): {reasons}")
    return MktuneError(f"no plan survived validation: {reasons}")


def _clocks(found: Mapping[str, float]) -> str:
    return (
        f"timer step {found['timer_tick_ns']:g} ns, event quantum {found['event_quantum_us']:.3f} us, "
        f"empty graph {found['empty_graph_us']:.2f} us"
    )


def fingerprint_of(device: Device, problem: Problem) -> Fingerprint:
    """What plans of `problem` are measured with on `device` by this build of mktune."""
    return Fingerprint(
        gpu=device.name,
        sms=device.sms,
        compute_capability=device.compute_capability,
        driver=device.driver,
        cuda=device.cuda,
        compiler=compiler(),
        kernels=kernels_fingerprint(problem.workload, problem.ops),
        mktune=__version__,
    )


def fingerprint_of_plan(known: Fingerprint, plan: Plan) -> Fingerprint:
    """What one plan was measured with: as any of its problem, but for sources of its own (see `Sources`)."""
    sources = Sources.of(plan)
    return replace(known, kernels=kernels_fingerprint(*sources), packages=sources.packages) if sources.own else known
