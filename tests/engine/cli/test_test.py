"""The command `koord-policy test`."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from koordpolicy.engine.cli.test import watch

from .conftest import Run

POLICY = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: small}
spec:
  filter:
  - {name: rule, expression: requests.cpu < 1000, message: too large}
"""
SUITE = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: PolicyTest
metadata: {name: small}
spec:
  fixtures: {nodes: {n: {}}}
  cases:
  - {name: below, pod: {cpu: 999m}, filter: pass}
  - {name: above, pod: {cpu: 1}, filter: {n: {fail: rule}}}
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "small.yaml").write_text(POLICY)
    path = tmp_path / "small.test.yaml"
    path.write_text(SUITE)
    return path


def broken(suite: Path) -> Path:
    suite.write_text(SUITE.replace("cpu: 999m", "cpu: 1001m"))
    return suite


def test_suites_that_pass_are_one_line_each(run: Run, suite: Path):
    done = run("test", suite.parent)
    assert done.exit == 0
    assert done.out.splitlines()[0] == "ok    small  2 cases, 1 rule, 2 rows"
    assert "2 passed, 0 failed" in done.out


def test_a_case_that_fails_is_shown_with_what_was_expected_and_the_values(run: Run, suite: Path):
    done = run("test", broken(suite), "-v")
    assert done.exit == 4
    lines = [line.strip() for line in done.out.splitlines()]
    start = lines.index(f"FAIL  below  1 rule, 1 row  ({suite}:7)")
    assert lines[start + 1 : start + 6] == [
        "filter of `n` (line 7)", "- pass", "+ fail of `rule`: too large", "requests.cpu < 1000 = false",
        "requests.cpu = 1001",
    ]
    assert "ok    above  1 rule, 1 row" in lines


def test_results_are_plain_data(run: Run, suite: Path):
    done = run("test", broken(suite), "--output", "json", "--coverage", "json")
    data = done.json
    assert (done.exit, data["cases"], data["failed"], data["coverage"]["percent"]) == (4, 2, 1, 50.0)
    (failure,) = data["results"][0]["failures"]
    assert {key: failure[key] for key in ("about", "expected", "got", "line")} == {
        "about": "filter of `n`", "expected": "pass", "got": "fail of `rule`: too large", "line": 7,
    }


def test_results_are_junit_for_continuous_integration(run: Run, suite: Path):
    done = run("test", broken(suite), "--output", "junit")
    root = ET.fromstring(done.out)
    (of_suite,) = root
    assert (root.get("tests"), root.get("failures"), of_suite.get("name")) == ("2", "1", "small")
    below, above = of_suite
    assert (below.get("name"), above.get("name"), len(above)) == ("below", "above", 0)
    assert below[0].get("message") == "filter of `n`: expected pass, got fail of `rule`: too large"


def test_failures_are_shown_at_their_lines_by_code_hosts(run: Run, suite: Path):
    path = broken(suite)
    done = run("test", path, "--output", "github", "--min-coverage", "60")
    assert done.exit == 4
    assert done.out == (
        f"::error file={path},line=7,endLine=7,col=46,endColumn=50,title=small/below::filter of `n` (line 7)%0A"
        "  - pass%0A  + fail of `rule`: too large\n"
        "::error title=koord-policy test::coverage is 50.0 %25, less than 60 %25\n"
    )
    (log,) = run("test", path, "--output", "sarif").json["runs"]
    (result,) = log["results"]
    assert [each["id"] for each in log["tool"]["driver"]["rules"]] == [
        "failed-case", "surviving-mutant", "requirement", "invalid-document"]
    assert (result["ruleId"], result["ruleIndex"], result["level"], result["locations"]) == (
        "failed-case", 0, "error", [{"physicalLocation": {
            "artifactLocation": {"uri": str(path)},
            "region": {"startLine": 7, "startColumn": 46, "endLine": 7, "endColumn": 50},
        }}],
    )
    assert result["message"]["text"].startswith("small/below: filter of `n` (line 7)\n")


def test_a_run_that_ends_early_is_reported_to_code_hosts(run: Run, suite: Path):
    suite.write_text(SUITE.replace("filter", "filtr", 1))
    done = run("test", suite, "--output", "github")
    (line,) = done.out.splitlines()
    assert done.exit == 3
    assert line.startswith(f"::error file={suite},line=")
    assert line.endswith("did you mean `filter`?)")
    (log,) = run("test", suite, "--output", "sarif").json["runs"]
    assert [(each["ruleId"], each["level"]) for each in log["results"]] == [("invalid-document", "error")]
    suite.unlink()
    assert run("test", suite.parent, "--output", "github").out == (
        f"::error title=koord-policy test::there is no PolicyTest in `{suite.parent}`: nothing was tested\n")


