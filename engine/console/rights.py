"""The rights that requests need, in the words of roles: to list what a view shows, and to change policies."""

from __future__ import annotations

import enum
from typing import Final

from koordpolicy.engine.documents.objects import PLURALS
from koordpolicy.engine.documents.specs import GROUP
from koordpolicy.engine.serving.reviews import ResourceAttributes


class Right(enum.Enum):
    """A right; its value is what an API server must permit, of all objects in all namespaces."""

    NODES = (ResourceAttributes("list", "", "nodes"),)
    PODS = (ResourceAttributes("list", "", "pods"),)
    POLICIES = tuple(ResourceAttributes("list", GROUP, plural) for plural in PLURALS.values())
    """To read policies, wherever they come from: roles are about the kinds, also of policies in files."""
    CHANGES = tuple(ResourceAttributes("update", GROUP, plural) for plural in PLURALS.values())
    """To promote a shadow and to roll back: a set of policies changes as a whole."""


CLUSTER: Final = frozenset({Right.NODES, Right.PODS})
"""The rights for views of nodes, pods and decisions, which name plugins and policies, too."""
READING: Final = CLUSTER | {Right.POLICIES}
"""The rights for everything that only reads."""
EVERYTHING: Final = frozenset(Right)
"""All rights."""
