"""Hostile requests to an extender, and the limits of their cost: `python -m tests.soak.attacks`, from the root.

The server is the command in a process of its own, so that its memory is its own. After each attack a real request must
succeed; meanwhile `/healthz` is polled.
"""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.process_figures import memory_mib, processor_time

MEBIBYTE = 1024 * 1024
MOST_MEMORY = 512
"""MiB that the process may take, whatever is sent."""
MOST_HEALTH = 5.0
"""Seconds of its processor time that the process may take to answer `/healthz`, whatever else the machine does.

Probes of Kubernetes wait for one second by default, on an idle machine.
"""
_ROOT = Path(__file__).parents[2]
_POD = b'"Pod":{"metadata":{"name":"p","uid":"u"},"spec":{"containers":[{"name":"c"}]}}'
_POLICY = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: fits}
spec:
  filter:
  - {name: cpu, expression: allocatable.cpu >= requests.cpu}
"""


@dataclass(frozen=True)
class Cost:
    """The cost of an attack: the most memory in MiB, the most processor time in seconds
    until /healthz was answered, and the responses.
    """

    name: str
    memory: int
    health: float
    answer: object

    @property
    def fine(self) -> bool:
        return self.memory <= MOST_MEMORY and self.health <= MOST_HEALTH and self.answer is not None


class Victim:
    """A running extender."""

    def __init__(self, process: subprocess.Popen[str], port: int, policies: Path) -> None:
        self.process, self.port, self.policies = process, port, policies

    def memory(self) -> int:
        """Return MiB."""
        return int(memory_mib(self.process.pid))

    def post(self, path: str, body: bytes, **headers: str) -> tuple[int, bytes] | str:
        """Return status and the answer's beginning, or what came instead."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()[:80]
        except (OSError, http.client.HTTPException) as error:
            return repr(error)  # a body that is refused may be cut off
        finally:
            connection.close()

    def alive(self) -> float:
        """Return the seconds of processor time that the process takes until it answers /healthz."""
        started = processor_time(self.process.pid)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200
        connection.close()
        return processor_time(self.process.pid) - started

    def reloads(self) -> int:
        """Return how many sets of policies were built or refused so far."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/status")
        policies = json.loads(connection.getresponse().read())["policies"]
        connection.close()
        return int(policies["successes"]) + int(policies["failures"])

    def edit(self, text: str) -> bool:
        """Replace the policies; return whether they were built or refused within a minute."""
        before, until = self.reloads(), time.monotonic() + 60
        # In one step: half a file would be another attack.
        edited = self.policies.with_suffix(".new")
        edited.write_text(text)
        edited.replace(self.policies)
        while self.reloads() == before:
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True

    def answers(self) -> bool:
        """Return whether a real request succeeds."""
        return self.post("/filter", b'{%b,"NodeNames":["n0"]}' % _POD) == (
            200, b'{"Nodes":null,"NodeNames":["n0"],"FailedNodes":{},"FailedAndUnresolvableNodes":{},"Error":""}'[:80],
        )


@contextmanager
def victim() -> Iterator[Victim]:
    """Run an extender over 100 nodes until the block ends."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "policy.yaml").write_text(_POLICY)
        nodes = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{number}"},
                  "status": {"allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"}}} for number in range(100)]
        dump = Path(folder, "cluster.json")
        dump.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes}))
        process = subprocess.Popen(
            [sys.executable, "-m", "koordpolicy", "scheduler", "--extender", "--bind", "127.0.0.1:0", "--policies",
             str(Path(folder, "policy.yaml")), "--cluster", str(dump)],
            cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline().strip().rpartition(":")[2])
            assert process.stdout.readline().startswith("ready: ")
            yield Victim(process, port, Path(folder, "policy.yaml"))
        finally:
            process.terminate()
            process.wait(60)
            process.stdout.close()


