"""A worker process that compiles policies before the server does: policies that crash it never reach the server.

The worker is a new interpreter (nothing is forked from threads), which has imported and compiled something before the
first edit. It receives the texts of the files, reads nothing else, and returns problems as plain data. Each file has
its limits there: `seconds` of wall-clock and of processor time, `memory` bytes of address space beyond what the worker
had before. Exceeding them ends the worker: the set is refused with the name of the file that was being compiled, and
another worker is started.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from typing import Any, Final, Never

from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import Document, Documents, load
from koordpolicy.engine.files import reason_of
from koordpolicy.engine.framework.registry import Plugin
from koordpolicy.engine.source import PolicyError, Problem, Problems, Severity, Source, Span, first_problems

from .build import Builder
from .status import UNAVAILABLE

SECONDS: Final = 10.0
VETTING: Final = "vetting"
"""The code of the problem of a file that ended a worker."""
MEMORY: Final = 1 << 30
"""The default memory limit in bytes."""

_START_SECONDS: Final = 60.0
_ATTEMPTS: Final = 2
"""A worker may be killed for other reasons: a set is refused if the second worker ends too."""
_FIRST_BACK_OFF_S: Final = 0.5
_LONGEST_BACK_OFF_S: Final = 30.0
_CACHED_SETS: Final = 8
_MOST_REFUSED: Final = 256
_MOST_PROBLEMS: Final = 200
_PIECE: Final = 1 << 18
"""Characters."""
_RUN: Final = "from koordpolicy.engine.reload.vet import serve; serve()"
_WARM: Final = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: warm}
spec:
  params: {most: 0.9}
  filter:
  - {name: cpu, expression: usage.cpu <= allocatable.cpu * params.most, message: too hot}
  - {name: wrong, expression: usage.gpu <=}
"""


class _Died(Exception):
    """The worker ended, or was ended, before it answered."""

    def __init__(self, how: str, help: str = "", *, limit: bool = False) -> None:  # noqa: A002 - as `Problem` calls it
        super().__init__(how)
        self.help = help
        self.limit = limit
        """True if it exceeded a limit, which the next worker would exceed too."""


@dataclass(frozen=True, slots=True)
class _Refused:
    """Contents that ended a worker: the file that was being compiled, with the files that it references."""

    sources: tuple[Source, ...]
    problem: Problem


