"""The files of a machine by logical name: their paths, and their texts as control groups v1 has them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ..host.control_groups import BEST_EFFORT, GUARANTEED, TIERS, ControlGroups, LogicalDirectories, is_unsafe
from ..host.files import FileReader
from . import values
from .table import FILES, GROUP_TASKS, SCHEMATA, ResourceFile, VersionedFile, logical_name, setting

_RESCTRL_FILES: Final[Mapping[str, ResourceFile]] = {"schemata": SCHEMATA, "tasks": GROUP_TASKS}
_READ_OF_RESCTRL: Final = ("info/", "mon_data/", "mon_groups/")
_MOST_NAMES: Final = 65_536
_UNREAD: Final = "\x00"
"""Stands for a file that was not looked up in the round; compared by identity."""


@dataclass(frozen=True, slots=True)
class FilePlace:
    """A file of this machine: its row, its version's part of it, and the paths to read and to write."""

    name: str
    file: ResourceFile
    versioned: VersionedFile
    path: str
    read_path: str
    named_as_v2: bool = False
    """The file was named as control groups v2 name it, so texts for it have the units of v2."""

    @property
    def directory(self) -> str:
        """The path of the directory."""
        return self.path.rpartition("/")[0]

    def logical(self, content: str) -> str:
        """Return the logical text of the file's own; raise `ValueError` if it is malformed."""
        return content if self.versioned.of is None else self.versioned.of(content)

    def logical_request(self, text: str) -> str:
        """Return the logical text of one to write; raise `ValueError` for one that logical units cannot express."""
        if not self.named_as_v2:
            return text
        if self.file.name == "cpu.cfs_quota_us" and values.period_of(text) != "100000":
            raise ValueError(f"`{text.strip()}`: only the period 100000 can be written with the quota")
        of = self.file.v2.of if self.file.v2 is not None else None
        return text if of is None else of(text)

    def native(self, text: str, content: str) -> str:
        """Return this version's text of a logical one, given the file's content; raise `ValueError` without one."""
        return text if self.versioned.to is None else self.versioned.to(text, content)


class UnsupportedFileError(LookupError):
    """This machine has no file of that name: another version of control groups, no such mount, or an unknown name."""


