"""What people ask the extender beside its protocol: why may a pod run on a node, and why not (`/explain`).

For the thread that decides, which owns the cluster. Nothing is decided, counted or remembered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from koordpolicy.engine.cel.scalar.deadline import Deadline, OverdueError
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.explanation import Finding
from koordpolicy.engine.source import did_you_mean

from ..explain.explanation import explain_decision, explain_node, look_into
from .bodies import Malformed, read_pod
from .protocol import Extender, pod_of

_KNOWN: Final = ("pod", "node", "output")
_OUTPUTS: Final = ("json", "text")
_TRIALS: Final = 20
"""Decisions wait while it is found out what would have to change."""
_LONGEST: Final = 512


class TooLongError(Exception):
    """The explanation takes longer than decisions may wait for it; the message says what to do."""


class UnknownSubjectError(LookupError):
    """The pod or the node that is asked about is not known; the message says which, and what might be meant."""


@dataclass(frozen=True, slots=True)
class Inquiry:
    """About which pod is asked (its key, or the pod itself), on which node (empty: on all), and in which form."""

    key: str
    pod: PodInfo | None = None
    node: str = ""
    text: bool = False


def read_inquiry(query: Mapping[str, str], body: bytes | bytearray | None) -> Inquiry:
    """Read a question of `/explain`: `?pod=NAMESPACE/NAME`, or a body that is a Pod or kube-scheduler's question.

    Raises:
        Malformed: it is none.
    """
    for name in query:
        if name not in _KNOWN:
            raise Malformed(f"`{name[:40]}` is no parameter: there are `pod`, `node` and `output`")
    output = query.get("output", "json")
    if output not in _OUTPUTS:
        raise Malformed(f"`output` is `{output[:40]}`: say `json` or `text`")
    node, key = query.get("node", ""), query.get("pod", "")
    if max(len(node), len(key)) > _LONGEST:
        raise Malformed(f"a name has more than {_LONGEST} characters")
    if body is None:
        if not key:
            raise Malformed("which pod? ask `?pod=NAMESPACE/NAME`, or send one with POST")
        return Inquiry(key, None, node, output == "text")
    if key:
        raise Malformed("`pod` is named and a pod is sent: do one of both")
    pod = pod_of(read_pod(body))
    return Inquiry(pod.key, pod, node, output == "text")


def answer_inquiry(extender: Extender, inquiry: Inquiry, *, seconds: float = math.inf) -> Finding:
    """Return the explanation, of the cluster as the extender knows it and the policies in force.

    Raises:
        UnknownSubjectError: there is no such pod, or no such node.
        TooLongError: it takes more than so many seconds; fewer changes are tried before that.
    """
    with Deadline(seconds) as deadline, suppress(OverdueError):
        finding = _explained(extender, inquiry)
        # What expressions came to after that is an error, and no reason.
        if not deadline.passed:
            return finding
    raise TooLongError(f"no explanation within {seconds:g} s, for which decisions wait: "
                       + ("" if inquiry.node else "ask about one node with `node`, or ")
                       + "run `koord-policy explain`, for which nobody waits")


def _explained(extender: Extender, inquiry: Inquiry) -> Finding:
    cluster = extender.cluster
    pod = inquiry.pod or cluster.pod(inquiry.key)
    if pod is None:
        keys = cluster.objects("Pod")
        hint = did_you_mean(inquiry.key, keys) or "send it with POST"
        raise UnknownSubjectError(f"there is no pod `{inquiry.key}` among the {len(keys)} that are known: {hint}")
    if inquiry.node and inquiry.node not in cluster.index:
        hint = did_you_mean(inquiry.node, cluster.index) or "it has not been heard of"
        known = f"among the {len(cluster.index)} that are known"
        raise UnknownSubjectError(f"there is no node `{inquiry.node}` {known}: {hint}")
    explained = look_into(extender.scheduler.profile_of(pod), pod, extender.snapshot())
    Deadline.poll()
    if inquiry.node:
        return explain_node(explained, inquiry.node, trials=_TRIALS)
    return explain_decision(explained, trials=_TRIALS)
