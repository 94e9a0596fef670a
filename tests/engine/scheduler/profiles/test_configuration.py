from __future__ import annotations

import pytest

from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Plugin, Registry
from koordpolicy.engine.scheduler.profiles.configuration import read
from koordpolicy.engine.source import PolicyError, Source

HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"


def check(args):
    if args.get("limit", 0) > 100:
        raise ValueError("`limit` must be 0..100")
    return args


def plugin(name, *points, default=None, order=0, **rest):
    return Plugin(
        name, Framework.SCHEDULER, points, lambda args, handle: None, "built-in", name, order=order,
        default_weight=default, check_args=check, **rest,
    )


PLUGINS = (
    plugin("Sort", Point.QUEUE_SORT, default=0, order=1),
    plugin("Taints", Point.FILTER, Point.SCORE, default=3, order=2),
    plugin("Fit", Point.FILTER, Point.SCORE, default=1, order=3),
    plugin("Preempt", Point.POST_FILTER, default=0, order=4),
    plugin("Load", Point.FILTER, Point.SCORE, Point.RESERVE, enabled=False),
    plugin("OtherSort", Point.QUEUE_SORT, enabled=False),
    plugin("DefaultPreBind", Point.PRE_BIND, enabled=False),
)


def configured(text, head=HEAD):
    return read(Source("scheduler.yaml", head + text), Registry.of(PLUGINS, generation=1))


def at(profile, point):
    return [(choice.name, choice.weight) for choice in profile.enabled if choice.points == {point}]


def faults(text, head=HEAD):
    with pytest.raises(PolicyError) as error:
        configured(text, head)
    return [
        ("{}:{}".format(*each.span.source.position(each.span.start)), each.message, each.help)
        for each in error.value.problems
    ]


def test_without_profiles_there_is_one_with_the_default_plugins_at_all_their_points():
    found = configured("")
    (profile,) = found.profiles
    assert (profile.name, profile.named_only) == ("default-scheduler", True)
    assert at(profile, Point.FILTER) == at(profile, Point.SCORE) == [("Taints", 3), ("Fit", 1)]
    assert (at(profile, Point.QUEUE_SORT), at(profile, Point.POST_FILTER)) == ([("Sort", 0)], [("Preempt", 0)])
    assert (found.initial_backoff, found.longest_backoff, found.warnings) == (1_000_000_000, 10_000_000_000, ())


def test_what_a_profile_enables_at_a_point_comes_after_the_defaults_with_its_weight():
    profile = configured("""
profiles:
- schedulerName: koord-scheduler
  plugins:
    score: {enabled: [{name: Load, weight: 5}]}
""").profiles[0]
    assert (profile.name, at(profile, Point.SCORE), at(profile, Point.FILTER)) == (
        "koord-scheduler", [("Taints", 3), ("Fit", 1), ("Load", 5)], [("Taints", 3), ("Fit", 1)],
    )


def test_a_default_that_a_point_names_again_comes_first_there_with_the_points_weight():
    profile = configured("profiles: [{plugins: {score: {enabled: [{name: Fit, weight: 9}]}}}]").profiles[0]
    assert (at(profile, Point.SCORE), at(profile, Point.FILTER)) == (
        [("Fit", 9), ("Taints", 3)], [("Taints", 3), ("Fit", 1)],
    )


def test_defaults_are_disabled_one_by_one_at_a_point_or_all_of_them():
    for disabled, score, filters in (
        ("score: {disabled: [{name: Taints}]}", [("Fit", 1)], [("Taints", 3), ("Fit", 1)]),
        ("score: {disabled: [{name: '*'}], enabled: [{name: Load}]}", [("Load", 0)], [("Taints", 3), ("Fit", 1)]),
        ("multiPoint: {disabled: [{name: Taints}]}", [("Fit", 1)], [("Fit", 1)]),
        ("multiPoint: {disabled: [{name: '*'}], enabled: [{name: Load, weight: 2}]}", [("Load", 2)], [("Load", 2)]),
        ("multiPoint: {enabled: [{name: Fit, weight: 7}]}", [("Taints", 3), ("Fit", 7)], [("Taints", 3), ("Fit", 7)]),
    ):
        profile = configured(f"profiles: [{{plugins: {{{disabled}}}}}]").profiles[0]
        assert (at(profile, Point.SCORE), at(profile, Point.FILTER)) == (score, filters), disabled


def test_a_profile_with_plugins_gets_the_one_that_makes_the_patch_unless_it_says_otherwise():
    for text, names in (
        ("", []), ("plugins: {}", ["DefaultPreBind"]), ("plugins: {preBind: {disabled: [{name: DefaultPreBind}]}}", []),
        ("plugins: {preBind: {enabled: [{name: DefaultPreBind}]}}", ["DefaultPreBind"]),
    ):
        profile = configured(f"profiles: [{{schedulerName: a, {text}}}]").profiles[0]
        assert [name for name, _ in at(profile, Point.PRE_BIND)] == names, text


def test_arguments_lose_their_kind_and_are_checked_where_they_stand():
    text = """
profiles:
- pluginConfig:
  - name: Load
    args: {apiVersion: kubescheduler.config.k8s.io/v1, kind: LoadArgs, limit: 7}
"""
    assert configured(text).profiles[0].args == {"Load": {"limit": 7}}
    assert faults(text.replace("7}", "700}")) == [("7:72", "pluginConfig[0].args: `limit` must be 0..100", "")]


