"""A server of the extender in a thread of its own, and a client that asks it as kube-scheduler does."""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import threading
import time
from contextlib import contextmanager
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from koordpolicy.__main__ import builtins
from koordpolicy.engine.cli import extender, scheduler
from koordpolicy.engine.reload import Mount
from tests.output_schemas import check_part

from ..conftest import pod

MEBIBYTE = 1024 * 1024
TOKEN = "a token that nobody can guess"

PUBLISHED = {"/status": ("status", "serverStatus"), "/explain": ("explain", "finding")}
"""The schemas of responses by path: the command, and the definition in its schema."""


class Client:
    """Asks a server as kube-scheduler does: one connection, JSON both ways."""

    def __init__(self, url, context=None):
        self.url, address = url, urlsplit(url)
        if address.scheme == "https":
            self.connection = http.client.HTTPSConnection(address.hostname, address.port, timeout=60, context=context)
        else:
            self.connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)

    def __call__(self, method, path, body=None):
        if isinstance(body, dict):
            body = json.dumps(body).encode()
        try:
            self.connection.request(
                method, path, body, {"Content-Type": "application/json"} if body is not None else {},
            )
            response = self.connection.getresponse()
            text, kind = response.read().decode(), response.headers.get_content_type()
        except Exception:
            self.connection.close()
            raise
        data = json.loads(text) if kind == "application/json" else text
        published = PUBLISHED.get(path.partition("?")[0])
        if published is not None and response.status == 200 and data is not text:
            check_part(*published, data)
        return response.status, data

    def metric(self, metric, /, path="/metrics", **labels):
        """Return a sample's value; 0 where there is none."""
        status, text = self("GET", path)
        assert status == 200
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == metric and labels.items() <= sample.labels.items():
                    return sample.value
        return 0

    def until(self, fulfils, path="/status"):
        """Ask until the answer is as wished, for at most a minute."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            status, answer = self("GET", path)
            if status == 200 and fulfils(answer):
                return answer
        raise AssertionError(f"still {answer}")


@contextmanager
def running(server, *, ready=True, context=None):
    """Run a server in a thread of its own until the block ends; raise what ends it before, or then."""
    loop, stop, bound, loaded, urls, faults = (
        asyncio.new_event_loop(), asyncio.Event(), threading.Event(), threading.Event(), [], [],
    )

    def tell(url):
        urls.append(url)
        bound.set()

    def serve():
        try:
            loop.run_until_complete(server.run("127.0.0.1", 0, stop, bound=tell, ready=lambda _: loaded.set()))
        except Exception as error:
            faults.append(error)
        bound.set()
        loaded.set()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert bound.wait(60)
        assert not ready or loaded.wait(60)
        if not faults:
            client = Client(urls[0], context)
            try:
                yield client
            finally:
                client.connection.close()
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        pending = {task for task in asyncio.all_tasks(loop) if not task.done()}
        loop.close()
    assert not pending
    if faults:
        raise faults[0]


def arguments(*words):
    """Return the options of a command line."""
    parser = argparse.ArgumentParser()
    scheduler.add_arguments(parser)
    # A process of its own for each test that needs none would take most of the time.
    return parser.parse_args(["--extender", "--compile-timeout", "0", *map(str, words)])


@contextmanager
def serving(*words, context=None):
    """Serve what a command line asks for."""
    with running(extender.server_of(arguments(*words), builtins), context=context) as client:
        yield client


def document(threshold=100, name="small-enough"):
    return (
        "apiVersion: policy.koordinator.sh/v1alpha2\nkind: SchedulerPlugin\n"
        f"metadata: {{name: {name}}}\nspec:\n"
        "  filter:\n"
        f'  - {{name: cores, expression: allocatable.cpu <= {threshold}, messageExpression: "string(allocatable.cpu) '
        f"+ 'm is too much'\"}}\n"
        "  score:\n"
        f"  - {{name: cores, expression: {threshold} > 5000 ? allocatable.cpu / 100 : 100 - allocatable.cpu / 100}}\n"
    ).replace(
        "expression: " + str(threshold) + " >", f'expression: "{threshold} >',
    ).replace("allocatable.cpu / 100}\n", 'allocatable.cpu / 100"}\n')


def edit(file, text):
    """Write a policy as an editor does, beside its folder and then renamed: no server reads a half of it."""
    beside = file.parent.with_name("beside.yaml")
    beside.write_text(text)
    beside.rename(file)


def question(*names, uid="u1", name="p", **rest):
    asked = pod(name, "1")
    asked["metadata"]["uid"] = uid
    return {"Pod": asked, "Nodes": None, "NodeNames": list(names)} | rest


def shadow_holds(folder):
    """Return a condition: the shadow runs exactly what its folder has by now."""
    digest = Mount(folder).read().version.digest
    return lambda status: status["shadow"]["policies"]["sources"][0]["digest"] == digest


def decide(client, *names, count=1):
    for number in range(count):
        asked = question(*(names or ("one", "two", "eight")), uid=f"u{number}")
        assert client("POST", "/filter", asked)[0] == 200
        assert client("POST", "/prioritize", question("one", "two", uid=f"u{number}"))[0] == 200


def compared(client, count):
    """Wait until so many answers were compared: the last comparison may come after its answer."""
    return client.until(lambda status: status["shadow"]["decisions"] >= count)["shadow"]
