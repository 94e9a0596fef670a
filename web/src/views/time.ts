/** Time: the timeline of a flight recording, one of its moments, and replays of a part of it. */

import { ApiError, get, post } from "../api.ts";
import { h, latest } from "../dom.ts";
import { storedDraft, storedFiles } from "../drafts.ts";
import { short } from "../format.ts";
import type {
  MomentView, RecordedDecision, RecordedReason, ReplayResult, ReplayUse, ReplayView, TimelineView,
} from "../models.ts";
import type { Page } from "../page.ts";
import { JobBar } from "../jobs.ts";
import { link } from "../route.ts";
import { paint } from "../paint.ts";
import { leftOut, notATime, notTimes, scroll, withRest } from "../parts.ts";
import { type Key, named, t } from "../texts.ts";
import { type Range, parseTime, rounded, shown, timeText } from "../time-axis.ts";
import { DASHES, type Mark, TimeChart, type TimeData } from "../time-chart.ts";

const POLL = 400;
const GROWING = 3000;
const LISTED = 100;
const FIRST = 12;
const ROWS = 240;
const STATES: Record<string, Key> = {
  same: "policySame", changed: "policyChanged", absentNow: "policyAbsentNow", absentThen: "policyAbsentThen",
};

export async function timeView(page: Page): Promise<void> {
  const query = page.route.query;
  let range: Range | null = rangeOf(query);
  let at = parseTime(query["at"] ?? "");
  let view = await timeline(range);
  if (!view.recorded) {
    page.show(h("h1", {}, t("time")), h("p", {}, t("noRecording")), h("pre", {}, "koord-policy console --recorded DIR"));
    return;
  }
  const chart = new TimeChart({ label: t("timeline"), chosen: (time) => void choose(time), ranged: zoom });
  page.closing(() => chart.close());
  const newest = latest(() => timeline(range));
  const heading = h("span", { class: "quiet" });
  const body = h("div");
  const faults = h("div");
  const rows = h("tbody");
  const moment = h("section", { class: "panel", "aria-live": "polite", "aria-label": t("moment"), id: "moment" });
  const input = h("input", { size: 22, value: at === null ? "" : timeText(at), placeholder: "2026-01-31T12:00:00Z", spellcheck: "false", autocomplete: "off",
    onchange: () => typed() });
  const invalid = h("div", {}, ...notTimes(query, ["at", "start", "end"]));
  const replay = replaySection(page);
  const shownAll = h("button", { type: "button", onclick: () => zoom(limits()) }, t("wholeTime"));

  function limits(): Range {
    return { start: view.start, end: Math.max(view.end, view.start + 1) };
  }

  function typed(): void {
    const time = parseTime(input.value);
    input.setAttribute("aria-invalid", String(time === null));
    paint(invalid, time === null && input.value.trim() ? notATime(input.value) : "");
    if (time !== null) void choose(time);
  }

  function address(): void {
    page.replace("time", {
      ...page.route.query, at: at === null ? "" : timeText(at), start: range ? timeText(range.start) : "", end: range ? timeText(range.end) : "",
    });
  }

  function draw(): void {
    body.hidden = !view.times.length; // nothing was recorded yet: there is no time to show or to replay
    heading.textContent = view.times.length ? `${shown(view.start)} – ${shown(view.end)} UTC` : "";
    const marks: Mark[] = view.policies.map((each) => ({ time: each.time, colour: "accent", shape: "diamond",
      text: t("generationAt", String(each.generation), each.digest.slice(0, 12)) }));
    const data: TimeData = {
      times: view.times, width: view.width, marks, gaps: view.gaps, lanes: [
        { title: t("podsCard"), unit: "", kind: "steps", lines: [
          { name: t("boundPods"), values: view.bound, colour: "s1" }, { name: t("waitingPods"), values: view.waiting, colour: "s2", dash: DASHES[1] }] },
        { title: t("decisionsPlaced"), unit: "", kind: "bars", lines: [{ name: t("placed"), values: view.placed, colour: "s3" }] },
        { title: t("decisionsRefused"), unit: "", kind: "bars", lines: [{ name: t("refusedPods"), values: view.refused, colour: "s4" }] },
        { title: t("evictions"), unit: "", kind: "bars", lines: [{ name: t("evicted"), values: view.evicted, colour: "s5" }] },
        { title: t("requestedPercent"), unit: "%", kind: "steps", top: 100, lines: [
          { name: "cpu", values: view.cpu, colour: "s6", dash: DASHES[2] }, { name: "memory", values: view.memory, colour: "s7", dash: DASHES[3] }] },
      ],
    };
    chart.show(data, range ?? limits(), limits(), at);
    paint(faults,
    !view.complete || view.times.length ? "" : h("p", { class: "warn", role: "status" }, t("nothingRecorded")),
      view.complete ? "" : h("p", { class: "quiet", role: "status" }, t("readingSegments", view.segmentsRead, view.segments)),
      ...view.gaps.map((each) => h("p", { class: "warn" }, t("gapFrom", shown(each.start), shown(each.end), each.reason))),
      ...view.notes.map((each) => h("p", { class: "warn" }, each)), leftOut(view.notesLeftOut) ?? "");
    paint(rows, ...view.times.slice(0, ROWS).map((time, number) => h("tr", {},
      h("td", {}, h("button", { class: "icon", type: "button", onclick: () => void choose(time) }, shown(time))),
      [view.bound, view.waiting, view.placed, view.refused, view.evicted].map((each) => h("td", { class: "number" }, short(each[number]!))),
      [view.cpu, view.memory].map((each) => h("td", { class: "number" }, `${short(each[number]!)} %`)))));
  }

  function zoom(next: Range): void {
    const whole = limits();
    range = next.start <= whole.start && next.end >= whole.end ? null : rounded(next);
    address();
    replay.ranged(range ?? limits());
    newest().then(renew).catch((error: unknown) => paint(invalid, problem(error)));
  }

  /** Shows a newer view if it differs; null if another request is on its way. */
  function renew(next: TimelineView | null): void {
    if (!next || !page.current || JSON.stringify(next) === JSON.stringify(view)) return;
    const first = !view.times.length && next.times.length > 0;
    view = next;
    draw();
    if (!first) return;
    replay.ranged(range ?? limits());
    if (at !== null) void linked(at);
  }

  async function choose(time: number): Promise<void> {
    at = Math.round(Math.min(Math.max(time, view.start), Math.max(view.end, view.start)) * 1000) / 1000;
    input.value = timeText(at);
    chart.choose(at);
    address();
    const text = timeText(at);
    try {
      const found = await get<MomentView>("moment", { at: text });
      if (page.current && at !== null && timeText(at) === text) paint(moment, ...momentParts(found, text));
    } catch (error) {
      paint(moment, h("h2", {}, t("moment")), problem(error));
    }
  }

  async function follow(): Promise<void> {
    if (!page.current) return;
    try {
      renew(await newest());
    } catch {
      // The server is away: the timeline stays as it is, and is read again.
    }
    timer = window.setTimeout(() => void follow(), view.complete ? GROWING : POLL);
  }

  let timer = window.setTimeout(() => void follow(), view.complete ? GROWING : POLL);
  page.closing(() => window.clearTimeout(timer));
  const head = (text: string, number = true): HTMLElement => h("th", number ? { class: "number" } : {}, text);
  page.show(
    h("h1", {}, `${t("time")} `, heading), faults, invalid, body);
  body.append(
    h("div", { class: "tools" }, h("label", {}, t("momentUtc"), input), shownAll),
    chart.element, h("p", { class: "quiet" }, t("timeChartHelp")),
    h("details", {}, h("summary", {}, t("asTable")), scroll(t("timeline"), h("table", {}, h("thead", {}, h("tr", {},
      head(t("timeUtc"), false), head(t("boundPods")), head(t("waitingPods")), head(t("placed")), head(t("refusedPods")), head(t("evicted")), head("cpu"), head("memory"))), rows))),
    moment, replay.element);
  moment.append(h("h2", {}, t("moment")), h("p", { class: "quiet" }, t("chooseMoment")));
  draw();
  replay.ranged(range ?? limits());
  if (at !== null && view.times.length) await linked(at);

  /** Shows the moment of the address, or the nearest one that was recorded, and says that it is another one. */
  async function linked(time: number): Promise<void> {
    if (time < view.start || time > view.end) paint(invalid, h("p", { class: "warn", role: "status" }, t("notRecorded", shown(time))));
    await choose(time);
  }
}

