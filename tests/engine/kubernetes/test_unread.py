"""Fields of objects that nothing reads, by the declared types."""

from __future__ import annotations

from typing import Any

import pytest

from koordpolicy.engine.cel.values.types import Type
from koordpolicy.engine.kubernetes.unread import FieldPath, unread_fields

NODE_SLO = Type("koordinator.NodeSLO")


def unread(spec: dict[str, Any], *read: FieldPath) -> list[tuple[tuple[str | int, ...], bool]]:
    """Return the paths below the spec, and whether the field is declared."""
    found = unread_fields({"spec": spec}, NODE_SLO, [("spec", *path) for path in read])
    return [(each.path[1:], not each.known) for each in found]


APPLICATIONS = {"hostApplications": [
    {"name": "a", "cgroupPath": {"base": "CgroupRoot", "parentDir": "x"}}, {"name": "b", "priority": "koord-prod"},
]}


@pytest.mark.parametrize(("spec", "read", "wanted"), [
    pytest.param({"systemStrategy": {"minFreeKbytesFactor": 1}}, [("cpuBurstStrategy",)],
                 [(("systemStrategy",), True)], id="only the field itself, where nothing below it is read"),
    pytest.param({"cpuBurstStrategy": {"policy": "auto"}}, [("cpuBurstStrategy",)], [],
                 id="nothing below what is read as a whole"),
    pytest.param(APPLICATIONS, [("hostApplications", "name"), ("hostApplications", "cgroupPath", "base")],
                 [(("hostApplications", 0, "cgroupPath", "parentDir"), True),
                  (("hostApplications", 1, "priority"), True)], id="each item of a list"),
    pytest.param({"cpuBurstStrategy": {"polcy": "auto"}}, [()],
                 [(("cpuBurstStrategy", "polcy"), False)], id="what there is not, also where all is read"),
    pytest.param({"systemStrategy": {}, "hostApplications": [], "extensions": None, "extension": None},
                 [("cpuBurstStrategy",)], [(("extension",), False)], id="no field that sets nothing"),
    pytest.param({"extensions": {"any": {"thing": 1}}}, [("extensions", "other")], [], id="keys of any JSON are data"),
    pytest.param({"cpuBurstStrategy": [1]}, [("cpuBurstStrategy", "policy")], [], id="nothing of what is malformed"),
])
def test_fields_that_nothing_reads(
    spec: dict[str, Any], read: list[FieldPath], wanted: list[tuple[tuple[str | int, ...], bool]],
) -> None:
    assert unread(spec, *read) == wanted


def test_a_misspelt_field_comes_with_the_one_that_was_meant() -> None:
    (field,) = unread_fields({"spec": {"cpuBurstStrategi": {}}}, NODE_SLO, [()])
    assert field.help == "did you mean `cpuBurstStrategy`?"
    (field,) = unread_fields({"zzz": 1}, NODE_SLO, [()])
    assert field.help == "the fields are `apiVersion`, `kind`, `metadata`, `spec`, `status`"
