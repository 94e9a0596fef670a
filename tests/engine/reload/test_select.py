from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.reload import Builder, Mount, ReloadUnit
from koordpolicy.engine.reload.mount import EMPTY, Version
from koordpolicy.engine.reload.select import Selection, SelectionRules, select
from koordpolicy.engine.reload.source_state import Files, Rejection, SourceState, active_files, changed_files
from koordpolicy.engine.source import PolicyError, Problem, Source

from .conftest import PARAMS, POLICY, Time, begun, compiled, digest_of, messages, names, toy_build, write


def emptied(policies: Path, how: str) -> None:
    match how:
        case "no file":
            (policies / "a.yaml").unlink()
        case "no text":
            (policies / "a.yaml").write_text("")
        case "blanks":
            (policies / "a.yaml").write_text("\n  \n")
        case "another name":
            (policies / "a.yaml").rename(policies / "a.yaml.bak")


@pytest.mark.parametrize("unit", list(ReloadUnit))
@pytest.mark.parametrize("how", ["no file", "no text", "blanks", "another name"])
def test_a_source_that_is_emptied_stays_active_unless_it_may_be_empty(
    tmp_path: Path, time: Time, how: str, unit: ReloadUnit,
) -> None:
    live, other = Live(), Live()
    policies = write(tmp_path / "p", a="plugin SchedulerPlugin-one")
    careful = begun(live, time, policies, allow_empty=False, unit=unit,
                    holds_policies=lambda source: bool(source.text.strip()))
    willing = begun(other, time, policies, unit=unit)
    emptied(policies, how)
    time.run(careful, 5)
    time.run(willing, 5)
    assert (names(live), names(other)) == (["SchedulerPlugin-one"], [])
    assert (messages(careful), careful.status().emptied, careful.status().healthy) == (
        [f"`{policies}` holds no policy"], (str(policies),), False)
    assert (messages(willing), willing.status().emptied) == ([], ())
    write(policies, a="plugin SchedulerPlugin-two")
    time.run(careful, 5)
    assert (names(live), careful.status().emptied, careful.status().healthy) == (["SchedulerPlugin-two"], (), True)


TEST = {
    "apiVersion": "policy.koordinator.sh/v1alpha2", "kind": "PolicyTest", "metadata": {"name": "t"},
    "spec": {"fixtures": {"nodes": {"n": {"labels": {"kind": "SchedulerPlugin"}}}},
             "cases": [{"name": "c", "pod": {"cpu": 1}, "filter": "pass"}]},
}
IN_BLOCKS = (
    "apiVersion: policy.koordinator.sh/v1alpha2\n'kind' : \"Policy\\u0054est\" # of one\nmetadata:\n  name: s\nspec:\n"
    "  fixtures:\n    nodes:\n      n:\n        labels:\n          kind: SchedulerPlugin\n"
    "  cases:\n  - {name: c, pod: {cpu: 1}, filter: pass}\n"
)


@pytest.mark.parametrize("unit", list(ReloadUnit))
@pytest.mark.parametrize("text", [
    "", "\n  \n", "--- # none", "---\n...\n", "~", "null", "--- null # none\n--- ~\n", "%YAML 1.2\n---\n", "--- !!null",
    "&nothing", "# kind: SchedulerPlugin\n", IN_BLOCKS, json.dumps(TEST), json.dumps(TEST, indent=2),
    "--- {kind: PolicyTest, " + json.dumps(TEST)[1:].replace('"kind": "PolicyTest", ', ""),
    f"--- # none\n{IN_BLOCKS}---\n{json.dumps(TEST)}\n---\n",
])
def test_a_file_that_says_nothing_of_policies_empties_its_source_however_it_is_written(
    tmp_path: Path, time: Time, text: str, unit: ReloadUnit,
) -> None:
    policies = write(tmp_path / "p", a=POLICY)
    reloader = compiled(live := Live(), time, policies, unit=unit)
    write(policies, a=text)
    time.run(reloader, 5)
    assert (names(live), messages(reloader)) == (["one"], [f"`{policies}` holds no policy"])
    write(policies, a=text, b=POLICY.replace("one", "two"))
    time.run(reloader, 5)
    assert (names(live), messages(reloader)) == (["two"], [])


