from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from time import sleep

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.documents import load
from koordpolicy.engine.reload import Builder
from koordpolicy.engine.reload.status import UNAVAILABLE
from koordpolicy.engine.reload.vet import VettedBuild, Vetter, plain, problems_of
from koordpolicy.engine.source import PolicyError, Problem, Severity, Source

from .odd_worker import COMMAND

GOOD = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: NAME}
spec:
  filter:
  - {name: cores, expression: allocatable.cpu <= 4000}
"""
PARAMS = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: PolicyParams
metadata: {name: NAME}
spec:
  params: {most: 4000}
"""


def file(name: str = "a", *, do: str = "", text: str = GOOD) -> Source:
    return Source(f"{name}.yaml", text.replace("NAME", name) + (f"# do: {do}\n" if do else ""))


def refusal(vetter: Vetter, *sources: Source) -> list[tuple[str, str, str]]:
    """Return message, place and code of what a set is refused with."""
    with pytest.raises(PolicyError) as raised:
        vetter.vet(sources)
    return [(each.message, str(each.span), each.code) for each in raised.value.problems]


@pytest.fixture(scope="module")
def vetter():
    """A worker that many tests may use: none of them ends it."""
    vetter = Vetter()
    vetter.start()
    yield vetter
    vetter.close()


@pytest.fixture
def odd():
    """A worker whose loader does what texts say, with little memory."""
    vetter = Vetter(seconds=60.0, memory=1 << 28, command=COMMAND)
    yield vetter
    vetter.close()


@pytest.fixture
def hurried():
    """A worker whose loader does what texts say, in little time."""
    vetter = Vetter(seconds=1.0, command=COMMAND)
    yield vetter
    vetter.close()


def test_a_good_set_passes_and_costs_nothing_when_it_comes_again(vetter):
    vetter.vet([file("a"), file("b")])
    vetter.vet([file("a"), file("b"), file("c")])


@pytest.mark.parametrize("texts", [
    ["kind: ["], ["a: b"], [GOOD.replace("filter", "filtr")], [GOOD, GOOD],
    [GOOD.replace("allocatable.cpu", "allocatable.cpuu")], [GOOD.replace("4000", "'x'"), PARAMS, "\ud800"],
    [GOOD.replace("spec:", "spec:\n  paramsFrom: [{name: gone}]")], [GOOD + "---\n" + GOOD.replace("cpu <=", "gpu <")],
])
def test_problems_are_those_of_compiling_in_this_process_with_the_same_places(vetter, texts):
    sources = [Source(f"{number}.yaml", text) for number, text in enumerate(texts)]
    with pytest.raises(PolicyError) as ours:
        Builder()(sources)
    with pytest.raises(PolicyError) as theirs:
        vetter.vet(sources)
    assert [each.render() for each in theirs.value.problems] == [each.render() for each in ours.value.problems]


def test_of_more_than_two_hundred_problems_the_next_one_says_so_at_its_place(vetter):
    rules = "".join(f"  - {{name: r{number}, expression: allocatable.cpu <= x{number}}}\n" for number in range(202))
    found = refusal(vetter, Source("a.yaml", GOOD.replace("NAME", "a") + rules))
    assert len(found) == 201
    assert "x199" in found[199][0]
    assert found[200] == ("there are more than 200 problems: from this one on they are not listed", "a.yaml:207:49",
                          found[199][2])
    few = "".join(rules.splitlines(keepends=True)[:200])
    assert len(refusal(vetter, Source("a.yaml", GOOD.replace("NAME", "a") + few))) == 200


def test_groups_are_those_of_the_builder(vetter):
    sources = [
        file("a", text=GOOD.replace("spec:", "spec:\n  paramsFrom: [{name: p}]")), file("p", text=PARAMS), file("b"),
    ]
    assert vetter.groups(sources) == list(Builder().groups(sources))


@given(st.lists(st.tuples(st.text(max_size=20), st.text(max_size=9), st.sampled_from(Severity), st.text(max_size=9),
                          st.integers(0, 9), st.integers(0, 9)), max_size=5))
def test_problems_are_the_same_after_they_were_plain_data(found):
    source = Source("a.yaml", "0123456789")
    problems = [Problem(message, source.span(start, start + length) if length else None, hint, severity, code)
                for message, hint, severity, code, start, length in found]
    assert problems_of([plain(each) for each in problems], [source]) == problems


@pytest.mark.parametrize("do", ["wait", "spin"])
def test_a_file_that_does_not_end_is_refused_by_name_and_the_next_set_has_a_new_worker(hurried, do):
    hurried.vet([file("a")])
    before = hurried.pid
    assert refusal(hurried, file("a"), file("b", do=do)) == [
        ("checking `b.yaml` took longer than 1 s", "b.yaml:1:1", "vetting"),
    ]
    assert hurried.pid not in (None, before)
    hurried.vet([file("a"), file("b")])


def test_what_was_refused_for_its_limits_is_refused_at_once_until_it_changes(hurried):
    hanging = file("b", do="wait")
    refused = refusal(hurried, file("a"), hanging)
    before = hurried.pid
    assert refusal(hurried, file("a"), file("b", do="wait"), file("c")) == refused
    assert hurried.pid == before, "no worker had to be ended for it"
    hurried.vet([file("a"), file("b"), file("c")])


