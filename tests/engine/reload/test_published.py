"""Whatever writers do and whenever the reloader looks: what is active is exactly what somebody published."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from koordpolicy.engine.framework.registry import Live
from koordpolicy.engine.reload import EMPTY, Mount, Reloader
from koordpolicy.engine.source import PolicyError

from .conftest import ConfigMapMount, Time, reloader_of

WORDS = st.sampled_from(["plugin p", "plugin q", "plugin r", "needs p", "nonsense", "crash", ""])
CONTENTS = st.dictionaries(st.sampled_from(["a.yaml", "b.yaml", "c.yaml"]), st.lists(WORDS, max_size=2).map("\n".join),
                           max_size=3)
SECONDS = st.sampled_from([0.01, 0.05, 0.2, 1.5, 70.0])


class Writers(RuleBasedStateMachine):
    """A mounted ConfigMap and a directory, both written to at random; only atomic states count as published."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.mount = ConfigMapMount(self.root / "mount")
        self.directory = self.root / "directory"
        self.directory.mkdir()
        self.paths = (self.mount.path, self.directory)
        self.time = Time()
        self.live = Live()
        self.published: list[set[str]] = [set(), set()]
        self.prepared: str | None = None
        self.unfinished: str | None = None
        self.mounted = True
        self.away = False
        self.reloader: Reloader | None = None
        self.texts: dict[str, dict[str, str]] = {EMPTY.digest: {}}

    def publish(self, index: int) -> None:
        version = Mount(self.paths[index]).read().version
        if version is not None:
            self.published[index].add(version.digest)
            self.texts[version.digest] = {name: source.text for name, source in version.files.items()}

    @initialize(first=CONTENTS, second=CONTENTS)
    def begin(self, first: dict[str, str], second: dict[str, str]) -> None:
        self.mount.write(first)
        for name, text in second.items():
            (self.directory / name).write_text(text)
        self.publish(0)
        self.publish(1)
        reloader = reloader_of(self.live, *self.paths, clock=lambda: self.time.now, state_dir=self.root / "state")
        try:
            reloader.begin(self.time.now)
        except PolicyError:
            assert self.live.registry.generation == 0
            self.mount.write({"a.yaml": "plugin p"})
            for file in self.directory.iterdir():
                file.unlink()
            self.publish(0)
            self.publish(1)
            reloader.begin(self.time.now)
        self.reloader = reloader

    @rule(seconds=SECONDS)
    def pass_time(self, seconds: float) -> None:
        self.time.run(self.reloader, seconds)

    @precondition(lambda self: self.mounted and self.prepared is None and self.unfinished is None)
    @rule(files=CONTENTS)
    def prepare_configmap(self, files: dict[str, str]) -> None:
        self.prepared = self.mount.prepare(files)

    @precondition(lambda self: self.prepared is not None)
    @rule()
    def swap_configmap(self) -> None:
        self.unfinished = self.mount.swap(self.prepared)
        self.prepared = None
        self.publish(0)

    @precondition(lambda self: self.unfinished is not None)
    @rule()
    def finish_configmap(self) -> None:
        self.mount.finish(self.unfinished)
        self.unfinished = None

    @precondition(lambda self: self.mounted and self.prepared is None and self.unfinished is None)
    @rule()
    def unmount(self) -> None:
        self.mount.unmount()
        self.mounted = False

    @precondition(lambda self: not self.mounted)
    @rule(files=CONTENTS)
    def remount(self, files: dict[str, str]) -> None:
        self.mount.write(files)
        self.mounted = True
        self.publish(0)

    @precondition(lambda self: not self.away)
    @rule(name=st.sampled_from(["a.yaml", "b.yaml"]), words=st.lists(WORDS, max_size=2))
    def save_file(self, name: str, words: list[str]) -> None:
        (self.directory / ".beside").write_text("\n".join(words))
        (self.directory / ".beside").rename(self.directory / name)
        self.publish(1)

    @precondition(lambda self: not self.away)
    @rule(name=st.sampled_from(["a.yaml", "b.yaml"]))
    def delete_file(self, name: str) -> None:
        (self.directory / name).unlink(missing_ok=True)
        self.publish(1)

    @rule()
    def move_directory(self) -> None:
        other = self.root / "away"
        if self.away:
            other.rename(self.directory)
        else:
            self.directory.rename(other)
        self.away = not self.away

    @precondition(lambda self: not self.away)
    @rule()
    def write_within_one_settle_time(self) -> None:
        """Several writes that only together are a version: nobody may see them one by one."""
        (self.directory / "a.yaml").write_text("plugin half")
        self.reloader.step(self.time.now)
        self.what_is_in_force_was_published()
        self.time.now += 0.05
        (self.directory / "b.yaml").write_text("plugin other-half")
        self.reloader.step(self.time.now)
        self.publish(1)

    @invariant()
    def what_is_in_force_was_published(self) -> None:
        if self.reloader is None:
            return
        expected = []
        for index, source in enumerate(self.reloader.status().sources):
            assert source.digest in self.published[index]
            expected += [(line.split()[1], str(self.paths[index]))
                         for text in self.texts[source.digest].values()
                         for line in text.splitlines() if line.startswith("plugin")]
        in_force = [(plugin.name, plugin.source) for plugin in self.live.registry.plugins.values()]
        assert sorted(in_force) == sorted(expected)

    @precondition(lambda self: self.mounted and not self.away and self.prepared is None and self.unfinished is None)
    @rule()
    def a_quiet_minute_ends_with_the_newest_that_is_valid(self) -> None:
        self.time.run(self.reloader, 130)
        for path, source in zip(self.paths, self.reloader.status().sources, strict=True):
            version = Mount(path).read().version
            assert source.observed == version.digest
            assert source.problems or source.digest == version.digest

    def teardown(self) -> None:
        shutil.rmtree(self.root)


TestWriters = Writers.TestCase
TestWriters.settings = settings(max_examples=40, stateful_step_count=30, deadline=None,
                                suppress_health_check=[HealthCheck.too_slow])
