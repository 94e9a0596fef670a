from __future__ import annotations

import json

import pytest

from . import openb, pending, suites
from .__main__ import main, parts_table
from .result import Result
from .suites import SUITES, Suite, agreement, count, failures, name_cases, plan, run


def test_files_are_found_by_name_and_counts_hold_no_cases(tmp_path):
    (tmp_path / "cel_conformance").mkdir()
    names = [
        "scheduler_other.json", "qos.json", "descheduler_x.json", "k8s_cel.json", "cel_parse_trees.json",
        "openb_expected_two.json", "kube_scheduler_runs_mine.json", "k8s_descheduler_runs_a.json",
        "cel_conformance/b.json", "cel_conformance/a.json",
    ]
    for name in [*names, "cel_conformance/COUNTS.json", "peers.json", "cel_bench.json"]:
        (tmp_path / name).write_text("[]")
    found = {suite.name: [str(path.relative_to(tmp_path)) for path in suite.files(tmp_path)] for suite in SUITES}
    assert found == {
        "scheduler": ["scheduler_other.json"], "qos": ["qos.json"], "descheduler": ["descheduler_x.json"],
        "k8s_cel": ["k8s_cel.json"], "parse_trees": ["cel_parse_trees.json"],
        "cel_conformance": ["cel_conformance/a.json", "cel_conformance/b.json"],
        "kube_scheduler_runs": ["kube_scheduler_runs_mine.json"],
        "k8s_descheduler_runs": ["k8s_descheduler_runs_a.json"], "openb": ["openb_expected_two.json"],
    }


def test_a_case_of_a_plugin_that_is_not_built_fails_and_says_so(tmp_path):
    (tmp_path / "scheduler_a.json").write_text('{"cases": [{"id": "a", "plugin": "Nothing", "point": "filter"}]}')
    assert run(plan(tmp_path)) == [Result("scheduler", "a", False, "plugin `Nothing` is not built yet")]


def test_a_sample_of_openb_has_each_trace_once_and_the_policies_in_turn(tmp_path):
    traces = {trace: {"policies": {"P": {}, "Q": {}}} for trace in ("a", "b", "c")}
    (tmp_path / "openb_expected.json").write_text(json.dumps({"traces": traces}))
    (tmp_path / "qos.json").write_text("[]")
    assert [(piece.suite.name, piece.part) for piece in plan(tmp_path, sample=True)] == [
        ("qos", None), ("openb", "a/P"), ("openb", "b/Q"), ("openb", "c/P")]


def test_an_id_that_comes_twice_hides_nothing(tmp_path):
    (tmp_path / "scheduler_a.json").write_text('{"cases": [{"id": "a"}, {"id": "a"}]}')
    (tmp_path / "scheduler_b.json").write_text('{"cases": [{"id": "a"}]}')
    assert [result.id for result in run(plan(tmp_path))] == ["a", "a#2", "a#3"]


def test_a_broken_file_fails_alone(tmp_path):
    (tmp_path / "scheduler_a.json").write_text("{")
    (tmp_path / "scheduler_b.json").write_text('[{"id": "b"}]')
    first, second = run(plan(tmp_path))
    assert (first.id, first.passed, first.detail.startswith("stopped by JSONDecodeError")) == (
        "scheduler_a.json/unfinished", False, True)
    assert second.id == "b"


def test_processes_do_not_change_the_outcome(tmp_path):
    for letter in "abc":
        (tmp_path / f"scheduler_{letter}.json").write_text(json.dumps([{"id": f"{letter}{n}"} for n in range(20)]))
    assert run(plan(tmp_path), processes=2) == run(plan(tmp_path), processes=1)


def test_parts_of_a_file_are_run_apart_and_stand_in_their_order(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "adapters").mkdir()
    (tmp_path / "adapters" / "parted.py").write_text(
        "from tests.golden.result import Result\n"
        "def parts(path, *, full=False): return ['b', 'a', 'broken'] if full else ['b']\n"
        "def run_part(path, part, *, full=False):\n"
        "    yield Result('parted', part, True)\n"
        "    if part == 'broken': raise KeyError(path.name)\n",
    )
    (tmp_path / "parted.json").write_text("[]")
    suites = [Suite("parted", "parted.json", package="adapters"), Suite("unknown", "parted.json", package="adapters")]
    assert run(plan(tmp_path, suites=suites)) == [Result("parted", "b", True)]
    assert run(plan(tmp_path, full=True, suites=suites)) == [
        Result("parted", "b", True), Result("parted", "a", True), Result("parted", "broken", True),
        Result("parted", "parted.json/broken/unfinished", False, "stopped by KeyError: 'parted.json'"),
    ]


def test_an_adapter_that_cannot_be_imported_fails_its_own_files_only(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "faulty").mkdir()
    (tmp_path / "faulty" / "broken.py").write_text("raise ImportError('no such thing')")
    (tmp_path / "broken.json").write_text("[]")
    (tmp_path / "scheduler.json").write_text('[{"id": "a", "plugin": "Nothing"}]')
    suites = [Suite("broken", "broken.json", package="faulty"), Suite("scheduler", "scheduler.json")]
    assert run(plan(tmp_path, suites=suites)) == [
        Result("broken", "broken.json/unfinished", False, "stopped by ImportError: no such thing"),
        Result("scheduler", "a", False, "plugin `Nothing` is not built yet"),
    ]


