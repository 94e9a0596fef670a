from __future__ import annotations

import pytest

from koordpolicy.engine.agent.metrics_advisor.collector import SECOND
from koordpolicy.engine.agent.metrics_advisor.facts import FactCollector


def test_the_last_fact_that_could_be_read_stays(machine):
    texts = iter([["0", "1"], ["0", "1"], OSError("gone"), ["0"]])

    def read() -> list[str]:
        found = next(texts)
        if isinstance(found, OSError):
            raise found
        return found

    collector = FactCollector("nodeinfo", machine.sources, 60 * SECOND, read)
    assert (collector.value, collector.started) == (None, False)
    collector.collect(machine.now)
    first = collector.value
    collector.collect(machine.now)
    assert collector.value is first  # so that nobody computes anew what follows from it
    with pytest.raises(OSError, match="gone"):
        collector.collect(machine.now)
    assert (collector.value, collector.started, collector.successes, collector.failures) == (["0", "1"], True, 2, 1)
    collector.collect(machine.now)
    assert collector.value == ["0"]
