from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

from koordpolicy.engine.plugins import discover, points_of, python_plugin
from koordpolicy.engine.points import Framework, Point
from koordpolicy.engine.source import Problem


class Chooser:
    """Knows better.

    Much better.
    """

    def __init__(self, args, handle) -> None:
        self.args, self.handle = args, handle

    def filter_node(self, state, pod, snapshot, row):
        return None

    def score(self, state, pod, snapshot, rows):
        raise NotImplementedError

    def reserve(self, state, pod, snapshot, row):
        return None


class Squeezer:
    interval = 1

    def adjust(self, readings):
        return ()

    def recover(self, readings):
        return ()


def test_points_follow_from_the_protocols_that_a_class_fulfils_whole() -> None:
    assert points_of(Chooser, Framework.SCHEDULER) == (Point.FILTER, Point.SCORE)
    assert points_of(Chooser, Framework.DESCHEDULER) == ()
    assert points_of(Squeezer, Framework.QOS) == (Point.STRATEGY,)


def test_a_class_becomes_a_plugin_that_makes_its_instances() -> None:
    plugin = python_plugin("Chooser", Framework.SCHEDULER, Chooser, weight=3)
    assert (plugin.name, plugin.points, plugin.description, plugin.weight, plugin.enabled, plugin.source) == (
        "Chooser", (Point.FILTER, Point.SCORE), "Knows better.", 3, False, "")
    made = plugin.make({"a": 1}, "handle")
    assert (type(made), made.args, made.handle) == (Chooser, {"a": 1}, "handle")


def test_a_factory_says_by_its_annotation_or_in_words_what_it_returns() -> None:
    def annotated(args, handle) -> Chooser:
        return Chooser(args, handle)

    def silent(args, handle):
        return Chooser(args, handle)

    assert python_plugin("c", Framework.SCHEDULER, annotated).points == (Point.FILTER, Point.SCORE)
    assert python_plugin("c", Framework.SCHEDULER, silent, points=[Point.SCORE]).points == (Point.SCORE,)
    with pytest.raises(ValueError, match="the scheduler plugin `c` can be asked at no extension point"):
        python_plugin("c", Framework.SCHEDULER, silent)
    with pytest.raises(ValueError, match="`c` names points that its framework does not ask at: balance"):
        python_plugin("c", Framework.SCHEDULER, silent, points=[Point.SCORE, Point.BALANCE])


def test_another_version_is_another_digest() -> None:
    first, second = (python_plugin("c", Framework.SCHEDULER, Chooser, version=version) for version in ("1", "2"))
    assert first.digest != second.digest
    assert first.digest == python_plugin("c", Framework.SCHEDULER, Chooser).digest


class Installed:
    """A distribution on disk, as pip leaves it."""

    def __init__(self, folder: Path, name: str, module: str, entries: dict[str, str]) -> None:
        (folder / f"{name}.py").write_text(
            "from koordpolicy.engine.plugins import python_plugin\n"
            "from koordpolicy.engine.points import Framework, Point\n"
            "def plugin(name):\n"
            "    return python_plugin(name, Framework.SCHEDULER, dict, points=[Point.FILTER])\n" + module)
        info = folder / f"{name}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        lines = [f"{key} = {value}" for key, value in entries.items()]
        (info / "entry_points.txt").write_text("\n".join(["[koordpolicy.plugins]", *lines]))


@pytest.fixture
def site(tmp_path: Path):
    sys.path.insert(0, str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    sys.path.remove(str(tmp_path))
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def test_plugins_of_installed_distributions_are_found_and_a_broken_one_stops_no_other(site: Path) -> None:
    Installed(site, "acme_one", "single = plugin('one')\nPLUGINS = (plugin('two'),)\ndef several(): return [plugin('three')]",
              {"one": "acme_one:single", "two": "acme_one", "three": "acme_one:several"})
    Installed(site, "acme_bad", "number = [5]\nraise_it = 1 / 1\n",
              {"a-missing": "acme_gone:x", "b-number": "acme_bad:number", "c-none": "acme_bad:nothing"})
    problems: list[Problem] = []
    found = discover(problems.append)
    assert [(plugin.name, plugin.origin) for plugin in found] == [
        ("one", "acme_one 1.2"), ("three", "acme_one 1.2"), ("two", "acme_one 1.2")]
    assert [problem.message for problem in problems] == [
        "the plugin `a-missing` of acme_bad 1.2 cannot be loaded: ModuleNotFoundError: No module named 'acme_gone'",
        "the plugin `b-number` of acme_bad 1.2 cannot be loaded: TypeError: it offers 5, which is no plugin",
        ("the plugin `c-none` of acme_bad 1.2 cannot be loaded: AttributeError: "
        "module 'acme_bad' has no attribute 'nothing'"),
    ]


def test_a_name_that_two_distributions_offer_is_told_and_nobody_gets_it(site: Path) -> None:
    Installed(site, "acme_one", "x = plugin('same')\ny = plugin('other')", {"x": "acme_one:x", "y": "acme_one:y"})
    Installed(site, "acme_two", "x = plugin('same')", {"x": "acme_two:x"})
    problems: list[Problem] = []
    assert [plugin.name for plugin in discover(problems.append)] == ["other"]
    assert [problem.message for problem in problems] == [
        "the scheduler plugin `same` is offered more than once: acme_one 1.2, acme_two 1.2"]


def test_entry_points_may_be_given_instead_of_installed() -> None:
    module = ModuleType("given_plugins")
    module.PLUGINS = (python_plugin("given", Framework.SCHEDULER, Chooser),)
    sys.modules["given_plugins"] = module
    try:
        found = discover(pytest.fail, [EntryPoint("given", "given_plugins", "koordpolicy.plugins")])
    finally:
        del sys.modules["given_plugins"]
    assert [(plugin.name, plugin.origin) for plugin in found] == [("given", "given_plugins")]
