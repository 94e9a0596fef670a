/** Policies: documents with syntax colours, findings at their place, rules and what they read. */

import { ApiError, get, post } from "../api.ts";
import { type Child, h } from "../dom.ts";
import type { Editor } from "../editor.ts";
import { short } from "../format.ts";
import type { AnalysisView, AuditView, EvictionsView, Fault, FileView, PoliciesView, PolicyView, RuleRatesView, RuleView } from "../models.ts";
import type { Page } from "../page.ts";
import { paint, replace } from "../paint.ts";
import { analysedOf, analysisBar, analysisFailure, breakable, failed, faultList, later, leftOut, nodeLink, podLink, rows, scroll, withRest } from "../parts.ts";
import { link } from "../route.ts";
import { nearest } from "../similar.ts";
import { coded, t } from "../texts.ts";
import { changesPanel } from "./changes.ts";

const FRAMEWORKS: Record<string, string> = { SchedulerPlugin: "scheduler", QoSPlugin: "qos", DeschedulerPlugin: "descheduler" };
const LISTED = 50;
/** What was typed to find a policy: another one of the list may be wanted next. */
let filtered = "";

export async function policiesView(page: Page): Promise<void> {
  const view = await get<PoliciesView>("policies");
  const { name: wanted, kind } = page.route.query;
  const name = wanted ?? view.policies[0]?.name ?? "";
  const policy = view.policies.find((each) => each.name === name && (!kind || each.kind === kind));
  const marks = new Map<string, HTMLElement>();
  const entry = (each: PolicyView): HTMLElement => {
    const mark = h("span");
    marks.set(`${FRAMEWORKS[each.kind]}/${each.name}`, mark);
    return h("li", { "data-name": each.name.toLowerCase() }, h("a", {
      href: link("policies", { name: each.name, kind: each.kind }), "aria-current": each === policy ? "true" : null,
    }, each.name, badge(view.faults, each), mark));
  };
  const groups = Array.from(new Set([...Object.keys(FRAMEWORKS), ...view.policies.map((each) => each.kind)])).map((of) => {
    const mine = view.policies.filter((each) => each.kind === of);
    const count = h("span", { class: "quiet" }, short(mine.length));
    return { count, element: h("section", { hidden: !mine.length, "data-key": of }, h("h2", {}, `${of} `, count), h("ul", {}, mine.map(entry))), size: mine.length };
  });
  const none = h("p", { class: "quiet", hidden: true }, t("noResults"));
  const filter = h("input", { type: "search", placeholder: t("filterPolicies", view.policies.length), "aria-label": t("filterPolicies", view.policies.length), autocomplete: "off", spellcheck: "false", value: filtered,
    oninput: () => { filtered = filter.value; narrow(); } });
  const list = h("div", { class: "list" }, groups.map((each) => each.element), none);

  if (policy && !policy.name.toLowerCase().includes(filtered.trim().toLowerCase())) filter.value = filtered = ""; // a link led to another one
  narrow();

  /** Shows the policies whose names contain what was typed, and how many of each kind there are. */
  function narrow(): void {
    const wanted = filter.value.trim().toLowerCase();
    let left = 0;
    for (const { element, count, size } of groups) {
      let found = 0;
      for (const each of element.querySelectorAll("li")) {
        each.hidden = !each.dataset["name"]!.includes(wanted);
        if (!each.hidden) found += 1;
      }
      element.hidden = !found;
      paint(count, wanted ? t("ofAll", found, size) : short(size));
      left += found;
    }
    none.hidden = left > 0;
  }
  const detail = h("div");
  const auditing = h("section", { class: "panel" });
  page.show(h("h1", {}, t("policies")), changesPanel(page),
    h("div", { class: "policies" }, h("div", {}, h("nav", { "aria-label": t("policies"), class: "panel" }, filter, list), auditing), detail));
  const chosen = list.querySelector<HTMLElement>("[aria-current]");
  if (chosen) list.scrollTop = chosen.offsetTop - list.offsetTop - list.clientHeight / 2;
  const shown = policy ? await policyDetail(page, view, policy, detail) : choose(view, wanted ?? "", kind ?? "", detail);
  audits(page, auditing, (audit) => {
    for (const mark of marks.values()) paint(mark);
    for (const each of audit.findings) { // warnings come first, and one word is enough for the list
      const mark = marks.get(`${each.framework}/${each.policy}`);
      if (!mark?.hasChildNodes()) mark?.append(h("span", { class: `badge ${each.level === "warning" ? "warn" : "quiet"}` }, coded("audit", each.finding)));
    }
    shown?.(audit);
  });
}

