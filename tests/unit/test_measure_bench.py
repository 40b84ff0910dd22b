"""The CUDA bench behind a worker that answers from a table: outcomes, promotion in fresh processes, refutations."""

import itertools
import random
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from mktune.backends.base import Problem
from mktune.device import Device
from mktune.errors import CandidateError, InputError, MktuneError, NothingFoundError, SetupError
from mktune.graph.builtin import builtin_plans
from mktune.graph.workload import workload
from mktune.measure import cuda_bench, promotion
from mktune.measure.attribution import GROUPS, put_back
from mktune.measure.cuda_bench import PROCESSES, ROUNDS, CudaBench
from mktune.measure.deadline import FACTOR, Deadlines
from mktune.measure.narrowing import FIRST_PAIRS
from mktune.measure.session import TRIES
from mktune.measure.worker import WorkerDied
from mktune.plan import OpPlan, Plan
from mktune.records import winner_from_dict, winner_to_dict
from mktune.shape import Shape
from mktune.trial import Fingerprint, Status

DEVICE = Device("NVIDIA H200", "sm_90a", 132, 232448, 60 << 20, 4.8e12, "GPU-test", "580", "13.0")
PROBLEM = Problem("glm52_attention_prefix", ("A0", "B0"), Shape.from_m(16, 8192))
BUILTINS = builtin_plans(workload(PROBLEM.workload), PROBLEM.ops, PROBLEM.shape, "sm_90a")
FINGERPRINT = Fingerprint("NVIDIA H200", 132, "9.0", "580", "13.0", "NVRTC 13.0.88", "abc", "0.1.0")


class FakeWorker:
    """Spans by plan id (30 µs unless said), and what goes wrong with which plan at which request."""

    def __init__(self):
        self.spans, self.faults, self.repeats = {}, {}, {}
        self.asked, self.opened, self.restarts, self.closed = [], [], 0, False
        self.rounds = []
        self.deadlines, self.open_faults, self.took = [], [], 0.0
        self.now = 0.0  # all the time there is: `took` for each answer
        self._draw = random.Random(1)

    @property
    def starts(self):
        return self.restarts + 1

    def ask(self, request, seconds):
        plan = Plan.from_json(request["plan"]).plan_id if "plan" in request else ""
        if request["do"] == "open":
            if self.open_faults:
                raise self.open_faults.pop(0)
            self.opened.append(tuple(request["ops"]))
            return {"made": self.opened[-2:-1] != self.opened[-1:]}
        self.deadlines.append(seconds)
        self.now += self.took
        self.asked.append((request["do"], plan, self.restarts))
        if fault := self.faults.get((request["do"], plan)):
            raise fault
        return getattr(self, f"_{request['do']}")(plan, request)

    def start(self):
        pass

    def restart(self):
        self.restarts += 1

    def close(self):
        self.closed = True

    def _sample(self, plan, count):
        return [self.spans.get(plan, 30.0) * self._draw.gauss(1, 0.002) for _ in range(count)]

    def _verify(self, plan, request):
        return {}

    def _trial(self, plan, request):
        samples = self._sample(plan, 24)
        span = [sorted(samples)[12], min(samples), max(samples)]
        reply = {"status": "ok", "reason": "", "samples": samples, "span": span}
        return {**reply, "device_state": {"sm_mhz_before": 1980.0}, "seconds": {"measure": 0.2}}

    def _rounds(self, plan, request):
        plans = {name: Plan.from_json(text).plan_id for name, text in request["plans"].items()}
        self.rounds.append(request)
        for plan_id in plans.values():
            if fault := self.faults.get(("rounds", plan_id)):
                raise fault.pop(0) if isinstance(fault, list) else fault
        samples = {name: self._sample(plan, 2 * request["rounds"]) for name, plan in plans.items()}
        return {"samples": samples, "device_state": {"sm_mhz_before": 1980.0, "sm_mhz_after": 1980.0}}

    def _calibrate(self, plan, request):
        return {"timer_tick_ns": 32.0, "event_quantum_us": 0.032, "empty_graph_us": 1.25}

    def _validate(self, plan, request):
        repeats = {"deterministic": "yes", "batch invariant": "yes"} | self.repeats.get(plan, {})
        return {"validated": f"540 replays of {plan[:6]}", "repeats": repeats, "probe": "3 kernels held"}