function rangeOf(query: Record<string, string>): Range | null {
  const [start, end] = [parseTime(query["start"] ?? ""), parseTime(query["end"] ?? "")];
  return start !== null && end !== null && end > start ? { start, end } : null;
}

function timeline(range: Range | null): Promise<TimelineView> {
  return get<TimelineView>("timeline", range ? { start: timeText(range.start), end: timeText(range.end) } : {});
}

function problem(error: unknown): HTMLElement {
  const faults = error instanceof ApiError ? error.faults : [];
  return h("div", { class: "error", role: "alert" }, error instanceof Error ? error.message : String(error),
    faults.map((each) => (each.help ? h("div", { class: "quiet" }, each.help) : null)));
}

function reasons(found: readonly RecordedReason[], rest: number): string {
  return withRest(found.map((each) => `${short(each.nodes)} ${each.reason}`), rest).join(", ");
}

function momentParts(view: MomentView, at: string): HTMLElement[] {
  const podAt = (key: string): HTMLElement => h("a", { href: link("pod", { key, at }) }, key);
  const nodeAt = (node: string): HTMLElement => h("a", { href: link("map", { node, at }) }, node);
  return [
    h("h2", {}, `${t("moment")} ${shown(view.time)} UTC`),
    h("p", {}, t("momentFacts", short(view.nodes), short(view.bound), short(view.waiting.length + view.waitingLeftOut)),
      view.digest ? ` · ${t("generationAt", String(view.generation), view.digest.slice(0, 12))}` : ""),
    view.refused ? h("div", { class: "error" }, view.refused, h("div", { class: "quiet" }, view.help))
      : h("p", { class: "badges" }, (["map", "overview", "policies", "playground"] as const).map((each) => h("a", { class: "badge", href: link(each, { at }) }, t("viewThen", t(each))))),
    h("div", { class: "cards" },
      h("section", {}, h("h3", {}, t("lastDecisions")), view.decisions.length ? scroll(t("lastDecisions"), decisionTable(view.decisions.slice(0, FIRST), podAt, nodeAt)) : h("p", { class: "quiet" }, "–"),
      view.decisions.length > FIRST ? h("details", {}, h("summary", {}, t("moreDecisions", view.decisions.length - FIRST + view.decisionsLeftOut)), scroll(t("lastDecisions"), decisionTable(view.decisions.slice(FIRST), podAt, nodeAt)),
        leftOut(view.decisionsLeftOut)) : ""),
      h("section", {}, h("h3", {}, t("waiting")), view.waiting.length ? waitingTable(view.waiting.slice(0, FIRST), podAt) : h("p", { class: "quiet" }, "–"),
      view.waiting.length > FIRST ? h("details", {}, h("summary", {}, t("morePods", view.waiting.length - FIRST + view.waitingLeftOut)), waitingTable(view.waiting.slice(FIRST), podAt),
        view.waitingLeftOut ? h("p", { class: "quiet" }, t("moreLeftOut", view.waitingLeftOut)) : "") : "")),
    h("details", {}, h("summary", {}, t("policiesThen", view.policies.length + view.policiesLeftOut)), leftOut(view.policiesLeftOut), h("dl", { class: "pairs" }, view.policies.flatMap((each) =>
      [h("dt", {}, each.name), h("dd", { class: each.state === "same" ? "good" : "warn" }, t(STATES[each.state] ?? "policyChanged"))]))),
  ];
}

