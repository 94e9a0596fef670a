/** The playground: a draft is checked, evaluated and compared while it is written. */

import type { CompletionContext, CompletionResult } from "@codemirror/autocomplete";
import { ApiError, get, post } from "../api.ts";
import { NodeMap } from "../chart.ts";
import { type Child, debounced, enable, h } from "../dom.ts";
import { KeptDraft, storedDraft, storedFiles } from "../drafts.ts";
import type { Editor } from "../editor.ts";
import { codePoints } from "../format.ts";
import type { AnalysisView, CheckView, ColourView, CompletionView, DescriptionView, EffectView, EvaluationView, FileView, MapView, ClusterOverview, RenameView, TestsView } from "../models.ts";
import { analysedOf, analysisBar, analysisFailure, failed, faultList, nodeLink, podInput, podLink, scroll } from "../parts.ts";
import { patchOf } from "../patch.ts";
import type { Page } from "../page.ts";
import { paint, replace } from "../paint.ts";
import { link } from "../route.ts";
import { type Key, named as worded, t } from "../texts.ts";

const QUIET = 80;
const LISTED = 20;
/** CodeMirror's names for kinds of words, for their icons. */
const TYPES: Record<string, string> = { field: "property", value: "constant" };
const FIRST = `apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata:
  name: keep-off-busy-nodes
spec:
  params: {cpuPercent: 65}
  variables:
  - {name: cpu, expression: usage.cpu * 100 / allocatable.cpu}
  filter:
  - name: below-watermark
    expression: variables.cpu < params.cpuPercent
    messageExpression: "'cpu at ' + string(variables.cpu) + '%'"
  score:
  - {name: coolest-first, expression: "math.greatest(0, 100 - variables.cpu)"}
---
apiVersion: policy.koordinator.sh/v1alpha2
kind: PolicyTest
metadata: {name: keep-off-busy-nodes}
spec:
  fixtures:
    nodes:
      cool: {cpu: 10, usage: {cpu: 2}}
      hot: {cpu: 10, usage: {cpu: 7}}
    pods:
      web: {cpu: 1}
  cases:
  - name: a hot node is refused
    pod: web
    nodes: [cool, hot]
    filter:
      cool: pass
      hot: {fail: below-watermark, message: "cpu at 70%"}
`;