class FakeCompiler:
    def __init__(self):
        self.faults, self.submitted = {}, []

    def submit(self, plan_id):
        self.submitted.append(plan_id)

    def ready(self, plan_id):
        return True

    has = ready

    def wait(self, plan_id):
        if fault := self.faults.get(plan_id):
            raise fault

    def close(self):
        self.closed = True


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.setattr(cuda_bench, "fingerprint_of", lambda device, problem: FINGERPRINT)
    made = CudaBench(DEVICE, 0, PROBLEM)
    made._worker, made._compiler = FakeWorker(), FakeCompiler()
    monkeypatch.setattr(cuda_bench, "time", SimpleNamespace(perf_counter=lambda: made._worker.now))
    monkeypatch.setattr(made, "_specs", lambda plan: plan.plan_id)
    return made


def tuned(split_k, mode="serial+pdl"):
    plan = BUILTINS[mode]
    b0 = OpPlan.of(plan.op["B0"].impl, {**dict(plan.op["B0"].config), "split_k": split_k})
    return replace(plan, ops=(("A0", plan.op["A0"]), ("B0", b0))).canonical()


def test_policy_says_how_spans_are_measured(bench):
    assert (bench.policy.backend, bench.policy.cold, bench.policy.layers, bench.policy.shared_kv) == (
        "cuda",
        True,
        16,  # 4 x 60 MiB of L2 over 16.1 MB of weights
        False,
    )
    assert not bench.policy.simulated


def test_a_measured_plan_comes_back_with_samples_state_and_phases(bench):
    outcome = bench.measure(BUILTINS["serial"], None)
    assert outcome.status == Status.OK
    assert outcome.measurement.span_us == pytest.approx(30, rel=0.01)
    assert len(outcome.measurement.samples_us) == 24
    assert outcome.measurement.device_state == (("sm_mhz_before", 1980.0),)
    assert {"compile", "queue", "start", "measure", "total"} == dict(outcome.seconds).keys()
    assert all(seconds >= 0 for _, seconds in outcome.seconds)


@pytest.mark.parametrize("status", ["hang", "crash", "illegal_access", "wrong_result", "launch_error"])
def test_what_ends_a_candidate_is_data(bench, status):
    plan = BUILTINS["serial"]
    bench._worker.faults["trial", plan.plan_id] = CandidateError(status, "it did")
    outcome = bench.measure(plan, None)
    assert (outcome.status, outcome.reason, outcome.measurement) == (Status(status), "it did", None)
    assert bench.measure(BUILTINS["serial+pdl"], None).status == Status.OK


def test_a_kernel_that_does_not_compile_never_reaches_the_gpu(bench):
    plan = BUILTINS["serial"]
    bench._compiler.faults[plan.plan_id] = CandidateError("compile_error", "line 3: no such thing")
    assert bench.measure(plan, None).status == Status.COMPILE_ERROR
    bench._compiler.faults[plan.plan_id] = InputError("this kernel has no weights to prefetch")
    assert bench.measure(plan, None).status == Status.BUILD_ERROR
    assert bench._worker.asked == []


def test_a_plan_that_has_no_kernels_is_ready_to_fail_and_not_compiled(bench, monkeypatch):
    assert bench.compiled(BUILTINS["serial"])

    def specs(_):
        raise MktuneError("no such kernel")

    monkeypatch.setattr(bench, "_specs", specs)
    assert bench.ready(BUILTINS["serial"])
    assert not bench.compiled(BUILTINS["serial"])


def test_a_machine_that_fails_is_not_the_candidates_fault(bench):
    bench._worker.faults["trial", BUILTINS["serial"].plan_id] = SetupError("the GPU fell off the bus")
    with pytest.raises(SetupError):
        bench.measure(BUILTINS["serial"], None)


def test_promotion_runs_in_fresh_processes_and_validates_the_winner(bench):
    fast, slow = tuned(8), tuned(2)
    bench._worker.spans = {fast.plan_id: 10.0, slow.plan_id: 12.0, BUILTINS["serial"].plan_id: 20.0}
    row = bench.promote([fast, slow], BUILTINS)
    assert row.plan == fast
    assert row.ratio == pytest.approx(0.5, rel=0.01)
    assert len(row.measurement.samples_us) == PROCESSES * ROUNDS * 2 >= 31
    assert row.validated == f"540 replays of {fast.plan_id[:6]}"
    assert row.fingerprint == FINGERPRINT
    assert winner_from_dict(winner_to_dict(row)) == row
    assert set(dict(row.builtins)) == set(BUILTINS)  # modes with equal plans share their samples
    processes = [process for do, _, process in bench._worker.asked if do == "rounds"]
    assert len(set(processes)) == PROCESSES
    verified = {plan for do, plan, _ in bench._worker.asked if do == "verify"}
    assert {fast.plan_id, slow.plan_id, *(plan.plan_id for plan in BUILTINS.values())} <= verified


