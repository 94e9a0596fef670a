"""Run two replicas of the live scheduler under faults: `python -m tests.soak.live [--minutes N] [--seed N]`.

Control plane, replicas and sockets are real; each replica reaches the API server through a proxy that injects
faults. By the seed, the API server is killed and restarted, watches are cut or expire, requests are throttled,
reset, delayed or carried out without an answer, the leader is killed or stopped for a while, policies are edited,
nodes and pods are created and deleted. The exit code is 1 if a pod was bound twice, a node was over-committed at
any event, a pod that fits was not bound in the end, or another replica took over too late.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from ..e2e.build import binary
from ..e2e.control_plane import ApiError, ControlPlane
from ..e2e.proxy import FaultProxy, Faults

_ROOT = Path(__file__).resolve().parents[2]
NODES, CPU_PER_NODE = 20, 8000
PODS_AT_MOST = 200
"""In the cluster at once: 200 pods of at most 500 milli-cores fit on 20 nodes whichever five of them are gone."""
PODS = "/api/v1/namespaces/default/pods"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/koord-policy-scheduler"
LEASE_S, RETRY_S = 15.0, 2.0
TAKE_OVER_S = LEASE_S + 2.2 * RETRY_S + 5.0
"""Another replica leads at the latest: the lease's duration, a retry with its jitter, and a start of requests."""
SETTLED_S = 90.0
"""Once the faults end, the longest wait until all pods are bound: longer than a minute of watchdogs and back-off."""

ALL_RIGHTS = {
    "metadata": {"name": "soak"}, "roleRef": {
        "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:kube-scheduler"}]}
_STEP_S, _REPORT_S = 0.3, 30.0
POLICY = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {{name: soak}}
spec:
  score:
  - name: one
    expression: '{expression}'
"""


class Judge:
    """Judges the events of all pods, one by one."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.bound: dict[str, str] = {}
        """The node of each pod, by UID."""
        self._requests: dict[str, tuple[str, int]] = {}
        """Node and milli-cores of each pod that holds room, by UID."""

    def restart(self) -> None:
        """Expect all pods anew: a list follows."""
        self._requests.clear()

    def see(self, event: str, pod: Mapping[str, Any]) -> None:
        """Judge one event of a pod."""
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        node = pod["spec"].get("nodeName", "")
        before = self.bound.get(uid)
        if before and node != before:
            self.faults.append(f"the pod {name} was bound to {before}, and then to {node or 'none'}")
        if node:
            self.bound[uid] = node
        if event == "DELETED":
            self._requests.pop(uid, None)
        elif node:
            self._requests[uid] = node, _cpu_of(pod)
            used = sum(cpu for at, cpu in self._requests.values() if at == node)
            if used > CPU_PER_NODE:
                self.faults.append(f"{node} holds {used} of {CPU_PER_NODE} milli-cores once {name} is bound")


class Observer:
    """Follows all pods by watches of its own, beside the proxies, on a thread of its own."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self.judge = Judge()
        self._control_plane = control_plane
        self._stopped = False
        self._thread = threading.Thread(target=self._follow, name="observer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped = True

    def _follow(self) -> None:
        while not self._stopped:
            with contextlib.suppress(OSError, ApiError, ValueError):
                listed = self._control_plane.admin.get(PODS)
                self.judge.restart()
                for pod in listed["items"]:
                    self.judge.see("ADDED", pod)
                self._watch(listed["metadata"]["resourceVersion"])
            time.sleep(0.2)

    def _watch(self, version: str) -> None:
        kubeconfig = json.loads(self._control_plane.kubeconfig().read_text())
        request = urllib.request.Request(
            f"{self._control_plane.url}{PODS}?watch=1&resourceVersion={version}",
            headers={"Authorization": f"Bearer {kubeconfig['users'][0]['user']['token']}"})
        context = ssl.create_default_context(cafile=str(self._control_plane.certificate_authority))
        with urllib.request.urlopen(request, timeout=60, context=context) as frames:
            for line in frames:
                frame = json.loads(line)
                if frame["type"] == "ERROR" or self._stopped:
                    return
                self.judge.see(frame["type"], frame["object"])


def _cpu_of(pod: Mapping[str, Any]) -> int:
    return int(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"].removesuffix("m"))


class Replica:
    """A process of the scheduler behind its proxy."""

    def __init__(self, number: int, control_plane: ControlPlane, policies: Path, folder: Path, seed: int) -> None:
        self.name = f"replica {number}"
        self.proxy = FaultProxy(control_plane.url, control_plane.certificate_authority, folder, seed=seed)
        self.bindings: Counter[str] = Counter()
        """The number of bindings that the API server accepted, by the pods' UIDs."""
        self.identity = ""
        """The identity that the replica wrote into the Lease."""
        self.log = folder / "scheduler.log"
        self._state = folder / "state"
        self._state.mkdir()
        self._control_plane = control_plane
        self._policies = policies
        self.process: subprocess.Popen[bytes] | None = None
        self.proxy.observe = self._note
        self.proxy.__enter__()

    def start(self) -> None:
        kubeconfig = self._control_plane.kubeconfig(
            "system:kube-scheduler", url=self.proxy.url, authority=self.proxy.certificate_authority)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "koordpolicy", "scheduler", "--cluster", "kube", "--leader-elect=true",
                 "--scheduler-name", "default-scheduler", "--policies", str(self._policies),
                 # A replica that restarts beside invalid policies goes on with the last valid ones.
                 "--state-dir", str(self._state), "--invalid-at-start", "last-good"],
                cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, "KUBECONFIG": str(kubeconfig)})

    def restart_if_ended(self) -> bool:
        """As a kubelet does; return whether it had ended."""
        if self.process is None or self.process.poll() is None:
            return False
        self.start()
        return True

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def close(self) -> None:
        if self.process is not None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(15)
            self.process.kill()
            self.process.wait()
        self.proxy.__exit__(None, None, None)

    def _note(self, method: str, path: str, body: bytes, status: int) -> None:
        if status >= 300:
            return
        if method == "POST" and path.endswith("/binding"):
            self.bindings[json.loads(body)["metadata"]["uid"]] += 1
        elif method in {"POST", "PUT", "PATCH"} and "/leases" in path:
            self.identity = json.loads(body).get("spec", {}).get("holderIdentity") or self.identity


