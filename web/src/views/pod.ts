/** A pod: the decision matrix, scores stacked by plugin, and why. */

import { ApiError, get } from "../api.ts";
import { swatch } from "../chart.ts";
import { type Child, h } from "../dom.ts";
import { amount, short } from "../format.ts";
import type { MatrixRow, ClusterOverview, EvictionView, PodNodeView, PodView, RecordedDecisionView, WaitingView } from "../models.ts";
import type { Page } from "../page.ts";
import { paint } from "../paint.ts";
import { classColour } from "../palette.ts";
import { failed, later, nodeLink, podLink, rows, scroll, tree, withRest } from "../parts.ts";
import { pastTime } from "../route.ts";
import { named, t } from "../texts.ts";
import { shown } from "../time-axis.ts";
import { decisionText } from "./time.ts";

const SHOWN = 60;
/** Where the explanation is above the matrix, not beside it. */
const NARROW = matchMedia("(max-width: 900px)");

export async function podView(page: Page): Promise<void> {
  const key = page.route.query["key"];
  if (!key) return choose(page);
  const view = await get<PodView>("pod", { key });
  const refusing = view.filters.flatMap((each, number) => (each.refused ? [number] : []));
  const silent = view.filters.filter((each) => !each.refused).map((each) => each.name);
  const weights = view.scorers.map((each) => each.weight);
  const most = Math.max(1, ...view.rows.map((row) => row.total ?? 0));
  const why = h("section", { class: "panel why", "aria-live": "polite", "aria-label": t("why") });
  const body = h("tbody");
  const queue = h("div");
  let shown = 0;
  const more = h("button", { type: "button", onclick: () => {
    const next = shown;
    append();
    if (more.hidden) body.children[next]?.querySelector("button")?.focus(); // what had the focus is hidden
  } });

  function append(): void {
    body.append(...view.rows.slice(shown, shown + SHOWN).map(line));
    shown = Math.min(view.rows.length, shown + SHOWN);
    more.hidden = shown === view.rows.length;
    more.textContent = t("showMore", Math.min(SHOWN, view.rows.length - shown));
  }

  function line(row: MatrixRow): HTMLElement {
    const first = row.refused[0];
    const refused = first === undefined ? null : view.filters[first];
    const cells = refusing.map((number) => {
      const [word, text] = row.refused.includes(number) ? ["bad", "✗"] : row.watched.includes(number) ? ["warn", "!"] : ["good", "·"];
      return h("td", { class: `${word} cell`, title: view.filters[number]!.name }, text);
    });
    const element = h("tr", { class: `pick${row.node === view.chosen ? " chosen" : ""}`, "aria-selected": "false" },
      h("td", {}, h("button", { class: "icon", type: "button", onclick: () => void explain(row.node) }, row.node),
        row.node === view.chosen ? h("span", { class: "badge good" }, `✓ ${t("chosen")}`) : null),
      h("td", { class: refused || view.refusedWhole ? "refuser" : "" }, refused ? h("span", { class: "bad" }, refused.name) : view.refusedWhole ? h("span", { class: "bad" }, view.refusedWhole) : stack(row)),
      h("td", { class: "number" }, row.total === null ? "" : row.total), cells);
    element.dataset["node"] = row.node;
    return element;
  }

  function stack(row: MatrixRow): HTMLElement {
    const text = row.scores.map((score, number) => `${view.scorers[number]!.name} ${score}×${weights[number]}`).join(", ");
    const element = h("div", { class: "stack", role: "img", "aria-label": text, title: text });
    for (const [number, score] of row.scores.entries()) {
      const part = h("span");
      part.style.width = `${(100 * score * weights[number]!) / most}%`;
      part.style.background = classColour(number, "");
      element.append(part);
    }
    return element;
  }

  async function explain(node: string): Promise<void> {
    page.replace("pod", { ...page.route.query, key: key!, node });
    for (const each of body.children) each.setAttribute("aria-selected", String((each as HTMLElement).dataset["node"] === node));
    why.classList.add("first");
    let said: Child[];
    try {
      const found = await get<PodNodeView>("pod-node", { key: key!, node });
      said = [tree(found.explanation, ["pod"]), h("p", {}, nodeLink(node))];
    } catch (error) {
      said = [failed(error)];
    }
    if (page.route.query["node"] !== node) return; // another node was chosen meanwhile, or none
    paint(why, h("button", { class: "close", type: "button", "aria-label": t("close"), onclick: general }, "✕"), h("h2", {}, t("whyNode", node)), said);
    if (NARROW.matches) why.scrollIntoView({ block: "start" });
  }

  function general(): void {
    const row = [...body.children].find((each) => each.getAttribute("aria-selected") === "true");
    if (why.contains(document.activeElement)) row?.querySelector("button")?.focus();
    else if (why.classList.contains("first") && NARROW.matches) row?.scrollIntoView({ block: "center" });
    why.classList.remove("first");
    page.replace("pod", { ...page.route.query, key: key!, node: "" });
    for (const each of body.children) each.setAttribute("aria-selected", "false");
    paint(why, h("h2", {}, t("why")), tree(view.explanation, ["pod", "scores"]));
  }

  const requests = Object.entries(view.requests).filter(([, value]) => value).map(([name, value]) =>
    `${name} ${amount(value, name.endsWith("cpu") ? "milli-cores" : name.endsWith("memory") ? "bytes" : "")}`);
  const badges: Child[] = [view.priorityBand, view.qosClass, `${t("profile")} ${view.profile}`, `${t("request")} ${requests.join(", ") || t("none")}`]
    .filter(Boolean).map((each) => h("span", { class: "badge" }, each));
  page.show(
    h("h1", {}, view.key),
    h("div", { class: "badges" }, badges),
    h("p", {}, view.chosen ? h("strong", { class: "good" }, "✓ ", t("wouldRun", view.chosen)) : h("strong", { class: "bad" }, "✗ ", t("noNode")),
      ` · ${t("passedOf", view.passed, view.rows.length)}`, view.node ? ` · ${t("isOn", view.node)}` : null),
    view.message ? h("p", { class: "error" }, view.message) : "",
    queue,
    view.node ? h("section", { class: "panel" }, later(t("wouldItBeEvicted"), () => eviction(view.key))) : "",
    h("div", { class: "split open" },
      h("section", { class: "panel", "aria-label": t("matrix") }, h("h2", {}, t("matrix")),
        view.scorers.length ? h("div", { class: "legend" }, view.scorers.map((each, number) => each.weight ? h("span", {}, swatch(classColour(number, "")), `${each.name} ×${each.weight}`) : null)) : null,
        scroll(t("matrix"), h("table", { class: "matrix" }, h("thead", {}, h("tr", {}, h("th", {}, t("node")),
          h("th", {}, `${t("scores")} / ${t("refusedFirst")}`), h("th", { class: "number" }, t("total")),
          refusing.map((number) => h("th", { class: "filter", title: view.filters[number]!.origin }, h("span", {}, view.filters[number]!.name), " ", h("span", { class: "quiet" }, short(view.filters[number]!.refused)))))), body)),
        more,
        silent.length ? h("details", {}, h("summary", {}, t("allPassed", silent.length)), silent.join(", ")) : null),
      why),
  );
  page.onEscape(general);
  append();
  if (pastTime()) await asRecorded(page, key);
  else if (!view.node) void waiting(view.key).then((found) => { if (page.current) paint(queue, ...found); }).catch(() => undefined); // a console that is away has no queues
  const node = page.route.query["node"];
  if (node) await explain(node);
  else general();
}

