"""The requests of the console and of its users to an API server, as permissions."""

from __future__ import annotations

from typing import Final

from koordpolicy.engine.client.permissions import Permission
from koordpolicy.engine.documents.objects import PLURALS
from koordpolicy.engine.documents.specs import GROUP
from koordpolicy.engine.scheduler.live.permissions import EXTENDER

from .rights import READING, Right

CONSOLE: Final = (
    *EXTENDER,
    *(Permission(GROUP, plural, ("list", "watch"), "`--policies crd`") for plural in PLURALS.values()),
)
"""Of the console itself, cluster-wide. It changes servers by their own token, and nothing in the cluster."""

VIEWER: Final = tuple(
    Permission(each.group, each.resource, (each.verb,), "the views") for right in sorted(
        READING, key=lambda each: each.name) for each in right.value)
"""Of users who look at everything, cluster-wide."""

OPERATOR: Final = (
    *VIEWER,
    *(Permission(each.group, each.resource, (each.verb,), "promotions and rollbacks")
      for each in Right.CHANGES.value))
"""Of users who also change policies, cluster-wide."""