/** Says that there is no such policy, with the nearest name, or asks to choose one. */
function choose(view: PoliciesView, name: string, kind: string, detail: HTMLElement): null {
  const near = name ? nearest(name, view.policies.map((each) => each.name)) : undefined;
  const orphans = orphansOf(view);
  replace(detail,
    name ? h("p", { class: "error", role: "alert" }, t("noPolicy", kind ? `${kind} ${name}` : name), " ",
      near ? h("span", {}, t("didYouMean"), " ", h("a", { href: link("policies", { name: near }) }, near)) : null) : "",
    h("p", {}, t("choosePolicy")), orphans.length ? faultList(orphans, () => undefined) : "");
  return null;
}

/** Findings of files without a policy. */
function orphansOf(view: PoliciesView): Fault[] {
  return view.faults.filter((each) => !view.policies.some((other) => other.file === each.file));
}

async function policyDetail(page: Page, view: PoliciesView, policy: PolicyView, detail: HTMLElement): Promise<(audit: AuditView) => void> {
  const [file, { openEditor }] = await Promise.all([get<FileView>("file", { name: policy.file }), import("../editor.ts")]);
  const holder = h("div", { class: "editor short" });
  const rules = h("div");
  const audited = h("div");
  const readers = h("div", { "aria-live": "polite" });
  const evicted = policy.kind === "DeschedulerPlugin" ? evictions(policy) : "";
  const users = view.policies.filter((each) => policy.kind === "PolicyParams" && each.paramsFrom.includes(policy.name));
  replace(detail,
    h("section", { class: "panel" }, h("h2", {}, policy.name), policy.description ? h("p", {}, policy.description) : "",
      h("div", { class: "badges" }, [policy.kind, policy.enforcement && coded("enforcement", policy.enforcement), policy.points.join(", "), ...policy.profiles.map((each) => `${t("profile")} ${each}`),
        policy.active ? t("active") : t("inactive")].filter(Boolean).map((each) => h("span", { class: "badge" }, each))),
      view.pairs && policy.kind === "SchedulerPlugin" ? h("p", { class: "quiet" }, t("refuses", policy.refuses, view.pairs)) : "",
      h("p", {}, h("a", { href: link("playground", { file: policy.file }) }, t("openPlayground"))),
      h("p", { class: "quiet" }, `${policy.file}`), holder,
      h("h3", {}, t("findings")), faultList([...file.faults, ...orphansOf(view)], (fault) => editor.reveal(fault.line, fault.column)), audited),
    policy.rules.length ? h("section", { class: "panel" }, h("h3", {}, t("rules")), rules) : "",
    evicted,
    policy.reads.length ? h("section", { class: "panel" }, h("h3", {}, t("reads")), h("p", { class: "quiet" }, t("readsHint")),
      h("div", { class: "badges" }, policy.reads.map((each) => h("button", { class: "badge mono", type: "button",
        onclick: () => paint(readers, readersOf(view, each)) }, each))), leftOut(policy.readsLeftOut), readers) : "",
    Object.keys(policy.params).length || policy.paramsFrom.length ? h("section", { class: "panel" }, h("h3", {}, t("params")),
      policy.paramsFrom.length ? h("p", {}, t("paramsFrom"), " ", policy.paramsFrom.map((each) =>
        h("a", { href: link("policies", { name: each, kind: "PolicyParams" }) }, each))) : "",
      h("dl", { class: "pairs" }, Object.entries(policy.params).flatMap(([key, value]) => [h("dt", {}, key),
        h("dd", {}, h("code", {}, JSON.stringify(value)), " ", h("small", { class: "quiet" }, readBy(policy, users, key)))])),
      users.length ? h("p", {}, t("usedBy"), " ", users.map((each) => h("span", {}, policyLink(each), " "))) : "") : "",
  );
  const editor: Editor = openEditor(holder, file.text, { readOnly: true, label: policy.file });
  page.closing(() => editor.close());
  editor.mark(file.faults);
  editor.reveal(policy.line, 1, false);
  let rates: RuleRatesView | null = null;
  let audit: AuditView | null = null;
  const draw = (): void => paint(rules, ruleTable(policy, editor, audit, rates));
  draw();
  void ratesOf(policy).then((found) => { rates = found; if (found && page.current) draw(); }).catch(() => undefined); // a console that is away has no rates
  return (found) => {
    audit = found;
    draw();
    const mine = found.findings.filter((each) => each.policy === policy.name && each.framework === FRAMEWORKS[policy.kind]);
    paint(audited, ...mine.map((each) => h("div", { class: `finding ${each.level}` }, h("strong", {}, `${coded("audit", each.finding)} `),
      each.rule ? h("code", {}, each.rule) : null, ` ${each.message}`,
      each.examples.length ? h("small", { class: "quiet" }, ` ${each.examples.join(", ")}`) : null)));
  };
}

