from __future__ import annotations

import pytest

from koordpolicy.engine.kubernetes.release import KUBERNETES_1_35, KUBERNETES_1_36, Release, release, release_of


@pytest.mark.parametrize(("text", "expected"), [
    ("1.36", KUBERNETES_1_36), ("v1.36", KUBERNETES_1_36), ("1.36.2", KUBERNETES_1_36), ("v1.35.0", KUBERNETES_1_35),
])
def test_a_release_is_read_from_any_way_of_writing_it(text, expected):
    assert (release(text), str(release(text))) == (expected, str(expected))


@pytest.mark.parametrize(("text", "message"), [
    ("", "`` is not a release of Kubernetes: write one such as `1.36`"),
    ("newest", "`newest` is not a release of Kubernetes: write one such as `1.36`"),
    ("1", "`1` is not a release of Kubernetes: write one such as `1.36`"),
    ("1.36.2.1", "`1.36.2.1` is not a release of Kubernetes: write one such as `1.36`"),
    ("1.22", "Kubernetes `1.22` is not followed here: choose one of 1.35, 1.36"),
    ("2.36", "Kubernetes `2.36` is not followed here: choose one of 1.35, 1.36"),
])
def test_what_names_no_release_that_is_followed_is_refused(text, message):
    with pytest.raises(ValueError, match=f"^{message.replace('.', '[.]')}$"):
        release(text)


def test_an_older_release_is_less_than_a_newer_one():
    assert sorted([Release(2, 0), Release(1, 100), KUBERNETES_1_36, KUBERNETES_1_35]) == [
        KUBERNETES_1_35, KUBERNETES_1_36, Release(1, 100), Release(2, 0)]


def test_the_profile_of_koord_scheduler_follows_what_koord_scheduler_is_built_on():
    assert [release_of(name) for name in ("default-scheduler", "koord-scheduler", "mine")] == [
        KUBERNETES_1_36, KUBERNETES_1_35, KUBERNETES_1_36]
