import json

import pytest

from koordpolicy.engine.cluster.sources.files import load
from koordpolicy.engine.source import PolicyError

NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}, "status": {"allocatable": {"cpu": "4"}}}


def write(tmp_path, name, text):
    file = tmp_path / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def complaint(path, **options):
    with pytest.raises(PolicyError) as caught:
        load(path, **options)
    return [
        (problem.code, problem.message, problem.span and problem.span.place[1:]) for problem in caught.value.problems
    ]


def test_a_list_in_json_is_taken_apart(tmp_path):
    file = write(tmp_path, "dump.json", json.dumps({"kind": "List", "items": [NODE, NODE]}))
    assert load(file) == (NODE, NODE)


def test_a_typed_list_says_what_its_items_are(tmp_path):
    item = {key: value for key, value in NODE.items() if key not in ("kind", "apiVersion")}
    file = write(tmp_path, "dump.json", json.dumps({"apiVersion": "v1", "kind": "NodeList", "items": [item]}))
    assert load(file) == (NODE,)


def test_yaml_documents_and_directories_are_read_in_order(tmp_path):
    write(
        tmp_path, "b.yaml",
        "kind: Node\nmetadata: {name: b}\n---\n\n---\nkind: List\nitems:\n- kind: Pod\n  metadata: {name: c}\n",
    )
    write(tmp_path, "a.json", json.dumps(NODE))
    write(tmp_path, "..hidden.yaml", "[")
    assert [each["metadata"]["name"] for each in load(tmp_path)] == ["a", "b", "c"]


def test_values_mean_what_they_mean_in_json(tmp_path):
    file = write(tmp_path, "a.yaml", (
        "kind: Node\nmetadata:\n  name: 'a'\n  creationTimestamp: 2026-01-01T00:00:00Z\n"
        "  labels: {on: yes, n: 012, t: 12:30}\n"
        "status:\n  allocatable: {cpu: 4, memory: 1.5}\n  ready: true\n"
    ))
    assert load(file) == ({
        "kind": "Node",
        "metadata": {
            "name": "a", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"on": "yes", "n": 12, "t": "12:30"},
        },
        "status": {"allocatable": {"cpu": "4", "memory": "1.5"}, "ready": True},
    },)


def test_a_request_that_is_left_out_is_the_limit(tmp_path):
    file = write(tmp_path, "a.yaml", (
        "kind: Pod\nspec:\n  containers:\n  - resources:\n      limits: {cpu: 2, memory: 1Gi}\n"
        "      requests: {cpu: 1}\n"
    ))
    resources = load(file)[0]["spec"]["containers"][0]["resources"]
    assert resources == {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}}


@pytest.mark.parametrize(("name", "text", "expected"), [
    ("a.yaml", "kind: Node\nmetadata: [\n", ("yaml-syntax", 3)),
    ("a.json", '{"kind": "Node",\n "a": }', ("json-syntax", 2)),
    ("a.json", '{"kind": "Node", "a": NaN}', ("json-syntax", 1)),
    ("a.yaml", b"kind: Node\nmetadata: \xff", ("not-utf-8", 2)),
    ("a.yaml", "kind: Node\nx: \x00\n", ("yaml-syntax", 2)),
    ("a.yaml", "a text\n", ("not-an-object", 1)),
    ("a.yaml", "metadata: {name: a}\n", ("not-an-object", 1)),
    ("a.yaml", "x: !!python/object:os.system {}\n", ("yaml-syntax", 1)),
    ("a.json", "[" * 100_000, ("too-deep", 1)),
    ("a.yaml", "x: " + "[" * 50_000, ("too-deep", 1)),
    ("a.yaml", "- " * 5_000 + "x", ("too-deep", 1)),
    ("a.yaml", "\n".join(" " * each + "a:" for each in range(300)), ("too-deep", 101)),
    ("a.yaml", (
        "a: &a [x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c]\n"
        "kind: X\n"
    ),
     ("alias-bomb", 2)),
    ("a.yaml", "a: &a [*a]\n", ("alias-bomb", 1)),
])
def test_what_cannot_be_read_is_named_with_its_place(tmp_path, name, text, expected):
    [(code, _, place)] = complaint(write(tmp_path, name, text))
    assert (code, place[0]) == expected


