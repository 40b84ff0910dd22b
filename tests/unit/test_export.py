"""Bundles: the same winners give the same bytes, and a file that is not exactly a bundle is refused with its place."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_values import B300, make_plan, make_winner

from mktune import strict_json
from mktune.bundle import CONVERTERS, SCHEMA_VERSION, parse_bundle, parse_each
from mktune.errors import InputError, NothingFoundError
from mktune.store import Store, bundle_text, read_bundle, write_bundle

_json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
)
WINNERS = [make_winner(make_plan(m=m)) for m in (8, 16, 32)] + [make_winner(device=B300)]


def test_a_bundle_survives_a_file(tmp_path: Path) -> None:
    write_bundle(tmp_path / "new" / "plans.json", WINNERS)
    found = read_bundle(tmp_path / "new" / "plans.json")
    assert sorted(found, key=repr) == sorted(WINNERS, key=repr)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["plans.json"]


def test_the_bytes_do_not_depend_on_the_order_or_the_round() -> None:
    text = bundle_text(WINNERS)
    assert bundle_text(WINNERS[::-1]) == text
    assert bundle_text(parse_bundle(text, "x")) == text


def test_the_bytes_of_a_store_are_those_of_its_winners(tmp_path: Path) -> None:
    with Store.open(tmp_path / "x.db") as store:
        for winner in WINNERS:
            store.put_winner(None, winner)
        assert bundle_text(store.winners()) == bundle_text(WINNERS)


def test_the_document_reads_well_and_is_plain_json() -> None:
    text = bundle_text(WINNERS)
    data = json.loads(text, parse_constant=pytest.fail)
    assert (data["kind"], data["schema"], len(data["winners"])) == ("mktune-plans", SCHEMA_VERSION, 4)
    assert text.endswith("}\n")
    assert '      "m_range": [8, 8],\n' in text  # one line for a list of numbers
    one, other = (
        bundle_text(WINNERS[:1]).splitlines(),
        bundle_text([make_winner(make_plan(m=8, stages=5))]).splitlines(),
    )
    assert len(one) == len(other)
    assert sum(left != right for left, right in zip(one, other, strict=True)) == 2  # the config and the id


def test_nothing_is_not_exported(tmp_path: Path) -> None:
    with pytest.raises(NothingFoundError):
        write_bundle(tmp_path / "plans.json", [])
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plans.json"
    write_bundle(path, WINNERS[:1])
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match="No space left"):
        write_bundle(path, WINNERS)
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == ["plans.json"]


def test_a_place_that_cannot_be_written_or_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        write_bundle(tmp_path / "file" / "plans.json", WINNERS)
    with pytest.raises(InputError, match="cannot read"):
        read_bundle(tmp_path / "none.json")
    with pytest.raises(InputError, match="cannot read"):
        read_bundle(tmp_path)


TEXT = bundle_text(WINNERS[:1])
_LINE = TEXT.splitlines().index('      "kept_baseline": false,') + 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "p.json:1:1: "),
        (TEXT[: len(TEXT) * 6 // 10], r"p.json:\d+:\d+: not JSON"),
        ("\0" * 4096, "p.json:1:1: "),
        (TEXT + TEXT, rf"p.json:{TEXT.count(chr(10)) + 1}:1: more than one document"),
        (f"<<<<<<< HEAD\n{TEXT}", "p.json:1:1: an unresolved merge"),
        (TEXT.replace('      "kept', '<<<<<<< HEAD\n      "kept'), rf"p.json:{_LINE}:1: an unresolved merge"),
        (TEXT.replace("false", "NaN"), rf"p.json:{_LINE}:24: NaN is not"),
        (TEXT.replace("false", "-Infinity"), rf"p.json:{_LINE}:24: -Infinity is not"),
        (TEXT.replace("false", "1e999"), rf"p.json:{_LINE}:24: 1e999 is too large"),
        (TEXT.replace('"kept', '"ratio": 1.0, "kept'), r"p.json:\d+:\d+: the key 'ratio' stands twice"),
        (b'{"kind":\n"\xff"}', "p.json:2:2: not UTF-8"),
        ('{"a": NaN2}}} """', "p.json:1:7: NaN is not"),
        ('{"a": {"\\x": 1}, "b": NaN', "p.json:1:9: not JSON"),
        ("[1e999, 1e9x]", "p.json:1:2: 1e999 is too large"),
        ("[" * 100_000, "nested too deeply"),
        ("9" * 10_000, "p.json: "),
        ("{}", "not a bundle"),
        ("[]", "not a bundle"),
        (b"\x80\x04\x95pickle", "not UTF-8"),
    ],
    ids=lambda value: repr(value[:12]),
)
def test_what_is_no_bundle_is_refused_with_its_place(text: str | bytes, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parse_bundle(text, "p.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("schema", [SCHEMA_VERSION + 1, 99])
def test_a_newer_bundle_names_both_versions(schema: int) -> None:
    with pytest.raises(
        InputError, match=rf"newer mktune \(bundle schema {schema}; this mktune reads 1 to {SCHEMA_VERSION}\)"
    ):
        parse_bundle(json.dumps(json.loads(TEXT) | {"schema": schema}), "p.json")


@pytest.mark.parametrize("schema", [0, -1, True, 1.0, "1", None])
def test_a_schema_that_is_no_version(schema: object) -> None:
    with pytest.raises(InputError, match="is not a version"):
        parse_bundle(json.dumps(json.loads(TEXT) | {"schema": schema}), "p.json")


def _changed(edit: Callable[[dict[str, Any]], object]) -> str:
    data = copy.deepcopy(json.loads(TEXT))
    edit(data["winners"][0])
    return json.dumps(data)


@pytest.mark.parametrize(
    ("edit", "place"),
    [
        (lambda winner: winner.pop("ratio"), r"winners\[0\]: missing ratio"),
        (lambda winner: winner.update(more=1), r"winners\[0\]: unknown 'more'"),
        (lambda winner: winner.update(ratio="0.8"), r"winners\[0\].ratio must be a number"),
        (lambda winner: winner.update(ratio=True), r"winners\[0\].ratio must be a number"),
        (lambda winner: winner.update(ratio=0), r"winners\[0\].ratio must be above 0"),
        (lambda winner: winner.update(plan=None), r"winners\[0\].plan: a plan must be an object"),
        (lambda winner: winner["plan"].pop("order"), r"winners\[0\].plan: plan: missing order"),
        (lambda winner: winner["plan"].update(contract=2), r"winners\[0\].plan_id: the plan was changed"),
        (lambda winner: winner["fingerprint"].update(sms="132"), r"fingerprint.sms must be a whole number"),
        (lambda winner: winner["fingerprint"].pop("gpu"), r"fingerprint: missing gpu"),
        (lambda winner: winner["measurement"].update(samples_us=[1, "2"]), r"samples_us\[1\] must be a number"),
        (lambda winner: winner["measurement"]["policy"].update(cold=1), r"policy.cold must be true or false"),
        (lambda winner: winner.update(builtins=[]), r"builtins must be an object"),
        (lambda winner: winner.update(extra={"a": 1}), r"extra.a must be text"),
    ],
)
def test_a_wrong_field_is_named(edit: Callable[[dict[str, Any]], object], place: str) -> None:
    with pytest.raises(InputError, match=rf"p.json:1:\d+: .*{place}"):
        parse_bundle(_changed(edit), "p.json")


def _line_of(field: str, text: str) -> tuple[int, int]:
    """Line and column of the value of a field that stands once in `text`."""
    assert text.count(f'"{field}": ') == 1, field
    offset = text.index(f'"{field}": ') + len(field) + 4
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ratio", '"0.8"'),
        ("kept_baseline", "null"),
        ("validated", "[]"),
        ("sms", "1.5"),
        ("cold", "1"),
        ("B0p->B0f", '"sometimes"'),
        ("order", "7"),
        ("m_range", "[8]"),
        ("order", "[]"),
        ("workload", '""'),
        ("noise_floor", "[1, {}]"),
    ],
)
def test_a_wrong_field_has_its_line_and_column(field: str, value: str) -> None:
    line, column = _line_of(field, TEXT)
    before, after = TEXT.split(f'"{field}": ')
    first = TEXT.splitlines()[line - 1]
    old, _ = json.JSONDecoder().raw_decode(after)
    assert json.dumps(old)[:5] in first
    spoilt = f'{before}"{field}": {value}{after[_length_of_value(after) :]}'
    with pytest.raises(InputError, match=rf"^p.json:{line}:{column}: winners\[0\]"):
        parse_bundle(spoilt, "p.json")


