"""A worker whose loader does what a text says, beside loading it: what no document should be able to make it do."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

from koordpolicy.engine.documents import load
from koordpolicy.engine.reload.vet import serve

COMMAND = (sys.executable, "-P", str(Path(__file__).resolve()))


def _odd(sources):
    sources = tuple(sources)
    for source in sources:
        found = re.search(r"^# do: (\w+) ?(.*)$", source.text, re.MULTILINE)
        match found and found[1]:
            case "wait":
                signal.pause()
            case "spin":
                while True:
                    pass
            case "allocate":
                bytearray(1 << 32)
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "die_once":
                marker = Path(found[2])
                if marker.exists():
                    marker.unlink()
                    os.kill(os.getpid(), signal.SIGKILL)
            case "wait_once":
                marker = Path(found[2])
                if marker.exists():
                    marker.unlink()
                    signal.pause()
            case "fail":
                raise RuntimeError("a fault of ours")
    return load(sources)


if __name__ == "__main__":
    serve(_odd)
