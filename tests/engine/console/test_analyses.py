"""Audits and effects of drafts in the background: progress, results that are shared, and ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.console import audits
from koordpolicy.engine.console.analyses import AnalysisJobs
from koordpolicy.engine.console.audits import audit_view
from koordpolicy.engine.console.guard import Guard, NotPermitted, RateLimit
from koordpolicy.engine.console.jobs import BackgroundJob, BackgroundJobs
from koordpolicy.engine.console.models.analysis import AnalysisView
from koordpolicy.engine.console.models.policies import AuditView
from koordpolicy.engine.console.server import ConsoleServer, Static
from koordpolicy.engine.console.state import ConsoleState, UnknownNameError
from tests.waiting import PATIENCE_S, until

from .asking import AskApi, asking, ended, of_api
from .conftest import HOT, NOW, OBJECTS, pod

DRAFT = HOT.replace("percent: 65", "percent: 20")


@pytest.fixture
def fresh(policies_of) -> ConsoleState:
    """A state that a test may change."""
    cluster = Cluster()
    assert not cluster.upsert_all(OBJECTS)
    return ConsoleState(cluster, policies_of(HOT), now=NOW, name="kube")


@pytest.fixture
def held(monkeypatch) -> threading.Event:
    """Audits begin, and go on when it is set."""
    go_on = threading.Event()

    def waiting(state: ConsoleState, progress: Callable[[float], None]) -> AuditView:
        progress(0.25)
        assert go_on.wait(PATIENCE_S)
        progress(0.5)
        return audit_view(state, progress)

    monkeypatch.setattr(audits, "audit_view", waiting)
    return go_on


@pytest.fixture
def forks(monkeypatch) -> tuple[list[ConsoleState], list[ConsoleState]]:
    """The forks of states that a test makes, and those of them that were closed."""
    made: list[ConsoleState] = []
    closed: list[ConsoleState] = []
    fork, close = ConsoleState.fork, ConsoleState.close

    def noted_fork(state: ConsoleState) -> Callable[[], ConsoleState]:
        make = fork(state)

        def noted() -> ConsoleState:
            made.append(make())
            return made[-1]

        return noted

    def noted_close(state: ConsoleState) -> None:
        if any(state is each for each in made):  # threads of an earlier test may end now
            closed.append(state)
        close(state)

    monkeypatch.setattr(ConsoleState, "fork", noted_fork)
    monkeypatch.setattr(ConsoleState, "close", noted_close)
    return made, closed


@pytest.fixture
def serve(state, tmp_path) -> Callable[[Callable[[AskApi], Awaitable[None]]], None]:
    (tmp_path / "index.html").write_text("", encoding="utf-8")

    def run(scenario: Callable[[AskApi], Awaitable[None]], **more: Any) -> None:
        console = ConsoleServer(state, Guard(rate=RateLimit(1e9, 1e9)), Static(tmp_path), **more)

        async def main() -> None:
            async with asking(console) as ask:
                await scenario(of_api(ask))

        asyncio.run(main())

    return run


def test_an_audit_is_that_of_the_command(serve, state):
    async def scenario(ask: AskApi) -> None:
        status, begun = await ask("audit/start", {})
        assert (status, begun["of"], begun["nodes"], begun["pods"]) == (200, 1000, 3, 3)
        found = await ended(ask, f"analysis?number={begun['number']}")
        assert (found["phase"], found["done"], found["effect"]) == ("done", 1000, None)
        tallies = {(each["policy"], use["rule"]): (use["evaluated"], use["refused"], use["failed"])
                   for each in found["audit"]["policies"] for use in each["rules"]}
        assert tallies["keep-off-hot-nodes", "below-watermark"] == (9, 3, 3)
        again = (await ask("audit/start", {}))[1]
        assert again.pop("number") != found.pop("number")
        assert again == found  # the cluster has not changed since

    serve(scenario)


def test_a_draft_is_compared_with_its_budgets(serve):
    async def scenario(ask: AskApi) -> None:
        for text, pending in ((DRAFT, 1), (HOT, 0)):
            number = (await ask("effect/start", {"text": text, "budgets": {"pending": "0"}}))[1]["number"]
            found = await ended(ask, f"analysis?number={number}")
            assert (found["effect"]["difference"]["counts"]["nowPending"], found["effect"]["budgets"][0]["within"]) == (
                pending, not pending)

    serve(scenario)


def test_what_cannot_be_analysed_is_refused_at_once(serve):
    async def scenario(ask: AskApi) -> None:
        _, found = await ask("effect/start", {"text": HOT.replace("usage.cpu", "usage.cpux")})
        assert found["faults"][0]["line"] == 9
        assert await ask("effect/start", {"text": HOT, "budgets": {"moved": "many"}}) == (
            200, {"error": "`many` is not a budget: write a whole number, or a share such as `1%`",
                  "status": 400, "faults": []})
        assert (await ask("audit/start", {"at": "2026-01-02T12:00:00Z"}))[1]["status"] == 404
        assert await ask("analysis?number=7") == (
            200, {"error": "analysis 7 is not remembered: start it again", "status": 404, "faults": []})
        assert await ask("analysis?number=x") == (
            200, {"error": "`number` must be the number of one of the analyses", "status": 400, "faults": []})

    serve(scenario)


def test_an_audit_of_many_viewers_is_one_and_ends_in_the_cluster_that_it_began_in(fresh, held):
    analyses = AnalysisJobs()
    try:
        begun = analyses.audit(fresh)
        until(lambda: analyses.jobs.state(begun.number).done == 250)
        fresh.cluster.upsert(pod("later", "1", "cool"))
        fresh.renew(NOW + 1)
        shared = analyses.audit(fresh)
        assert (shared.number != begun.number, shared.done, shared.pods) == (True, 250, 3)  # it is under way
        held.set()
        until(lambda: analyses.jobs.state(begun.number).phase == "done")
        found = analyses.jobs.state(begun.number)
        assert (found.audit.pods, found.pods, found.time) == (3, 3, NOW / 1e9)
        assert analyses.jobs.state(shared.number).audit == found.audit
        assert analyses.audit(fresh).pods == 4
        assert fresh.cluster.pod("shop/web-2").node_name == ""
    finally:
        held.set()
        analyses.close()


def test_an_analysis_is_cancelled_for_one_viewer_and_ends_when_the_last_one_does_not_wait(fresh, held, monkeypatch):
    now, forks, fork = [0.0], [], ConsoleState.fork
    monkeypatch.setattr(ConsoleState, "fork", lambda state: (forks.append(state), fork(state))[1])
    analyses = AnalysisJobs()
    analyses.jobs = BackgroundJobs("analysis", "analyses", clock=lambda: now[0])
    jobs = analyses.jobs

    def phases() -> list[str]:
        return [jobs.state(each.number).phase for each in viewers]

    try:
        viewers = [analyses.audit(fresh) for _ in range(3)]
        until(lambda: jobs.state(viewers[0].number).done == 250)
        assert len(forks) == 1  # the others share it, and have no cluster of their own
        assert jobs.cancel(viewers[0].number).phase == "cancelled"
        assert phases() == ["cancelled", "analysing", "analysing"]
        held.set()
        until(lambda: phases() == ["cancelled", "done", "done"])
        assert jobs.cancel(viewers[1].number).phase == "done"

        held.clear()
        fresh.renew(NOW + 1)
        viewers = [analyses.audit(fresh) for _ in range(3)]
        until(lambda: jobs.state(viewers[0].number).done == 250)
        now[0] = 60
        jobs.cancel(viewers[0].number)
        assert phases() == ["cancelled", "analysing", "analysing"]  # tabs in the background ask once a minute
        now[0] = 140
        jobs.cancel(viewers[1].number)  # the third one has closed the page
        held.set()
        until(lambda: jobs.state(viewers[2].number).phase == "cancelled")
    finally:
        held.set()
        analyses.close()


def test_those_who_ask_are_remembered_before_others_and_a_job_that_nobody_can_ask_for_ends():
    jobs = BackgroundJobs[AnalysisView]("analysis", "analyses")
    begun, go_on, ends = threading.Event(), threading.Event(), []
    view = AnalysisView(time=0, nodes=0, of=1, pods=0)

    def compute(job: BackgroundJob[AnalysisView]) -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        try:
            job.update(phase="done")
        finally:
            ends.append(job.cancelled)

    def start(key: str) -> int:
        return jobs.start(view, lambda: compute, key=key).number

    try:
        asking, silent = start("asked for"), start("not asked for")
        assert begun.wait(PATIENCE_S)
        for _ in range(254):
            start("many")
        assert [jobs.state(each).phase for each in (silent, asking)] == ["queued", "queued"]
        for _ in range(254):
            start("many")
        jobs.state(asking)
        start("many")
        assert jobs.state(asking).phase == "queued"
        with pytest.raises(UnknownNameError):
            jobs.state(silent)
        for _ in range(256):
            start("many")
        with pytest.raises(UnknownNameError):
            jobs.state(asking)
        go_on.set()
        until(lambda: len(ends) == 2)
        assert ends == [True, False]  # the one under way, and that of many; the silent one never began
    finally:
        go_on.set()
        jobs.close()


def test_an_analysis_ends_when_it_is_cancelled_and_others_wait_for_it(fresh, held, policies_of):
    analyses = AnalysisJobs()
    try:
        begun = analyses.audit(fresh)
        waiting = [analyses.effect(fresh, DRAFT, {"moved": str(number)}).number for number in range(3)]
        with pytest.raises(NotPermitted, match="too many analyses are running: try again"):
            analyses.effect(fresh, HOT, {})
        for number in (begun.number, *waiting):
            analyses.jobs.cancel(number)
        held.set()
        until(lambda: all(analyses.jobs.state(each).phase == "cancelled" for each in (begun.number, *waiting)))
        assert analyses.audit(fresh).number not in {begun.number, *waiting}
    finally:
        held.set()
        analyses.close()


def test_the_state_of_an_analysis_is_closed_where_none_goes_on_from_it(fresh, forks, monkeypatch):
    made, closed = forks
    analyses = AnalysisJobs()

    def phase(view: AnalysisView, of: AnalysisJobs = analyses) -> str:
        until(lambda: of.jobs.state(view.number).phase in {"done", "failed"})
        return of.jobs.state(view.number).phase

    assert [phase(analyses.audit(fresh)), phase(analyses.audit(fresh)), phase(analyses.effect(fresh, DRAFT, {}))] == [
        "done", "done", "done"]
    assert (len(made), closed) == (1, [])
    fresh.renew(NOW + 1)
    assert (phase(analyses.audit(fresh)), closed) == ("done", made[:1])
    fresh.renew(NOW + 2)
    monkeypatch.setattr(audits, "audit_view", lambda *_: 1 // 0)
    assert (phase(analyses.audit(fresh)), len(made), closed) == ("failed", 3, made)
    analyses.close()


def test_an_analysis_that_takes_too_long_has_no_result_and_says_what_to_do(fresh):
    analyses = AnalysisJobs(limit=0.0)
    number = analyses.audit(fresh).number
    until(lambda: analyses.jobs.state(number).phase == "failed")
    found = analyses.jobs.state(number)
    assert (found.audit, found.failure) == (
        None, "it takes more than 0 s: raise `--analysis-timeout`, or run the command `audit` or `diff`")
    analyses.close()


def test_a_failure_of_the_console_is_told(fresh, monkeypatch, caplog):
    monkeypatch.setattr(audits, "audit_view", lambda *_: 1 // 0)
    analyses = AnalysisJobs()
    number = analyses.audit(fresh).number
    until(lambda: analyses.jobs.state(number).phase == "failed")
    assert analyses.jobs.state(number).failure == "the console failed in the analysis; its log says why"
    assert "ZeroDivisionError" in caplog.text
    analyses.close()


def test_numbers_of_analyses_cannot_be_guessed_and_are_exact_in_a_browser(fresh):
    analyses = AnalysisJobs()
    try:
        numbers = [analyses.effect(fresh, DRAFT, {"moved": str(each)}).number for each in range(3)]
    finally:
        analyses.close()
    assert all(2**20 < each < 2**53 for each in numbers)
    assert min(abs(one - other) for one in numbers for other in numbers if one != other) > 2**20


def test_the_state_of_the_last_analysis_is_closed_once_nothing_is_analysed(fresh, forks):
    made, closed = forks
    for analyses, end in ((AnalysisJobs(idle=0), lambda: None), (lasting := AnalysisJobs(), lasting.close)):
        view = analyses.audit(fresh)
        until(lambda analyses=analyses, view=view: analyses.jobs.state(view.number).phase == "done")
        before = len(closed) if analyses is lasting else 0
        end()
        until(lambda before=before: len(closed) > before)
    assert closed == made