@pytest.mark.parametrize("text", [
    "kind: PolicyTest\n---\nkind: QoSPlugin\n", f"{IN_BLOCKS}---\n{PARAMS}", PARAMS, '{"kind": "SchedulerPlugin"}',
    "{}", "null: x", "# one\nx", "-~", "{", "kind: PolicyTest",
])
def test_a_file_that_says_anything_else_is_left_to_the_compiler(tmp_path: Path, time: Time, text: str) -> None:
    policies = write(tmp_path / "p", a=POLICY)
    reloader = compiled(Live(), time, policies)
    write(policies, a=text)
    time.run(reloader, 5)
    assert reloader.status().emptied == ()


def test_an_emptied_source_keeps_no_other_one_from_moving_on(tmp_path: Path, time: Time) -> None:
    one, two, live = write(tmp_path / "p", a=POLICY), write(tmp_path / "q", a=PARAMS), Live()
    reloader = begun(live, time, one, two, builder=Builder(), allow_empty=False)
    write(one, a=POLICY.replace("one", "three"))
    write(two, a="# none")
    time.run(reloader, 5)
    assert (names(live), messages(reloader, 0), messages(reloader, 1)) == (
        ["three"], [], [f"`{two}` holds no policy"])


def test_with_any_error_the_whole_previous_version_of_the_source_stays(tmp_path: Path, time: Time, live: Live) -> None:
    policies = write(tmp_path / "p", a="plugin one", b="plugin two")
    reloader = begun(live, time, policies)
    published = digest_of(policies)
    write(policies, a="plugin ten", b="nonsense", c="plugin three")
    time.run(reloader, 1)
    status = reloader.status()
    assert names(live) == ["one", "two"]
    assert (status.sources[0].digest, status.sources[0].observed) == (published, digest_of(policies))
    assert [problem.render() for problem in status.sources[0].problems] == [
        f"{policies}/b.yaml:1:1: error: `nonsense` is not a declaration\n 1 | nonsense\n   | ^^^^^^^^"]
    assert not status.healthy
    json.dumps(status.to_json())
    write(policies, b="plugin two")
    time.run(reloader, 1)
    assert names(live) == ["ten", "three", "two"]
    assert messages(reloader) == []


def test_an_error_in_one_source_keeps_no_other_source_from_changing(tmp_path: Path, time: Time, live: Live) -> None:
    one, two = write(tmp_path / "1", a="plugin one"), write(tmp_path / "2", a="plugin two")
    reloader = begun(live, time, one, two)
    write(one, a="nonsense")
    write(two, a="plugin three")
    time.run(reloader, 1)
    assert names(live) == ["one", "three"]
    assert (messages(reloader, 0), messages(reloader, 1)) == (["`nonsense` is not a declaration"], [])


def test_a_name_taken_in_two_sources_is_the_fault_of_the_newer_one(tmp_path: Path, time: Time, live: Live) -> None:
    one, two = write(tmp_path / "1", a="plugin one"), write(tmp_path / "2", a="plugin two")
    reloader = begun(live, time, one, two)
    write(one, a="plugin two")
    time.run(reloader, 1)
    assert names(live) == ["one", "two"]
    assert messages(reloader, 0) == [f"the scheduler plugin `two` is declared twice, also at {one}/a.yaml"]
    write(two, a="plugin three")
    time.run(reloader, 1)
    assert names(live) == ["three", "two"]


def test_a_document_may_move_from_one_source_to_another(tmp_path: Path, time: Time, live: Live) -> None:
    one, two = write(tmp_path / "1", a="plugin one", b="plugin x"), write(tmp_path / "2", a="plugin two")
    reloader = begun(live, time, one, two)
    (one / "b.yaml").unlink()
    write(two, b="plugin x")
    time.run(reloader, 1)
    assert names(live) == ["one", "two", "x"]
    assert {p.name: p.source for p in live.registry.plugins.values()}["x"] == str(two)


