"""A layer depends on its files alone, other programs can read it, and no other archive is taken for one."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.bundles import layer as layers
from koordpolicy.engine.bundles.faults import BundleFault
from koordpolicy.engine.bundles.layer import pack, unpack
from koordpolicy.engine.bundles.reference import digest_of

LONG = f"{'d' * 100}/{'e' * 54}/{'f' * 90}.yaml"
FILES = {"b.yaml": b"x" * 512, "a/ü.yml": b"", "a.json": b"{}", LONG: b"long"}


def test_a_layer_has_its_files_and_is_read_by_tar():
    packed = pack(FILES)
    assert unpack(packed) == FILES
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        assert {member.name: (member.mode, member.uid, member.mtime, archive.extractfile(member).read())  # type: ignore[union-attr]
                for member in archive} == {name: (0o644, 0, 0, content) for name, content in FILES.items()}


def test_equal_files_are_equal_bytes_on_every_machine():
    packed = pack(dict(reversed(FILES.items())))
    assert packed == pack(FILES)
    assert digest_of(pack({"a.yaml": b"policies\n"})) == (
        "sha256:8e841bd54dfe84a68ef0f5489967ab41578ebd0928af4a6ac47e6af484b7b3cf")


NAMES = st.lists(st.from_regex(r"[a-z0-9ü _-]{1,30}", fullmatch=True), min_size=1, max_size=4).map("/".join).map(
    lambda name: f"{name}.yaml")


@given(st.dictionaries(NAMES, st.binary(max_size=1100), max_size=5))
def test_any_files_come_back(files):
    assert unpack(pack(files)) == files


def unpacked(content: bytes) -> dict[str, bytes] | None:
    """Return the files of a layer; None if it is refused."""
    try:
        return unpack(content)
    except BundleFault:
        return None


@given(st.binary(max_size=2048))
def test_any_other_bytes_are_refused_and_never_fail_otherwise(content: bytes):
    files = unpacked(content)
    assert files is None or pack(files) == content


@given(st.integers(0, len(pack(FILES)) - 1), st.integers(1, 255))
def test_a_byte_that_differs_is_in_a_content_or_refused(place: int, change: int):
    packed = bytearray(pack(FILES))
    packed[place] ^= change
    files = unpacked(bytes(packed))
    assert files is None or pack(files) == packed


def archive(*members: tuple[tarfile.TarInfo, bytes], format: int = tarfile.USTAR_FORMAT) -> bytes:  # noqa: A002 - as tarfile calls it
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=format) as written:
        for member, content in members:
            member.size = len(content)
            written.addfile(member, io.BytesIO(content))
    return made.getvalue()


def member(name: str, **fields: object) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(found, field, value)
    return found


@pytest.mark.parametrize(("content", "why"), [
    (archive((member("../a.yaml"), b"")), "leads out of its directory, or into a hidden one"),
    (archive((member("/etc/a.yaml"), b"")), "leads out of its directory, or into a hidden one"),
    (archive((member("a/./b.yaml"), b"")), "leads out of its directory, or into a hidden one"),
    (archive((member(".git/a.yaml"), b"")), "leads out of its directory, or into a hidden one"),
    (archive((member("a.sh"), b"")), "`a.sh` is no name of a policy file"),
    (archive((member(".a.yaml"), b"")), "`.a.yaml` is no name of a policy file"),
    (archive((member("a\\b.yaml"), b"")), "has a control character or a backslash"),
    (archive((member("a\nb.yaml"), b"")), "has a control character or a backslash"),
    (archive((member("a.yaml", type=tarfile.SYMTYPE, linkname="/etc/passwd"), b"")), "it is not the archive"),
    (archive((member("a.yaml", type=tarfile.LNKTYPE, linkname="b.yaml"), b"")), "it is not the archive"),
    (archive((member("a.yaml", type=tarfile.CHRTYPE), b"")), "it is not the archive"),
    (archive((member("a.yaml", type=tarfile.DIRTYPE), b"")), "`a.yaml/` is no name of a policy file"),
    (archive((member("a.yaml", mode=0o4755), b"x")), "it is not the archive"),
    (archive((member("a.yaml", mtime=1), b"x")), "it is not the archive"),
    (archive((member("a.yaml"), b"x"), (member("a.yaml"), b"y")), "`a.yaml` is there twice, or not in order"),
    (archive((member("b.yaml"), b"x"), (member("a.yaml"), b"y")), "`a.yaml` is there twice, or not in order"),
    (archive((member("a.yaml", pax_headers={"path": "/etc/b.yaml"}), b""), format=tarfile.PAX_FORMAT),
     "is no name of a policy file"),
    (archive((member("é" * 120 + ".yaml"), b""), format=tarfile.GNU_FORMAT), "is no name of a policy file"),
    (pack(FILES)[:-1], "it is not the archive"),
    (pack(FILES) + b"\0", "it is not the archive"),
    (pack({"a.yaml": b"x" * 600})[:1000], "`a.yaml` is cut off"),
    (gzip.compress(pack(FILES)), "the header of a file is damaged"),
    (b"\xff" * 512, "the header of a file is damaged"),
    (b"", "it is not the archive"),
])
def test_archives_that_are_not_ours_are_refused(content: bytes, why: str):
    with pytest.raises(BundleFault) as refused:
        unpack(content)
    assert refused.value.problem.message.startswith("the layer of policies is refused: ")
    assert why in refused.value.problem.message


def test_a_size_beyond_the_archive_is_not_believed():
    packed = bytearray(pack({"a.yaml": b"x"}))
    packed[124:136] = b"77777777777\0"
    with pytest.raises(BundleFault, match=r"`a\.yaml` is cut off"):
        unpack(bytes(packed))


@pytest.mark.parametrize(("make", "why"), [
    (lambda: {f"{index}.yaml": b"" for index in range(4)}, "4 files with 0 bytes are too many"),
    (lambda: {"a.yaml": b"x" * 1025}, "1 files with 1,025 bytes are too many"),
])
def test_too_many_and_too_large_files_are_not_packed(
    make: Callable[[], dict[str, bytes]], why: str, monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(layers, "MOST_FILES", 3)
    monkeypatch.setattr(layers, "LARGEST", 1024)
    with pytest.raises(BundleFault) as refused:
        pack(make())
    assert refused.value.problem.message == why


def test_too_many_files_are_not_unpacked(monkeypatch: pytest.MonkeyPatch):
    packed = pack({f"{index}.yaml": b"" for index in range(4)})
    monkeypatch.setattr(layers, "MOST_FILES", 3)
    with pytest.raises(BundleFault, match="it has more than 3 files"):
        unpack(packed)


@pytest.mark.parametrize("name", [f"{'n' * 96}.yaml", f"{'d' * 156}/a.yaml", "\udcff.yaml"])
def test_names_that_no_header_holds_are_refused_before_they_are_pushed(name: str):
    with pytest.raises(BundleFault, match="a file cannot be in a bundle"):
        pack({name: b""})