class Course:
    """The faults and the load, chosen at random by a seed."""

    def __init__(
        self, control_plane: ControlPlane, replicas: Sequence[Replica], policies: Path, seed: int,
    ) -> None:
        self.happened: Counter[str] = Counter()
        self.faults: list[str] = []
        self._plane = control_plane
        self._replicas = replicas
        self._policies = policies
        self._random = Random(seed)
        self._numbers = itertools.count()
        self._steps: Sequence[tuple[int, Callable[[], None]]] = (
            (30, self.create_pods), (15, self.delete_pods), (3, self.replace_node), (6, self.cut_watches),
            (6, self.disturb), (4, self.edit_policies), (1, self.kill_leader), (1, self.stop_leader),
            (1, self.restart_api_server))

    def step(self) -> None:
        """Do one thing at random. What the API server does not answer in time is done later."""
        weights = [weight for weight, _ in self._steps]
        (_, action), = self._random.choices(self._steps, weights)
        self.happened[action.__name__] += 1
        with contextlib.suppress(OSError, ApiError):
            action()
        for replica in self._replicas:
            if replica.restart_if_ended():
                self.happened[f"{replica.name} restarted"] += 1

    def create_pods(self) -> None:
        there = len(self._plane.admin.get(PODS)["items"])
        for _ in range(min(self._random.randint(1, 20), PODS_AT_MOST - there)):
            self._plane.admin.create(PODS, {
                "metadata": {"name": f"pod-{next(self._numbers)}"}, "spec": {
                    "terminationGracePeriodSeconds": 0, "containers": [{
                        "name": "main", "image": "example/main", "resources": {
                            "requests": {"cpu": f"{self._random.randint(1, 10) * 50}m"}}}]}})

    def delete_pods(self) -> None:
        pods = self._plane.admin.get(PODS)["items"]
        for pod in self._random.sample(pods, min(len(pods), self._random.randint(1, 15))):
            self._plane.admin.delete(f"{PODS}/{pod['metadata']['name']}?gracePeriodSeconds=0")

    def replace_node(self) -> None:
        """Delete a node with its pods, as a cloud does, and add it again."""
        name = f"node-{self._random.randrange(NODES)}"
        self._plane.admin.delete(f"/api/v1/nodes/{name}")
        for pod in self._plane.admin.get(f"{PODS}?fieldSelector=spec.nodeName%3D{name}")["items"]:
            self._plane.admin.delete(f"{PODS}/{pod['metadata']['name']}?gracePeriodSeconds=0")
        self.add_node(name)

    def add_node(self, name: str) -> None:
        amounts = {"cpu": f"{CPU_PER_NODE}m", "memory": "64Gi", "pods": "110"}
        self._plane.admin.create("/api/v1/nodes", {
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {"allocatable": amounts, "capacity": amounts,
                       "conditions": [{"type": "Ready", "status": "True"}]}})
        self._plane.admin.merge(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})

    def add_missing_nodes(self) -> None:
        there = {node["metadata"]["name"] for node in self._plane.admin.get("/api/v1/nodes")["items"]}
        for name in (f"node-{number}" for number in range(NODES)):
            if name not in there:
                self.add_node(name)
            else:
                self._plane.admin.merge(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})

    def cut_watches(self) -> None:
        self._random.choice(self._replicas).proxy.cut_watches()

    def disturb(self) -> None:
        """Let a proxy inject some faults until the next disturbance."""
        share = self._random.choice((0.0, 0.05, 0.3))
        kind = self._random.choice(("throttled", "unavailable", "reset_before", "reset_after", "expired", "delay_s"))
        self._random.choice(self._replicas).proxy.faults = Faults(**{kind: share})

    def edit_policies(self) -> None:
        """Write other policies, now and then invalid ones."""
        weight = self._random.randint(1, 9)
        expression = self._random.choice((f"{weight * 10}", "allocatable.cpu > 0 ? 1 : 0", "(("))
        _replace(self._policies / "policy.yaml", POLICY.format(expression=expression))

    def kill_leader(self) -> None:
        leader = self._leader()
        if leader is not None:
            leader.signal(signal.SIGKILL)
            self._expect_another(leader)
            leader.restart_if_ended()

    def stop_leader(self) -> None:
        """Stop the leader for longer than its lease, and continue it: it must not bind any more."""
        leader = self._leader()
        if leader is not None:
            leader.signal(signal.SIGSTOP)
            self._expect_another(leader)
            leader.signal(signal.SIGCONT)

    def restart_api_server(self) -> None:
        server = self._plane.components["kube-apiserver"]
        server.stop(kill=True)
        time.sleep(self._random.uniform(0, 5))
        server.start()
        self._plane.wait_until_ready()

    def _holder(self) -> str:
        return str(self._plane.admin.get(LEASE)["spec"].get("holderIdentity") or "")

    def _leader(self) -> Replica | None:
        holder = self._holder()
        return next((replica for replica in self._replicas if replica.identity == holder), None)

    def _expect_another(self, leader: Replica) -> None:
        for replica in self._replicas:
            replica.proxy.faults = Faults()
        holder, start = self._holder(), time.monotonic()
        while self._holder() in {holder, ""}:
            if time.monotonic() - start > TAKE_OVER_S:
                self.faults.append(f"nobody took over from {leader.name} within {TAKE_OVER_S:g} s")
                return
            time.sleep(0.2)
        self.happened["take-over"] += 1