export async function playgroundView(page: Page): Promise<void> {
  const named = page.route.query["file"] ?? "";
  const [first, overview, loaded, { openEditor }] = await Promise.all([
    get<MapView>("map"), get<ClusterOverview>("overview"), named ? fileOf(named) : null, import("../editor.ts"),
  ]);
  let map = first;
  const gone = Boolean(named) && !loaded; // then the draft is a new file
  const file = gone ? "" : named;
  const draft = new KeptDraft(named, loaded ? loaded.text : gone ? "" : FIRST);
  let pod = page.route.query["pod"] ?? overview.waiting[0]?.pod ?? "";
  const text = draft.text;
  const notice = h("div", { role: "status" });
  const place = h("span", { class: "quiet" });
  const faults = h("div", { "aria-live": "polite" });
  const at = h("div");
  const atMap = new NodeMap({ height: 190, opened: (node) => page.go("map", { node }) });
  const verdict = h("p");
  const verdictMap = new NodeMap({ height: 190, opened: (node) => page.go("map", { node }) });
  const effect = h("div", { "aria-live": "polite" });
  const comparing = analysisBar(page);
  const tests = h("div", { "aria-live": "polite" });
  const holder = h("div", { class: "editor" });
  const renaming = h("div", { "aria-live": "polite" });
  const budget = h("input", { value: "", placeholder: "5 / 1%", size: 6 });
  const runEffect = h("button", { type: "button", class: "primary", onclick: () => void compare() }, t("runEffect"));
  const runTests = h("button", { type: "button", class: "primary", onclick: () => void test() }, t("runTests"));
  page.closing(() => { atMap.close(); verdictMap.close(); });

  page.show(
    h("h1", {}, t("playground")),
    h("div", { class: "tools" }, podInput(pod, (key) => { pod = key; address(); void evaluate(); }),
      h("button", { type: "button", onclick: () => download(".yaml", editor.text()) }, t("export")),
      h("button", { type: "button", title: t("patchHint"), onclick: () => download(".patch", patchOf(loaded?.text ?? "", editor.text(), path())) },
        t("exportPatch")),
      gone ? null : h("button", { type: "button", onclick: () => ask() }, loaded ? t("resetFile") : t("reset")), place),
    others(named), notice,
    h("div", { class: "playground" },
      h("div", {}, h("section", { class: "panel", "aria-label": t("draft") }, h("h2", {}, t("editor")), holder, renaming,
          h("p", { class: "quiet" }, t("editorKeys"))),
        h("section", { class: "panel" }, h("h2", {}, t("findings")), faults)),
      h("div", {}, h("section", { class: "panel" }, h("h2", {}, t("evaluation")), at, atMap.element),
        h("section", { class: "panel" }, h("h2", {}, t("verdicts")), verdict, verdictMap.element),
        h("section", { class: "panel" }, h("h2", {}, t("tests")), runTests, tests),
        h("section", { class: "panel" }, h("h2", {}, t("effect")), h("div", { class: "tools" }, runEffect, h("label", {}, t("maxMoved"), budget)), comparing.element, effect))),
  );

  const checkSoon = debounced(QUIET, () => void check());
  const editor: Editor = openEditor(holder, text, {
    saved: () => runTests.click(), rename: renamed, covered: (line) => t("outcomesShown", line.seen, line.goals),
    label: t("editor"), complete: completed, describe: described, moved: debounced(QUIET, () => void evaluate()),
    changed: (next) => {
      const [conflict, kept, changed] = [draft.conflict, draft.kept, draft.changed];
      draft.write(next); // at once: the page may be left
      if (conflict !== draft.conflict || kept !== draft.kept || changed !== draft.changed) say();
      checkSoon();
    },
  });
  page.closing(() => editor.close());
  const start = text.indexOf("expression:", text.indexOf("filter:"));
  if (start > 0) editor.reveal(text.slice(0, start).split("\n").length, 20, false);

  const heard = (event: StorageEvent): void => {
    const before = draft.text;
    if (event.storageArea !== localStorage || !draft.heard()) return;
    if (draft.text !== before) editor.replace(draft.text);
    say();
  };
  window.addEventListener("storage", heard);
  page.closing(() => window.removeEventListener("storage", heard));
  page.onBack(() => void again());
  page.onChange((changes) => { if (changes.restarted) void again(); });
  say(draft.changed && loaded ? h("p", {}, t("draftOfFile"), " ", draft.outdated ? h("span", { class: "warn" }, t("fileChanged"), " ") : null,
    button("discardDraft", discard)) : null);

  /** Checks the draft again when the console is back: its nodes may be others. */
  async function again(): Promise<void> {
    map = await get<MapView>("map").catch(() => map);
    if (page.current) await check();
  }

  function button(key: Key, call: () => void): HTMLElement {
    return h("button", { type: "button", onclick: call }, t(key));
  }

  /** Shows what is to be said of the draft as a whole: what is lost, who else writes it, and where it is. */
  function say(...parts: Child[]): void {
    paint(place, [named, loaded && !draft.changed ? t("asInFile") : t("saved")].filter(Boolean).join(" · "));
    paint(notice, gone ? h("p", { class: "warn" }, t("fileGone", named)) : null,
      draft.kept ? null : h("p", { class: "error" }, t("notKept")),
      draft.conflict ? h("p", { class: "error" }, t("otherTab"), " ",
        button("takeOther", () => { editor.replace(draft.takeOther()); say(); editor.focus(); }), " ",
        button("keepOwn", () => { draft.keepOwn(); say(); editor.focus(); })) : null, ...parts);
  }

  /** Begins again with the content of the file, or with the first text; an edit is lost only if somebody says so. */
  function ask(): void {
    if (!draft.changed) return discard();
    say(h("p", { class: "warn" }, file ? t("askDiscardFile", file) : t("askDiscard"), " ", button("discardDraft", discard), " ",
      button("keepDraft", () => { say(); editor.focus(); })));
    notice.querySelector<HTMLElement>("p:last-child button")?.focus();
  }

  function discard(): void {
    editor.replace(loaded ? loaded.text : FIRST);
    say();
    editor.focus();
  }

  function address(): void {
    page.replace("playground", { ...page.route.query, pod });
  }

  let checks = 0;
  let without = false; // it says that the draft has no test
  let unanswered = false; // it says that the console does not answer
  async function check(): Promise<void> {
    const number = ++checks;
    try {
      const found = await post<CheckView>("draft/check", { text: editor.text(), file });
      if (number !== checks || !page.current) return;
      editor.mark(found.faults);
      paint(faults, faultList(found.faults, (fault) => editor.reveal(fault.line, fault.column)));
      holder.dataset["checked"] = String(number);
      enable(runTests, found.tests > 0);
      if (found.tests === 0) paint(tests, h("p", { class: "quiet" }, t("noTests")));
      else if (without) paint(tests);
      without = found.tests === 0;
      if (unanswered) paint(at); // it answers again
      unanswered = false;
      if (!found.faults.some((fault) => fault.severity === "error")) await evaluate();
    } catch (error) {
      if (number === checks) paint(faults, failed(error));
    }
  }

  let evaluations = 0;
  async function evaluate(): Promise<void> {
    if (!pod) return;
    const number = ++evaluations;
    try {
      const source = editor.text();
      const found = await post<EvaluationView>("draft/evaluate", { text: source, file, pod, offset: codePoints(source, editor.offset()) });
      if (number !== evaluations || !page.current) return;
      if (!found.expression) paint(at, h("p", { class: "quiet" }, t("evaluateHint")));
      else paint(at, h("p", {}, h("code", {}, found.expression)), h("p", { class: "quiet" }, `${t("line", String(found.line))} · ${found.field}`),
        found.failure ? h("p", { class: "error" }, found.failure) : "");
      atMap.element.hidden = !found.colours;
      if (found.colours) atMap.show(map, found.colours);
      verdictMap.element.hidden = !found.verdicts;
      verdict.textContent = found.verdicts ? t("verdictOf", found.verdicts.passed, map.nodes.length) : "–";
      if (found.verdicts) {
        const classes = [t("verdictPasses"), ...found.verdicts.rules];
        const colours: ColourView = { expression: "verdicts", type: "", numbers: [], lowest: null, highest: null, classes,
          codes: found.verdicts.refusedBy.map((rule) => rule + 1), failed: 0, failure: "", layout: map.layout };
        verdictMap.show(map, colours);
      }
    } catch (error) {
      if (number !== evaluations || !page.current) return;
      // An invalid draft has its findings already.
      if (error instanceof ApiError && error.faults.length) return;
      unanswered = !(error instanceof ApiError);
      paint(at, failed(error));
    }
  }

  async function compare(): Promise<void> {
    paint(effect);
    try {
      const moved = budget.value.trim();
      const view = await comparing.run(() => post<AnalysisView>("effect/start", { text: editor.text(), file, budgets: moved ? { moved, pending: moved } : {} }), runEffect);
      if (!view) return;
      if (!view.effect) throw analysisFailure(view);
      paint(effect, analysedOf(view), ...effectParts(view.effect));
    } catch (error) {
      paint(effect, failed(error));
    }
  }

  async function test(): Promise<void> {
    paint(tests, h("p", { class: "quiet" }, t("loading")));
    try {
      const found = await post<TestsView>("draft/tests", { text: editor.text(), file });
      if (!page.current) return;
      const passed = found.cases.filter((each) => each.passed).length;
      paint(tests,
    h("p", { class: passed === found.cases.length ? "good" : "bad" }, t("testsPassed", passed, found.cases.length, found.coverage.toFixed(0))),
        h("ul", { class: "tree root" }, found.cases.map((each) => h("li", {}, h("span", { class: each.passed ? "good" : "bad" }, each.passed ? "✓ " : "✗ "),
          each.name, each.misses.length ? h("ul", { class: "tree" }, each.misses.map((miss) => h("li", {}, miss.about,
            h("div", { class: "good mono" }, `- ${miss.expected}`), h("div", { class: "bad mono" }, `+ ${miss.got}`)))) : null))));
      editor.cover(found.lines);
    } catch (error) {
      paint(tests, failed(error));
    }
  }

  async function completed(context: CompletionContext): Promise<CompletionResult | null> {
    const source = context.state.doc.toString();
    if (!context.explicit && !context.matchBefore(/[\w.]$/)) return null;
    try {
      const found = await post<CompletionView>("draft/complete", { text: source, offset: codePoints(source, context.pos) });
      const start = Array.from(source).slice(0, found.start).join("").length;
      return found.items.length ? { from: start, validFor: /^\w*$/, options: found.items.map((each) => ({ label: each.label, type: TYPES[each.kind] ?? each.kind,
        ...(each.detail ? { detail: each.detail } : {}), ...(each.doc ? { info: each.doc } : {}) })) } : null;
    } catch {
      return null; // completion is a help, and its absence no fault of the draft
    }
  }

  async function described(source: string, offset: number): Promise<string> {
    try {
      const found = await post<DescriptionView>("draft/describe", { text: source, offset: codePoints(source, offset) });
      return found.markdown.replace(/^```.*$\n?/gm, "").replace(/\*\*|`/g, "").trim();
    } catch {
      return "";
    }
  }

  /** The path of the draft in a patch: that of its file, or a new one that is named after the policy. */
  function path(): string {
    return (named || `policies/${title()}.yaml`).replace(/^\/+/, "");
  }

  function title(): string {
    return /^metadata:\s*(?:\{\s*|\n +)name: *["']?([a-z0-9.-]+)/m.exec(editor.text())?.[1] ?? "policy";
  }

  function download(ending: string, content: string): void {
    const address = URL.createObjectURL(new Blob([content], { type: "text/plain" }));
    h("a", { href: address, download: `${title()}${ending}` }).click();
    URL.revokeObjectURL(address);
  }

  /** Asks for the new name of what is at an offset, and replaces it everywhere in the draft. */
  function renamed(offset: number): void {
    const source = editor.text();
    const at = codePoints(source, offset);
    const input = h("input", { size: 24, autocomplete: "off", spellcheck: "false" });
    const problem = h("div");
    const end = (): void => { paint(renaming); editor.focus(); };
    const apply = async (): Promise<void> => {
      try {
        const found = await post<RenameView>("draft/rename", { text: source, offset: at, name: input.value.trim() });
        if (!found.places.length) throw new Error(t("nothingToRename"));
        if (editor.text() !== source) throw new Error(t("changedMeanwhile"));
        editor.replaceAll(found.places, input.value.trim());
        end();
      } catch (error) {
        paint(problem, failed(error));
      }
    };
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") void apply();
      if (event.key === "Escape") { event.stopPropagation(); end(); }
    });
    replace(renaming, h("div", { class: "tools" }, h("label", {}, t("newName"), input),
      h("button", { type: "button", class: "primary", onclick: () => void apply() }, t("rename"))), problem);
    input.focus();
  }

  await check();
}

