"""Plugins that evict everyone and keep pods named web, and a registry of them."""

from __future__ import annotations

from koordpolicy.builtin_plugins.descheduler import PLUGINS
from koordpolicy.engine.framework.points import Framework, Point, Refusal
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.plugin import python_plugin

from .conftest import node, pod


class Everyone:
    """Evicts all pods of its nodes that no filter keeps."""

    log: list[str] = []  # noqa: RUF012 - one test, one log

    def __init__(self, args, handle):
        self.args = args

    def deschedule(self, snapshot, rows, evictor):
        self.log.append("deschedule")
        self._all(snapshot, rows, evictor)

    def balance(self, snapshot, rows, evictor):
        self.log.append("balance")
        self._all(snapshot, rows, evictor)

    def _all(self, snapshot, rows, evictor):
        if self.args.get("fail"):
            raise RuntimeError("no way")
        for row in rows:
            for each in snapshot.pods(row):
                if evictor.filter(each) is None and evictor.pre_eviction_filter(each) is None:
                    evictor.evict(each, "because", rule="all")


class KeepsWeb:
    def __init__(self, args, handle):
        pass

    def eviction_filter(self, pod, snapshot):
        if pod.name == "broken":
            raise RuntimeError("cannot tell")
        return Refusal("web", "web stays") if pod.name == "web" else None


class Babbles:
    """Answers what no protocol knows, and cannot evict."""

    def __init__(self, args, handle):
        self.args = args

    def eviction_filter(self, pod, snapshot):
        return self.args.get("veto")

    def evict(self, pod, reason):
        raise OSError("the API server is away")


REGISTRY = Registry.of([
    *PLUGINS, python_plugin("Everyone", Framework.DESCHEDULER, Everyone),
    python_plugin("Second", Framework.DESCHEDULER, Everyone),
    python_plugin("KeepsWeb", Framework.DESCHEDULER, KeepsWeb, points=[Point.EVICTION_FILTER]),
    python_plugin("Babbles", Framework.DESCHEDULER, Babbles, points=[Point.EVICTION_FILTER]),
], generation=7)
OBJECTS = [node("a"), node("b"), pod("web", "a"), pod("x", "a"), pod("y", "a"), pod("z", "b", namespace="e")]
