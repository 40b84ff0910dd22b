"""The commands that read and write the store: whole ids in any width, one JSON document, odd names and files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import run
from stored_values import make_winner

from mktune import resources
from mktune.backends.models import KNOWN
from mktune.graph.builtin import MODES, make_plan
from mktune.graph.workload import workload
from mktune.plan import Plan
from mktune.shape import Shape
from mktune.store import Store
from mktune.store.export import write_bundle
from mktune.trial import Fingerprint, Measurement, Outcome, Policy, Status, Trial, Winner

WORKLOAD = workload("glm52_attention_prefix")
SHAPE = Shape.from_m(16, 8192)
ODD_NAMES = ["x'; DROP TABLE plans;--", "a/../../b", "-rf", "🚀 [bold]x[/bold]", "%s\\n{}"]


def plan(mode: str) -> Plan:
    return make_plan(WORKLOAD, ("A0", "B0"), SHAPE, "sm_90a", mode)


def measurement(span: float) -> Measurement:
    return Measurement(span, span - 0.1, span + 0.1, (span, span), Policy("sim"))


def fill(url: str, study: str = "first", spans: tuple[float, ...] = (20.0, 15.0)) -> None:
    """A study whose built-ins took `spans`; the fastest is the winner."""
    with Store.open(url) as store:
        made = store.study(
            study,
            workload=WORKLOAD.name,
            ops=("A0", "B0"),
            shape=SHAPE,
            device=KNOWN["h200"],
            backend="sim",
            sampler="random",
            seed=0,
            contract=WORKLOAD.contract,
        )
        for mode, span in zip(MODES, spans, strict=False):
            number = store.begin_trial(made, plan(mode), f"builtin:{mode}")
            store.add_trial(
                made, Trial(number, plan(mode), Outcome(Status.OK, "", measurement(span)), f"builtin:{mode}")
            )
        fingerprint = Fingerprint("NVIDIA H200", 132, "9.0", "", "", "", "abc", "0.1.0")
        best = plan(MODES[spans.index(min(spans))])
        store.put_winner(
            made,
            Winner(best, measurement(min(spans)), fingerprint, "serial", min(spans) / 20, 0.7, 0.8, 0.01, False),
        )


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    place = f"sqlite:///{tmp_path}/a b/100%#x?.db"
    fill(place)
    yield place
    assert (tmp_path / "a b" / "100%#x?.db").is_file()


def parse(text: str) -> dict[str, object]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in JSON")

    value = json.loads(text, parse_constant=refuse)
    assert isinstance(value, dict)
    return value


def test_piped_leaderboard_is_never_cut(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out, _ = run(capsys, "leaderboard", "--store", url)
    assert "…" not in out
    lines = [line for line in out.splitlines() if re.match(r" +[0-9]", line)]
    assert len(lines) == 2
    assert "15.00" in lines[0]
    assert plan("serial+pdl").plan_id[:12] in lines[0]
    assert "winner, built-in serial+pdl" in lines[0]
    assert "1.33" in lines[0]
    assert all("simulated" in line for line in lines)
    assert "(simulated)" in out.splitlines()[0]


@pytest.mark.parametrize(
    ("extra", "kept", "why"),
    [
        ({"ties": "serial, configs of abc, abc", "won as": "structure"}, False, "inside the tie band of the fastest"),
        ({"ties": "serial, configs of abc", "won as": "structure"}, False, "it was the fastest that passed"),
        ({}, True, "nothing beat this built-in beyond noise"),
    ],
)
def test_a_winner_behind_the_first_rank_says_why(
    url: str, capsys: pytest.CaptureFixture[str], extra: dict[str, str], kept: bool, why: str
) -> None:
    with Store.open(url) as store:
        (before,) = store.winners()
        best = plan("branches")
        fingerprint = replace(before.fingerprint, kernels="newer")
        store.put_winner(
            None,
            replace(
                before,
                plan=best,
                measurement=measurement(16.0),
                fingerprint=fingerprint,
                kept_baseline=kept,
                baseline="branches",
                extra=tuple(sorted(extra.items())),
            ),
        )
    out, _ = run(capsys, "leaderboard", "--store", url)
    row, *_ = [line for line in out.splitlines() if best.short_id in line]
    assert "winner" in row
    assert out.splitlines()[-1].startswith("rank 2 is the winner: ")
    assert why in out.splitlines()[-1]


def test_leaderboard_document(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run(capsys, "leaderboard", "--store", url, "--json")
    rows = parse(out)["rows"]
    assert isinstance(rows, list)
    assert [row["rank"] for row in rows] == [1, 2]
    assert rows[0]["plan_id"] == plan("serial+pdl").plan_id
    assert rows[0]["winner"]
    assert rows[0]["simulated"]
    assert rows[1]["builtin"] == "serial"
    assert err == ""


def test_leaderboard_filters(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    for wanted in (["--m", "16"], ["--kv", "8192,4096"], ["--ops", "B0,A0"], ["--gpu", "nvidia_h200"], [WORKLOAD.name]):
        out, _ = run(capsys, "leaderboard", *wanted, "--store", url, "--json")
        assert len(parse(out)["rows"]) == 2
    for other in (["--m", "1"], ["--kv", "1"], ["--ops", "A0"], ["--gpu", "NVIDIA H20"]):
        out, _ = run(capsys, "leaderboard", *other, "--store", url, "--json", code=5)
        assert "error" in parse(out)


def test_leaderboard_of_failed_trials_says_how_they_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = str(tmp_path / "x.db")
    with Store.open(url) as store:
        made = store.study(
            "f",
            workload=WORKLOAD.name,
            ops=("A0", "B0"),
            shape=SHAPE,
            device=KNOWN["h200"],
            backend="sim",
            sampler="random",
            seed=0,
            contract=1,
        )
        for mode in MODES[:2]:
            number = store.begin_trial(made, plan(mode), "random")
            broken = replace(measurement(1.0), span_us=float("inf"), samples_us=(float("inf"),))
            outcome = Outcome(Status.WRONG_RESULT, "q_lora_q: 3 codes differ", broken)
            store.add_trial(made, Trial(number, plan(mode), outcome, "random"))
    out, err = run(capsys, "leaderboard", "--store", url, "--json", code=5)
    assert "2 wrong_result" in err
    assert "2 wrong_result" in str(parse(out)["error"])


def test_missing_store_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["leaderboard"], ["export"], ["show", "abcdef123456"]):
        _, err = run(capsys, *command, "--store", str(tmp_path / "none.db"), code=5)
        assert err.count("\n") == 1
        assert "no store at" in err
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_study_names_are_stored_and_shown_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    url = str(tmp_path / "x.db")
    fill(url, name)
    fill(url, "another", spans=(30.0,))
    out, _ = run(capsys, "leaderboard", f"--study={name}", "--store", url, "--json")
    assert {row["study"] for row in parse(out)["rows"]} == {name}
    out, _ = run(capsys, "show", plan("serial+pdl").plan_id[:8], "--store", url)
    assert f"study {name}," in out
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["x.db"]


def test_show_of_a_stored_plan_has_its_evidence(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan_id = plan("serial+pdl").plan_id
    out, _ = run(capsys, "show", plan_id[:6], "--store", url)
    assert f"plan {plan_id}  simulated" in out
    assert "span 15.00 µs (14.90 to 15.10)  simulated" in out
    out, _ = run(capsys, "show", plan_id, "--store", url, "--json")
    document = parse(out)
    assert Plan.from_dict(document["plan"]) == plan("serial+pdl")
    assert document["simulated"]


def test_show_says_whether_the_bits_of_a_winner_repeat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.db"
    repeats = (("batch invariant", "no: h_s of the first request"), ("deterministic", "yes"))
    winner = make_winner(extra=repeats)
    with Store.open(path) as store:
        store.put_winner(None, winner)
    out, _ = run(capsys, "show", winner.plan.short_id, "--store", str(path))
    assert "deterministic: yes\nbatch invariant: no: h_s of the first request\n" in out
    out, _ = run(capsys, "show", winner.plan.short_id, "--store", str(path), "--json")
    assert parse(out)["evidence"] == dict(repeats)


@pytest.mark.parametrize("more", [["--arch", "sm_103a"], ["--m", "16"], ["--tokens-per-request", "8", "--kv", "8192"]])
def test_show_refuses_what_makes_a_builtin_for_a_stored_plan(
    url: str, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    _, err = run(capsys, "show", plan("serial+pdl").short_id, *more, "--store", url, code=2)
    assert more[0] in err
    assert "only make a built-in plan" in err
    run(capsys, "show", "serial", *more)


def test_an_id_may_be_that_of_a_shipped_plan(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = make_winner()
    write_bundle(tmp_path / "plans" / "nvidia-h200" / "w.json", [shipped])
    monkeypatch.setattr(resources, "bundled_plans", lambda: tmp_path / "plans")
    plan_id = shipped.plan.plan_id
    for where in (url, str(tmp_path / "none.db")):
        out, _ = run(capsys, "show", plan_id[:8], "--store", where)
        assert f"plan {plan_id}" in out
        assert "shipped with mktune" in out
        assert "where the gain comes from" in out
        _, err = run(capsys, "show", "0" * 12, "--store", where, code=2 if where == url else 5)
        assert err.count("\n") == 1
    asked = ("--m", "16", "--kv", "8192", "--backend", "sim", "--store", url, "--json")
    out, _ = run(capsys, "ablate", shipped.plan.workload, "--plan", plan_id[:8], *asked)
    assert parse(out)["plan_id"] == plan_id


def test_show_reads_a_plan_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    path.write_text(plan("branches").json)
    out, _ = run(capsys, "show", str(path))
    assert plan("branches").plan_id in out
    newer = plan("branches").to_dict() | {"schema": 99}
    path.write_text(json.dumps(newer))
    _, err = run(capsys, "show", str(path), code=2)
    assert "newer mktune" in err


def test_export_and_import_round_trip(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plans.json"
    out, _ = run(capsys, "export", "--simulated", "--store", url)
    run(capsys, "export", "--simulated", "--out", str(path), "--store", url)
    assert path.read_text() == out
    other = str(tmp_path / "other.db")
    out, _ = run(capsys, "import", str(path), "--store", other, "--json")
    told = {"served": True, "unchanged": False, "repeats": False, "replaces": None}
    assert parse(out)["plans"] == [{"plan_id": plan("serial+pdl").plan_id, **told}]
    out, _ = run(capsys, "export", "--simulated", "--store", other)
    assert path.read_text() == out


def test_imported_winners_are_listed_and_a_second_import_changes_nothing(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, other = str(tmp_path / "plans.json"), str(tmp_path / "other.db")
    run(capsys, "export", "--simulated", "--out", path, "--store", url)
    out, _ = run(capsys, "import", path, "--store", other)
    assert out.endswith("now served\n")
    out, _ = run(capsys, "import", path, "--store", other)
    assert out.endswith("unchanged\n")
    with Store.open(other) as store:
        assert len(store.winners(history=True)) == 1
    out, _ = run(capsys, "leaderboard", "--store", other)
    (row,) = [line for line in out.splitlines() if plan("serial+pdl").short_id in line]
    assert "winner" in row
    out, _ = run(capsys, "leaderboard", "--store", other, "--json")
    (document,) = parse(out)["rows"]
    assert (document["winner"], document["trial"]) == (True, None)
    _, err = run(capsys, "leaderboard", "--m", "17", "--store", other, code=5)
    assert "no stored winner matches" in err
    out, _ = run(capsys, "show", plan("serial+pdl").short_id, "--store", other)
    assert "trial None" not in out


def test_export_of_nothing_writes_no_file(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plans.json"
    _, err = run(capsys, "export", "--out", str(path), "--store", url, code=5)  # all are simulated
    assert err == "mktune: error: no plan to export; 1 simulated winner: add --simulated\n"
    _, err = run(capsys, "export", "--gpu", "NVIDIA H20", "--store", url, code=5)
    assert "nothing that matches is stored" in err
    assert not path.exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text + text, "more than one document"),
        (lambda text: text.replace("{\n", "{\n<<<<<<< HEAD\n", 1), "plans.json:2:1"),
        (lambda text: text[: len(text) // 2], "plans.json:"),
        (lambda text: "", "plans.json is empty"),
        (lambda text: "\0" * 4096, "plans.json:1:1"),
        (lambda text: text.replace('"schema": 1', '"schema": 99'), "newer mktune"),
        (lambda text: text.replace("15.0", "NaN", 1), "NaN"),
    ],
    ids=["glued", "merge marks", "cut", "empty", "zeros", "newer", "nan"],
)
def test_import_of_a_damaged_file_changes_nothing(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: object, words: str
) -> None:
    assert callable(change)
    path = tmp_path / "plans.json"
    run(capsys, "export", "--simulated", "--out", str(path), "--store", url)
    path.write_text(change(path.read_text()))
    store = Path(url.removeprefix("sqlite:///"))
    before = store.read_bytes()
    _, err = run(capsys, "import", str(path), "--store", url, code=2)
    assert words in err
    assert err.count("\n") == 1
    assert store.read_bytes() == before


def test_library_warnings_stay_out_of_the_document(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import logging

    from mktune.store import store

    real = store.leaderboard.rank

    def warning(*args: object) -> object:
        logging.getLogger("mktune.store").warning("two\nlines \x1b[31m")
        return real(*args)

    monkeypatch.setattr(store.leaderboard, "rank", warning)
    out, err = run(capsys, "leaderboard", "--store", url, "--json")
    parse(out)
    assert err == "mktune: warning: two lines \\x1b[31m\n"


def lookup(url: str, *more: str) -> list[str]:
    return ["lookup", WORKLOAD.name, "--store", url, "--gpu", "nvidia_h200", *more]


def test_lookup_hit_names_the_plan_and_says_simulated(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    question = lookup(url, "--m", "16", "--kv", "4096", "--allow-simulated")
    out, _ = run(capsys, *question)
    assert f"{plan('serial+pdl').plan_id} simulated" in out
    assert re.search(r"^ops +A0,B0$", out, re.MULTILINE)
    out, err = run(capsys, *question, "--json")
    document = parse(out)
    assert document["plan_id"] == plan("serial+pdl").plan_id
    assert document["simulated"]
    assert err == ""


def test_lookup_help_says_what_it_takes_without_ops(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "lookup", "--help")
    assert "the stored plan that covers the most ops" in " ".join(re.sub("[│|]", " ", out).split())


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        (["--m", "16", "--kv", "4096"], "simulated"),
        (["--m", "3", "--kv", "4096"], "shape"),
        (["--m", "16", "--kv", "4096", "--ops", "A0"], "ops"),
        (["--m", "16", "--kv", "4096", "--gpu", "NVIDIA H20"], "device"),
    ],
)
def test_lookup_miss_is_one_document_with_its_reason(
    url: str, capsys: pytest.CaptureFixture[str], question: list[str], reason: str
) -> None:
    out, err = run(capsys, *lookup(url, *question), "--json", code=5)
    error = parse(out)["error"]
    assert isinstance(error, dict)
    assert error["reason"] == reason
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "question",
    [["--m", "0", "--kv", "1"], ["--m", "-1", "--kv", "1"], ["--m", "8.0", "--kv", "1"], ["--m", "8", "--kv", "0"]],
    ids=" ".join,
)
def test_lookup_of_no_shape_is_wrong_input(url: str, capsys: pytest.CaptureFixture[str], question: list[str]) -> None:
    run(capsys, *lookup(url, *question), code=2)


def test_lookup_by_alias(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    question = ["lookup", WORKLOAD.name, "--store", url, "--m", "16", "--kv", "8192", "--allow-simulated"]
    run(capsys, *question, "--gpu", "NVIDIA H200 NVL", code=5)
    out, _ = run(capsys, *question, "--gpu", "NVIDIA H200 NVL", "--alias", "NVIDIA H200 NVL=NVIDIA H200")
    assert "alias" in out
    run(capsys, *question, "--gpu", "NVIDIA H20", "--alias", "nonsense", code=2)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["leaderboard", "nope"], "unknown workload 'nope'"),
        (["leaderboard", "--ops", "A0,Z9"], "unknown op 'Z9'"),
        (["leaderboard", "--m", "0"], "M = 0 is out of range"),
        (["leaderboard", "--m", "16,257"], "M = 257 is out of range"),
        (["leaderboard", "--kv", "131073"], "KV = 131073 is out of range"),
        (["export", "nope"], "unknown workload 'nope'"),
        (["export", WORKLOAD.name, "--ops", "Z9"], "unknown op 'Z9'"),
    ],
)
def test_filters_that_name_nothing_are_wrong_input(
    url: str, capsys: pytest.CaptureFixture[str], args: list[str], words: str
) -> None:
    _, err = run(capsys, *args, "--store", url, code=2)
    assert words in err
    assert err.count("\n") == 1


def test_filters_that_match_nothing_are_no_wrong_input(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "leaderboard", "--ops", "D0", "--store", url, code=5)
    run(capsys, "leaderboard", "--m", "17", "--store", url, code=5)
    run(capsys, "export", WORKLOAD.name, "--ops", "D0", "--store", url, code=5)


def test_a_plan_file_without_an_end_is_wrong_input(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = run(capsys, "show", "/dev/zero", code=2)
    assert "larger than" in err


def test_show_says_which_trial_of_a_study_a_plan_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Progress counts trials from 1, and their numbers begin with 0."""
    url = str(tmp_path / "x.db")
    fill(url)
    for number, mode in enumerate(MODES[:2]):
        out, _ = run(capsys, "show", plan(mode).short_id, "--store", url)
        assert f"study first, trial {number} (counted from 0)" in out


def test_a_workload_that_is_not_here_is_listed_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As of a colleague's folder that is not in this MKTUNE_PATH."""
    url = str(tmp_path / "x.db")
    fill(url)
    (own,) = _winners(url)
    with Store.open(url) as store:
        store.put_winner(None, replace(own, plan=replace(own.plan, workload="elsewhere")))
    for more in ((), ("--json",)):
        out, err = run(capsys, "leaderboard", "--store", url, *more)
        assert "elsewhere" in out
        assert err.splitlines() == [
            "mktune: this mktune has no workload 'elsewhere': its plans are listed, but can be neither run nor looked "
            "up; if it is one of your own, set MKTUNE_PATH to its folder"
        ]
    _, err = run(capsys, "leaderboard", WORKLOAD.name, "--store", url)
    assert err == ""


def _winners(url: str) -> list[Winner]:
    with Store.open(url, write=False) as store:
        return store.winners()
