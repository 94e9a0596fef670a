/** Parts that several views share: trees of findings, lists of faults, inputs of pods. */

import { ApiError, get } from "./api.ts";
import { type Child, h } from "./dom.ts";
import { JobBar } from "./jobs.ts";
import type { AnalysisView, Fault, SearchView } from "./models.ts";
import type { Page } from "./page.ts";
import { paint, whole } from "./paint.ts";
import { link } from "./route.ts";
import { coded, language, t } from "./texts.ts";
import { parseTime, shown } from "./time-axis.ts";
import { visible } from "./visible.ts";

type Json = Record<string, unknown>;

/** Kinds of findings that are headings over others. */
const HEADINGS = new Set(["errors", "changes", "scores", "filters", "refusals", "waiting", "idle", "vetoes", "proof"]);
const CLASSES: Record<string, string> = {
  refused: "bad", error: "bad", passed: "good", watched: "warn", vetoes: "bad", failed: "bad", evicts: "bad", loop: "bad", allows: "good", helps: "good",
};

/** A tree of findings, as explanations have them, without findings of some kinds. */
export function tree(finding: Json, without: readonly string[] = []): HTMLElement {
  return h("ul", { class: "tree root" }, items(finding, without));
}

function items(finding: Json, without: readonly string[]): Child[] {
  if (without.includes(String(finding["kind"]))) return [];
  const parts = Array.isArray(finding["parts"]) ? (finding["parts"] as Json[]) : [];
  const text = textOf(finding);
  const below: Child[] = parts.flatMap((part) => items(part, without));
  const rows = Array.isArray(finding["rows"]) ? (finding["rows"] as Json[]) : [];
  if (rows.length) below.unshift(h("li", {}, table(rows)));
  if (!text) return below;
  if (!below.length && HEADINGS.has(String(finding["kind"]))) return [];
  const outcome = [finding["outcome"], finding["state"]].find((each) => typeof each === "string") as string | undefined ?? "";
  const mark = outcome ? h("span", { class: `mark ${CLASSES[outcome] ?? ""}` }, coded("mark", outcome)) : null;
  const heading = below.length && !outcome;
  return [h("li", {}, h("span", { class: heading ? "head" : "" }, mark, text), below.length ? h("ul", { class: "tree" }, below) : null)];
}

/** The text of a finding: headings and what a finding says in numbers are in the words of the page, other texts as the server writes them. */
function textOf(finding: Json): string {
  const text = typeof finding["text"] === "string" ? finding["text"] : "";
  if (!text || language() === "en") return text;
  const { kind, node, passed, chosen, nodes, leftOut } = finding;
  if (kind === "choice" && typeof node === "string") {
    return nodes === undefined ? t(chosen ? "choiceChosen" : passed ? "choiceCould" : "choiceRefused", node) : `${t("wouldRun", node)}：${t("passedOf", Number(passed), Number(nodes))}`;
  }
  if (kind === "more" && typeof leftOut === "number") return t("moreLeftOut", leftOut);
  return coded("head", kind === "none" || kind === "cut" ? kind : text);
}

function table(rows: Json[]): HTMLElement {
  const names = Object.keys(rows[0] ?? {});
  const cell = (value: unknown): HTMLElement => h("td", { class: typeof value === "number" ? "number" : "" }, String(value ?? ""));
  return scroll(t("scores"), h("table", {}, h("thead", {}, h("tr", {}, names.map((name) => h("th", {}, coded("column", name))))),
    h("tbody", {}, rows.map((row) => h("tr", {}, names.map((name) => cell(row[name])))))));
}

/** A request that failed, with its problems. */
export function failed(error: unknown): HTMLElement {
  const faults = error instanceof ApiError ? error.faults : [];
  return h("div", { class: "error", role: "alert" }, error instanceof Error ? error.message : String(error), faults.slice(0, 5).map((each) =>
    h("div", {}, `${each.line ? t("line", String(each.line)) : ""} ${each.message}`)));
}

/** Says of each part of an address that should be a time, and is not, which form it has. */
export function notTimes(query: Record<string, string>, names: readonly string[]): HTMLElement[] {
  return names.filter((name) => query[name] && parseTime(query[name]) === null).map((name) => notATime(query[name]!));
}

/** Says which form a time has. */
export function notATime(text: string): HTMLElement {
  return h("p", { class: "error", role: "alert" }, t("notATime", text));
}

/** The bar of an audit, or of a comparison with the active policies. */
export function analysisBar(page: Page): JobBar<AnalysisView> {
  return new JobBar(page, { state: "analysis", cancel: "analysis/cancel",
    said: (view) => view.phase === "queued" ? t("analysisQueued") : t("analysing", Math.floor((100 * view.done) / Math.max(view.of, 1)), view.nodes, view.pods) });
}

