"""Cases about DeschedulerPlugins."""

from __future__ import annotations

POLICIES = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: DeschedulerPlugin
metadata: {name: drain}
spec:
  type: Balance
  nodes: {source: usage.cpu > 5000, target: usage.cpu < 2000}
  criteria:
  - {name: measured, expression: podUsage.cpu > 0}
  sort: [{expression: podUsage.cpu, order: Descending}]
  limits: {perNode: 2}
---
apiVersion: policy.koordinator.sh/v1alpha2
kind: DeschedulerPlugin
metadata: {name: guard}
spec:
  type: EvictionFilter
  match: {pods: {namespaces: [default]}}
  criteria:
  - {name: unpinned, expression: "pod.metadata.labels.pinned != 'yes'", message: it is pinned}
"""
HEAD = """\
plugin: drain
fixtures:
  nodes: {hot: {usage: {cpu: 6}}, cold: {usage: {cpu: 1}}, middle: {usage: {cpu: 3}}}
  pods:
    a: {node: hot, labels: {pinned: "no"}, usage: {cpu: 100m}}
    b: {from: a, usage: {cpu: 200m}}
    c: {from: a, usage: {cpu: 300m}}
    pinned: {from: a, labels: {pinned: "yes"}, usage: {cpu: 50m}}
    bare: {node: hot, labels: {pinned: null}, usage: {cpu: 10m}}
    other/d: {from: a, usage: {cpu: 1m}}
"""


def test_evictions_what_stops_others_roles_and_vetoes_are_compared(misses):
    assert misses("""\
        - name: a cycle
          evicts: [c, b]
          keeps: {a: {by: limits, message: at most 2 pods per node}, pinned: limits}
          roles: {hot: source, cold: target, middle: none}
        - name: with a veto
          beside: [guard]
          evicts: 2
          keeps: {pinned: {by: guard/unpinned, message: it is pinned}, bare: guard}
        - name: single pods
          plugin: guard
          evictionFilter:
            a: pass
            pinned: {fail: unpinned, message: it is pinned}
            bare: {error: unpinned, message: "no such key: labels"}
            other/d: skip
        - name: a built-in veto
          beside: [DefaultEvictor]
          evicts: []
          keeps: {a: DefaultEvictor}
    """, head=HEAD, policies=POLICIES) == {"a cycle": [], "with a veto": [], "single pods": [], "a built-in veto": []}


def test_what_comes_out_otherwise_is_told(misses):
    assert misses("""\
        - {name: order, evicts: [b, c]}
        - {name: number, evicts: 3}
        - {name: stop, keeps: {a: until, c: limits}}
        - {name: role, roles: {hot: target, middle: source}}
        - {name: error, evicts: 2, with: {pods: {a: {usage: null}}}}
        - {name: no error, evicts: 2, errors: [{item: measured, subject: a}]}
        - {name: veto, plugin: guard, evictionFilter: {a: {fail: unpinned}, pinned: pass, bare: {fail: unpinned}}}
        - {name: veto of a cycle, evictionFilter: {a: pass}}
        - {name: cycle of a veto, plugin: guard, evicts: []}
        - {name: one node, nodes: [hot], evicts: []}
        - {name: unknown, beside: [gard], evicts: []}
    """, head=HEAD, policies=POLICIES) == {
        "order": [
            ("evictions: b, c | c, b (a is stopped by drain/limits; pinned is stopped by drain/limits; bare is stopped "
             "by"
            " drain/limits; other/d is stopped by drain/limits)"),
        ],
        "number": ["number of evictions: 3 | 2"],
        "stop": [
            "what stops `a`: until | drain/limits: at most 2 pods per node", "what stops `c`: limits | it is evicted",
        ],
        "role": ["the role of `hot`: target | source", "the role of `middle`: source | none"],
        "error": [
            "errors: no other error of `drain` | `measured` of default/a: no metric of the pod, or an expired one",
        ],
        "no error": ["errors: `measured` of a | none"],
        "veto": [
            "eviction of `a`: fail of `unpinned` | pass",
            "eviction of `pinned`: pass | fail of `unpinned`: it is pinned",
            "eviction of `bare`: fail of `unpinned` | error of `unpinned`: no such key: labels",
        ],
        "veto of a cycle": ["the case: a case that can run | `drain` is of the type Balance, and vetoes nothing"],
        "cycle of a veto": [
            "the case: a case that can run | `guard` evicts nothing by itself: expect `evictionFilter` of it",
        ],
        "one node": [
            ("the case: a case that can run | the cycle ended early: the cluster size is 0 or 1 meaning eviction causes"
            " service disruption or degradation"),
        ],
        "unknown": ["the case: a case that can run | there is no descheduler plugin `gard`: did you mean `guard`?"],
    }


CHOOSER = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: DeschedulerPlugin
metadata: {name: chooser}
spec:
  type: EvictionFilter
  match: {pods: {namespaces: [default]}}
  eviction: {mode: "pod.metadata.name == 'a' ? 'Delete' : 'Away'", gracePeriodSeconds: "30"}
"""


def test_the_mode_and_the_grace_period_of_evictions_are_compared(misses):
    head = HEAD.replace("plugin: drain", "plugin: chooser")
    assert misses("""\
        - name: as it is
          eviction:
            a: {mode: Delete, gracePeriodSeconds: 30}
            b: {error: "`Away` is no mode"}
            other/d: {}
        - {name: another mode, eviction: {a: {mode: Eviction, gracePeriodSeconds: 30}}}
        - {name: no error, eviction: {a: {error: "is no mode"}}}
        - {name: another error, eviction: {b: {error: "is gone"}}}
    """, head=head, policies=CHOOSER) == {
        "as it is": [],
        "another mode": ["choice for `a`: Eviction, grace period 30 s | Delete, grace period 30 s"],
        "no error": ["choice for `a`: an error with `is no mode` | Delete, grace period 30 s"],
        "another error": [
            ("choice for `b`: an error with `is gone` | the error ``Away` is no mode of an eviction: return one of"
             " Eviction, Delete, SoftEviction, MigrationJob, or ''`"),
        ],
    }
