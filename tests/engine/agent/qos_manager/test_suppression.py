from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.agent.qos_manager.suppression import (
    Processor,
    Topology,
    choose_best_effort_cpus,
    choose_cpus,
    format_cpuset,
    owned_cpus,
    parse_cpuset,
    read_topology,
    recover_cpus,
    recover_quota,
    set_cpus,
    set_quota,
)
from koordpolicy.engine.cel.values.values import EvaluationError

EIGHT = tuple(Processor(cpu, cpu // 2, cpu // 4, cpu // 4) for cpu in range(8))


@given(st.frozensets(st.integers(0, 200)))
def test_a_cpu_list_reads_back_as_it_was_written(cpus):
    assert parse_cpuset(format_cpuset(cpus)) == cpus


@pytest.mark.parametrize(
    "text", ["0-99999999999", "70000", "0-x", "5-2", "-1", "1-", "a", "0-1-2", "\N{ARABIC-INDIC DIGIT ONE}"],
)
def test_a_text_that_is_no_cpu_list_is_refused_and_costs_nothing(text):
    with pytest.raises(ValueError, match=f"`{text}` is neither a CPU nor a range of CPUs from 0 to 65535"):
        parse_cpuset(f"0,{text}")


@pytest.mark.parametrize(("annotation", "value", "message"), [
    ("node.koordinator.sh/reservation", '{"reservedCPUs": "0-"}', "`reservedCPUs`: `0-` is neither a CPU nor a range"),
    ("node.koordinator.sh/system-qos-resource", '{"cpuset": "x"}', "`cpuset`: `x` is neither a CPU nor a range"),
    ("node.koordinator.sh/cpu-topology", '{"detail": [{"id": 0}]}', "`detail` is not a list of `id`, `core`"),
    ("node.koordinator.sh/cpu-topology", '{"detail": 5}', "`detail` is not a list of `id`, `core`"),
    ("node.koordinator.sh/reservation", "[]", "is not an object"),
])
def test_a_malformed_annotation_is_an_error_that_names_it(annotation, value, message):
    with pytest.raises(EvaluationError, match=f"annotation `{annotation}`.*{message}"):
        read_topology({"metadata": {"annotations": {annotation: value}}}, [])


@given(st.integers(0, 20), st.lists(st.integers(0, 40), unique=True, max_size=20))
def test_exactly_as_many_different_cpus_are_chosen_as_asked_for_or_none(count, cpus):
    processors = [Processor(cpu, cpu // 2, cpu // 8, cpu // 8) for cpu in cpus]
    chosen = choose_cpus(count, processors)
    assert len(set(chosen)) == len(chosen) == (count if count <= len(cpus) else 0)
    assert set(chosen) <= set(cpus)


def test_threads_of_a_core_are_chosen_together_and_cores_over_sockets():
    assert choose_cpus(4, EIGHT) == [0, 1, 4, 5]


def test_a_cpu_set_grows_by_a_tenth_of_the_node_at_most_and_never_below_two():
    topology = Topology(EIGHT)
    assert len(choose_best_effort_cpus(8000, frozenset((0, 1)), topology)) == 3
    assert len(choose_best_effort_cpus(-500, frozenset(range(8)), topology)) == 2


def test_cpus_that_are_spoken_for_are_left_alone_and_none_free_means_no_change():
    topology = Topology(
        EIGHT, reserved=frozenset((0, 1)), system_exclusive=frozenset((2,)), owners={3: "LSE", 4: "LSE"},
    )
    assert set(choose_best_effort_cpus(3000, frozenset(range(8)), topology)) == {5, 6, 7}
    assert topology.best_effort() == frozenset((5, 6, 7))
    assert choose_best_effort_cpus(3000, frozenset(), Topology(EIGHT, reserved=frozenset(range(8)))) == []


def test_parents_are_widened_before_children_and_narrowed_after_them():
    files = {"besteffort/cpuset.cpus": "0-1", "besteffort/p/cpuset.cpus": "0-1", "besteffort/p/c/cpuset.cpus": "0-1"}
    assert set_cpus((2, 3), files, Topology(EIGHT)) == (
        ("besteffort/cpuset.cpus", "0-3"), ("besteffort/p/cpuset.cpus", "0-3"), ("besteffort/p/c/cpuset.cpus", "0-3"),
        ("besteffort/p/c/cpuset.cpus", "2-3"), ("besteffort/p/cpuset.cpus", "2-3"), ("besteffort/cpuset.cpus", "2-3"),
    )


def test_under_the_static_policy_only_containers_are_confined():
    files = {"besteffort/cpuset.cpus": "0-1", "besteffort/p/cpuset.cpus": "0-1", "besteffort/p/c/cpuset.cpus": "0-1"}
    assert dict(set_cpus((2, 3), files, Topology(EIGHT, kubelet_static=True))) == {
        "besteffort/cpuset.cpus": "0-7", "besteffort/p/cpuset.cpus": "0-7", "besteffort/p/c/cpuset.cpus": "2-3",
    }


def test_recovery_writes_what_differs_down_to_a_depth():
    files = {"besteffort/cpuset.cpus": "0-7", "besteffort/p/cpuset.cpus": "0", "besteffort/p/c/cpuset.cpus": "0"}
    assert recover_cpus(files, Topology(EIGHT), deepest=1) == (("besteffort/p/cpuset.cpus", "0-7"),)
    assert recover_quota({"besteffort/cpu.cfs_quota_us": "-1"}) == ()


@pytest.mark.parametrize(("milli", "before", "after"), [
    (2000, "-1", "200000"),       # the first setting is immediate
    (2000, "50000", "150000"),    # a rise is stepped: a tenth of ten cores
    (2000, "900000", "200000"),   # a fall is immediate
    (2000, "195000", None),       # nearly there already
    (-4000, "500000", "2000"),    # never nothing
    (50, "-1", "5000"),           # nearly nothing is not nearly unlimited
])  # fmt: skip
def test_a_quota_falls_at_once_and_rises_in_steps(milli, before, after):
    name = "besteffort/cpu.cfs_quota_us"
    assert set_quota(milli, {name: before}, 10_000) == (((name, after),) if after else ())


@pytest.mark.parametrize(("name", "text", "change"), [
    ("cpu.cfs_quota_us", "max", lambda files: set_quota(2000, files, 10_000)),
    ("cpuset.cpus", "x", lambda files: set_cpus((0,), files, Topology(EIGHT))),
])
def test_a_file_that_cannot_be_read_is_an_error_that_names_it(name, text, change):
    with pytest.raises(EvaluationError, match=f"`besteffort/{name}`"):
        change({f"besteffort/{name}": text})


@pytest.mark.parametrize(("milli", "present", "after"), [
    (3079, 3, 3),     # one percent of eight cores more is no reason for a fourth CPU
    (3081, 3, 4),
    (1921, 3, 3),     # and as little less none for two
    (1920, 3, 2),
    (-9000, 2, 2),
    (2000, 1, 2),     # fewer than two are too few
])  # fmt: skip
def test_a_cpu_set_stays_within_its_dead_band(milli, present, after):
    current = frozenset(range(present))
    assert len(choose_best_effort_cpus(milli, current, Topology(EIGHT), dead_band_percent=1)) == after


def test_a_cpu_that_best_effort_pods_lose_is_left_within_the_dead_band_too():
    topology = Topology(EIGHT, reserved=frozenset((0,)))
    assert 0 not in choose_best_effort_cpus(3000, frozenset((0, 1, 2)), topology, dead_band_percent=1)


def test_recovery_narrows_children_before_their_parents():
    files = {"besteffort/cpuset.cpus": "0-7", "besteffort/p/cpuset.cpus": "6-7"}
    assert recover_cpus(files, Topology(EIGHT, reserved=frozenset((6, 7)))) == (
        ("besteffort/p/cpuset.cpus", "0-7"), ("besteffort/p/cpuset.cpus", "0-5"), ("besteffort/cpuset.cpus", "0-5"),
    )


def test_without_any_cpu_for_best_effort_pods_nothing_is_recovered():
    assert recover_cpus({"besteffort/cpuset.cpus": "0"}, Topology(())) == ()


def test_a_pod_whose_status_cannot_be_read_has_no_cpus_of_its_own():
    pod = {"metadata": {"labels": {"koordinator.sh/qosClass": "LSE"},
                        "annotations": {"scheduling.koordinator.sh/resource-status": "{"}}}
    assert read_topology({}, [owned_cpus(pod)], EIGHT).best_effort() == frozenset(range(8))