def test_structures_with_the_finalists_configs_are_measured_beside_it(bench):
    fast = tuned(8)
    own = {fast.plan_id, tuned(8, "serial").plan_id}
    bench._worker.spans = {**dict.fromkeys(own, 10.0), BUILTINS["serial"].plan_id: 20.0}
    row = bench.promote([fast], BUILTINS)
    assert row.plan == tuned(8, "serial")  # the same span without a programmatic edge
    assert dict(row.extra)["won as"] == "structure"


def test_a_winner_says_what_it_loses_without_each_group_of_its_choices(bench):
    fast = tuned(4)
    late = put_back(fast, DEVICE)["pdl"].plan
    bench._worker.spans = {fast.plan_id: 10.0, tuned(4, "serial").plan_id: 14.0, late.plan_id: 13.0}
    row = bench.promote([fast], BUILTINS)
    losses = dict(row.attribution)
    assert set(losses) == set(GROUPS)
    assert losses["pdl"].loss_us == pytest.approx(3.0, rel=0.02)
    assert losses["pdl"].low_us < losses["pdl"].loss_us < losses["pdl"].high_us
    assert losses["tiles"].span_us == pytest.approx(30.0, rel=0.01)  # serial+pdl with default configs
    assert (losses["branches"].loss_us, losses["branches"].note) == (0.0, "as in the default")
    requests = [do for do, _, process in bench._worker.asked if process == PROCESSES]  # those of the last process
    assert requests.count("rounds") == 2  # once to decide, once for what the winner loses, after it was validated
    assert requests.index("validate") < len(requests) - 1 - requests[::-1].index("rounds")


def test_a_group_that_cannot_be_measured_costs_no_winner(bench):
    fast = tuned(4)
    bench._worker.spans = {fast.plan_id: 10.0, tuned(4, "serial").plan_id: 14.0}
    late = put_back(fast, DEVICE)["pdl"].plan
    bench._worker.faults["verify", late.plan_id] = CandidateError("hang", "no answer")
    row = bench.promote([fast], BUILTINS)
    assert row.plan == fast
    assert set(dict(row.attribution)) == set(GROUPS) - {"pdl"}
    assert dict(row.extra)["attribution of pdl"] == "hang: no answer"


def test_a_refuted_winner_gives_way_to_the_next(bench):
    fast, slow = tuned(8), tuned(2)
    bench._worker.spans = {fast.plan_id: 10.0, slow.plan_id: 12.0}
    bench._worker.faults["validate", fast.plan_id] = CandidateError("wrong_result", "B0p delayed, replay 3: q_lora_q")
    row = bench.promote([fast, slow], BUILTINS)
    assert row.plan == slow
    assert "540 replays" in row.validated
    assert dict(row.extra)[f"refuted {fast.plan_id[:12]}"] == "B0p delayed, replay 3: q_lora_q"
    assert dict(row.extra)["clocks"].startswith("timer step 32 ns")


def test_a_winner_says_whether_its_bits_repeat_and_where_that_is_asked_for_only_such_a_plan_wins(bench):
    fast, slow = tuned(8), tuned(2)
    bench._worker.spans = {fast.plan_id: 10.0, slow.plan_id: 12.0}
    bench._worker.repeats = {fast.plan_id: {"deterministic": "no: 3 of 540 replays differ in bits within tolerance"}}
    row = bench.promote([fast, slow], BUILTINS)
    assert row.plan == fast
    assert dict(row.extra)["deterministic"].startswith("no: 3 of 540")
    assert dict(row.extra)["batch invariant"] == "yes"
    assert dict(row.extra)["probe"] == "3 kernels held"
    bench.deterministic = True
    row = bench.promote([fast, slow], BUILTINS)
    assert row.plan == slow
    assert dict(row.extra)["deterministic"] == "yes"
    assert dict(row.extra)[f"refuted {fast.short_id}"].startswith("not deterministic: 3 of 540")
    bench._worker.repeats = {fast.plan_id: {"batch invariant": "no: q_lora_q of the first request"}}
    assert "not batch invariant" in dict(bench.promote([fast], BUILTINS).extra)[f"refuted {fast.short_id}"]