@pytest.mark.parametrize(("text", "expected"), [
    ("profile: []", [("3:1", "unknown field `profile`", "did you mean `profiles`?")]),
    (
        "profiles: [{plugins: {scores: {}}}]",
        [("3:23", "unknown field `scores` in `profiles[0].plugins`", "did you mean `score`?")],
    ),
    (
        "profiles: [{plugins: {score: {enabled: [{name: Fitt}]}}}]",
        [("3:48", "plugins.score.enabled: there is no plugin `Fitt`", "did you mean `Fit`?")],
    ),
    (
        "profiles: [{plugins: {score: {enabled: [{name: Sort}]}}}]",
        [("3:41", "plugins.score.enabled: the plugin `Sort` does not extend `score`", "it extends `queueSort`")],
    ),
    (
        "profiles: [{plugins: {score: {enabled: [{name: Fit}, {name: Fit}]}}}]",
        [("3:54", "plugins.score.enabled: the plugin `Fit` is enabled twice", "name it once")],
    ),
    (
        "profiles: [{schedulerName: a}, {schedulerName: a}]",
        [("3:33", "schedulerName: the name `a` is an earlier profile's too", "give each profile its own name")],
    ),
    (
        "profiles: [{pluginConfig: [{name: Fit, args: {kind: LoadArgs}}]}]",
        [("3:47", "pluginConfig[0].args.kind: `LoadArgs` are not the arguments of `Fit`", "write `FitArgs`")],
    ),
    (
        "profiles: [{pluginConfig: [{name: Fit, args: {apiVersion: v1beta3}}]}]",
        [
            (
                "3:47",
                "pluginConfig[0].args.apiVersion: only `kubescheduler.config.k8s.io/v1` is known, not `v1beta3`",
                "write `kubescheduler.config.k8s.io/v1`",
            ),
        ],
    ),
    (
        "profiles: [{pluginConfig: [{name: Fit}, {name: Fit}]}]",
        [("3:41", "pluginConfig[1]: `Fit` is configured twice in this profile", "configure it once")],
    ),
    (
        "profiles: [{plugins: {queueSort: {enabled: [{name: OtherSort}]}}}]",
        [("3:12", "queueSort: only one plugin can sort the queue, not Sort, OtherSort", "disable all but one")],
    ),
    (
        (
            "profiles: [{schedulerName: a}, {schedulerName: b, plugins: {queueSort: {disabled: [{name: Sort}], "
            "enabled: [{name: OtherSort}]}}}]"
        ),
        [
            (
                "3:32", "queueSort: different queue sort plugins: OtherSort here, Sort in the first profile",
                "all profiles share one queue: enable the same",
            ),
        ],
    ),
    (
        "podInitialBackoffSeconds: 20",
        [("3:1", "podMaxBackoffSeconds: must be at least podInitialBackoffSeconds (20), not 10", "")],
    ),
])
def test_every_fault_has_its_place_and_says_what_to_do(text, expected):
    assert faults(text) == expected


@pytest.mark.parametrize(("head", "message"), [
    (
        "kind: KubeSchedulerConfiguration\n",
        "this is not a `KubeSchedulerConfiguration`: it does not say `apiVersion` and `kind`",
    ),
    (
        HEAD.replace("/v1", "/v1beta3"),
        "no kind `KubeSchedulerConfiguration` is registered for version `kubescheduler.config.k8s.io/v1beta3`",
    ),
    (HEAD.replace("KubeS", "S"), "couldn't decode as `KubeSchedulerConfiguration`, got kind `SchedulerConfiguration`"),
])
def test_another_kind_or_version_is_refused(head, message):
    assert [each[1] for each in faults("", head)] == [message]


def test_what_kube_scheduler_has_and_this_one_does_not_is_a_warning():
    found = configured(
        "percentageOfNodesToScore: 10\nprofiles: [{plugins: {filter: {enabled: [{name: DynamicResources}]}}}]",
    )
    assert [(each.span.source.position(each.span.start)[0], each.message) for each in found.warnings] == [
        (4, "plugins.filter.enabled: the plugin `DynamicResources` is not built here and does nothing"),
        (3, "percentageOfNodesToScore has no effect: all nodes are filtered and scored"),
    ]


@pytest.mark.parametrize("text", [
    "profiles: null", "profiles: []", "profiles: [null]", "profiles: [{plugins: null, pluginConfig: null}]",
    "podMaxBackoffSeconds: null",
    "profiles: [{plugins: {score: null, filter: {enabled: null, disabled: null}}}]",
])
def test_a_field_that_is_null_is_as_if_it_were_not_there(text):
    [profile] = configured(text).profiles
    [usual] = configured("").profiles
    assert {choice.name for choice in profile.enabled} >= {choice.name for choice in usual.enabled}
    assert (profile.name, profile.args) == ("default-scheduler", {})


def test_arguments_that_are_null_are_the_defaults():
    [profile] = configured("profiles: [{pluginConfig: [{name: Load, args: null}]}]").profiles
    assert profile.args == {"Load": {}}


def test_one_of_several_profiles_must_not_be_nameless():
    with pytest.raises(PolicyError, match=r"profiles\[1\].schedulerName: required where there are several profiles"):
        configured("profiles: [{schedulerName: a}, {}]")


def test_a_weight_has_32_bits():
    with pytest.raises(PolicyError, match="the weight of `Load` is more than 2147483647"):
        configured("profiles: [{plugins: {multiPoint: {enabled: [{name: Load, weight: 2147483648}]}}}]")


def test_a_profile_that_sorts_by_nothing_is_warned_about():
    text = "profiles: [{plugins: {multiPoint: {disabled: [{name: '*'}]}}}]"
    found = configured(text).warnings
    assert [warning.message.partition(",")[0] for warning in found][-1:] == [
        "queueSort: no queue sort plugin is enabled",
    ]
