from __future__ import annotations

from pathlib import Path

import pytest

from koordpolicy.engine.reload import Mount
from koordpolicy.engine.reload.publish import content_of, publish
from koordpolicy.engine.source import PolicyError

from .conftest import ConfigMapMount, write


def held(path: Path) -> dict[str, str]:
    version = Mount(path).read().version
    assert version is not None
    return {name: source.text for name, source in version.files.items()}


def test_a_directory_holds_exactly_the_files_and_what_else_it_had(tmp_path: Path) -> None:
    policies = write(tmp_path / "p", a="old", gone="old", same="same")
    (policies / "README.md").write_text("stays")
    untouched = (policies / "same.yaml").stat()
    publish(Mount(policies), {"a.yaml": b"new", "same.yaml": b"same", "deep/b.yaml": b"new"})
    assert held(policies) == {"a.yaml": "new", "same.yaml": "same", "deep/b.yaml": "new"}
    assert sorted(each.name for each in policies.iterdir()) == ["README.md", "a.yaml", "deep", "same.yaml"]
    assert (policies / "same.yaml").stat() == untouched


def test_a_mounted_volume_gets_a_new_directory_and_one_swap(tmp_path: Path) -> None:
    mount = ConfigMapMount(tmp_path / "m")
    mount.write({"a.yaml": "old", "gone.yaml": "old"})
    publish(Mount(mount.path), {"a.yaml": b"new", "b.yaml": b"new"})
    assert held(mount.path) == {"a.yaml": "new", "b.yaml": "new"}
    names = sorted(each.name for each in mount.path.iterdir())
    assert [name[:11] for name in names] == ["..data", "..promoted-", "a.yaml", "b.yaml"]
    publish(Mount(mount.path), {"a.yaml": b"new", "b.yaml": b"new"})
    assert held(mount.path) == {"a.yaml": "new", "b.yaml": "new"}


def test_a_single_file_takes_a_single_file(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("old")
    publish(Mount(file), {"": b"new"})
    assert file.read_text() == "new"
    with pytest.raises(PolicyError, match="is one file, and 2 are to be published"):
        publish(Mount(file), {"a.yaml": b"", "b.yaml": b""})
    with pytest.raises(PolicyError, match="is a directory, and one file without a name is to be published"):
        publish(Mount(write(tmp_path / "p", a="old")), {"": b"new"})


def test_a_file_keeps_who_may_read_it(tmp_path: Path) -> None:
    policies = write(tmp_path / "p", a="old")
    (policies / "a.yaml").chmod(0o640)
    publish(Mount(policies), {"a.yaml": b"new"})
    assert ((policies / "a.yaml").stat().st_mode & 0o777, held(policies)) == (0o640, {"a.yaml": "new"})


def test_what_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    policies = write(tmp_path / "p", a="old", b="old")
    (policies / "c").write_text("in the way of a directory")
    with pytest.raises(PolicyError) as caught:
        publish(Mount(policies), {"a.yaml": b"new", "c/d.yaml": b"new"})
    assert caught.value.problems[0].message == f"`{policies}` cannot be written: file exists"
    assert held(policies) == {"a.yaml": "old", "b.yaml": "old"}
    assert sorted(each.name for each in policies.iterdir()) == ["a.yaml", "b.yaml", "c"]


def test_a_source_that_has_changed_since_it_was_read_is_not_published(tmp_path: Path) -> None:
    policies = write(tmp_path / "p", a="checked")
    version = Mount(policies).read().version
    assert version is not None
    assert content_of(Mount(policies), version) == {"a.yaml": b"checked"}
    write(policies, a="slipped in")
    with pytest.raises(PolicyError, match="has just been changed"):
        content_of(Mount(policies), version)
