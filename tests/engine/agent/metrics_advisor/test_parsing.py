from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from koordpolicy.engine.agent.metrics_advisor import parsing
from tests.bench.agent_tree import PRESSURE, memory_stat, numa_stat

IDLE = """\
# version: 1.0
# buckets: 1,2,5,15,30,60,120,240
#   _-----=> clean/dirty
  csei 1 1 1 1 1 1 1 1
  cfei 1 2 3 4 5 600 70 8
  dfei 0 0 0 0 0 1000 0 0
  cfui 0 0 0 0 0 0 0 20000
  dfui 9 9 9 9 9 0 0 0
  cfea 7 7 7 7 7 7 7 7
"""
STAT = "cpu  1 2 4 1000 1000 8 16 1000 1000 0\ncpu0 1 2 4 9 9 8 16 9 9 0\nintr 5 5\nctxt 3\n"
MEMINFO = "MemTotal:       2048 kB\nMemFree:        1024 kB\nHugePages_Total:   0\n"
NODE_MEMINFO = "Node 0 MemTotal:       2048 kB\nNode 0 Active(file):    512 kB\n"

READERS: dict[str, tuple[Callable[[bytes], object], str, object]] = {
    "number": (parsing.number, "18446744073709551615\n", 2**64 - 1),
    "signed": (parsing.signed, "-1\n", -1),
    "field": (lambda data: parsing.field(data, b"b"), "ab 1\nb 2\nc 3\n", 2),
    "first field": (lambda data: parsing.field(data, b"ab"), "ab 1\nb 2\n", 1),
    "memory v1": (lambda data: parsing.memory_amounts(data, b"total_"), memory_stat(4096), (4096, 4096)),
    "memory v2": (lambda data: parsing.memory_amounts(data, b""), memory_stat(4096, version=2), (4096, 4096)),
    "memory in pages": (parsing.memory_pages, numa_stat(total=7, file=3, anon=3, unevictable=1), (4, 7)),
    "throttling": (parsing.throttling, "nr_periods 7\nnr_throttled 3\nthrottled_time 5\n", parsing.Throttling(7, 3)),
    "ticks": (lambda data: parsing.cpu_ticks(data)[-1], STAT, 31),
    "meminfo": (lambda data: parsing.amounts_of(parsing.meminfo(data), b"MemTotal", b"MemFree"), MEMINFO,
                [2**21, 2**20]),
    "meminfo of a NUMA node": (
        lambda data: parsing.amounts_of(parsing.meminfo(data), b"MemTotal", b"Active(file)"), NODE_MEMINFO,
        [2**21, 2**19]),
    "pressure": (lambda data: parsing.pressure(data).some, PRESSURE, 0.5),
    "cold pages": (parsing.cold_pages, IDLE, 600 + 70 + 8 + 1000 + 20000),
}
readers = pytest.mark.parametrize(("read", "text", "value"), READERS.values(), ids=READERS)


@readers
def test_the_whole_text_has_the_value(read, text: str, value: object):
    assert read(text.encode()) == value


@readers
def test_a_text_that_is_cut_off_has_the_same_value_or_none(read, text: str, value: object):
    data = text.encode()
    for length in range(len(data)):
        try:
            found = read(data[:length])
        except ValueError:
            continue
        assert found == value


@readers
@given(data=st.binary(max_size=200))
@example(data=b"\xff\xfe 1\n")
@example(data=b"9" * 5000 + b"\n")
@example(data=b"some avg10=nan\n")
@example(data=b"cpu a b c d e f g\n")
@example(data=b"-\n")
def test_any_other_text_is_an_error_of_values_only(read, text: str, value: object, data: bytes):
    del text, value
    try:
        read(data)
    except ValueError:
        return


@readers
def test_numbers_beyond_64_bits_are_refused(read, text: str, value: object):
    if value == 0.5:
        return  # a percentage
    huge = "".join(str(2**64) if part.isdigit() and len(part) >= 1 else part for part in _parts(text))
    with pytest.raises(ValueError, match=r"no amount|no Mem|there are no|are missing"):
        read(huge.encode())


def _parts(text: str) -> list[str]:
    """Return the words of a text and what stands between them."""

    return re.split(r"((?<=[ =-])\d+(?=[ \n])|^\d+$)", text)


def test_lines_in_another_order_are_found_too():
    words = ("unevictable 4", "active_file 8", "inactive_file 16", "active_anon 2", "inactive_anon 1")
    text = "anon 0\n" + "".join(f"{each}\n" for each in words)
    assert parsing.memory_amounts(text.encode(), b"") == (7, 31)


def test_a_pressure_with_further_words_or_lines_is_read_too():
    longer = b"full avg10=2.5 avg60=0.00\nsome avg10=1.250 total=9\n"
    assert parsing.pressure(longer) == parsing.Pressure(1.25, 2.5)


def test_a_percentage_above_100_is_refused():
    with pytest.raises(ValueError, match=r"`100\.01` is not a percentage"):
        parsing.pressure(b"some avg10=100.01 avg60=0.00 avg300=0.00 total=9\n")


def test_a_kernel_may_have_no_full_pressure():
    assert parsing.pressure(b"some avg10=1.25 avg60=0.00 avg300=0.00 total=9\n") == parsing.Pressure(1.25, None)


def test_the_memory_of_numa_nodes_is_summed_up_in_pages_on_v1_and_in_bytes_on_v2():
    v1 = b"anon=1 N0=1 N1=0\nhierarchical_anon=9 N0=5 N1=4\nhierarchical_unevictable=2 N0=0 N1=2\n"
    assert parsing.memory_of_nodes(v1, (b"hierarchical_anon", b"hierarchical_unevictable")) == {0: 5, 1: 6}
    v2 = b"anon N0=7 N1=7\ninactive_anon N0=4096 N1=0\nactive_anon N0=1 N1=8192\n"
    assert parsing.memory_of_nodes(v2, (b"inactive_anon", b"active_anon")) == {0: 4097, 1: 8192}


@pytest.mark.parametrize("data", [
    b"", b"\n", b"anon N0=1", b"file N0=1\n", b"anon N0\n", b"anon N0=x\n", b"anon NX=1\n", b"anon N0=-1\n", b" \n",
    b"anon N0=99999999999999999999999\n"])
def test_memory_of_numa_nodes_that_is_malformed_is_refused(data: bytes):
    with pytest.raises(ValueError, match=r"missing|cut off|no amount"):
        parsing.memory_of_nodes(data, (b"anon",))


def test_the_time_of_each_processor_is_a_column():
    assert parsing.processor_times(b"12 0 345 \n") == [12, 0, 345]
    with pytest.raises(ValueError, match="cut off"):
        parsing.processor_times(b"12 3")
    with pytest.raises(ValueError, match="no amount"):
        parsing.processor_times(b"12 -3\n")