def test_cases_of_every_shape_have_a_name(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('[{"id": "i"}, {"suite": "s", "section": "t", "name": "n"}, {"expr": "1"}]')
    assert name_cases(path) == ["i", "s/t/n", "x/3"]
    path.write_text('{"traces": {"t": {"policies": {"p": {}, "q": {}}}}}')
    assert name_cases(path) == ["t/p", "t/q"]


def test_a_pending_case_that_passes_is_a_failure_and_one_that_fails_is_not():
    results = [
        Result("s", "good", True), Result("s", "bad", False, "x"), Result("s", "late", False),
        Result("s", "done", True),
    ]
    lists = {"s": {"late": "later", "done": "later", "elsewhere": "later"}}
    assert count(results, lists) == {"s": {"cases": 4, "passed": 1, "failed": 2, "pending": 1}}
    assert failures(results, lists) == [
        Result("s", "bad", False, "x"), Result("s", "done", False, "passes now: take it off the pending list"),
    ]


def test_parts_of_cases_are_added_up_by_suite():
    results = [Result("s", "a", True, agreement={"scores": (3, 3)}), Result("t", "b", True),
               Result("s", "c", False, agreement={"scores": (1, 4), "message": (0, 1)})]
    assert agreement(results) == {"s": {"scores": (4, 7), "message": (0, 1)}}
    assert parts_table(agreement(results)) == (
        "\ns: agreeing                                of\n"
        "  scores                           4        7\n"
        "  message                          0        1\n"
    )
    assert parts_table({}) == ""


@pytest.mark.parametrize("name", ["a", "#a", "a\tb\nc\r", "\\n", "\\", "a\\", " "])
def test_any_id_survives_a_pending_list(tmp_path, name):
    assert pending.write("s", [Result("s", name, False)], "why", tmp_path) == 1
    assert pending.read("s", tmp_path) == {name: "why"}


def test_a_rewritten_list_keeps_reasons_and_ids_of_other_directories(tmp_path):
    pending.write(
        "s", [Result("s", "kept", False), Result("s", "done", False), Result("s", "other", False)], "old", tmp_path,
    )
    pending.write(
        "s", [Result("s", "kept", False), Result("s", "done", True), Result("s", "new", False)], "fresh", tmp_path,
    )
    assert pending.read("s", tmp_path) == {"kept": "old", "other": "old", "new": "fresh"}


def test_a_pending_line_needs_a_reason_and_comes_once(tmp_path):
    (tmp_path / "s.txt").write_text("# title\n\na\n")
    with pytest.raises(ValueError, match=r"s.txt:3: `a` has no reason"):
        pending.read("s", tmp_path)
    (tmp_path / "s.txt").write_text("a\tx\na\ty\n")
    with pytest.raises(ValueError, match=r"s.txt:2: `a` is listed twice"):
        pending.read("s", tmp_path)


def test_the_command_prints_the_table_and_says_by_its_exit_code_what_came_out(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    (tmp_path / "scheduler_a.json").write_text('[{"id": "no such case", "plugin": "Nothing"}]')
    capsys.readouterr()
    assert main([str(tmp_path), "--json", str(tmp_path / "out.json")]) == 1
    assert capsys.readouterr().out == (
        "suite                 cases   passed   failed  pending\n"
        "scheduler                 1        0        1        0\n"
        "all                       1        0        1        0\n"
        "\n1 failed:\n"
        "  scheduler  no such case: plugin `Nothing` is not built yet\n"
    )
    assert json.loads((tmp_path / "out.json").read_text()) == {
        "suites": {"scheduler": {"cases": 1, "passed": 0, "failed": 1, "pending": 0}},
        "agreement": {},
        "failed": [{"suite": "scheduler", "id": "no such case", "detail": "plugin `Nothing` is not built yet"}],
        "pending": [],
    }


def test_a_run_that_was_interrupted_goes_on_where_it_was_and_looks_at_failures_again(tmp_path, monkeypatch):
    runs = []

    def run_piece(piece):
        runs.append(piece.name)
        return [
            Result("openb", piece.part, piece.part != "b" or len(runs) > 3, "" if piece.part != "b" else "was wrong"),
        ]

    monkeypatch.setattr(suites, "run_piece", run_piece)
    pieces = [suites.Piece(suites.SUITES[-1], tmp_path / "openb_expected.json", part, True) for part in "abc"]
    kept, told = tmp_path / "kept.jsonl", []
    suites.run(pieces[:2], processes=1, kept=kept)
    with kept.open("a") as file:
        file.write('{"piece": "openb_expected.json/c/full", "resul')
    kept.write_text(kept.read_text() + "\n")
    found = suites.run(pieces, processes=1, kept=kept, told=told.append)
    assert runs == [f"openb_expected.json/{part}/full" for part in "abbc"]
    assert [each.id for each in found] == ["a", "b", "c"]
    assert told == ["openb_expected.json/b/full: 0 of 1 passed", "openb_expected.json/c/full: 1 of 1 passed"]


def test_means_of_a_random_policy_may_differ_by_three_standard_errors_of_their_difference():
    published = [10.0, 11.0, 12.0]  # the error of each mean is sqrt(1 / 3): three of their difference are 2.449
    assert openb.compare_means("m", [12.4, 13.4, 14.4], published) == Result("openb", "m", True)
    assert not openb.compare_means("m", [12.5, 13.5, 14.5], published).passed
    assert openb.compare_means("m", [12.4, None, 14.4], published).detail == "has 2 figures of 3 runs"
