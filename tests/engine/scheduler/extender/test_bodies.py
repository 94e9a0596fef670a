"""Bodies are bounded before they are decoded, whatever is in them."""

from __future__ import annotations

import json
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.scheduler.extender import bodies
from koordpolicy.engine.scheduler.extender.bodies import (
    ExcessiveError,
    MalformedBody,
    count_elements,
    read_envelope,
    read_object,
    read_pod,
)

POD = '{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c"}]}}'
MEBIBYTE = 1024 * 1024
TOO_LARGE = (
    "the body has {} bytes, at most 2097152 are read where it is not written as kube-scheduler does it: `Pod` with at "
    "most as many, then the list of `Nodes` or `NodeNames`"
)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20)


def elements(value):
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(elements, below))


@given(values)
def test_no_value_has_more_elements_than_are_counted(value):
    assert elements(value) <= 2 * count_elements(json.dumps(value).encode())


@given(st.dictionaries(st.text(), values, max_size=4))
def test_an_object_is_read_as_json(value):
    assert read_object(json.dumps(value).encode()) == value


@given(st.binary(max_size=60) | st.text(alphabet='{}[],:"\\ue0a1.-+ntf ', max_size=40).map(str.encode))
def test_whatever_is_sent_is_read_or_refused(body):
    for read in (read_envelope, read_pod, read_object):
        with suppress(MalformedBody):
            read(body)


