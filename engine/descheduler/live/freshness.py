"""The age up to which a cycle looks at the objects of a live cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from koordpolicy.engine.cluster.sources.changes import KindView


def stale_kinds(
    views: Mapping[str, KindView], kinds: Collection[str], now: float, longest_s: float,
) -> tuple[str, ...]:
    """Return a sentence for each of these kinds of which the API server was not heard for more than `longest_s`.

    `now` is in seconds since the epoch. A watch without changes is heard of about once a minute, by a bookmark. Kinds
    that are not followed, or were never listed, are left to those who read them: they are unknown, not old.
    """
    found = []
    for kind in sorted(kinds):
        view = views.get(kind)
        if view is None or not view.listed:
            continue
        age = now - view.listed
        if age > longest_s:
            why = f": {view.fault}" if view.fault else ""
            found.append(f"nothing was heard of {kind} objects for {age:.0f} s, more than {longest_s:g} s{why}")
    return tuple(found)
