/** A node's timeline: usage by class of pods, beside what the agent changed, when, and why. */

import { ApiError, get } from "../api.ts";
import { type Child, h, latest } from "../dom.ts";
import { amount } from "../format.ts";
import type { NodeChangeLine, NodeTimeView, UsageLine } from "../models.ts";
import type { Page } from "../page.ts";
import { paint } from "../paint.ts";
import { failed, headed, leftOut, nodeLink, notTimes, scroll } from "../parts.ts";
import { link } from "../route.ts";
import { type Key, named, t } from "../texts.ts";
import { type Range, parseTime, rounded, shown, timeText } from "../time-axis.ts";
import { DASHES, type Dash, type Line, type Mark, TimeChart, type Tone } from "../time-chart.ts";

const POLL = 500;
const GROWING = 15_000;
/** The colour and the dashes of each class; one that is not among them is drawn as `none`. */
const STYLES: Record<string, [Tone, Dash]> = {
  node: ["quiet", DASHES[0]], LS: ["s1", DASHES[4]], BE: ["s2", DASHES[1]], LSR: ["s3", DASHES[3]], LSE: ["s4", DASHES[5]], SYSTEM: ["s7", DASHES[6]], none: ["s6", DASHES[7]],
};

export async function nodeTimeView(page: Page): Promise<void> {
  const query = page.route.query;
  const [start, end] = [parseTime(query["start"] ?? ""), parseTime(query["end"] ?? "")];
  let range: Range | null = start !== null && end !== null && end > start ? { start, end } : null;
  let at = parseTime(query["time"] ?? "");
  const name = query["name"] ?? "";
  let view: NodeTimeView;
  try {
    view = await load();
  } catch (error) {
    if (!isUnknown(error)) throw error;
    page.show(...await unknown(name));
    return;
  }
  if (!view.sources) {
    page.show(h("h1", {}, t("node-time")), h("p", {}, t("noNodeSources")),
      h("pre", {}, "koord-policy console --agent-recording FILE.jsonl\nkoord-policy console --agents URL"));
    return;
  }
  const chart = new TimeChart({ label: t("nodeTimeline"), chosen: (time) => choose(time), ranged: zoom });
  page.closing(() => chart.close());
  const newest = latest(load);
  const heading = h("h1", {});
  const state = h("div");
  const select = h("select", { onchange: () => page.go("node-time", { name: select.value }) });
  const heads = [t("timeUtc"), t("change"), t("strategy"), t("subject"), t("why"), t("files")].map((text) => ({ text }));
  const changes = h("tbody");
  const usage = h("tbody");
  const usageHead = h("tr");
  const left = h("p", { class: "quiet" });

  function load(): Promise<NodeTimeView> {
    return get<NodeTimeView>("node-time", { name, ...(range ? { start: timeText(range.start), end: timeText(range.end) } : {}) });
  }

  function limits(): Range {
    return { start: view.start, end: Math.max(view.end, view.start + 1) };
  }

  function address(): void {
    page.replace("node-time", { name: view.node, time: at === null ? "" : timeText(at), start: range ? timeText(range.start) : "", end: range ? timeText(range.end) : "" });
  }

  function lines(of: readonly UsageLine[]): Line[] {
    return of.map((each) => {
      const [colour, dash] = STYLES[each.name] ?? STYLES["none"]!;
      return { name: each.name === "node" ? t("wholeNode") : each.name === "none" ? t("noClass") : each.name, values: each.values, colour, dash };
    });
  }

  function draw(): void {
    paint(heading, `${t("node-time")} ${view.node} `, h("span", { class: "quiet" }, view.end ? `${shown(view.start)} – ${shown(view.end)} UTC` : ""));
    paint(select, ...view.nodes.map((each) => h("option", { value: each, selected: each === view.node }, each)));
    paint(state, view.complete ? "" : h("p", { class: "quiet", role: "status" }, t("readingSources")),
      ...view.problems.map((each) => h("p", { class: "warn" }, each)), leftOut(view.problemsLeftOut) ?? "");
    const limited = view.limit.some((each) => each !== null);
    const cpu: Line[] = [...lines(view.cpu), ...(limited ? [{ name: t("limitOfBestEffort"), values: view.limit, colour: "bad" as Tone, dash: DASHES[2] }] : [])];
    const lanes = [{ title: top(t("cpuUsed"), view.cpuAllocatable, "milli-cores"), unit: "milli-cores", kind: "steps" as const, lines: cpu, ...(view.cpuAllocatable ? { top: view.cpuAllocatable } : {}) },
      { title: top(t("memoryUsed"), view.memoryAllocatable, "bytes"), unit: "bytes", kind: "steps" as const, lines: lines(view.memory), ...(view.memoryAllocatable ? { top: view.memoryAllocatable } : {}) }];
    chart.show({ times: view.times, width: view.width, lanes, marks: view.changes.map(mark) }, range ?? limits(), limits(), at);
    left.textContent = view.changesLeftOut ? t("moreLeftOut", view.changesLeftOut) : view.complete && !view.changes.length ? t("noChanges") : "";
    paint(changes, ...view.changes.map((each) => headed(row(each), heads)));
    const columns = [...lines(view.cpu).map((each) => ({ ...each, name: `cpu ${each.name}`, unit: "milli-cores" })),
      ...lines(view.memory).map((each) => ({ ...each, name: `memory ${each.name}`, unit: "bytes" }))];
    paint(usageHead, h("th", {}, t("timeUtc")), ...columns.map((each) => h("th", { class: "number" }, each.name)));
    paint(usage, ...view.times.map((time, number) => h("tr", {}, h("td", {}, shown(time)),
      columns.map((each) => h("td", { class: "number" }, amount(each.values[number] ?? null, each.unit))))));
    highlight();
  }

  function row(each: NodeChangeLine): HTMLTableRowElement {
    const element = h("tr", {}, h("td", { class: "number" }, h("button", { class: "icon", type: "button", onclick: () => choose(each.time) }, shown(each.time).slice(11))),
      h("td", {}, h("span", { class: `mark ${each.enforced ? classOf(each) : "quiet"}` }, words(each))), h("td", {}, each.plugin || "–", each.item ? h("small", { class: "quiet" }, ` ${each.item}`) : null),
      h("td", {}, each.subject === view.node ? "" : each.subject), h("td", { class: "reason" }, each.reason),
      h("td", { class: "files" }, each.files.map((file) => h("div", { class: "mono" }, `${file.file}: ${file.before ?? "?"} → ${file.after}`)), each.more ? h("div", { class: "quiet" }, t("moreLeftOut", each.more)) : null));
    element.dataset["time"] = String(each.time);
    return element;
  }

  function choose(time: number): void {
    at = Math.round(time * 1000) / 1000;
    chart.choose(at);
    address();
    highlight()?.scrollIntoView({ block: "nearest" });
  }

  /** Marks the row of the change that is nearest to the chosen time. */
  function highlight(): Element | null {
    let nearest: Element | null = null;
    let distance = Infinity;
    for (const each of changes.children) {
      each.setAttribute("aria-selected", "false");
      const apart = at === null ? Infinity : Math.abs(Number((each as HTMLElement).dataset["time"]) - at);
      if (apart < distance) [nearest, distance] = [each, apart];
    }
    nearest?.setAttribute("aria-selected", "true");
    return nearest;
  }

  function zoom(next: Range): void {
    const whole = limits();
    range = next.start <= whole.start && next.end >= whole.end ? null : rounded(next);
    address();
    newest().then(renew).catch((error: unknown) => paint(state, failed(error)));
  }

  /** Shows a newer view if it differs; null if another request is on its way. */
  function renew(next: NodeTimeView | null): void {
    if (!next || !page.current || JSON.stringify(next) === JSON.stringify(view)) return;
    view = next;
    draw();
  }

  async function follow(): Promise<void> {
    if (!page.current) return;
    try {
      renew(await newest());
    } catch (error) {
      if (isUnknown(error)) { // it could have had the node while sources were read
        chart.close();
        page.show(...await unknown(name));
        return;
      }
      // The server is away: what is shown stays, and is read again.
    }
    timer = window.setTimeout(() => void follow(), view.complete ? GROWING : POLL);
  }

  let timer = window.setTimeout(() => void follow(), view.complete ? GROWING : POLL);
  page.closing(() => window.clearTimeout(timer));
  page.show(heading, state, ...notTimes(query, ["time", "start", "end"]),
    h("div", { class: "tools" }, h("label", {}, t("node"), select), h("button", { type: "button", onclick: () => zoom(limits()) }, t("wholeTime")),
      h("a", { href: link("map", { node: view.node }) }, t("map"))),
    chart.element, h("p", { class: "quiet" }, t("nodeChartHelp")),
    h("section", { class: "panel", "aria-label": t("changes") }, h("h2", {}, t("changes")), scroll(t("changes"), h("table", { class: "rows" }, h("thead", {}, h("tr", {},
      heads.map((each, number) => h("th", { class: number ? "" : "number" }, each.text)))), changes)), left),
    h("details", {}, h("summary", {}, t("usageAsTable")), scroll(t("usageAsTable"), h("table", { class: "roomy" }, h("thead", {}, usageHead), usage))));
  draw();
}

