/** All texts of the pages, by language. */

const ENGLISH = {
  title: "koord-policy console",
  overview: "Overview", map: "Cluster", pod: "Pod", policies: "Policies", playground: "Playground",
  search: "Search nodes, pods and policies", searchHint: "press / to search", noResults: "nothing found",
  theme: "Change between light and dark", language: "中文", skip: "Skip to the content", views: "Views",
  loading: "loading…", token: "Token", tokenNeeded: "This console needs a token.", signIn: "Sign in",
  failed: "That did not work: {0}",
  colourBy: "Colour by", expression: "Expression", ownExpression: "an expression of your own", groupBy: "Group by",
  forPod: "For pod", choosePod: "namespace/name", none: "none", zone: "zone", region: "region",
  cpuRequested: "cpu requested", cpuMeasured: "cpu measured", memoryRequested: "memory requested",
  memoryMeasured: "memory measured", pods: "pods", gpuFree: "free GPU", schedulable: "schedulable",
  withoutValue: "no value ({0}): {1}", nodes: "nodes", nodesCount: "{0} nodes", without: "without",
  mapLabel: "Map of {0} nodes. Use the arrow keys to move, Enter to open a node.",
  highest: "Highest values", first: "First nodes of each class", value: "value", node: "Node",
  close: "Close", resource: "Resource", allocatable: "allocatable", requested: "requested", measured: "measured",
  labels: "Labels", taints: "Taints", conditions: "Conditions", podsHere: "Pods on this node ({0})",
  pendingHere: "Pending pods: what plugins say of this node", passes: "passes", refusedBy: "refused by {0}",
  moreLeftOut: "and {0} more", unschedulable: "cordoned", notMeasured: "no current metric",
  metricAge: "metric {0} s old", request: "requests", wouldRun: "would run on {0}", noNode: "no node takes it",
  isOn: "is on {0}, and is decided as if it were pending", passedOf: "{0} of {1} nodes pass", profile: "profile",
  matrix: "Decision matrix", filters: "Filters", scores: "Scores by plugin", total: "total",
  refusedFirst: "refused first by", allPassed: "{0} filters refuse no node: {1}", showMore: "Show {0} more nodes",
  why: "Why", whyNode: "Why: {0}", selectPod: "Choose a pod", selectPodHint: "Search for a pod, or choose one that waits.",
  weight: "weight {0}", watched: "only warns", chosen: "chosen",
  generation: "Policies", nodesCard: "Nodes", podsCard: "Pods", running: "running", pending: "pending",
  policyHash: "hash {0}", errors: "{0} errors", warnings: "{0} warnings", waiting: "Pending pods",
  waitingReason: "Reason, or the node it would get", utilization: "Utilization", lacking: "The cluster's source lacks {0}: do not rely on what plugins that read them say.",
  at: "at {0}", from: "from {0}",
  findings: "Findings", noFindings: "no findings", params: "Params", reads: "Reads", rules: "Rules", point: "point",
  name: "name", active: "active", inactive: "in no profile of a pod here", refuses: "refuses first in {0} of {1} pairs of a pending pod and a node",
  openPlayground: "Try it in the playground", file: "File", kind: "Kind", line: "line {0}", choosePolicy: "Choose a policy.",
  draft: "Draft", editor: "Policy and tests (YAML)", evaluation: "At the cursor", verdicts: "Verdicts", effect: "Effect on the cluster",
  tests: "Tests", runTests: "Run tests", runEffect: "Compare with the active policies", export: "Download",
  reset: "Start again", evaluateHint: "Place the cursor in an expression to see its value on all nodes.",
  verdictPasses: "passes", verdictOf: "{0} of {1} nodes pass", budget: "{0}: {1} of {2}, budget {3}",
  within: "within", over: "over budget", replaces: "The draft replaces {0}.", addsTo: "The draft is added to the active policies.",
  noChange: "Nothing changes.", testsPassed: "{0} of {1} cases pass, coverage {2} %", noTests: "The draft has no PolicyTest.",
  maxMoved: "at most moved", starting: "Type, or open a policy in the playground.",
  moved: "pods that change node", nowPending: "pods that find no node any more", nowPlaced: "pending pods that find a node",
  nodesLost: "nodes that some pods lose", nodesGained: "nodes that some pods gain", nowMisfits: "running pods that their node would refuse",
  noMisfits: "running pods that their node would accept again", nowEvicted: "pods that would be evicted",
  notEvicted: "pods that would not be evicted any more", nowSuppressed: "nodes whose best-effort pods are held back",
  notSuppressed: "nodes whose best-effort pods are released", otherBounds: "changed limits of QoS plugins",
  otherBestNode: "pods with another best node", totalsChanged: "changed scores of a pod on a node",
  newFaults: "new errors of expressions", goneFaults: "errors that disappear", before: "before", after: "after", cause: "cause",
  saved: "The draft stays in this browser.", keys: "Keys: / search, g then o, c, p, l, y or t for a view, Esc closes",
  time: "Time", timeline: "Timeline of the recording", noRecording: "This console shows no flight recording. Start it with:",
  moment: "Moment", momentUtc: "Moment (UTC)", wholeTime: "Show the whole time", timeUtc: "time (UTC)",
  generationAt: "policies of generation {0}, {1}", boundPods: "pods on nodes", waitingPods: "waiting pods", decisionsAndEvictions: "Decisions and evictions",
  placed: "placed", refusedPods: "no node found", evicted: "evicted", requestedPercent: "Requested of what is allocatable",
  readingSegments: "The recording is being read: segment {0} of {1}.", gapFrom: "Nothing is known from {0} to {1}: {2}.", gap: "not recorded",
  timeChartHelp: "A click chooses a moment, a drag a part of the time, a double click all of it.",
  timeChartLabel: "Arrow keys move the cursor, Enter chooses the moment, plus and minus zoom, page keys move the part that is shown, 0 shows all.",
  asTable: "As a table", chooseMoment: "Choose a moment to see what was decided before it, and the cluster then.",
  momentFacts: "{0} nodes, {1} pods on nodes, {2} waiting", viewThen: "{0} at that time", lastDecisions: "Last decisions", policiesThen: "Policies then and now ({0})",
  policySame: "as now", policyChanged: "changed since then", policyAbsentNow: "not among the console's policies", policyAbsentThen: "was not active",
  passedNodes: "{0} nodes passed", scored: "score {0}", nextBest: "next {0} with {1}", nominatedNode: "nominated {0}, evicting {1}",
  replay: "Replay", replayTitle: "Replay under other policies", replayHelp: "The recorded pods are placed anew, in the order and at the times of the recorded decisions.",
  fromUtc: "From (UTC)", untilUtc: "Until (UTC)", underPolicies: "Under", activePolicies: "the console's policies", draftOfPlayground: "the draft of the playground",
  progress: "Progress", cancel: "Cancel", cancelled: "cancelled", replaying: "{0} of {1} decisions", readingRecording: "reading the recording…",
  replayed: "replayed", recordedThen: "recorded", compared: "Recording and replay", replayDone: "{0} pods in {1}.", samePolicies: "These are the policies that decided then.",
  meanPending: "waiting pods, mean", meanWait: "wait for a node, mean", p99Wait: "wait for a node, 99th percentile", evictions: "Evictions", decisions: "decisions",
  differences: "Pods that differ", difference: "was", laterBy: "later by", noDifferences: "No pod differs.",
  outcome_same: "the same", outcome_elsewhere: "placed elsewhere", outcome_later: "placed later", outcome_sooner: "placed sooner", outcome_never: "never placed",
  outcome_onlyReplayed: "placed in the replay only", outcome_neither: "placed in neither",
  asRecorded: "The cluster as recorded at {0}, under the console's policies.", backToNow: "Back to now",
  recordedDecision: "As recorded", noRecordedDecision: "No decision about this pod is recorded before this time.", decidedAt: "decided at {0}", byGeneration: "by generation {0}", moreDecisions: "{0} earlier ones",
};

