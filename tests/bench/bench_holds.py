"""The longest time that a running extender holds its interpreter, under hostile requests and documents.

The server is the command in a process of its own, with a thread beside it that wakes every millisecond: how late it is
woken is how long somebody held the interpreter. Only time counts in which the process was on a processor, so that other
load does not. The first line is what an idle server holds.

`python -m tests.bench.bench_holds WORD ...` measures the cases whose names contain one of the words, and `--turns N`
gives the median of several turns. With a file's name in `KOORD_POLICY_WHERE`, it gets the stacks after each long hold.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from .figure import Figure

BOUND_MS = 5.0
MEBIBYTE = 1 << 20
NODES = 5_000
_ROOT = Path(__file__).parents[2]
_LONGEST_RELOAD_S = 120.0
_AFTER_S = 0.5
_FRAMES = 4
_RULE = "  - {{name: r{0}, expression: requests.cpu + {0} < 90000 + {0}, message: number {0}}}\n"
_WRONG = "  - {name: wrong, expression: requests.cpu +}\n"
_POD: dict[str, Any] = {
    "metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"containers": [{"name": "c"}]}}


# The side of the server.


class Probe(threading.Thread):
    """Wakes every millisecond and keeps the longest time for which somebody else held the interpreter, in seconds."""

    def __init__(self) -> None:
        super().__init__(name="probe", daemon=True)
        self.longest = 0.0
        self.where: list[str] = []
        """The ends of the stacks of all other threads right after it."""

    def run(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # who may not have priority measures more noise
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(2))
        while True:
            spent, due = time.process_time(), time.perf_counter() + 0.001
            time.sleep(0.001)
            late = time.perf_counter() - due
            if late > self.longest:
                held = min(late, time.process_time() - spent)
                if held > self.longest:
                    self.longest = held
                    self.where = [line for ident, frame in sys._current_frames().items() if ident != self.ident
                                  for line in traceback.format_stack(frame)[-_FRAMES:]]


def serve(told: int, arguments: list[str]) -> None:
    """Run the command beside a probe; each line on the standard input is answered with the longest hold before it."""
    from koordpolicy.engine.cli import main as command  # noqa: PLC0415 - not of the side that measures
    from koordpolicy.engine.reload import vet  # noqa: PLC0415 - as above

    # The worker is not part of the process, and must not have its priority.
    defaults = vet.Vetter.__init__.__kwdefaults__
    defaults["command"] = ("chrt", "-o", "0", *defaults["command"])
    probe = Probe()
    probe.start()
    collections: list[str] = []
    began = 0.0

    def collected(phase: str, info: dict[str, int]) -> None:
        nonlocal began
        if phase == "start":
            began = time.thread_time()
        elif (took := time.thread_time() - began) * 1e3 > BOUND_MS / 2:
            collections.append(f"  a collection of generation {info['generation']} took {took * 1e3:.1f} ms\n")

    if "KOORD_POLICY_WHERE" in os.environ:
        gc.callbacks.append(collected)

    def answer() -> None:
        for _ in sys.stdin:
            longest, probe.longest = probe.longest, 0.0
            if "KOORD_POLICY_WHERE" in os.environ and longest * 1e3 > BOUND_MS:
                with Path(os.environ["KOORD_POLICY_WHERE"]).open("a", encoding="utf-8") as file:
                    file.write(f"--- {longest * 1e3:.1f} ms\n{''.join((*collections, *probe.where))}")
                collections.clear()
            os.write(told, f"{longest * 1e3:.3f}\n".encode())

    threading.Thread(target=answer, daemon=True).start()
    sys.exit(command(arguments))


# The side that measures.


class Measured:
    """A running server."""

    def __init__(self, process: subprocess.Popen[str], told: TextIO, port: int, policies: Path) -> None:
        self.process, self.port, self.policies = process, port, policies
        self._told = told

    def longest(self) -> float:
        """Return the milliseconds of the longest hold since the last call."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self._told.readline())

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Return status and content of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, response.read()
        except OSError:  # what is too large is cut off
            return 0, b""
        finally:
            connection.close()

    def reload(self, files: dict[str, bytes]) -> None:
        """Replace the policies, and wait until they were activated or refused."""
        before = self._passes()
        # A link is swapped, as the kubelet does it.
        version = self.policies / f"..{time.monotonic_ns()}"
        version.mkdir()
        for name, content in files.items():
            (version / name).write_bytes(content)
        beside = self.policies / "..data_tmp"
        beside.symlink_to(version.name)
        beside.replace(self.policies / "..data")
        until = time.monotonic() + _LONGEST_RELOAD_S
        while self._passes() == before:
            assert time.monotonic() < until, "the policies were never read"
            time.sleep(0.1)
        time.sleep(_AFTER_S)

    def _passes(self) -> list[str]:
        return [line for line in self.ask("GET", "/metrics")[1].decode().splitlines()
                if line.startswith("koord_policy_reloads_total")]


