"""The fields that are read of each kind: those of the plugins, and those of the cluster itself."""

from __future__ import annotations

from koordpolicy.engine.cluster.kinds import Read, field_paths, fields_read


def test_the_times_of_conditions_are_read_only_beside_measurements():
    time = ("status", "conditions", "lastTransitionTime")
    measured = Read("NodeMetric", fields=field_paths("metadata.labels"))
    without, beside = fields_read([])["Pod"], fields_read([measured])["Pod"]
    assert without is not None
    assert beside == without | {time}
    assert time not in without


def test_a_plugin_that_reads_whole_conditions_gets_them():
    fields = fields_read([Read("Pod", fields=field_paths("status.conditions"))])["Pod"]
    assert fields is not None
    assert ("status", "conditions") in fields