def test_cases_are_chosen_and_an_empty_choice_is_a_failure(run: Run, suite: Path):
    assert "1 passed" in run("test", suite, "--run", "small/ab").out
    done = run("test", suite, "--run", "abov$")
    assert (done.exit, done.err) == (4, "koord-policy: no case is called like `abov$`: there are 2 cases\n")
    assert run("test", suite, "--run", "(").exit == 2


def test_whoever_names_a_policy_is_told_of_its_test(run: Run, suite: Path):
    policy = suite.with_name(suite.name.replace(".test.yaml", ".yaml"))
    done = run("test", policy)
    assert (done.exit, done.err) == (
        4, f"koord-policy: there is no PolicyTest in `{policy}`: nothing was tested, but there is `{suite}`\n")


def test_a_directory_without_tests_is_a_failure(run: Run, suite: Path):
    suite.unlink()
    done = run("test", suite.parent)
    assert (done.exit, done.err) == (
        4, f"koord-policy: there is no PolicyTest in `{suite.parent}`: nothing was tested\n",
    )


def test_invalid_documents_and_paths_that_do_not_exist_have_their_own_exit_codes(run: Run, suite: Path):
    suite.write_text(SUITE.replace("filter", "filtr"))
    done = run("test", suite)
    assert done.exit == 3
    assert "unknown field `filtr` in `spec.cases[0]`" in done.err
    assert run("test", suite.parent / "nowhere").exit == 2


def test_policies_without_a_test_are_a_failure_where_that_is_asked_for(run: Run, suite: Path):
    (suite.parent / "other.yaml").write_text(POLICY.replace("small", "other"))
    assert run("test", suite.parent).exit == 0
    done = run("test", suite.parent, "--require-tests")
    assert done.exit == 4
    assert f"FAIL  no suite is about `other` ({suite.parent / 'other.yaml'}:3)" in done.out
    covered = run("test", suite.parent, "--min-coverage", "60")
    assert covered.exit == 4
    assert "coverage is 50.0 %, less than 60 %" in covered.out


def test_coverage_is_told_and_bounded(run: Run, suite: Path):
    suite.write_text(SUITE.replace("  - {name: above, pod: {cpu: 1}, filter: {n: {fail: rule}}}\n", ""))
    done = run("test", suite, "--coverage", "text", "--min-coverage", "100")
    assert done.exit == 4
    assert f"{suite.parent / 'small.yaml'}:6: filter.rule: never false: requests.cpu < 1000" in done.out
    assert run("test", suite, "--coverage", "text", "--min-coverage", "50").exit == 0
    assert run("test", suite, "--min-coverage", "101").exit == 2


def test_coverage_is_written_to_a_file(run: Run, suite: Path):
    for kind, beginning in (("html", "<!doctype html>"), ("sarif", "{"), ("json", "{"), ("text", "\ncoverage")):
        file = suite.parent / f"report.{kind}"
        assert run("test", suite, "--coverage", kind, "--coverage-out", file).exit == 0
        assert file.read_text().startswith(beginning)


@pytest.mark.parametrize(("arguments", "message"), [
    (("--coverage-out", "x"), "`--coverage-out` goes with `--coverage`: say which format"),
    (("--coverage", "json", "--coverage-out", "{}"), "`--coverage-out {}`: it is a directory"),
    (("--coverage", "json", "--coverage-out", "{}/no/x"), "`--coverage-out {}/no/x`: there is no directory `{}/no`"),
])
def test_where_coverage_cannot_be_written_nothing_is_run(run: Run, suite: Path, arguments, message):
    done = run("test", suite, *(each.format(suite.parent) for each in arguments))
    assert (done.exit, done.out, done.err) == (2, "", f"koord-policy: {message.format(suite.parent, suite.parent)}\n")


def test_coverage_may_go_to_what_is_no_file(run: Run, suite: Path):
    assert run("test", suite, "--coverage", "json", "--coverage-out", "/dev/null").exit == 0


def test_mutants_that_survive_are_a_failure(run: Run, suite: Path):
    assert run("test", suite, "--mutate").exit == 0
    suite.write_text(SUITE.replace("999m", "1m"))
    done = run("test", suite, "--mutate")
    assert done.exit == 4
    line, column = 6, POLICY.splitlines()[5].index("1000") + 1
    place = f"{suite.parent / 'small.yaml'}:{line}:{column}"
    assert f"survives  {place}: small at filter.rule: `1000` to `999`" in done.out
    assert "3 mutants: 2 noticed, 0 justified, 1 survive" in done.out
    assert run("test", broken(suite), "--mutate").out.count("mutants are not looked at before all cases pass") == 1