function waitingTable(waiting: MomentView["waiting"], podAt: (key: string) => HTMLElement): HTMLElement {
  return h("table", {}, h("tbody", {}, waiting.slice(0, LISTED).map((each) => h("tr", {}, h("td", {}, podAt(each.key)), h("td", {}, reasons(each.reasons, each.reasonsLeftOut) || "–")))));
}

function decisionTable(decisions: readonly RecordedDecision[], podAt: (key: string) => HTMLElement, nodeAt: (node: string) => HTMLElement): HTMLElement {
  return h("table", { class: "roomy" }, h("thead", {}, h("tr", {}, h("th", { class: "number" }, t("timeUtc")), h("th", {}, t("pod")), h("th", {}, t("node")), h("th", {}, t("why")))),
    h("tbody", {}, decisions.slice(0, LISTED).map((each) => h("tr", {}, h("td", { class: "number" }, shown(each.time).slice(11)), h("td", {}, podAt(each.pod)),
      h("td", {}, each.node === null ? h("span", { class: "bad" }, "✗") : nodeAt(each.node)), h("td", {}, decisionText(each))))));
}

/** A recorded decision in words: its score and the next best node, or why there was none. */
export function decisionText(each: RecordedDecision): string {
  if (each.node === null) {
    return [reasons(each.reasons, each.reasonsLeftOut), each.nominated ? t("nominatedNode", each.nominated, withRest(each.victims, each.victimsLeftOut).join(", ")) : ""].filter(Boolean).join("; ");
  }
  const parts = [t("passedNodes", each.passed)];
  if (each.score !== null) parts.push(t("scored", each.score));
  if (each.nextNode !== null) parts.push(t("nextBest", each.nextNode, each.nextScore ?? "–"));
  return parts.join(", ");
}

