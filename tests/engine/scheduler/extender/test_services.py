from __future__ import annotations

import pytest

from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Plugin
from koordpolicy.engine.scheduler.cycle.schedule_one import Debug, Scheduler
from koordpolicy.engine.scheduler.extender.services import UnknownPathError, answer, paths, switched


class Tells:
    def pre_filter(self, state, pod, snapshot):
        return None

    def endpoints(self):
        return {
            "gangs": lambda: {"a": 1}, "gang/{namespace}/{name}": self.gang, "quotas": lambda tree="": {"tree": tree},
        }

    def gang(self, namespace, name):
        return None if name == "gone" else f"{namespace}/{name}"


@pytest.fixture
def scheduler(kit):
    plugin = Plugin("Tells", Framework.SCHEDULER, (Point.PRE_FILTER,), lambda args, handle: Tells(), "", "1")
    cluster = kit.cluster("a", "b")
    cluster.assume(kit.pod("p"), "a")
    return Scheduler(cluster, kit.live(plugin))


def test_all_paths_are_listed(scheduler):
    found = [
        "/apis/v1/__services__", "/apis/v1/nodes/{nodeName}", "/apis/v1/plugins/Tells/gang/{namespace}/{name}",
        "/apis/v1/plugins/Tells/gangs", "/apis/v1/plugins/Tells/quotas",
    ]
    assert (paths(scheduler), answer(scheduler, "/apis/v1/__services__", {})) == (found, {"GET": found})


def test_plugins_answer_at_their_paths_with_the_parts_and_the_parameters(scheduler):
    assert answer(scheduler, "/apis/v1/plugins/Tells/gangs", {}) == {"a": 1}
    assert answer(scheduler, "/apis/v1/plugins/Tells/gang/shop/web", {}) == "shop/web"
    assert answer(scheduler, "/apis/v1/plugins/Tells/quotas", {"tree": "x"}) == {"tree": "x"}


def test_a_node_is_told_as_the_scheduler_sees_it(scheduler):
    node = answer(scheduler, "/apis/v1/nodes/a", {})
    assert (node["requested"], node["pods"], node["metricUpdated"]) == (
        {"cpu": 1000, "memory": 2**30},
        [{"namespace": "default", "name": "p", "requests": {"cpu": 1000, "memory": 2**30}}], None,
    )


@pytest.mark.parametrize(("path", "message"), [
    ("/apis/v1/plugins/Tells/gang/shop/gone", "nothing is known of `/apis/v1/plugins/Tells/gang/shop/gone`"),
    ("/apis/v1/plugins/Tells/gang/shop", "did you mean|ask /apis/v1/__services__"),
    ("/apis/v1/plugins/Other/gangs", "there is no `/apis/v1/plugins/Other/gangs`"),
    ("/apis/v1/nodes/c", "there is no node `c`"),
    ("/apis/v1/nodes/a/b", "there is no `/apis/v1/nodes/a/b`"),
])
def test_what_is_not_there_says_what_is(scheduler, path, message):
    with pytest.raises(UnknownPathError, match=message):
        answer(scheduler, path, {})


def test_a_plugin_that_fails_to_say_what_it_answers_keeps_no_other_from_answering(kit):
    class Broken(Tells):
        def endpoints(self):
            raise RuntimeError("broken")

    def plugin(name, instance):
        return Plugin(name, Framework.SCHEDULER, (Point.PRE_FILTER,), lambda args, handle: instance, "", name)

    scheduler = Scheduler(kit.cluster("a"), kit.live(plugin("Broken", Broken()), plugin("T+(x", Tells())))
    assert answer(scheduler, "/apis/v1/plugins/T+(x/gang/shop/web", {}) == "shop/web"


def test_a_parameter_that_a_path_does_not_take_is_refused(scheduler):
    with pytest.raises(
        ValueError, match="`tre` is not a parameter of `/apis/v1/plugins/Tells/quotas`: did you mean `tree`",
    ):
        answer(scheduler, "/apis/v1/plugins/Tells/quotas", {"tre": "x"})


def test_flags_are_switched_one_by_one():
    debug = switched(Debug(), "s", "20")
    assert (debug, switched(debug, "f", "TRUE"), switched(debug, "t", "1"), switched(debug, "d", "1")) == (
        Debug(20), Debug(20, filters=True), Debug(20, trace=True), Debug(20, diagnosis=True),
    )


@pytest.mark.parametrize(("letter", "text", "message"), [
    ("s", "many", "the flag `s` is a whole number from 0 to 1000, not `many`"),
    ("s", "1" * 5000, "the flag `s` is a whole number"),
    ("f", "5", "the flag `f` is `true` or `false`, not `5`"),
])
def test_a_flag_that_cannot_be_that_is_refused(letter, text, message):
    with pytest.raises(ValueError, match=message):
        switched(Debug(), letter, text)


def test_an_unknown_flag_is_told_which_there_are():
    with pytest.raises(UnknownPathError, match="there is no flag `x`: there are `s`"):
        switched(Debug(), "x", "1")