def test_a_file_that_takes_too_much_memory_is_refused_by_name(odd):
    assert refusal(odd, file("a"), file("b", do="allocate")) == [
        ("checking `b.yaml` took more than 256 MiB of memory", "b.yaml:1:1", "vetting")]
    odd.vet([file("a"), file("b")])


def test_a_worker_that_somebody_kills_is_replaced_without_anybody_noticing(odd, tmp_path: Path):
    odd.vet([file("a")])
    os.kill(odd.pid, signal.SIGKILL)
    odd.vet([file("a"), file("b")])
    marker = tmp_path / "marker"
    marker.touch()
    odd.vet([file("a"), file("b", do=f"die_once {marker}")])
    assert not marker.exists()


def test_a_worker_that_somebody_stops_is_replaced(hurried):
    hurried.vet([file("a")])
    before = hurried.pid
    os.kill(before, signal.SIGSTOP)
    hurried.vet([file("a"), file("b")])
    assert hurried.pid != before


def test_a_file_that_kills_every_worker_is_refused_by_name(odd):
    assert refusal(odd, file("a"), file("b", do="die")) == [
        ("checking `b.yaml` ended the process that does it with SIGKILL", "b.yaml:1:1", "vetting")]
    odd.vet([file("a")])


def test_a_fault_of_our_own_is_a_problem_and_ends_no_worker(odd):
    odd.vet([file("a")])
    before = odd.pid
    assert refusal(odd, file("b", do="fail")) == [
        ("compiling the policies failed: RuntimeError: a fault of ours", "None", "internal")]
    assert odd.pid == before


def test_a_set_that_comes_while_a_worker_starts_waits_for_it(odd):
    odd.start()
    odd.vet([file("a")])


@pytest.mark.parametrize(("command", "reason"), [
    (("/nowhere/python",), "policies cannot be checked: the process for it does not start: no such file or directory"),
    (("false",), "policies cannot be checked: ended the process that does it with exit code 1"),
])
def test_without_a_worker_a_set_is_refused_for_now(command, reason):
    vetter = Vetter(command=command)
    assert refusal(vetter, file("a")) == [(reason, "None", UNAVAILABLE)]
    vetter.close()


def test_an_empty_set_needs_no_worker():
    vetter = Vetter(command=("/nowhere/python",))
    vetter.vet([])
    assert vetter.groups([]) == []
    vetter.close()


def test_who_waits_for_a_worker_is_let_go_when_it_is_closed(tmp_path: Path):
    vetter, raised = Vetter(command=COMMAND), []
    marker = tmp_path / "marker"
    os.mkfifo(marker)

    def ask():
        with pytest.raises(PolicyError) as error:
            vetter.vet([file("a", do=f"wait_once {marker}")])
        raised.extend(error.value.problems)

    asking = threading.Thread(target=ask)
    asking.start()
    while marker.exists():  # it is gone once the worker waits
        sleep(0.001)
    vetter.close()
    asking.join(60)
    assert ([each.code for each in raised], vetter.pid) == ([UNAVAILABLE], None)
    assert refusal(vetter, file("a")) == [("policies cannot be checked: the server ends", "None", UNAVAILABLE)]


def test_a_worker_ends_with_the_process_that_started_it():
    vetter = Vetter(command=COMMAND)
    vetter.vet([file("a")])
    worker = vetter._worker
    worker._connection.close()  # as the end of the process does
    assert worker.process.wait(60) == 0
    vetter.close()


def test_texts_that_are_not_used_any_more_are_forgotten_and_used_again_when_they_come_back(vetter):
    first = file("first")
    vetter.vet([first])
    for number in range(20):
        vetter.vet([file(f"n{number}")])
    assert len(vetter._worker._sent) < 12
    vetter.vet([first])


def test_a_vetted_build_compiles_what_passed_and_nothing_else(vetter):
    builder = Builder()
    build = VettedBuild(builder, vetter)
    assert [plugin.name for plugin in build([file("a"), file("b")])] == ["a", "b"]
    with pytest.raises(PolicyError):
        build([file("a"), Source("b.yaml", "kind: [")])
    assert list(build.groups([file("a")])) == [frozenset({"a.yaml"})]
    assert build.warnings([file("a")]) == ()


def test_a_set_that_the_worker_refuses_is_not_parsed_by_the_server(vetter):
    parsed = []

    def parse(sources):
        sources = tuple(sources)
        parsed.extend(source.name for source in sources)
        return load(sources)

    build = VettedBuild(Builder(load_sources=parse), vetter)
    with pytest.raises(PolicyError):
        build([file("a"), Source("b.yaml", "kind: [")])
    refused = list(parsed)
    build([file("a")])
    assert (refused, parsed) == ([], ["a.yaml"])


def test_a_document_that_is_not_compiled_in_its_time_has_problems_that_name_it():
    with pytest.raises(PolicyError) as raised:
        Builder(seconds=0)([file("a")])
    assert {(each.code, each.span.place[0]) for each in raised.value.problems} == {("cel-deadline", "a.yaml")}


def test_two_hundred_documents_are_compiled_in_slices_and_an_edit_takes_two():
    pauses = []
    builder = Builder(pause=lambda: pauses.append(None))
    files = [file(f"n{number}") for number in range(200)]
    builder(files)
    assert len(pauses) == 600, "one after each document that is read, each file, and each document that is compiled"
    builder(files)
    assert len(pauses) == 600
    builder([*files[1:], Source("n0.yaml", files[0].text + "# edited\n")])
    assert len(pauses) == 603
