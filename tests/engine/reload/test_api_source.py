"""Policies in an API server are read as files are: by versions with digests, and positions in keys or fields."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from koordpolicy.engine.client.informer import Change, InformerView
from koordpolicy.engine.framework.registry import Live
from koordpolicy.engine.reload import Builder, InvalidAtStart, Mount, Presence, SourceLimits
from koordpolicy.engine.reload.api_source import ApiSource, ConfigMapSource, ObjectSource, parse
from koordpolicy.engine.reload.vet import VettedBuild, Vetter
from koordpolicy.engine.source import PolicyError

from .conftest import PARAMS, POLICY, Time, begun, messages, names, reloader_of

SYNCED = InformerView(synced=True)


def followed(source: ApiSource, *views: InformerView) -> None:
    source.follow(lambda: views or (SYNCED,))


def configmap(data: Mapping[str, str] | None, binary: Mapping[str, str] | None = None, *, name: str = "p") -> Change:
    body = {"metadata": {"namespace": "ns", "name": name}, "data": data, "binaryData": binary}
    return Change("ConfigMap", "ns", name, "u", msgspec.Raw(json.dumps(body).encode()))


def plugin(name: str, expression: str = "true", *, kind: str = "SchedulerPlugin", generation: int = 1,
           spec: Mapping[str, Any] | None = None, **metadata: Any) -> Change:
    body = {"apiVersion": "policy.koordinator.sh/v1alpha2", "kind": kind,
            "metadata": {"name": name, "uid": f"u-{name}", "generation": generation, "resourceVersion": "7",
                         "managedFields": [{}], **metadata},
            "spec": spec if spec is not None else {"filter": [{"name": "f", "expression": expression}]}}
    return Change(kind, "", name, f"u-{name}", msgspec.Raw(json.dumps(body).encode()))


def gone(change: Change) -> Change:
    return Change(change.kind, change.namespace, change.name, change.uid, None, deleted=True)


@pytest.fixture
def config() -> ConfigMapSource:
    source = ConfigMapSource("ns", "p")
    followed(source)
    return source


@pytest.fixture
def objects() -> ObjectSource:
    source = ObjectSource()
    followed(source)
    return source


def test_a_configmap_has_the_hash_of_the_directory_that_it_was_made_of(tmp_path: Path, config: ConfigMapSource):
    for name, text in {"a.yaml": POLICY, "b.json": "{}", "notes.txt": "x"}.items():
        (tmp_path / name).write_text(text)
    binary = base64.b64encode(b"{}").decode()
    config.deliver([configmap({"a.yaml": POLICY, "notes.txt": "x", ".b.yaml": "y"}, {"b.json": binary})])
    version, directory = config.read().version, Mount(tmp_path).read().version
    assert version is not None
    assert directory is not None
    assert (version.digest, sorted(version.files)) == (directory.digest, ["a.yaml", "b.json"])
    assert version.files["a.yaml"].name == "configmap:ns/p/a.yaml"


def test_problems_in_a_configmap_have_key_line_and_column(time: Time, live: Live, config: ConfigMapSource):
    config.deliver([configmap({"a.yaml": POLICY})])
    reloader = begun(live, time, config, builder=Builder())
    config.deliver([configmap({"a.yaml": POLICY.replace("'true'", "'true &&'")})])
    time.run(reloader, 1)
    (problem,) = reloader.status().sources[0].problems
    assert (str(problem.span), names(live)) == ("configmap:ns/p/a.yaml:4:47", ["one"])
    config.deliver([configmap({"a.yaml": POLICY.replace("one", "two")})])
    time.run(reloader, 1)
    assert (names(live), reloader.status().healthy) == (["two"], True)


@pytest.mark.parametrize("change", [gone(configmap(None)), configmap({}), configmap(None)])
def test_a_deleted_or_emptied_configmap_stays_active_unless_it_may_be_empty(time: Time, change: Change):
    for allow_empty, expected in ((False, ["one"]), (True, [])):
        source, live = ConfigMapSource("ns", "p"), Live()
        followed(source)
        source.deliver([configmap({"a.yaml": POLICY})])
        reloader = begun(live, time, source, builder=Builder(), allow_empty=allow_empty)
        source.deliver([change])
        time.run(reloader, 5)
        assert names(live) == expected
        assert reloader.status().emptied == (() if allow_empty else ("configmap:ns/p",))


def test_other_configmaps_are_ignored(config: ConfigMapSource):
    assert not config.deliver([configmap({"a.yaml": POLICY}, name="other")])
    assert config.read().warnings == ("there is no ConfigMap `p` in the namespace `ns`",)


def test_a_source_is_unreadable_until_it_was_listed_and_stays_readable_afterwards(time: Time, live: Live):
    source = ConfigMapSource("ns", "p")
    assert source.read().stamp.reason == "the API server has not answered yet"
    followed(source, InformerView(fault="403 Forbidden: no"))
    reloader = reloader_of(live, source, builder=Builder())
    with pytest.raises(PolicyError) as caught:
        reloader.begin(time.now)
    assert [(problem.message, problem.help) for problem in caught.value.problems] == [
        ("`configmap:ns/p` cannot be read: 403 Forbidden: no",
         "the server needs the right to list and watch the ConfigMap `p` in the namespace `ns`")]
    followed(source, InformerView(fault="nobody listens there"))
    assert (source.read().stamp.reason, source.read().stamp.help) == (
        "nobody listens there", "look at the connection to the API server")
    followed(source)
    source.deliver([configmap({"a.yaml": POLICY})])
    reloader.begin(time.now)
    followed(source, InformerView(synced=True, fault="connection refused"))
    time.run(reloader, 2)
    assert names(live) == ["one"]
    assert reloader.status().sources[0].warnings == (
        "changes of `configmap:ns/p` may be missed: connection refused",)


def test_a_source_beyond_its_limits_is_refused_as_a_whole():
    source = ObjectSource(limits=SourceLimits(files=1))
    followed(source)
    source.deliver([plugin("a"), plugin("b")])
    reading = source.read()
    assert (reading.version, reading.stamp.presence) == (None, Presence.UNREADABLE)
    assert reading.stamp.reason.startswith("it holds 2 policies with ")


def test_what_the_api_server_and_kubectl_add_to_an_object_is_no_part_of_its_content(objects: ObjectSource):
    added = {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}, "creationTimestamp": "x"}
    assert objects.deliver([plugin("a")])
    before = objects.read().version
    assert not objects.deliver([plugin("a", generation=2, **added)])
    assert objects.deliver([plugin("a", labels={"x": "y"})])
    after = objects.read().version
    assert before is not None
    assert after is not None
    assert json.loads(before.files["SchedulerPlugin/a"].text) == {
        "apiVersion": "policy.koordinator.sh/v1alpha2", "kind": "SchedulerPlugin", "metadata": {"name": "a"},
        "spec": {"filter": [{"name": "f", "expression": "true"}]}}
    assert (before.digest == after.digest, objects.objects["SchedulerPlugin/a"].generation) == (False, 1)


def test_a_broken_object_holds_up_no_other_one(time: Time, live: Live, objects: ObjectSource):
    objects.deliver([plugin("a"), plugin("b")])
    reloader = begun(live, time, objects, builder=Builder())
    digest = live.registry.digest
    objects.deliver([plugin("a", "true &&", generation=2)])
    objects.deliver([plugin("b", "1 < 2", generation=2), plugin("c")])
    time.run(reloader, 1)
    assert (names(live), live.registry.digest == digest) == (["a", "b", "c"], False)
    (source,) = reloader.status().sources
    assert ([str(problem.span) for problem in source.problems], source.mixed) == (
        ["crd:SchedulerPlugin/a: spec.filter[0].expression"], True)
    objects.deliver([gone(plugin("b"))])
    time.run(reloader, 1)
    assert names(live) == ["a", "c"]


def test_an_object_and_the_params_that_it_references_are_taken_or_refused_together(
    time: Time, live: Live, objects: ObjectSource,
):
    def user(expression: str, generation: int = 1) -> Change:
        return plugin("a", generation=generation, spec={
            "paramsFrom": [{"name": "p"}], "filter": [{"name": "f", "expression": expression}]})

    def shared(value: object) -> Change:
        return plugin("p", kind="PolicyParams", spec={"params": {"x": value}})

    objects.deliver([user("params.x > 1"), shared(2), plugin("b")])
    reloader = begun(live, time, objects, builder=Builder())
    registry = live.registry.digest
    objects.deliver([shared("two"), plugin("b", "1 < 2")])
    time.run(reloader, 1)
    status = reloader.status().sources[0]
    assert live.registry.digest != registry
    assert {problem.span.name for problem in status.problems if problem.span} == {"crd:SchedulerPlugin/a"}
    objects.deliver([user("params.x == 'two'", 2)])
    time.run(reloader, 1)
    assert (messages(reloader), reloader.status().healthy) == ([], True)


def user(name: str, expression: str) -> Change:
    return plugin(name, spec={"paramsFrom": [{"name": "p"}], "filter": [{"name": "f", "expression": expression}]})


def shared(value: object) -> Change:
    return plugin("p", kind="PolicyParams", spec={"params": {"x": value}})


def test_a_broken_object_holds_up_no_other_one_that_uses_its_params_at_the_start_or_later(
    time: Time, live: Live, objects: ObjectSource,
):
    objects.deliver([shared(1), user("a", "params.x > 0"), user("b", "params.x > nonsense")])
    reloader = begun(live, time, objects, builder=Builder())
    started = live.registry.digest
    assert names(live) == ["a"]
    objects.deliver([shared(2)])
    time.run(reloader, 1)
    assert live.registry.digest != started
    assert [str(each.span) for each in reloader.status().sources[0].problems] == [
        "crd:SchedulerPlugin/b: spec.filter[0].expression"]
    objects.deliver([user("b", "params.x > 1")])
    time.run(reloader, 1)
    assert (names(live), reloader.status().healthy) == (["a", "b"], True)
    objects.deliver([user("b", "nonsense")])
    time.run(reloader, 1)
    registry = live.registry.digest
    objects.deliver([shared(3)])
    time.run(reloader, 1)
    assert (names(live), live.registry.digest == registry) == (["a", "b"], False)


def test_a_server_starts_although_an_object_is_broken(tmp_path: Path, time: Time):
    live, objects = Live(), ObjectSource()
    followed(objects)
    objects.deliver([plugin("a"), plugin("b", "true &&")])
    (tmp_path / "p.yaml").write_text(POLICY)
    reloader = begun(live, time, objects, tmp_path, builder=Builder(), allow_empty=False)
    assert names(live) == ["a", "one"]
    assert [str(problem.span) for problem in reloader.status().sources[0].problems] == [
        "crd:SchedulerPlugin/b: spec.filter[0].expression"]
    assert [record.generation for record in reloader.status().history] == [live.registry.generation]


def test_a_server_whose_objects_are_all_broken_starts_without_them(time: Time, live: Live, objects: ObjectSource):
    objects.deliver([plugin("a", "true &&")])
    reloader = begun(live, time, objects, builder=Builder(), allow_empty=False)
    assert (names(live), reloader.status().healthy) == ([], False)


def test_a_server_with_a_broken_file_does_not_start_beside_objects(
    tmp_path: Path, time: Time, live: Live, objects: ObjectSource,
):
    objects.deliver([plugin("a")])
    (tmp_path / "p.yaml").write_text("nonsense")
    with pytest.raises(PolicyError):
        begun(live, time, objects, tmp_path, builder=Builder())


def test_a_server_without_objects_does_not_start_unless_there_may_be_none(time: Time, objects: ObjectSource):
    with pytest.raises(PolicyError, match="`crd` holds no policy"):
        begun(Live(), time, objects, builder=Builder(), allow_empty=False)
    begun(live := Live(), time, objects, builder=Builder())
    assert names(live) == []


def test_after_a_restart_the_last_good_version_of_a_broken_object_is_active(tmp_path: Path, time: Time):
    objects = ObjectSource()
    followed(objects)
    objects.deliver([plugin("a"), plugin("b")])
    begun(Live(), time, objects, builder=Builder(), state_dir=tmp_path / "state")
    objects.deliver([plugin("a", "true &&"), plugin("b", "1 < 2"), plugin("c")])
    reloader = begun(live := Live(), time, objects, builder=Builder(), state_dir=tmp_path / "state")
    assert names(live) == ["a", "b", "c"]
    assert [str(problem.span) for problem in reloader.status().sources[0].problems] == [
        "crd:SchedulerPlugin/a: spec.filter[0].expression"]
    time.run(reloader, 2)
    assert names(live) == ["a", "b", "c"]


@pytest.mark.parametrize("broken", [False, True])
def test_without_the_api_server_a_server_starts_on_the_last_good_objects(tmp_path: Path, time: Time, broken: bool):
    objects = ObjectSource()
    followed(objects)
    objects.deliver([plugin("a")])
    begun(Live(), time, objects, builder=Builder(), state_dir=tmp_path)
    away = ObjectSource()
    followed(away, InformerView(fault="connection refused"))
    reloader = begun(live := Live(), time, away, builder=Builder(), state_dir=tmp_path,
                     invalid_at_start=InvalidAtStart.LAST_GOOD)
    assert (names(live), messages(reloader)) == (["a"], ["`crd` cannot be read: connection refused"])
    followed(away)
    away.deliver([plugin("a", "true &&" if broken else "1 < 2"), plugin("b")])
    time.run(reloader, 2)
    (source,) = reloader.status().sources
    assert (names(live), source.last_good, len(source.problems)) == (["a", "b"], broken, int(broken))


def test_objects_that_change_all_the_time_are_read_all_the_same(time: Time, live: Live, objects: ObjectSource):
    objects.deliver([plugin("a"), plugin("b")])
    reloader = begun(live, time, objects, builder=Builder())
    digest = live.registry.digest
    for number in range(100):
        objects.deliver([plugin("b", f"{number} < 2")])
        time.run(reloader, 0.03)
    assert live.registry.digest != digest


def test_params_in_a_file_can_be_used_by_an_object(tmp_path: Path, time: Time, live: Live, objects: ObjectSource):
    (tmp_path / "p.yaml").write_text(PARAMS)
    objects.deliver([plugin("x", spec={"paramsFrom": [{"name": "p"}],
                                       "filter": [{"name": "f", "expression": "params.a == 1"}]})])
    begun(live, time, objects, tmp_path, builder=Builder())
    assert names(live) == ["x"]


def test_vetted_objects_have_problems_by_field_and_are_taken_one_by_one(time: Time, live: Live, objects: ObjectSource):
    vetter = Vetter()
    try:
        objects.deliver([plugin("a"), plugin("b", "true &&")])
        reloader = begun(live, time, objects, builder=VettedBuild(Builder(), vetter))
        assert (names(live), [str(each.span) for each in reloader.status().sources[0].problems]) == (
            ["a"], ["crd:SchedulerPlugin/b: spec.filter[0].expression"])
    finally:
        vetter.close()


def test_an_object_that_is_no_object_of_its_kind_is_a_problem_of_its_own(time: Time, live: Live, objects: ObjectSource):
    odd = Change("SchedulerPlugin", "", "odd", "u", msgspec.Raw(b'{"metadata": {"name": 1}, "spec": {}}'))
    objects.deliver([odd, plugin("a")])
    reloader = begun(live, time, objects, builder=Builder())
    assert names(live) == ["a"]
    assert messages(reloader)[0].startswith("`crd:SchedulerPlugin/odd` cannot be read: ")


@pytest.mark.parametrize("path", ["configmap:", "configmap:a", "configmap:a/", "configmap:/b", "configmap:a/b/c"])
def test_a_name_without_namespace_and_name_is_refused(path: str):
    with pytest.raises(PolicyError, match="names no ConfigMap"):
        parse(path)


def test_values_of_policies_are_files_unless_they_name_a_cluster():
    assert parse("policies") is None
    assert parse("./crd") is None
    assert isinstance(parse("crd"), ObjectSource)
    source = parse("configmap:a/b.c")
    assert isinstance(source, ConfigMapSource)
    assert (source.namespace, source.name, source.path) == ("a", "b.c", "configmap:a/b.c")
