from __future__ import annotations

import re
import signal
import sys
import time
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from koordpolicy.engine.cel.check.environment import Cost, Function
from koordpolicy.engine.cel.scalar.program import compile as compile_program
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cel.vector.plan import evaluate
from koordpolicy.engine.cel.vector.row_frame import RowFrame
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load
from koordpolicy.engine.framework.border import must_be_survived
from koordpolicy.engine.framework.discovery import discover, points_of
from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.slots import Slot, environment
from koordpolicy.engine.source import PolicyError, Problem, Source
from koordpolicy.plugin import cel_function, python_plugin
from tests.engine.cel.agreement import agreed


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
    with pytest.raises(ValueError, match="the scheduler plugin `c` has no extension point"):
        python_plugin("c", Framework.SCHEDULER, silent)
    with pytest.raises(ValueError, match="`c` names points that its framework does not call: balance"):
        python_plugin("c", Framework.SCHEDULER, silent, points=[Point.SCORE, Point.BALANCE])


def test_another_version_is_another_digest() -> None:
    first, second = (python_plugin("c", Framework.SCHEDULER, Chooser, version=version) for version in ("1", "2"))
    assert first.digest != second.digest
    assert first.digest == python_plugin("c", Framework.SCHEDULER, Chooser).digest


class Installed:
    """A distribution on disk, as pip leaves it."""

    def __init__(self, folder: Path, name: str, module: str, entries: dict[str, str]) -> None:
        (folder / f"{name}.py").write_text(
            "from koordpolicy.plugin import python_plugin\n"
            "from koordpolicy.engine.framework.points import Framework, Point\n"
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
    Installed(
        site, "acme_one", "single = plugin('one')\nPLUGINS = (plugin('two'),)\ndef several(): return [plugin('three')]",
        {"one": "acme_one:single", "two": "acme_one", "three": "acme_one:several"},
    )
    Installed(site, "acme_bad", "number = [5]\nraise_it = 1 / 1\n",
              {"a-missing": "acme_gone:x", "b-number": "acme_bad:number", "c-none": "acme_bad:nothing"})
    problems: list[Problem] = []
    found = discover(problems.append)
    assert [(plugin.name, plugin.origin) for plugin in found.plugins] == [
        ("one", "acme_one 1.2"), ("three", "acme_one 1.2"), ("two", "acme_one 1.2")]
    assert [problem.message for problem in problems] == [
        "the plugin `a-missing` of acme_bad 1.2 cannot be loaded: ModuleNotFoundError: No module named 'acme_gone'",
        "the plugin `b-number` of acme_bad 1.2 cannot be loaded: TypeError: it offers 5, which is not a plugin",
        ("the plugin `c-none` of acme_bad 1.2 cannot be loaded: AttributeError: "
        "module 'acme_bad' has no attribute 'nothing'"),
    ]


def test_a_name_that_two_distributions_offer_is_told_and_nobody_gets_it(site: Path) -> None:
    Installed(site, "acme_one", "x = plugin('same')\ny = plugin('other')", {"x": "acme_one:x", "y": "acme_one:y"})
    Installed(site, "acme_two", "x = plugin('same')", {"x": "acme_two:x"})
    problems: list[Problem] = []
    assert [plugin.name for plugin in discover(problems.append).plugins] == ["other"]
    assert [problem.message for problem in problems] == [
        "the scheduler plugin `same` is offered more than once: acme_one 1.2, acme_two 1.2"]


def test_a_plugin_that_is_called_like_a_built_in_one_is_told_and_left_out(site: Path) -> None:
    Installed(site, "acme_one", "x = plugin('same')\ny = plugin('other')", {"x": "acme_one:x", "y": "acme_one:y"})
    problems: list[Problem] = []
    own = [
        python_plugin("same", Framework.SCHEDULER, Chooser),
        python_plugin("other", Framework.DESCHEDULER, Chooser, points=(Point.BALANCE,)),
    ]
    assert [plugin.name for plugin in discover(problems.append, builtins=own).plugins] == ["other"]
    assert [problem.message for problem in problems] == [
        "the scheduler plugin `same` of acme_one 1.2 has the name of a built-in plugin, which is used"]


def test_entry_points_may_be_given_instead_of_installed() -> None:
    module = ModuleType("given_plugins")
    module.PLUGINS = (python_plugin("given", Framework.SCHEDULER, Chooser),)
    sys.modules["given_plugins"] = module
    try:
        found = discover(pytest.fail, [EntryPoint("given", "given_plugins", "koordpolicy.plugins")])
    finally:
        del sys.modules["given_plugins"]
    assert [(plugin.name, plugin.origin) for plugin in found.plugins] == [("given", "given_plugins")]


def distance(left: str, right: str) -> int:
    if not left:
        raise EvaluationError("no zone")
    return 0 if left == right else 1 if left[:-1] == right[:-1] else 100 // len(right)


FUNCTION = cel_function("acme.distance", distance, ["string", "string"], "int", doc="How far two zones are apart.")


def answer(text: str, *functions: Function, **variables: Any) -> object:
    return agreed(compile_program(text, environment(Slot.FILTER, extensions=functions)), variables)


def test_expressions_call_functions_of_python_plugins() -> None:
    zones = {"zone": "eu-1a"}
    assert answer("acme.distance(nodeInfo.zone, 'eu-1b')", FUNCTION, nodeInfo=zones) == 1
    assert answer("acme.distance('', nodeInfo.zone)", FUNCTION, nodeInfo=zones) == "error: no zone"
    failed = answer("acme.distance('eu-1a', nodeInfo.zone)", FUNCTION, nodeInfo={"zone": ""})
    assert failed == "error: `acme.distance` failed: ZeroDivisionError: integer division or modulo by zero"


@pytest.mark.parametrize(
    ("result", "given", "message"),
    [("int", 1.5, "error: `f` returned float, not int"), ("bool", None, "error: `f` returned NoneType, not bool"),
     ("int", 2**63, "error: integer overflow"),
     ("list(string)", ("a",), "error: `f` returned tuple, not list(string)"), ("map(string, int)", {"a": 1}, {"a": 1})],
)
def test_a_function_that_breaks_its_word_is_an_error_of_the_expression(
    result: str, given: object, message: object,
) -> None:
    broken = cel_function("f", lambda _: given, ["int"], result, doc="Broken.")
    assert answer("f(requests.cpu)", broken, requests={"cpu": 1}) == message


def test_a_function_may_be_a_member_and_read_objects() -> None:
    tenant = cel_function(
        "tenant", lambda pod: pod["metadata"]["labels"]["tenant"], ["kubernetes.Pod"], "string", member=True,
        doc="Whose pod it is.", reads=((("metadata", "labels", "tenant"),),),
    )
    pod = {"metadata": {"labels": {"tenant": "blue"}}}
    assert answer("pod.tenant() == 'blue'", tenant, pod=pod) is True
    checked = compile_program("pod.tenant()", environment(Slot.FILTER, extensions=(tenant,))).checked
    assert checked.reads == {("pod", "metadata", "labels", "tenant")}
    with pytest.raises(PolicyError, match="no function `tenant`"):
        compile_program("pod.tenant()", environment(Slot.FILTER))


def halves(values: Any) -> tuple[Any, Any]:
    return values // 2, values % 2 == 0


def test_by_column_is_asked_for_all_rows_and_by_row_where_it_does_not_vouch() -> None:
    asked: list[int] = []

    def half(value: int) -> int:
        asked.append(value)
        if value % 2:
            raise EvaluationError("odd")
        return value // 2

    function = cel_function("half", half, ["int"], "int", doc="A half.", by_column=halves)
    scope = environment(Slot.FILTER, extensions=(function,))
    rows = [{"allocatable": {"cpu": 2 * number + (number == 7)}} for number in range(100)]
    column = evaluate(compile_program("half(allocatable.cpu)", scope), RowFrame(rows, {}))
    assert column.values[:7].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert {row: error.message for row, error in column.errors.items()} == {7: "odd"}
    assert set(asked) == {15}


def test_a_column_function_that_fails_is_answered_by_row() -> None:
    function = cel_function(
        "half", lambda value: value // 2, ["int"], "int", doc="A half.", by_column=lambda values: 1 / 0,
    )
    scope = environment(Slot.FILTER, extensions=(function,))
    rows = [{"allocatable": {"cpu": number}} for number in range(100)]
    column = evaluate(compile_program("half(allocatable.cpu)", scope), RowFrame(rows, {}))
    assert column.values.tolist() == [number // 2 for number in range(100)]


def test_what_is_not_pure_is_asked_for_every_row() -> None:
    counter = iter(range(1000))
    function = cel_function("next", lambda _: next(counter), ["int"], "int", doc="The next number.", pure=False)
    scope = environment(Slot.FILTER, extensions=(function,))
    column = evaluate(compile_program("next(1)", scope), RowFrame([{} for _ in range(50)], {}))
    assert column.values.tolist() == list(range(50))


@pytest.mark.parametrize(
    ("name", "fault"),
    [("size", "there is a function `size` already"), ("percent", "there is a function `percent` already"),
     ("all", "`all` is a macro of the language"), ("my.filter", "`filter` is a macro of the language"),
     ("if", "`if` is a reserved word"), ("a b", "a name is letters, digits and `_`, and may have a prefix with a dot")],
)
def test_a_function_cannot_have_a_name_that_is_taken(name: str, fault: str) -> None:
    with pytest.raises(ValueError, match=f"^`{name}` cannot be a function: {fault}$"):
        cel_function(name, distance, [], "int", doc="x")


def test_functions_are_found_beside_plugins_and_collisions_are_told(site: Path) -> None:
    make = (
        "from koordpolicy.plugin import cel_function\n"
        "from koordpolicy.engine.cel.check.environment import Function\n"
    )
    Installed(
        site, "acme_one",
        f"{make}f = cel_function('acme.one', lambda: 1, [], 'int', doc='One.')\nFUNCTIONS = [f]\n"
        "PLUGINS = [plugin('p')]",
        {"all": "acme_one"},
    )
    Installed(
        site, "acme_two",
        f"{make}same = cel_function('same', lambda: 1, [], 'int', doc='One.')\ntaken = Function('size', ())",
        {"a": "acme_two:same", "b": "acme_two:same", "c": "acme_two:taken"},
    )
    problems: list[Problem] = []
    found = discover(problems.append)
    assert ([each.name for each in found.plugins], [each.name for each in found.functions]) == (["p"], ["acme.one"])
    assert [problem.message for problem in problems] == [
        "the function `same` is offered more than once: acme_two 1.2, acme_two 1.2",
        "the function `size` of acme_two 1.2 cannot be offered: there is a function `size` already",
    ]


def test_documents_are_compiled_with_the_functions_of_plugins() -> None:
    text = (
        "apiVersion: policy.koordinator.sh/v1alpha2\nkind: SchedulerPlugin\nmetadata: {name: near}\n"
        "spec: {filter: [{name: near, expression: \"acme.distance(nodeInfo.zone, 'eu-1b') < 2\"}]}"
    )
    documents = load([Source("near.yaml", text)])
    assert [plugin.name for plugin in compile_documents(documents, extensions=(FUNCTION,))] == ["near"]
    with pytest.raises(PolicyError, match="no variable `acme`"):
        compile_documents(documents)


class Ends(BaseException):
    """Derives from no `Exception`."""


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), Ends("over"), RecursionError("deep"), MemoryError()],
)
def test_a_function_that_raises_what_ends_programs_is_an_error_of_the_expression(error: BaseException) -> None:
    def fail(_: object) -> int:
        raise error

    broken = cel_function("f", fail, ["int"], "int", doc="Broken.")
    failed = f"error: `f` failed: {type(error).__name__}: {error}".removesuffix(": ")
    assert answer("f(requests.cpu)", broken, requests={"cpu": 1}) == failed
    columns = cel_function("f", fail, ["int"], "int", doc="Broken.", by_column=fail).overloads[0].by_column
    assert columns is not None
    with pytest.raises((RuntimeError, MemoryError), match=f"{error}$"):  # RecursionError is a RuntimeError
        columns(1)