def attacks(size: int) -> Iterator[tuple[str, Callable[[Victim], object]]]:
    """Yield names and attacks with bodies of about `size` bytes."""

    def sent(path: str, body: bytes, **headers: str) -> Callable[[Victim], object]:
        return lambda victim: victim.post(path, body, **headers)

    bomb = gzip.compress(bytes(8 * size), 9)
    for path in ("/filter", "/explain", "/status"):
        yield f"a gzip bomb to {path}", sent(path, bomb, **{"Content-Encoding": "gzip"})
    items = {
        "{}": b"{},", "[]": b"[],", "numbers": b"0,", "texts": b'"",', "the least nodes": b'{"metadata":{"name":"a"}},',
    }
    for name, item in items.items():
        many = item * (size // len(item))
        for where, body in {
            "Pod": b'{"Pod":[%b0]}', "Nodes": b'{%b,"Nodes":{"items":[%%b0]}}' % _POD,
            "NodeNames": b'{%b,"NodeNames":[%%b0]}' % _POD,
        }.items():
            yield f"{name} in {where}", sent("/filter", body % many)
    yield "a text without end", sent("/filter", b'"' + b"x" * size)
    yield "brackets", sent("/filter", b"[" * size)
    distinct = b",".join(
        b'{"metadata":{"name":"n%d"},"status":{"allocatable":{"cpu":"1","memory":"1","pods":"1"},"x":"%b"}}' % (
            number, b"y" * 2_000,
        )
        for number in range(size // 2_100)
    )
    yield "nodes that differ", sent("/filter", b'{%b,"Nodes":{"items":[%b]}}' % (_POD, distinct))
    heavy = b'{%b,"Nodes":{"items":[%b{}]}}' % (_POD, items["the least nodes"] * (size // 26))
    for name, pod in _ODD_PODS.items():
        yield f"a pod with {name}", sent("/filter", json.dumps({"Pod": pod, "NodeNames": ["n0"]}).encode())
    for name, spec in _HANGING.items():
        yield f"a policy with {name}", lambda victim, spec=spec: _edited(victim, spec)
    yield "eight of them at once", lambda victim: _at_once(victim, heavy, 8)
    yield "sixty bodies that do not end", lambda victim: _slow(victim, 60, size)


def _doubling(first: str, step: str) -> str:
    """Return variables of which each holds the one before twice, and their last name is `v30`."""
    chain = [f"  - {{name: v0, expression: {json.dumps(first)}}}"]
    chain += [f"  - {{name: v{n}, expression: {json.dumps(step.format(f'variables.v{n - 1}'))}}}" for n in range(1, 31)]
    return "  variables:\n" + "\n".join(chain) + "\n"


def _filter(expression: str) -> str:
    return f"  filter:\n  - {{name: f, expression: {json.dumps(expression)}}}\n"


_LISTS = _doubling("[node.metadata.name]", "[{0}, {0}]")
_HANGING = {
    "shared lists that are compared": _LISTS + _filter("variables.v30 == variables.v29"),
    "shared lists that are searched": _LISTS + _filter("variables.v30 in [variables.v29]"),
    "shared lists that are flattened": _LISTS + _filter("variables.v30.flatten(40).size() > 0"),
    "shared constants": _doubling("[1]", "[{0}, {0}]") + _filter("variables.v30 != variables.v29"),
    "texts that double": _doubling("node.metadata.name", "{0} + {0}") + _filter("variables.v30 == ''"),
    "loops in loops": _filter(
        "lists.range(9999).all(a, lists.range(9999).all(b, lists.range(9999).all(c, a + b + c != "
        "node.metadata.name.size())))",
    ),
    "a pattern that explodes": _filter("node.metadata.name.matches('(((((x{1,100}){1,100}){1,100}){1,100}){1,100})')"),
    "a schema that backtracks": "  params: {a: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!}\n"
                                "  paramsSchema: {properties: {a: {pattern: (a+)+$}}}\n"
    + _filter("true"),
    "a schema that refers to itself": "  params: {a: 1}\n  paramsSchema: {allOf: [{$ref: '#'}, {$ref: '#'}]}\n"
    + _filter("true"),
    "a schema from elsewhere": "  params: {a: 1}\n  paramsSchema: {$ref: 'file:///etc/hostname'}\n" + _filter("true"),
}
"""Specs of policies that would run for ever, or open what they must not."""
_SPEC = {"containers": [{"name": "c"}]}
_ODD_PODS = {
    "amounts beyond 64 bits": {"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": [
        {"name": "c", "resources": {"requests": {"cpu": "9e99", "memory": str(2**63 - 1)}}}] * 2}},
    "a phase that is a mapping": {"metadata": {"name": "p", "uid": "u"}, "spec": _SPEC, "status": {"phase": {}}},
    "containers that are none": {"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": {"a": 1}}},
    "a time before all times": {
        "metadata": {"name": "p", "uid": "u", "creationTimestamp": "0001-01-01T00:00:00Z"}, "spec": _SPEC,
    },
    "labels that are a list": {"metadata": {"name": "p", "uid": "u", "labels": [1]}, "spec": _SPEC},
}


def _edited(victim: Victim, spec: str) -> object:
    hostile = (
        f"apiVersion: policy.koordinator.sh/v1alpha2\nkind: SchedulerPlugin\nmetadata: {{name: hostile}}\nspec:\n{spec}"
    )
    taken = victim.edit(hostile)
    # The document may have been refused, or taken and stopped by its budget: what counts is that a call is answered.
    answer = victim.post("/filter", b'{%b,"NodeNames":["n0"]}' % _POD) if taken else "never looked at"
    return answer if taken and victim.edit(_POLICY) else None


def _at_once(victim: Victim, body: bytes, count: int) -> object:
    answers: list[object] = []
    threads = [threading.Thread(target=lambda: answers.append(victim.post("/filter", body))) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(answers)


def _slow(victim: Victim, count: int, size: int) -> object:
    with ExitStack() as opened:
        for _ in range(count):
            connection = opened.enter_context(socket.create_connection(("127.0.0.1", victim.port)))
            connection.sendall(
                f"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode()
                + b" " * min(size // 2, 2 * MEBIBYTE),
            )
        return victim.answers() or None


def run(size: int = 60 * MEBIBYTE) -> Iterator[Cost]:
    """Attack an extender and yield what each attack cost; an answer of None is one that should not be."""
    with victim() as attacked:
        for name, attack in attacks(size):
            stop, memory, health = threading.Event(), [attacked.memory()], [0.0]

            def watch(stop: threading.Event = stop, memory: list[int] = memory, health: list[float] = health) -> None:
                while not stop.is_set():
                    health.append(attacked.alive())
                    memory.append(attacked.memory())
                    stop.wait(0.01)

            watching = threading.Thread(target=watch)
            watching.start()
            try:
                answer = attack(attacked)
            finally:
                stop.set()
                watching.join()
            yield Cost(name, max(memory), max(health), answer if attacked.answers() else None)


def main() -> int:
    """Print what each attack cost; return 1 where one cost too much."""
    failed = False
    for cost in run():
        failed |= not cost.fine
        print(
            f"  {cost.name:<46} {cost.memory:>5} MiB  healthz {1e3 * cost.health:>7.1f} ms  "
            f"{'' if cost.fine else 'TOO MUCH  '}{cost.answer!r}",
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
