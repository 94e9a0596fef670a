from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import SPREAD, Run

GOOD = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: {NAME}, annotations: {policy.koordinator.sh/description: Big nodes.}}
spec:
  filter:
  - {name: big, expression: allocatable.cpu > 1000}
"""


def good(name: str) -> str:
    return GOOD.replace("{NAME}", name)


def test_a_valid_directory_has_no_errors(run: Run, policies: Path):
    (policies / "nested").mkdir()
    (policies / "nested" / "big.yml").write_text(good("big") + "---\n" + good("bigger"))
    (policies / "notes.txt").write_text("not a policy")
    done = run("lint", policies)
    assert (done.exit, done.out, done.err) == (0, "0 errors, 0 warnings in 3 documents of 2 files\n", "")


def test_all_faults_of_all_files_are_told_at_once(run: Run, tmp_path: Path):
    (tmp_path / "a.yaml").write_text(good("a").replace("allocatable", "alocatable"))
    (tmp_path / "b.yaml").write_text(good("b").replace("  filter:", "  filters:"))
    (tmp_path / "c.yaml").write_text(good("c").replace("kind: SchedulerPlugin", "kind: SchedulerPlug"))
    done = run("lint", tmp_path)
    assert done.exit == 3
    assert f"{tmp_path}/a.yaml:6:29: error: no variable `alocatable` at filter" in done.out
    assert (
        f"{tmp_path}/b.yaml:5:3: error: unknown field `filters` in `spec`\n 5 |   filters:\n"
        "   |   ^^^^^^^ did you mean `filter`?\n"
    ) in done.out
    assert f"{tmp_path}/c.yaml:2:7: error: there is no kind `SchedulerPlug`" in done.out
    assert done.out.splitlines()[-1] == "3 errors, 0 warnings in 3 documents of 3 files"


def test_json_holds_every_problem_with_its_place(run: Run, tmp_path: Path):
    path = tmp_path / "a.yaml"
    path.write_text(good("a").replace("cpu > 1000", "cpi"))
    done = run("lint", path, "--output", "json")
    assert done.exit == 3
    found = done.json
    problem = found["problems"][0]
    assert {key: found[key] for key in ("errors", "warnings", "documents", "files")} == {
        "errors": 1, "warnings": 0, "documents": 1, "files": 1,
    }
    assert (problem["file"], problem["line"], problem["column"]) == (str(path), 6, 40)
    assert problem["message"].startswith("no such field `cpi` in `ResourceList`")


def test_a_name_in_two_files_is_an_error(run: Run, tmp_path: Path):
    (tmp_path / "a.yaml").write_text(good("same"))
    (tmp_path / "b.yaml").write_text(good("same"))
    done = run("lint", tmp_path)
    assert done.exit == 3
    assert f"`same` is declared twice, also at {tmp_path}/a.yaml:3" in done.out


def test_the_name_of_a_built_in_needs_a_word(run: Run, tmp_path: Path):
    path = tmp_path / "a.yaml"
    path.write_text(good("NodeName"))
    assert run("lint", path).exit == 3
    path.write_text(good("node-name"))
    assert run("lint", path).exit == 0


def test_an_action_for_other_subjects_is_refused_with_its_place(run: Run, tmp_path: Path):
    path = tmp_path / "bandwidth.yaml"
    path.write_text(
        "apiVersion: policy.koordinator.sh/v1alpha2\nkind: QoSPlugin\nmetadata: {name: bandwidth}\n"
        "spec:\n  forEach: pod\n  actions:\n  - name: bound\n    resctrl: {mbaPercent: '30'}\n",
    )
    done = run("lint", path)
    assert done.exit == 3
    assert f"{path}:8:5: error: `resctrl` belongs to" in done.out
    assert "write `forEach: qosClass`" in done.out


def test_a_file_that_two_paths_lead_to_is_checked_once(run: Run, policies: Path):
    done = run("lint", policies, policies / "hot.yaml", policies)
    assert done.out == "0 errors, 0 warnings in 1 document of 1 file\n"


@pytest.mark.parametrize("content", ["", "# nothing but a comment\n", "---\n"])
def test_a_path_without_a_document_is_an_error(run: Run, tmp_path: Path, content: str):
    (tmp_path / "empty.yaml").write_text(content)
    done = run("lint", tmp_path)
    assert done.exit == 3
    assert f"error: there is no document in `{tmp_path}`" in done.out


def test_a_missing_path_is_a_usage_error(run: Run, tmp_path: Path):
    done = run("lint", tmp_path / "nowhere")
    assert (done.exit, done.err) == (2, f"koord-policy: there is no file or directory `{tmp_path}/nowhere`\n")


def test_a_binary_file_is_said_to_be_no_text_and_others_are_still_checked(run: Run, tmp_path: Path):
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe\x00\x01")
    (tmp_path / "b.yaml").write_text(good("b").replace("1000", "'x'"))
    done = run("lint", tmp_path)
    assert done.exit == 3
    assert f"{tmp_path}/a.yaml" in done.out
    assert f"{tmp_path}/b.yaml:6:45: error:" in done.out


def test_a_file_that_may_not_be_read_is_named(run: Run, tmp_path: Path):
    path = tmp_path / "a.yaml"
    path.symlink_to(tmp_path / "gone.yaml")
    done = run("lint", tmp_path)
    assert done.exit == 3
    assert str(path) in done.out
    assert "Traceback" not in done.out + done.err


def test_standard_input_is_a_file_too(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(good("a").replace("1000", "x").encode())))
    done = run("lint", "-")
    assert done.exit == 3
    assert done.out.startswith("<stdin>:6:47: error: no variable `x` at filter\n")


def configmap(files: dict[str, str]) -> str:
    blocks = "".join(
        f"  {key}: |\n" + "".join(f"    {line}\n" for line in text.splitlines()) for key, text in files.items()
    )
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: policies}}\ndata:\n{blocks}"


def test_documents_in_a_configmap_are_checked_with_places_in_the_manifest(run: Run, tmp_path: Path):
    path = tmp_path / "manifest.yaml"
    path.write_text(configmap({"hot.yaml": SPREAD, "big.yaml": good("big").replace("cpu >", "cpi >")}))
    done = run("lint", "--configmap", path)
    assert done.exit == 3
    line = path.read_text().splitlines().index("      - {name: big, expression: allocatable.cpi > 1000}") + 1
    assert f"{path}:{line}:44: error: no such field `cpi` in `ResourceList`" in done.out
    assert done.out.splitlines()[-1] == "1 error, 0 warnings in 2 documents of 1 file"


def test_a_configmap_that_is_too_large_is_refused(run: Run, tmp_path: Path):
    path = tmp_path / "manifest.yaml"
    path.write_text(configmap({"hot.yaml": SPREAD + "# " + "x" * (1024 * 1024)}))
    done = run("lint", "--configmap", path)
    assert done.exit == 3
    assert "but the API server takes 1048576" in done.out


def test_a_manifest_given_without_the_option_says_so(run: Run, tmp_path: Path):
    path = tmp_path / "manifest.yaml"
    path.write_text(configmap({"hot.yaml": SPREAD}))
    done = run("lint", path)
    assert done.exit == 3
    assert "koord-policy lint --configmap" in done.out


def test_the_shipped_policies_have_no_errors(run: Run):
    done = run("lint", Path(__file__).parents[3] / "policies")
    assert done.exit == 0, done.out


def test_a_reader_that_stops_early_is_told_like_the_signal_and_in_silence(policies: Path):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "koordpolicy", "lint", str(policies)], stdout=write, stderr=subprocess.PIPE, check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")
