"""The public kit's framework, with the built-in plugins by name and the pods that stand for Reservations."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.scheduler.extensions.reservations import follow
from koordpolicy.engine.testing import kit
from koordpolicy.plugin import Deferred, Refusal, Skip

_TABLE = {plugin.name: plugin for plugin in PLUGINS}


class FakeFramework(kit.FakeFramework):
    """Nodes, pods and other objects, and the built-in plugins made over them by `make`."""

    def __init__(self, *objects: Mapping[str, Any], gates: Collection[str] = (), now: int = 0) -> None:
        super().__init__(clock=kit.FakeClock(now), feature_gates=gates)
        follow(self.cluster)
        for item in objects:
            self.upsert(item)

    @property
    def time(self) -> int:
        """The time, in nanoseconds since the epoch."""
        return self.clock()

    @time.setter
    def time(self, now: int) -> None:
        assert isinstance(self.clock, kit.FakeClock)
        self.clock.now = now

    def make(self, factory: Any, args: Any = None, **fields: Any) -> Any:
        """Return the built-in plugin of a name with v1 arguments, or what a factory makes."""
        if not isinstance(factory, str):
            return super().make(factory, args)
        plugin = _TABLE[factory]
        assert plugin.check_args is not None
        made = plugin.make(plugin.check_args(fields), self.handle(factory))
        self.plugins.append(made)
        return made


def done(answer: Refusal | Skip | Deferred | None) -> Refusal | Skip | None:
    """Return the answer of a preBind, applyPatch or bind plugin after its input and output."""
    return answer.call() if isinstance(answer, Deferred) else answer