function isUnknown(error: unknown): boolean {
  return error instanceof ApiError && error.status === 404;
}

/** Says that nothing is known of a node, and of which nodes something is. */
async function unknown(name: string): Promise<Child[]> {
  const { nodes } = await get<NodeTimeView>("node-time");
  return [h("h1", {}, `${t("node-time")} ${name}`), h("p", { role: "status" }, t(nodes.length ? "noTimelineOf" : "noTimelines", name)),
    h("ul", {}, nodes.map((each) => h("li", {}, h("a", { href: link("node-time", { name: each }) }, each)))),
    h("p", {}, nodeLink(name))];
}

function top(title: string, allocatable: number | null, unit: string): string {
  return allocatable === null ? title : `${title} (${t("allocatable")} ${amount(allocatable, unit)})`;
}

function classOf(each: NodeChangeLine): string {
  return each.recovers ? "good" : each.kind === "evict" ? "bad" : each.kind === "suppressCPU" ? "warn" : "";
}

function words(each: NodeChangeLine): string {
  const key = `change_${each.kind}`;
  const kind = named(key) === key ? each.kind : t(key as Key);
  const what = each.recovers ? t("givenBack", kind) : kind;
  return each.enforced ? what : t("notEnforced", what);
}

function mark(each: NodeChangeLine): Mark {
  const [colour, shape] = ((): [Tone, Mark["shape"]] => {
    if (!each.enforced) return ["quiet", "diamond"];
    if (each.recovers) return ["good", "up"];
    if (each.kind === "evict") return ["bad", "square"];
    return each.kind === "suppressCPU" ? ["warn", "down"] : ["accent", "diamond"];
  })();
  return { time: each.time, colour, shape, text: `${words(each)}: ${each.reason}` };
}
