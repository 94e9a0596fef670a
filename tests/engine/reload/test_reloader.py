from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from time import sleep

import pytest

from koordpolicy.engine.cluster.kinds import NOT_LISTED
from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Live, Plugin, Registry
from koordpolicy.engine.reload.startup import InvalidAtStart
from koordpolicy.engine.reload.status import UNAVAILABLE
from koordpolicy.engine.reload.watch import FileEvents
from koordpolicy.engine.source import PolicyError, Problem, Severity, Source

from .conftest import Time, begun, digest_of, messages, names, refuse_odd, reloader_of, toy_build, write


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


def test_saving_the_same_text_keeps_the_generation(tmp_path: Path, time: Time, live: Live) -> None:
    reloader = begun(live, time, write(tmp_path / "p", a="plugin one"))
    write(tmp_path / "p", a="plugin one")
    time.run(reloader, 2)
    assert live.registry.generation == 1


def test_rolling_back_to_what_runs_clears_the_complaint(tmp_path: Path, time: Time, live: Live) -> None:
    reloader = begun(live, time, write(tmp_path / "p", a="plugin one"))
    write(tmp_path / "p", a="nonsense")
    time.run(reloader, 1)
    assert messages(reloader) == ["`nonsense` is not a declaration"]
    write(tmp_path / "p", a="plugin one")
    time.run(reloader, 1)
    assert (messages(reloader), live.registry.generation) == ([], 1)


def test_warnings_about_active_files_are_in_the_status(
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


def test_one_source_inside_another_is_refused(tmp_path: Path, live: Live) -> None:
    write(tmp_path / "p", a="plugin one")
    (tmp_path / "link").symlink_to("p")
    with pytest.raises(PolicyError, match="are two sources, but one holds the other"):
        reloader_of(live, tmp_path / "p", tmp_path / "link" / "a.yaml")


def test_a_set_that_could_not_be_vetted_for_no_fault_of_its_own_is_vetted_again(
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
            go_on.wait(60)
        return toy_build(sources)

    reloader = reloader_of(live, policies, build=build, debounce=0.0)
    reloader.start()
    write(policies, a="plugin two")
    assert begun.wait(60)
    at_work = reloader.seconds_at_work
    go_on.set()
    reloader.close()
    assert (at_work > 0, reloader.seconds_at_work) == (True, 0)


def test_what_is_in_memory_is_settled_after_each_set_that_is_activated_and_after_no_other_pass(
    tmp_path: Path, live: Live,
) -> None:
    policies, settled = write(tmp_path / "p", a="plugin one"), threading.Event()

    def after_reload(blocks: int) -> None:
        generations.append((live.registry.generation, isinstance(blocks, int)))
        settled.set()

    generations: list[tuple[int, bool]] = []
    reloader = reloader_of(live, policies, debounce=0.0, after_reload=after_reload)
    reloader.start()
    write(policies, a="plugin two")
    assert settled.wait(60)
    refused = reloader.status().failures
    write(policies, a="odd")
    while reloader.status().failures == refused:
        sleep(0.001)
    reloader.close()
    assert generations == [(2, True)]


def test_a_change_that_cannot_run_keeps_no_other_source_from_being_followed(tmp_path: Path, time: Time, live: Live):
    first, second = write(tmp_path / "first", a="plugin one"), write(tmp_path / "second", b="plugin uno")
    reloader = begun(live, time, first, second)
    reloader.stage_with(refuse_odd)
    write(first, a="plugin odd")
    time.run(reloader, 5)
    write(second, b="plugin dos")
    time.run(reloader, 5)
    assert (names(live), bool(messages(reloader, 0)), messages(reloader, 1)) == (["dos", "one"], True, [])


def test_a_set_whose_objects_are_not_there_is_tried_again_until_they_are(tmp_path: Path, time: Time, live: Live):
    def stage(_registry: Registry) -> None:
        if not arrived:
            raise PolicyError([Problem("the new policies read devices, which cannot be listed: 403", code=NOT_LISTED)])

    arrived: list[bool] = []
    source = write(tmp_path / "source", a="plugin one")
    reloader = begun(live, time, source)
    reloader.stage_with(stage)
    write(source, a="plugin two")
    time.run(reloader, 5)
    (problem,) = messages(reloader)
    assert (names(live), "cannot be listed: 403" in problem) == (["one"], True)
    arrived.append(True)
    time.run(reloader, 5)
    assert (names(live), messages(reloader)) == (["two"], [])


@pytest.mark.parametrize("way", ["publish", "begin"])
def test_what_could_not_be_vetted_is_tried_again_however_it_came(tmp_path: Path, time: Time, live: Live, way: str):
    source, down = write(tmp_path / "source", a="plugin one"), [way == "begin"]

    def build(sources):
        if down[0]:
            raise PolicyError([Problem("the worker is gone", code=UNAVAILABLE)])
        return toy_build(sources)

    reloader = begun(live, time, source, build=build, invalid_at_start=InvalidAtStart.WAIT)
    if way == "publish":
        down[0] = True
        published = reloader.publish(str(source), {"a.yaml": b"plugin two"})
        time.run(reloader, 0.2)
        assert isinstance(published.exception(0), PolicyError)
    down[0] = False
    time.run(reloader, 5)
    assert (names(live), messages(reloader)) == (["two" if way == "publish" else "one"], [])


def test_publishing_to_what_is_no_source_is_refused(tmp_path: Path, time: Time, live: Live):
    reloader = begun(live, time, write(tmp_path / "source", a="plugin one"))
    published = reloader.publish("/nowhere", {"a.yaml": b"plugin two"})
    time.run(reloader, 1)
    (problem,) = published.exception(0).problems
    assert problem.message == "`/nowhere` is not a source of this server"


def test_links_that_lead_in_a_circle_end_no_watching(tmp_path: Path):
    (tmp_path / "circle").symlink_to("circle")
    events = FileEvents(lambda: None)
    events.watch([str(tmp_path / "circle")])
    events.close()
