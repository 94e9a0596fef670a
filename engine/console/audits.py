"""The audit of the active policies over the cluster: rules without effect, and what each rule decided."""

from __future__ import annotations

from collections.abc import Callable

from koordpolicy.engine.comparison.audit import audit
from koordpolicy.engine.comparison.audit_results import Audit
from koordpolicy.engine.explanation import shortened

from .models.policies import AuditLine, AuditView, PolicyReach, RuleTally
from .state import ConsoleState


def audit_view(state: ConsoleState, progress: Callable[[float], None] = lambda _: None) -> AuditView:
    """Return the audit; `progress` is called with the part that is done, from 0 to 1.

    Raises:
        PolicyError: a plugin cannot be made.
    """
    found: Audit = audit(state.policies.registry, state.cluster, now=state.now, settings=state.settings,
                         descheduler=state.descheduler, progress=progress)
    return AuditView(
        nodes=found.nodes, pods=found.pods,
        findings=[AuditLine(
            level=each.level.value, finding=each.what.value, message=shortened(each.message), policy=each.policy,
            framework=each.framework, rule=each.rule, examples=list(each.examples), examples_left_out=each.others)
            for each in found.findings],
        policies=[PolicyReach(
            policy=each.policy, framework=each.framework, active=each.active, pods=each.pods, nodes=each.nodes,
            rules=[RuleTally(rule=use.name, point=use.point, evaluated=use.evaluated, refused=use.refused,
                             failed=use.failed) for use in each.rules]) for each in found.policies])
