from __future__ import annotations

import pytest

from koordpolicy.engine.scheduler.observe.counters import Counters


def test_amounts_add_up_by_name_and_labels_in_any_order():
    count = Counters()
    count("asked")
    count("asked_total", 2.5)
    count("asked", node="a", pod="b")
    count("asked", 3, pod="b", node="a")
    count("alone", 0)
    assert count.read() == {"alone": {(): 0}, "asked": {(): 3.5, (("node", "a"), ("pod", "b")): 4}}


@pytest.mark.parametrize(("name", "amount", "labels", "message"), [
    ("asked", -1, {}, "the counter `asked` cannot go down: -1"),
    ("asked", float("nan"), {}, "the counter `asked` cannot go down: nan"),
    ("how many", 1, {}, "`how many` cannot name a counter or a label: write letters, digits and `_`"),
    ("asked", 1, {"__name__": "x"}, "`__name__` cannot name a counter or a label: write letters, digits and `_`"),
])
def test_what_prometheus_would_not_take_is_refused(name, amount, labels, message):
    count = Counters()
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - compared below
        count(name, amount, **labels)
    assert (str(caught.value), count.read()) == (message, {})
