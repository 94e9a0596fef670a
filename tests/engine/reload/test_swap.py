from __future__ import annotations

from pathlib import Path

import pytest

from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Live, Plugin, Registry
from koordpolicy.engine.reload import ReloadUnit

from .conftest import Time, begun, digest_of, messages, names, refuse_odd, report_overdue, serve, write


def test_a_compiler_that_crashes_is_reported_as_our_fault_and_reloading_goes_on(
    tmp_path: Path, time: Time, live: Live,
) -> None:
    reloader = begun(live, time, write(tmp_path / "p", a="plugin one"))
    write(tmp_path / "p", a="crash")
    time.run(reloader, 1)
    assert messages(reloader) == ["compiling the policies failed: RuntimeError: toy compiler crashed"]
    write(tmp_path / "p", a="plugin two")
    time.run(reloader, 1)
    assert names(live) == ["two"]


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


def test_a_set_that_cannot_be_staged_is_not_activated(tmp_path: Path, time: Time, live: Live) -> None:
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


def test_a_set_that_cannot_be_staged_again_is_not_rolled_back_to(tmp_path: Path, time: Time, live: Live) -> None:
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
def test_what_was_rolled_back_stays_blocked_while_other_sources_change(
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


def test_the_first_generation_has_nothing_to_roll_back_to(tmp_path: Path, time: Time, live: Live) -> None:
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


def test_what_was_rolled_back_from_may_be_brought_back_too(tmp_path: Path, live: Live, time: Time) -> None:
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


def test_a_generation_that_restored_one_is_named_by_its_origin(tmp_path: Path, live: Live, time: Time) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    reloader = begun(live, time, policies)
    write(policies, a="plugin two")
    time.run(reloader, 2)
    reloader.restore("1")
    serve(reloader, time)
    write(policies, a="plugin three")
    time.run(reloader, 2)
    assert names(live) == ["three"]
    reloader.restore("3")
    serve(reloader, time)
    status = reloader.status()
    assert (names(live), status.restored) == (["one"], 1)
    assert [problem.message for problem in status.sources[0].problems] == [
        f"generation 1 was brought back, with another version of `{policies}`"]


@pytest.mark.parametrize("unit", ReloadUnit)
def test_an_overdue_document_is_rolled_back_to_the_last_version_of_its_source_without_it(
    tmp_path: Path, time: Time, live: Live, unit: ReloadUnit,
) -> None:
    one, two = write(tmp_path / "1", a="plugin one"), write(tmp_path / "2", b="plugin two")
    reloader = begun(live, time, one, two, unit=unit)
    write(one, a="plugin slow")
    time.run(reloader, 1)
    write(two, b="plugin three")  # what came after it in another source stays
    time.run(reloader, 1)
    report_overdue(reloader, live, "slow")
    time.run(reloader, 1)
    status = reloader.status()
    assert (names(live), status.healthy) == (["one", "three"], False)
    assert status.warnings == ("`slow` does not return: rolled back to what was active before",)
    assert [each.code for each in status.sources[0].problems] == ["overdue"]
    assert [past.failed for past in status.history] == ["", "", "`slow` does not return", ""]


def test_an_overdue_content_stays_blocked_while_other_files_of_its_source_change(
    tmp_path: Path, time: Time, live: Live,
) -> None:
    policies = write(tmp_path / "p", a="plugin one", b="plugin two")
    reloader = begun(live, time, policies)
    write(policies, a="plugin slow")
    time.run(reloader, 1)
    report_overdue(reloader, live, "slow")
    time.run(reloader, 1)
    write(policies, b="plugin three")
    time.run(reloader, 1)
    assert (names(live), messages(reloader)) == (["one", "two"], ["`slow` does not return, so it was rolled back"])
    write(policies, a="plugin fast")
    time.run(reloader, 1)
    assert (names(live), messages(reloader), reloader.status().healthy) == (["fast", "three"], [], True)


def test_with_files_as_the_unit_other_files_move_on_beside_an_overdue_one(
    tmp_path: Path, time: Time, live: Live,
) -> None:
    policies = write(tmp_path / "p", a="plugin one", b="plugin two")
    reloader = begun(live, time, policies, unit=ReloadUnit.FILE)
    write(policies, a="plugin slow", b="plugin three")
    time.run(reloader, 1)
    report_overdue(reloader, live, "slow")
    time.run(reloader, 1)
    assert names(live) == ["one", "three"]
    write(policies, b="plugin four")
    time.run(reloader, 1)
    assert names(live) == ["four", "one"]


def test_an_overdue_document_that_was_always_there_is_reported_and_stays(
    tmp_path: Path, time: Time, live: Live,
) -> None:
    policies = write(tmp_path / "p", a="plugin slow", b="plugin two")
    reloader = begun(live, time, policies)
    write(policies, b="plugin three")
    time.run(reloader, 1)
    report_overdue(reloader, live, "slow")
    time.run(reloader, 1)
    assert (names(live), reloader.status().healthy) == (["slow", "three"], False)
    assert reloader.status().warnings == (
        "`slow` does not return, and there is no generation without it to roll back to",)


def test_an_overdue_document_that_is_not_active_any_more_and_python_plugins_change_nothing(
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


def test_the_set_that_was_checked_is_the_one_that_is_staged_and_activated(
    tmp_path: Path, time: Time, live: Live,
) -> None:
    checked, staged = [], []
    policies = write(tmp_path / "p", a="plugin one")
    reloader = begun(live, time, policies, check=checked.append)
    reloader.stage_with(staged.append)
    write(policies, a="plugin two")
    time.run(reloader, 1)
    assert [each.plugins is live.registry.plugins for each in (checked[-1], *staged)] == [True, True]
    assert (len(checked), staged[0].generation) == (2, 2)