/** What was decided about the pod at that time, beside what the console's policies decide. */
async function asRecorded(page: Page, key: string): Promise<void> {
  const found = await get<RecordedDecisionView>("recorded-decision", { key });
  const decision = found.decision;
  page.insert(".split", h("section", { class: "panel", id: "as-recorded", "aria-label": t("recordedDecision") }, h("h2", {}, t("recordedDecision")),
    decision === null ? h("p", { class: "quiet" }, t("noRecordedDecision"))
      : h("p", {}, decision.node === null ? h("strong", { class: "bad" }, `✗ ${t("noNode")}`) : h("span", { class: "good" }, "✓ ", nodeLink(decision.node)),
        ` · ${t("decidedAt", shown(decision.time))} · ${t("byGeneration", String(decision.generation))} · ${decisionText(decision)}`)));
}

/** The pod in the queues of running schedulers; nothing without one. */
async function waiting(key: string): Promise<HTMLElement[]> {
  try {
    const view = await get<WaitingView>("waiting", { key });
    return view.pods.map((each) => h("section", { class: "panel" }, h("h2", {}, t("queued")), h("div", { class: "badges" },
      [named(`part_${each.part}`), t("waitsFor", short(Math.round(each.seconds))), `${each.attempts} ${t("attempts")}`,
        each.backoffSeconds === null ? "" : t("backoff", short(Math.ceil(each.backoffSeconds))), each.nominated ? t("nominated", each.nominated) : "",
        ...withRest(each.plugins, each.pluginsLeftOut), ...withRest(each.gates, each.gatesLeftOut), each.quota, each.gang].filter(Boolean).map((text) => h("span", { class: "badge" }, text))),
    each.reason ? h("p", {}, each.reason) : "", h("p", { class: "quiet" }, each.server)));
  } catch (error) {
    if (error instanceof ApiError) return []; // a console without servers
    throw error;
  }
}

async function eviction(key: string): Promise<HTMLElement[]> {
  const view = await get<EvictionView>("eviction", { key });
  return [h("p", {}, h("strong", { class: view.evicted ? "bad" : "good" }, view.evicted ? t("evictedYes") : t("evictedNo"))),
    tree(view.explanation, ["pod", "choice"])];
}

async function choose(page: Page): Promise<void> {
  const view = await get<ClusterOverview>("overview");
  page.show(h("h1", {}, t("selectPod")), h("p", { class: "quiet" }, t("selectPodHint")),
    view.waiting.length ? h("p", { class: "quiet" }, t("eachAlone")) : null,
    h("div", { class: "panel" }, rows(t("waiting"), [{ text: t("pending") }, { text: t("waitingReason") }], view.waiting.map((each) => h("tr", {},
      h("td", { class: "name" }, podLink(each.pod)), h("td", { class: "reason" }, each.node === null ? each.message : nodeLink(each.node))))),
    view.waitingLeftOut ? h("p", { class: "quiet" }, t("moreLeftOut", view.waitingLeftOut)) : null));
}