def test_taking_away_what_another_source_needs_is_refused(tmp_path: Path, time: Time, live: Live) -> None:
    one, two = write(tmp_path / "1", a="plugin one"), write(tmp_path / "2", a="plugin two\nneeds one")
    reloader = begun(live, time, one, two)
    write(one, a="plugin other")
    time.run(reloader, 1)
    assert names(live) == ["one", "two"]
    assert (messages(reloader, 0), messages(reloader, 1)) == (["no plugin `one`"], [])
    write(two, a="plugin two")
    time.run(reloader, 1)
    assert names(live) == ["other", "two"]


def test_of_three_changed_sources_the_two_that_need_each_other_are_activated(
    tmp_path: Path, time: Time, live: Live,
) -> None:
    paths = [write(tmp_path / name, a=f"plugin {name}") for name in ("1", "2", "3")]
    reloader = begun(live, time, *paths)
    write(paths[0], a="plugin 1\nplugin x\nneeds y")
    write(paths[1], a="nonsense")
    write(paths[2], a="plugin 3\nplugin y\nneeds x")
    time.run(reloader, 1)
    assert names(live) == ["1", "2", "3", "x", "y"]
    assert messages(reloader, 1) == ["`nonsense` is not a declaration"]


def test_of_two_sources_that_exclude_each_other_the_one_that_changed_first_is_activated(
    tmp_path: Path, time: Time, live: Live,
) -> None:
    def exclude(registry: Registry) -> None:
        if {(Framework.SCHEDULER, "x"), (Framework.SCHEDULER, "y")} <= registry.plugins.keys():
            raise PolicyError([Problem("`x` and `y` exclude each other")])

    sources = [write(tmp_path / str(number), a=f"plugin p{number}") for number in range(3)]
    reloader = begun(live, time, *sources, check=exclude)
    write(sources[1], a="plugin y\nneeds z")
    time.run(reloader, 1)
    assert messages(reloader, 1) == ["no plugin `z`"]
    write(sources[0], a="plugin x\nneeds z")
    write(sources[2], a="plugin z")
    time.run(reloader, 1)
    assert names(live) == ["p0", "y", "z"]
    assert [messages(reloader, number) for number in range(3)] == [["`x` and `y` exclude each other"], [], []]


def test_a_deleted_file_takes_its_plugins_with_it(tmp_path: Path, time: Time, live: Live) -> None:
    reloader = begun(live, time, write(tmp_path / "p", a="plugin one", b="plugin two"))
    (tmp_path / "p/b.yaml").unlink()
    time.run(reloader, 1)
    assert names(live) == ["one"]


def test_with_files_as_the_unit_only_the_wrong_file_stays_behind(tmp_path: Path, time: Time, live: Live) -> None:
    policies = write(tmp_path / "p", a="plugin one", b="plugin two", c="plugin three")
    reloader = begun(live, time, policies, unit=ReloadUnit.FILE)
    write(policies, a="plugin ten", b="nonsense")
    (policies / "c.yaml").write_bytes(b"\xff")
    time.run(reloader, 1)
    status = reloader.status().sources[0]
    assert names(live) == ["ten", "three", "two"]
    assert (status.mixed, sorted(messages(reloader))) == (
        True, ["`nonsense` is not a declaration", "byte 0xff at offset 0 is not UTF-8"])
    write(policies, b="plugin twenty", c="plugin thirty")
    time.run(reloader, 1)
    status = reloader.status().sources[0]
    assert (names(live), status.mixed, status.digest) == (["ten", "thirty", "twenty"], False, digest_of(policies))


