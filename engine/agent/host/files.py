"""Small files of the kernel, read often: their descriptors stay open.

A control group's file is read with one call of `pread`, a tenth of what opening, reading and closing it takes.
Files on disk (in tests, and in trees that imitate a machine) are read correctly too, at the price of one more call.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Final

_PAGE: Final = 4096
_HALF: Final = _PAGE // 2
"""The kernel fills a page with whole records, which are shorter than this: less than it is the whole file."""
_SHORT: Final = 448
"""The bytes that are read first of files that are read together: memory for so few is had without a search. A file of
the kernel that is made as a whole, as those of control groups, is shorter or fills them."""
_LARGEST: Final = 16 * 1024 * 1024
_GONE: Final = frozenset({errno.ENODEV, errno.ESTALE, errno.ENOENT, errno.ENXIO})
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_FEWEST: Final = 64
_SWEEP_S: Final = 60
_LISTS: Final = ("/tasks", "/cgroup.procs")
"""Control groups v1 make these lists when they are opened: an open file shows an old one as long as it is read more
often than once a second."""


class _OpenFile:
    """A descriptor. `replaceable`: the path may name another file meanwhile, without an error from the descriptor."""

    __slots__ = ("descriptor", "replaceable", "used")

    def __init__(self, descriptor: int, *, replaceable: bool) -> None:
        self.descriptor = descriptor
        self.replaceable = replaceable
        self.used = True


class FilesTogether:
    """Files that are read together, round after round, as those of a node's control groups are (`read_together`).

    What is found out about the descriptors serves for all rounds until one is opened or closed.
    """

    __slots__ = ("__weakref__", "descriptors", "paths", "short", "used", "version")

    def __init__(self, paths: tuple[str, ...]) -> None:
        self.paths = paths
        self.descriptors: list[int] | None = None
        """All descriptors, if none can be out of date without an error; else each file is read by itself."""
        self.version = -1
        self.short = True
        """True as long as all contents were short."""
        self.used = False


class FileReader:
    """Reads files by path through descriptors that stay open; from any thread.

    At most `most` descriptors stay open (half of what the process may have); further files, and lists of processes, are
    opened for each reading. Descriptors that were not read between two sweeps are closed, as those of containers that
    ended; when a file is opened, the last sweep was at most a minute ago (by `clock`, in seconds).
    """

    __slots__ = ("_clock", "_files", "_lock", "_most", "_swept", "_together", "_version")

    def __init__(self, most: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._swept = clock()
        self._files: dict[str, _OpenFile] = {}
        self._version = 0
        """Changes whenever a descriptor is opened or closed."""
        self._together: weakref.WeakSet[FilesTogether] = weakref.WeakSet()
        self._lock = threading.Lock()  # a descriptor that is closed while it is read could be another file's
        self._most = max(_FEWEST, most_descriptors() // 2 if most is None else most)

    def __len__(self) -> int:
        """The number of open descriptors."""
        return len(self._files)

    def read(self, path: str) -> bytes:
        """Return the whole content of a file as it is now.

        Raises `FileNotFoundError` if there is none (any more), and other `OSError`s, also for more than 16 MiB.
        """
        with self._lock:
            return self._read(path)

    def together(self, paths: Iterable[str]) -> FilesTogether:
        """Return these files for being read together, round after round."""
        made = FilesTogether(tuple(paths))
        with self._lock:
            self._together.add(made)
        return made

    def read_together(
        self, files: FilesTogether, clock: Callable[[], int] | None = None, places: Sequence[int] | None = None,
    ) -> tuple[list[bytes], list[int]]:
        """Return the content of each file, empty for one that is missing or cannot be read, and when it was read.

        `clock` returns the time after each reading; without it there are no times. `places` are those of the files
        that are read; None for all of them.
        """
        with self._lock:
            files.used = True
            if files.version != self._version:
                self._find(files)
            if files.descriptors is not None:
                try:
                    return _read_open(files, files.descriptors, clock, places)
                except OSError:  # a control group is gone
                    files.version = -1
            contents, times = [], []
            for path in files.paths if places is None else map(files.paths.__getitem__, places):
                try:
                    contents.append(self._read(path))
                except OSError:
                    contents.append(b"")
                if clock is not None:
                    times.append(clock())
            return contents, times

    def _find(self, files: FilesTogether) -> None:
        files.version = self._version
        found = [self._files.get(path) for path in files.paths]
        known = [file.descriptor for file in found if file is not None and not file.replaceable]
        files.descriptors = known if len(known) == len(found) else None

    def _read(self, path: str) -> bytes:
        file = self._files.get(path)
        if file is None:
            return self._open_and_read(path)
        file.used = True
        try:
            content = os.pread(file.descriptor, _PAGE, 0)
            if len(content) >= _HALF:
                content = _read_rest(file.descriptor, content, path)
            if not file.replaceable or os.fstat(file.descriptor).st_nlink:
                return content
        except OSError as error:
            self._close(path)
            if error.errno not in _GONE:
                raise
        return self._open_and_read(path)

    def text(self, path: str) -> str:
        """Return the content as text without the final line break; bytes that are not UTF-8 are replaced.

        Raises `OSError` as `read` does.
        """
        with self._lock:
            content = self._read(path)
        return content.decode(errors="replace").removesuffix("\n")

    def forget(self, path: str) -> None:
        """Close the file's descriptor, if there is one."""
        with self._lock:
            self._close(path)

    def sweep(self) -> int:
        """Close the descriptors that were not read since the previous sweep; return their number."""
        with self._lock:
            return self._sweep()

    def _sweep(self) -> int:
        self._swept = self._clock()
        for together in self._together:
            if together.used:
                together.used = False
                for path in together.paths:
                    if path in self._files:
                        self._files[path].used = True
        idle = [path for path, file in self._files.items() if not file.used]
        for path in idle:
            self._close(path)
        for file in self._files.values():
            file.used = False
        return len(idle)

    def close(self) -> None:
        """Close all descriptors. The reader can be used again."""
        with self._lock:
            for path in list(self._files):
                self._close(path)

    def _open_and_read(self, path: str) -> bytes:
        self._close(path)
        if self._clock() - self._swept > _SWEEP_S:
            self._sweep()
        try:
            descriptor = os.open(path, _FLAGS)
        except NotADirectoryError as error:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error
        try:
            content = os.pread(descriptor, _PAGE, 0)
            if len(content) >= _HALF:
                content = _read_rest(descriptor, content, path)
            found = os.fstat(descriptor)
        except OSError as error:
            os.close(descriptor)
            if error.errno in _GONE:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error
            raise
        # If all are in use, opening some files each time costs less than closing each of them before its turn comes.
        if path.endswith(_LISTS) or len(self._files) >= self._most:
            os.close(descriptor)
            return content
        # A file of the kernel has content but no size, and an error instead of content when it goes away.
        self._files[path] = _OpenFile(descriptor, replaceable=found.st_size > 0 or not content)
        self._version += 1
        return content

    def _close(self, path: str) -> None:
        file = self._files.pop(path, None)
        if file is not None:
            self._version += 1
            with contextlib.suppress(OSError):
                os.close(file.descriptor)