/** The rates that running servers report; null without one. */
async function ratesOf(policy: PolicyView): Promise<RuleRatesView | null> {
  try {
    const found = await get<RuleRatesView>("rule-rates", { policy: policy.name });
    return found.known ? found : null;
  } catch (error) {
    if (error instanceof ApiError) return null; // a console without servers
    throw error;
  }
}

function ruleTable(policy: PolicyView, editor: Editor, audit: AuditView | null, rates: RuleRatesView | null): HTMLElement {
  const tallies = audit?.policies.find((each) => each.policy === policy.name && each.framework === FRAMEWORKS[policy.kind])?.rules ?? [];
  const tally = (rule: RuleView): Child => {
    const found = tallies.find((each) => each.rule === rule.name && each.point === rule.point);
    return found ? `${short(found.evaluated)} / ${short(found.refused)} / ${short(found.failed)}` : "";
  };
  const rate = (rule: RuleView): Child => {
    const found = rates?.rules.find((each) => each.rule === rule.name && each.point === rule.point);
    return found ? `${short(found.evaluations)} / ${short(found.refusals)} / ${short(found.errors)}` : "";
  };
  return rows(t("rules"), [{ text: t("name") }, { text: t("point") }, { text: t("expression") }, { text: t("reads") },
    ...(tallies.length ? [{ text: t("tally"), number: true }] : []), ...(rates ? [{ text: t("evaluatedIn", Math.round(rates.seconds / 60)), number: true }] : [])],
  policy.rules.map((rule) => h("tr", {}, h("td", { class: "name" }, h("button", { class: "icon", type: "button",
    onclick: () => editor.reveal(rule.line, rule.column) }, rule.name ? breakable(rule.name) : t("line", String(rule.line)))), h("td", { class: "short" }, rule.point),
  h("td", { class: "reason" }, h("code", {}, rule.expression)), h("td", { class: "name" }, h("small", { class: "quiet mono" }, withRest(rule.reads, rule.readsLeftOut).join(" "))),
  tallies.length ? h("td", { class: "number" }, tally(rule)) : null, rates ? h("td", { class: "number" }, rate(rule)) : null)));
}

function policyLink(policy: PolicyView): HTMLElement {
  return h("a", { href: link("policies", { name: policy.name, kind: policy.kind }) }, policy.name);
}

