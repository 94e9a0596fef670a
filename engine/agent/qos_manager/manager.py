"""The QoS manager's active strategies: feature gates, activation and recovery, one round, the writer of each file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.compile import CompiledQoS
from koordpolicy.engine.framework.border import describe, must_be_survived, text_of
from koordpolicy.engine.framework.handle import Handle
from koordpolicy.engine.framework.points import Enforcement, Framework, Point
from koordpolicy.engine.framework.qos import Adjustment, LivingStrategy, Strategy
from koordpolicy.engine.framework.registry import Plugin, Registry
from koordpolicy.engine.source import PolicyError, Problem, did_you_mean

from ..readings import NodeReadings
from .conflicts import conflicts, problem_of, writers_of
from .documents import (
    DocumentStrategy,
    RoundError,
    RoundReport,
    recover_applied,
)
from .gates import GATES, GATES_WITHOUT_EFFECT
from .strategy_state import StrategyState
from .written_files import written_part

if TYPE_CHECKING:
    from koordpolicy.engine.cluster.snapshot import Snapshot

    from .configuration import StrategyArgs

_TASKS: Final = "/tasks"
"""The files of tasks, which two strategies can move without harm to each other."""
UNKNOWN_GATE: Final = "unknown-gate"
"""The code of a problem with a feature gate that there is not."""


@dataclass(frozen=True, slots=True)
class RunningStrategy:
    """An active strategy; `gates` are the feature gates of which one must be on."""

    name: str
    strategy: Any
    enforcement: Enforcement
    digest: str
    gates: tuple[str, ...]
    lives: bool = False
    """True if it has a life of its own (`LivingStrategy`), and so no rounds."""

    @property
    def compiled(self) -> CompiledQoS | None:
        """The compiled document; None for a strategy in Python."""
        return self.strategy.compiled if isinstance(self.strategy, DocumentStrategy) else None


def _empty() -> Snapshot:
    from koordpolicy.engine.cluster.cluster import Cluster  # noqa: PLC0415 - numpy, which no strategy on a node needs

    return Cluster().snapshot()


@dataclass(slots=True)
class Manager:
    """The active strategies, and the state that survives a change of the registry."""

    gates: Mapping[str, bool] = field(default_factory=dict)
    """Feature gates that differ from their defaults."""
    enable: frozenset[str] = frozenset()
    """Plugins that run although they are not active by default."""
    args: Mapping[str, StrategyArgs] = field(default_factory=dict)
    """The arguments of plugins in Python, by name."""
    memory: StrategyState = field(default_factory=StrategyState)
    snapshot: Callable[[], Snapshot] = _empty
    """Returns the current nodes and pods, for the plugins' handle."""
    now: int = 0
    """The time of the latest round, in nanoseconds since the epoch."""
    only: frozenset[str] | None = None
    """The plugins that may run, as koordlet runs the others; None for all."""
    on_node: bool = False
    """True on a node, where strategies with a life of their own run; nothing else can run them."""
    idle: Mapping[str, str] = field(default_factory=dict)
    """Plugins that do not run, with the reason."""
    without_effect: Mapping[str, str] = field(default_factory=dict)
    """Gates of koordlet among `gates` that switch nothing here and that no document names, with the reason."""
    _running: dict[str, RunningStrategy] = field(default_factory=dict)
    _leaving: list[RunningStrategy] = field(default_factory=list)
    _intervals: Mapping[str, int] = field(default_factory=dict)

    def use(self, registry: Registry) -> None:
        """Activate the plugins of a registry.

        Changes by a plugin that was removed, or set to Warn or Audit, are recovered in the next round. Timers and
        effects of items with the same text are retained.

        Raises:
            PolicyError: an unknown gate or plugin, invalid arguments, an action that is not available yet, two
                enforcing plugins that may write one file; then the previous plugins stay active.
        """
        plugins = [each for each in registry.of_framework(Framework.QOS) if Point.STRATEGY in each.points]
        problems = list(self._unknown(plugins))
        running: dict[str, RunningStrategy] = {}
        gates = {*GATES, *(plugin.name for plugin in plugins)}
        idle: dict[str, str] = {}
        for plugin in plugins:
            if not plugin.enabled and plugin.name not in self.enable:
                idle[plugin.name] = "it is not active by itself, and not enabled by name"
                continue
            if self.only is not None and plugin.name not in self.only:
                idle[plugin.name] = "it is not named by `--own-strategies`"
                continue
            old = self._running.get(plugin.name)
            try:
                if old is not None and old.digest == plugin.digest and old.enforcement is plugin.enforcement:
                    made = old
                else:
                    made = self._make(plugin)
                gates.update(made.gates)
                if made.lives and not self.on_node:
                    idle[plugin.name] = "it has a life of its own, and runs only on a node"
                elif any(map(self._is_on, made.gates)):
                    running[plugin.name] = made
                elif len(made.gates) == 1:
                    idle[plugin.name] = f"its feature gate {made.gates[0]} is off"
                else:
                    idle[plugin.name] = f"its feature gates {', '.join(made.gates)} are off"
            except PolicyError as error:
                problems += error.problems
            except BaseException as error:
                must_be_survived(error)
                problems.append(
                    Problem(f"plugin `{plugin.name}`: {text_of(error)}", plugin.span, code="invalid-plugin"))
        problems += (
            Problem(f"there is no feature gate `{gate}`, and no document names it",
                    help=did_you_mean(gate, gates | GATES_WITHOUT_EFFECT.keys()), code=UNKNOWN_GATE)
            for gate in sorted(self.gates.keys() - gates - GATES_WITHOUT_EFFECT.keys())
        )
        writers = [
            writer for plugin in plugins
            if plugin.name in running and plugin.enforcement is Enforcement.ENFORCE
            for writer in writers_of(plugin, running[plugin.name].compiled)
        ]
        problems += (problem_of(*found) for found in conflicts(writers))
        if problems:
            raise PolicyError(problems)
        self._leaving += [old for name, old in self._running.items() if running.get(name) is not old]
        self._running, self.idle = running, idle
        self.without_effect = {
            gate: why for gate, why in GATES_WITHOUT_EFFECT.items() if gate in self.gates and gate not in gates}
        self._intervals = {name: each.strategy.interval for name, each in running.items() if not each.lives}

    def _make(self, plugin: Plugin) -> RunningStrategy:
        configured = self.args.get(plugin.name)
        given: dict[str, Any] = {} if configured is None else dict(configured.values)
        if plugin.gates:
            given["features"] = list(filter(self._is_on, plugin.gates))
        try:
            args: Mapping[str, Any] = plugin.check_args(given) if plugin.check_args is not None else given
        except ValueError as error:
            if configured is None:
                raise
            problem = Problem(f"strategy `{plugin.name}`: {text_of(error)}", configured.place, code="invalid-args")
            raise PolicyError([problem]) from None
        # koordlet has no profiles.
        log = logging.getLogger(f"koordpolicy.qos.{plugin.name}")
        on = frozenset(filter(self._is_on, (*GATES, *self.gates)))
        made = plugin.make(args, Handle("", self.snapshot, lambda: self.now, log, feature_gates=on))
        own = made.spec.feature_gate if isinstance(made, CompiledQoS) else ""
        gates = (own or plugin.name,) if isinstance(made, CompiledQoS) else plugin.gates or (plugin.name,)
        # A plugin that is not enforced has no effects, so none must be recorded.
        memory = self.memory if plugin.enforcement is Enforcement.ENFORCE else StrategyState()
        strategy: Any = DocumentStrategy(made, memory) if isinstance(made, CompiledQoS) else made
        if not isinstance(strategy, Strategy) and isinstance(strategy, LivingStrategy):
            return RunningStrategy(plugin.name, strategy, plugin.enforcement, plugin.digest, gates, lives=True)
        interval = strategy.interval
        if type(interval) is not int or interval <= 0:
            raise ValueError(f"its interval must be a whole number of nanoseconds above 0, not {interval!r}")
        return RunningStrategy(plugin.name, strategy, plugin.enforcement, plugin.digest, gates)

    def _is_on(self, gate: str) -> bool:
        return self.gates.get(gate, GATES.get(gate, True))

    def _unknown(self, plugins: Iterable[Plugin]) -> Iterator[Problem]:
        names = [plugin.name for plugin in plugins]
        for name in sorted(self.enable - set(names)):
            yield Problem(f"there is no QoS plugin `{name}`", help=did_you_mean(name, names), code="unknown-plugin")

    @property
    def running(self) -> Mapping[str, RunningStrategy]:
        """The active strategies, by name."""
        return self._running

    @property
    def intervals(self) -> Mapping[str, int]:
        """The active strategies that have rounds, with their intervals in nanoseconds."""
        return self._intervals

    def run(self, name: str, readings: NodeReadings) -> tuple[RoundReport, bool]:
        """Run one round of a strategy; return its report and whether it is enforced."""
        running, self.now = self._running[name], readings.now
        return _ask(running, readings), running.enforcement is Enforcement.ENFORCE

    def forget(self) -> None:
        """Forget what earlier rounds of documents have left behind: the next rounds are those of another node."""
        for running in self._running.values():
            if isinstance(running.strategy, DocumentStrategy):
                running.strategy.memory.clear()

    def recover_leaving(self, readings: NodeReadings) -> Iterator[tuple[str, RoundReport]]:
        """Recover, on one node, the changes of strategies that are no longer active; yield name and report of each."""
        self.now = readings.now
        active_keys = {
            key for running in self._running.values() if running.enforcement is Enforcement.ENFORCE
            and isinstance(running.strategy, DocumentStrategy) for key in running.strategy.action_keys
        }
        for old in self._leaving:
            if old.lives and not hasattr(old.strategy, "recover"):
                continue
            if isinstance(old.strategy, DocumentStrategy):
                keys = old.strategy.action_keys - active_keys
                found = RoundReport(recover_applied(self.memory, keys, readings, "its document went away or changed"))
            else:
                found = _recover(old, readings)
            if found.adjustments or found.errors:
                yield old.name, found

    def drop_leaving(self) -> None:
        """Drop strategies that are no longer active, after they were recovered on every node."""
        self._leaving.clear()