@pytest.mark.parametrize(("body", "reason"), [
    (b'{"a":[' + b"{}," * (10 * MEBIBYTE // 3) + b"0]}", TOO_LARGE.format(10485768)),
    (b'{"Pod":[' + b"0," * 60_000 + b"0]}", "the body has up to 60002 elements, at most 50000 are read"),
    (b'{"NodeNames":[' + b'"",' * 200_000 + b'""]}', "`NodeNames` has more than the 100000 items that are read"),
    (
        f'{{"Pod":{POD},"Nodes":{{"items":['.encode() + b'{"metadata":{"name":"a"}},' * 20_000
        + b'{"metadata":{"name":"a"}}]}}',
        "`Nodes` has 20001 items, at most 20000 are read",
    ),
    (
        b'{"Nodes":{"items":[' + b'{"metadata":{"name":"a"}},' * 200_000 + b"{}]}}",
        "`Nodes` has more than the 20000 items that are read",
    ),
    (
        b'{"Nodes":{"items":[{},{"metadata":{"name":"' + b"x" * (3 * MEBIBYTE) + b'"}}]}}',
        "an item of `Nodes` has more than the 2097152 bytes that are read",
    ),
    (b'{"Pod":{"x":"' + b"x" * (2 * MEBIBYTE) + b'"}}', TOO_LARGE.format(2097168)),
    (
        b'{"Pod":{"x":"' + b"x" * (2 * MEBIBYTE) + b'"},"NodeNames":["a"]}',
        "the object has 2097160 bytes, at most 2097152 are read",
    ),
    (b'{"Pod":' + b'{"a":' * 200 + b"1" + b"}" * 201, "the body is nested too deeply"),
    (b'{"Pod":' + b"[" * 101 + b"]" * 101 + b"}", "the body is nested too deeply"),
    (b'{"Nodes":' + b"[" * 40_000, "the body is nested too deeply"),
])
def test_more_than_is_read_is_refused_by_the_bound_that_it_exceeds(body, reason):
    with pytest.raises(MalformedBody) as caught:
        read_envelope(body)
    assert (str(caught.value), isinstance(caught.value, ExcessiveError)) == (reason, "nested" not in reason)


@pytest.mark.parametrize(
    "item",
    [b"{},", b"[],", b'{"a":0},', b'"",', b"0,", b"[[]],", b'{"metadata":{"name":"a"}},', b"[" * 99 + b"]" * 99 + b","],
)
@pytest.mark.parametrize(
    "where", [b'{"Pod":[%b0]}', b'{"Nodes":{"items":[%b0]}}', b'{"NodeNames":[%b0]}', b'{"x":[%b0]}', b"[%b0]"],
)
def test_no_body_takes_much_more_memory_than_it_has_bytes(item, where):
    body = where % (item * (4 * MEBIBYTE // len(item)))
    tracemalloc.start()
    try:
        for read in (read_envelope, read_pod):
            with suppress(MalformedBody):
                read(body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 160 * MEBIBYTE, item


@pytest.mark.parametrize(
    "within", [b"{%b}", b'{"pod":{},%b}', b'{"Pod":{%b}}', b'{"Nodes":{%b}}', b'{"Nodes":{"items":[{%b}]}}'],
)
def test_members_beyond_all_bounds_take_no_memory(within):
    body = within % b",".join(b'"%d":0' % number for number in range(1_000_000))
    tracemalloc.start()
    try:
        for read in (read_envelope, read_pod):
            with pytest.raises(ExcessiveError, match=r"(50000|125000|2097152) (are|bytes that are) read"):
                read(body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * len(body)


def test_a_list_of_nodes_may_say_its_kind_and_then_have_as_many_elements_as_any():
    kind = (
        {"kind": "NodeList"}, {"apiVersion": "v1"},
        {"kind": "NodeList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}},
    )
    node = {"metadata": {"name": "a"}, "images": [""] * bodies.MOST_OBJECT_ELEMENTS}
    sent = [
        read_envelope(json.dumps({"Pod": json.loads(POD), "Nodes": {**each, "items": [node]}}).encode())
        for each in kind
    ]
    assert [[each.name for each in envelope.nodes] for envelope in sent] == [["a"]] * 3


def test_nesting_as_deep_as_allowed_is_read():
    deep = [0]
    for _ in range(bodies.DEEPEST - 2):
        deep = [deep]
    assert read_object(json.dumps({"a": deep}).encode()) == {"a": deep}


def test_whole_nodes_stay_the_bytes_that_came():
    text = '{"metadata": {"name": "a", "uid": "u", "resourceVersion":"5" }, "x": 1.50, "x": "\\u00e9"}'
    envelope = read_envelope(f'{{"pod":{POD},"nodes":{{"ITEMS":[ {text} ]}}}}'.encode())
    assert envelope.names is None
    assert [(each.name, each.uid, each.version, bytes(each.raw)) for each in envelope.nodes] == [
        ("a", "u", "5", text.encode()),
    ]


def test_a_pod_is_read_from_a_body_of_its_own_and_from_a_question():
    for beside in ("{}", '{"Nodes":null}', '{"Pod":null,"NodeNames":[]}'):
        assert read_pod(beside.encode()) == json.loads(beside)
    assert read_pod(POD.encode()) == read_pod(f'{{"Pod":{POD},"NodeNames":["a"]}}'.encode()) == json.loads(POD)


def test_nodes_are_counted_before_they_are_cut_out():
    body = b'{"Pod":{},"Nodes":{"items":[' + b"{}," * 170_000 + b"{}]}}"
    tracemalloc.start()
    with pytest.raises(bodies.ExcessiveError, match="has up to 170002 elements, at most 125000 are read in one piece"):
        bodies.read_envelope(body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * 1024 * 1024


def test_nodes_with_much_in_them_are_read_as_others_are():
    nodes = [{"metadata": {"name": f"n{number}"}, "status": {"images": [0] * 60}} for number in range(2_000)]
    found = bodies.read_envelope(json.dumps({"Pod": {"a": 1}, "Nodes": {"items": nodes, "kind": "NodeList"}}).encode())
    assert (found.pod, [(node.name, json.loads(bytes(node.raw))) for node in found.nodes]) == (
        {"a": 1}, [(node["metadata"]["name"], node) for node in nodes])


def large(items, *, spaced, around):
    """Return a question with these items, larger than what is read in one piece."""
    separators = (", ", ": ") if spaced else (",", ":")
    return json.dumps(around(items), separators=separators).encode()


ODD = [
    {"metadata": {"name": "a", "ownerReferences": [{"apiVersion": "v1", "kind": "A"}, {"apiVersion": "v1"}] * 400}},
    {"metadata": {"name": "b", "annotations": {
        "json": '"},{"metadata":{"name":"x"}},{"metadata":{"items":[', "x": "\\"}}},
    {"metadata": {"name": "c"}, "long": "y" * 300_000},
    {"metadata": {"name": "d"}, "items": [{"metadata": 1}, {"metadata": 2}], "NodeNames": ["\u00e4", "\U0001f600"]},
]


@pytest.mark.parametrize("spaced", [False, True])
@pytest.mark.parametrize("around", [
    lambda items: {"Pod": {"x": 1}, "Nodes": {"metadata": {}, "items": items}, "NodeNames": None},
    lambda items: {"Nodes": {"items": items, "kind": "NodeList"}, "Pod": {"x": 1}},
    lambda items: {"Pod": {"x": 1, "volumes": [{"items": [1, {"Nodes": {"items": []}}]}]}, "Nodes": {"items": items}},
    lambda items: {"pod": {"x": 1}, "NODES": {"items": items}},
])
def test_a_large_body_is_read_as_a_small_one(spaced, around):
    items = [{"metadata": {"name": f"n{number}"}, "x": "z" * 90} for number in range(6_000)]
    for place, odd in enumerate(ODD):
        items.insert(1_900 * place, odd)
    for some in (items, [items[2]] * 2):
        found = read_envelope(large(some, spaced=spaced, around=around))
        assert (found.pod, found.names, [json.loads(bytes(each.raw)) for each in found.nodes]) == (
            around(some).get("Pod", {"x": 1}), None, some)


@pytest.mark.parametrize("spaced", [False, True])
def test_many_names_are_read_as_a_few(spaced):
    names = [f'n{number}","\u00e4\\' for number in range(40_000)]
    for around in (lambda names: {"Pod": {"x": 1}, "Nodes": None, "NodeNames": names},
                   lambda names: {"NodeNames": names, "Pod": {"x": 1}}):
        found = read_envelope(large(names, spaced=spaced, around=around))
        assert (found.pod, found.names, found.nodes) == ({"x": 1}, names, None)


def test_large_objects_are_decoded_as_small_ones():
    value = {"a": "\u00e4\U0001f600" * 40_000, "b": [{"c": "x" * 300_000}, 1.5, None, "y"], "d": {"e": list(range(9))},
             **{f"k{number}": {"v": "z" * 20} for number in range(9_000)}}
    for escaped in (False, True):
        assert read_object(json.dumps(value, ensure_ascii=escaped).encode()) == value


@pytest.mark.parametrize(("end", "reason"), [
    (b'{"metadata":{"name":"b"}}', "the body is not readable JSON: Input data was truncated"),
    (b'{"metadata":{"name":"b"}},]}}', "the body is not readable JSON: JSON is malformed: "),
    (b'{"metadata":{"name":1}}]}}', "`Nodes.items[30000].metadata.name` must be a string, not a number"),
    (b'{"metadata":{"name":"b"}}]},"NodeNames":["a"]}', "both `Nodes` and `NodeNames` are given"),
])
def test_a_fault_at_the_end_of_a_large_body_is_found(end, reason):
    body = b'{"Pod":{},"Nodes":{"items":[' + b'{"metadata":{"name":"a","x":"0123456789"}},' * 15_000 + end
    with pytest.raises(MalformedBody) as caught:
        read_envelope(body)
    assert str(caught.value).startswith(reason.replace("30000", "15000"))
