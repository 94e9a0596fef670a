"""Cluster events for plugins: dispatched in the deciding thread, existing objects first."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.events import Event
from koordpolicy.engine.framework.border import must_be_survived

_LOG = logging.getLogger(__name__)


class Subscriber:
    """One plugin's subscriptions (implements `framework.handle.Events`)."""

    def __init__(self, hub: EventHub) -> None:
        self._hub = hub
        self.begun = False
        self.closed = False

    def on(self, kinds: Collection[str], callback: Callable[[Event], None]) -> None:
        """Call back for every change of objects of these kinds; existing objects come first, nodes before pods.

        May be called from any thread; the callbacks run in the deciding thread.
        """
        self._hub.subscribe(self, frozenset(kinds), callback)

    def begin(self) -> None:
        """Begin the callbacks with the next `begin_subscriptions`; called when the plugin is made and started."""
        self.begun = True

    def close(self) -> None:
        """End all callbacks."""
        self._hub.unsubscribe(self)


class EventHub:
    """Dispatches the changes of a cluster to subscribers. An exception of a callback is logged, and stops no other."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        # Plugins are made and closed in other threads than the deciding one.
        self._lock = threading.Lock()
        self._new: list[tuple[Subscriber, frozenset[str], Callable[[Event], None]]] = []
        self._by_kind: dict[str, list[tuple[Subscriber, Callable[[Event], None]]]] = {}
        # Subscribed first: plugins process a change before the queue calls their requeue hints.
        cluster.listen(self._publish)

    def close(self) -> None:
        """Deliver no more events."""
        self._cluster.unlisten(self._publish)

    def subscriber(self) -> Subscriber:
        """Return a new subscriber."""
        return Subscriber(self)

    def subscribe(self, subscriber: Subscriber, kinds: frozenset[str], callback: Callable[[Event], None]) -> None:
        """Add a subscription; it begins with the next `begin_subscriptions`."""
        with self._lock:
            self._new.append((subscriber, kinds, callback))

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Drop all subscriptions of a subscriber."""
        with self._lock:
            subscriber.closed = True
            self._new = [each for each in self._new if each[0] is not subscriber]
            # A new table: the deciding thread may be iterating over the old one.
            self._by_kind = {
                kind: left for kind, found in self._by_kind.items()
                if (left := [each for each in found if each[0] is not subscriber])
            }

    def begin_subscriptions(self) -> None:
        """Call new subscribers back for each existing object, and for all changes from now on; for the owner of the
        cluster.
        """
        if not self._new:
            return
        with self._lock:
            new = [each for each in self._new if each[0].begun]
            self._new = [each for each in self._new if not each[0].begun]
        for subscriber, kinds, callback in new:
            for event in self._present(kinds):
                if subscriber.closed:
                    break
                _call(callback, event)
            with self._lock:
                if subscriber.closed:
                    continue
                self._by_kind = {
                    **self._by_kind, **{kind: [*self._by_kind.get(kind, ()), (subscriber, callback)] for kind in kinds},
                }

    def _present(self, kinds: frozenset[str]) -> Iterator[Event]:
        for kind in sorted(kinds, key=lambda each: (each != "Node", each == "Pod", each)):
            for key, item in list(self._cluster.objects(kind).items()):
                pod = self._cluster.pod(key) if kind == "Pod" else None
                yield Event(kind, key, None, item, None, pod)

    def _publish(self, event: Event) -> None:
        for subscriber, callback in self._by_kind.get(event.kind, ()):
            if not subscriber.closed:
                _call(callback, event)


def _call(callback: Callable[[Event], None], event: Event) -> None:
    try:
        callback(event)
    except BaseException as error:  # the border between framework and plugin
        must_be_survived(error)
        _LOG.exception("a plugin failed to take note of the %s `%s`", event.kind, event.key)