export type Key = keyof typeof ENGLISH;

const CHINESE: Record<Key, string> = {
  title: "koord-policy 控制台",
  overview: "概览", map: "集群", pod: "Pod", policies: "策略", playground: "试验场",
  search: "搜索节点、Pod 和策略", searchHint: "按 / 搜索", noResults: "没有结果",
  theme: "切换明暗主题", language: "English", skip: "跳到正文", views: "视图",
  loading: "加载中…", token: "令牌", tokenNeeded: "此控制台需要令牌。", signIn: "登录",
  failed: "操作失败：{0}",
  colourBy: "着色依据", expression: "表达式", ownExpression: "自定义表达式", groupBy: "分组",
  forPod: "针对 Pod", choosePod: "命名空间/名称", none: "不分组", zone: "可用区", region: "地域",
  cpuRequested: "CPU 申请量", cpuMeasured: "CPU 实测用量", memoryRequested: "内存申请量",
  memoryMeasured: "内存实测用量", pods: "Pod 数", gpuFree: "空闲 GPU", schedulable: "可调度",
  withoutValue: "没有值（{0}）：{1}", nodes: "节点", nodesCount: "{0} 个节点", without: "无",
  mapLabel: "{0} 个节点的地图。用方向键移动，回车打开节点。",
  highest: "最高值", first: "各类的首个节点", value: "值", node: "节点",
  close: "关闭", resource: "资源", allocatable: "可分配", requested: "已申请", measured: "实测",
  labels: "标签", taints: "污点", conditions: "状况", podsHere: "此节点上的 Pod（{0}）",
  pendingHere: "待调度 Pod：各插件对此节点的结论", passes: "通过", refusedBy: "被 {0} 拒绝",
  moreLeftOut: "另有 {0} 个", unschedulable: "已封锁", notMeasured: "没有有效指标",
  metricAge: "指标已有 {0} 秒", request: "申请", wouldRun: "将运行在 {0}", noNode: "没有节点可用",
  isOn: "现在在 {0} 上，按待调度重新决策", passedOf: "{1} 个节点中 {0} 个通过", profile: "配置",
  matrix: "决策矩阵", filters: "过滤", scores: "各插件得分", total: "总分",
  refusedFirst: "最先拒绝者", allPassed: "{0} 个过滤插件没有拒绝任何节点：{1}", showMore: "再显示 {0} 个节点",
  why: "原因", whyNode: "原因：{0}", selectPod: "选择 Pod", selectPodHint: "搜索 Pod，或选择一个等待中的 Pod。",
  weight: "权重 {0}", watched: "仅警告", chosen: "选中",
  generation: "策略", nodesCard: "节点", podsCard: "Pod", running: "运行中", pending: "待调度",
  policyHash: "哈希 {0}", errors: "{0} 个错误", warnings: "{0} 个警告", waiting: "待调度的 Pod",
  waitingReason: "原因，或将获得的节点", utilization: "利用率", lacking: "集群来源缺少 {0}：不要依赖读取它们的插件的结论。",
  at: "时间 {0}", from: "来源 {0}",
  findings: "检查结果", noFindings: "没有问题", params: "参数", reads: "读取", rules: "规则", point: "扩展点",
  name: "名称", active: "生效", inactive: "这里没有 Pod 使用其配置", refuses: "在 {1} 个（待调度 Pod，节点）组合中最先拒绝 {0} 个",
  openPlayground: "在试验场中打开", file: "文件", kind: "类型", line: "第 {0} 行", choosePolicy: "请选择一个策略。",
  draft: "草稿", editor: "策略与测试（YAML）", evaluation: "光标处", verdicts: "结论", effect: "对集群的影响",
  tests: "测试", runTests: "运行测试", runEffect: "与生效策略比较", export: "下载",
  reset: "重新开始", evaluateHint: "把光标放进表达式，即可看到它在所有节点上的值。",
  verdictPasses: "通过", verdictOf: "{1} 个节点中 {0} 个通过", budget: "{0}：{2} 个中 {1} 个，预算 {3}",
  within: "预算内", over: "超出预算", replaces: "草稿替换 {0}。", addsTo: "草稿加入生效策略。",
  noChange: "没有变化。", testsPassed: "{1} 个用例中 {0} 个通过，覆盖率 {2} %", noTests: "草稿中没有 PolicyTest。",
  maxMoved: "最多移动", starting: "输入内容，或在试验场中打开一个策略。",
  moved: "更换节点的 Pod", nowPending: "不再有节点可用的 Pod", nowPlaced: "获得节点的待调度 Pod",
  nodesLost: "部分 Pod 失去的节点", nodesGained: "部分 Pod 新增的节点", nowMisfits: "将被所在节点拒绝的运行中 Pod",
  noMisfits: "重新被所在节点接受的运行中 Pod", nowEvicted: "将被驱逐的 Pod",
  notEvicted: "不再被驱逐的 Pod", nowSuppressed: "尽力而为 Pod 被压制的节点",
  notSuppressed: "尽力而为 Pod 被释放的节点", otherBounds: "QoS 插件限制的变化",
  otherBestNode: "最佳节点改变的 Pod", totalsChanged: "Pod 在节点上得分的变化",
  newFaults: "新的表达式错误", goneFaults: "消失的错误", before: "之前", after: "之后", cause: "原因",
  saved: "草稿保存在此浏览器中。", keys: "快捷键：/ 搜索，g 后接 o、c、p、l、y 或 t 切换视图，Esc 关闭",
  time: "时间", timeline: "记录的时间线", noRecording: "此控制台没有飞行记录。启动时指定：",
  moment: "时刻", momentUtc: "时刻（UTC）", wholeTime: "显示全部时间", timeUtc: "时间（UTC）",
  generationAt: "第 {0} 代策略，{1}", boundPods: "节点上的 Pod", waitingPods: "等待中的 Pod", decisionsAndEvictions: "决策与驱逐",
  placed: "已放置", refusedPods: "未找到节点", evicted: "已驱逐", requestedPercent: "申请量占可分配量",
  readingSegments: "正在读取记录：第 {0} 段，共 {1} 段。", gapFrom: "{0} 至 {1} 期间没有记录：{2}。", gap: "未记录",
  timeChartHelp: "单击选择时刻，拖动选择时间段，双击显示全部。",
  timeChartLabel: "方向键移动光标，回车选择时刻，加号和减号缩放，翻页键移动时间段，0 显示全部。",
  asTable: "以表格显示", chooseMoment: "选择一个时刻，查看之前的决策以及当时的集群。",
  momentFacts: "{0} 个节点，{1} 个 Pod 在节点上，{2} 个等待中", viewThen: "当时的{0}", lastDecisions: "最近的决策", policiesThen: "当时与现在的策略（{0}）",
  policySame: "与现在相同", policyChanged: "之后有改动", policyAbsentNow: "不在控制台的策略中", policyAbsentThen: "当时未生效",
  passedNodes: "{0} 个节点通过", scored: "得分 {0}", nextBest: "其次为 {0}，得分 {1}", nominatedNode: "提名 {0}，驱逐 {1}",
  replay: "重放", replayTitle: "用其他策略重放", replayHelp: "按记录中决策的顺序和时间重新放置记录的 Pod。",
  fromUtc: "从（UTC）", untilUtc: "至（UTC）", underPolicies: "使用", activePolicies: "控制台的策略", draftOfPlayground: "试验场的草稿",
  progress: "进度", cancel: "取消", cancelled: "已取消", replaying: "{1} 个决策中的 {0} 个", readingRecording: "正在读取记录…",
  replayed: "重放", recordedThen: "记录", compared: "记录与重放", replayDone: "{0} 个 Pod，用时 {1}。", samePolicies: "这正是当时决策的策略。",
  meanPending: "等待中的 Pod，平均", meanWait: "等待节点的时间，平均", p99Wait: "等待节点的时间，第 99 百分位", evictions: "驱逐", decisions: "决策",
  differences: "有差异的 Pod", difference: "差异", laterBy: "推迟", noDifferences: "没有差异。",
  outcome_same: "相同", outcome_elsewhere: "放置在别处", outcome_later: "放置较晚", outcome_sooner: "放置较早", outcome_never: "从未放置",
  outcome_onlyReplayed: "仅在重放中放置", outcome_neither: "两者均未放置",
  asRecorded: "{0} 时记录的集群，使用控制台的策略。", backToNow: "回到现在",
  recordedDecision: "当时的记录", noRecordedDecision: "此时刻之前没有关于该 Pod 的决策记录。", decidedAt: "决策于 {0}", byGeneration: "第 {0} 代策略", moreDecisions: "更早的 {0} 个",
};

const LANGUAGES = { en: ENGLISH as Record<Key, string>, zh: CHINESE };
export type Language = keyof typeof LANGUAGES;
const STORED = "koord-policy-language";

export function language(): Language {
  const stored = localStorage.getItem(STORED);
  if (stored === "en" || stored === "zh") return stored;
  return navigator.language.startsWith("zh") ? "zh" : "en";
}

export function setLanguage(chosen: Language): void {
  localStorage.setItem(STORED, chosen);
}

/** The text of a key, with its places `{0}`, `{1}` filled in. */
export function t(key: Key, ...values: (string | number)[]): string {
  return LANGUAGES[language()][key].replace(/\{(\d)\}/g, (_, place: string) => String(values[Number(place)] ?? ""));
}

/** The text of a key of that name, or the name itself. */
export function named(name: string): string {
  return name in ENGLISH ? t(name as Key) : name;
}
