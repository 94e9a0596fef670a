"""A toy language of policies, writers as the kubelet and editors are, and time that only moves when told to."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Live, Plugin, Registry
from koordpolicy.engine.reload import Builder, Mount, Reloader, ReloadSettings
from koordpolicy.engine.source import PolicyError, Problem, Source


def toy_build(sources: Sequence[Source]) -> list[Plugin]:
    """`plugin NAME`, `needs NAME`, `broken` and `crash`, one a line: a file declares plugins and may need others'."""
    plugins, problems, needed = [], [], []
    for source in sources:
        for line in source.text.splitlines():
            span = source.span(source.text.index(line), source.text.index(line) + len(line))
            match line.split():
                case ["plugin", name]:
                    digest = hashlib.sha256(source.text.encode()).hexdigest()
                    plugins.append(Plugin(name, Framework.SCHEDULER, (Point.FILTER,), lambda args, handle: None,
                                          source.name, digest, span=span))
                case ["needs", name]:
                    needed.append((name, span))
                case ["crash"]:
                    raise RuntimeError("toy compiler crashed")
                case []:
                    pass
                case _:
                    problems.append(Problem(f"`{line}` is not a declaration", span, code="toy"))
    names = {plugin.name for plugin in plugins}
    problems += [Problem(f"no plugin `{name}`", span, code="toy") for name, span in needed if name not in names]
    if problems:
        raise PolicyError(problems)
    return plugins


@dataclass
class ToyBuilder:
    """A builder of which each part may be another one."""

    build: Callable[[Sequence[Source]], Iterable[Plugin]] = toy_build
    groups: Callable[[Sequence[Source]], Iterable[frozenset[str]]] = lambda _: ()
    holds_policies: Callable[[Source], bool] = lambda _: True
    warnings: Callable[[Sequence[Source]], Iterable[Problem]] = lambda _: ()

    def __call__(self, sources: Sequence[Source]) -> Iterable[Plugin]:
        return self.build(sources)


_BUILDER = {each.name for each in fields(ToyBuilder)}
_SETTINGS = {each.name for each in fields(ReloadSettings)}


def reloader_of(live: Live, *paths: Path | Mount, clock=lambda: 5.0, builder=None, **given) -> Reloader:
    """Return a reloader over these paths; what is `given` are parts of the builder, settings, or arguments."""
    parts = {name: given.pop(name) for name in _BUILDER & given.keys()}
    settings = {name: given.pop(name) for name in _SETTINGS & given.keys()}
    return Reloader(live, paths, builder or ToyBuilder(**parts), ReloadSettings(**settings), clock=clock, **given)


def begun(live: Live, time: Time, *paths: Path | Mount, **given) -> Reloader:
    """Return a reloader that has begun."""
    reloader = reloader_of(live, *paths, **given)
    reloader.begin(time.now)
    return reloader


def messages(reloader: Reloader, index: int = 0) -> list[str]:
    return [problem.message for problem in reloader.status().sources[index].problems]


def digest_of(path: Path) -> str:
    version = Mount(path).read().version
    assert version is not None
    return version.digest


class ConfigMapMount:
    """Writes as the kubelet does: a directory per version, `..data` swapped by a rename, the old version removed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._number = 0
        path.mkdir(parents=True)

    def prepare(self, files: dict[str, str]) -> str:
        self._number += 1
        version = f"..2026_01_01_00_00_{self._number:02}.{self._number}"
        (self.path / version).mkdir()
        for name, text in files.items():
            (self.path / version / name).write_text(text)
        return version

    def swap(self, version: str) -> str | None:
        link = self.path / "..data"
        old = str(link.readlink()) if link.is_symlink() else None
        temporary = self.path / "..data_tmp"
        temporary.symlink_to(version)
        temporary.rename(link)
        return old

    def finish(self, old: str | None) -> None:
        names = {entry.name for entry in (self.path / "..data").iterdir()}
        for name in names:
            link = self.path / name
            if not link.is_symlink():
                link.symlink_to(f"..data/{name}")
        for entry in list(self.path.iterdir()):
            if not entry.name.startswith("..") and entry.name not in names:
                entry.unlink()
        if old is not None:
            shutil.rmtree(self.path / old)

    def write(self, files: dict[str, str]) -> None:
        self.finish(self.swap(self.prepare(files)))

    def unmount(self) -> None:
        for entry in list(self.path.iterdir()):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()


class Time:
    """Virtual time: `run` steps a reloader until its own next look is later than asked for."""

    def __init__(self) -> None:
        self.now = 1000.0

    def run(self, reloader: Reloader, seconds: float) -> None:
        end = self.now + seconds
        while True:
            due = reloader.step(self.now)
            assert due > self.now
            if due > end:
                self.now = end
                return
            self.now = due


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def live() -> Live:
    return Live()


def write(directory: Path, **files: str) -> Path:
    """Write files `NAME.yaml` as an editor does: beside, then renamed."""
    directory.mkdir(exist_ok=True)
    for name, text in files.items():
        beside = directory / f".{name}.swp"
        beside.write_text(text)
        beside.rename(directory / f"{name}.yaml")
    return directory


def names(live: Live) -> list[str]:
    return sorted(name for _, name in live.registry.plugins)


POLICY = (
    "apiVersion: policy.koordinator.sh/v1alpha2\nkind: SchedulerPlugin\nmetadata: {name: one}\n"
    "spec: {filter: [{name: f, expression: 'true'}]}\n"
)
PARAMS = "apiVersion: policy.koordinator.sh/v1alpha2\nkind: PolicyParams\nmetadata: {name: p}\nspec: {params: {a: 1}}\n"


def compiled(live: Live, time: Time, policies: Path, **settings) -> Reloader:
    return begun(live, time, policies, builder=Builder(), allow_empty=False, **settings)


def refuse_odd(registry: Registry) -> None:
    """Nobody can run a plugin with an odd name."""
    problems = [Problem(f"`{plugin.name}` is odd", plugin.span, code="odd")
                for plugin in registry.plugins.values() if plugin.name.startswith("odd")]
    if problems:
        raise PolicyError(problems)


def serve(reloader: Reloader, time: Time) -> None:
    time.run(reloader, 2)


def report_overdue(reloader: Reloader, live: Live, name: str) -> None:
    reloader.report_overdue(live.registry.plugins[Framework.SCHEDULER, name], f"`{name}` does not return")
