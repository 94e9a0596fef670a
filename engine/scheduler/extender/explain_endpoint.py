"""The extender's `/explain` endpoint: why a pod may run on a node, and why not.

It runs in the deciding thread, which owns the cluster. Nothing is decided, counted or cached.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from koordpolicy.engine.cel.values.deadline import Deadline, OverdueError
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.explanation import Finding
from koordpolicy.engine.source import did_you_mean

from ..explain.explanation import explain_decision, explain_node, explain_pod
from .blocks import Blocks
from .bodies import MalformedBody, read_pod
from .protocol import Extender, pod_of

_KNOWN: Final = ("pod", "node", "output")
_OUTPUTS: Final = ("json", "text")
_TRIALS: Final = 20
"""The maximum number of trials; decisions wait for them."""
_LONGEST: Final = 512


class TooLongError(Exception):
    """The explanation exceeds the time by which it may delay decisions; the message suggests what to do."""


class UnknownSubjectError(LookupError):
    """The pod or the node is unknown; the message names it, and similar names."""


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """The query: a pod (its key, or the pod itself), a node (empty: all), and the form of the response."""

    key: str
    pod: PodInfo | None = None
    node: str = ""
    text: bool = False


def read_explain_request(query: Mapping[str, str], body: bytes | bytearray | Blocks | None) -> ExplainRequest:
    """Read a request of `/explain`: `?pod=NAMESPACE/NAME`, or a body that is a Pod or kube-scheduler's ExtenderArgs.

    Raises:
        MalformedBody: it is none.
    """
    for name in query:
        if name not in _KNOWN:
            raise MalformedBody(f"`{name[:40]}` is not a parameter: there are `pod`, `node` and `output`")
    output = query.get("output", "json")
    if output not in _OUTPUTS:
        raise MalformedBody(f"`output` is `{output[:40]}`: say `json` or `text`")
    node, key = query.get("node", ""), query.get("pod", "")
    if max(len(node), len(key)) > _LONGEST:
        raise MalformedBody(f"a name has more than {_LONGEST} characters")
    if body is None:
        if not key:
            raise MalformedBody("no pod is named: write `?pod=NAMESPACE/NAME`, or send one with POST")
        return ExplainRequest(key, None, node, output == "text")
    if key:
        raise MalformedBody("`pod` is named and a pod is sent: remove one of them")
    pod = pod_of(read_pod(body))
    return ExplainRequest(pod.key, pod, node, output == "text")


def answer_explain_request(extender: Extender, request: ExplainRequest, *, seconds: float = math.inf) -> Finding:
    """Return the explanation, of the cluster as the extender knows it and the active policies.

    Raises:
        UnknownSubjectError: there is no such pod, or no such node.
        TooLongError: it takes more than so many seconds; fewer changes are tried before that.
    """
    with Deadline(seconds) as deadline, suppress(OverdueError):
        finding = _explained(extender, request)
        # After the deadline, failures of expressions are errors, not reasons.
        if not deadline.passed:
            return finding
    raise TooLongError(f"the explanation exceeds {seconds:g} s, for which it may delay decisions: "
                       + ("" if request.node else "name one node with `node`, or ")
                       + "run `koord-policy explain`, which delays none")


def _explained(extender: Extender, request: ExplainRequest) -> Finding:
    cluster = extender.cluster
    pod = request.pod or cluster.pod(request.key)
    if pod is None:
        keys = cluster.objects("Pod")
        hint = did_you_mean(request.key, keys) or "send it with POST"
        raise UnknownSubjectError(f"there is no pod `{request.key}` among the {len(keys)} that are known: {hint}")
    if request.node and request.node not in cluster.index:
        hint = did_you_mean(request.node, cluster.index) or "no request or listing contains it"
        known = f"among the {len(cluster.index)} that are known"
        raise UnknownSubjectError(f"there is no node `{request.node}` {known}: {hint}")
    explained = explain_pod(extender.scheduler.profile_of(pod), pod, extender.snapshot())
    Deadline.poll()
    if request.node:
        return explain_node(explained, request.node, trials=_TRIALS)
    return explain_decision(explained, trials=_TRIALS)
