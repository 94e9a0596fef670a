from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Live, Plugin, Registry
from koordpolicy.engine.reload import InvalidAtStart, Mount, Reloader, ReloadUnit
from koordpolicy.engine.reload.build import Builder
from koordpolicy.engine.reload.mount import Stamp
from koordpolicy.engine.reload.watch import FileEvents
from koordpolicy.engine.source import PolicyError, Problem, Severity, Source

from .conftest import ConfigMapMount, Time, begun, digest_of, messages, names, reloader_of, toy_build, write


def test_the_first_set_is_generation_one_and_python_plugins_stand_beside_it(tmp_path: Path, time: Time) -> None:
    live = Live()
    built_in = Plugin("built-in", Framework.SCHEDULER, (Point.FILTER,), lambda args, handle: None, "built-in", "1")
    policies = write(tmp_path / "p", a="plugin one\nplugin two")
    reloader = begun(live, time, policies, python_plugins=[built_in])
    assert names(live) == ["built-in", "one", "two"]
    assert {p.name: p.source for p in live.registry.plugins.values()} == {
        "built-in": "", "one": str(policies), "two": str(policies)}
    assert reloader.status().to_json() == {
        "generation": 1, "digest": live.registry.digest, "healthy": True, "lastSuccess": 5.0, "lastFailure": None,
        "successes": 1, "failures": 0, "warnings": [], "events": False,
        "sources": [{"path": str(policies), "digest": digest_of(policies), "since": 5.0, "newest": digest_of(policies),
                     "problems": [], "warnings": [], "unmounted": False, "lastGood": False, "mixed": False}],
        "restored": None,
        "history": [{"generation": 1, "digest": live.registry.digest, "since": 5.0,
                     "sources": {str(policies): digest_of(policies)}}],
    }


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
def test_a_source_that_is_emptied_stays_in_force_unless_it_may_be_empty(
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


POLICY = (
    "apiVersion: policy.koordinator.sh/v1alpha2\nkind: SchedulerPlugin\nmetadata: {name: one}\n"
    "spec: {filter: [{name: f, expression: 'true'}]}\n"
)
PARAMS = "apiVersion: policy.koordinator.sh/v1alpha2\nkind: PolicyParams\nmetadata: {name: p}\nspec: {params: {a: 1}}\n"
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


def compiled(live: Live, time: Time, policies: Path, **settings) -> Reloader:
    return begun(live, time, policies, builder=Builder(), allow_empty=False, **settings)


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


def test_a_source_without_policies_at_start_is_refused_unless_it_may_be_empty(tmp_path: Path, time: Time) -> None:
    policies = write(tmp_path / "p", a="")
    with pytest.raises(PolicyError, match="holds no policy"):
        compiled(Live(), time, policies)
    assert begun(Live(), time, policies).status().healthy


def test_a_source_that_is_empty_at_start_goes_on_with_the_last_good_set(tmp_path: Path, time: Time) -> None:
    policies, live = write(tmp_path / "p", a="plugin SchedulerPlugin-one"), Live()
    begun(Live(), time, policies, allow_empty=False, state_dir=tmp_path / "s").close()
    (policies / "a.yaml").unlink()
    reloader = begun(live, time, policies, allow_empty=False, state_dir=tmp_path / "s")
    time.run(reloader, 5)
    assert (names(live), messages(reloader)) == (["SchedulerPlugin-one"], [f"`{policies}` holds no policy"])


def test_an_edit_is_in_force_once_the_directory_is_quiet(tmp_path: Path, time: Time, live: Live) -> None:
    reloader = begun(live, time, write(tmp_path / "p", a="plugin one"))
    write(tmp_path / "p", a="plugin three")
    assert reloader.step(time.now) == time.now + 0.05
    assert names(live) == ["one"]
    reloader.step(time.now + 0.05)
    assert (names(live), live.registry.generation) == (["three"], 2)


def test_a_burst_of_edits_is_one_generation(tmp_path: Path, time: Time, live: Live) -> None:
    reloader = begun(live, time, write(tmp_path / "p", a="plugin p0"))
    for number in range(1, 30):
        write(tmp_path / "p", a=f"plugin p{number}")
        time.run(reloader, 0.025)
    assert names(live) == ["p0"]
    time.run(reloader, 0.2)
    assert (names(live), live.registry.generation) == (["p29"], 2)


def test_a_source_that_never_rests_is_told_and_not_read(tmp_path: Path, time: Time, live: Live) -> None:
    reloader = begun(live, time, write(tmp_path / "p", a="plugin p0"))
    for number in range(500):
        write(tmp_path / "p", a=f"plugin p{number}")
        time.run(reloader, 0.025)
    assert names(live) == ["p0"]
    assert reloader.status().sources[0].warnings == (
        f"`{tmp_path}/p` keeps changing and is read only once it is quiet for 0.05 s",)


def test_saving_the_same_text_keeps_the_generation(tmp_path: Path, time: Time, live: Live) -> None:
    reloader = begun(live, time, write(tmp_path / "p", a="plugin one"))
    write(tmp_path / "p", a="plugin one")
    time.run(reloader, 2)
    assert live.registry.generation == 1


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


def test_going_back_to_what_runs_clears_the_complaint(tmp_path: Path, time: Time, live: Live) -> None:
    reloader = begun(live, time, write(tmp_path / "p", a="plugin one"))
    write(tmp_path / "p", a="nonsense")
    time.run(reloader, 1)
    assert messages(reloader) == ["`nonsense` is not a declaration"]
    write(tmp_path / "p", a="plugin one")
    time.run(reloader, 1)
    assert (messages(reloader), live.registry.generation) == ([], 1)


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


def test_of_three_changed_sources_the_two_that_need_each_other_go_in_force(
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


def test_of_two_sources_that_exclude_each_other_the_one_that_changed_first_goes_in_force(
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


def test_a_compiler_that_crashes_is_told_as_our_fault_and_reloading_goes_on(
    tmp_path: Path, time: Time, live: Live,
) -> None:
    reloader = begun(live, time, write(tmp_path / "p", a="plugin one"))
    write(tmp_path / "p", a="crash")
    time.run(reloader, 1)
    assert messages(reloader) == ["compiling the policies failed: RuntimeError: toy compiler crashed"]
    write(tmp_path / "p", a="plugin two")
    time.run(reloader, 1)
    assert names(live) == ["two"]


def refuse_odd(registry: Registry) -> None:
    """Nobody can run a plugin with an odd name."""
    problems = [Problem(f"`{plugin.name}` is odd", plugin.span, code="odd")
                for plugin in registry.plugins.values() if plugin.name.startswith("odd")]
    if problems:
        raise PolicyError(problems)


def test_what_builds_and_nobody_can_run_is_refused_with_its_place(tmp_path: Path, time: Time, live: Live) -> None:
    one, two = write(tmp_path / "1", a="plugin one"), write(tmp_path / "2", a="plugin two")
    reloader = begun(live, time, one, two, check=refuse_odd)
    write(one, a="plugin odd-one")
    write(two, a="plugin three")
    time.run(reloader, 1)
    assert names(live) == ["one", "three"]
    first, second = reloader.status().sources
    assert [problem.render() for problem in first.problems] == [
        f"{one}/a.yaml:1:1: error: `odd-one` is odd\n 1 | plugin odd-one\n   | ^^^^^^^^^^^^^^"]
    assert (first.digest != first.observed, second.digest == second.observed, second.problems) == (True, True, ())


def test_what_nobody_can_run_is_invalid_at_start(tmp_path: Path, live: Live) -> None:
    with pytest.raises(PolicyError, match="`odd` is odd"):
        reloader_of(live, write(tmp_path / "p", a="plugin odd"), check=refuse_odd).begin(0)


def test_what_cannot_be_prepared_does_not_go_in_force(tmp_path: Path, time: Time, live: Live) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    published = digest_of(policies)
    reloader = begun(live, time, policies, state_dir=tmp_path / "state")
    prepared: list[tuple[int, list[str]]] = []

    def prepare(registry: Registry) -> None:
        assert live.registry is not registry
        prepared.append((registry.generation, sorted(name for _, name in registry.plugins)))
        if "crash" in prepared[-1][1]:
            raise RuntimeError("no such device")
        refuse_odd(registry)

    reloader.stage_with(prepare)
    for name, problem in (("odd", "`odd` is odd"),
                          ("crash", "activating the policies failed: RuntimeError: no such device")):
        write(policies, a=f"plugin {name}")
        time.run(reloader, 1)
        (source,) = reloader.status().sources
        assert (names(live), live.registry.generation, messages(reloader)) == (["one"], 1, [problem])
        assert (source.digest, source.observed) == (published, digest_of(policies))
    write(policies, a="plugin two")
    time.run(reloader, 1)
    assert (names(live), reloader.status().healthy) == (["two"], True)
    assert prepared == [(2, ["odd"]), (2, ["crash"]), (2, ["two"])]


def test_what_cannot_be_prepared_again_is_not_gone_back_to(tmp_path: Path, time: Time, live: Live) -> None:
    policies = write(tmp_path / "p", a="plugin odd-one")
    reloader = begun(live, time, policies, max_error_rate=0.1, first_decisions=10)
    write(policies, a="plugin two")
    time.run(reloader, 1)
    reloader.stage_with(refuse_odd)
    reloader.observe(2, 10, 10)
    time.run(reloader, 1)
    assert (names(live), reloader.status().sources[0].digest) == (["two"], digest_of(policies))
    assert reloader.status().warnings == (
        ("10 of the first 10 decisions under generation 2 had failing expressions, and the set that was active before "
         "cannot be activated again: `odd-one` is odd"),)


def test_what_is_to_be_said_about_the_files_in_force_stands_in_the_status(
    tmp_path: Path, time: Time, live: Live,
) -> None:
    def warn(sources: Sequence[Source]) -> list[Problem]:
        return [
            Problem("it is long", source.span(0, 6), "cut it", Severity.WARNING)
            for source in sources if "long" in source.text
        ]

    one, two = write(tmp_path / "1", a="plugin long-one"), write(tmp_path / "2", a="plugin two")
    reloader = begun(live, time, one, two, warnings=warn)
    assert [each.warnings for each in reloader.status().sources] == [(f"{one}/a.yaml:1:1: it is long (cut it)",), ()]
    write(one, a="plugin one")
    write(two, a="long nonsense")
    time.run(reloader, 1)
    assert ([each.warnings for each in reloader.status().sources], reloader.status().failures) == ([(), ()], 1)


def test_a_deleted_file_takes_its_plugins_with_it(tmp_path: Path, time: Time, live: Live) -> None:
    reloader = begun(live, time, write(tmp_path / "p", a="plugin one", b="plugin two"))
    (tmp_path / "p/b.yaml").unlink()
    time.run(reloader, 1)
    assert names(live) == ["one"]


def test_a_half_written_file_is_refused_and_the_rest_of_it_taken(tmp_path: Path, time: Time, live: Live) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    reloader = begun(live, time, policies)
    with (policies / "a.yaml").open("w") as file:
        file.write("plug")
        file.flush()
        time.run(reloader, 1)
        assert (names(live), messages(reloader)) == (["one"], ["`plug` is not a declaration"])
        file.write("in two")
    time.run(reloader, 1)
    assert (names(live), messages(reloader)) == (["two"], [])


def test_configmap_swaps_are_followed(tmp_path: Path, time: Time, live: Live) -> None:
    mount = ConfigMapMount(tmp_path / "m")
    mount.write({"a.yaml": "plugin one"})
    reloader = begun(live, time, mount.path)
    prepared = mount.prepare({"a.yaml": "plugin two", "b.yaml": "plugin three"})
    time.run(reloader, 1)
    assert names(live) == ["one"]
    old = mount.swap(prepared)
    time.run(reloader, 1)
    assert names(live) == ["three", "two"]
    mount.finish(old)
    time.run(reloader, 1)
    assert (names(live), live.registry.generation) == (["three", "two"], 2)


@pytest.mark.parametrize("remount", [False, True])
def test_an_unmounted_configmap_keeps_running_and_alarms(
    tmp_path: Path, time: Time, live: Live, remount: bool,
) -> None:
    mount = ConfigMapMount(tmp_path / "m")
    mount.write({"a.yaml": "plugin one"})
    reloader = begun(live, time, mount.path)
    mount.unmount()
    time.run(reloader, 200)
    status = reloader.status().sources[0]
    assert (names(live), status.unmounted, status.observed) == (["one"], True, None)
    assert messages(reloader) == [
        f"`{mount.path}` cannot be read: its `..data` is gone, so the volume is no longer mounted"]
    if remount:
        mount.write({"a.yaml": "plugin two"})
        time.run(reloader, 1)
        status = reloader.status().sources[0]
        assert (names(live), status.unmounted, status.problems) == (["two"], False, ())


def test_a_directory_that_goes_away_and_comes_back_is_followed_again(tmp_path: Path, time: Time, live: Live) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    reloader = begun(live, time, policies)
    policies.rename(tmp_path / "away")
    time.run(reloader, 5)
    assert (names(live), reloader.status().sources[0].unmounted) == (["one"], True)
    (tmp_path / "away").rename(policies)
    time.run(reloader, 1)
    assert (names(live), reloader.status().healthy) == (["one"], True)


def test_an_empty_directory_is_a_wish_after_two_looks(tmp_path: Path, time: Time, live: Live) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    reloader = begun(live, time, policies)
    (policies / "a.yaml").unlink()
    time.run(reloader, 0.2)
    assert names(live) == ["one"]
    assert reloader.status().sources[0].warnings == (f"`{policies}` holds no policy files; looking again",)
    time.run(reloader, 1.1)
    assert (names(live), live.registry.generation) == ([], 2)
    assert reloader.status().sources[0].warnings == (f"`{policies}` holds no policy files",)


class Counted(Mount):
    """Counts how often it is read."""

    reads = 0

    def read(self, previous=None):
        self.reads += 1
        return super().read(previous)


def test_an_empty_directory_is_read_twice_and_then_left_alone(tmp_path: Path, time: Time, live: Live) -> None:
    policies = Counted(write(tmp_path / "p", a="plugin one"))
    other = write(tmp_path / "q", b="plugin two\nneeds one")
    reloader = begun(live, time, policies, other)
    (tmp_path / "p/a.yaml").unlink()
    policies.reads = 0
    time.run(reloader, 30)
    # It is not taken, since the other source needs what was in it.
    assert (names(live), policies.reads, messages(reloader)) == (["one", "two"], 2, ["no plugin `one`"])
    assert reloader.status().sources[0].warnings == (f"`{tmp_path}/p` holds no policy files",)
    write(other, b="plugin two")
    time.run(reloader, 20)
    assert (names(live), policies.reads) == (["two"], 2)


def test_two_empty_versions_within_one_look_are_one_look(tmp_path: Path, time: Time, live: Live) -> None:
    mount = ConfigMapMount(tmp_path / "m")
    mount.write({"a.yaml": "plugin one"})
    reloader = begun(live, time, mount.path)
    mount.write({})
    time.run(reloader, 0.3)
    mount.write({})
    time.run(reloader, 0.3)
    assert names(live) == ["one"]
    time.run(reloader, 2)
    assert names(live) == []


def test_a_directory_that_is_empty_for_one_look_only_loses_nothing(tmp_path: Path, time: Time, live: Live) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    reloader = begun(live, time, policies)
    for _ in range(5):
        (policies / "a.yaml").unlink()
        time.run(reloader, 0.5)
        write(policies, a="plugin one")
        time.run(reloader, 0.5)
    assert (names(live), live.registry.generation) == (["one"], 1)


def test_a_change_that_no_stamp_shows_is_found_once_a_minute(tmp_path: Path, time: Time, live: Live) -> None:
    # A network file system may show stale attributes; here the target of `..data` stays and its file changes.
    mount = ConfigMapMount(tmp_path / "m")
    mount.write({"a.yaml": "plugin one"})
    reloader = begun(live, time, mount.path)
    time.run(reloader, 2)
    (mount.path / "..data/a.yaml").write_text("plugin two")
    time.run(reloader, 50)
    assert names(live) == ["one"]
    time.run(reloader, 12)
    assert names(live) == ["two"]


def test_lost_permission_keeps_what_runs_and_is_told(tmp_path: Path, time: Time, live: Live) -> None:
    denied: list[str] = []

    def open_at(path: str, flags: int, directory: int | None) -> int:
        if path in denied:
            raise PermissionError(13, "Permission denied")
        return os.open(path, flags, dir_fd=directory)

    policies = write(tmp_path / "p", a="plugin one", b="plugin two")
    reloader = begun(live, time, Mount(policies, open_at=open_at))
    denied.append("a.yaml")
    write(policies, b="plugin three")
    time.run(reloader, 2)
    assert (names(live), messages(reloader)) == (
        ["one", "two"], [f"`{policies}/a.yaml` cannot be read: permission denied"])
    denied[:] = [str(policies)]
    time.run(reloader, 2)
    assert messages(reloader)[0] == f"`{policies}` cannot be read: permission denied"
    denied.clear()
    time.run(reloader, 2)
    assert (names(live), messages(reloader)) == (["one", "three"], [])


def test_invalid_at_start_is_refused_with_everything_that_is_wrong(tmp_path: Path, live: Live) -> None:
    one, two = write(tmp_path / "1", a="nonsense"), write(tmp_path / "2", a="plugin x", b="plugin x")
    (one / "b.yaml").write_bytes(b"\xff")
    with pytest.raises(PolicyError) as caught:
        reloader_of(live, one, two, tmp_path / "gone").begin(0)
    assert [problem.message for problem in caught.value.problems] == [
        f"`{tmp_path}/gone` cannot be read: it does not exist",
        "`nonsense` is not a declaration", "byte 0xff at offset 0 is not UTF-8",
    ]
    assert live.registry.generation == 0


def test_one_source_inside_another_is_refused(tmp_path: Path, live: Live) -> None:
    write(tmp_path / "p", a="plugin one")
    (tmp_path / "link").symlink_to("p")
    with pytest.raises(PolicyError, match="are two sources, but one holds the other"):
        reloader_of(live, tmp_path / "p", tmp_path / "link" / "a.yaml")


def last_good(live: Live, time: Time, *paths: Path, state: Path) -> Reloader:
    return begun(live, time, *paths, state_dir=state, invalid_at_start=InvalidAtStart.LAST_GOOD)


def test_invalid_at_start_may_mean_the_last_good_set(tmp_path: Path, time: Time) -> None:
    one, two = write(tmp_path / "1", a="plugin one"), write(tmp_path / "2", a="plugin two")
    begun(Live(), time, one, two, state_dir=tmp_path / "state")
    published = digest_of(one)
    write(one, a="nonsense")
    write(two, a="plugin three")
    live = Live()
    reloader = last_good(live, time, one, two, state=tmp_path / "state")
    first, second = reloader.status().sources
    assert names(live) == ["one", "three"]
    assert (first.digest, first.last_good, first.since) == (published, True, 5.0)
    assert (second.digest, second.last_good) == (digest_of(two), False)
    assert messages(reloader, 0) == ["`nonsense` is not a declaration"]
    write(one, a="plugin four")
    time.run(reloader, 1)
    assert (names(live), reloader.status().healthy) == (["four", "three"], True)


def test_the_last_good_set_bridges_a_missing_or_empty_mount(tmp_path: Path, time: Time) -> None:
    mount = ConfigMapMount(tmp_path / "m")
    mount.write({"a.yaml": "plugin one"})
    begun(Live(), time, mount.path, state_dir=tmp_path / "state")
    mount.unmount()
    mount.path.rmdir()
    live = Live()
    reloader = last_good(live, time, mount.path, state=tmp_path / "state")
    assert (names(live), reloader.status().sources[0].unmounted) == (["one"], True)
    mount = ConfigMapMount(tmp_path / "m")
    mount.write({"a.yaml": "plugin two"})
    time.run(reloader, 1)
    assert (names(live), reloader.status().healthy) == (["two"], True)


@pytest.mark.parametrize("invalid", InvalidAtStart)
def test_an_empty_directory_at_start_is_a_wish_after_two_looks_too(
    tmp_path: Path, time: Time, invalid: InvalidAtStart,
) -> None:
    one, two = write(tmp_path / "1", a="plugin one"), write(tmp_path / "2", a="plugin two")
    settings = {"state_dir": tmp_path / "state", "invalid_at_start": invalid}
    begun(Live(), time, one, two, clock=lambda: 3.0, **settings)
    (one / "a.yaml").unlink()
    write(two, a="plugin three")
    live = Live()
    reloader = begun(live, time, one, two, **settings)
    first, second = reloader.status().sources
    assert names(live) == ["one", "three"]
    assert (first.last_good, first.since, first.warnings) == (
        True, 3.0, (f"`{one}` holds no policy files; looking again",),
    )
    assert (second.last_good, second.digest) == (False, digest_of(two))
    time.run(reloader, 1.2)
    assert (names(live), reloader.status().healthy) == (["three"], True)
    assert reloader.status().sources[0].digest == digest_of(one)


def test_what_an_empty_directory_held_comes_back_as_if_it_had_never_been_away(tmp_path: Path, time: Time) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    begun(Live(), time, policies, state_dir=tmp_path / "state")
    (policies / "a.yaml").rename(tmp_path / "away")
    live = Live()
    reloader = begun(live, time, policies, state_dir=tmp_path / "state")
    (tmp_path / "away").rename(policies / "a.yaml")
    time.run(reloader, 5)
    assert (names(live), live.registry.generation, reloader.status().healthy) == (["one"], 1, True)


def test_an_empty_directory_at_start_is_taken_at_once_where_nothing_can_be_held(tmp_path: Path, time: Time) -> None:
    policies = write(tmp_path / "p", a="plugin odd")
    begun(Live(), time, policies, state_dir=tmp_path / "state")
    (policies / "a.yaml").unlink()
    live = Live()
    reloader = begun(live, time, policies, state_dir=tmp_path / "state", check=refuse_odd)
    assert (names(live), reloader.status().healthy) == ([], True)


def test_the_last_good_set_keeps_texts_that_began_with_a_byte_order_mark(tmp_path: Path, time: Time) -> None:
    policies = write(tmp_path / "p", a="\ufeffplugin one")
    begun(Live(), time, policies, state_dir=tmp_path / "state")
    published = digest_of(policies)
    write(policies, a="nonsense")
    reloader = last_good(Live(), time, policies, state=tmp_path / "state")
    assert reloader.status().sources[0].digest == published


def test_the_last_good_set_is_what_was_published_again_once_the_edit_is_taken_back(tmp_path: Path, time: Time) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    begun(Live(), time, policies, state_dir=tmp_path / "state")
    write(policies, a="nonsense")
    reloader = begun(Live(), time, policies, state_dir=tmp_path / "state", invalid_at_start=InvalidAtStart.LAST_GOOD)
    assert (reloader.status().healthy, reloader.status().sources[0].last_good) == (False, True)
    write(policies, a="plugin one")
    time.run(reloader, 1)
    assert (reloader.status().healthy, reloader.status().sources[0].last_good) == (True, False)


@pytest.mark.parametrize(("damage", "message"), [
    (lambda path: path.unlink(), "there is no last good set in `STATE`"),
    (lambda path: path.write_bytes(path.read_bytes()[:-1]), "the last good set `FILE` has 145 of 146 bytes"),
    (lambda path: path.write_bytes(path.read_bytes().replace(b"plugin one", b"plugin two")),
     "the last good set `FILE` is damaged: its checksum does not fit"),
    (lambda path: path.write_bytes(b""), "`FILE` is not a last good set of this version"),
    (lambda path: path.write_bytes(b"\xff\x00" * 1000), "`FILE` is not a last good set of this version"),
    (lambda path: (path.unlink(), path.mkdir()), "the last good set `FILE` cannot be read: is a directory"),
])
def test_a_last_good_set_that_is_not_whole_is_refused(tmp_path: Path, time: Time, damage, message: str) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    begun(Live(), time, policies, state_dir=tmp_path / "state")
    state = tmp_path / "state/last-good.json"
    size = state.read_bytes().split(b" ")[1].decode()
    damage(state)
    write(policies, a="nonsense")
    live = Live()
    with pytest.raises(PolicyError) as caught:
        last_good(live, time, policies, state=tmp_path / "state")
    expected = message.replace("FILE", str(state)).replace("STATE", str(state.parent))
    if "bytes" in message:
        expected = f"the last good set `{state}` has {int(size) - 1} of {size} bytes"
    assert sorted(problem.message for problem in caught.value.problems) == sorted(
        [expected, "`nonsense` is not a declaration"])
    assert live.registry.generation == 0


def test_valid_policies_start_beside_a_damaged_last_good_set_and_heal_it(tmp_path: Path, time: Time) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state/last-good.json").write_text("garbage")
    live = Live()
    policies = write(tmp_path / "p", a="plugin one")
    last_good(live, time, policies, state=tmp_path / "state")
    write(policies, a="nonsense")
    last_good(other := Live(), time, policies, state=tmp_path / "state")
    assert names(other) == ["one"]


def test_state_that_cannot_be_written_is_told_and_breaks_nothing_else(tmp_path: Path, time: Time, live: Live) -> None:
    (tmp_path / "state").write_text("a file where the directory should be")
    policies = write(tmp_path / "p", a="plugin one")
    reloader = begun(live, time, policies, state_dir=tmp_path / "state")
    assert reloader.status().warnings == (
        (f"the last good set cannot be kept in `{tmp_path}/state/last-good.json`: file exists; "
        "a restart may find an older one or none"),)
    write(policies, a="plugin two")
    time.run(reloader, 1)
    assert names(live) == ["two"]
    (tmp_path / "state").unlink()
    time.run(reloader, 65)
    assert reloader.status().warnings == ()
    assert (tmp_path / "state/last-good.json").exists()


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


def test_a_generation_that_fails_too_often_is_rolled_back_until_it_is_edited(
    tmp_path: Path, time: Time, live: Live,
) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    reloader = begun(live, time, policies, max_error_rate=0.05, first_decisions=100)
    good = digest_of(policies)
    write(policies, a="plugin two")
    time.run(reloader, 1)
    bad = live.registry.generation
    reloader.observe(1, 1000, 1000)
    reloader.observe(bad, 90, 5)
    time.run(reloader, 1)
    assert names(live) == ["two"]
    reloader.observe(bad, 1, 1)
    time.run(reloader, 5)
    told = "6 of the first 91 decisions under generation 2 had failing expressions"
    status = reloader.status()
    assert (names(live), status.generation, status.sources[0].digest) == (["one"], 3, good)
    assert status.warnings == (f"{told}: rolled back to what was active before",)
    assert messages(reloader) == [f"{told}, so it was rolled back"]
    write(policies, a="plugin three")
    time.run(reloader, 1)
    assert (names(live), reloader.status().warnings, messages(reloader)) == (["three"], (), [])


def test_taking_back_what_was_rolled_back_ends_the_alarm(tmp_path: Path, time: Time, live: Live) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    reloader = begun(live, time, policies, max_error_rate=0.5, first_decisions=10)
    write(policies, a="plugin two")
    time.run(reloader, 1)
    reloader.observe(2, 10, 10)
    time.run(reloader, 1)
    assert (names(live), reloader.status().healthy, len(reloader.status().warnings)) == (["one"], False, 1)
    write(policies, a="plugin one")
    time.run(reloader, 1)
    assert (names(live), reloader.status().healthy, reloader.status().warnings) == (["one"], True, ())


@pytest.mark.parametrize("unit", ReloadUnit)
def test_what_was_rolled_back_stays_out_while_other_sources_change(
    tmp_path: Path, time: Time, live: Live, unit: ReloadUnit,
) -> None:
    one, two = write(tmp_path / "1", a="plugin one"), write(tmp_path / "2", a="plugin two")
    reloader = begun(live, time, one, two, max_error_rate=0.0, first_decisions=10, unit=unit)
    write(one, a="plugin bad")
    time.run(reloader, 1)
    reloader.observe(live.registry.generation, 1, 1)
    time.run(reloader, 1)
    assert names(live) == ["one", "two"]
    write(two, a="plugin three")
    time.run(reloader, 1)
    assert names(live) == ["one", "three"]


def test_a_generation_that_has_proven_itself_is_not_rolled_back_any_more(
    tmp_path: Path, time: Time, live: Live,
) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    reloader = begun(live, time, policies, max_error_rate=0.05, first_decisions=100, state_dir=tmp_path / "state")
    write(policies, a="plugin two")
    time.run(reloader, 1)
    kept = (tmp_path / "state/last-good.json").read_text()
    assert "plugin one" in kept
    reloader.observe(2, 100, 5)
    reloader.observe(2, 100, 100)
    time.run(reloader, 1)
    assert names(live) == ["two"]
    assert "plugin two" in (tmp_path / "state/last-good.json").read_text()


def test_what_was_rolled_back_may_be_published_again_after_something_else(
    tmp_path: Path, time: Time, live: Live,
) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    reloader = begun(live, time, policies, max_error_rate=0.0, first_decisions=10)
    write(policies, a="plugin two")
    time.run(reloader, 1)
    reloader.observe(2, 1, 1)
    time.run(reloader, 1)
    write(policies, a="plugin two\n")
    time.run(reloader, 1)
    assert names(live) == ["two"]
    write(policies, a="plugin three")
    time.run(reloader, 1)
    write(policies, a="plugin two")
    time.run(reloader, 1)
    assert (names(live), messages(reloader)) == (["two"], [])


def test_a_roll_back_leads_to_what_has_proven_itself_past_what_has_not(tmp_path: Path, time: Time, live: Live) -> None:
    one, two = write(tmp_path / "1", a="plugin one"), write(tmp_path / "2", a="plugin two")
    reloader = begun(live, time, one, two, max_error_rate=0.05, first_decisions=100)
    write(one, a="plugin bad")
    time.run(reloader, 1)
    reloader.observe(2, 50, 2)
    write(two, a="plugin good")
    time.run(reloader, 1)
    assert names(live) == ["bad", "good"]
    reloader.observe(3, 50, 50)
    time.run(reloader, 1)
    assert names(live) == ["one", "two"]


def test_the_first_generation_has_nothing_to_go_back_to(tmp_path: Path, time: Time, live: Live) -> None:
    reloader = begun(live, time, write(tmp_path / "p", a="plugin one"), max_error_rate=0.5, first_decisions=10)
    reloader.observe(1, 10, 10)
    time.run(reloader, 1)
    assert names(live) == ["one"]
    assert reloader.status().warnings == (
        ("10 of the first 10 decisions under generation 1 had failing expressions, "
        "and there is no generation to roll back to"),)
    assert not reloader.status().healthy
    write(tmp_path / "p", a="plugin two")
    time.run(reloader, 1)
    assert (names(live), reloader.status().healthy, reloader.status().warnings) == (["two"], True, ())


def test_file_events_bring_an_edit_in_force_long_before_the_next_look(tmp_path: Path) -> None:
    swapped = threading.Event()

    class Told(Live):
        def activate(self, registry, stage=None):
            registry = super().activate(registry, stage)
            swapped.set()
            return registry

    live = Told()
    policies = write(tmp_path / "p", a="plugin one")
    first_look = threading.Event()

    class Seen(Mount):
        def stamp(self):
            stamp = super().stamp()
            if threading.current_thread().name == "reload":
                first_look.set()
            return stamp

    reloader = reloader_of(live, Seen(policies), debounce=0.01, interval=600)
    reloader.start()
    try:
        assert first_look.wait(10)
        swapped.clear()
        write(policies, a="plugin two")
        assert swapped.wait(10)
        assert names(live) == ["two"]
        swapped.clear()
        (policies / "deep").mkdir()
        (policies / "deep/b.yaml").write_text("plugin three")
        assert swapped.wait(10)
        assert names(live) == ["three", "two"]
        assert reloader.status().events
    finally:
        reloader.close()


def serve(reloader: Reloader, time: Time) -> None:
    time.run(reloader, 2)


def test_an_earlier_generation_that_is_brought_back_holds_until_the_source_changes(
    tmp_path: Path, live: Live, time: Time,
) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    other = write(tmp_path / "q", a="plugin other")
    reloader = begun(live, time, policies, other)
    first = live.registry.digest
    write(policies, a="plugin two")
    time.run(reloader, 2)
    assert names(live) == ["other", "two"]
    asked = reloader.restore()
    serve(reloader, time)
    assert (asked.result().generation, asked.result().restored, live.registry.digest, names(live)) == (
        3, 1, first, ["one", "other"])
    time.run(reloader, 200)
    write(other, a="plugin another")
    time.run(reloader, 2)
    assert names(live) == ["another", "one"]
    status = reloader.status()
    assert (status.healthy, status.failures, status.restored) == (False, 0, 1)
    assert [[problem.message for problem in source.problems] for source in status.sources] == [
        [f"generation 1 was brought back, with another version of `{policies}`"], []]
    assert status.sources[0].observed == digest_of(policies) != status.sources[0].digest
    write(policies, a="plugin three")
    time.run(reloader, 2)
    assert (names(live), reloader.status().healthy, reloader.status().restored) == (["another", "three"], True, None)
    assert [past.generation for past in reloader.status().history] == [1, 2, 3, 4, 5]


def test_what_was_gone_back_from_may_be_brought_back_too(tmp_path: Path, live: Live, time: Time) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    reloader = begun(live, time, policies)
    write(policies, a="plugin two")
    time.run(reloader, 2)
    second = live.registry.digest
    reloader.restore("1")
    serve(reloader, time)
    assert names(live) == ["one"]
    reloader.restore(second)
    serve(reloader, time)
    assert (names(live), reloader.status().healthy) == (["two"], True)


def test_going_back_to_what_is_not_kept_changes_nothing(tmp_path: Path, live: Live, time: Time) -> None:
    reloader = begun(live, time, write(tmp_path / "p", a="plugin one"))
    asked = reloader.restore("77")
    serve(reloader, time)
    with pytest.raises(PolicyError, match="no generation `77` is kept"):
        asked.result()
    assert (live.registry.generation, reloader.status().healthy) == (1, True)


def test_a_restart_does_not_bring_back_what_was_gone_back_from(tmp_path: Path, live: Live, time: Time) -> None:
    policies, state = write(tmp_path / "p", a="plugin one"), tmp_path / "state"
    reloader = begun(live, time, policies, state_dir=state)
    write(policies, a="plugin two")
    time.run(reloader, 2)
    reloader.restore()
    serve(reloader, time)
    again = Live()
    reloader = begun(again, time, policies, state_dir=state)
    time.run(reloader, 100)
    assert names(again) == ["one"]
    assert [problem.message for problem in reloader.status().sources[0].problems] == [
        "it was rolled back before the last start"]
    write(policies, a="plugin three")
    time.run(reloader, 2)
    assert (names(again), reloader.status().healthy) == (["three"], True)


def test_published_files_are_in_force_at_once_and_invalid_ones_are_told(tmp_path: Path, live: Live, time: Time) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    reloader = begun(live, time, policies)
    asked = reloader.publish(str(policies), {"b.yaml": b"plugin two"})
    serve(reloader, time)
    assert (asked.result().generation, names(live), digest_of(policies)) == (
        2, ["two"], reloader.status().sources[0].digest)
    asked = reloader.publish(str(policies), {"b.yaml": b"nonsense"})
    serve(reloader, time)
    with pytest.raises(PolicyError, match="is not a declaration"):
        asked.result()
    assert names(live) == ["two"]


def test_what_was_rolled_back_is_in_force_where_somebody_publishes_it(tmp_path: Path, live: Live, time: Time) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    reloader = begun(live, time, policies)
    write(policies, a="plugin two")
    time.run(reloader, 2)
    reloader.restore()
    serve(reloader, time)
    reloader.publish(str(policies), {"a.yaml": b"plugin two"})
    serve(reloader, time)
    assert (names(live), reloader.status().healthy) == (["two"], True)


def test_policies_that_may_wait_begin_with_nothing_in_force(tmp_path: Path, live: Live, time: Time) -> None:
    policies = tmp_path / "p"
    reloader = begun(live, time, policies, invalid_at_start=InvalidAtStart.WAIT)
    assert (live.registry.generation, reloader.status().sources[0].unmounted) == (0, True)
    write(policies, a="nonsense")
    time.run(reloader, 2)
    assert (live.registry.generation, reloader.status().sources[0].problems[0].code) == (0, "toy")
    write(policies, a="plugin one")
    time.run(reloader, 2)
    assert (names(live), reloader.status().healthy) == (["one"], True)


def test_nothing_is_published_over_what_somebody_else_has_just_changed(
    tmp_path: Path, live: Live, time: Time,
) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    reloader = begun(live, time, policies)
    first = live.registry.digest
    write(policies, a="plugin two")
    asked = reloader.publish(str(policies), {"a.yaml": b"plugin three"}, over=first)
    serve(reloader, time)
    with pytest.raises(PolicyError, match="has just been changed: nothing was published"):
        asked.result()
    asked = reloader.publish(str(policies), {"a.yaml": b"plugin three"}, over=first)
    serve(reloader, time)
    assert asked.exception() is not None
    assert names(live) == ["two"]
    reloader.publish(str(policies), {"a.yaml": b"plugin three"}, over=live.registry.digest)
    serve(reloader, time)
    assert names(live) == ["three"]


def test_a_restart_does_not_bring_back_what_failed_too_often(tmp_path: Path, live: Live, time: Time) -> None:
    policies, state = write(tmp_path / "p", a="plugin one"), tmp_path / "state"
    reloader = begun(live, time, policies, state_dir=state, max_error_rate=0.1, first_decisions=10)
    reloader.observe(1, 10, 0)
    time.run(reloader, 2)
    write(policies, a="plugin two")
    time.run(reloader, 2)
    reloader.observe(2, 10, 9)
    time.run(reloader, 2)
    assert (names(live), reloader.status().history[1].failed) == (
        ["one"], "9 of the first 10 decisions under generation 2 had failing expressions")
    again = Live()
    reloader = begun(again, time, policies, state_dir=state, max_error_rate=0.1, first_decisions=10)
    assert (names(again), reloader.status().healthy) == (["one"], False)


# A document that a decision does not return from.


def blame(reloader: Reloader, live: Live, name: str) -> None:
    reloader.report_overdue(live.registry.plugins[Framework.SCHEDULER, name], f"`{name}` does not return")


@pytest.mark.parametrize("unit", ReloadUnit)
def test_a_blamed_document_goes_back_to_the_last_version_of_its_source_without_it(
    tmp_path: Path, time: Time, live: Live, unit: ReloadUnit,
) -> None:
    one, two = write(tmp_path / "1", a="plugin one"), write(tmp_path / "2", b="plugin two")
    reloader = begun(live, time, one, two, unit=unit)
    write(one, a="plugin slow")
    time.run(reloader, 1)
    write(two, b="plugin three")  # what came after it in another source stays
    time.run(reloader, 1)
    blame(reloader, live, "slow")
    time.run(reloader, 1)
    status = reloader.status()
    assert (names(live), status.healthy) == (["one", "three"], False)
    assert status.warnings == ("`slow` does not return: rolled back to what was active before",)
    assert [each.code for each in status.sources[0].problems] == ["overdue"]
    assert [past.failed for past in status.history] == ["", "", "`slow` does not return", ""]


def test_a_blamed_content_stays_out_while_other_files_of_its_source_change(
    tmp_path: Path, time: Time, live: Live,
) -> None:
    policies = write(tmp_path / "p", a="plugin one", b="plugin two")
    reloader = begun(live, time, policies)
    write(policies, a="plugin slow")
    time.run(reloader, 1)
    blame(reloader, live, "slow")
    time.run(reloader, 1)
    write(policies, b="plugin three")
    time.run(reloader, 1)
    assert (names(live), messages(reloader)) == (["one", "two"], ["`slow` does not return, so it was rolled back"])
    write(policies, a="plugin fast")
    time.run(reloader, 1)
    assert (names(live), messages(reloader), reloader.status().healthy) == (["fast", "three"], [], True)


def test_with_files_as_the_unit_other_files_move_on_beside_a_blamed_one(tmp_path: Path, time: Time, live: Live) -> None:
    policies = write(tmp_path / "p", a="plugin one", b="plugin two")
    reloader = begun(live, time, policies, unit=ReloadUnit.FILE)
    write(policies, a="plugin slow", b="plugin three")
    time.run(reloader, 1)
    blame(reloader, live, "slow")
    time.run(reloader, 1)
    assert names(live) == ["one", "three"]
    write(policies, b="plugin four")
    time.run(reloader, 1)
    assert names(live) == ["four", "one"]


def test_a_blamed_document_that_was_always_there_is_reported_and_stays(tmp_path: Path, time: Time, live: Live) -> None:
    policies = write(tmp_path / "p", a="plugin slow", b="plugin two")
    reloader = begun(live, time, policies)
    write(policies, b="plugin three")
    time.run(reloader, 1)
    blame(reloader, live, "slow")
    time.run(reloader, 1)
    assert (names(live), reloader.status().healthy) == (["slow", "three"], False)
    assert reloader.status().warnings == (
        "`slow` does not return, and there is no generation without it to roll back to",)


def test_blame_of_what_is_not_in_force_any_more_and_of_python_plugins_changes_nothing(
    tmp_path: Path, time: Time, live: Live,
) -> None:
    python = Plugin("python", Framework.SCHEDULER, (Point.FILTER,), lambda args, handle: None, "built-in", "1")
    policies = write(tmp_path / "p", a="plugin one")
    reloader = begun(live, time, policies, python_plugins=[python])
    write(policies, a="plugin slow")
    time.run(reloader, 1)
    slow = live.registry.plugins[Framework.SCHEDULER, "slow"]
    write(policies, a="plugin slow\n")
    time.run(reloader, 1)
    reloader.report_overdue(slow, "slow")
    reloader.report_overdue(python, "python")
    time.run(reloader, 1)
    assert (names(live), reloader.status().healthy, reloader.status().warnings) == (["python", "slow"], True, ())


def test_a_blamed_content_stays_out_over_a_restart(tmp_path: Path, time: Time, live: Live) -> None:
    policies, state = write(tmp_path / "p", a="plugin one"), tmp_path / "state"
    reloader = begun(live, time, policies, state_dir=state)
    write(policies, a="plugin slow")
    time.run(reloader, 1)
    blame(reloader, live, "slow")
    time.run(reloader, 1)
    again = Live()
    reloader = begun(again, time, policies, state_dir=state)
    assert (names(again), [problem.code for problem in reloader.status().sources[0].problems]) == (["one"], ["held"])
    write(policies, a="plugin fast")
    time.run(reloader, 1)
    assert names(again) == ["fast"]


def test_what_could_not_be_checked_for_no_fault_of_its_own_is_tried_again(
    tmp_path: Path, time: Time, live: Live,
) -> None:
    policies, worker = write(tmp_path / "p", a="plugin one"), [True]

    def build(sources: Sequence[Source]) -> list[Plugin]:
        if not worker[0]:
            raise PolicyError([Problem("policies cannot be checked", code="vetting-unavailable")])
        return toy_build(sources)

    reloader = begun(live, time, policies, build=build)
    worker[0] = False
    write(policies, a="plugin two")
    time.run(reloader, 5)
    assert (names(live), messages(reloader)) == (["one"], ["policies cannot be checked"])
    worker[0] = True
    time.run(reloader, 2)
    assert (names(live), messages(reloader), reloader.status().healthy) == (["two"], [], True)


def test_a_build_that_does_not_end_can_be_seen_from_other_threads(tmp_path: Path, live: Live) -> None:
    policies, begun, go_on = write(tmp_path / "p", a="plugin one"), threading.Event(), threading.Event()

    def build(sources: Sequence[Source]) -> list[Plugin]:
        if live.registry.generation:
            begun.set()
            go_on.wait(30)
        return toy_build(sources)

    reloader = reloader_of(live, policies, build=build, debounce=0.0)
    reloader.start()
    write(policies, a="plugin two")
    assert begun.wait(30)
    at_work = reloader.seconds_at_work
    go_on.set()
    reloader.close()
    assert (at_work > 0, reloader.seconds_at_work) == (True, 0)


def test_a_change_that_follows_an_event_is_found_soon_although_its_own_event_is_late(
    tmp_path: Path, live: Live,
) -> None:
    policies, told, swapped = tmp_path / "p", [], threading.Event()
    write(policies, a="plugin one")

    class Late(FileEvents):
        """Passes on an event of a file that is written beside, and no other."""

        def watch(self, paths: Sequence[str]) -> None:
            if not told:
                told.append(self._changed)
                self._changed()

    class Renamed(Mount):
        """Has the file renamed right after the look that followed the event."""

        looks = 0

        def stamp(self) -> Stamp:
            found = super().stamp()
            self.looks += 1
            if told and self.looks == 4:
                write(policies, a="plugin two")
            return found

    reloader = reloader_of(live, Renamed(policies), interval=3600.0, debounce=0.0, file_events=Late)
    reloader.stage_with(lambda registry: swapped.set() if registry.generation == 2 else None)
    reloader.start()
    try:
        assert swapped.wait(30)
    finally:
        reloader.close()