def _length_of_value(text: str) -> int:
    return json.JSONDecoder().raw_decode(text)[1]


@given(_json_values, st.data())
def test_the_place_of_any_value_is_where_it_stands(value: Any, data: st.DataObject) -> None:
    text = json.dumps(value, indent=data.draw(st.sampled_from([None, 0, 2])))
    path: list[str | int] = []
    inner = value
    while isinstance(inner, dict | list) and inner and data.draw(st.booleans()):
        step = data.draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner))))
        path.append(step)
        inner = inner[step]
    line, column = strict_json.place(text, path)
    offset = sum(len(part) for part in text.splitlines(keepends=True)[: line - 1]) + column - 1
    assert json.JSONDecoder().raw_decode(text, offset)[0] == inner
    assert strict_json.place(text, [*path, "no such key"]) == (line, column) or isinstance(inner, dict)


GOLDEN = sorted((Path(__file__).parent / "bundles").glob("schema_*.json"))


def test_every_schema_that_was_written_has_a_file_and_a_way_up() -> None:
    assert [path.stem for path in GOLDEN] == [f"schema_{number}" for number in range(1, SCHEMA_VERSION + 1)]
    assert sorted(CONVERTERS) == list(range(1, SCHEMA_VERSION))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_files_of_every_schema_are_read(path: Path) -> None:
    before = path.read_text()
    winners = read_bundle(path)
    assert [winner.plan.shape.m for winner in winners] == [8, 16]
    assert all(winner.measurement.span_us == 10.0 for winner in winners)
    assert json.loads(bundle_text(winners))["schema"] == SCHEMA_VERSION
    if json.loads(before)["schema"] == SCHEMA_VERSION:
        assert bundle_text(winners) == before  # byte for byte: a change here is a new schema
    assert path.read_text() == before


