"""optuna-dashboard opens what `mktune export --optuna` wrote: its answers, the page they make, and how that looks."""

from __future__ import annotations

import json
import os
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import browser
import pytest
from stored_values import make_study, make_trial

from mktune.cli.boundary import run
from mktune.search.optuna_export import fields
from mktune.store import Store
from mktune.trial import Outcome, Status

dashboard = pytest.importorskip("optuna_dashboard")
optuna = pytest.importorskip("optuna")

SPANS = (16.0, 12.0, 19.0, 10.0, 14.0, 18.0, 11.0, 17.0, 13.0, 15.0)
ENDED = (Outcome(Status.PRUNED, "20 µs, clearly slower"), Outcome(Status.HANG, "no answer within 5 s"))
TRIALS = (
    *(replace(make_trial(number, span_us=span), gpu=f"GPU-{number % 2}") for number, span in enumerate(SPANS)),
    *(replace(make_trial(len(SPANS) + place), outcome=outcome) for place, outcome in enumerate(ENDED)),
)
STATES = ["Complete"] * len(SPANS) + ["Pruned", "Fail"]
NAME = "M 16, KV 8192 <b>&"


@dataclass(frozen=True)
class Served:
    """A dashboard that answers at `url`."""

    url: str

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            assert answer.status == 200
            return str(answer.read().decode())

    def ask(self, path: str) -> Any:
        return json.loads(self.get(path))


class _Quiet(WSGIRequestHandler):
    def log_message(self, *args: Any) -> None: ...


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The dashboard over an exported study, and one beside it."""
    folder = tmp_path_factory.mktemp("dashboard")
    store, url = str(folder / "x.db"), f"sqlite:///{folder / 'optuna.db'}"
    with Store.open(store) as opened:
        for name, trials in ((NAME, TRIALS), ("another", TRIALS[:2])):
            study = make_study(opened, name)
            for trial in trials:
                opened.add_trial(study, trial)
    assert run(["export", "--optuna", url, "--store", store]) == 0
    app = dashboard.wsgi(optuna.storages.RDBStorage(url))
    with make_server("127.0.0.1", 0, app, handler_class=_Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Served(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join()


def study_id(served: Served) -> int:
    found = {each["study_name"]: each["study_id"] for each in served.ask("/api/studies")["study_summaries"]}
    assert set(found) == {NAME, "another"}
    return int(found[NAME])


def attributes(found: Any) -> dict[str, Any]:
    return {each["key"]: json.loads(each["value"]) if each["value"][:1] in '"[{' else each["value"] for each in found}


def test_the_list_of_studies_says_what_was_searched(served: Served) -> None:
    found = next(each for each in served.ask("/api/studies")["study_summaries"] if each["study_name"] == NAME)
    assert found["directions"] == ["minimize"]
    about = attributes(found["user_attrs"])
    assert (about["workload"], about["ops"], about["sampler"]) == ("glm52_attention_prefix", "A0,B0", "tpe")
    assert (about["M"], about["KV"], about["GPU"]) == ("16", "8192", "NVIDIA H200")


def test_a_study_opens_with_every_trial_state_span_and_choice(served: Served) -> None:
    detail = served.ask(f"/api/studies/{study_id(served)}")
    assert detail["name"] == NAME
    assert [trial["number"] for trial in detail["trials"]] == list(range(len(TRIALS)))
    assert [trial["state"] for trial in detail["trials"]] == STATES
    assert [trial.get("values", [None])[0] for trial in detail["trials"][: len(SPANS)]] == list(SPANS)
    assert [trial["number"] for trial in detail["best_trials"]] == [SPANS.index(min(SPANS))]
    assert {param["name"] for param in detail["union_search_space"]} == {"B0.stages"}
    for shown, trial in zip(detail["trials"], TRIALS, strict=True):
        (param,) = shown["params"]
        assert (param["name"], param["param_external_value"]) == ("B0.stages", str(fields(trial.plan)["B0.stages"]))
        about = attributes(shown["user_attrs"])
        assert (about["plan"], about["status"]) == (trial.plan.plan_id, trial.outcome.status.value)
        assert about["mktune trial"] == str(trial.number)
        assert about.get("reason", "") == trial.outcome.reason
        assert about.get("gpu", "") == trial.gpu
        assert shown["datetime_start"] <= shown["datetime_complete"]


def test_what_the_page_asks_for_besides_is_answered(served: Served) -> None:
    assert "bundle.js" in served.get("/dashboard")
    assert len(served.get("/static/bundle.js")) > 100_000
    (importances,) = served.ask(f"/api/studies/{study_id(served)}/param_importances")["param_importances"]
    assert [each["name"] for each in importances] == ["B0.stages"]
    table = served.get(f"/csv/{study_id(served)}").splitlines()
    assert len(table) == 1 + len(TRIALS)


@pytest.fixture(scope="session")
def any_browser() -> str:
    found = browser.find()
    if found is None and os.environ.get(browser.REQUIRE) != "required":
        pytest.skip("no browser here (apt-get install chromium-headless-shell): a study is not looked at")
    assert found is not None, "no browser"
    return found


def test_the_page_of_a_study_names_its_best_trial_and_every_trial(served: Served, any_browser: str) -> None:
    place = f"{served.url}/dashboard/studies/{study_id(served)}"
    words = browser.text_of(any_browser, place)
    assert f"{NAME} (id={study_id(served)})" in words
    best = SPANS.index(min(SPANS))
    assert f"Best Trial (number={best}) {min(SPANS):g} Params = [B0.stages: {best}]" in words
    assert "span in µs" in words
    words = browser.text_of(any_browser, f"{place}/trials")
    assert f"{len(TRIALS)} Trials" in words
    assert all(f"Trial {number} {state}" in words for number, state in enumerate(STATES))


def test_in_the_picture_every_span_is_a_dot_at_its_height(served: Served, any_browser: str, tmp_path: Path) -> None:
    """The plot of the history: from left to right the trials, and the slower the higher."""
    from matplotlib.image import imread

    path, (width, height) = tmp_path / "study.png", (1600, 1400)
    browser.picture_of(any_browser, f"{served.url}/dashboard/studies/{study_id(served)}", path, width, height)
    picture = imread(path)
    assert picture.shape[:2] == (height, width)
    dots = sorted(blobs(picture, DOT))
    assert len(dots) == len(SPANS)
    by_span = sorted(range(len(SPANS)), key=SPANS.__getitem__)
    assert sorted(range(len(dots)), key=lambda place: -dots[place][1]) == by_span
    steps = [right[0] - left[0] for left, right in pairwise(dots)]
    assert max(steps) - min(steps) <= 2


DOT = (0x00, 0xCC, 0x96)
"""How trials that ended are drawn."""
REACH = 6
"""Pixels that parts of one dot may be apart."""


def blobs(picture: Any, colour: tuple[int, int, int]) -> list[tuple[float, float]]:
    """The middle (x, y) of each spot of nearly that colour; a line may run across one."""
    import numpy

    near_by = range(-REACH, REACH + 1)

    near = (numpy.abs(picture[:, :, :3] * 255 - numpy.array(colour)) < 40).all(axis=2)
    left, found = set(zip(*numpy.nonzero(near), strict=True)), []
    while left:
        spot, edge = [], [left.pop()]
        while edge:
            y, x = edge.pop()
            spot.append((x, y))
            beside = {(y + down, x + right) for down in near_by for right in near_by} & left
            left -= beside
            edge += beside
        found.append((sum(x for x, _ in spot) / len(spot), sum(y for _, y in spot) / len(spot)))
    return found