def test_with_files_as_the_unit_files_that_belong_together_move_together(
    tmp_path: Path, time: Time, live: Live,
) -> None:
    def groups(sources):
        declared = {
            line.split()[1]: s.name for s in sources for line in s.text.splitlines() if line.startswith("plugin")
        }
        for source in sources:
            for line in source.text.splitlines():
                if line.startswith("needs"):
                    yield {source.name, declared[line.split()[1]]} if line.split()[1] in declared else {source.name}

    policies = write(tmp_path / "p", a="plugin one\nneeds shared", b="plugin shared", c="plugin three")
    reloader = begun(live, time, policies, unit=ReloadUnit.FILE, groups=groups)
    before = {name: plugin.digest for (_, name), plugin in live.registry.plugins.items()}
    write(policies, a="plugin one\nneeds shared\nnonsense", b="plugin shared\n\n", c="plugin thirty")
    time.run(reloader, 1)
    after = {name: plugin.digest for (_, name), plugin in live.registry.plugins.items()}
    assert after == {"one": before["one"], "shared": before["shared"], "thirty": after["thirty"]}


# The selector as a pure function: sources whose files declare or need plugins, and a build that says what fits.

NAMES = ("p", "q", "r")
LINES = st.sampled_from([
    *(f"plugin {name}" for name in NAMES), *(f"needs {name}" for name in NAMES), "nonsense", "", "excludes p",
])
TEXTS = st.lists(LINES, max_size=3).map("\n".join)
VERSIONS = st.dictionaries(st.sampled_from(["a.yaml", "b.yaml"]), TEXTS, max_size=2)


def version_of(mount: Mount, texts: dict[str, str]) -> Version:
    return Version.of({name: Source(mount.name_of(name), text) for name, text in texts.items()},
                      {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()})


def build(files: Files) -> frozenset[tuple[str, str]]:
    """Return the set itself, if `toy_build` takes it and nothing in it excludes what it declares."""
    words = {line for file in files.values() for line in file.text.splitlines()}
    kept = [Source(file.name, file.text.replace("excludes p", "")) for file in files.values()]
    Registry.of(toy_build(kept), generation=0)
    if {"plugin p", "excludes p"} <= words:
        raise PolicyError([Problem("`p` is excluded")])
    return frozenset((name, file.text) for name, file in files.items())


def builds(files: Files) -> bool:
    try:
        build(files)
    except PolicyError:
        return False
    return True


def source_of(
    path: str, active: dict[str, str] | None, desired: dict[str, str] | None, *, since: float = 0.0,
    blocked: bool = False, unit: ReloadUnit = ReloadUnit.SOURCE,
) -> SourceState:
    mount = Mount(path)
    source = SourceState(
        mount, unit, active=version_of(mount, active) if active is not None else None,
        desired=version_of(mount, desired) if desired is not None else None, desired_since=since)
    if not blocked or source.desired is None:
        return source
    return replace(source, blocked={source.desired.digest: Problem("it is blocked")} | {
        source.content_key(name, source.desired): Problem("it is blocked") for name in source.desired.hashes})


@st.composite
def situations(draw: st.DrawFn) -> list[SourceState]:
    """Sources of which the active versions build together."""
    sources = [
        source_of(f"/s{number}", draw(st.none() | VERSIONS), draw(st.none() | VERSIONS),
                  since=draw(st.sampled_from([0.0, 1.0, 2.0])), blocked=draw(st.sampled_from([False, False, True])),
                  unit=draw(st.sampled_from(ReloadUnit)))
        for number in range(draw(st.integers(1, 4)))
    ]
    if not builds(active_files(sources)):
        return [replace(source, active=None) for source in sources]
    return sources


RULES = st.builds(
    SelectionRules,
    st.sampled_from([lambda _: (), lambda files: [frozenset(file.name for file in files)]]),
    st.sampled_from([None, lambda file: "plugin" in file.text]))


def facts(sources: list[SourceState]) -> list[dict[str, object]]:
    """Return all fields of the sources; of what can be changed in place, a copy."""
    values = [{each.name: getattr(source, each.name) for each in fields(source)} for source in sources]
    return [{name: dict(value) if isinstance(value, dict) else value for name, value in each.items()}
            for each in values]


