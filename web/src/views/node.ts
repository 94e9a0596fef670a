/** The panel of one node. */

import { get } from "../api.ts";
import { h } from "../dom.ts";
import { amount, short } from "../format.ts";
import type { NodeDetails } from "../models.ts";
import { bars, podLink, scroll } from "../parts.ts";
import { t } from "../texts.ts";

const SHOWN = 200;

export async function nodePanel(panel: HTMLElement, name: string, close: () => void): Promise<void> {
  panel.dataset["node"] = name;
  const button = h("button", { class: "close", type: "button", onclick: close, "aria-label": t("close") }, "✕");
  panel.replaceChildren(button, h("h2", {}, name), h("p", { class: "quiet" }, t("loading")));
  let view: NodeDetails;
  try {
    view = await get<NodeDetails>("node", { name });
  } catch (error) {
    panel.replaceChildren(button, h("h2", {}, name), h("p", { class: "error", role: "alert" }, String(error instanceof Error ? error.message : error)));
    return;
  }
  if (panel.dataset["node"] !== name) return; // another node was opened meanwhile
  const facts = [
    view.zone, view.unschedulable ? t("unschedulable") : "", view.measured ? "" : t("notMeasured"),
    view.metricAge === null ? "" : t("metricAge", short(view.metricAge)),
  ].filter(Boolean);
  panel.replaceChildren(
    button, h("h2", {}, view.name), h("div", { class: "badges" }, facts.map((each) => h("span", { class: "badge" }, each))),
    scroll(t("resource"), h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, t("resource")), h("th", { class: "number" }, t("requested")),
      h("th", { class: "number" }, t("measured")), h("th", { class: "number" }, t("allocatable")))),
    h("tbody", {}, view.amounts.map((each) => h("tr", {},
      h("td", {}, each.resource, bars(each.allocatable, each.requested, each.used)),
      h("td", { class: "number" }, amount(each.requested, each.unit)), h("td", { class: "number" }, amount(each.used, each.unit)),
      h("td", { class: "number" }, amount(each.allocatable, each.unit))))))),
    h("h3", {}, t("pendingHere")),
    view.opinions.length === 0 ? h("p", { class: "quiet" }, "–") : h("table", {}, h("tbody", {}, view.opinions.map((each) => h("tr", {},
      h("td", {}, podLink(each.pod)),
      h("td", {}, each.passed ? h("span", { class: "good" }, `✓ ${t("passes")}`)
        : h("span", {}, h("span", { class: "bad" }, `✗ ${each.plugin}${each.rule ? ` (${each.rule})` : ""}`), ` ${each.reason}`)))))),
    view.opinionsLeftOut ? h("p", { class: "quiet" }, t("moreLeftOut", view.opinionsLeftOut)) : "",
    h("h3", {}, t("podsHere", view.pods.length)),
    h("table", {}, h("tbody", {}, view.pods.slice(0, SHOWN).map((each) => h("tr", {}, h("td", {}, podLink(each.key)),
      h("td", {}, each.qosClass), h("td", { class: "number" }, amount(each.requests["cpu"] ?? 0, "milli-cores")),
      h("td", { class: "number" }, amount(each.requests["memory"] ?? 0, "bytes")))))),
    view.pods.length > SHOWN ? h("p", { class: "quiet" }, t("moreLeftOut", view.pods.length - SHOWN)) : "",
    view.taints.length ? h("details", { open: true }, h("summary", {}, t("taints")), h("ul", {}, view.taints.map((each) =>
      h("li", {}, `${each.key}${each.value ? `=${each.value}` : ""}:${each.effect}`)))) : "",
    h("details", {}, h("summary", {}, t("labels")), h("dl", { class: "pairs" }, Object.entries(view.labels).flatMap(([key, value]) =>
      [h("dt", {}, key), h("dd", {}, value)]))),
    h("details", {}, h("summary", {}, t("conditions")), h("dl", { class: "pairs" }, view.conditions.flatMap((each) =>
      [h("dt", {}, each.type), h("dd", {}, `${each.status} ${each.reason}`)]))),
  );
}
