"""Requests of other threads to change the active set, executed by the reloading thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from koordpolicy.engine.source import PolicyError, Problem

from .history import GenerationRecord
from .swap import our_fault


class ChangeRequests:
    """A queue of requests; each is called with the time of the pass, and returns the active generation."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[tuple[Callable[[float], GenerationRecord], Future[GenerationRecord]]] = (
            queue.SimpleQueue())
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, request: Callable[[float], GenerationRecord]) -> Future[GenerationRecord]:
        """Queue a request; from any thread. After `close` its future raises `PolicyError`."""
        future: Future[GenerationRecord] = Future()
        with self._lock:
            if not self._closed:
                self._waiting.put((request, future))
                return future
        future.set_exception(_closed())
        return future

    def close(self) -> None:
        """Have the futures of all requests that were not executed, and of all later ones, raise `PolicyError`."""
        with self._lock:
            self._closed = True
        while not self._waiting.empty():
            _, future = self._waiting.get()
            if future.set_running_or_notify_cancel():
                future.set_exception(_closed())

    def serve(self, now: float) -> list[Callable[[], None]]:
        """Execute all queued requests; return functions that resolve their futures, to be called once the status is
        published.
        """
        answers: list[Callable[[], None]] = []
        while not self._waiting.empty():
            request, future = self._waiting.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                answers.append(partial(future.set_result, request(now)))
            except PolicyError as error:
                answers.append(partial(future.set_exception, error))
            except Exception as error:  # the future raises it, and reloading continues
                answers.append(partial(future.set_exception, our_fault("the request", error)))
        return answers


def _closed() -> PolicyError:
    return PolicyError([Problem("policies are reloaded no more: nothing was changed",
                                help="the server ends; ask the one that replaces it", code="closed")])