@dataclass(slots=True)
class Writers:
    """The strategy that wrote each file of each node, or a part of it, and has not recovered it."""

    _owners: dict[tuple[str, str, str], str] = field(default_factory=dict)
    _reported: set[tuple[str, frozenset[str]]] = field(default_factory=set)

    def forget_others(self, node: str, exists: Callable[[str], bool]) -> None:
        """Forget files of a node that do not exist any more, as those of pods that ended."""
        deleted_files = {file for of, file, _ in self._owners if of == node and not exists(file)}
        self._owners = {
            key: owner for key, owner in self._owners.items() if key[0] != node or key[1] not in deleted_files
        }

    def note(
        self, node: str, plugin: str, adjustments: Iterable[Adjustment], active: Collection[str],
    ) -> tuple[RoundError, ...]:
        """Record the writes of a strategy; return conflicts with other active strategies, once for each node.

        Both continue to write the same files; the error asks users to disable one of them.
        """
        found: list[RoundError] = []
        for adjustment in adjustments:
            parts = dict.fromkeys((file, written_part(file, text)) for file, text in adjustment.writes
                                  if not file.endswith(_TASKS))
            for file, part in parts:
                owner = self._owners.get((node, file, part), plugin)
                pair = node, frozenset((owner, plugin))
                if owner != plugin and owner in active and pair not in self._reported:
                    self._reported.add(pair)
                    found.append(RoundError(
                        adjustment.item, adjustment.subject,
                        f"`{owner}` writes `{file}` too, and each undoes what the other does: turn one of them off",
                        "Conflict",
                    ))
            for file, part in parts:
                if adjustment.recovers:
                    self._owners.pop((node, file, part), None)
                else:
                    self._owners[node, file, part] = plugin
        return tuple(found)


def _ask(running: RunningStrategy, readings: NodeReadings) -> RoundReport:
    try:
        if isinstance(running.strategy, DocumentStrategy):
            return running.strategy.run(readings)
        return RoundReport(tuple(running.strategy.adjust(readings)))
    except EvaluationError as error:
        return RoundReport(errors=(RoundError("", _name(readings), error.message, error.reason),))
    except BaseException as error:  # one strategy's fault must not stop the others; nothing is done
        must_be_survived(error)
        return RoundReport(errors=(RoundError("", _name(readings), describe(error)),))


def _recover(running: RunningStrategy, readings: NodeReadings) -> RoundReport:
    try:
        return RoundReport(tuple(running.strategy.recover(readings)))
    except BaseException as error:  # one strategy's fault must not stop the others
        must_be_survived(error)
        return RoundReport(errors=(RoundError("", _name(readings), f"recovering failed: {describe(error)}"),))


def _name(readings: NodeReadings) -> str:
    return str(readings.node["metadata"]["name"])
