from __future__ import annotations

import logging

import pytest

from koordpolicy.engine.cluster.kinds import Read, field_paths
from koordpolicy.engine.framework.instances import Instances
from koordpolicy.engine.framework.points import Point
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.scheduler.profiles.profile import (
    PluginChoice,
    Profile,
    ProfileSpec,
    all_reads_of,
    check_profiles,
)
from koordpolicy.engine.source import PolicyError
from koordpolicy.plugin import Handle


@pytest.fixture
def build(kit):
    def build(spec, *plugins):
        cluster = kit.cluster("a")
        instances = Instances(lambda name, plugin: Handle(name, cluster.snapshot, lambda: 0, logging.getLogger(name)))
        registry = Registry.of(plugins, generation=3)
        with instances.adopting(registry) as adoption:
            return Profile.of(spec, registry, adoption)

    return build


def names(active):
    return [(each.name, each.weight) for each in active]


def test_all_plugins_are_active_by_order_and_name_unless_they_say_otherwise(kit, build):
    plugins = [
        kit.plugin("b", kit.gives()), kit.plugin("a", kit.gives(), weight=3),
        kit.plugin("first", kit.gives(), order=-1),
        kit.plugin("waiting", kit.gives(), enabled=False),
        kit.plugin("elsewhere", kit.gives(), profiles=frozenset({"x"})),
        kit.plugin("here", kit.gives(), profiles=frozenset({"default-scheduler"})),
    ]
    profile = build(ProfileSpec(), *plugins)
    assert names(profile.scores) == [("first", 1), ("a", 3), ("b", 1), ("here", 1)]
    assert (profile.generation, profile.plugins()) == (3, ("a", "b", "first", "here"))


def test_what_a_profile_enables_comes_first_with_its_weight_and_whatever_is_disabled(kit, build):
    spec = ProfileSpec(enabled=(PluginChoice("waiting", 5), PluginChoice("b", 0)), disabled={None: frozenset({"*"})})
    profile = build(
        spec, kit.plugin("a", kit.gives()), kit.plugin("b", kit.gives(), weight=2),
        kit.plugin("waiting", kit.gives(), enabled=False),
    )
    assert names(profile.scores) == [("waiting", 5), ("b", 2)]


class Both:
    def filter(self, state, pod, snapshot, rows): ...
    def score(self, state, pod, snapshot, rows): ...


def test_plugins_are_disabled_and_enabled_per_point(kit, build):
    plugin = kit.plugin("p", Both())
    profile = build(ProfileSpec(disabled={Point.SCORE: frozenset({"p"})}), plugin)
    assert (names(profile.filters), names(profile.scores)) == ([("p", 1)], [])
    profile = build(
        ProfileSpec(
            enabled=(PluginChoice("p", 9, points=frozenset({Point.SCORE})),), disabled={None: frozenset({"p"})},
        ),
        plugin,
    )
    assert (names(profile.filters), names(profile.scores)) == ([], [("p", 9)])


def test_arguments_of_the_choice_win_over_those_of_the_profile_and_are_checked(kit, build):
    seen = []

    def check(args):
        if "bad" in args:
            raise ValueError("there is no argument `bad`")
        return {**args, "filled": True}

    def make(args, handle):
        seen.append(dict(args))
        return kit.gives()

    plugin = kit.plugin("p", make, points=(Point.SCORE,), check_args=check)
    build(ProfileSpec(enabled=(PluginChoice("p", args={"x": 2}),), args={"p": {"x": 1, "y": 1}}), plugin)
    assert seen == [{"x": 2, "y": 1, "filled": True}]
    with pytest.raises(PolicyError, match="the scheduler plugin `p` cannot be made: there is no argument `bad`"):
        build(ProfileSpec(args={"p": {"bad": 1}}), plugin)


def test_all_that_is_wrong_with_a_profile_is_told_at_once(kit, build):
    with pytest.raises(PolicyError) as caught:
        build(
            ProfileSpec("mine", enabled=(PluginChoice("Scorr"), PluginChoice("Score"), PluginChoice("Score"))),
            kit.plugin("Score", kit.gives()), kit.plugin("Liar", kit.gives(), points=(Point.FILTER,)),
        )
    assert str(caught.value) == (
        "error: profile `mine` enables the plugin `Score` twice\n  = name it once\n"
        "error: profile `mine` enables the plugin `Scorr`, which does not exist\n  = did you mean `Score`?\n"
        "error: the plugin `Liar` declares the point `filter` and does not implement it\n"
        "  = it comes from origin of Liar"
    )


def test_what_a_profile_asks_for_can_be_checked_without_making_anything(kit):
    def refuse(args):
        raise ValueError("there is no argument `bad`")

    def make(args, handle):
        raise AssertionError("nothing is to be made")

    registry = Registry.of([kit.plugin("p", make, points=(Point.SCORE,), check_args=refuse)], generation=3)
    specs = [ProfileSpec(enabled=(PluginChoice("x"),)), ProfileSpec("other", disabled={None: frozenset({"p"})})]
    with pytest.raises(PolicyError) as caught:
        check_profiles(specs, registry)
    assert [problem.message for problem in caught.value.problems] == [
        "profile `default-scheduler` enables the plugin `x`, which does not exist",
        "the scheduler plugin `p` cannot be made: there is no argument `bad`",
    ]
    check_profiles(specs[1:], registry)


def test_names_that_say_something_about_no_plugin_are_told(kit, build):
    spec = ProfileSpec(
        "mine", disabled={None: frozenset({"Scor", "*"}), Point.SCORE: frozenset({"Scor", "Score"})},
        args={"Socre": {"x": 1}, "Score": {}},
    )
    with pytest.raises(PolicyError) as caught:
        build(spec, kit.plugin("Score", kit.gives()))
    assert str(caught.value) == (
        "error: profile `mine` disables the plugin `Scor`, which does not exist\n  = did you mean `Score`?\n"
        "error: profile `mine` has arguments for the plugin `Socre`, which does not exist\n  = did you mean `Score`?"
    )


def test_a_plugin_that_names_no_fields_reads_whole_nodes_and_pods_in_each_registry(kit):
    names_pods = Read("Pod", fields=field_paths("spec.nodeName"))
    of = [Registry.of([kit.plugin("a", kit.gives(), reads=reads)], generation=1) for reads in ((), (names_pods,))]
    assert all_reads_of([ProfileSpec()], *of) == [Read("Node"), Read("Pod"), names_pods, Read("Node")]
