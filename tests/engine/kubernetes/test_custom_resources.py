from __future__ import annotations

from typing import Any

from koordpolicy.engine.kubernetes.custom_resources import definitions

JOB, RESERVATION = definitions()


def version(definition: dict[str, Any]) -> dict[str, Any]:
    (found,) = definition["spec"]["versions"]
    return dict(found)


def spec_of(definition: dict[str, Any]) -> dict[str, Any]:
    return dict(version(definition)["schema"]["openAPIV3Schema"]["properties"]["spec"])


def test_migration_jobs_have_koordinators_names_and_columns():
    assert JOB["metadata"]["name"] == "podmigrationjobs.scheduling.koordinator.sh"
    assert JOB["spec"]["scope"] == "Cluster"
    assert JOB["spec"]["names"]["shortNames"] == ["pmj"]
    assert version(JOB)["subresources"] == {"status": {}}
    assert [each["name"] for each in version(JOB)["additionalPrinterColumns"]] == [
        "Phase", "Status", "Age", "Node", "Reservation", "PodNamespace", "Pod", "NewPod", "TTL"]


def test_a_job_needs_its_pod_and_stores_any_template():
    spec = spec_of(JOB)
    assert spec["required"] == ["podRef"]
    assert spec["properties"]["reservationOptions"]["properties"]["template"] == {
        "description": "What the created reservation begins as: its metadata and spec", "type": "object",
        "x-kubernetes-preserve-unknown-fields": True}
    assert "ignoreStoreReadErrorWithClusterBreakingPotential" in spec["properties"]["deleteOptions"]["properties"]


def test_a_reservation_has_koordinators_defaults():
    spec = spec_of(RESERVATION)
    assert spec["required"] == ["owners", "template"]
    fields = spec["properties"]
    assert (fields["ttl"]["default"], fields["allocateOnce"]["default"], fields["allocatePolicy"]["enum"]) == (
        "24h", True, ["Aligned", "Restricted"])
    status = version(RESERVATION)["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    assert status["allocatable"]["additionalProperties"]["x-kubernetes-int-or-string"]