@contextmanager
def running() -> Iterator[Measured]:
    """Run an extender over 5,000 nodes until the block ends."""
    with tempfile.TemporaryDirectory() as folder:
        policies = Path(folder, "policies")
        policies.mkdir()
        first = policies / "..first"
        first.mkdir()
        (first / "policy.yaml").write_bytes(documents(1, 1))
        (policies / "..data").symlink_to(first.name)
        dump = Path(folder, "cluster.json")
        dump.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "v1", "kind": "Node", **node(number)} for number in range(NODES)]}))
        told, theirs = os.pipe()
        process = subprocess.Popen(
            ["chrt", "-r", "1", sys.executable, "-m", "tests.bench.bench_holds", "--serve", str(theirs), "scheduler",
             "--extender", "--bind", "127.0.0.1:0", "--policies", str(policies), "--cluster", str(dump)],
            cwd=_ROOT, pass_fds=(theirs,), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True)
        os.close(theirs)
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline().strip().rpartition(":")[2])
            while not process.stdout.readline().startswith("ready: "):  # after warnings about how the server listens
                assert process.poll() is None, "the server ended"
            time.sleep(2)
            with os.fdopen(told) as lines:
                yield Measured(process, lines, port, policies)
        finally:
            process.terminate()
            process.wait(30)


def node(number: int, bulk: int = 0) -> dict[str, Any]:
    """Return a node, with `bulk` texts of 100 bytes in it."""
    found: dict[str, Any] = {
        "metadata": {"name": f"node-{number}", "uid": f"u-{number}", "resourceVersion": "1"}, "spec": {},
        "status": {"allocatable": {"cpu": "32", "memory": "128Gi", "pods": "110"}}}
    if bulk:
        found["status"]["images"] = [{"names": [f"{each:02}{'x' * 72}"], "sizeBytes": 1234} for each in range(bulk)]
    return found


def documents(count: int, rules: int, *, wrong: bool = False) -> bytes:
    """Return documents in one text; `wrong` puts an error into the last rule."""
    found = "---\n".join(
        f"apiVersion: policy.koordinator.sh/v1alpha2\nkind: SchedulerPlugin\nmetadata: {{name: d{number}}}\nspec:\n"
        "  filter:\n" + "".join(_RULE.format(number * rules + rule) for rule in range(rules))
        for number in range(count))
    return f"{found}{_WRONG if wrong else ''}".encode()


def small_files(files: int, each: int) -> dict[str, bytes]:
    """Return files of small documents."""
    return {f"f{file}.yaml": documents(each, 1).replace(b"{name: d", b"{name: f%d-" % file) for file in range(files)}


