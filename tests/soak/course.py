"""Faults of a soak run: what happens to a reloader, one after the other, with the invariants during and after each."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from koordpolicy.engine.framework.registry import Live
from koordpolicy.engine.reload import Mount, Reloader, ReloadSettings
from koordpolicy.engine.reload.low_latency_gc import LowLatencyGc
from koordpolicy.engine.reload.state_store import Store

from .world import Broken, Clock, ConfigMap, Disk, Events, Generations, Watch, documents, empty

SOON = 10.0
"""Seconds within which a change must be active, on a machine with other load."""
BULK = 300.0
"""The same for 50 MB of policies."""
_REHASH = 5.0
_YEAR = 365 * 86_400.0

INVALID: dict[str, bytes] = {
    "no YAML": b"kind: [",
    "an unknown field": documents("mount", 1, 1)["mount-00000.yaml"].replace(b"filter:", b"filtre:"),
    "an expression of the wrong type": documents("mount", 1, 1)["mount-00000.yaml"].replace(b"> 0", b"+ 0"),
    "not UTF-8": documents("mount", 1, 1)["mount-00000.yaml"].replace(b"publication", b"publicati\xf6n"),
    "zeros": b"\0" * 10_000,
    "a YAML bomb": b"a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + b"".join(
        b"a%d: &a%d [%s]\n" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 20)),
    "brackets without end": b"a: " + b"[" * 100_000,
    "a document cut off": documents("mount", 1, 1)["mount-00000.yaml"][:300],
    "a number without end": b"apiVersion: " + b"9" * 100_000,
    "a cost without bound": documents("mount", 1, 1)["mount-00000.yaml"].replace(
        b"variables.free >= requests.cpu", b"['a', 'b'].all(a, ['a'].all(b, ['a'].all(c, pod.spec.containers.all(d, "
        b"pod.spec.containers.all(e, pod.spec.containers.all(f, pod.spec.containers.all(g, d.name + e.name + f.name "
        b"+ g.name != a + b + c)))))))"),
}


class Drive(Protocol):
    """The passing of time."""

    def now(self) -> float:
        """Return seconds of a clock that only goes forward."""
        ...

    def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        ...

    def begin(self, live: Live, reloader: Reloader) -> None:
        """Keep this reloader looking."""
        ...

    def end(self, reloader: Reloader) -> None:
        """Stop that."""
        ...


class Course:
    """A ConfigMap `mount`, a directory `folder` and a directory `crowd`, and what is done to them."""

    def __init__(self, root: Path, drive: Drive, seed: int, *, crowd: int = 10_000, bulk: int = 5_000,
                 bulk_bytes: int = 50_000_000, state: Path | None = None, low_latency: LowLatencyGc | None = None,
                 after_reload: Callable[[int], None] = lambda _: None) -> None:
        """`crowd` is more files than a source may hold; `bulk` files hold `bulk_bytes` together.

        `low_latency` and `after_reload` are those of the `Reloader`.
        """
        self.random = random.Random(seed)
        self.drive = drive
        self.disk, self.events = Disk(), Events(random.Random(seed + 1))
        self.clock = Clock(drive.now)
        self.live = Watch()
        self.state = state or root / "state"
        self.mount, self.folder, self.crowd = ConfigMap(root / "mount"), root / "folder", root / "crowd"
        self.shadow = root / "shadow"
        """Of a shadow set, for drives that run one."""
        for directory in (self.folder, self.crowd, self.shadow):
            directory.mkdir()
        self.waits: dict[str, float] = {}
        """The longest delay until a change of each kind was active."""
        self.low_latency = low_latency or LowLatencyGc()
        self._after_reload = after_reload
        self.generations = Generations(pause=self.low_latency.pause)
        self._crowd, self._bulk, self._bulk_bytes = crowd, bulk, bulk_bytes
        self._number = {"mount": 0, "folder": 0, "crowd": 0}
        self.phase = "start"
        self.publish_mount(3)
        self.publish_folder()
        self.reloader = self.make()
        drive.begin(self.live, self.reloader)

    def make(self) -> Reloader:
        """Return a reloader of the sources, as a start makes it."""
        return Reloader(
            self.live,
            [Mount(path, open_at=self.disk.open_at) for path in (self.mount.path, self.folder, self.crowd)],
            self.generations, ReloadSettings(rehash=_REHASH), clock=self.clock,
            state_dir=Store(self.state, write=self.disk.write), file_events=self.events, low_latency=self.low_latency,
            after_reload=self._after_reload,
        )

    # Writing

    def publish_mount(self, count: int) -> None:
        """Swap in a publication of so many documents."""
        self.mount.write(self._next("mount", count))

    def publish_folder(self, *, halfway: Callable[[], None] = lambda: None) -> None:
        """Write a publication of one document in place, in two parts."""
        (name, content), = self._next("folder", 1).items()
        with (self.folder / name).open("wb") as file:
            file.write(content[:len(content) // 2])
            file.flush()
            halfway()
            file.write(content[len(content) // 2:])

    def _next(self, source: str, count: int) -> dict[str, bytes]:
        self._number[source] += 1
        number = self._number[source]
        self.live.published[source, number] = count
        return documents(source, number, count)

    # Waiting

    def until(self, holds: Callable[[], bool], what: str, seconds: float = SOON) -> None:
        """Let time pass until something holds; raise `Broken` where it never does."""
        began = self.drive.now()
        while not holds():
            if self.drive.now() - began > seconds:
                status = self.reloader.status().to_json()
                raise Broken(f"{self.phase}: {what} did not come within {seconds:g} s: active {self.live.force}, "
                             f"published {self._number}, {str(status)[:3000]}")
            self.drive.pass_time(0.02)
        waited = self.drive.now() - began
        self.waits[what] = max(waited, self.waits.get(what, 0.0))

    def until_active(self, source: str, what: str = "a change active", seconds: float = SOON) -> None:
        """Wait until the newest publication of a source is active."""
        self.until(lambda: self.live.force.get(source) == self._number[source], what, seconds)

    def reported(self, place: int, what: str = "a problem reported", seconds: float = SOON) -> None:
        """Wait until a source has problems, and see that what ran goes on."""
        before = dict(self.live.force)
        self.until(lambda: bool(self.reloader.status().sources[place].problems), what, seconds)
        after = dict(self.live.force)
        if before != after:
            raise Broken(f"{self.phase}: what ran changed from {before} to {after}")

    def healthy(self, what: str = "healthy again", seconds: float = SOON) -> None:
        """Wait until the active set is that of the sources."""
        # The active set is reported once it is saved.
        self.until(lambda: self.reloader.status().healthy
                   and self.reloader.status().generation == self.live.registry.generation, what, seconds)

    def saved(self) -> None:
        """Wait until the state directory has the active set."""
        self.healthy()
        self.until(lambda: not self.reloader.status().warnings, "the last good set kept", SOON + _REHASH)

    # What happens

    def swaps(self) -> None:
        """A ConfigMap is swapped once, and then many times in a row."""
        self.publish_mount(self.random.randint(1, 20))
        self.until_active("mount")
        for _ in range(10):
            self.publish_mount(self.random.randint(1, 20))
            if self.random.random() < 0.5:
                self.drive.pass_time(self.random.random() * 0.3)
        self.until_active("mount")

    def invalid(self) -> None:
        """Invalid versions change nothing, and are reported; the next valid one is activated."""
        for what in self.random.sample(sorted(INVALID), 3):
            files = documents("mount", 0, 2) | {"wrong.yaml": INVALID[what]}
            self.mount.write(files)
            self.reported(0)
            self.publish_mount(2)
            self.until_active("mount")
            self.healthy()

    def in_place(self) -> None:
        """A file is written in place, with a pause in the middle that may be longer than the settling."""
        for _ in range(3):
            pause = self.random.choice([0.0, 0.02, 0.5])
            self.publish_folder(halfway=lambda pause=pause: self.drive.pass_time(pause))
            self.until_active("folder")
        self.healthy()

    def loops(self) -> None:
        """Links that lead back, to themselves and nowhere."""
        (self.folder / "round").symlink_to(self.folder, target_is_directory=True)
        (self.folder / "deep").mkdir()
        (self.folder / "deep" / "up").symlink_to("..", target_is_directory=True)
        self.drive.pass_time(0.5)
        self.publish_folder()
        self.until_active("folder")
        (self.folder / "itself.yaml").symlink_to("itself.yaml")
        (self.folder / "nowhere.yaml").symlink_to("nothing.yaml")
        self.reported(1)
        for name in ("round", "itself.yaml", "nowhere.yaml"):
            (self.folder / name).unlink()
        empty(self.folder / "deep")
        (self.folder / "deep").rmdir()
        self.healthy()

    def permission(self) -> None:
        """A file, then a directory, then the version of a ConfigMap may not be read any more."""
        file = "folder-00000.yaml"
        for name in (file, "folder"):
            self.disk.denied.add(name)
            self.publish_folder()
            self.reported(1, seconds=SOON + _REHASH)
            self.disk.denied.clear()
            (self.folder / file).chmod(0o644)
            self.until_active("folder", seconds=SOON + _REHASH)
            self.healthy()

    def full_disk(self) -> None:
        """The last good set cannot be written: the change is active, and the one before is still on the disk."""
        store = Store(self.state)
        mounts = {str(path): Mount(path) for path in (self.mount.path, self.folder, self.crowd)}
        self.saved()
        before = {path: saved.version.digest for path, saved in store.load(mounts).items()}
        self.disk.full = True
        self.publish_mount(4)
        self.until_active("mount")
        self.until(
            lambda: any("cannot be kept" in text for text in self.reloader.status().warnings), "a full disk reported",
        )
        if {path: saved.version.digest for path, saved in store.load(mounts).items()} != before:
            raise Broken("a full disk spoilt the last good set")
        self.disk.full = False
        wanted = {source.path: source.digest for source in self.reloader.status().sources}
        self.until(lambda: {path: saved.version.digest for path, saved in store.load(mounts).items()} == wanted,
                   "the last good set kept after a full disk", SOON + 2 * _REHASH)

    def clock_jumps(self) -> None:
        """The wall clock jumps: nothing waits for it."""
        for offset in (_YEAR, -_YEAR, 0.0):
            self.clock.offset = offset
            self.publish_mount(2)
            self.until_active("mount")

    def events_lost(self) -> None:
        """No file event arrives, or one of ten: changes are found by looking."""
        for lost in (1.0, 0.9):
            self.events.lost = lost
            for _ in range(3):
                self.publish_folder()
                self.until_active("folder", "a change active without events")
                self.publish_mount(3)
                self.until_active("mount", "a change active without events")
        self.events.lost = 0.0

    def unmounted(self) -> None:
        """The volume goes away and comes back."""
        before = dict(self.live.force)
        self.mount.unmount()
        self.until(lambda: self.reloader.status().sources[0].unmounted, "an unmount reported")
        self.drive.pass_time(3)
        if self.live.force != before:
            raise Broken(f"an unmount took policies out of force: {before} to {self.live.force}")
        self.publish_mount(5)
        self.until_active("mount")
        self.healthy()

    def emptied(self) -> None:
        """All files of a directory are deleted, which is intentional; not so if it is filled again at once."""
        empty(self.folder)
        self.until(lambda: "folder" not in self.live.force, "an empty directory active")
        self.publish_folder()
        self.until_active("folder")
        empty(self.folder)
        self.publish_folder()
        self.until_active("folder")
        self.healthy()

    def crowded(self) -> None:
        """A directory with more files than may be is refused, and the others move on."""
        for number in range(self._crowd):
            (self.crowd / f"{number:05}.yaml").write_bytes(b"{}")
        self.reported(2, "too many files reported", BULK)
        self.publish_mount(3)
        self.until_active("mount", "a change active beside too many files")
        empty(self.crowd)
        self.healthy(seconds=BULK)

    def bulk(self) -> None:
        """50 MB of policies are activated, changed and removed, and the others are changed meanwhile."""
        filling = b"# " + b"a policy may explain itself at length, " * 20 + b"\n"
        for _ in range(2):
            files = self._next("crowd", self._bulk)
            more = max(0, self._bulk_bytes // self._bulk - len(next(iter(files.values()))))
            padding = (filling * (more // len(filling) + 1))[:more] + b"\n"
            # Beside and in one go: thousands of files take longer than the directory takes to settle.
            beside = self.crowd.with_name("crowd.new")
            beside.mkdir()
            for name, content in files.items():
                (beside / name).write_bytes(padding + content)
            self.live.going_back = True
            empty(self.crowd)
            self.crowd.rmdir()
            beside.rename(self.crowd)
            self.publish_mount(3)
            self.until_active("crowd", "50 MB active", BULK)
            self.until_active("mount", "a change active beside 50 MB", BULK)
            self.live.going_back = False
        empty(self.crowd)
        self.until(lambda: "crowd" not in self.live.force, "50 MB gone", BULK)
        self.healthy(seconds=BULK)

    def flapping(self) -> None:
        """A writer that never stops keeps its own source from being read, and no other."""
        file = self.crowd / "log.yaml"
        for round_ in range(100):
            file.write_bytes(b"# line %d\n" % round_)
            self.drive.pass_time(0.04)
            if round_ % 25 == 10:
                self.publish_mount(2)
                began = self.drive.now()
                while self.live.force.get("mount") != self._number["mount"]:
                    file.write_bytes(b"# waiting\n")
                    self.drive.pass_time(0.04)
                    if self.drive.now() - began > SOON:
                        raise Broken("a writer that never stops keeps another source from being read")
        file.write_bytes(next(iter(self._next("crowd", 1).values())))
        self.until_active("crowd")
        file.unlink()
        self.until(lambda: "crowd" not in self.live.force, "a deleted file out of force")

    def gone_back(self) -> None:
        """Somebody goes back, which holds until the directory changes; others may change meanwhile."""
        self.publish_mount(2)
        self.until_active("mount")
        self.publish_mount(3)
        self.until_active("mount")
        self.live.going_back = True
        asked = self.reloader.restore()
        self.until(asked.done, "a rollback done")
        self.live.going_back = False
        asked.result()
        for _ in range(2):
            self.publish_folder()
            self.until_active("folder", "a change active beside a rollback")
            if self.live.force["mount"] != self._number["mount"] - 1:
                raise Broken("a rollback did not hold")
        self.publish_mount(2)
        self.until_active("mount", "a change active after a rollback")
        self.healthy()

    def published(self) -> None:
        """Somebody promotes: files are written to a directory, and to a mounted volume."""
        for source, path, count in (("folder", self.folder, 1), ("mount", self.mount.path, 4)):
            asked = self.reloader.publish(str(path), self._next(source, count))
            self.until(asked.done, "a promotion done")
            asked.result()
            self.until_active(source)
        self.publish_mount(2)
        self.until_active("mount")
        self.healthy()

    def shadowed(self) -> None:
        """Change the shadow's policies, make them invalid, and remove them."""
        for number, content in enumerate([*documents("shadow", self.random.randint(1, 9), 5).values(), b"kind: ["]):
            (self.shadow / f"{number}.yaml").write_bytes(content)
        self.drive.pass_time(1)
        (self.shadow / "5.yaml").unlink()
        self.drive.pass_time(2)
        if self.random.random() < 0.5:
            empty(self.shadow)
            self.drive.pass_time(2)

    def restart(self) -> None:
        """The process starts again: on what the directories hold, or on the last good set where that is invalid."""
        self.saved()
        before = dict(self.live.force)
        self.drive.end(self.reloader)
        self.reloader.close()
        self.reloader = self.make()
        self.drive.begin(self.live, self.reloader)
        if self.live.force != before:
            raise Broken(f"a restart changed what is active from {before} to {self.live.force}")

    def phases(self) -> Sequence[Callable[[], None]]:
        """Return all of it but the bulk, in an order that is another one each time."""
        found = [self.swaps, self.invalid, self.in_place, self.loops, self.permission, self.full_disk, self.clock_jumps,
                 self.events_lost, self.unmounted, self.emptied, self.crowded, self.flapping, self.gone_back,
                 self.published, self.shadowed, self.restart]
        self.random.shuffle(found)
        return found

    def run(self, phase: Callable[[], None]) -> None:
        """Let one thing happen, and raise `Broken` for whatever must not have happened."""
        self.phase = phase.__name__
        phase()
        if self.live.faults:
            raise Broken(f"{self.phase}: {'; '.join(self.live.faults[:3])}")

    def close(self) -> None:
        """Stop the reloader."""
        self.drive.end(self.reloader)
        self.reloader.close()
