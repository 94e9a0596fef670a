"""Plugins in Python that misbehave at any point cost themselves, are named, and end neither the command nor others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine import cli
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.framework.registry import Plugin
from koordpolicy.plugin import python_plugin

ROOT: Final = Path(__file__).parents[1]
OBJECTS: Final = [
    *({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {
        "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}, "capacity": {"cpu": "4", "memory": "8Gi"}}}
      for name in ("n0", "n1")),
    *({"apiVersion": "v1", "kind": "Pod", "metadata": {
        "name": name, "namespace": "shop", "uid": name, "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}]},
       "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}], **spec}}
      for name, spec in (("waits", {}), ("runs", {"nodeName": "n0"}))),
]
RECORDING: Final = str(ROOT / "examples/09-qos-replay/metrics.yaml")


class Ends(BaseException):
    """An error that ends programs, under another name."""


class Unspeakable(Exception):
    """An error that cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Ending(Exception):
    """An error that ends the process when it is printed."""

    def __str__(self) -> str:
        raise SystemExit(7)

    __repr__ = __str__


class Evil:
    """A value that fails in whatever is done with it."""

    def _fail(self, *_: object) -> Any:
        raise RuntimeError("evil")

    __repr__ = __str__ = __eq__ = __hash__ = __bool__ = __len__ = __iter__ = __int__ = __float__ = _fail
    __getattr__ = __lt__ = __add__ = __radd__ = __array__ = __getitem__ = __contains__ = _fail


def _raise(error: BaseException) -> Callable[..., object]:
    def misbehave(*_: object, **__: object) -> object:
        raise error

    return misbehave


def _recurse(*_: object, **__: object) -> object:
    return _recurse()


RAISING: Final[dict[str, Callable[..., object]]] = {
    "exit": _raise(SystemExit(7)), "interrupt of its own": _raise(Ends("no")),
    "generator exit": _raise(GeneratorExit()), "unspeakable error": _raise(Unspeakable()),
    "ending error": _raise(Ending()), "recursion": _recurse,
}
MISBEHAVIOURS: Final[dict[str, Callable[..., object]]] = {
    **RAISING, "evil value": lambda *_, **__: Evil(), "text": lambda *_, **__: "x" * 10**6,
    "number": lambda *_, **__: 10**400, "generator": lambda *_, **__: (each for each in [Evil()]),
}


SOUND: Final[dict[Framework, dict[str, Callable[..., object]]]] = {
    Framework.SCHEDULER: {"filter_node": lambda self, state, pod, snapshot, row: None,
                          "unreserve": lambda self, state, pod, snapshot, row: None},
    Framework.DESCHEDULER: {"eviction_filter": lambda self, pod, snapshot: None, "evict": lambda self, pod, why: True},
    Framework.QOS: {"interval": lambda self: 10**9, "adjust": lambda self, readings: (),
                    "recover": lambda self, readings: ()},
}
"""The methods of a plugin at its other points."""


def _plugin(framework: Framework, method: str, misbehave: Callable[..., object]) -> Plugin:
    made: Any = type("Hostile", (), {
        "__init__": lambda self, args, handle: None, **SOUND[framework],
        method: lambda self, *given, **named: misbehave(),
    })
    return python_plugin("Hostile", framework, made)


def _run(words: str, plugin: Plugin) -> int:
    try:
        return cli.main(words.split(), lambda: (*builtins(), plugin))
    except SystemExit as ended:
        raise AssertionError(f"ended by {ended.code}") from ended


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small dump of a cluster."""
    path = tmp_path_factory.mktemp("cluster") / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": OBJECTS}))
    return path


SCHEDULING: Final = (
    "__init__", "pre_enqueue", "before_pre_filter", "pre_filter", "find_one_node", "prefer_nodes", "filter",
    "filter_node", "after_filter", "post_filter", "pre_score", "score", "score_node", "resize_pod", "reserve", "permit",
    "cache_key",
)
CALLED: Final = frozenset((
    "__init__", "pre_enqueue", "pre_filter", "filter_node", "score_node", "reserve", "permit", "deschedule", "balance",
    "adjust",
))
"""The methods that are called in these runs, so that what they raise is reported with the name of the plugin."""


def _blamed(method: str, misbehaviour: str, told: str) -> bool:
    return "Hostile" in told or method not in CALLED or misbehaviour not in RAISING


@pytest.mark.parametrize("misbehaviour", MISBEHAVIOURS)
@pytest.mark.parametrize("method", SCHEDULING)
def test_a_scheduling_plugin_that_misbehaves_ends_no_command(
    method: str, misbehaviour: str, dump: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    plugin = _plugin(Framework.SCHEDULER, method, MISBEHAVIOURS[misbehaviour])
    code = _run(f"scheduler --dry-run --cluster {dump} --enable Hostile -o json", plugin)
    out, err = capsys.readouterr()
    assert code in (0, 3)
    assert "Traceback" not in err
    assert _blamed(method, misbehaviour, out + err)
    assert json.loads(out).keys() >= ({"errors"} if code else {"decisions"})


DESCHEDULING: Final[dict[str, str]] = {
    "__init__": "deschedule", "deschedule": "deschedule", "balance": "balance", "eviction_filter": "filter",
    "pre_eviction_filter": "preEvictionFilter", "passes_template": "filter", "refuses_template": "filter",
    "evict": "evict", "plan_eviction": "evict",
}
"""The methods of a descheduler plugin, with the key of the configuration that enables it."""


@pytest.mark.parametrize("misbehaviour", MISBEHAVIOURS)
@pytest.mark.parametrize("method", DESCHEDULING)
def test_a_descheduler_plugin_that_misbehaves_ends_no_command(
    method: str, misbehaviour: str, dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({
        "apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration", "profiles": [{
            "name": "p", "plugins": {DESCHEDULING[method]: {"enabled": [{"name": "Hostile"}]}},
        }],
    }))
    plugin = _plugin(Framework.DESCHEDULER, method, MISBEHAVIOURS[misbehaviour])
    code = _run(f"descheduler --once --dry-run --cluster {dump} --config {config} -o json", plugin)
    out, err = capsys.readouterr()
    assert code in (0, 3, 5)
    assert "Traceback" not in err
    assert _blamed(method, misbehaviour, out + err)
    assert json.loads(out)


@pytest.mark.parametrize("misbehaviour", MISBEHAVIOURS)
@pytest.mark.parametrize("method", ["__init__", "interval", "adjust", "recover"])
def test_a_qos_plugin_that_misbehaves_ends_no_command(
    method: str, misbehaviour: str, capsys: pytest.CaptureFixture[str],
) -> None:
    plugin = _plugin(Framework.QOS, method, MISBEHAVIOURS[misbehaviour])
    code = _run(f"qos --replay {RECORDING} --enable Hostile -o json", plugin)
    out, err = capsys.readouterr()
    assert code in (0, 3)
    assert "Traceback" not in err
    assert _blamed(method, misbehaviour, out + err)
    assert json.loads(out)