@dataclass(slots=True)
class FileTree:
    """The files of a machine.

    `resctrl`, `proc` and `sys` are the roots of what the logical names `resctrl/`, `proc/` and `sys/` begin with.
    """

    groups: ControlGroups
    reader: FileReader = field(default_factory=FileReader)
    resctrl: str = "/sys/fs/resctrl"
    proc: str = "/proc"
    sys: str = "/sys"
    observer: Callable[[FilePlace, str], None] | None = None
    """Called with the content of every file that is read where it is also written."""
    lacking: set[str] = field(default_factory=set)
    """The names of files that the kernel does not have, as far as it was noticed since the last sweep."""
    directories: LogicalDirectories = field(init=False)
    _places: dict[str, FilePlace] = field(default_factory=dict)
    _generation: int = 0
    _children: dict[str, tuple[tuple[int, int, int], tuple[str, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.directories = LogicalDirectories(self.groups)
        self.resctrl, self.proc, self.sys = (each.rstrip("/") for each in (self.resctrl, self.proc, self.sys))

    def place(self, name: str) -> FilePlace:
        """Return the place of a file, whether or not it exists.

        Raises `UnsupportedFileError`.
        """
        if self._generation != self.directories.generation or len(self._places) >= _MOST_NAMES:
            self._generation, self._places = self.directories.generation, {}
        places = self._places
        found = places.get(name)
        if found is None:
            found = places[name] = self._find(name)
        return found

    def _find(self, name: str) -> FilePlace:
        directory, _, base = name.rpartition("/")
        head = directory.partition("/")[0]
        if head in ("proc", "sys", "resctrl"):
            return self._outside(name, head)
        logical = logical_name(base)
        file = FILES.get(logical)
        if file is None:
            raise UnsupportedFileError(f"`{name}`: there is no file `{base}` in the table of files")
        versioned = file.of_version(self.groups.version)
        if versioned is None:
            raise UnsupportedFileError(f"`{name}`: control groups v{self.groups.version} do not have the file")
        root = self.groups.root(file.subsystem)
        if root is None:
            raise UnsupportedFileError(f"`{name}`: control groups have no subsystem `{file.subsystem}` here")
        below = self.directories.path(directory)
        if below is None:
            raise UnsupportedFileError(f"`{name}`: there is no directory `{directory}`")
        where = f"{root}/{below}" if below else root
        path = f"{where}/{versioned.name}"
        return FilePlace(name, file, versioned, path, f"{where}/{versioned.read}" if versioned.read else path,
                         logical != base)

    def _outside(self, name: str, head: str) -> FilePlace:
        rest = name.partition("/")[2]
        if is_unsafe(rest):
            raise UnsupportedFileError(f"`{name}` is not the name of a file")
        if head == "resctrl":
            file = _RESCTRL_FILES.get(rest.rpartition("/")[2])
            if file is None or rest.startswith(_READ_OF_RESCTRL):
                file = setting(name)
            path = f"{self.resctrl}/{rest}"
        else:
            file = setting(name)
            path = f"{self.proc if head == 'proc' else self.sys}/{rest}"
        versioned = file.of_version(self.groups.version)
        assert versioned is not None
        return FilePlace(name, file, versioned, path, path)

    def read(self, name: str) -> str:
        """Return a file's logical text, without the final line break.

        Raises `UnsupportedFileError`, `OSError`, and `ValueError` for a malformed content.
        """
        place = self.place(name)
        content = self.reader.text(place.read_path)
        if self.observer is not None and place.read_path is place.path:
            self.observer(place, content)
        of = place.versioned.of
        return content if of is None else of(content)

    def walk(self, tier: str = BEST_EFFORT) -> Iterator[str]:
        """Yield the existing logical directories of a tier, parents first: its own, pods, containers.

        A directory that vanishes meanwhile is left out.
        """
        subsystem = "cpuset" if self.groups.root("cpuset") is not None else "cpu"
        root, below = self.groups.root(subsystem), self.directories.path(tier)
        top = f"{root}/{below}"
        if root is None or below is None or not os.path.isdir(top):  # noqa: PTH112 - a path per directory and second
            return
        yield tier
        found = []
        for base in self._below(top):
            pod = self.directories.pod_name(base)
            if pod is not None:
                found.append((pod, f"{top}/{base}"))
        yield from (f"{tier}/{pod}" for pod, _ in found)
        for pod, path in found:
            for base in self._below(path):
                container = self.directories.container_name(pod, base)
                if container is not None:
                    yield f"{tier}/{pod}/{container}"

    def _below(self, path: str) -> tuple[str, ...]:
        """Return the names of the directories in a directory, sorted.

        A control group's number of links tells how many there are: only a directory where it changed is listed again,
        or after `changed_below`.
        """
        try:
            found = os.stat(path)  # noqa: PTH116 - called for every directory and tick
            version = found.st_ino, found.st_nlink, found.st_mtime_ns
            known = self._children.get(path)
            if known is not None and known[0] == version and found.st_nlink > 1:
                return known[1]
            with os.scandir(path) as entries:
                names = tuple(sorted(each.name for each in entries if each.is_dir(follow_symlinks=False)))
        except OSError:
            self._children.pop(path, None)
            return ()
        self._children[path] = version, names
        return names

    def changed_below(self, path: str) -> None:
        """List a directory again at the next walk: one of those in it is gone, and another may have come."""
        self._children.pop(path, None)

    def missed(self, name: str) -> None:
        """Take note that a file is not there: the kernel has none of that name if the tiers' root lacks it as well.

        What a control group has not, none below it has. A directory that is gone says nothing.
        """
        base = name.rpartition("/")[2]
        if name.partition("/")[0] in TIERS:
            lacks = map(self._lacks, (name, f"{GUARANTEED}/{base}"))
            if all(lacks):
                self.lacking.add(base)

    def _lacks(self, name: str) -> bool:
        place = self.place(name)
        return os.path.isdir(place.directory) and not os.path.exists(place.read_path)  # noqa: PTH110, PTH112 - paths are texts here

    def sweep(self) -> None:
        """Forget directories, of which some are gone, and which files the kernel lacks; once a minute."""
        self._children.clear()
        self.lacking.clear()

    def view(self) -> FilesView:
        """Return the files for one round of a strategy."""
        return FilesView(self)


class FilesView(Mapping[str, str]):
    """The files of a machine in one round, by logical name with their logical texts; read when they are looked up.

    A text that was looked up stays the same within the round, even if its directory goes away. A file that does not
    exist, cannot be read or is malformed is not in the mapping. Iteration covers the CPU sets of the best-effort tier,
    which are all that strategies have to find; every other file is looked up by name.
    """

    __slots__ = ("_texts", "_tree", "_walked")

    def __init__(self, tree: FileTree) -> None:
        self._tree = tree
        self._texts: dict[str, str | None] = {}
        self._walked: tuple[str, ...] | None = None

    def __getitem__(self, name: str) -> str:
        text = self._text(name)
        if text is None:
            raise KeyError(name)
        return text

    def get(self, name: str, default: Any = None) -> Any:
        """Return the text of a file, `default` without one; most look-ups are by this method."""
        text = self._text(name)
        return default if text is None else text

    def _text(self, name: str) -> str | None:
        text = self._texts.get(name, _UNREAD)
        if text is _UNREAD:
            text = self._texts[name] = self._read(name)
        return text

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._text(name) is not None

    def __iter__(self) -> Iterator[str]:
        if self._walked is None:
            self._walked, complete = self._walk()
            if not complete:  # a directory is gone, and another one may have come instead
                self._walked, _ = self._walk()
        return iter(self._walked)

    def _walk(self) -> tuple[tuple[str, ...], bool]:
        names = [f"{directory}/cpuset.cpus" for directory in self._tree.walk()]
        found = tuple(name for name in names if self.get(name) is not None)
        return found, len(found) == len(names)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def looked_up(self) -> Mapping[str, str]:
        """The files that were looked up so far and exist, with their texts: what the round depended on."""
        return {name: text for name, text in self._texts.items() if text is not None}

    def _read(self, name: str) -> str | None:
        lacking = self._tree.lacking
        if lacking and name.rpartition("/")[2] in lacking:
            return None
        try:
            return self._tree.read(name)
        except FileNotFoundError:
            self._gone(name)
            return None
        except (UnsupportedFileError, OSError, ValueError):
            return None

    def _gone(self, name: str) -> None:
        """Look again for what is beside a directory that went away."""
        with contextlib.suppress(UnsupportedFileError):  # the pods may have changed meanwhile
            self._tree.missed(name)
            self._tree.changed_below(self._tree.place(name).directory.rpartition("/")[0])


def writable_roots(tree: FileTree) -> tuple[str, ...]:
    """Return the directories below which all files are that this tree may write."""
    return (*dict.fromkeys(tree.groups.roots.values()), tree.resctrl, tree.proc, tree.sys)
