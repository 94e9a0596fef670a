"""The documentation holds: its command lines run, its documents are valid, its links have targets."""

from __future__ import annotations

import itertools
import re
import runpy
import shlex
import tomllib
from pathlib import Path

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.builtin_plugins import qos
from koordpolicy.engine import cli
from koordpolicy.engine.agent.qos_manager import configuration
from koordpolicy.engine.agent.qos_manager.manager import Manager
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.source import Source

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").glob("*/README.md")),
]


def blocks(kind: str) -> list[tuple[str, str]]:
    return [
        (page.name, block) for page in PAGES
        for block in re.findall(rf"^```{kind}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    ]


COMMANDS = [
    (page, line) for page, block in blocks("sh") for line in block.splitlines()
    if line.startswith("koord-policy ") and "--extender" not in line  # that one serves until it is stopped
]
DIFFERENT = list({line: (page, line) for page, line in COMMANDS}.values())
"""Each command line once, of the last page that has it."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current directory has the project's files, and what a command writes there is removed."""
    for path in ROOT.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(("page", "line"), DIFFERENT)
def test_a_documented_command_line_works(page: str, line: str, capsys: pytest.CaptureFixture[str]):
    command, _, note = line.partition("  # exit code ")
    assert cli.main(shlex.split(command)[1:], builtins) == int(note or 0), (page, capsys.readouterr())
    out, err = capsys.readouterr()
    assert out
    assert "Traceback" not in err


DOCUMENTS = [each for each in blocks("yaml") if "policy.koordinator.sh/" in each[1]]
QOS_CONFIGURATION = f"kind: {configuration.KIND}\n"


@pytest.mark.parametrize(("page", "block"), [each for each in DOCUMENTS if QOS_CONFIGURATION in each[1]])
def test_a_documented_configuration_of_strategies_is_valid(page: str, block: str):
    args = configuration.read(Source(page, block), [each.name for each in qos.PLUGINS])
    assert args
    manager = Manager(enable=frozenset(args), args=args)
    manager.use(Registry.of(qos.PLUGINS, generation=1))


@pytest.mark.parametrize(("page", "block"), [each for each in DOCUMENTS if QOS_CONFIGURATION not in each[1]])
def test_a_documented_document_is_valid(page: str, block: str):
    loaded = load([Source(page, block)])
    assert loaded.documents
    assert not loaded.problems
    compile_documents(loaded)


@pytest.mark.parametrize(("page", "block"), blocks("python"))
def test_documented_python_runs(page: str, block: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    exec(compile(block, page, "exec"), {"__name__": page})


@pytest.mark.parametrize(("identifier", "after"), [
    ("engine", "## The rooms"), ("scheduler", "Inside `engine/scheduler`"),
])
def test_the_rooms_of_the_architecture_are_in_the_order_of_the_import_contracts(identifier: str, after: str):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = {contract["id"]: contract for contract in project["tool"]["importlinter"]["contracts"]}
    layers = [[each.strip().removeprefix("koordpolicy.engine.") for each in line.split("|")]
              for line in contracts[identifier]["layers"]]
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition(after)[2]
    siblings, _, table = text.partition("| room | contents |")
    rows = [row.split("|")[1] for row in table.partition("\n\n")[0].splitlines()[2:]]
    place = {name.removeprefix("engine/").removesuffix("/").removesuffix(".py"): number
             for number, row in enumerate(rows) for name in re.findall("`([^`]+)`", row)}
    # One row holds the small modules below all rooms.
    above = [line for line in layers if place[line[0]] < len(rows) - (identifier == "engine")]
    order = [[place[name] for name in line] for line in above]
    assert [one for one, two in itertools.pairwise(order) if max(one) > min(two)] == []
    for line in above:
        names = [f"`{name}`" for name in line]
        assert len(line) == 1 or f"{', '.join(names[:-1])} and {names[-1]}" in siblings


def test_links_between_pages_lead_somewhere():
    broken = [
        (page.name, target) for page in PAGES
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert broken == []


def test_the_first_page_shows_what_its_last_command_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(ROOT)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    line = next(line for page, line in COMMANDS if page == "README.md" and "--node general-03" in line)
    cli.main(shlex.split(line.partition("  # ")[0])[1:], builtins)
    assert f"```\n{capsys.readouterr().out}```\n" in text


def test_the_demo_explains_a_pod_as_the_command_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(ROOT)
    runpy.run_path("examples/demo.py")["main"]()
    demo = capsys.readouterr().out
    cluster = ["--cluster", "examples/cluster", "--policies", "policies/scheduler"]
    cli.main(["explain", "shop/web-101", *cluster], builtins)
    assert demo.endswith(f"\n{capsys.readouterr().out}")
    cli.main(["scheduler", *cluster], builtins)
    placed, _, _ = capsys.readouterr().out.partition("\nnot placed")
    assert placed in demo
