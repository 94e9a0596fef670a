/** The cluster: the map of all nodes, and the panel of one. */

import { ApiError, get, post } from "../api.ts";
import { NodeMap } from "../chart.ts";
import { debounced, h, throttled } from "../dom.ts";
import { amount } from "../format.ts";
import type { ColourView, MapView } from "../models.ts";
import { podInput } from "../parts.ts";
import type { Page } from "../page.ts";
import { paint } from "../paint.ts";
import { named, t } from "../texts.ts";
import { nodePanel } from "./node.ts";

const DEFAULT = "cpuRequested";
const OWN = "own";
const LISTED = 20;
const REFRESH = 3000;

export async function mapView(page: Page): Promise<void> {
  const query = page.route.query;
  const first = query["expression"];
  // Both requests are under way at once: the default colouring is known before the map is.
  const grouping = query["group"] ?? "zone";
  const [[known, ungrouped], colours] = await Promise.all([
    grouped(grouping), first ? null : get<ColourView>("colour", { expression: "requested.cpu * 100 / allocatable.cpu" }),
  ]);
  let view = known;
  const chosen = first ? (view.colourings.find((each) => each.expression === first)?.name ?? OWN) : DEFAULT;
  let unit = view.colourings.find((each) => each.name === chosen)?.unit ?? "";
  let pod = query["pod"] ?? "";
  const map = new NodeMap({ height: Math.max(300, window.innerHeight - 260), opened: (node) => void open(node), selected: query["node"] ?? "" });
  page.closing(() => map.close());

  const refresh = throttled(REFRESH, () => void recolour());
  page.closing(refresh.cancel);

  const problem = h("div", { role: "alert" });
  const refused = ungrouped ? h("p", { class: "error", role: "alert" }, ungrouped.message, h("br"), t("groupedInstead", named(known.grouping))) : null;
  const ranking = h("div");
  const select = h("select", { onchange: () => pick(select.value) },
    view.colourings.map((each) => h("option", { value: each.name, selected: each.name === chosen }, named(each.name))),
    h("option", { value: OWN, selected: chosen === OWN }, t("ownExpression")));
  const input = h("input", { value: first ?? view.colourings.find((each) => each.name === DEFAULT)?.expression ?? "", spellcheck: "false",
    autocomplete: "off", oninput: debounced(60, () => typed()) });
  const group = h("select", { onchange: () => page.go("map", { ...page.route.query, group: group.value }) },
    view.groupings.map((each) => h("option", { value: each, selected: each === view.grouping }, named(each))),
    view.groupingsLeftOut ? h("option", { disabled: true }, t("moreLeftOut", view.groupingsLeftOut)) : null);
  const panel = h("aside", { class: "panel", hidden: true, "aria-label": t("node") });
  const split = h("div", { class: "split" }, h("div", {}, refused, problem, map.element, ranking), panel);

  function pick(name: string): void {
    const found = view.colourings.find((each) => each.name === name);
    if (!found) {
      input.focus();
      return;
    }
    input.value = found.expression;
    void recolour();
  }

  function typed(): void {
    select.value = view.colourings.find((each) => each.expression === input.value)?.name ?? OWN;
    void recolour();
  }

  const title = h("h1");
  function entitle(): void {
    paint(title, `${t("map")} `, h("span", { class: "quiet" }, t("nodesCount", view.nodes.length)));
  }

  let asked = 0;
  async function recolour(): Promise<void> {
    const number = ++asked;
    const expression = input.value.trim();
    if (!expression) return;
    unit = view.colourings.find((each) => each.expression === expression)?.unit ?? "";
    page.replace("map", { ...page.route.query, expression, pod });
    try {
      const found = await post<ColourView>("colour", { expression, pod });
      if (number !== asked || !page.current) return; // a newer expression is on its way
      if (found.layout !== view.layout) { // nodes came or went
        const next = await get<MapView>("map", { group: view.grouping });
        if (number !== asked || !page.current) return;
        view = next;
        entitle();
        map.show(view, found.layout === view.layout ? found : null, unit);
        if (found.layout !== view.layout) return await recolour();
      }
      paint(problem);
      map.recolour(found, unit);
      rank(found);
    } catch (error) {
      if (number !== asked) return;
      const faults = error instanceof ApiError ? error.faults : [];
      paint(problem, h("div", { class: "error" }, error instanceof Error ? error.message : String(error),
        faults.map((each) => (each.help ? h("div", { class: "quiet" }, each.help) : null))));
    }
  }

  function rank(found: ColourView): void {
    let rows = Array.from(view.nodes.keys());
    if (found.numbers.length) {
      rows = rows.filter((row) => found.numbers[row] !== null).sort((a, b) => (found.numbers[b] ?? 0) - (found.numbers[a] ?? 0));
    } else {
      const seen = new Map<number, number>();
      rows = rows.filter((row) => {
        const code = found.codes[row] ?? -1;
        seen.set(code, (seen.get(code) ?? 0) + 1);
        return (seen.get(code) ?? 0) <= 3;
      });
    }
    const text = (row: number): string => found.numbers.length ? amount(found.numbers[row] ?? null, unit) : (found.classes[found.codes[row] ?? -1] ?? "–");
    paint(ranking, h("details", {}, h("summary", {}, found.numbers.length ? t("highest") : t("first")),
      h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, t("node")), h("th", { class: "number" }, t("value")))),
        h("tbody", {}, rows.slice(0, LISTED).map((row) => h("tr", {},
          h("td", {}, h("button", { class: "icon", type: "button", onclick: () => void open(view.nodes[row]!) }, view.nodes[row]!)),
          h("td", { class: "number" }, text(row))))))));
  }

  async function open(node: string): Promise<void> {
    page.replace("map", { ...page.route.query, node });
    map.select(node);
    split.classList.add("open");
    panel.hidden = false;
    await nodePanel(panel, node, close);
  }

  function close(): void {
    const { node: _, ...rest } = page.route.query;
    page.replace("map", rest);
    if (panel.contains(document.activeElement)) map.focus(); // what had the focus is hidden
    panel.hidden = true;
    split.classList.remove("open");
    map.select("");
  }

  entitle();
  page.onChange((changes) => { if (changes.cluster) refresh(); });
  page.onEscape(() => (panel.hidden ? undefined : close()));
  page.show(
    title,
    h("div", { class: "tools" }, h("label", {}, t("colourBy"), select), h("label", { class: "wide" }, t("expression"), input),
      podInput(pod, (key) => { pod = key; void recolour(); }), h("label", {}, t("groupBy"), group)),
    split,
  );
  map.show(view, colours, unit);
  if (colours) rank(colours);
  else await recolour();
  if (query["node"]) await open(query["node"]);
}

/** The map in groups; in those of zones, with the reason, where nodes cannot be grouped so. */
async function grouped(group: string): Promise<[MapView, ApiError | null]> {
  try {
    return [await get<MapView>("map", { group }), null];
  } catch (error) {
    if (!(error instanceof ApiError) || ![400, 404].includes(error.status) || group === "zone") throw error;
    return [await get<MapView>("map", { group: "zone" }), error];
  }
}
