"""A decision that does not end, in a process as it is deployed: probes, callers, the next edit, and SIGTERM."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from koordpolicy.engine.reload.state_store import FILE

from ..conftest import node
from ..hanging import GOOD, command, install
from .serving import Client, edit, question


def calling(function):
    return GOOD.replace("pod.metadata.name != 'refused'", f"hanging.{function}(pod.metadata.name)")


class Process:
    """A server in a process of its own, and what it wrote."""

    def __init__(self, words, environment):
        self.process = subprocess.Popen(
            command("scheduler", "--extender", "--bind", "127.0.0.1:0", *words), env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.log: list[str] = []
        self._reading = threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True)
        self._reading.start()
        self.client = Client(re.fullmatch(r"listening on (\S+)\n", self.process.stdout.readline())[1])

    def ready(self):
        line = self.process.stdout.readline()
        assert line.startswith("ready"), "".join(self.log)
        return self.client

    def ended(self, seconds):
        code = self.process.wait(seconds)
        self._reading.join(60)
        return code, "".join(self.log)


@contextmanager
def process(*words, environment):
    running = Process(words, environment)
    try:
        yield running
    finally:
        running.client.connection.close()
        running.process.kill()
        running.process.wait()
        running.process.stdout.close()
        running._reading.join()
        running.process.stderr.close()


@pytest.fixture
def environment(tmp_path):
    return install(tmp_path / "site")


@pytest.fixture
def words(tmp_path, policies):
    (policies / "policy.yaml").write_text(GOOD)
    dump = tmp_path / "cluster.json"
    dump.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [node("one"), node("two")]}))
    return ("--policies", policies, "--cluster", dump, "--decision-timeout", "2")


def edited(client, policies, text, generation):
    edit(policies / "policy.yaml", text)
    client.until(lambda status: status["policies"]["generation"] == generation)


def readiness(client, wanted):
    """Ask until /readyz has this status, and return its answer."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        status, answer = client("GET", "/readyz")
        if status == wanted:
            return answer
    raise AssertionError(f"/readyz is still {status}: {answer}")


def test_a_document_that_hangs_is_named_and_rolled_back_and_the_server_is_ready_once_it_returns(
    tmp_path, policies, words, environment,
):
    with process(*words, "--state-dir", tmp_path / "state", environment=environment) as server:
        client = server.ready()
        edited(client, policies, calling("wait"), 2)
        status, answer = client("POST", "/filter", question("one", name="hang"))
        assert (status, answer) == (503, {"error": "no decision within 2 s"})
        error = readiness(client, 503)
        assert re.search(
            r"\n\[-\]decisions failed: no decision can be made now: "
            r"filter about `shop/hang` has been under way for [\d.]+ s, of 2 s at most: "
            rf"the document `by-name` \({policies}/policy.yaml:3\) at `filter` does not return\n", error), error
        status, answer = client("POST", "/prioritize", question("one"))
        assert (status, answer["error"].partition(":")[0]) == (503, "no decision can be made now")
        found = client.until(lambda status: status["policies"]["generation"] == 3)
        assert {key: found["overdue"][key] for key in ("task", "pod", "plugin", "point", "generation", "shadow")} == {
            "task": "filter", "pod": "shop/hang", "plugin": "by-name", "point": "filter", "generation": 2,
            "shadow": False,
        }
        assert (
            found["ready"], client.metric("koord_policy_ready"), client.metric("koord_policy_decider_stuck"),
        ) == (False, 0, 1)
        assert client.metric("koord_policy_overdue_decisions_total", plugin="by-name", point="filter") == 1
        assert [each["code"] for each in found["policies"]["sources"][0]["problems"]] == ["overdue"]
        assert client("GET", "/healthz")[0] == 200
        told = subprocess.run(
            command("status", "--endpoint", client.url), check=False, capture_output=True, text=True, timeout=60,
        )
        assert (
            told.returncode, "NOT READY: filter about `shop/hang` has been under way for" in told.stdout,
        ) == (6, True)
        Path(environment["HANGING_PIPE"]).write_text("go on")
        readiness(client, 200)
        assert client("POST", "/filter", question("one", name="hang", uid="u2"))[1]["NodeNames"] == ["one"]
        saved = (tmp_path / "state" / FILE).read_text()
        assert "hanging.wait" not in saved
        edited(client, policies, calling("wait") + "# another version\n", 4)


