from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from koordpolicy.engine.documents import files_of
from koordpolicy.engine.reload import Mount, Presence, SourceLimits

from .conftest import ConfigMapMount


def texts(mount: Mount) -> dict[str, str]:
    version = mount.read().version
    assert version is not None
    return {name: source.text for name, source in version.files.items()}


def test_a_directory_is_searched_with_its_sub_directories_and_without_dot_files(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yml", "c.json", "notes.txt", "a.yaml~", ".hidden.yaml", ".git/x.yaml", "deep/er/d.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert texts(Mount(tmp_path)) == {name: name for name in ("a.yaml", "b.yml", "c.json", "deep/er/d.yaml")}
    version = Mount(tmp_path).read().version
    assert version is not None
    assert version.files["deep/er/d.yaml"].name == str(tmp_path / "deep/er/d.yaml")


def test_one_file_may_be_named_whatever_its_ending(tmp_path: Path) -> None:
    (tmp_path / "policies.txt").write_text("x")
    reading = Mount(tmp_path / "policies.txt").read()
    assert reading.stamp.presence is Presence.FILE
    assert reading.version is not None
    assert [source.name for source in reading.version.files.values()] == [str(tmp_path / "policies.txt")]


def test_a_configmap_is_read_through_data_and_named_without_it(tmp_path: Path) -> None:
    mount = ConfigMapMount(tmp_path / "m")
    mount.write({"a.yaml": "1", "b.yaml": "2"})
    reading = Mount(mount.path).read()
    assert reading.stamp.presence is Presence.PROJECTED
    assert reading.version is not None
    assert [s.name for s in reading.version.files.values()] == [f"{mount.path}/a.yaml", f"{mount.path}/b.yaml"]


def test_the_digest_is_of_names_and_contents_and_of_nothing_else(tmp_path: Path) -> None:
    mount = ConfigMapMount(tmp_path / "m")
    mount.write({"a.yaml": "1", "b.yaml": "2"})
    (tmp_path / "d").mkdir()
    (tmp_path / "d/b.yaml").write_text("2")
    (tmp_path / "d/a.yaml").write_text("1")
    projected, plain = Mount(mount.path).read().version, Mount(tmp_path / "d").read().version
    assert projected is not None
    assert plain is not None
    assert projected.digest == plain.digest
    (tmp_path / "d/a.yaml").rename(tmp_path / "d/c.yaml")
    other = Mount(tmp_path / "d").read().version
    assert other is not None
    assert other.digest != plain.digest
    assert other.hashes["c.yaml"] == hashlib.sha256(b"1").hexdigest()


def test_a_swap_while_a_configmap_is_read_makes_the_reading_torn(tmp_path: Path) -> None:
    mount = ConfigMapMount(tmp_path / "m")
    mount.write({"a.yaml": "old", "b.yaml": "old"})

    def open_and_swap(path: str, flags: int, directory: int | None) -> int:
        if path == "b.yaml" and not swapped:
            swapped.append(True)
            mount.write({"a.yaml": "new", "b.yaml": "new"})
        return os.open(path, flags, dir_fd=directory)

    swapped: list[bool] = []
    reader = Mount(mount.path, open_at=open_and_swap)
    assert (first := reader.read()).torn
    assert first.version is None
    assert texts(reader) == {"a.yaml": "new", "b.yaml": "new"}


def test_a_file_that_is_written_while_it_is_read_makes_the_reading_torn(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("first")

    def open_and_write(path: str, flags: int, directory: int | None) -> int:
        descriptor = os.open(path, flags, dir_fd=directory)
        if path == "a.yaml":
            (tmp_path / "a.yaml").write_text("first and second")
        return descriptor

    assert Mount(tmp_path, open_at=open_and_write).read().torn


def test_a_file_that_appears_while_others_are_read_makes_the_reading_torn(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("first")

    def open_and_add(path: str, flags: int, directory: int | None) -> int:
        if path == "a.yaml":
            (tmp_path / "0.yaml").write_text("zero")
        return os.open(path, flags, dir_fd=directory)

    assert Mount(tmp_path, open_at=open_and_add).read().torn


def test_files_that_cannot_be_used_are_told_one_by_one_and_keep_no_other_from_being_read(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text("good")
    (tmp_path / "binary.yaml").write_bytes(b"name: \xff\xfe\n")
    (tmp_path / "large.yaml").write_text("x" * 101)
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "nothing.yaml").symlink_to("gone")
    (tmp_path / "secret.yaml").write_text("secret")
    os.mkfifo(tmp_path / "pipe.yaml")

    def refuse(path: str, flags: int, directory: int | None) -> int:
        if path == "secret.yaml":
            raise PermissionError(13, "Permission denied")
        return os.open(path, flags, dir_fd=directory)

    version = Mount(tmp_path, limits=SourceLimits(file_bytes=100), open_at=refuse).read().version
    assert version is not None
    assert {name: source.text for name, source in version.files.items()} == {"good.yaml": "good"}
    assert {name: problem.message.replace(str(tmp_path), "DIR") for name, problem in version.broken.items()} == {
        "binary.yaml": "byte 0xff at offset 6 is not UTF-8",
        "large.yaml": "`DIR/large.yaml` holds 101 bytes, more than the 100 that are read",
        "loop.yaml": "`DIR/loop.yaml` cannot be read: too many levels of symbolic links",
        "nothing.yaml": "`DIR/nothing.yaml` cannot be read: it links to nothing",
        "pipe.yaml": "`DIR/pipe.yaml` cannot be read: it is not a regular file",
        "secret.yaml": "`DIR/secret.yaml` cannot be read: permission denied",
    }
    assert version.broken["binary.yaml"].span is not None
    assert version.broken["binary.yaml"].span.place == (str(tmp_path / "binary.yaml"), 1, 7)


def test_more_files_or_bytes_than_the_limit_are_refused_and_not_cut_off(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.yaml").write_text("12345")
    reading = Mount(tmp_path, limits=SourceLimits(files=3)).read()
    assert (reading.version, reading.stamp.presence) == (None, Presence.UNREADABLE)
    assert reading.stamp.reason == "it holds more than 3 policy files"
    version = Mount(tmp_path, limits=SourceLimits(total_bytes=12)).read().version
    assert version is not None
    assert sorted(version.broken) == ["2.yaml", "3.yaml"]


def test_directories_that_link_in_circles_are_warned_about(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x.yaml").write_text("x")
    (tmp_path / "a/up").symlink_to(tmp_path)
    reading = Mount(tmp_path).read()
    assert reading.version is not None
    assert list(reading.version.files) == ["a/x.yaml"]
    assert reading.warnings == (f"`{tmp_path}/a/up` links back to where it is and is skipped",)


def test_a_file_mounted_by_itself_is_warned_about(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("x")
    points = frozenset({str((tmp_path / "a.yaml").resolve())})
    warning = (f"`{tmp_path}/a.yaml` is mounted by itself (subPath), so the kubelet never updates it: "
               "mount the whole volume instead")
    assert Mount(tmp_path, mount_points=lambda: points).read().warnings == (warning,)
    assert Mount(tmp_path / "a.yaml", mount_points=lambda: points).read().warnings == (warning,)


@pytest.mark.parametrize(("make", "reason"), [
    (lambda path: None, "it does not exist"),
    (lambda path: (path.mkdir(), (path / "..data").symlink_to("..gone")),
     "`..data` points at `..gone`, which does not exist"),
])
def test_what_is_missing_is_told_from_what_is_empty(tmp_path: Path, make, reason: str) -> None:
    make(tmp_path / "m")
    reading = Mount(tmp_path / "m").read()
    assert (reading.stamp.presence, reading.stamp.reason, reading.version) == (Presence.MISSING, reason, None)
    (tmp_path / "empty").mkdir()
    assert texts(Mount(tmp_path / "empty")) == {}


def test_unchanged_files_keep_their_source(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a")
    (tmp_path / "b.yaml").write_text("b")
    mount = Mount(tmp_path)
    first = mount.read().version
    assert first is not None
    (tmp_path / "b.yaml").write_text("c")
    second = mount.read(first).version
    assert second is not None
    assert second.files["a.yaml"] is first.files["a.yaml"]
    assert second.files["b.yaml"].text == "c"


def test_every_reading_during_swaps_by_another_thread_is_of_one_version(tmp_path: Path) -> None:
    mount = ConfigMapMount(tmp_path / "m")
    mount.write({f"{n}.yaml": "0" for n in range(5)})

    def swap_often() -> None:
        for version in range(1, 60):
            mount.write({f"{n}.yaml": str(version) for n in range(5)})

    writer = threading.Thread(target=swap_often)
    writer.start()
    reader = Mount(mount.path)
    seen = []
    while writer.is_alive():
        version = reader.read().version
        if version is not None:
            seen.append({source.text for source in version.files.values()})
            assert len(version.files) == 5
    writer.join()
    assert all(len(each) == 1 for each in seen)
    assert texts(reader) == {f"{n}.yaml": "59" for n in range(5)}


def test_commands_and_reloading_find_the_same_files(tmp_path: Path) -> None:
    policies = tmp_path / "p"
    for name in (
        "a.yaml", "b.yml", "c.json", "d.txt", "e.yaml.swp", "f.YAML", "g", ".h.yaml", ".git/i.yaml", "deep/j.yaml",
        "deep/..data/k.yaml", "n.yaml/l.yaml", "m.tar.yaml", "yaml",
    ):
        (policies / name).parent.mkdir(parents=True, exist_ok=True)
        (policies / name).write_text("")
    (policies / "linked").symlink_to(policies / "deep")
    (policies / "o.yaml").symlink_to(policies / "d.txt")
    version, problems = Mount(policies).read().version, []
    assert version is not None
    found = [str(file.relative_to(policies)) for file in files_of(policies, problems)]
    assert (sorted(found), problems) == (sorted(version.hashes), [])
    assert sorted(found) == [
        "a.yaml", "b.yml", "c.json", "deep/j.yaml", "linked/j.yaml", "m.tar.yaml", "n.yaml/l.yaml", "o.yaml",
    ]
