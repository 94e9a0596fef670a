"""The last states of a node on disk, so that an agent enforces from its start, also without API server and kubelet.

One file, `states.json`: a line with format, length and sha256, then JSON. It is replaced atomically, and used as a
whole or not at all. Links and files of other users than this one and root are refused.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from koordpolicy.engine.files import make_own_directory, read_own, write_whole

_LOG: Final = logging.getLogger(__name__)

FILE: Final = "states.json"
PODS: Final = "Pod"
_FORMAT: Final = "koord-policy/agent-states/1"
_LARGEST: Final = 64 << 20
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class StoredState(msgspec.Struct, frozen=True):
    """A state, and when it was last heard of, in seconds since the epoch."""

    heard: float
    object: Any


class _Content(msgspec.Struct, frozen=True):
    node: str
    boot: str
    states: dict[str, StoredState]


_CONTENT: Final = msgspec.json.Decoder(_Content)


def boot_id(path: Path = _BOOT_ID) -> str:
    """Return the id of this start of the machine; empty if the kernel does not say."""
    try:
        return path.read_text("ascii").strip()
    except (OSError, ValueError):
        return ""


class StateStore:
    """The states of one node in a directory (`--state-dir`)."""

    def __init__(self, directory: str | os.PathLike[str], node: str, *, boot: str | None = None) -> None:
        self._directory = Path(directory)
        self._node = node
        self._boot = boot_id() if boot is None else boot
        self.path = self._directory / FILE

    def encode(self, states: Mapping[str, StoredState]) -> bytes:
        """Return the content of the file."""
        body = msgspec.json.encode(_Content(self._node, self._boot, dict(states)))
        return f"{_FORMAT} {len(body)} {hashlib.sha256(body).hexdigest()}\n".encode() + body

    def write(self, content: bytes) -> None:
        """Write what `encode` returned; raises `OSError`, and then the former file is unchanged."""
        make_own_directory(self._directory)
        write_whole(self.path, content)

    def load(self) -> dict[str, StoredState]:
        """Return the states; empty, which is logged, if there is no file that can be used.

        Pods of an earlier start of the machine are left out: their control groups are gone.
        """
        try:
            content = read_own(self.path, most=_LARGEST)
        except FileNotFoundError:
            return {}
        except OSError as error:
            _LOG.warning("the states in `%s` cannot be read, and are not used: %s", self.path,
                         error.strerror or error)
            return {}
        try:
            found = _decoded(content)
        except (ValueError, RecursionError) as error:
            _LOG.warning("the states in `%s` are not used: %s", self.path, error)
            return {}
        if found.node != self._node:
            _LOG.warning("the states in `%s` are those of the node `%s`, and are not used", self.path, found.node)
            return {}
        states = dict(found.states)
        if self._boot and found.boot != self._boot:
            states.pop(PODS, None)
        return states


def _decoded(content: bytes) -> _Content:
    """Return a file's content; raises `ValueError`."""
    head, _, body = content.partition(b"\n")
    parts = head.split(b" ")
    if len(parts) != 3 or parts[0] != _FORMAT.encode():
        raise ValueError(f"the format is not `{_FORMAT}`")
    if parts[1] != str(len(body)).encode() or parts[2] != hashlib.sha256(body).hexdigest().encode():
        raise ValueError("the file is incomplete or was changed")
    return _CONTENT.decode(body)