def test_sigterm_ends_a_server_whose_decision_never_returns_and_leaves_the_state_whole(
    tmp_path, policies, words, environment,
):
    words = (*words, "--state-dir", tmp_path / "state", "--grace-period", "4")
    with process(*words, environment=environment) as server:
        client = server.ready()
        edited(client, policies, calling("spin"), 2)
        client("POST", "/filter", question("one", name="hang"))
        readiness(client, 503)
        client.until(lambda status: status["policies"]["generation"] == 3)
        server.process.send_signal(signal.SIGTERM)
        code, log = server.ended(60)
        assert code == 0
        assert "the last decision did not end within 1 s: the server ends without" in log
        assert "Traceback" not in log
    with process(*words, environment=environment) as server:
        client = server.ready()
        assert client("POST", "/filter", question("one", name="hang"))[1]["NodeNames"] == ["one"]
        problems = client("GET", "/status")[1]["policies"]["sources"][0]["problems"]
        assert [each["code"] for each in problems] == ["held"], "what was rolled back stays out over a restart"


def test_a_python_plugin_that_never_returns_is_named_and_ends_with_a_failing_liveness_probe(
    tmp_path, words, environment,
):
    with process(*words, "--enable", "Spins", "--stuck-timeout", "0.5", environment=environment) as server:
        client = server.ready()
        assert client("POST", "/filter", question("one"))[0] == 200
        client("POST", "/filter", question("one", name="hang"))
        assert "the plugin `Spins` (hanging 1.0) at `preFilter` does not return" in readiness(client, 503)
        end = time.monotonic() + 60
        while client("GET", "/healthz")[0] == 200:
            assert time.monotonic() < end
        assert "only a restart helps: filter about `shop/hang`" in client("GET", "/healthz")[1]
        assert client("GET", "/status")[1]["policies"][
            "generation"
        ] == 1, "it is in every set: there is nothing to go back to"
        server.process.send_signal(signal.SIGINT)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(60) in (0, 1)


def test_what_holds_the_interpreter_ends_the_process_within_the_grace_period(
    policies, words, environment,
):
    with process(*words, "--grace-period", "2", environment=environment) as server:
        client = server.ready()
        edited(client, policies, calling("hold"), 2)
        body = json.dumps(question("one", name="hang")).encode()
        client.connection.request("POST", "/filter", body)
        server.process.send_signal(signal.SIGTERM)
        code, log = server.ended(60)
        assert (code, "hanging.py" in log, "in hold" in log) == (1, True, True)


def test_edits_come_in_force_whatever_becomes_of_the_process_that_checks_them(
    policies, words, environment,
):
    with process(*words, "--compile-timeout", "1", environment=environment) as server:
        client = server.ready()
        for generation, number in enumerate((signal.SIGKILL, signal.SIGSTOP), start=2):
            (worker,) = children(server.process.pid)
            os.kill(worker, number)
            edited(client, policies, GOOD.replace("name: fine", f"name: fine-{number}"), generation)
            assert client("POST", "/filter", question("one", name="refused", uid=str(number)))[1]["NodeNames"] == []
        (worker,) = children(server.process.pid)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        assert not Path(f"/proc/{worker}").exists()


def children(process):
    return [int(word) for file in Path(f"/proc/{process}/task").glob("*/children") for word in file.read_text().split()]


def test_sigterm_ends_a_server_that_still_loads(tmp_path, words, environment):
    (tmp_path / "cluster.json").unlink()
    (tmp_path / "cluster.json").symlink_to(environment["HANGING_PIPE"])
    with process(*words, environment=environment) as server:
        client = server.client
        assert client("GET", "/readyz")[0] == 503
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