/** The policies that read a path, and their rules. */
function readersOf(view: PoliciesView, path: string): HTMLElement {
  const found = view.policies.filter((each) => each.reads.includes(path));
  return h("div", {}, h("h4", {}, t("readersOf", path)), h("ul", {}, found.map((each) => h("li", {}, policyLink(each), " ",
    h("small", { class: "quiet" }, each.rules.filter((rule) => rule.reads.includes(path)).map((rule) => rule.name || rule.point).join(", "))))));
}

/** The rules that read a param, of the policy and of those that take params from it. */
function readBy(policy: PolicyView, users: readonly PolicyView[], param: string): string {
  const rules = [policy, ...users].flatMap((each) => each.rules.filter((rule) =>
    rule.reads.some((path) => path === `params.${param}` || path.startsWith(`params.${param}.`))).map((rule) => rule.name || rule.point));
  return rules.length ? t("readByRules", Array.from(new Set(rules)).join(", ")) : "";
}

/** Runs the audit when it is wanted, in the background. */
function audits(page: Page, panel: HTMLElement, done: (audit: AuditView) => void): void {
  const result = h("div", { "aria-live": "polite" });
  const bar = analysisBar(page);
  const button = h("button", { type: "button", onclick: () => void run() }, t("audit"));
  replace(panel, h("h2", {}, t("auditTitle")), h("p", { class: "quiet" }, t("auditHint")), button, bar.element, result);

  async function run(): Promise<void> {
    paint(result);
    try {
      const view = await bar.run(() => post<AnalysisView>("audit/start", {}), button);
      if (!view) return;
      const found = view.audit;
      if (!found) throw analysisFailure(view);
      const warnings = found.findings.filter((each) => each.level === "warning").length;
      paint(result,
    h("p", { class: warnings ? "warn" : "good" }, t("auditFound", warnings, found.findings.length - warnings)), analysedOf(view),
        ...found.findings.filter((each) => !each.policy).map((each) => h("div", { class: `finding ${each.level}` }, each.message)));
      done(found);
    } catch (error) {
      paint(result, failed(error));
    }
  }
}

/** The evictions that a descheduling policy plans now, and the pods that it spares, by reason. */
function evictions(policy: PolicyView): HTMLElement {
  return h("section", { class: "panel" }, later(t("wouldEvict"), async () => {
    const found = await get<EvictionsView>("evictions");
    const evicted = found.evicted.filter((each) => each.plugin === policy.name);
    const spared = found.spared.filter((each) => each.plugin === policy.name);
    return [
      found.failure ? h("p", { class: "error" }, found.failure) : "",
      found.plugins.includes(policy.name) || evicted.length || spared.length ? "" : h("p", { class: "quiet" }, t("inNoProfile")),
      h("p", {}, t("evictedCount", evicted.length)),
      evicted.length ? scroll(t("wouldEvict"), h("table", {}, h("tbody", {}, evicted.slice(0, LISTED).map((each) => h("tr", {},
        h("td", {}, podLink(each.pod)), h("td", {}, nodeLink(each.node)), h("td", {}, each.reason)))))) : "",
      spared.length ? scroll(t("spared"), h("table", {}, h("thead", {}, h("tr", {}, h("th", { class: "number" }, t("spared")),
        h("th", {}, t("why")), h("th", {}, t("example")))), h("tbody", {}, spared.map((each) => h("tr", {},
        h("td", { class: "number" }, short(each.pods)),
        h("td", {}, `${each.stoppedBy && each.stoppedBy !== policy.name ? `${each.stoppedBy}: ` : ""}${each.reason}`),
        h("td", {}, podLink(each.example))))))) : "",
      leftOut(found.sparedLeftOut) ?? "",
    ];
  }));
}

function badge(faults: readonly Fault[], policy: PolicyView): HTMLElement | null {
  const mine = faults.filter((each) => each.file === policy.file);
  const errors = mine.filter((each) => each.severity === "error").length;
  const warnings = mine.filter((each) => each.severity === "warning").length;
  if (errors) return h("span", { class: "badge bad" }, `✗ ${errors}`);
  return warnings ? h("span", { class: "badge warn" }, `! ${warnings}`) : null;
}
