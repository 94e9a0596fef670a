"""Replay recorded metrics through the QoS plugins, and print the actions of each, round by round, with reasons.

The recording holds nodes, pods and their measurements over time (see examples/09-qos-replay). Writes of an action are
in the control group files of the next round; the recorded usage does not react to them. No machine is changed.
"""

from __future__ import annotations

import argparse
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from koordpolicy.engine.agent.qos_manager.gates import GATES_WITHOUT_EFFECT
from koordpolicy.engine.agent.qos_manager.manager import UNKNOWN_GATE, Manager
from koordpolicy.engine.agent.recording import load
from koordpolicy.engine.agent.replay import ReplayedRound, replay
from koordpolicy.engine.cluster.kinds import lacking
from koordpolicy.engine.documents import format_duration
from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.source import PolicyError

from .cluster_loading import warn_of_lacks, warn_of_settings
from .composition import access_of, add_policies, check_enabled, need_file, registry_of
from .exits import Exit, Stop
from .terminal import add_output, table, warn, write, write_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from koordpolicy.engine.agent.qos_manager.configuration import StrategyArgs
    from koordpolicy.engine.framework.qos import Adjustment
    from koordpolicy.engine.framework.registry import Plugin, Registry

    from . import Builtins

ALL = "*"
"""The name of `--enable` that is all strategies."""
EXAMPLES = """\
examples:
  koord-policy qos --replay examples/09-qos-replay/metrics.yaml --policies policies/qos
  koord-policy qos --replay recording.jsonl --policies policies/qos --all --output json
  koord-policy qos --replay metrics.jsonl --enable '*' --feature-gates BEMemoryEvict=true   # as the agent that made it

exit codes: 0 the replay completed (errors of expressions are in its output), 2 usage, 3 policies or recording are
invalid
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--replay", metavar="FILE", type=Path, required=True, help="a recording (YAML, or JSON lines)")
    add_policies(parser)
    parser.add_argument("--enable", metavar="PLUGIN", action="append", default=[],
                        help="enable a built-in plugin that is not active by default; may be repeated; `*` for all, so "
                             "that their gates decide, as of the agent")
    parser.add_argument("--feature-gates", metavar="NAME=true|false,...", default="",
                        help="gates that differ from koordlet's defaults; a gate that is set to true also enables the "
                             "built-in strategy that it is of")
    parser.add_argument("--config", metavar="FILE", type=Path,
                        help="a QoSManagerConfiguration: the arguments of strategies in Python")
    parser.add_argument("--all", action="store_true", help="show also the rounds without actions and errors")
    add_output(parser)


def run(options: argparse.Namespace, builtins: Builtins) -> int:
    """Run the command; see the module."""
    need_file(options.replay, "`--replay` takes a recording")
    gates = dict(read_gates(options.feature_gates))
    registry = registry_of(options.policies, builtins, access=access_of(options))
    enable = enabled_strategies(options.enable, gates, registry.plugins.values())
    args = strategy_args(options.config, registry.plugins.values())
    recording = load(options.replay)
    documents = {plugin.name: plugin.reads for plugin in registry.of_framework(Framework.QOS) if plugin.enabled}
    lacks = warn_of_lacks(lacking(documents, recording.snapshot.cluster))
    with gates_from_option():
        warn_of_gates(gates, registry)
        warn_of_settings(recording.settings, (registry,), gates, enable)
        rounds = list(replay(recording, registry, gates=gates, enable=enable, args=args))
    if not rounds:
        warn("no plugin ran: name documents with `--policies`, or a built-in plugin with `--enable`")
    shown = rounds if options.all else [each for each in rounds if each.eventful]
    actions = sum(len(each.adjustments) for each in rounds)
    errors = sum(len(each.errors) for each in rounds)
    if options.output == "json":
        write_json({
            "rounds": len(rounds), "actions": actions, "errors": errors,
            "log": [each.to_json() for each in shown],
            **({"logLeftOut": len(rounds) - len(shown)} if len(shown) < len(rounds) else {}), **lacks,
        })
        return Exit.OK
    rows = _merged(row for each in shown for row in _rows(each))
    if rows:
        table(["time", "node", "plugin", "subject", "action", "reason", "writes"], rows)
        write()
    write(f"{actions} actions and {errors} errors in {len(rounds)} rounds")
    return Exit.OK


def strategy_args(path: Path | None, plugins: Iterable[Plugin]) -> Mapping[str, StrategyArgs]:
    """Return the arguments in the file of `--config`, if there is one.

    Raises:
        PolicyError: the file is not valid, or names no QoS strategy in Python.
        Stop: there is no such file.
    """
    if path is None:
        return {}
    from koordpolicy.engine.agent.qos_manager.configuration import load as load_configuration

    need_file(path, "`--config` takes a QoSManagerConfiguration")
    return load_configuration(path, [each.name for each in plugins if each.framework is Framework.QOS
                                     and Point.STRATEGY in each.points and not each.enabled])


def enabled_strategies(names: Iterable[str], gates: Mapping[str, bool], plugins: Iterable[Plugin]) -> frozenset[str]:
    """Return the strategies that the names of `--enable` and gates that are set to true enable; `*` is all.

    Raises:
        Stop: there is no QoS plugin of a name.
    """
    found = [each for each in plugins if each.framework is Framework.QOS]
    chosen = set(names)
    check_enabled(chosen - {ALL}, found, Framework.QOS)
    strategies = [each for each in found if Point.STRATEGY in each.points]
    return frozenset(chosen - {ALL} | {
        each.name for each in strategies
        if ALL in chosen or any(gates.get(gate) for gate in each.gates or (each.name,))})


def read_gates(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the gates of `--feature-gates`; raise `Stop` for a malformed one."""
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if value not in ("true", "false"):
            raise Stop(f"`--feature-gates {part}`: expected NAME=true or NAME=false")
        yield name, value == "true"


