"""The status of the extender, as `/status` returns it."""

from __future__ import annotations

import time
from typing import Any

from koordpolicy.engine.cluster.sources.changes import views_status
from koordpolicy.engine.serving.daemons import Daemons

from ..status import scheduler_status
from .bindings import bindings_under_way
from .loaded_extender import Loaded


def status_of(loaded: Loaded, pod: str | None = None, *, binder: Daemons | None = None) -> dict[str, Any]:
    """Return the extender's status and its last decisions, newest first.

    With `pod`, only decisions about that pod are among them, with the exact totals of all nodes.

    `binder` are the threads of /bind.
    """
    extender = loaded.extender
    bindings = bindings_under_way(extender, binder)
    cluster: dict[str, Any] = {"source": loaded.source, "nodes": len(extender.cluster.names)}
    if loaded.watched is not None:
        cluster |= views_status(loaded.watched.views, loaded.watched.lag_s, time.time())
    return scheduler_status(extender.scheduler, loaded.reloader, cluster) | {
        "pinnedPods": extender.pins,
        "assumedPods": len(extender.placements),
        "bindingPods": bindings.pods,
        "oldestBindingSeconds": round(bindings.oldest_seconds, 3),
        "shadow": None if extender.shadow is None else extender.shadow.to_json(),
        "audits": extender.audits.to_json(),
        "decisions": [
            record.to_json(every=pod is not None) for record in reversed(extender.recent)
            if pod is None or pod in (record.pod, record.uid)
        ],
    }