interface ReplaySection {
  element: HTMLElement;
  ranged: (range: Range) => void;
}

function replaySection(page: Page): ReplaySection {
  const [from, to] = [0, 1].map(() => h("input", { size: 22, spellcheck: "false", autocomplete: "off" })) as [HTMLInputElement, HTMLInputElement];
  const drafts = storedFiles();
  const under = h("select", {}, h("option", { value: "" }, t("activePolicies")), h("option", { value: "draft", disabled: !drafts.includes("") }, t("draftOfPlayground")),
    drafts.filter(Boolean).map((file) => h("option", { value: `draft:${file}` }, t("draftOf", file))));
  const bar = new JobBar<ReplayView>(page, { state: "replay/state", cancel: "replay/cancel",
    said: (view) => (view.phase === "replaying" ? t("replaying", view.done, view.of) : t("readingRecording")) });
  const result = h("div");
  const start = h("button", { class: "primary", type: "button", onclick: () => void run() }, t("replay"));
  const chart = new TimeChart({ label: t("replayed") });
  page.closing(() => chart.close());
  let typed = false;
  for (const each of [from, to]) each.addEventListener("input", () => { typed = true; });

  function ranged(range: Range): void {
    if (typed) return;
    from.value = timeText(range.start);
    to.value = timeText(range.end);
  }

  async function run(): Promise<void> {
    const [begins, ends] = [from, to].map((each) => parseTime(each.value));
    paint(result);
    if (begins === null || ends === null || begins === undefined || ends === undefined || begins > ends) {
      paint(result, problem(new Error(t("invalidTimes"))));
      return;
    }
    try {
      const file = under.value.slice("draft:".length);
      const text = under.value ? storedDraft(file)?.text ?? "" : "";
      if (under.value && !text) throw new Error(t("draftGone"));
      const view = await bar.run(() => post<ReplayView>("replay/start", { start: timeText(begins), end: timeText(ends), text, file }), start);
      if (view) show(view);
    } catch (error) {
      paint(result, problem(error));
    }
  }

  function show(view: ReplayView): void {
    if (!view.result) {
      paint(result, problem(view.phase === "cancelled" ? new Error(t("cancelled")) : new ApiError(200, view.failure, view.faults)));
      return;
    }
    paint(result, ...replayParts(view, view.result, chart));
    const found = view.result;
    const lane = (title: string, unit: string, of: (use: ReplayUse) => number, top?: number): TimeData["lanes"][number] => ({
      title, unit, kind: "steps", ...(top === undefined ? {} : { top }), lines: [
        { name: `${title}, ${t("recordedThen")}`, values: found.recordedSeries.map(of), colour: "bar" },
        { name: `${title}, ${t("replayed")}`, values: found.series.map(of), colour: "bar2", dash: DASHES[1] }] });
    const range = { start: view.start, end: Math.max(view.end, view.start + 1) };
    chart.show({ times: found.times, width: found.times.length > 1 ? found.times[1]! - found.times[0]! : 1, marks: evictionMarks(found), lanes: [
      lane("cpu", "%", (use) => use.cpu, 100), lane("memory", "%", (use) => use.memory, 100), lane(t("pending"), "", (use) => use.pending)] }, range, range, null);
  }

  return { ranged, element: h("section", { class: "panel", id: "replay", "aria-label": t("replay") }, h("h2", {}, t("replayTitle")), h("p", { class: "quiet" }, t("replayHelp")),
    h("div", { class: "tools" }, h("label", {}, t("fromUtc"), from), h("label", {}, t("untilUtc"), to), h("label", {}, t("underPolicies"), under), start),
    bar.element, result) };
}

function evictionMarks(found: ReplayResult): Mark[] {
  return [...found.recordedEvictions.map((each): Mark => ({ time: each.time, colour: "bar", shape: "down", text: `${t("recordedThen")}: ${t("evicted")} ${each.pod}` })),
    ...found.evictions.map((each): Mark => ({ time: each.time, colour: "bar2", shape: "up", text: `${t("replayed")}: ${t("evicted")} ${each.pod}` }))];
}

function podThen(each: ReplayResult["differences"][number]): HTMLElement | string {
  const time = (each.recorded ?? each.replayed)?.time;
  return time === undefined ? each.pod : h("a", { href: link("pod", { key: each.pod, at: timeText(time) }) }, each.pod);
}