@pytest.mark.parametrize("statement", [
    "raise SystemExit(3)", "raise KeyboardInterrupt", "import sys; sys.exit('gone')", "exit(1)",
    "class Ends(BaseException): pass\nraise Ends('over')", "raise RecursionError", "raise MemoryError",
])
def test_a_module_that_ends_programs_when_it_is_loaded_is_reported_and_left_out(site: Path, statement: str) -> None:
    Installed(site, "acme_ends", statement, {"ends": "acme_ends"})
    Installed(site, "acme_lives", "PLUGINS = [plugin('lives')]", {"lives": "acme_lives"})
    problems: list[Problem] = []
    found = discover(problems.append)
    assert [each.name for each in found.plugins if each.name == "lives"] == ["lives"]
    assert [each.message.split(":")[0] for each in problems] == ["the plugin `ends` of acme_ends 1.2 cannot be loaded"]


def test_an_interrupt_by_a_person_is_no_failure_of_a_plugin() -> None:
    def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)
        time.sleep(0)

    for raising, blamed in ((interrupted, False), (_raise_interrupt, True)):
        try:
            raising()
        except KeyboardInterrupt as error:
            try:
                must_be_survived(error)
                survived = True
            except KeyboardInterrupt:
                survived = False
            assert survived is blamed