@pytest.mark.parametrize(("text", "hint"), [
    ("kind: Node\nmetadata: [\n", "is a value missing there, or the file cut off?"),
    ("kind: Node\nmetadata:\n\tname: a\n", "indent with spaces: YAML allows no tabs there"),
    ("kind: Node\nmetadata: {name: 'a}\n", "is a quote or bracket not closed, or the file cut off?"),
])
def test_a_fault_of_syntax_comes_with_advice(tmp_path, text, hint):
    with pytest.raises(PolicyError) as caught:
        load(write(tmp_path, "a.yaml", text))
    assert [each.help for each in caught.value.problems] == [hint]


NODES = '{"kind": "Node"}'


@pytest.mark.parametrize(("name", "text", "places"), [
    ("a.json", f'{{"kind": "List",\n "items": [{NODES},\n  5, {{"a": [1, 2]}}]}}', [(3, 3), (3, 6)]),
    ("a.json", f'[{NODES}, {{"kind": "List", "items": [{NODES}, []]}},\n {{}}]', [(2, 2)]),
    (
        "a.json", f'{{"kind": "List", "items": [{{"kind": "List", "items": [{NODES}, [1]]}},\n {{}}]}}',
        [(1, 74), (2, 2)],
    ),
    (
        "a.json", f'{{"kind": "List", "items": [1],\n"items": [{NODES},\n"\\u00e4 \\" ] }}", [ null ]]}}',
        [(3, 1), (3, 20)],
    ),
    ("a.json", ' \n {"metadata": {}}', [(2, 2)]),
    (
        "a.yaml", "kind: Node\n---\nkind: List\nitems:\n- kind: Pod\n- \u00e4\u00f6 \U0001f600\n- {a: b}\n",
        [(6, 3), (7, 3)],
    ),
    ("a.yaml", "# \u00e4 \U0001f600\r\n---\r\n- kind: Pod\r\n- \u00e4: c\r\n", [(4, 3)]),
    ("a.yaml", "{kind: List, items: [\n{kind: Node}, 7]}", [(2, 15)]),
    ("a.yaml", "kind: List\nx: &x\n  items: [5, 6]\nitems:\n- *x\n- 7\n", [(5, 3), (6, 3)]),
    ("a.yaml", "kind: List\nitems:\n- &x {kind: List, items: [\n5]}\n- *x\n", [(4, 1), (5, 3)]),
    ("a.yaml", "kind: List\nitems:\n- &x {items: [5]}\n- kind: List\n  <<: *x\n", [(3, 3), (4, 3)]),
])
def test_an_item_that_is_no_object_is_named_with_its_own_place(tmp_path, name, text, places):
    found = complaint(write(tmp_path, name, text))
    assert [(code, place) for code, _, place in found] == [("not-an-object", place) for place in places]


def test_an_item_that_nests_too_deeply_is_named_with_its_place(tmp_path):
    text = '{"kind": "List", "items": [\n{"kind": "[[[["},\n' + "[" * 120 + "]" * 120 + "]}"
    [(code, _, place)] = complaint(write(tmp_path, "a.json", text))
    assert (code, place) == ("too-deep", (3, 99))


def test_the_size_of_all_files_together_is_bounded(tmp_path):
    file = write(tmp_path, "a.yaml", "kind: Node\n")
    write(tmp_path, "b.yaml", "kind: Node\n")
    assert complaint(tmp_path, largest=15) == [
        ("too-large", f"`{tmp_path / 'b.yaml'}` has 11 bytes, more than the 15 that are read", None),
    ]
    assert load(file) == ({"kind": "Node"},)


def test_faults_of_all_files_are_told_at_once(tmp_path):
    write(tmp_path, "a.yaml", "kind: [")
    write(tmp_path, "b.yaml", "1")
    assert [code for code, _, _ in complaint(tmp_path)] == ["yaml-syntax", "not-an-object"]
    assert complaint(tmp_path / "c.yaml") == [
        ("unreadable", f"`{tmp_path / 'c.yaml'}` cannot be read: no such file or directory", None),
    ]


def test_a_file_without_an_end_is_not_read_for_ever(tmp_path):
    endless = tmp_path / "a.yaml"
    endless.symlink_to("/dev/zero")
    assert complaint(endless, largest=1000) == [
        ("too-large", f"`{endless}` has 1001 bytes or more, more than the 1000 that are read", None)]