@contextmanager
def gates_from_option() -> Iterator[None]:
    """Raise `Stop` for a `PolicyError` in the block that is about unknown feature gates only."""
    try:
        yield
    except PolicyError as error:
        if all(each.code == UNKNOWN_GATE for each in error.problems):
            found = "; ".join(": ".join(filter(None, (each.message, each.help))) for each in error.problems)
            raise Stop(f"`--feature-gates`: {found}") from None
        raise


def warn_of_gates(gates: Mapping[str, bool], registry: Registry) -> None:
    """Warn of each gate of koordlet that has no effect here.

    Raises:
        PolicyError: a plugin of the registry cannot be activated, or a gate is unknown.
    """
    if gates.keys() & GATES_WITHOUT_EFFECT.keys():
        manager = Manager(gates)
        manager.use(registry)
        for gate, why in manager.without_effect.items():
            warn(f"warning: `--feature-gates`: koordlet's gate `{gate}` has no effect here: {why}")


def _rows(each: ReplayedRound) -> Iterator[Sequence[str]]:
    head = [format_duration(each.elapsed), each.node, each.plugin]
    mark = "" if each.enforced else "would: "
    for adjustment in each.adjustments:
        kind = "recover " + adjustment.kind if adjustment.recovers else adjustment.kind
        subject = _other(adjustment.subject, each.node)
        yield [*head, subject, mark + kind, adjustment.reason, _writes(adjustment)]
    for error in each.errors:
        message = f"{error.item}: {error.message}" if error.item else error.message
        yield [*head, _other(error.subject, each.node), "error", message, ""]
    if not each.eventful:
        holding = [state.name for state in each.thresholds if state.holds]
        yield [*head, "", "-", f"holds: {', '.join(holding)}" if holding else "", ""]


def _writes(adjustment: Adjustment) -> str:
    """Return the write to the topmost control group, and the number of further files."""
    if not adjustment.writes:
        return ""
    name, text = min(adjustment.writes, key=lambda write: write[0].count("/"))
    rest = len(adjustment.writes) - 1
    return f"{name}={text.strip()}" + (f" and {rest} below it" if rest else "")


def _merged(rows: Iterable[Sequence[str]]) -> list[list[str]]:
    """Return the rows with consecutive repetitions (an error of every round) merged into one, from first to last."""
    merged: list[list[str]] = []
    last: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        key = tuple(row[1:])
        before = last.get(key)
        if row[4] == "error" and before is not None:
            before[0] = f"{before[0].partition(' to ')[0]} to {row[0]}"
            continue
        if row[4] != "error":
            # Another event of the plugin's subject ends a run of equal errors.
            last = {known: each for known, each in last.items() if known[:3] != key[:3]}
        merged.append(list(row))
        last[key] = merged[-1]
    return merged


def _other(subject: str, node: str) -> str:
    return "" if subject == node else subject