def test_the_first_schema_knew_no_attribution() -> None:
    data = json.loads(GOLDEN[0].read_text())
    assert not any("attribution" in winner for winner in data["winners"])
    assert all(winner.attribution == () for winner in read_bundle(GOLDEN[0]))


def test_one_bad_winner_leaves_the_others() -> None:
    data = json.loads(bundle_text(WINNERS))
    data["winners"][1]["ratio"] = "x"
    data["winners"][2] = 7
    found = parse_each(json.dumps(data), "p.json")
    assert [isinstance(item, InputError) for item in found] == [False, True, True, False]


def test_equal_winners_stand_once() -> None:
    assert bundle_text(WINNERS + WINNERS) == bundle_text(WINNERS)


def test_a_link_keeps_pointing_and_access_rights_stay(tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    target, link = tmp_path / "to" / "plans.json", tmp_path / "plans.json"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    write_bundle(link, WINNERS)
    assert link.is_symlink()
    assert target.read_text() == bundle_text(WINNERS)
    assert target.stat().st_mode & 0o777 == 0o640
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(InputError, match="cannot write"):
        write_bundle(tmp_path / "a", WINNERS)


def test_a_new_file_has_the_rights_that_the_user_gives_new_files(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_bundle(tmp_path / "plans.json", WINNERS)
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert (tmp_path / "plans.json").stat().st_mode & 0o777 == 0o640


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_bundle(pipe, WINNERS[:1])
    assert os.read(reader, 1 << 16).decode() == TEXT
    os.close(reader)
    assert pipe.is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


@given(_json_values)
def test_strict_json_takes_what_json_is(value: Any) -> None:
    assert strict_json.loads(json.dumps(value), "x") == value
    assert (
        strict_json.loads(json.dumps(value, ensure_ascii=False, indent=1).encode(errors="surrogatepass"), "x") == value
    )


@given(st.text(alphabet='{}[]:,"\\/ \n01eE+-.aNnulI\0', max_size=30))
def test_strict_json_reads_or_refuses_any_text(text: str) -> None:
    try:
        strict_json.loads(text, "x")
    except InputError as error:
        assert str(error).startswith("x:")  # noqa: PT017


def test_a_file_without_an_end_is_not_read_to_its_end() -> None:
    with pytest.raises(InputError, match="larger than 256 MiB"):
        read_bundle(Path("/dev/zero"))
    with pytest.raises(InputError, match="is empty"):
        read_bundle(Path("/dev/null"))


@pytest.mark.parametrize("name", [".", "/"])
def test_a_folder_is_no_file_to_export_to(name: str) -> None:
    with pytest.raises(InputError, match="give the name of a file"):
        write_bundle(Path(name), WINNERS)


@pytest.mark.parametrize("field", ["ratio", "noise_floor"])
def test_a_whole_number_beyond_every_float_is_refused(field: str) -> None:
    data = json.loads(TEXT)
    data["winners"][0][field] = 10**400
    with pytest.raises(InputError, match=rf"{field} must be a number"):
        parse_bundle(json.dumps(data), "p.json")