def test_watching_runs_again_when_a_file_changes(suite: Path):
    runs: list[str] = []
    waits = iter([
        lambda: None,
        lambda: suite.write_text(SUITE + "\n"),
        lambda: None,
        lambda: (suite.parent / "new.yaml").write_text(POLICY),
    ])

    def wait(_: float) -> None:
        change = next(waits, None)
        if change is None:
            raise KeyboardInterrupt
        change()

    assert watch([suite], lambda: runs.append("run"), wait) == 0
    assert len(runs) == 3


SECRET = "hunter2"


@pytest.mark.parametrize("text", [
    f"TOKEN={SECRET}\0PATH=/bin\0", f"token: {SECRET}\n", f"[remote]\n  url = https://{SECRET}@host\n", f"{{{SECRET}",
    f"apiVersion: v1\nkind: Secret\ndata: {{token: {SECRET}, token: {SECRET}}}\n", f"\xff{SECRET}",
    f"HEAD=policy.koordinator.sh\0BODY=x\napiVersion: policy.koordinator.sh/v1alpha2\0TOKEN={SECRET}\0",
    f"# apiVersion: policy.koordinator.sh/v1\ntoken: !{SECRET} x\n", f"apiVersion: v1\nkind: {SECRET}\n",
    f"apiVersion: v1\nkind: Node\nmetadata: {{name: n, {SECRET}: 1}}\nstatus: {{allocatable: {{cpu: {SECRET}}}}}\n",
], ids=["environment", "YAML", "configuration", "broken", "Secret", "not UTF-8", "our group", "tag", "kind", "Node"])
@pytest.mark.parametrize(("head", "case"), [
    ("policies: [a.yaml, ../secret]", "pod: {}\n    filter: pass"),
    ("plugin: small\n  fixtures: {files: [../secret]}", "pod: {}\n    filter: pass"),
    ("plugin: small", "expectInvalid: {file: ../secret, problems: [x]}"),
], ids=["policies", "fixtures", "expectInvalid"])
def test_no_text_of_a_file_is_shown_that_only_a_suite_names(
    tmp_path: Path, run: Run, text: str, head: str, case: str,
) -> None:
    (tmp_path / "secret").write_bytes(text.encode("latin-1"))
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "a.yaml").write_text(POLICY)
    (tmp_path / "tests" / "a.test.yaml").write_text(
        f"apiVersion: policy.koordinator.sh/v1alpha2\nkind: PolicyTest\nmetadata: {{name: t}}\nspec:\n  {head}\n"
        f"  cases:\n  - name: one\n    {case}\n")
    for output in ("text", "json", "github", "sarif", "junit"):
        done = run("test", tmp_path / "tests", "--verbose", "--output", output)
        shown = done.out + done.err
        assert "secret" in shown.lower()
        assert SECRET not in shown


@pytest.mark.parametrize("command", ["lint", "test"])
@pytest.mark.parametrize("name", ["x.yaml", "x.test.yaml", "koord-policy.yaml"])
def test_no_text_of_a_file_is_shown_that_a_link_in_a_directory_leads_to(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, command: str, name: str,
) -> None:
    (tmp_path / "secret").write_text(f"TOKEN: {SECRET}\n")
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "a.yaml").write_text(POLICY)
    (folder / name).symlink_to("../secret")
    monkeypatch.chdir(folder)
    done = run(command, folder)
    assert done.exit in (3, 4)
    assert "leads outside of" in done.out + done.err
    assert SECRET not in done.out + done.err


def test_links_within_a_directory_and_to_policies_elsewhere_are_read(tmp_path: Path, run: Run):
    (tmp_path / "elsewhere.yaml").write_text(POLICY)
    folder = tmp_path / "policies"
    (folder / "..data").mkdir(parents=True)
    (folder / "..data" / "b.yaml").write_text(POLICY.replace("small", "other"))
    (folder / "b.yaml").symlink_to("..data/b.yaml")
    (folder / "a.yaml").symlink_to("../elsewhere.yaml")
    done = run("lint", folder)
    assert (done.exit, "2 documents of 2 files" in done.out) == (0, True), done.out


def test_a_directory_far_from_a_suite_is_not_walked(tmp_path: Path, run: Run, suite: Path):
    suite.write_text(SUITE.replace("  fixtures:", "  policies: [/usr]\n  fixtures:"))
    done = run("test", suite)
    assert (done.exit, done.err.count("error:")) == (3, 1)
    assert "names the directory `/usr`, which is neither below its own nor below the working directory" in done.err


def test_a_report_is_written_once_if_the_coverage_cannot_be_written(run: Run, suite: Path):
    done = run("test", suite, "--output", "sarif", "--coverage", "json", "--coverage-out", "/proc/x")
    assert (done.exit, done.out.count("$schema")) == (2, 1)
