"""Loads of pods: `python agent_load.py KIND ...`, a process that begins when it reads a line.

It imports nothing of the project, so that it begins fast and holds little memory of its own.
"""

from __future__ import annotations

import json
import sys
import time


def burn() -> None:
    """Use as much CPU as there is."""
    while True:
        pass


def waves(busy: float, rest: float) -> None:
    """Use as much CPU as there is for some seconds, and none for others, in step with all processes like it."""
    while True:
        while time.time() % (busy + rest) < busy:
            pass
        time.sleep(busy + rest - time.time() % (busy + rest))


def hold(mib: float) -> None:
    """Hold so much memory."""
    content = bytearray(int(mib) << 20)
    for page in range(0, len(content), 4096):
        content[page] = 1
    print("held", flush=True)
    time.sleep(3600)


def wake(warm_up: float, seconds: float) -> None:
    """Sleep for 2 ms again and again; print by how many milliseconds the wake-ups are late."""
    late, first, end = [], time.monotonic() + warm_up, time.monotonic() + warm_up + seconds
    while (begun := time.monotonic()) < end:
        time.sleep(0.002)
        if begun >= first:
            late.append((time.monotonic() - begun) * 1000 - 2)
    print(json.dumps(late), flush=True)


def serve(warm_up: float, seconds: float) -> None:
    """Serve requests that need 20 ms of CPU each, 20 ms apart; print how many milliseconds each took."""
    took, first, end = [], time.monotonic() + warm_up, time.monotonic() + warm_up + seconds
    while (begun := time.monotonic()) < end:
        done = time.thread_time() + 0.02
        while time.thread_time() < done:
            pass
        if begun >= first:
            took.append((time.monotonic() - begun) * 1000)
        time.sleep(0.02)
    print(json.dumps(took), flush=True)


if __name__ == "__main__":
    kinds = {"burn": burn, "waves": waves, "hold": hold, "wake": wake, "serve": serve}
    print("ready", flush=True)
    if sys.stdin.readline():
        kinds[sys.argv[1]](*map(float, sys.argv[2:]))
