"""The Python-coded strategies of the QoS manager, in one table.

Modules are imported when a plugin is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Plugin


def _plugin(name: str, module: str, description: str, *, enabled: bool) -> Plugin:
    def make(args: Mapping[str, Any], handle: Any) -> Any:
        return import_module(f".{module}", __name__).make(args, handle)

    def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
        checked: Mapping[str, Any] = import_module(f".{module}", __name__).check_args(args)
        return checked

    return Plugin(
        name, Framework.QOS, (Point.STRATEGY,), make, origin="built-in", digest=f"built-in/{name}/1",
        description=description, enabled=enabled, check_args=check_args,
    )


PLUGINS: Final[tuple[Plugin, ...]] = (
    _plugin("BECPUSuppress", "be_cpu_suppress.plugin",
            "Keeps a node's CPU usage near a threshold by bounding all best-effort pods together.", enabled=False),
)