def outcome(selection: Selection[frozenset[tuple[str, str]]]) -> object:
    return ([tuple(each.files) for each in selection.accepted],
            [(tuple(each.changes.files), [problem.message for problem in each.problems]) for each in selection.refused],
            {path: version.digest for path, version in selection.versions.items()}, selection.built)


def swapped(sources: list[SourceState], selection: Selection[frozenset[tuple[str, str]]]) -> list[SourceState]:
    """Return the sources with the selected versions active."""
    return [replace(source, active=selection.versions.get(source.path, source.active)) for source in sources]


@given(situations(), RULES)
def test_a_selection_depends_on_its_arguments_alone_and_changes_none_of_them(sources, rules) -> None:
    before = facts(sources)
    first = outcome(select(sources, build, rules))
    assert (outcome(select(sources, build, rules)), facts(sources)) == (first, before)


@given(situations(), RULES)
def test_each_pending_change_is_either_accepted_or_refused_with_reasons(sources, rules) -> None:
    selection = select(sources, build, rules)
    accepted = [name for each in selection.accepted for name in each.files]
    refused = [name for each in selection.refused for name in each.changes.files]
    pending = {source.reader.name_of(name) for source in sources if source.pending
               for name in changed_files(source.active or EMPTY, source.desired)}
    assert sorted([*accepted, *refused]) == sorted(pending)
    assert all(each.problems for each in selection.refused)


@given(situations(), RULES)
def test_what_is_built_is_the_active_files_with_the_accepted_changes(sources, rules) -> None:
    selection = select(sources, build, rules)
    assert (selection.built is None) == (selection.versions == {}) == (not selection.accepted)
    if selection.built is not None:
        assert selection.built == build(active_files(swapped(sources, selection)))


@given(situations(), RULES)
def test_what_is_blocked_and_what_would_leave_a_source_empty_is_never_accepted(sources, rules) -> None:
    selection = select(sources, build, rules)
    for source in sources:
        version = selection.versions.get(source.path)
        if version is None:
            continue
        changed = changed_files(source.active or EMPTY, version)
        assert not any(source.content_key(name, version) in source.blocked for name in changed if changed[name])
        if rules.holds_policies is not None and source.unit is ReloadUnit.SOURCE:
            assert any("plugin" in file.text for file in version.files.values())


@given(situations(), RULES)
def test_no_refused_change_would_fit_beside_what_is_accepted(sources, rules) -> None:
    rules = SelectionRules(rules.groups)
    selection = select(sources, build, rules)
    again = select(swapped(sources, selection), build, rules)
    assert again.accepted == ()


@given(situations(), RULES)
def test_all_pending_changes_are_accepted_where_they_build_together(sources, rules) -> None:
    rules = SelectionRules(rules.groups)
    desired = [source.desired or source.active or EMPTY for source in sources]
    files = {file.name: file for version in desired for file in version.files.values()}
    if builds(files) and not any(source.blocked for source in sources):
        assert select(sources, build, rules).refused == ()


def test_a_change_that_empties_its_source_is_not_part_of_what_is_built_one_by_one() -> None:
    def exclusive(files: Files) -> frozenset[str]:
        if {"/s0/a.yaml", "/s1/a.yaml"} <= files.keys():
            raise PolicyError([Problem("only one of them")])
        return frozenset(files)

    sources = [source_of("/s0", {}, {"a.yaml": "plugin p"}), source_of("/s1", {}, {"a.yaml": "plugin q"}, since=1.0),
               source_of("/s2", {"a.yaml": "plugin r"}, {}, since=2.0)]
    selection = select(sources, exclusive, SelectionRules(holds_policies=lambda file: bool(file.text)))
    assert (selection.built, [[problem.message for problem in each.problems] for each in selection.refused]) == (
        frozenset({"/s0/a.yaml", "/s2/a.yaml"}), [["`/s2` holds no policy"], ["only one of them"]])


INDEPENDENT = st.dictionaries(st.sampled_from(["g", "h", "i"]), st.sampled_from([1, 2]))


