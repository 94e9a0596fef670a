from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from koordpolicy.engine.kubernetes import vocabulary
from koordpolicy.engine.kubernetes.vocabulary import (
    kubernetes_qos_class,
    priority_band,
    qos_class,
    raw_priority_band,
    raw_qos_class,
    resource_name,
)


def pod(*, labels=None, priority=None, kubernetes="Burstable"):
    spec = {} if priority is None else {"priority": priority}
    return {"metadata": {"labels": labels}, "spec": spec, "status": {"qosClass": kubernetes}}


def containers(*resources, init=(), own=None):
    return {"spec": {
        "containers": [{"resources": each} for each in resources],
        "initContainers": [{"resources": each} for each in init],
        **({"resources": own} if own else {}),
    }}


@pytest.mark.parametrize(
    ("label", "kubernetes", "raw", "want"),
    [
        ("LSE", "BestEffort", "LSE", "LSE"),
        ("SYSTEM", "BestEffort", "SYSTEM", "SYSTEM"),
        ("BE", "Guaranteed", "BE", "BE"),
        ("be", "Guaranteed", "", "LSR"),
        ("", "Burstable", "", "LS"),
        (None, "Guaranteed", "", "LSR"),
        (None, "Burstable", "", "LS"),
        (None, "BestEffort", "", "BE"),
    ],
)
def test_a_qos_class_is_the_labels_or_what_kubernetes_says(label, kubernetes, raw, want):
    labels = None if label is None else {"koordinator.sh/qosClass": label}
    subject = pod(labels=labels, kubernetes=kubernetes)
    assert (raw_qos_class(subject), qos_class(subject)) == (raw, want)


@pytest.mark.parametrize(
    ("label", "priority", "kubernetes", "raw", "want"),
    [
        ("koord-free", 9500, "Burstable", "koord-free", "koord-free"),
        ("other", 7500, "Burstable", "", "koord-prod"),
        ("other", 7500, "BestEffort", "", "koord-batch"),
        (None, 9999, "BestEffort", "koord-prod", "koord-prod"),
        (None, 9000, "Burstable", "koord-prod", "koord-prod"),
        (None, 8999, "Burstable", "", "koord-prod"),
        (None, 7000, "Burstable", "koord-mid", "koord-mid"),
        (None, 5999, "Burstable", "koord-batch", "koord-batch"),
        (None, 3000, "Guaranteed", "koord-free", "koord-free"),
        (None, 2000001000, "Burstable", "", "koord-prod"),
        (None, None, "BestEffort", "", "koord-batch"),
        (None, None, "Guaranteed", "", "koord-prod"),
    ],
)
def test_a_band_is_the_labels_or_the_prioritys_or_follows_from_the_qos_class(label, priority, kubernetes, raw, want):
    labels = None if label is None else {"koordinator.sh/priority-class": label}
    subject = pod(labels=labels, priority=priority, kubernetes=kubernetes)
    assert (raw_priority_band(subject), priority_band(subject)) == (raw, want)


FULL = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1000m", "memory": "1024Mi"}}


@pytest.mark.parametrize(
    ("subject", "want"),
    [
        ({}, "BestEffort"),
        ({"spec": {"containers": None}, "status": None}, "BestEffort"),
        (containers({}), "BestEffort"),
        (containers({"requests": {"cpu": "0", "memory": 0}}), "BestEffort"),
        (
            containers(
                {"requests": {"kubernetes.io/batch-cpu": "1000"}, "limits": {"kubernetes.io/batch-cpu": "1000"}},
            ),
            "BestEffort",
        ),
        (containers(FULL), "Guaranteed"),
        (
            containers({"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"cpu": 1, "memory": 1073741824}}),
            "Guaranteed",
        ),
        (containers(FULL, FULL), "Guaranteed"),
        (containers(FULL, {}), "Burstable"),
        (containers(FULL, init=[{}]), "Burstable"),
        (containers({"limits": FULL["limits"]}), "Burstable"),
        (containers({**FULL, "requests": {"cpu": "500m", "memory": "1Gi"}}), "Burstable"),
        (containers({"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}), "Burstable"),
        (containers({}, own=FULL), "Guaranteed"),
        (containers(FULL, own={"requests": {"cpu": "1"}}), "Burstable"),
    ],
)
def test_a_kubernetes_class_is_computed_where_the_status_says_none(subject, want):
    assert kubernetes_qos_class(subject) == want


def test_a_quantity_that_cannot_be_read_is_an_error_and_not_zero():
    with pytest.raises(ValueError, match="`12Zi` is not a quantity"):
        qos_class(containers({"requests": {"memory": "12Zi"}}))


@pytest.mark.parametrize(
    ("name", "band", "want"),
    [
        ("cpu", "koord-prod", "cpu"), ("cpu", "", "cpu"), ("cpu", "koord-batch", "kubernetes.io/batch-cpu"),
        ("memory", "koord-mid", "kubernetes.io/mid-memory"), ("pods", "koord-batch", "pods"), ("cpu", "koord-free", ""),
    ],
)
def test_a_band_asks_for_its_own_resources(name, band, want):
    assert resource_name(name, band) == want


def test_every_label_and_annotation_is_read() -> None:
    root = Path(__file__).parents[3]
    words = Counter(word for folder in ("engine", "builtin_plugins") for file in (root / folder).rglob("*.py")
                    for word in re.findall(r"\b[A-Z][A-Z_]+\b", file.read_text()))
    names = [name for name in vars(vocabulary) if re.fullmatch("[A-Z][A-Z_]+", name)]
    assert len(names) > 40
    assert [name for name in names if words[name] < 2] == []
