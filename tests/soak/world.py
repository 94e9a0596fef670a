"""The world of a soak run: sources with their writers, a filesystem and a clock with faults, and a watch.

`Watch` has the active set and checks every set that is activated: the description of each document names its
publication, so that a half-applied set, an unpublished one and one that returned by itself are detected.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import shutil
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from koordpolicy.engine.files import write_new
from koordpolicy.engine.framework.registry import Live, Plugin, Registry
from koordpolicy.engine.reload import Builder
from koordpolicy.engine.reload.watch import FileEvents
from koordpolicy.engine.source import Source

DOCUMENT = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata:
  name: {source}-{number}
  annotations: {{policy.koordinator.sh/description: "{source} {publication} {count}"}}
spec:
{profiles}  params: {{publication: {publication}}}
  variables:
  - {{name: free, expression: allocatable.cpu - requested.cpu}}
  filter:
  - name: fits
    expression: variables.free >= requests.cpu && params.publication > 0
    messageExpression: "'publication ' + string(params.publication) + ' sees ' + string(variables.free) + 'm'"
  score:
  - {{name: free-first, expression: "variables.free * 100 / (allocatable.cpu + {number})"}}
"""


class Clock:
    """The wall clock, which somebody sets forward and back."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.offset = 0.0

    def __call__(self) -> float:
        return self._now() + self.offset


@dataclass
class Disk:
    """Faults of the filesystem; fulfils `OpenAt` for mounts and `write` for the store."""

    denied: set[str] = field(default_factory=set)
    """Names of files and directories that nobody may open."""
    full: bool = False
    refused: int = 0

    def open_at(self, path: str, flags: int, directory: int | None) -> int:
        """Open as the operating system does, where that is allowed."""
        if Path(path).name in self.denied:
            self.refused += 1
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return os.open(path, flags | os.O_CLOEXEC, dir_fd=directory)

    def write(self, path: Path, content: bytes) -> None:
        """Write a file, of which half fits where the disk is full."""
        if self.full:
            self.refused += 1
            path.write_bytes(content[:len(content) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write_new(path, content)


class Events:
    """Makes hints of which all, some or none arrive."""

    def __init__(self, rng: random.Random) -> None:
        self._random = rng
        self.lost = 0.0
        """0 to 1."""

    def __call__(self, changed: Callable[[], None]) -> FileEvents:
        def arrived() -> None:
            if self._random.random() >= self.lost:
                changed()

        return FileEvents(arrived)


class Broken(AssertionError):
    """An invariant is broken."""


class Watch(Live):
    """Checks every activated set; `published` are (source, publication) pairs, `allow_back` those that may return."""

    def __init__(self) -> None:
        super().__init__()
        self.published: dict[tuple[str, int], int] = {}
        """The number of documents of each publication."""
        self.force: dict[str, int] = {}
        self.faults: list[str] = []
        self.swaps = 0
        self.going_back = False
        """True if an older publication may be activated: after a rollback, a restart and an unmount."""

    def activate(self, registry, stage=None) -> Registry:
        """Activate a set; see `Live.activate`."""
        registry = super().activate(registry, stage)
        self.swaps += 1
        self._judge(registry)
        return registry

    def _judge(self, registry: Registry) -> None:
        found: dict[str, dict[int, int]] = {}
        for plugin in registry.plugins.values():
            if not plugin.source:
                continue
            source, publication, _ = plugin.description.split()
            found.setdefault(source, {}).setdefault(int(publication), 0)
            found[source][int(publication)] += 1
        force = {}
        for source, publications in found.items():
            if len(publications) != 1:
                self.faults.append(f"{source} is active in several publications at once: {publications}")
                continue
            (publication, count), = publications.items()
            if self.published.get((source, publication)) != count:
                self.faults.append(f"{count} documents of publication {publication} of {source} are active, of "
                                   f"{self.published.get((source, publication))} that were published")
            if publication < self.force.get(source, 0) and not self.going_back:
                self.faults.append(f"{source} went back from publication {self.force[source]} to {publication}")
            force[source] = publication
        self.force = force


class Generations(Builder):
    """A builder that knows which of its builds somebody still holds plugins of."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._made: weakref.WeakValueDictionary[int, object] = weakref.WeakValueDictionary()
        self.builds = 0
        self.plugins = 0

    def __call__(self, sources: Sequence[Source]) -> list[Plugin]:
        plugins = super().__call__(sources)
        self.builds += 1
        for plugin in plugins:
            self._made[id(plugin.make)] = plugin.make
        return plugins

    @property
    def alive(self) -> int:
        """The number of distinct compiled documents in memory."""
        return len(self._made)


class ConfigMap:
    """A mounted ConfigMap and the kubelet that writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._number = 0
        path.mkdir(parents=True, exist_ok=True)

    def write(self, files: Mapping[str, bytes]) -> None:
        """Publish: a directory per version, `..data` swapped by a rename, links, the old version removed."""
        self._number += 1
        version = f"..2026_01_01_00_00_{self._number:02}.{self._number}"
        (self.path / version).mkdir()
        for name, content in files.items():
            (self.path / version / name).write_bytes(content)
        link, beside = self.path / "..data", self.path / "..data_tmp"
        old = link.readlink() if link.is_symlink() else None
        beside.symlink_to(version)
        beside.rename(link)
        for name in files:
            if not (self.path / name).is_symlink():
                (self.path / name).symlink_to(f"..data/{name}")
        for entry in list(self.path.iterdir()):
            if not entry.name.startswith("..") and entry.name not in files:
                entry.unlink()
        if old is not None:
            shutil.rmtree(self.path / old)

    def unmount(self) -> None:
        """Leave an empty mount point."""
        empty(self.path)


def empty(directory: Path) -> None:
    """Remove all that a directory holds."""
    for entry in list(directory.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def documents(source: str, publication: int, count: int) -> dict[str, bytes]:
    """Return a publication as files, one document each; those of the crowd are of a profile that no pod meets."""
    profiles = "  profiles: [another]\n" if source == "crowd" else ""
    return {
        f"{source}-{number:05}.yaml": DOCUMENT.format(
            source=source, number=number, publication=publication, count=count, profiles=profiles).encode()
        for number in range(count)
    }


def give_back() -> None:
    """Have the C library give memory that is free back to the system, where it can: what is left is in use."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def resident() -> int:
    """Return how many bytes of memory the process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
