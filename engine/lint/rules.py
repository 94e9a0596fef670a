"""The table of rules: id, name, severity, examples to avoid and to prefer, and the reason.

`docs/lint.md` is generated from it, and every example in it is a test: the one to avoid triggers exactly its rule, the
preferred one triggers none. Ids are never reused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from koordpolicy.engine.source import Severity

from . import absence, across, declarations, eviction_loops, expressions, fixtures, percentages, slo, units
from .subject import LintSubject, Violation, Whole


@dataclass(frozen=True, slots=True)
class LintRule:
    """A rule. One of `each` (called for every policy) and `whole` (called once, for all) is given.

    `suite` is called for every PolicyTest, if it is given. `avoid` and `prefer` are policy files; with `configuration`
    they are component configurations instead.
    """

    id: str
    name: str
    severity: Severity
    why: str
    avoid: str
    prefer: str
    each: Callable[[LintSubject], Iterator[Violation]] | None = None
    whole: Callable[[Whole], Iterator[Violation]] | None = None
    suite: Callable[[LintSubject], Iterator[Violation]] | None = None
    fixable: bool = False
    configuration: bool = False


def _policy(kind: str, spec: str, name: str = "example", about: str = "An example.") -> str:
    body = "".join(f"  {line}\n" if line else "\n" for line in spec.strip("\n").splitlines())
    described = f", annotations: {{policy.koordinator.sh/description: {about}}}" if about else ""
    return (
        f"apiVersion: policy.koordinator.sh/v1alpha2\nkind: {kind}\nmetadata: {{name: {name}{described}}}\n"
        f"spec:\n{body}"
    )


def _scheduler(spec: str, name: str = "example", about: str = "An example.") -> str:
    return _policy("SchedulerPlugin", spec, name, about)


def _filter(expression: str) -> str:
    return _scheduler(f"filter:\n- name: fits\n  expression: {expression}")


def _score(expression: str, more: str = "") -> str:
    return _scheduler(f"score:\n- name: best\n  expression: {expression}{more}")


def _qos(spec: str, name: str = "example", about: str = "An example.") -> str:
    return _policy("QoSPlugin", spec, name, about)


def _both(*documents: str) -> str:
    return "---\n".join(documents)


_SETTING = "actions:\n- name: swap\n  sysctl: {{name: vm.swappiness, value: '{}'}}"
_PREFER = "score:\n- name: best\n  expression: {}"
_BELOW = "filter:\n- name: below\n  expression: usage.cpu * 100 / allocatable.cpu < {}"
_DRAIN = """
type: Balance
nodes:
  source: usage.cpu * 100 / allocatable.cpu > {}
  target: usage.cpu * 100 / allocatable.cpu < {}
"""


def _drain(high: int, low: int, name: str = "drain", match: str = "") -> str:
    return _policy("DeschedulerPlugin", match + _DRAIN.strip("\n").format(high, low), name)


_POOL = "filter:\n- {{name: pool, expression: \"node.metadata.?labels[?'pool'].orValue('') == '{}'\"}}"
_DOMAIN = "topology.kubernetes.io/zone"
_CONFIGURATION = """\
apiVersion: descheduler/v1alpha2
kind: DeschedulerConfiguration
profiles:
- name: default
  plugins:
    balance:
      enabled:
      - name: {}
"""

_LOAD_ARGS = """\
apiVersion: descheduler/v1alpha2
kind: DeschedulerConfiguration
profiles:
- name: default
  pluginConfig:
  - name: LowNodeLoad
    args: {{lowThresholds: {{cpu: {}}}, highThresholds: {{cpu: {}}}}}
"""

_SLO_CONFIG = """\
apiVersion: v1
kind: ConfigMap
metadata: {{name: slo-controller-config}}
data:
  resource-threshold-config: |
    {{"clusterStrategy": {{{}}}}}