def _read_open(
    files: FilesTogether, descriptors: Sequence[int], clock: Callable[[], int] | None, places: Sequence[int] | None,
) -> tuple[list[bytes], list[int]]:
    pread, times, paths = os.pread, [], files.paths
    if places is not None:
        descriptors, paths = [descriptors[each] for each in places], tuple(paths[each] for each in places)
    size, whole = (_SHORT, _SHORT) if files.short else (_PAGE, _HALF)
    if clock is None:
        contents = [pread(each, size, 0) for each in descriptors]
    else:
        contents = []
        for each in descriptors:
            contents.append(pread(each, size, 0))
            times.append(clock())
    if any(len(content) >= whole for content in contents):
        files.short = False
        contents = [content if len(content) < whole else _read_rest(descriptor, content, path)
                    for descriptor, content, path in zip(descriptors, contents, paths, strict=True)]
    return contents, times


def _read_rest(descriptor: int, content: bytes, path: str) -> bytes:
    parts, length = [content], len(content)
    while part := os.pread(descriptor, 16 * _PAGE, length):
        parts.append(part)
        length += len(part)
        if length > _LARGEST:
            raise OSError(errno.EFBIG, f"it has more than {_LARGEST:,} bytes", path)
    return b"".join(parts)


def most_descriptors() -> int:
    """Return how many descriptors this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 65_536 if soft == resource.RLIM_INFINITY else soft


def raise_descriptor_limit(desired: int = 65_536) -> int:
    """Raise the limit of open descriptors as far as the process may, at most to `wanted`; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY not in (soft, hard) and soft < min(hard, desired):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, desired), hard))
    return most_descriptors()