function replayParts(view: ReplayView, found: ReplayResult, chart: TimeChart): HTMLElement[] {
  const pair = (name: string, before: string, after: string): HTMLElement => h("tr", {}, h("td", {}, name), h("td", { class: "number" }, before), h("td", { class: "number" }, after));
  const percent = (value: number): string => `${short(value)} %`;
  const seconds = (value: number): string => `${short(value)} s`;
  const when = (time: number | undefined): string => (time === undefined ? "–" : shown(time).slice(11));
  const evictions = (title: string, list: ReplayResult["evictions"], rest: number): HTMLElement | string => (list.length ? h("details", {}, h("summary", {}, `${title} (${list.length + rest})`),
    h("table", {}, h("tbody", {}, list.slice(0, LISTED).map((each) => h("tr", {}, h("td", {}, when(each.time)), h("td", {}, each.pod), h("td", {}, each.node), h("td", {}, `${each.by} ${each.reason}`))))),
    leftOut(rest + Math.max(list.length - LISTED, 0))) : "");
  return [
    h("p", {}, t("replayDone", found.pods, seconds(found.seconds)), " ", found.samePolicies ? t("samePolicies") : "", view.replaced.length ? ` ${t("replaces", view.replaced.join(", "))}` : ""),
    ...found.problems.map((each) => h("p", { class: "warn" }, each)), h("div", {}, leftOut(found.problemsLeftOut)),
    h("div", { class: "badges" }, Object.entries(found.counts).filter(([, count]) => count).map(([name, count]) =>
      h("span", { class: `badge ${name === "never" ? "bad" : ""}` }, `${short(count)} ${named(`outcome_${name}`)}`))),
    scroll(t("compared"), h("table", { class: "compared" }, h("thead", {}, h("tr", {}, h("th", {}, ""), h("th", { class: "number" }, t("recordedThen")), h("th", { class: "number" }, t("replayed")))),
      h("tbody", {},
        pair(t("cpuRequested"), percent(found.recordedUse.cpu), percent(found.use.cpu)), pair(t("memoryRequested"), percent(found.recordedUse.memory), percent(found.use.memory)),
        pair(t("meanPending"), short(found.recordedUse.pending), short(found.use.pending)),
        pair(t("meanWait"), seconds(found.recordedWaits.mean), seconds(found.waits.mean)), pair(t("p99Wait"), seconds(found.recordedWaits.p99), seconds(found.waits.p99)),
        pair(t("preemptions"), short(found.recordedPreemptions), short(found.preemptions)),
        ...(found.othersEvictions ? [pair(t("othersEvictions"), short(found.othersEvictions), short(found.othersEvictions))] : []),
        ...(found.otherLosses ? [pair(t("otherLosses"), "–", short(found.otherLosses))] : []),
        pair(t("decisions"), short(found.recordedDecisions), short(found.decisions))))),
    chart.element,
    h("h3", {}, t("differences")),
    found.differences.length ? scroll(t("differences"), h("table", { class: "roomy" }, h("thead", {}, h("tr", {}, h("th", {}, t("pod")), h("th", {}, t("difference")),
      h("th", {}, t("recordedThen")), h("th", {}, t("replayed")), h("th", { class: "number" }, t("laterBy")), h("th", {}, t("why")))),
    h("tbody", {}, found.differences.slice(0, LISTED).map((each) => h("tr", {}, h("td", {}, podThen(each)), h("td", {}, each.changes.map((name) => named(`outcome_${name}`)).join(", ")),
      h("td", {}, each.recorded ? `${each.recorded.node} ${when(each.recorded.time)}` : "–"), h("td", {}, each.replayed ? `${each.replayed.node} ${when(each.replayed.time)}` : "–"),
      h("td", { class: "number" }, each.delay ? seconds(each.delay) : ""), h("td", {}, Object.entries(each.reasons).slice(0, 3).map(([text, nodes]) => `${short(nodes)} ${text}`).join(", "))))))) : h("p", { class: "good" }, `✓ ${t("noDifferences")}`),
    found.differencesLeftOut + Math.max(found.differences.length - LISTED, 0) ? h("p", { class: "quiet" }, t("moreLeftOut", found.differencesLeftOut + Math.max(found.differences.length - LISTED, 0))) : h("span"),
    h("div", {}, evictions(`${t("evictions")}, ${t("recordedThen")}`, found.recordedEvictions, found.recordedEvictionsLeftOut), evictions(`${t("evictions")}, ${t("replayed")}`, found.evictions, found.evictionsLeftOut)),
  ];
}