def _raise_interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("arguments", "fault"), [
    ({"cost": 1}, "`cost` of the function `f` must be a `Cost` of non-negative integers, not 1"),
    ({"cost": Cost(base=-1)}, "`cost` of the function `f` must be"),
    ({"cost": Cost(base=1.5)}, "`cost` of the function `f` must be"),
    ({"cost": Cost(per_size=((0, -1.0),))}, "`cost` of the function `f` must be"),
    ({"cost": Cost(per_size=(1,))}, "`cost` of the function `f` must be"),
    ({"cost": Cost(per_size=((0, float("nan")),))}, "`cost` of the function `f` must be"),
    ({"cost": Cost(per_size=((1, 0.1),))}, "`f` has no argument 1, on whose size its `cost` depends"),
    ({"evaluate": 7}, "`evaluate` of the function `f` must be a function, not 7"),
    ({"evaluate": None}, "`evaluate` of the function `f` must be"),
    ({"parameters": "int"}, "`parameters` of the function `f` must be a sequence of types as strings, not 'int'"),
    ({"parameters": [int]}, "`parameters` of the function `f` must be"),
    ({"parameters": 3}, "`parameters` of the function `f` must be"),
    ({"result": int}, "`result` of the function `f` must be a type as a string, not <class 'int'>"),
    ({"result": None}, "`result` of"),
    ({"parameters": ["in t"]}, "is not a type"), ({"result": "list("}, "is not a type"),
    ({"doc": None}, "`doc` of the function `f` must be a string, not None"),
    ({"example": 1}, "`example` of the function `f` must be a string, not 1"),
    ({"member": "yes"}, "`member` of the function `f` must be a bool, not 'yes'"),
    ({"member": True, "parameters": []}, "without a receiver"),
    ({"pure": 0}, "`pure` of the function `f` must be a bool, not 0"),
    ({"by_column": 1}, "`by_column` of the function `f` must be a function"),
    ({"reads": "a"}, "`reads` of the function `f` must be"),
    ({"reads": (("a",),)}, "`reads` of the function `f` must be"),
    ({"reads": (None, None)}, "`reads` of `f` lists 2 arguments, but the function has 1"),
    ({"name": 5}, "the name of a function is a string, not 5"),
    ({"name": None}, "the name of a function is a string, not None"),
])
def test_every_argument_of_a_function_is_looked_at_when_it_is_declared(arguments: dict[str, Any], fault: str) -> None:
    sound: dict[str, Any] = {"name": "f", "evaluate": abs, "parameters": ["int"], "result": "int", "doc": "Any."}
    assert cel_function(**sound).name == "f"
    with pytest.raises(ValueError, match=re.escape(fault)):
        cel_function(**{**sound, **arguments})