class Vetter:
    """One worker process and the texts sent to it; `vet` and `groups` may be called from several threads.

    `command` starts a worker, given the number of a file descriptor, for tests. `seconds` and `memory` are the limits
    per file.
    """

    def __init__(
        self, *, seconds: float = SECONDS, memory: int = MEMORY,
        command: Sequence[str] = (sys.executable, "-P", "-c", _RUN),
    ) -> None:
        self._seconds = seconds
        self._memory = memory
        self._command = tuple(command)
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._closed = threading.Event()
        self._failures = 0
        """The number of consecutive workers that ended before they were ready."""
        self._not_before = 0.0
        self._refused: list[_Refused] = []

    def start(self) -> None:
        """Start a worker, unless there is one, without waiting for it."""
        with self._lock, contextlib.suppress(_Died):
            self._worker_started()

    @property
    def pid(self) -> int | None:
        """The worker's process ID, for display; None if there is no worker."""
        worker = self._worker
        return None if worker is None else worker.process.pid

    def vet(self, sources: Sequence[Source]) -> None:
        """Compile a set in the worker; raises `PolicyError` with its problems, or with the file that ended the
        worker.
        """
        problems = self._request("vet", sources)
        if problems:
            raise PolicyError(problems_of(problems, sources))

    def groups(self, sources: Sequence[Source]) -> list[frozenset[str]]:
        """Return the groups of `Builder.groups`; empty if no worker survives that, as `vet` then reports why."""
        try:
            return [frozenset(map(str, names)) for names in self._request("groups", sources)]
        except PolicyError:
            return []

    def close(self) -> None:
        """End the worker; waiting callers get a refusal."""
        self._closed.set()
        worker = self._worker
        if worker is not None:
            worker.kill()
        with self._lock:
            self._drop()

    def _request(self, operation: str, sources: Sequence[Source]) -> list[Any]:
        if not sources:
            return []
        with self._lock:
            self._refuse_known(sources)
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    worker = self._worker_ready()
                    return worker.request(operation, sources, self._seconds)
                except _Died as died:
                    worker_was = self._worker
                    working_on = () if worker_was is None else worker_was.working_on(sources)
                    self._drop()
                    if not self._closed.is_set():
                        with contextlib.suppress(_Died):
                            self._worker_started()  # the next worker is ready by the time the file is repaired
                    if working_on and (died.limit or attempt == _ATTEMPTS):
                        self._refuse(died, working_on, sources)
                    if attempt == _ATTEMPTS or self._closed.is_set():
                        raise PolicyError([Problem(f"policies cannot be checked: {died}", code=UNAVAILABLE,
                                                   help="it is tried again; `--compile-timeout 0` compiles "
                                                        "without a process of its own")]) from None
        raise AssertionError("the last attempt returns or raises")

    def _refuse_known(self, sources: Sequence[Source]) -> None:
        texts = {source.name: source.text for source in sources}
        known = [each.problem for each in self._refused
                 if all(texts.get(source.name) == source.text for source in each.sources)]
        if known:
            raise PolicyError(known)

    def _refuse(self, died: _Died, working_on: tuple[str, ...], sources: Sequence[Source]) -> Never:
        held = [next(each for each in sources if each.name == name) for name in working_on]
        problem = Problem(f"checking `{held[0].name}` {died}", held[0].span(0), died.help, code=VETTING)
        self._refused = [*self._refused[1 - _MOST_REFUSED:], _Refused(tuple(held), problem)]
        raise PolicyError([problem])

    def _worker_started(self) -> _Worker:
        if self._closed.is_set():
            raise _Died("the server ends")
        if self._worker is None:
            if (wait := self._not_before - time.monotonic()) > 0 and self._closed.wait(wait):
                raise _Died("the server ends")
            try:
                self._worker = _Worker(self._command, self._seconds, self._memory)
            except OSError as error:
                self._failed_to_start()
                raise _Died(f"the process for it does not start: {reason_of(error)}") from None
        return self._worker

    def _worker_ready(self) -> _Worker:
        worker = self._worker_started()
        try:
            worker.wait_until_ready(_START_SECONDS)
        except _Died:
            self._failed_to_start()
            raise
        self._failures, self._not_before = 0, 0.0
        return worker

    def _failed_to_start(self) -> None:
        back_off = min(_LONGEST_BACK_OFF_S, _FIRST_BACK_OFF_S * 2**min(self._failures, 16))
        self._failures += 1
        self._not_before = time.monotonic() + back_off

    def _drop(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None


class VettedBuild:
    """A `Build` that vets a set before it builds it; all other methods are the builder's."""

    def __init__(self, builder: Builder, vetter: Vetter) -> None:
        self._builder = builder
        self._vetter = vetter

    def __call__(self, sources: Sequence[Source]) -> list[Plugin]:
        """Return the plugins of all documents; raises `PolicyError` as both do."""
        self._vetter.vet(sources)
        return self._builder(sources)

    def groups(self, sources: Sequence[Source]) -> Iterable[frozenset[str]]:
        """Return the groups of files that the worker finds: the texts may not be vetted yet."""
        return self._vetter.groups(sources)

    def holds_policies(self, source: Source) -> bool:
        """Return whether a vetted file holds more than unit tests and documents without content."""
        return self._builder.holds_policies(source)

    def warnings(self, sources: Sequence[Source]) -> tuple[Problem, ...]:
        """Return the warnings about active files, each with its place."""
        return self._builder.warnings(sources)


@dataclass(slots=True)
class _SentText:
    """A text that was sent to a worker: its number there, and the request that it was last part of."""

    number: int
    used: int = 0


class _Worker:
    """One process: its connection, its texts by number, and the file being compiled."""

    def __init__(self, command: Sequence[str], seconds: float, memory: int) -> None:
        self._connection, theirs = Pipe()
        try:
            self.process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [*command, str(theirs.fileno()), repr(seconds), str(memory)], pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C is handled by the server, which ends the worker
            )
        except BaseException:
            self._connection.close()
            raise
        finally:
            theirs.close()
        self._is_ready = False
        self._count = itertools.count()
        self._sent: dict[Source, _SentText] = {}
        """By identity: unchanged files keep their `Source` objects in a reloader."""
        self._requests = 0
        self._on: tuple[str, ...] = ()

    def wait_until_ready(self, seconds: float) -> None:
        """Wait until the worker is ready; raises `_Died`."""
        if not self._is_ready:
            self._receive(seconds, f"the process for it did not start within {seconds:g} s")
            self._is_ready = True

    def request(self, operation: str, sources: Sequence[Source], seconds: float) -> list[Any]:
        """Return the response; raises `_Died`, also if one file takes longer than `seconds`."""
        self._requests += 1
        self._on = ()
        # A stopped process does not read, so writing to it would block.
        guard = threading.Timer(seconds * 2, self.kill)
        guard.daemon = True
        guard.start()
        try:
            for source in sources:
                sent = self._sent.get(source)
                if sent is None:
                    sent = self._sent[source] = _SentText(next(self._count))
                    # In pieces: a single call that encodes 10 MB would block decisions until it returns.
                    pieces = range(0, len(source.text), _PIECE)
                    self._send({"text": sent.number, "name": source.name, "pieces": len(pieces)})
                    for first in pieces:
                        self._send_bytes(source.text[first:first + _PIECE].encode("utf-8", "surrogatepass"))
                sent.used = self._requests
            old = [source for source, sent in self._sent.items() if sent.used <= self._requests - _CACHED_SETS]
            self._send({"do": operation, "with": [self._sent[source].number for source in sources],
                        "forget": [self._sent.pop(source).number for source in old]})
        finally:
            guard.cancel()
        while True:
            message = self._receive(seconds, f"took longer than {seconds:g} s")
            if "on" in message:
                self._on = tuple(map(str, message["on"]))
            else:
                return list(message["answer"])

    def working_on(self, sources: Sequence[Source]) -> tuple[str, ...]:
        """Return the names of the files that were being compiled last, the one at fault first."""
        known = {source.name for source in sources}
        return tuple(name for name in self._on if name in known)

    def kill(self) -> None:
        """End the process now."""
        self.process.kill()

    def close(self) -> None:
        """End the process and free its resources."""
        self.process.kill()
        self.process.wait()
        self._connection.close()

    def _send(self, message: Mapping[str, Any]) -> None:
        self._send_bytes(json.dumps(message).encode("ascii"))

    def _send_bytes(self, content: bytes) -> None:
        try:
            self._connection.send_bytes(content)
        except OSError:
            raise self._death() from None

    def _receive(self, seconds: float, late: str) -> dict[str, Any]:
        try:
            if not self._connection.poll(seconds):
                raise _Died(late, _HELP_TIME, limit=self._is_ready)
            message: dict[str, Any] = json.loads(self._connection.recv_bytes())
        except (OSError, EOFError):
            raise self._death() from None
        if "failed" in message:
            limit = bool(message.get("limit"))
            raise _Died(str(message["failed"]), _HELP_MEMORY if limit else "", limit=limit)
        return message

    def _death(self) -> _Died:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1)
        code = self.process.poll()
        if code == -signal.SIGXCPU:
            return _Died("took more processor time than it may", _HELP_TIME, limit=True)
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return _Died(f"ended the process that does it with {signal.Signals(-code).name}", _HELP_CRASH)
        return _Died(f"ended the process that does it with exit code {code}", _HELP_CRASH)


