from __future__ import annotations

import os
import warnings

import pytest

from koordpolicy.engine.experiments.runners import Distributed, Here, Lost, NotRun, Processes


def halve(number):
    """At module level: processes import it by its name."""
    if number % 2:
        raise NotRun(f"{number} is odd")
    return number // 2


def end(number):
    os._exit(number)


def told(runner, numbers):
    return {number: str(found) if isinstance(found, NotRun) else found for number, found in runner.run(halve, numbers)}


EXPECTED = {0: 0, 1: "1 is odd", 2: 1, 3: "3 is odd", 4: 2, 5: "5 is odd", 6: 3}


def test_this_process_runs_them_in_order():
    assert list(told(Here(), range(7)).items()) == list(EXPECTED.items())


def test_processes_run_all_of_them_and_one_that_cannot_be_run_keeps_no_other_from_it():
    assert told(Processes(2), range(7)) == EXPECTED
    assert told(Processes(2), []) == {}


def test_a_process_that_is_killed_is_told_and_not_waited_for():
    with pytest.raises(Lost, match=r"^a process ended before its experiment did"):
        list(Processes(1).run(end, [9]))


@pytest.fixture(scope="module")
def cluster():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the cluster's own making
        from distributed import LocalCluster  # noqa: PLC0415 - it warns on being imported

        with LocalCluster(n_workers=2, threads_per_worker=1, processes=False, protocol="tcp", host="127.0.0.1",
                          dashboard_address=None) as cluster:
            yield cluster


@pytest.mark.filterwarnings("ignore")
def test_a_dask_cluster_that_runs_already_runs_all_of_them(cluster):
    runner = Distributed(cluster.scheduler_address)
    assert told(runner, range(7)) == EXPECTED
    assert told(runner, iter(range(30))) == {n: f"{n} is odd" if n % 2 else n // 2 for n in range(30)}
    assert told(runner, []) == {}


def fail(number):
    raise RuntimeError(f"no {number}")


@pytest.mark.filterwarnings("ignore")
def test_a_worker_that_fails_is_told_with_its_address(cluster):
    with pytest.raises(Lost) as caught:
        list(Distributed(cluster.scheduler_address).run(fail, [1]))
    assert str(caught.value) == f"a worker of `{cluster.scheduler_address}` failed: no 1"


def test_an_address_where_nobody_answers_is_told():
    with pytest.raises(Lost, match=r"^no Dask scheduler answers at `nonsense://x`: "):
        list(Distributed("nonsense://x").run(halve, [1]))
