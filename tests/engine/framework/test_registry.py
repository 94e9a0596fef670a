from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from koordpolicy.engine.client.resources import ApiResource
from koordpolicy.engine.cluster.kinds import Read
from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Entry, Live, Plugin, Registry
from koordpolicy.engine.source import PolicyError, Source


def plugin(name: str, *points: Point, source: str = "", replaces: bool = False, order: int = 0, digest: str = "1",
           framework: Framework = Framework.SCHEDULER) -> Plugin:
    span = Source(f"{source}/{name}.yaml", f"name: {name}").whole() if source else None
    return Plugin(name, framework, points or (Point.FILTER,), lambda args, handle: None,
                  f"{source}/{name}.yaml" if source else "built-in", digest, source=source, span=span,
                  replaces=replaces, order=order)


def test_entries_are_asked_by_order_and_then_by_name() -> None:
    first, second = plugin("z", order=-1), plugin("b", Point.FILTER, Point.SCORE)
    third, other = plugin("a", order=1), plugin("a", framework=Framework.QOS)
    registry = Registry.of([third, second, first, other], generation=1)
    assert registry.at(Framework.SCHEDULER, Point.FILTER) == tuple(
        Entry(each, Point.FILTER) for each in (first, second, third))
    assert registry.at(Framework.SCHEDULER, Point.SCORE) == (Entry(second, Point.SCORE),)
    assert registry.of_framework(Framework.QOS) == (other,)


def test_every_name_taken_twice_is_told_at_the_document() -> None:
    with pytest.raises(PolicyError) as caught:
        Registry.of([plugin("a"), plugin("a", source="p"), plugin("b", source="p"), plugin("b", source="q")],
                    generation=1)
    assert str(caught.value) == (
        "p/a.yaml:1:1: error: there is a scheduler plugin `a` already: built-in\n"
        " 1 | name: a\n"
        "   | ^^^^^^^ rename it, or set `replaces: true` in its spec\n"
        "q/b.yaml:1:1: error: the scheduler plugin `b` is declared twice, also at p/b.yaml\n"
        " 1 | name: b\n"
        "   | ^^^^^^^ rename one")


@pytest.mark.parametrize("document_first", [True, False])
def test_a_document_may_replace_a_python_plugin_on_purpose(document_first: bool) -> None:
    pair = [plugin("a", source="p", replaces=True), plugin("a")]
    registry = Registry.of(pair if document_first else reversed(pair), generation=1)
    assert registry.of_framework(Framework.SCHEDULER) == (pair[0],)


def test_the_digest_is_of_the_set_and_not_of_its_order() -> None:
    one, two = plugin("a"), plugin("b")
    assert Registry.of([one, two], generation=1).digest == Registry.of([two, one], generation=2).digest
    assert Registry.of(
        [one, plugin("b", digest="2")], generation=1,
    ).digest != Registry.of([one, two], generation=1).digest


def test_unchanged_content_keeps_its_generation_and_is_found_at_its_new_place() -> None:
    live = Live()
    assert live.replace(lambda: [plugin("a", source="p")]).generation == 1
    assert live.replace(lambda: [plugin("a", source="q")]).generation == 1
    assert live.registry.of_framework(Framework.SCHEDULER)[0].source == "q"
    assert live.replace(lambda: [plugin("a", source="q", digest="2")]).generation == 2


def test_a_build_that_fails_changes_nothing() -> None:
    live = Live()
    before = live.replace(lambda: [plugin("a")])
    with pytest.raises(PolicyError):
        live.replace(lambda: [plugin("a"), plugin("a")])
    assert live.registry is before


def test_a_registry_is_prepared_as_it_will_be_before_it_is_in_force() -> None:
    live = Live()
    before = live.replace(lambda: [plugin("a")])
    seen = []

    def prepare(registry: Registry) -> None:
        seen.append((registry.generation, live.registry is before))
        if len(seen) == 1:
            raise PolicyError([])

    with pytest.raises(PolicyError):
        live.replace(lambda: [plugin("b")], prepare)
    assert live.registry is before
    live.replace(lambda: [plugin("b")], prepare)
    live.replace(lambda: [plugin("b")], prepare)
    assert (seen, live.registry.generation) == ([(2, True), (2, True), (2, False)], 2)


def test_readers_see_whole_registries_while_another_thread_swaps() -> None:
    live = Live()
    live.replace(lambda: [plugin("a", digest="0"), plugin("b", digest="0")])

    def swap_often() -> None:
        for number in range(1, 300):
            live.replace(lambda: [plugin("a", digest=str(number)), plugin("b", digest=str(number))])  # noqa: B023 - `replace` calls it at once

    writer = threading.Thread(target=swap_often)
    writer.start()
    halves = []
    while writer.is_alive():
        digests = {each.digest for each in live.registry.plugins.values()}
        if len(digests) != 1:
            halves.append(digests)
    writer.join()
    assert halves == []
    assert live.registry.generation == 300


@pytest.mark.usefixtures("own_declared_kinds")
def test_a_kind_that_two_plugins_serve_at_different_places_is_refused() -> None:
    def reading(name: str, group: str) -> Plugin:
        return replace(plugin(name), reads=(Read("RegistryWidget", group=group, version="v1", plural="widgets"),))

    one, other = reading("one", "one.example.com"), reading("other", "other.example.com")
    assert Registry.of([one, reading("same", "one.example.com")], generation=1).plugins
    with pytest.raises(PolicyError) as caught:
        Registry.of([one, other], generation=2)
    problem, = caught.value.problems
    assert problem.message == (
        "scheduler plugin `other` of built-in: the kind `RegistryWidget` is widgets of `one.example.com/v1`, and "
        "cannot be widgets of `other.example.com/v1` too")


@pytest.mark.parametrize(("group", "version", "plural"), [
    ("example.com", "", ""), ("", "v1", ""), ("", "", "widgets"), ("example.com", "", "widgets")])
def test_a_kind_has_a_whole_place_or_none(group: str, version: str, plural: str) -> None:
    with pytest.raises(ValueError, match="a `Read` of Widget that says where the API serves it"):
        Read("Widget", group=group, version=version, plural=plural)
    assert (Read("Widget").resource, Read("Widget", version="v1", plural="widgets").resource) == (
        None, ApiResource("Widget", "", "v1", "widgets"))
