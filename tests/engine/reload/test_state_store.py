"""The last good set on disk: only what was written is read back, whatever stands in the file."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.engine.framework.registry import Live
from koordpolicy.engine.reload.mount import Mount, Version
from koordpolicy.engine.reload.state_store import FILE, LARGEST, Saved, Store
from koordpolicy.engine.source import PolicyError, Source

from .conftest import Time, begun, names, write

TEXT = "apiVersion: x\n"
DIGEST = hashlib.sha256(TEXT.encode()).hexdigest()


def saved(mount: Mount) -> Saved:
    return Saved(
        Version.of({"a.yaml": Source(mount.name_of("a.yaml"), TEXT)}, {"a.yaml": DIGEST}), 5.0, projected=False,
    )


def sealed(body: bytes) -> bytes:
    """A set with a fitting checksum, whatever is in it."""
    return f"koord-policy/last-good/1 {len(body)} {hashlib.sha256(body).hexdigest()}\n".encode() + body


@pytest.fixture
def mount(tmp_path: Path) -> Mount:
    (tmp_path / "policies").mkdir()
    return Mount(str(tmp_path / "policies"))


def refusal(store: Store, mount: Mount) -> str:
    with pytest.raises(PolicyError) as caught:
        store.load({mount.path: mount})
    (problem,) = caught.value.problems
    return problem.message


def test_what_was_saved_is_read_back(tmp_path: Path, mount: Mount) -> None:
    store = Store(tmp_path / "state")
    store.save({mount.path: saved(mount)})
    found = store.load({mount.path: mount})[mount.path]
    assert (found.version.digest, found.since, found.projected) == (saved(mount).version.digest, 5.0, False)
    assert [each.name for each in (tmp_path / "state").iterdir()] == [FILE]


def test_a_link_where_the_temporary_file_was_wont_to_be_is_not_followed(tmp_path: Path, mount: Mount) -> None:
    state, victim = tmp_path / "state", tmp_path / "victim"
    state.mkdir()
    victim.write_bytes(b"theirs")
    (state / f".{FILE}.{os.getpid()}").symlink_to(victim)
    (state / FILE).symlink_to(victim)
    store = Store(state)
    assert refusal(store, mount) == f"the last good set `{store.path}` cannot be read: it is a symbolic link"
    store.save({mount.path: saved(mount)})
    assert (victim.read_bytes(), store.path.is_symlink()) == (b"theirs", False)


GOOD: dict[str, Any] = {
    "digest": "", "since": 5.0, "projected": False, "rejected": "",
    "files": {"a.yaml": {"sha256": DIGEST, "text": TEXT}},
}


@pytest.mark.parametrize("body", [
    b"[" * 100_000, b'{"a":' * 50_000, b"nonsense", b"\xff\xfe", b"[]", b"null", b"5", b"", b'{"x": NaN', b"1" * 5000,
])
def test_a_body_that_is_no_set_is_refused(tmp_path: Path, mount: Mount, body: bytes) -> None:
    store = Store(tmp_path)
    store.path.write_bytes(sealed(body))
    assert refusal(store, mount) == f"`{store.path}` is not a last good set of this version"


@pytest.mark.parametrize("change", [
    {"files": []}, {"files": None}, {"files": {"a.yaml": "x"}}, {"files": {"a.yaml": {"sha256": 5, "text": TEXT}}},
    {"files": {"a.yaml": {"sha256": DIGEST, "text": ["x"]}}}, {"files": {"a.yaml": {"text": TEXT}}}, {"since": "5"},
    {"since": None}, {"since": float("nan")},
    {"since": float("inf")}, {"since": -1}, {"since": 10**400}, {"since": True}, {"projected": "no"}, {"rejected": {}},
    {"digest": "other"}, {"digest": []},
])
def test_a_set_with_a_value_of_another_type_is_refused(tmp_path: Path, mount: Mount, change: dict[str, Any]) -> None:
    store = Store(tmp_path)
    content = {**GOOD, "digest": saved(mount).version.digest}
    store.path.write_bytes(sealed(json.dumps({mount.path: content}).encode()))
    assert set(store.load({mount.path: mount})) == {mount.path}
    store.path.write_bytes(sealed(json.dumps({mount.path: {**content, **change}}).encode()))
    assert refusal(store, mount) == f"`{store.path}` is not a last good set of this version"


@settings(max_examples=100)
@given(data=st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(
        st.sampled_from(["files", "since", "projected", "digest", "a.yaml", "text", "sha256"]), below, max_size=4,
    ),
    max_leaves=10,
))
def test_whatever_stands_in_the_file_is_refused_with_a_message(
    tmp_path_factory: pytest.TempPathFactory, data: Any,
) -> None:
    directory = tmp_path_factory.mktemp("state")
    store, mount = Store(directory), Mount(str(directory))
    store.path.write_bytes(sealed(json.dumps({mount.path: data}).encode()))
    assert refusal(store, mount) == f"`{store.path}` is not a last good set of this version"


def test_a_set_that_is_too_large_is_refused_without_reading_it_all(tmp_path: Path, mount: Mount) -> None:
    store = Store(tmp_path)
    with store.path.open("wb") as file:
        file.truncate(LARGEST * 100)  # a hole: no disk is needed
    assert refusal(
        store, mount,
    ) == f"the last good set `{store.path}` cannot be read: it has more than {LARGEST:,} bytes"


def test_state_that_cannot_be_written_is_reported_and_breaks_nothing_else(
    tmp_path: Path, time: Time, live: Live,
) -> None:
    (tmp_path / "state").write_text("a file where the directory should be")
    policies = write(tmp_path / "p", a="plugin one")
    reloader = begun(live, time, policies, state_dir=tmp_path / "state")
    assert reloader.status().warnings == (
        (f"the last good set cannot be kept in `{tmp_path}/state/last-good.json`: file exists; "
        "a restart may find an older one or none"),)
    write(policies, a="plugin two")
    time.run(reloader, 1)
    assert names(live) == ["two"]
    (tmp_path / "state").unlink()
    time.run(reloader, 65)
    assert reloader.status().warnings == ()
    assert (tmp_path / "state/last-good.json").exists()