def _replace(path: Path, content: str) -> None:
    scratch = path.with_name(f".{path.name}")
    scratch.write_text(content)
    scratch.replace(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; see the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.live", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=15, metavar="N", help="how long (default: 15)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the faults and the load (default: 1)")
    options = parser.parse_args(arguments)
    with TemporaryDirectory() as name, ControlPlane(binary(), Path(name, "control-plane")) as control_plane:
        faults = _run(control_plane, Path(name), options.minutes * 60, options.seed)
    for fault in faults[:50]:
        print(f"FAULT: {fault}")
    print("all held" if not faults else f"{len(faults)} faults")
    return 1 if faults else 0


def _run(control_plane: ControlPlane, folder: Path, seconds: float, seed: int) -> list[str]:
    policies = folder / "policies"
    policies.mkdir()
    _replace(policies / "policy.yaml", POLICY.format(expression="1"))
    observer = Observer(control_plane)
    replicas = []
    try:
        for number in (1, 2):
            place = folder / f"replica-{number}"
            place.mkdir()
            replicas.append(Replica(number, control_plane, policies, place, seed + number))
        course = Course(control_plane, replicas, policies, seed)
        control_plane.admin.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", ALL_RIGHTS)
        course.add_missing_nodes()
        observer.start()
        for replica in replicas:
            replica.start()
        end = time.monotonic() + seconds
        report = 0.0
        while (now := time.monotonic()) < end and not observer.judge.faults:
            course.step()
            if now >= report:
                report = now + _REPORT_S
                print(f"{end - now:4.0f} s left, {len(observer.judge.bound)} pods bound", flush=True)
            time.sleep(_STEP_S)
        unbound = _settle(control_plane, course, replicas)
        print(f"seed {seed}, {seconds / 60:g} minutes: {len(observer.judge.bound)} pods bound; {dict(course.happened)}")
        for replica in replicas:
            print(f"{replica.name}: {sum(replica.bindings.values())} bindings; {dict(replica.proxy.counts)}")
        twice = [uid for uid, count in sum((each.bindings for each in replicas), Counter()).items() if count > 1]
        found = [*observer.judge.faults, *course.faults, *(f"the pod {uid} was bound twice" for uid in twice), *unbound]
        if found:
            for replica in replicas:
                print(f"{replica.name}, end of its log:\n{replica.log.read_text(errors='replace')[-4000:]}")
        return found
    finally:
        observer.stop()
        for replica in replicas:
            replica.close()


def _settle(control_plane: ControlPlane, course: Course, replicas: Sequence[Replica]) -> list[str]:
    """End all faults and wait until each pod is bound; return a fault for each one that is not."""
    for replica in replicas:
        replica.proxy.faults = Faults()
        replica.signal(signal.SIGCONT)
        replica.restart_if_ended()
    course.add_missing_nodes()
    deadline = time.monotonic() + SETTLED_S
    while True:
        waiting = [pod["metadata"]["name"] for pod in control_plane.admin.get(PODS)["items"]
                   if not pod["spec"].get("nodeName")]
        if not waiting or time.monotonic() > deadline:
            return [f"the pod {name} was not bound within {SETTLED_S:g} s after the last fault" for name in waiting]
        for replica in replicas:
            replica.restart_if_ended()
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