/** The content of a file; null if it is gone and only a draft of it is left. */
async function fileOf(name: string): Promise<FileView | null> {
  try {
    return await get<FileView>("file", { name });
  } catch (error) {
    if (error instanceof ApiError && error.status === 404 && storedDraft(name)) return null;
    throw error;
  }
}

/** The way to the other drafts of this browser, and to a new one. */
function others(file: string): HTMLElement {
  const files = storedFiles().filter((each) => each && each !== file);
  const each = (name: string): HTMLElement => h("a", { class: "badge", href: link("playground", { file: name }) }, name || t("newDraft"));
  const links = [...(file ? [each("")] : []), ...files.map(each)];
  return h("p", { class: "badges" }, links.length ? [h("span", { class: "quiet" }, t("otherDrafts")), ...links] : null);
}

interface ExpressionFault { plugin: string; point: string; rule: string; message: string; times: number; example: string }
interface Change { pod: string; old?: string | null; new?: string | null; oldScore?: number | null; newScore?: number | null; cause?: { plugin: string; rule: string; reason: string } }

function effectParts(found: EffectView): HTMLElement[] {
  const counts = Object.entries((found.difference["counts"] ?? {}) as Record<string, number>).filter(([, value]) => value);
  const added = (found.difference["added"] ?? {}) as { faults?: ExpressionFault[] };
  const faults = (added.faults ?? []).slice(0, LISTED);
  const moved = ((found.difference["moved"] ?? []) as Change[]).slice(0, LISTED);
  return [
    h("p", { class: "quiet" }, found.replaced.length ? t("replaces", found.replaced.join(", ")) : t("addsTo")),
    ...found.budgets.map((each) => h("p", { class: each.within ? "good" : "bad" },
      `${each.within ? "✓" : "✗"} ${t("budget", each.name, each.count, each.of, each.budget)} (${each.within ? t("within") : t("over")})`)),
    counts.length ? h("table", {}, h("tbody", {}, counts.map(([name, value]) => h("tr", {}, h("td", {}, worded(name)), h("td", { class: "number" }, value)))))
      : h("p", { class: "good" }, t("noChange")),
    moved.length ? scroll(t("moved"), h("table", { class: "roomy" }, h("caption", {}, t("moved")), h("thead", {}, h("tr", {}, ["pod", "before", "after", "cause"].map((key) => h("th", {}, worded(key))))),
      h("tbody", {}, moved.map((each) => h("tr", {}, h("td", {}, podLink(each.pod)), h("td", {}, each.old ? nodeLink(each.old) : "–"),
        h("td", {}, each.new ? nodeLink(each.new) : "–"), h("td", {}, causeOf(each))))))) : h("div"),
    faults.length ? scroll(t("newFaults"), h("table", { class: "roomy" }, h("caption", {}, t("newFaults")), h("thead", {}, h("tr", {}, (["name", "why", "example"] as const).map((key) => h("th", {}, t(key))), h("th", { class: "number" }, t("times")))),
      h("tbody", {}, faults.map((each) => h("tr", {}, h("td", {}, [each.plugin, each.rule || each.point].filter(Boolean).join("/")), h("td", {}, each.message), h("td", {}, each.example),
        h("td", { class: "number" }, each.times)))))) : h("div"),
  ];
}

/** Why a pod changes its node: the refusal of the old one, or the better score of the new one. */
function causeOf(each: Change): string {
  if (each.cause) return [each.cause.plugin, each.cause.rule, each.cause.reason].filter(Boolean).join(" ");
  return each.newScore === null || each.newScore === undefined ? t("otherScore") : t("scoresMore", each.newScore, each.oldScore ?? "–");
}