_HELP_TIME: Final = "make it smaller or simpler, or give it more time with `--compile-timeout`"
_HELP_MEMORY: Final = "make it smaller or simpler"
_HELP_CRASH: Final = "the active set stays active; edit the file to have it vetted again"


def problems_of(data: Sequence[Mapping[str, Any]], sources: Sequence[Source]) -> list[Problem]:
    """Return the problems of `plain` data, with positions in these files."""
    by_name = {source.name: source for source in sources}
    found = []
    for each in data:
        source = by_name.get(each["file"])
        span = None if source is None else Span(source, int(each["start"]), int(each["end"]))
        found.append(Problem(str(each["message"]), span, str(each["help"]), Severity(int(each["severity"])),
                             str(each["code"])))
    return found


def plain(problem: Problem) -> dict[str, Any]:
    """Return a problem as plain data, with its position in the whole file."""
    root = problem.span.root() if problem.span is not None else None
    return {
        "message": problem.message, "help": problem.help, "severity": int(problem.severity), "code": problem.code,
        "file": None if root is None else root.source.name, "start": 0 if root is None else root.start,
        "end": 0 if root is None else root.end,
    }


# The worker's side.


def serve(load_sources: Callable[[Iterable[Source]], Documents] = load) -> None:
    """Serve requests until the connection ends; the process's arguments are a file descriptor, seconds and bytes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(int(sys.argv[1]))
    work = _Work(connection, float(sys.argv[2]), int(sys.argv[3]), load_sources)
    orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def listen() -> None:
        try:
            while True:
                order = json.loads(connection.recv_bytes())
                if "text" in order:
                    order["content"] = "".join(connection.recv_bytes().decode("utf-8", "surrogatepass")
                                               for _ in range(order["pieces"]))
                orders.put(order)
        except (OSError, EOFError):
            os._exit(0)  # no caller waits for the result any more

    try:
        work.warm()
    except Exception as error:
        work.say({"failed": f"the process for it does not start: {type(error).__name__}: {error}"})
        return
    threading.Thread(target=listen, daemon=True).start()
    work.say({"ready": True})
    while True:
        work.do(orders.get())


class _Work:
    """Compiles the sent files, each under its limits, and reports the current one."""

    def __init__(
        self, connection: Connection, seconds: float, memory: int,
        load_sources: Callable[[Iterable[Source]], Documents],
    ) -> None:
        self._connection = connection
        self._load = load_sources
        self._seconds = seconds
        self._memory = memory
        self._sources: dict[int, Source] = {}
        self._builder: Builder | None = None
        self._limited = False

    def say(self, message: Mapping[str, Any]) -> None:
        self._connection.send_bytes(json.dumps(message).encode("ascii"))

    def warm(self) -> None:
        """Import all modules that compiling needs."""
        import gc  # noqa: PLC0415 - of the worker alone, as below

        from koordpolicy.engine.framework.discovery import discover  # noqa: PLC0415 - as above

        extensions = discover(lambda _: None).functions

        def loaded(sources: Iterable[Source]) -> Documents:
            sources = tuple(sources)
            self._begin(*(source.name for source in sources))
            return self._load(sources)

        def compiled(documents: Sequence[Document], problems: Problems) -> Iterator[Plugin]:
            self._begin(*(document.span.root().source.name for document in documents))
            compile_documents(documents, problems, extensions=extensions)
            return iter(())  # only the problems are returned

        self._builder = Builder(compiled, loaded)
        with contextlib.suppress(PolicyError):
            self._builder([Source("warm.yaml", _WARM), Source("odd.yaml", _WARM.replace("filter", "filters"))])
        gc.collect()
        gc.freeze()
        self._limited = True

    def do(self, order: Mapping[str, Any]) -> None:
        if "text" in order:
            self._sources[order["text"]] = Source(order["name"], order["content"])
            return
        assert self._builder is not None
        sources = [self._sources[number] for number in order["with"]]
        for number in order["forget"]:
            del self._sources[number]
        try:
            if order["do"] == "groups":
                self.say({"answer": [sorted(names) for names in self._builder.groups(sources)]})
            else:
                self.say({"answer": self._problems(self._builder, sources)})
        except MemoryError:
            self._sources.clear()
            self._builder = None
            self.say({"failed": f"took more than {self._memory / (1 << 20):g} MiB of memory", "limit": True})
            os._exit(1)

    def _problems(self, builder: Callable[[Sequence[Source]], object], sources: Sequence[Source]) -> list[Any]:
        try:
            builder(sources)
        except PolicyError as error:
            return [plain(problem) for problem in first_problems(error.problems, _MOST_PROBLEMS)]
        except MemoryError:
            raise
        except Exception as error:
            return [plain(Problem(f"compiling the policies failed: {type(error).__name__}: {error}", code="internal",
                                  help="this is a fault of koord-policy, not of the policies"))]
        return []

    def _begin(self, *names: str) -> None:
        """Report the file being compiled, and set the limits from now on."""
        if not self._limited:
            return
        import resource  # noqa: PLC0415 - not everywhere

        # Any of them may be at fault: the document, or the params that it references.
        self.say({"on": list(dict.fromkeys(names))})
        spent = resource.getrusage(resource.RUSAGE_SELF)
        seconds = math.ceil(spent.ru_utime + spent.ru_stime + self._seconds) + 1
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds if hard < 0 else min(seconds, hard), hard))
        size = _address_space()
        if size:
            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            most = size + self._memory
            resource.setrlimit(resource.RLIMIT_AS, (most if hard < 0 else min(most, hard), hard))


def _address_space() -> int:
    """Return the number of bytes that the process has mapped; 0 if unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - once per document
            return int(file.read().split(b" ", 1)[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