def test_where_bits_must_repeat_and_no_plans_do_nothing_was_found_and_that_is_said(bench):
    bench.deterministic = True
    bench._worker.repeats = {plan.plan_id: {"deterministic": "no: 2 of 540 replays"} for plan in BUILTINS.values()}
    bench._worker.faults["validate", BUILTINS["serial"].plan_id] = CandidateError("wrong_result", "stale")
    with pytest.raises(
        NothingFoundError, match=r"no plan has bits that repeat .*--deterministic.*not deterministic: 2"
    ):
        bench.promote([], BUILTINS)


def rounds_of(bench, plan):
    """How many samples of a plan were asked for, request by request; a noise arm's are not counted."""
    return [2 * request["rounds"] for request in bench._worker.rounds if plan.plan_id in request["plans"]]


def test_what_is_surely_slower_is_built_in_the_first_rounds_only(bench):
    fast, slow = tuned(8), tuned(2)
    bench._worker.spans = {fast.plan_id: 10.0, slow.plan_id: 12.0}
    shown = dict(bench.promote([fast, slow], BUILTINS).extra)
    assert rounds_of(bench, slow) == [FIRST_PAIRS]
    assert rounds_of(bench, fast)[:3] == [FIRST_PAIRS, 2 * ROUNDS - FIRST_PAIRS, 2 * ROUNDS]
    assert rounds_of(bench, BUILTINS["serial"])[:3] == rounds_of(bench, fast)[:3]
    assert re.fullmatch(rf"1[12]\.\d\d\d us \({FIRST_PAIRS} pairs\)", shown[f"span of {slow.short_id}"])
    assert slow.short_id not in shown["ties"]
    assert shown["pairs"] == str(PROCESSES * ROUNDS * 2)


def test_samples_of_arms_that_stay_are_paired_over_blocks_and_processes(bench, monkeypatch):
    fast, near, slow = tuned(8), tuned(4), tuned(2)
    bench._worker.spans = {fast.plan_id: 10.0, near.plan_id: 10.02, slow.plan_id: 12.0}
    ticks, taken = itertools.count(), []

    def rounds(plan, request):
        clocks = [1.0 + 0.01 * next(ticks) for _ in range(2 * request["rounds"])]
        plans = {name: Plan.from_json(text).plan_id for name, text in request["plans"].items()}
        samples = {
            name: [bench._worker.spans.get(plan, 30.0) * clock for clock in clocks] for name, plan in plans.items()
        }
        return {"samples": samples, "device_state": {}}

    decided = promotion.decide
    monkeypatch.setattr(bench._worker, "_rounds", rounds)
    monkeypatch.setattr(promotion, "decide", lambda arms, samples: taken.append(samples) or decided(arms, samples))
    bench.promote([fast, near, slow], BUILTINS)
    (samples,) = taken
    assert slow.short_id not in samples
    assert {len(spans) for spans in samples.values()} == {PROCESSES * ROUNDS * 2}
    for name, span in ((fast.short_id, 10.0), (near.short_id, 10.02)):
        ratios = [ours / theirs for ours, theirs in zip(samples[name], samples["serial"], strict=True)]
        assert ratios == pytest.approx([span / 30.0] * len(ratios))


def test_what_left_is_asked_again_where_all_that_it_was_slower_than_is_refuted(bench):
    fast, slow = tuned(8, "serial"), tuned(2, "serial")
    bench._worker.spans = {fast.plan_id: 10.0, slow.plan_id: 12.0}
    wrong = {plan.plan_id for plan in (fast, tuned(8))}
    for plan_id in wrong:
        bench._worker.spans[plan_id] = 10.0
        bench._worker.faults["validate", plan_id] = CandidateError("wrong_result", "stale")
    row = bench.promote([fast, slow], BUILTINS)
    assert row.plan == slow
    assert len(row.measurement.samples_us) == PROCESSES * ROUNDS * 2
    assert dict(row.extra)[f"refuted {fast.short_id}"] == "stale"
    assert rounds_of(bench, slow)[:3] == [FIRST_PAIRS, 2 * ROUNDS, 2 * ROUNDS]
    validated = [plan for do, plan, _ in bench._worker.asked if do == "validate"]
    assert [validated.count(plan_id) for plan_id in wrong] == [1, 1]


