"""Cases about QoSPlugins, in virtual time."""

from __future__ import annotations

POLICY = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: QoSPlugin
metadata: {name: relieve}
spec:
  featureGate: BECPUEvict
  window: 1s
  thresholds:
  - {name: pressed, expression: usage.cpu > 6000, for: 3s}
  actions:
  - name: evict-one
    when: thresholds.pressed
    evict:
      criteria: [{name: best-effort, expression: "podInfo.qosClass == 'BE'"}]
      sort: [{expression: podUsage.cpu, order: Descending}]
"""
HEAD = """\
fixtures:
  nodes: {worker: {}, other: {}}
  pods:
    web: {node: worker, qosClass: LS}
    small: {node: worker, qosClass: BE}
    large: {node: worker, qosClass: BE}
metrics:
- {for: 2s, usage: {cpu: 1}, pods: {small: {cpu: 1}, large: {cpu: 2}}}
- {for: 10s, usage: {cpu: 8}, pods: {small: {cpu: 1}, large: {cpu: 2}}}
- {for: 5s}
"""


def test_rounds_are_compared_in_virtual_time(misses):
    assert misses("""\
        - name: pressure
          nodes: [worker]
          rounds:
          - {at: 0s, until: 1s, true: [], holds: [], actions: []}
          - {at: 3s, true: [pressed], holds: []}
          - {at: 6s, holds: [pressed], actions: [{item: evict-one, kind: evict, subject: large}]}
          - {at: 7s, until: 11s, actions: []}
          - {at: 16s, errors: [{item: pressed, subject: worker, reason: NoMetric}, {item: evict-one}]}
    """, head=HEAD, policies=POLICY) == {"pressure": []}


def test_what_comes_out_otherwise_is_told(misses):
    found = misses("""\
        - name: wrong
          nodes: [worker]
          rounds:
          - {at: 1s, true: [pressed]}
          - {at: 6s, holds: [], actions: []}
          - {at: 7s, actions: [{item: evict-one, subject: small}]}
          - {at: 16s, actions: []}
        - {name: threshold, nodes: [worker], rounds: [{at: 1s, true: [presed]}]}
        - {name: action, nodes: [worker], rounds: [{at: 1s, actions: [{item: evict-on}]}]}
        - {name: between rounds, nodes: [worker], rounds: [{at: 1500ms, true: []}]}
        - {name: after the end, nodes: [worker], rounds: [{at: 1m, true: []}]}
        - {name: two nodes, rounds: [{at: 1s, true: []}]}
        - name: pod on no node
          nodes: [other]
          metrics: [{for: 1s, usage: {cpu: 1}, pods: {web: {cpu: 1}}}]
          rounds: [{at: 0s, true: []}]
    """, head=HEAD, policies=POLICY)
    wrong = found.pop("wrong")
    assert wrong[:4] == [
        "true thresholds in the round at 1s: pressed | none",
        "thresholds that hold in the round at 6s: none | pressed",
        "actions in the round at 6s: none | `evict-one` evict large",
        "actions in the round at 7s: `evict-one` small | none",
    ]
    assert [each.partition(" (")[0] for each in wrong[4:]] == [
        "errors in the round at 16s: no other error | `pressed` of worker",
        "errors in the round at 16s: no other error | `evict-one` of worker",
    ]
    assert found == {
        "threshold": ["the case: a case that can run | there is no threshold `presed`: did you mean `pressed`?"],
        "action": [
            "the case: a case that can run | there is no threshold or action `evict-on`: did you mean `evict-one`?",
        ],
        "between rounds": [
            "the case: a case that can run | there is no round at 1s500ms: one comes every 1s, the last at 16s",
        ],
        "after the end": [
            "the case: a case that can run | there is no round at 1m: one comes every 1s, the last at 16s",
        ],
        "two nodes": [
            ("the case: a case that can run | a QoS plugin runs on one node, and there are 2: choose one with `nodes:"
            " [NAME]`"),
        ],
        "pod on no node": ["the case: a case that can run | there is no pod `web`: there are none"],
    }
