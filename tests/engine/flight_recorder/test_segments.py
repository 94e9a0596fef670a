from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.engine.flight_recorder.records import (
    FORMAT,
    Changed,
    Header,
    Idle,
    RecordedProfile,
    RecordedSettings,
    RecordError,
    SegmentEnd,
    encode,
    encode_block,
)
from koordpolicy.engine.flight_recorder.segments import (
    MAGIC,
    Busy,
    Directory,
    Limits,
    SegmentFile,
    SegmentReader,
    segments_in,
)

HEADER = Header(FORMAT, "1", "run", 1, 5, {"Node": None}, None, RecordedSettings([RecordedProfile("default")]))
CHANGES = [Changed(number, "Node", f"n{number}", {"kind": "Node", "metadata": {"name": f"n{number}"}})
           for number in range(100)]


def written(path: Path, records=(HEADER, *CHANGES), every: int = 10) -> Path:
    segment = SegmentFile(path)
    for number, record in enumerate(records):
        segment.add(encode(record))
        if number % every == 0:
            segment.flush()
    segment.close()
    return path


def read(path: Path):
    reader = SegmentReader(path)
    return list(reader), reader.fault


def test_a_segment_returns_what_was_written(tmp_path):
    path = written(tmp_path / "s")
    assert read(path) == ([HEADER, *CHANGES], "")
    assert path.stat().st_mode & 0o777 == 0o600


@settings(max_examples=60)
@given(st.integers(0, 10_000))
def test_a_segment_that_is_cut_off_anywhere_returns_all_before_it(tmp_path_factory, cut):
    path = written(tmp_path_factory.mktemp("cut") / "s")
    whole = path.read_bytes()
    cut %= len(whole)
    path.write_bytes(whole[:cut])
    found, fault = read(path)
    assert found == [HEADER, *CHANGES][:len(found)]
    assert len(found) % 10 in (0, 1)  # whole blocks
    assert fault == "" if cut in _ends(whole) else fault.endswith(("is cut off", "it is empty", "flight recording"))


def _ends(whole: bytes) -> set[int]:
    ends, place = set(), len(MAGIC)
    while place < len(whole):
        place += 12 + struct.unpack(">I", whole[place:place + 4])[0]
        ends.add(place)
    return ends


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_damaged_byte_ends_a_segment_before_it(tmp_path_factory, place, change):
    path = written(tmp_path_factory.mktemp("damaged") / "s")
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= change
    path.write_bytes(content)
    found, fault = read(path)
    assert found == [HEADER, *CHANGES][:len(found)]
    assert len(found) < 101
    assert fault


@settings(max_examples=100)
@given(st.binary(max_size=300))
def test_garbage_is_no_segment_and_no_error(tmp_path_factory, garbage):
    path = tmp_path_factory.mktemp("garbage") / "s"
    for content in (garbage, MAGIC + garbage):
        path.write_bytes(content)
        found, fault = read(path)
        assert found == []
        assert fault
    path.write_bytes(b"#" + garbage)
    assert read(path) == ([], "it is no segment of a flight recording")


def framed(path: Path, *blocks: bytes) -> Path:
    stream, content = zlib.compressobj(1), bytearray(MAGIC)
    for block in blocks:
        packed = stream.compress(block) + stream.flush(zlib.Z_SYNC_FLUSH)
        content += struct.pack(">III", len(packed), len(block), zlib.crc32(packed)) + packed
    path.write_bytes(content)
    return path