def independent(objects: dict[str, int]) -> dict[str, str]:
    """Return objects that need nothing, and whose names nobody else takes, in one of two versions."""
    return {name: f"plugin {name}" + "\n" * version for name, version in objects.items()}


@given(VERSIONS, VERSIONS, INDEPENDENT, INDEPENDENT)
def test_a_valid_object_waits_for_no_other_object_whatever_that_holds(active, desired, before, after) -> None:
    source = source_of("/crd", active | independent(before), desired | independent(after), unit=ReloadUnit.FILE)
    if not builds(active_files([source])):
        source = source_of("/crd", independent(before), desired | independent(after), unit=ReloadUnit.FILE)
    selection = select([source], build, SelectionRules())
    version = selection.versions.get("/crd", source.active)
    assert version is not None
    assert {name: file.text for name, file in version.files.items() if name in "ghi"} == independent(after)


def groups_of_needs(files: Sequence[Source]) -> Iterator[frozenset[str]]:
    """Yield each file with the files whose plugins it needs."""
    declared = {line: file.name for file in files for line in file.text.splitlines() if line.startswith("plugin ")}
    for file in files:
        needed = (declared.get(line.replace("needs", "plugin")) for line in file.text.splitlines())
        yield frozenset({file.name, *(name for name in needed if name is not None)})


OBJECTS = st.dictionaries(st.sampled_from("abcd"), st.lists(
    st.sampled_from(["needs a", "needs b", "needs c", "needs d", "nonsense"]), max_size=2)).map(
        lambda objects: {name: "\n".join([f"plugin {name}", *lines]) for name, lines in objects.items()})


@given(OBJECTS)
def test_at_the_start_all_objects_are_active_that_are_valid_with_what_they_need(desired) -> None:
    good = {name for name, text in desired.items() if "nonsense" not in text}
    while any(line[-1] not in good for name in good for line in desired[name].splitlines()[1:]):
        good = {name for name in good if all(line[-1] in good for line in desired[name].splitlines()[1:])}
    source = source_of("/crd", {}, desired, unit=ReloadUnit.FILE)
    selection = select([source], build, SelectionRules(groups_of_needs))
    assert {*selection.versions.get("/crd", EMPTY).files} == good


def test_a_broken_object_holds_up_no_later_change_of_what_it_references() -> None:
    rules = SelectionRules(groups_of_needs)
    active = {"p": "plugin p", "x": "plugin x\nneeds p", "y": "plugin y\nneeds p"}
    broken = active | {"y": "plugin y\nneeds p\nnonsense"}
    source = source_of("/crd", active, broken, unit=ReloadUnit.FILE)
    (refusal,) = select([source], build, rules).refused
    later = broken | {"p": "plugin p\n", "x": "plugin x\nneeds p\n"}
    source = replace(source_of("/crd", active, later, unit=ReloadUnit.FILE), refused=dict.fromkeys(
        refusal.changes.files, Rejection(refusal.changes.contents, refusal.problems)))
    selection = select([source], build, rules)
    assert {name: file.text for name, file in selection.versions["/crd"].files.items()} == later | {"y": active["y"]}


def test_an_object_that_is_broken_together_with_what_it_references_keeps_both_as_they_are() -> None:
    active = {"p": "plugin p", "y": "plugin y\nneeds p", "z": "plugin z"}
    edited = {"p": "plugin p\n", "y": "plugin y\nneeds p\nnonsense", "z": "plugin z\n"}
    source = source_of("/crd", active, edited, unit=ReloadUnit.FILE)
    selection = select([source], build, SelectionRules(groups_of_needs))
    assert {name: file.text for name, file in selection.versions["/crd"].files.items()} == active | {"z": "plugin z\n"}
    again = replace(source, active=selection.versions["/crd"], refused={
        name: Rejection(refusal.changes.contents, refusal.problems)
        for refusal in selection.refused for name in refusal.changes.files})
    assert select([again], build, SelectionRules(groups_of_needs)).accepted == ()