/** Why an analysis has no result. */
export function analysisFailure(view: AnalysisView): ApiError {
  return new ApiError(200, view.phase === "cancelled" ? t("cancelled") : view.failure, view.faults);
}

/** Which cluster an analysis is of: it may have changed since. */
export function analysedOf(view: AnalysisView): HTMLElement {
  return h("p", { class: "quiet" }, t("analysedOf", view.nodes, view.pods, shown(view.time)));
}

/** A part of a view that is loaded when it is opened. */
export function later(title: string, load: () => Promise<Child[]>): HTMLElement {
  const body = h("div", { "aria-live": "polite" });
  let started = false;
  const open = async (): Promise<void> => {
    if (started) return;
    started = true;
    paint(body, h("p", { class: "quiet" }, t("loading")));
    try {
      paint(body, await load());
    } catch (error) {
      started = false;
      paint(body, failed(error));
    }
  };
  return whole(h("details", { ontoggle: () => void open() }, h("summary", {}, title), body));
}

/** Says how many entries a list lacks; nothing if it is complete. */
export function leftOut(count: number): HTMLElement | null {
  return count > 0 ? h("p", { class: "quiet" }, t("moreLeftOut", count)) : null;
}

/** The texts of a list, and how many it lacks. */
export function withRest(texts: readonly string[], rest: number): string[] {
  return rest > 0 ? [...texts, t("moreLeftOut", rest)] : [...texts];
}

/** A region that scrolls sideways, reachable by keyboard. */
export function scroll(label: string, ...children: Child[]): HTMLElement {
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, children);
}

/** Gives the cells of a row of such a table its heads, but the first, which says what the row is of. */
export function headed(line: HTMLTableRowElement, heads: readonly { text: string }[]): HTMLTableRowElement {
  for (const [number, cell] of [...line.cells].entries()) cell.setAttribute("data-head", number ? visible(heads[number]?.text ?? "") : "");
  return line;
}

/** A table whose rows become blocks on narrow screens, with the heads before their cells. */
export function rows(label: string, heads: readonly { text: string; number?: boolean }[], lines: readonly HTMLTableRowElement[]): HTMLElement {
  for (const line of lines) headed(line, heads);
  return scroll(label, h("table", { class: "rows" }, h("thead", {}, h("tr", {}, heads.map((each) => h("th", { class: each.number ? "number" : "" }, each.text)))),
    h("tbody", {}, [...lines])));
}

/** Faults as a list; a click calls `chosen`. */
export function faultList(faults: readonly Fault[], chosen: (fault: Fault) => void): HTMLElement {
  if (!faults.length) return h("p", { class: "good" }, `✓ ${t("noFindings")}`);
  return h("div", {}, faults.map((fault) => h("button", { class: `finding ${fault.severity}`, type: "button", "data-key": `${fault.code} ${fault.message}`, onclick: () => chosen(fault) },
    h("strong", {}, `${coded("severity", fault.severity)} `), fault.message, fault.help ? h("span", { class: "quiet" }, ` ${fault.help}`) : null,
    h("small", { class: "quiet" }, ` ${fault.line ? t("line", String(fault.line)) : ""} ${fault.code}`))));
}

/** An input for the key of a pod, with suggestions. */
export function podInput(value: string, changed: (key: string) => void): HTMLElement {
  const options = h("datalist", { id: "pods" });
  const input = h("input", { value, list: "pods", placeholder: t("choosePod"), size: 22, autocomplete: "off",
    oninput: () => void suggest(), onchange: () => changed(input.value.trim()) });
  const suggest = async (): Promise<void> => {
    try {
      const view = await get<SearchView>("search", { text: input.value });
      paint(options, ...view.found.filter((each) => each.kind === "pod").map((each) => h("option", { value: each.name })));
    } catch {
      paint(options); // without suggestions the name can still be typed
    }
  };
  return h("label", {}, t("forPod"), input, options);
}

/** A name that breaks after its dots and slashes, before it breaks anywhere. */
export function breakable(name: string): Child[] {
  return name.split(/(?<=[./])(?=.)/).flatMap((part, number): Child[] => (number ? [h("wbr"), part] : [part]));
}

export function podLink(key: string): HTMLElement {
  return h("a", { href: link("pod", { key }) }, key);
}

export function nodeLink(name: string): HTMLElement {
  return h("a", { href: link("map", { node: name }) }, name);
}

/** Bars of two parts of a whole: the upper one for what is requested, the lower one for what is measured. */
export function bars(whole: number, first: number, second: number | null): HTMLElement {
  const part = (value: number): string => `${whole ? Math.min(100, (100 * value) / whole) : 0}%`;
  const element = h("span", { class: "bars", "aria-hidden": "true" }, h("span"), second === null ? null : h("span", { class: "second" }));
  const [upper, lower] = element.children as unknown as HTMLElement[];
  if (upper) upper.style.width = part(first);
  if (lower && second !== null) lower.style.width = part(second);
  return element;
}