def test_blocks_that_are_no_records_end_a_segment(tmp_path):
    header = encode_block([encode(HEADER)])
    cases = {
        b"\xdd\x00\x00\x00\x01\x93\xa5never\x01\x02": "a block holds no records",
        b"\x91" * 100_000: "a block holds no records",
        b"\xdd\xff\xff\xff\xff": "a block holds no records",
        b"\xdd\x00\x00\x00\x01\x92\xa4idle\xa2\xff\xfe": "a block holds no records",  # no UTF-8
        header: "it has a second header",
    }
    for number, (block, fault) in enumerate(cases.items()):
        found, told = read(framed(tmp_path / str(number), header, block))
        assert found == [HEADER]
        assert told.startswith(fault), told
    assert read(framed(tmp_path / "late", encode_block([encode(Idle(1))]))) == ([], "it does not begin with a header")
    newer = Header(FORMAT + 1, "2", "run", 1, 5, None, None, HEADER.settings)
    assert read(framed(tmp_path / "new", encode_block([encode(newer)]))) == (
        [], "it has format 2, and this program reads format 1")
    assert read(framed(tmp_path / "empty")) == ([], "it is empty")


def test_a_block_of_gigabytes_is_not_decompressed(tmp_path):
    packed = zlib.compressobj(9)
    bomb = packed.compress(b"\x00" * 50_000_000) + packed.flush(zlib.Z_SYNC_FLUSH)
    path = tmp_path / "bomb"
    path.write_bytes(MAGIC + struct.pack(">III", len(bomb), 2**31, zlib.crc32(bomb)) + bomb)
    assert read(path)[1] == "a block has more than 16,777,216 bytes"
    path.write_bytes(MAGIC + struct.pack(">III", len(bomb), 1000, zlib.crc32(bomb)) + bomb)
    assert read(path)[1] == "a block has another length than it says"


def test_records_that_cannot_be_encoded_are_refused_one_by_one():
    assert encode(Changed(1, "Pod", "p", {"name": "a\ud800b"})) == encode(Changed(1, "Pod", "p", {"name": "a?b"}))
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for bad in (2**70, object(), deep, "x" * 9_000_000):
        with pytest.raises(RecordError):
            encode(Changed(1, "Pod", "p", bad))


def test_links_and_pipes_are_not_read(tmp_path):
    real = written(tmp_path / "20260101T000000.000000000Z.segment")
    link = tmp_path / "20260101T000001.000000000Z.segment"
    link.symlink_to(real)
    os.mkfifo(tmp_path / "20260101T000002.000000000Z.segment")
    (tmp_path / "20260101T000003.000000000Z.segment").mkdir()
    (tmp_path / "notes.txt").write_text("")
    assert segments_in(tmp_path) == [real]
    for path in (link, tmp_path / "20260101T000002.000000000Z.segment"):
        with pytest.raises(OSError, match=r"link|not a file"):
            read(path)


def test_a_new_segment_never_follows_a_link(tmp_path):
    target = tmp_path / "target"
    name = "20260101T000000.000000000Z.segment"
    (tmp_path / name).symlink_to(target)
    directory = Directory(tmp_path, Limits())
    made = directory.create(1_767_225_600 * 10**9)
    assert made.path.name == "20260101T000000.000000001Z.segment"
    assert not target.exists()
    made.close()
    directory.close()


def test_a_directory_is_for_one_recorder_and_one_user(tmp_path):
    first = Directory(tmp_path / "new", Limits())
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    with pytest.raises(Busy):
        Directory(tmp_path / "new", Limits())
    first.close()
    Directory(tmp_path / "new", Limits()).close()


def test_the_oldest_segments_are_removed(tmp_path):
    directory = Directory(tmp_path, Limits(total_bytes=3_000))
    for number in range(10):
        segment = directory.create(number)
        segment.add(encode(HEADER))
        for _ in range(10):
            segment.add(encode(Changed(1, "Pod", "p", os.urandom(50).hex())))
        segment.close()
        directory.prune(segment)
    left = segments_in(tmp_path)
    assert 2 <= len(left) < 10
    assert sum(path.stat().st_size for path in left) <= 3_000
    assert left[-1] == segment.path
    segment = directory.create(11)
    segment.add(encode(SegmentEnd(1)))
    segment.close()
    directory.prune(segment)
    directory.close()
    assert segment.path.exists()