"""

_RULES: Final = (
    LintRule(
        "KP001", "unused-variable", Severity.WARNING,
        "A variable that nothing reads is never evaluated: either it is superfluous, or the expression that should"
        " read it reads something else.",
        _scheduler("variables:\n- {name: free, expression: allocatable.cpu - requested.cpu}\n"
                   "filter:\n- {name: fits, expression: requests.cpu <= allocatable.cpu - requested.cpu}"),
        _scheduler("variables:\n- {name: free, expression: allocatable.cpu - requested.cpu}\n"
                   "filter:\n- {name: fits, expression: requests.cpu <= variables.free}"),
        each=declarations.unused_variables, fixable=True,
    ),
    LintRule(
        "KP002", "unused-param", Severity.WARNING,
        "A change of a param that nothing reads has no effect.",
        _scheduler("params: {percent: 65}\nfilter:\n"
                   "- {name: below, expression: usage.cpu * 100 / allocatable.cpu < 70}"),
        _scheduler("params: {percent: 65}\nfilter:\n"
                   "- {name: below, expression: usage.cpu * 100 / allocatable.cpu < params.percent}"),
        each=declarations.unused_params, fixable=True,
    ),
    LintRule(
        "KP003", "shadowed-variable", Severity.WARNING,
        "Inside the loop the name means the element, and the variable of the same name cannot be read; readers of the"
        " expression confuse the two.",
        _filter("\"!has(node.spec.taints) || node.spec.taints.all(node, node.effect != 'NoSchedule')\""),
        _filter("\"!has(node.spec.taints) || node.spec.taints.all(taint, taint.effect != 'NoSchedule')\""),
        each=declarations.shadowing,
    ),
    LintRule(
        "KP004", "shadowed-param", Severity.WARNING,
        "If a param comes from two places, the last one in the order of lines determines its value. A param that"
        " repeats a shared value does not change with it.",
        _both(_policy("PolicyParams", "params: {percent: 65}", "shared"),
              _scheduler("paramsFrom: [{name: shared}]\nparams: {percent: 65}\nfilter:\n"
                         "- {name: below, expression: usage.cpu * 100 / allocatable.cpu < params.percent}")),
        _both(_policy("PolicyParams", "params: {percent: 65}", "shared"),
              _scheduler("paramsFrom: [{name: shared}]\nfilter:\n"
                         "- {name: below, expression: usage.cpu * 100 / allocatable.cpu < params.percent}")),
        whole=declarations.shadowed_params, fixable=True,
    ),
    LintRule(
        "KP005", "missing-description", Severity.NOTE,
        "`koord-policy plugins` and verdicts show the description; without one, nothing says what the plugin is for.",
        _scheduler("filter:\n- {name: fits, expression: requests.cpu <= allocatable.cpu}", about=""),
        _scheduler("filter:\n- {name: fits, expression: requests.cpu <= allocatable.cpu}", about="Pods fit."),
        each=declarations.missing_descriptions,
    ),
    LintRule(
        "KP006", "bad-name", Severity.WARNING,
        "Kubernetes rejects such a name, key or value, so no object has it and nothing matches.",
        _scheduler("match: {nodes: {labelSelector: {matchLabels: {pool: a b}}}}\nfilter:\n"
                   "- {name: fits, expression: requests.cpu <= allocatable.cpu}"),
        _scheduler("match: {nodes: {labelSelector: {matchLabels: {pool: a-b}}}}\nfilter:\n"
                   "- {name: fits, expression: requests.cpu <= allocatable.cpu}"),
        each=declarations.bad_names,
    ),
    LintRule(
        "KP007", "silent-message", Severity.WARNING,
        "`too much load` does not say what the load is and what the limit is. Without a message the expression is shown"
        " with its values.",
        _scheduler("filter:\n- name: below\n  expression: usage.cpu * 100 / allocatable.cpu < 65\n"
                   "  message: the node is too hot"),
        _scheduler("variables:\n- {name: cpu, expression: usage.cpu * 100 / allocatable.cpu}\n"
                   "filter:\n- name: below\n  expression: variables.cpu < 65\n"
                   "  messageExpression: \"'cpu is at ' + string(variables.cpu) + '%'\""),
        each=declarations.silent_messages,
    ),
    LintRule(
        "KP008", "unused-aggregate", Severity.WARNING,
        "An aggregate is computed over all nodes or pods; one that nothing reads has no effect.",
        _scheduler("aggregates:\n- {name: pods, over: nodes, function: sum, expression: nodeInfo.pods}\n"
                   "filter:\n- {name: fits, expression: requests.cpu <= allocatable.cpu}"),
        _scheduler("aggregates:\n- {name: pods, over: nodes, function: sum, expression: nodeInfo.pods}\n"
                   "score:\n- {name: emptier, expression: aggregates.pods - nodeInfo.pods, normalize: Max}"),
        each=declarations.unused_aggregates, fixable=True,
    ),
    LintRule(
        "KP009", "unreadable-param", Severity.ERROR,
        "If the param is not a valid duration, time, quantity or regular expression, the function that reads it fails"
        " for every row, and `failurePolicy` decides about all of them.",
        _scheduler("params: {longest: 7 days}\n"
                   "filter:\n- name: young\n"
                   "  expression: now - node.metadata.creationTimestamp < duration(params.longest)"),
        _scheduler("params: {longest: 168h}\n"
                   "filter:\n- name: young\n"
                   "  expression: now - node.metadata.creationTimestamp < duration(params.longest)"),
        each=expressions.unreadable_params,
    ),
    LintRule(
        "KP010", "always-true", Severity.WARNING,
        "A condition that is true for every row has no effect. Usually a bound or a name is wrong. (A literal `true` is"
        " not reported if the document has a `match`. Params count as unknown, because profiles change them.)",
        _filter("requested.cpu >= 0"), _filter("requested.cpu > 0"),
        each=expressions.always_true,
    ),
    LintRule(
        "KP011", "always-false", Severity.WARNING,
        "The condition is true for no row: a filter refuses every node, a criterion selects no pod.",
        _filter("nodeInfo.pods < 5 && nodeInfo.pods > 10"), _filter("nodeInfo.pods < 5 || nodeInfo.pods > 10"),
        each=expressions.always_false,
    ),
    LintRule(
        "KP012", "unreachable", Severity.WARNING,
        "A branch that is never evaluated has no effect; usually its condition is wrong.",
        _score('"nodeInfo.pods >= 0 ? 100 : 0"'), _score('"nodeInfo.pods > 0 ? 100 : 0"'),
        each=expressions.unreachable,
    ),
    LintRule(
        "KP013", "filter-without-node", Severity.WARNING,
        "A `filter` is evaluated for every node. A condition on the pod alone belongs to `preFilter`: it"
        " is evaluated once, and refuses the pod on all nodes.",
        _scheduler("filter:\n- {name: modest, expression: requests.cpu <= 64000}"),
        _scheduler("preFilter:\n- {name: modest, expression: requests.cpu <= 64000}"),
        each=expressions.filters_without_node,
    ),
    LintRule(
        "KP014", "score-without-node", Severity.WARNING,
        "A score that is the same for all nodes has no effect on which node is selected.",
        _score("\"podInfo.qosClass == 'LSR' ? 100 : 0\""),
        _score("\"podInfo.qosClass == 'LSR' && nodeInfo.pods < 10 ? 100 : 0\""),
        each=expressions.scores_without_node,
    ),
    LintRule(
        "KP015", "score-range", Severity.WARNING,
        "After normalization a score outside of 0..100 is an error for that node, and counts as 0. Only scores are"
        " reported that are certainly out of range for some input.",
        _score("100 - usage.cpu * 100 / allocatable.cpu"),
        _score("math.greatest(0, 100 - usage.cpu * 100 / allocatable.cpu)"),
        each=expressions.scores_out_of_range,
    ),
    LintRule(
        "KP016", "lossy-division", Severity.WARNING,
        "Integer division truncates: `usage.cpu / allocatable.cpu` is 0 for every node below 100 %, and multiplying it"
        " by 100 still gives 0.",
        _filter("usage.cpu / allocatable.cpu * 100 < 65"), _filter("usage.cpu * 100 / allocatable.cpu < 65"),
        each=expressions.lossy_divisions,
    ),
    LintRule(
        "KP017", "quantity-as-text", Severity.WARNING,
        "API objects hold quantities as strings, and strings are compared character by character: '9' is greater than"
        " '10', and '1' is not equal to '1000m'.",
        _filter("node.status.allocatable['memory'] > '16Gi'"),
        _filter("requests.cpu <= allocatable.cpu"),
        each=expressions.quantities_as_text,
    ),
    LintRule(
        "KP018", "near-cost-limit", Severity.WARNING,
        "If the estimated cost of an expression is more than half of the limit, a small change may exceed the limit.",
        _filter("pod.spec.tolerations.all(a, pod.spec.tolerations.all(b, pod.spec.tolerations.all(c,"
                " a.?key != b.?key || b.?key != c.?key || allocatable.cpu > 0)))"),
        _filter("pod.spec.tolerations.all(a, pod.spec.tolerations.exists_one(b, a.?key == b.?key)"
                " && allocatable.cpu > 0)"),
        each=expressions.near_limit,
    ),
    LintRule(
        "KP019", "deprecated", Severity.WARNING,
        "Deprecated fields, labels and annotations are not set on newer clusters, or will not be in later releases.",
        _filter("\"'failure-domain.beta.kubernetes.io/zone' in node.metadata.labels\""),
        _filter(f"\"'{_DOMAIN}' in node.metadata.labels\""),
        each=declarations.deprecated, fixable=True,
    ),
    LintRule(
        "KP020", "misspelt-key", Severity.WARNING,
        "A label, annotation, taint or resource that is similar to one of Koordinator or Kubernetes is probably"
        " misspelt (`topology.kubernetes.io/zoen`): no object has it, and no error is reported at run time.",
        _scheduler("match: {pods: {labelSelector: {matchLabels: {koordinator.sh/qos-class: BE}}}}\n"
                   "filter:\n- {name: fits, expression: requests.cpu <= allocatable.cpu}"),
        _scheduler("match: {pods: {labelSelector: {matchLabels: {koordinator.sh/qosClass: BE}}}}\n"
                   "filter:\n- {name: fits, expression: requests.cpu <= allocatable.cpu}"),
        each=declarations.misspelt_keys, suite=fixtures.misspelt_keys, fixable=True,
    ),
    LintRule(
        "KP021", "unknown-class", Severity.WARNING,
        "The QoS classes are LSE, LSR, LS, BE and SYSTEM, the bands koord-prod, koord-mid, koord-batch and koord-free:"
        " no pod has another one.",
        _filter("podInfo.qosClass != 'BestEffort' || nodeInfo.pods < 50"),
        _filter("podInfo.qosClass != 'BE' || nodeInfo.pods < 50"),
        each=declarations.unknown_classes, suite=fixtures.unknown_classes,
    ),
    LintRule(
        "KP022", "wrong-unit", Severity.WARNING,
        "cpu is in milli-cores, memory in bytes, a percentage goes from 0 to 100 and a fraction from 0 to 1. A"
        " comparison with a number of another unit, or a sum with one, is wrong by that factor. [Points](points.md)"
        " lists the unit of each variable; `--fix` converts the number where the intended unit is clear.",
        _scheduler("filter:\n- {name: small, expression: usage.cpu < 8}\n"
                   '- {name: cool, expression: "percent(usage.cpu, allocatable.cpu) < 0.6"}\n'
                   "- {name: free, expression: allocatable.memory - usage.cpu > requests.memory}"),
        _scheduler("filter:\n- {name: small, expression: usage.cpu < 8000}\n"
                   '- {name: cool, expression: "percent(usage.cpu, allocatable.cpu) < 60"}\n'
                   "- {name: free, expression: allocatable.memory - usage.memory > requests.memory}"),
        each=units.wrong_units, fixable=True,
    ),
    LintRule(
        "KP023", "absent-key", Severity.WARNING,
        "Reading a key or an optional field that an object does not have is an error, and `failurePolicy` determines"
        " its effect: here every node without the label is refused, although it should be accepted."
        " `[?key].orValue(...)` and `.?field.orValue(...)` supply a default; `has`, `in`, `all` over a list of keys,"
        " `match` and `matchConditions` guarantee that the key is present. `--fix` writes an empty string or 0 as the"
        " default where no other one preserves the meaning. Also reported are elements that a list may lack"
        " (`list.filter(...)[0]`, `split(',')[1]`), `min()` and `max()` of a list that may be empty, and `value()` of"
        " an element that may be absent; `[?0].orValue(...)`, `size(list) > 0` and `list.exists(...)` are safe. A list"
        " of an API object has at least one element where it is present.",
        _filter("\"node.metadata.labels['pool'] != 'batch'\""),
        _filter("\"node.metadata.?labels[?'pool'].orValue('') != 'batch'\""),
        each=absence.absent_keys, fixable=True,
    ),
    LintRule(
        "KP024", "idle-schema-keyword", Severity.WARNING,
        "JSON Schema ignores keywords that it does not have, so a misspelt one checks nothing. Reported are also"
        " keywords without effect where they stand, those that are not checked (`contentEncoding` and the like, formats"
        " other than `date-time`, `duration` and `byte`), extensions of Kubernetes with a value that means nothing, and"
        " definitions that nothing refers to."
        " [Documents](documents.md#paramsschema) lists the keywords that are checked.",
        _scheduler("params: {pool: batch}\n"
                   "paramsSchema: {properties: {pool: {type: string, maxLenght: 63}}}\n"
                   "filter:\n- name: pool\n"
                   "  expression: node.metadata.?labels[?'pool'].orValue('') == params.pool"),
        _scheduler("params: {pool: batch}\n"
                   "paramsSchema: {properties: {pool: {type: string, maxLength: 63}}}\n"
                   "filter:\n- name: pool\n"
                   "  expression: node.metadata.?labels[?'pool'].orValue('') == params.pool"),
        each=declarations.idle_schema_keywords, fixable=True,
    ),
    LintRule(
        "KP030", "watermarks-crossed", Severity.ERROR,
        "One plugin places pods on nodes whose load is above the level from which another one evicts: pods are placed,"
        " evicted and placed again without end.",
        _both(_scheduler(_BELOW.format(85), "place"), _drain(80, 45)),
        _both(_scheduler(_BELOW.format(65), "place"), _drain(80, 45)),
        whole=across.watermarks_crossed,
    ),
    LintRule(
        "KP031", "pools-at-odds", Severity.WARNING,
        "If two documents require different values of a label for the same pods, no node passes both. If two drain the"
        " same nodes from different shares on, only the lower share has an effect.",
        _both(_scheduler(_POOL.format("a"), "pool-a"), _scheduler(_POOL.format("b"), "pool-b")),
        _both(_scheduler("match: {pods: {namespaces: [a]}}\n" + _POOL.format("a"), "pool-a"),
              _scheduler("match: {pods: {namespaces: [b]}}\n" + _POOL.format("b"), "pool-b")),
        whole=across.pools_at_odds,
    ),
    LintRule(
        "KP032", "plugins-fight", Severity.WARNING,
        "Two plugins of one profile prefer opposite nodes: they cancel each other out.",
        _both(_scheduler(_PREFER.format("math.least(100, usage.cpu * 100 / allocatable.cpu)"), "pack"),
              _scheduler(_PREFER.format("math.greatest(0, 100 - usage.cpu * 100 / allocatable.cpu)"), "spread")),
        _both(_scheduler("profiles: [batch]\n" + _PREFER.format("math.least(100, usage.cpu * 100 / allocatable.cpu)"),
                         "pack"),
              _scheduler("profiles: [services]\n"
                         + _PREFER.format("math.greatest(0, 100 - usage.cpu * 100 / allocatable.cpu)"), "spread")),
        whole=across.fights,
    ),
    LintRule(
        "KP033", "off-by-a-hundred", Severity.WARNING,
        "Usage may exceed the allocatable amount of a node, so a threshold of 100 % still has an effect. To disable a"
        " threshold, leave the comparison out.",
        _scheduler(_BELOW.format(100)), _scheduler(_BELOW.format(90)),
        whole=across.off_by_a_hundred,
    ),
    LintRule(
        "KP034", "thresholds-upside-down", Severity.ERROR,
        "If nodes accept evicted pods up to a higher share than the one from which pods are evicted, the same pods are"
        " evicted again and again.",
        _drain(60, 70), _drain(70, 45),
        whole=across.thresholds_upside_down,
    ),
    LintRule(
        "KP035", "unread-params", Severity.WARNING,
        "Shared params that no document reads have no effect, although they look like settings.",
        _policy("PolicyParams", "params: {percent: 65}", "shared"),
        _both(_policy("PolicyParams", "params: {percent: 65}", "shared"),
              _scheduler("paramsFrom: [{name: shared}]\nfilter:\n"
                         "- {name: below, expression: usage.cpu * 100 / allocatable.cpu < params.percent}")),
        whole=declarations.unread_params, fixable=True,
    ),
    LintRule(
        "KP036", "unknown-plugin", Severity.ERROR,
        "A component configuration (`--config`) names a plugin that does not exist: the component does not start.",
        _CONFIGURATION.format("LowNodeLod"), _CONFIGURATION.format("LowNodeLoad"),
        whole=across.unknown_plugins, configuration=True,
    ),
    LintRule(
        "KP037", "setting-without-effect", Severity.WARNING,
        "Only some thresholds of slo-controller-config (`--config`) are compared with documents. Reported are settings"
        " that nothing reads, and unknown ones, which koord-manager ignores silently.",
        _SLO_CONFIG.format('"enable": true, "memoryEvictTresholdPercent": 70'),
        _SLO_CONFIG.format('"enable": true, "memoryEvictThresholdPercent": 70'),
        whole=slo.settings_without_effect, configuration=True,
    ),
    LintRule(
        "KP038", "invalid-setting", Severity.ERROR,
        "A setting of slo-controller-config (`--config`) has the wrong type, is out of its range, or contradicts"
        " another one; or two node entries select the same nodes, of which the first one is used. koord-manager goes on"
        " with the previous value of a key whose types are wrong.",
        _SLO_CONFIG.format('"enable": true, "memoryEvictThresholdPercent": 700'),
        _SLO_CONFIG.format('"enable": true, "memoryEvictThresholdPercent": 70'),
        whole=slo.invalid_settings, configuration=True,
    ),
    LintRule(
        "KP039", "two-writers", Severity.ERROR,
        "Two enforcing QoSPlugins that write the same file of a node undo each other's changes, so the QoS manager does"
        " not run them together.",
        _both(_qos(_SETTING.format(10), "calm"), _qos(_SETTING.format(60), "keen")),
        _both(_qos("match: {nodes: {names: [a]}}\n" + _SETTING.format(10), "calm"),
              _qos("match: {nodes: {names: [b]}}\n" + _SETTING.format(60), "keen")),
        whole=across.two_writers,
    ),
    LintRule(
        "KP040", "ignore-without-reason", Severity.ERROR,
        "Later readers have to know whether the reason is still valid. Write `because` and the reason after the ids.",
        _filter("requested.cpu >= 0  # koord-policy: ignore KP010"),
        _filter("requested.cpu >= 0  # koord-policy: ignore KP010 because it shows how a filter is written"),
    ),
    LintRule(
        "KP041", "needless-ignore", Severity.WARNING,
        "A comment that ignores nothing any more would hide a later violation.",
        _filter("requested.cpu > 0  # koord-policy: ignore KP010 because it was `>=` once"),
        _filter("requested.cpu > 0"),
        fixable=True,
    ),
    LintRule(
        "KP042", "misspelt-priority-class", Severity.WARNING,
        "If no pod has the priority class, the document has no effect, and a fixture of a PolicyTest no priority."
        " Koordinator's bands are `koord-prod`, `koord-mid`, `koord-batch` and `koord-free`.",
        _scheduler("match: {pods: {priorityClasses: [koord-prd]}}\n" + _BELOW.format(65)),
        _scheduler("match: {pods: {priorityClasses: [koord-prod]}}\n" + _BELOW.format(65)),
        each=declarations.misspelt_priority_classes, suite=fixtures.misspelt_priority_classes,
    ),
    LintRule(
        "KP043", "eviction-loop", Severity.WARNING,
        "A descheduling policy evicts from nodes that scheduling prefers, and no filter refuses these nodes: evicted"
        " pods come back, and are evicted again. Compared are shares of the allocatable, by usage and by requests.",
        _both(_scheduler(_PREFER.format("math.least(100, usage.cpu * 100 / allocatable.cpu)"), "pack"), _drain(80, 45)),
        _both(_scheduler(_BELOW.format(70) + "\n"
                         + _PREFER.format("math.least(100, usage.cpu * 100 / allocatable.cpu)"), "pack"),
              _drain(80, 45)),
        whole=eviction_loops.eviction_loops,
    ),
    LintRule(
        "KP044", "unknown-window", Severity.ERROR,
        "A key of `usage.over` is the duration of a NodeMetric's statistics, such as `5m`. What is no duration is"
        " reported by no NodeMetric, so the expression fails on every node, and `failurePolicy` decides about all.",
        _filter("usage.over['7 minutes'].p95.cpu < 5000"), _filter("usage.over['7m'].p95.cpu < 5000"),
        each=expressions.unknown_windows,
    ),
    LintRule(
        "KP045", "fraction-for-percent", Severity.WARNING,
        "Where percent are expected, 0.8 is 0.8 %, and 1 is 1 %. Fractions are reported in arguments of plugins"
        " (`--config`) and in params; 1 is reported where 1 % has hardly any use: as a level of usage (`maxPercent: 1`)"
        " in a document, in arguments or in slo-controller-config, and as a percentage of a QoSPlugin's action. It is"
        " not reported where it may be meant: as a low level, and as a distance from the average.",
        _LOAD_ARGS.format("0.45", "0.8"), _LOAD_ARGS.format(45, 80),
        whole=percentages.fractions_for_percent, configuration=True,
    ),
)

RULES: Final = MappingProxyType({rule.id: rule for rule in _RULES})
"""All rules by id, in order."""

BY_NAME: Final = MappingProxyType({rule.name: rule for rule in _RULES})


def find(word: str) -> LintRule | None:
    """Return the rule of an id or a name."""
    return RULES.get(word.upper()) or BY_NAME.get(word.lower())
