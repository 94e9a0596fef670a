"""A distribution whose function and plugin hang when they are asked about a pod called `hang`, for real processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

CODE = '''
import os

from koordpolicy.plugin import cel_function, python_plugin
from koordpolicy.engine.framework.points import Framework


def wait(name):
    """Return only once somebody has written to the pipe."""
    if name == "hang":
        with open(os.environ["HANGING_PIPE"]) as pipe:
            pipe.read()
    return True


def spin(name):
    while name == "hang":
        pass
    return True


def hold(name):
    """Hold the interpreter in one call into C code, for hours."""
    if name == "hang":
        sum(range(10**15))
    return True


class Spins:
    def __init__(self, args, handle):
        pass

    def pre_filter(self, state, pod, snapshot):
        spin(pod.name)


def example(call):
    return cel_function(f"hanging.{call.__name__}", call, ["string"], "bool", doc="Hang.", pure=False)


OFFERS = [*map(example, (wait, spin, hold)), python_plugin("Spins", Framework.SCHEDULER, Spins)]
'''
GOOD = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: by-name}
spec:
  filter:
  - {name: fine, expression: pod.metadata.name != 'refused'}
"""
"""A policy that calls no such function."""


def install(folder: Path) -> dict[str, str]:
    """Put the distribution into a folder and return the environment of processes that find it there."""
    beside = folder / "hanging-1.0.dist-info"
    beside.mkdir(parents=True)
    (folder / "hanging.py").write_text(CODE)
    (beside / "METADATA").write_text("Metadata-Version: 2.1\nName: hanging\nVersion: 1.0\n")
    (beside / "entry_points.txt").write_text("[koordpolicy.plugins]\nhanging = hanging:OFFERS\n")
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, "PYTHONPATH": path, "HANGING_PIPE": str(pipe)}


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "koordpolicy", *map(str, words)]
