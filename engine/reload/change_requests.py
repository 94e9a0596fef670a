"""Requests of other threads to change the active set, executed by the reloading thread."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from koordpolicy.engine.source import PolicyError

from .history import GenerationRecord
from .swap import our_fault


class ChangeRequests:
    """A queue of requests; each is called with the time of the pass, and returns the active generation."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[tuple[Callable[[float], GenerationRecord], Future[GenerationRecord]]] = (
            queue.SimpleQueue())

    def submit(self, request: Callable[[float], GenerationRecord]) -> Future[GenerationRecord]:
        """Queue a request; from any thread."""
        future: Future[GenerationRecord] = Future()
        self._waiting.put((request, future))
        return future

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
