from __future__ import annotations

from koordpolicy.engine.agent import permissions
from koordpolicy.engine.client.permissions import rules
from koordpolicy.engine.client.resources import RESOURCES


def test_the_role_of_an_agent_has_no_write_beyond_its_reports():
    writes = [(rule["resources"], rule["verbs"]) for rule in rules(permissions.STATES)
              if set(rule["verbs"]) - {"get", "list", "watch"}]
    assert writes == [(["nodemetrics/status"], ["patch"]),
                      (["noderesourcetopologies"], ["list", "watch", "create", "patch"])]


def test_every_group_is_that_of_a_known_resource():
    known = {(each.group, each.plural) for each in RESOURCES}
    used = (*permissions.STATES, *permissions.PODS_FROM_API, *permissions.CLAIMS, *permissions.KUBELET_PROXY)
    assert {(each.group, each.resource.partition("/")[0]) for each in used} <= known