def test_when_nothing_survives_validation_nothing_is_stored(bench):
    for plan in BUILTINS.values():
        bench._worker.faults["validate", plan.plan_id] = CandidateError("wrong_result", "stale")
    with pytest.raises(MktuneError, match="no plan survived validation"):
        bench.promote([], BUILTINS)


def test_a_finalist_that_fails_its_check_takes_no_part(bench):
    fast = tuned(8)
    bench._worker.spans = {fast.plan_id: 10.0}
    bench._worker.faults["verify", fast.plan_id] = CandidateError("wrong_result", "h_q")
    assert bench.promote([fast], BUILTINS).kept_baseline


def test_a_wrong_built_in_plan_stops_promotion(bench):
    bench._worker.faults["verify", BUILTINS["serial"].plan_id] = CandidateError("wrong_result", "h_q: 9 codes differ")
    with pytest.raises(MktuneError, match="baseline wrong"):
        bench.promote([tuned(8)], BUILTINS)


def test_without_a_built_in_plan_that_runs_there_is_no_winner(bench):
    for plan in BUILTINS.values():
        bench._compiler.faults[plan.plan_id] = CandidateError("compile_error", "no")
    with pytest.raises(NothingFoundError):
        bench.promote([tuned(8)], BUILTINS)


def test_verify_says_what_is_wrong_in_one_line(bench):
    assert bench.verify(BUILTINS["serial"]) == ""
    bench._worker.faults["verify", BUILTINS["serial"].plan_id] = CandidateError("hang", "no answer within 30 s")
    assert bench.verify(BUILTINS["serial"]) == "hang: no answer within 30 s"


def test_a_part_of_the_problem_is_measured_by_the_same_process(bench):
    part = bench.alone(("A0",))
    plan = builtin_plans(workload(PROBLEM.workload), ("A0",), PROBLEM.shape, "sm_90a")["serial"]
    with pytest.raises(InputError, match="no part of A0, B0: D0"):
        bench.alone(("D0",))
    assert part.problem == replace(PROBLEM, ops=("A0",))
    assert part.policy.layers > bench.policy.layers  # its weights alone need more layers to be cold
    part._specs = lambda plan: plan.plan_id
    bench._worker.spans[plan.plan_id] = 8.0
    assert part.measure(plan, None).measurement.span_us == pytest.approx(8.0, rel=0.01)
    part.close()
    assert not bench._worker.closed  # the process is the whole bench's to end
    bench.measure(BUILTINS["serial"], None)
    assert bench._worker.opened == [("A0",), PROBLEM.ops]  # whoever asks brings its own problem
    part.alone(("A0",)).close()
    bench.close()
    assert bench._worker.closed


def test_a_trial_has_the_time_that_such_trials_took_and_never_more_than_the_cap(bench):
    bench.deadlines = Deadlines(30.0, least=0.01)
    allowed = TRIES * bench.budget.seconds
    bench._worker.took = 0.25  # of which it says 0.2 were measuring
    for _ in range(3):
        bench.measure(BUILTINS["serial"], None)
    first, second, third = bench._worker.deadlines
    assert first == second == 30.0  # nobody knows yet what the first of a process, and those after it, should take
    assert third - allowed == pytest.approx(FACTOR * 0.05)
    bench.restart()
    bench.measure(BUILTINS["serial"], None)
    again = bench._worker.deadlines[-1]
    assert again - allowed == pytest.approx(FACTOR * 0.05)  # as the first of the process before took
    bench.verify(BUILTINS["serial"])
    assert bench._worker.deadlines[-1] < allowed  # nothing is measured
    bench._worker.took = 0.0
    bench.deadlines = Deadlines(0.5)
    assert bench.deadlines.seconds(first=True, measuring=4.0) == 0.5
    bench.deadlines.ended(0.001, first=True)
    assert bench.deadlines.seconds(first=True, measuring=4.0) == 0.5


def test_a_hang_leaves_what_others_may_take_as_it_is(bench):
    bench.measure(BUILTINS["serial"], None)
    bench.measure(BUILTINS["serial"], None)
    before = bench.deadlines.seconds(first=False)
    bench._worker.faults["trial", BUILTINS["serial+pdl"].plan_id] = CandidateError("hang", "no answer")
    assert bench.measure(BUILTINS["serial+pdl"], None).status == Status.HANG
    assert bench.deadlines.seconds(first=False) == before < 30.0


