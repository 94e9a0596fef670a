"""QoS plugins with a life of their own: threads of living strategies, extensions and grey control on a node.

koordlet sets up disabled strategies and all extensions, in no defined order, and asks grey control plugins in no
defined order. Here only those that run are set up, by order and then by name, and the first policy that is injected
decides. A plugin that raises is logged, and stops no other one.
"""

from __future__ import annotations

import copy
import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.border import describe, must_be_survived
from koordpolicy.engine.framework.points import Enforcement, Framework, Point
from koordpolicy.engine.framework.qos import PodPolicy, StrategyContext
from koordpolicy.engine.framework.registry import Plugin, Registry
from koordpolicy.engine.source import PolicyError, Problem, did_you_mean

from .manager import RunningStrategy
from .plugin_states import PluginStates

_LOG: Final = logging.getLogger(__name__)

ANNOTATIONS: Final[Mapping[PodPolicy, str]] = MappingProxyType({
    PodPolicy.CPU_BURST: "koordinator.sh/cpuBurst", PodPolicy.MEMORY_QOS: "koordinator.sh/memoryQOS",
})
"""The annotation by which a pod declares a policy itself."""
STOP_SECONDS: Final = 2.0
"""The time in which all stopped threads together have to end."""


@dataclass(slots=True)
class _Life:
    plugin: Any
    states: object = None
    """Those of its context, with its callbacks."""
    stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None


class PluginThreads:
    """The threads of plugins with `setup(context)` and `run(stop)`, by name.

    All methods belong to one thread.
    """

    def __init__(self) -> None:
        self._lives: dict[str, _Life] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the plugins that run."""
        return tuple(self._lives)

    def start(self, name: str, plugin: Any, context: StrategyContext) -> bool:
        """Set a plugin up and run it in a thread; return False if it does not run, which is logged."""
        try:
            enabled = getattr(plugin, "enabled", None)
            if enabled is not None and not enabled():
                _LOG.info("`%s` says that it is not enabled: it does not run", name)
                return False
            plugin.setup(context)
        except BaseException as error:  # foreign code: its failure must not stop the others
            must_be_survived(error)
            _withdraw(context.states)
            _LOG.error("`%s` does not run, as its set-up failed: %s", name, describe(error))
            return False
        life = _Life(plugin, context.states)
        life.thread = threading.Thread(target=_run, args=(name, life), name=f"qos-{name}", daemon=True)
        self._lives[name] = life
        life.thread.start()
        return True

    def runs(self, name: str, plugin: Any) -> bool:
        """Return whether this plugin runs under this name."""
        return name in self._lives and self._lives[name].plugin is plugin

    def stop(self, names: Iterable[str], seconds: float = STOP_SECONDS) -> tuple[str, ...]:
        """Stop plugins and wait for their threads; return the names of those that did not end, which is logged."""
        lives = {name: self._lives.pop(name) for name in tuple(names) if name in self._lives}
        for life in lives.values():
            _withdraw(life.states)
            life.stop.set()
        ends = threading.Event()
        timer = threading.Timer(seconds, ends.set)
        timer.daemon = True
        timer.start()
        late = []
        for name, life in lives.items():
            assert life.thread is not None
            while life.thread.is_alive() and not ends.is_set():
                life.thread.join(0.01)
            if life.thread.is_alive():
                late.append(name)
                _LOG.error("`%s` did not stop within %g s; its thread is left alone", name, seconds)
        timer.cancel()
        return tuple(late)


def _withdraw(states: object) -> None:
    if isinstance(states, PluginStates):
        states.withdraw()


def _run(name: str, life: _Life) -> None:
    try:
        life.plugin.run(life.stop)
    except BaseException as error:  # as above
        must_be_survived(error)
        _LOG.error("`%s` has ended, as it failed: %s", name, describe(error))


def follow_strategies(
    threads: PluginThreads, running: Mapping[str, RunningStrategy],
    context: Callable[[RunningStrategy], StrategyContext],
) -> None:
    """Start the living strategies that do not run yet, and stop those that are no longer active.

    Call it when the active set changes: a strategy that did not start is tried again.
    """
    living = {name: each for name, each in running.items() if each.lives}
    stopped = [name for name in threads.names if name not in living or not threads.runs(name, living[name].strategy)]
    threads.stop(stopped)
    for name, each in sorted(living.items()):
        if not threads.runs(name, each.strategy):
            if each.enforcement is not Enforcement.ENFORCE:
                _LOG.info("`%s` is not enforced: it runs, and neither writes nor evicts", name)
            threads.start(name, each.strategy, context(each))


def plugins_at(registry: Registry, point: Point) -> tuple[Plugin, ...]:
    """Return the QoS plugins at a point, by order and then by name."""
    return tuple(each for each in registry.of_framework(Framework.QOS) if point in each.points)


def check_extension_gates(gates: Mapping[str, bool], extensions: Sequence[str]) -> None:
    """Raise `PolicyError` for a gate of no extension."""
    problems = [
        Problem(f"there is no extension `{name}` of the QoS manager", code="unknown-extension",
                help=did_you_mean(name, extensions) or f"installed are: {', '.join(sorted(extensions)) or 'none'}")
        for name in gates if name not in extensions
    ]
    if problems:
        raise PolicyError(problems)


class InjectedPolicies:
    """The pods of a node with the policies that grey control plugins give to those that declare none.

    A policy is put in as the annotation that the pod could have, so that every strategy reads it as such.
    """

    def __init__(self, plugins: Sequence[tuple[str, Any]]) -> None:
        """`plugins` are called in this order."""
        self._plugins = tuple(plugins)
        self._made: dict[str, tuple[PodInfo, tuple[tuple[str, str], ...], PodInfo]] = {}
        self._failed: set[tuple[str, str]] = set()

    def pods(self, pods: tuple[PodInfo, ...]) -> tuple[PodInfo, ...]:
        """Return the pods with the injected policies."""
        if not self._plugins:
            return pods
        self._made = {pod.key: self._made[pod.key] for pod in pods if pod.key in self._made}
        return tuple(self._of(pod) for pod in pods)

    def _of(self, pod: PodInfo) -> PodInfo:
        own = (pod.object.get("metadata") or {}).get("annotations") or {}
        added = tuple((key, text) for policy, key in ANNOTATIONS.items()
                      if key not in own and (text := self._ask(pod, policy)))
        if not added:
            return pod
        known = self._made.get(pod.key)
        if known is not None and known[0] is pod and known[1] == added:
            return known[2]
        changed = copy.copy(dict(pod.object))
        changed["metadata"] = {**changed["metadata"], "annotations": {**own, **dict(added)}}
        found = PodInfo.of(changed)
        self._made[pod.key] = pod, added, found
        return found

    def _ask(self, pod: PodInfo, policy: PodPolicy) -> str:
        for name, plugin in self._plugins:
            try:
                given = plugin.inject_pod_policy(pod, policy)
                text = "" if given is None else json.dumps(dict(given), sort_keys=True)
            except BaseException as error:  # foreign code: the next one is called
                must_be_survived(error)
                if (name, describe(error)) not in self._failed:
                    self._failed.add((name, describe(error)))
                    _LOG.warning("`%s` failed and is skipped, for the policy %s of `%s`: %s", name, policy, pod.key,
                                 describe(error))
                continue
            if text:
                return text
        return ""