def reloads() -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield names of cases and the files that are published."""
    small = {"policy.yaml": documents(1, 1)}
    yield "13,000 rules in one file", {"policy.yaml": documents(13, 1_000)}
    yield "the same, refused for its last rule", {"policy.yaml": documents(13, 1_000, wrong=True)}
    yield "a small set in their place", small
    yield "13,000 rules in one document, refused", {"policy.yaml": documents(1, 13_000)}
    wrong = documents(13, 1_000).replace(b"requests.cpu +", b"requests.gpu ++")
    yield "13,000 rules that are all wrong", {"policy.yaml": wrong}
    yield "10,000 documents in ten files", small_files(10, 1_000)
    yield "a small set in place of the documents", small
    yield "2,000 documents in one file", {"policy.yaml": documents(2_000, 1)}
    yield "a small set in place of one file", small
    yield "a file of 64 MiB", {"policy.yaml": documents(800, 1_000)[:64 * MEBIBYTE]}
    comment = "# \u00e4\u20ac\U0001f600".encode() * 100 + b"\n"
    comments = comment * (9 * MEBIBYTE // len(comment))
    yield "9 MiB of comments that are not ASCII", {"policy.yaml": comments + small["policy.yaml"]}
    yield "1 MiB of one text", {"policy.yaml": small["policy.yaml"].replace(b"number 0", b"x" * MEBIBYTE)}
    yield "1 MiB that is not YAML", {"policy.yaml": b"a: [b: }\n- c\n" * (MEBIBYTE // 13)}
    yield "1 MiB of brackets", {"policy.yaml": b"[" * MEBIBYTE}
    yield "1 MiB in one line", {"policy.yaml": b"{a: [" + b"{b: c}, " * (MEBIBYTE // 8) + b"]}"}
    yield "a small set at the end", small


def bodies() -> Iterator[tuple[str, bytes]]:
    """Yield names of cases and what is sent to /filter."""
    pod = json.dumps(_POD).encode()

    def named(count: int) -> bytes:
        return b'{"Pod":%b,"Nodes":null,"NodeNames":%b}' % (
            pod, json.dumps([f"node-{number}" for number in range(count)], separators=(",", ":")).encode())

    def whole(items: Iterable[bytes]) -> bytes:
        return b'{"Pod":%b,"Nodes":{"metadata":{},"items":[%b]},"NodeNames":null}' % (pod, b",".join(items))

    def plain(count: int, bulk: int, *, compact: bool = True) -> Iterator[bytes]:
        for number in range(count):
            yield json.dumps(node(number, bulk), separators=(",", ":") if compact else None).encode()

    yield "names of 5,000 nodes", named(NODES)
    yield "1 MiB of names", named(72_000)
    yield "8 MiB of names", named(500_000)
    yield "64 MiB of names", named(3_900_000)
    yield "1 MiB of nodes", whole(plain(300, 35))
    yield "8 MiB of nodes", whole(plain(2_000, 42))
    yield "20 MiB of nodes, 5,000", whole(plain(5_000, 40))
    yield "60 MiB of nodes, 5,000", whole(plain(5_000, 110))
    yield "the same, spaced", whole(plain(5_000, 100, compact=False))
    yield "60 MiB of nodes, the last one refused", whole([*plain(5_000, 110), b'{"metadata":{"name":1}}'])
    yield "60 MiB of nodes, cut off", whole(plain(5_000, 110))[:-100]
    for size in (1, 8, 60):
        yield f"{size} MiB of empty nodes", whole([b"{}"] * (size * MEBIBYTE // 3))
        yield f"{size} MiB of the least nodes", whole([b'{"metadata":{"name":"a"}}'] * (size * MEBIBYTE // 26))
        yield f"{size} MiB of brackets", b"[" * (size * MEBIBYTE)
        deep = b"[" * (size << 19) + b"]" * (size << 19)
        yield f"{size} MiB, deep", whole([b'{"metadata":{"name":"a","x":' + deep + b"}}"])
        yield f"{size} MiB of a text", b'"' + b"x" * (size * MEBIBYTE)
        text = b"x" * (size << 20)
        yield f"{size} MiB of a text in a node", whole([b'{"metadata":{"name":"a","x":"%b"}}' % text])
        yield f"{size} MiB of numbers in the pod", b'{"Pod":{"x":[%b0]},"NodeNames":[]}' % (b"0," * (size << 19))
        yield f"{size} MiB of lists in the pod", b'{"Pod":{"x":[%b0]},"NodeNames":[]}' % (b"[]," * ((size << 20) // 3))
    for name, texts in {
        "1 MiB": {f"key-{number}": "v" * 40 for number in range(20_000)},
        "1 MiB of escapes": {"a": "\u00e4\u20ac" * 100_000},
        "2 MB of text that is not ASCII": {"a": "x" * 2_000_000 + "\U0001f600"},
    }.items():
        heavy = {**_POD, "metadata": {**_POD["metadata"], "annotations": texts}}
        yield f"a pod with {name}", named(100).replace(pod, json.dumps(heavy, ensure_ascii="escapes" in name).encode())


def main(words: Iterable[str] = (), turns: int = 1) -> Iterator[Figure]:
    """Yield the longest hold of each case, the median of several turns."""
    words = tuple(words)
    found: dict[str, list[float]] = {}

    def keep(name: str, longest: float) -> None:
        found.setdefault(name, []).append(longest)

    def wanted(name: str) -> bool:
        return not words or any(word in name for word in words)

    with running() as server:
        server.longest()
        time.sleep(5)
        yield Figure("holds: idle", server.longest(), "ms")
        for _ in range(turns):
            for name, files in reloads():
                if wanted(name):
                    server.longest()
                    server.reload(files)
                    keep(name, server.longest())
                    status, _ = server.ask("GET", "/status")
                    keep(f"/status after it ({status}): {name}", server.longest())
        for name, body in bodies():
            for _ in range(turns if wanted(name) else 0):
                server.longest()
                status, _ = server.ask("POST", "/filter", body)
                time.sleep(0.2)
                keep(f"{name} ({status})", server.longest())
    for name, each in found.items():
        yield Figure(f"holds: {name}", statistics.median(each), "ms", BOUND_MS)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(int(sys.argv[2]), sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--turns", type=int, default=1)
    options = parser.parse_args()
    for figure in main(options.words, options.turns):
        print(f"{figure.name:<66} {figure.value:>10.3f} {figure.unit}{'' if figure.kept else '  NOT KEPT'}", flush=True)