@pytest.mark.parametrize("status", ["illegal_access", "crash", "hang", "out_of_memory"])
def test_what_a_candidate_left_behind_is_not_charged_to_the_next(bench, status):
    bench._worker.open_faults = [CandidateError(status, "left by the one before")]
    outcome = bench.measure(BUILTINS["serial"], None)
    assert outcome.status == Status.OK
    assert [process for do, _, process in bench._worker.asked if do == "trial"] == [1]  # in the next process
    bench._worker.open_faults = [CandidateError(status, "no memory")] * 2
    with pytest.raises(SetupError, match=f"the GPU cannot be used for this problem: {status}: no memory"):
        bench.measure(BUILTINS["serial"], None)


def test_a_plan_that_fails_only_beside_others_is_left_out_of_the_rounds(bench):
    fast, bad = tuned(8), tuned(2)
    bench._worker.spans = {fast.plan_id: 10.0, bad.plan_id: 5.0}
    bench._worker.faults["rounds", bad.plan_id] = CandidateError("illegal_access", "cuCtxSynchronize: illegal address")
    row = bench.promote([fast, bad], BUILTINS)
    assert row.plan == fast
    assert dict(row.extra)[f"left out {bad.short_id}"] == "illegal_access: cuCtxSynchronize: illegal address"
    assert f"span of {bad.short_id}" not in dict(row.extra)


def test_rounds_that_fail_once_are_taken_again_and_nobody_is_left_out(bench):
    fast = tuned(8)
    bench._worker.spans = {fast.plan_id: 10.0}
    bench._worker.faults["rounds", fast.plan_id] = [CandidateError("noisy", "the clock moved")]
    row = bench.promote([fast], BUILTINS)
    assert row.plan == fast
    assert not any(name.startswith("left out") for name, _ in row.extra)
    bench._worker.faults["rounds", fast.plan_id] = [CandidateError("noisy", f"moved {i}") for i in range(2)]
    with pytest.raises(CandidateError, match="moved 1"):  # no plan is to blame
        bench.promote([fast], BUILTINS)


def test_the_evidence_names_the_ratio_to_every_built_in_plan_and_the_pairs(bench):
    fast = tuned(8)
    bench._worker.spans = {fast.plan_id: 10.0, BUILTINS["serial"].plan_id: 20.0, BUILTINS["serial+pdl"].plan_id: 16.0}
    row = bench.promote([fast], BUILTINS)
    shown = dict(row.extra)
    assert shown["pairs"] == str(PROCESSES * ROUNDS * 2)
    assert set(dict(row.builtins)) == set(BUILTINS)
    for name, span in (("serial", 20.0), ("serial+pdl", 16.0)):
        ratio, low, high = map(float, re.findall(r"[0-9.]+", shown[f"over {name}"]))
        assert low <= ratio <= high
        assert ratio == pytest.approx(10.0 / span, rel=0.01)
    assert shown["over baseline"] == shown[f"over {row.baseline}"]
    assert 0 < row.noise_floor < 0.01
    assert row.ratio_low <= row.ratio <= row.ratio_high


def test_a_death_that_may_be_anothers_is_tried_again_in_a_process_of_its_own(bench):
    """The first candidate of a process dies by its own doing; a later one may have been killed by one before."""
    fine, late = BUILTINS["serial"], BUILTINS["serial+pdl"]
    assert bench.measure(fine, None).status == Status.OK
    deaths = [WorkerDied("crash", "the worker died: signal SIGSEGV")]

    def die_once(plan, request):
        if deaths:
            bench._worker.restarts += 1
            raise deaths.pop()
        return FakeWorker._trial(bench._worker, plan, request)

    bench._worker._trial = die_once
    assert bench.measure(late, None).status == Status.OK
    assert [process for do, plan, process in bench._worker.asked if plan == late.plan_id] == [0, 1]
    deaths += [WorkerDied("crash", "again"), WorkerDied("crash", "the worker died: signal SIGSEGV")]
    outcome = bench.measure(late, None)
    assert (outcome.status, outcome.reason) == (Status.CRASH, "again")
    assert deaths == []
    deaths += [WorkerDied("crash", "never"), WorkerDied("crash", "its own")]
    assert bench.measure(late, None).reason == "its own"  # the first of its process: that is that
    assert len(deaths) == 1
