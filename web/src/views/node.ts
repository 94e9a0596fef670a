/** The panel of one node. */

import { get } from "../api.ts";
import { type Child, h } from "../dom.ts";
import { amount, short } from "../format.ts";
import type { NodeDetails, NodePolicies, NodePolicy } from "../models.ts";
import { paint } from "../paint.ts";
import { bars, later, podLink, scroll, tree } from "../parts.ts";
import { link } from "../route.ts";
import { coded, t } from "../texts.ts";

const SHOWN = 200;
/** The number of pending pods up to which they are shown without being asked for. */
const FEW = 12;

/** Shows a node in a panel; `close` is called by its button. */
export async function nodePanel(panel: HTMLElement, name: string, close: () => void): Promise<void> {
  panel.dataset["node"] = name;
  const show = (...parts: Child[]): void => {
    if (panel.dataset["node"] !== name) return; // another node was opened meanwhile
    paint(panel, h("button", { class: "close", type: "button", onclick: close, "aria-label": t("close") }, "✕"), h("h2", {}, name),
      h("div", { "data-key": name }, parts));
  };
  show(h("p", { class: "quiet" }, t("loading")));
  try {
    show(...nodeParts(await get<NodeDetails>("node", { name })));
  } catch (error) {
    show(h("p", { class: "error", role: "alert" }, String(error instanceof Error ? error.message : error)));
  }
}

function nodeParts(view: NodeDetails): Child[] {
  const facts = [
    view.zone, view.unschedulable ? t("unschedulable") : "", view.measured ? "" : t("notMeasured"),
    view.metricAge === null ? "" : t("metricAge", short(view.metricAge)),
  ].filter(Boolean);
  return [
    h("div", { class: "badges" }, facts.map((each) => h("span", { class: "badge" }, each)),
      h("a", { class: "badge", href: link("node-time", { name: view.name }) }, t("nodeOverTime"))),
    scroll(t("resource"), h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, t("resource")), h("th", { class: "number" }, t("requested")),
      h("th", { class: "number" }, t("measured")), h("th", { class: "number" }, t("allocatable")))),
    h("tbody", {}, view.amounts.map((each) => h("tr", {},
      h("td", {}, each.resource, bars(each.allocatable, each.requested, each.used)),
      h("td", { class: "number" }, amount(each.requested, each.unit)), h("td", { class: "number" }, amount(each.used, each.unit)),
      h("td", { class: "number" }, amount(each.allocatable, each.unit))))))),
    later(t("policiesSay"), () => opinions(view.name)),
    view.devices.length ? h("details", { open: true }, h("summary", {}, t("devices", view.devices.length), view.deviceModel ? ` ${view.deviceModel}` : ""),
      scroll(t("devices", view.devices.length), h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, t("resource")), h("th", { class: "number" }, t("free")),
        h("th", {}, t("held")))), h("tbody", {}, view.devices.map((each) => h("tr", {}, h("td", {}, `${each.type} ${each.minor}`,
        each.healthy ? null : h("span", { class: "bad" }, ` ✗ ${t("unhealthy")}`), each.free === null ? null : bars(100, 100 - each.free, null)),
      h("td", { class: "number" }, each.free === null ? "–" : amount(each.free, "%")), h("td", {}, each.pods.map((key) => h("div", {}, podLink(key)))))))))) : "",
    h("details", { open: view.opinions.length <= FEW }, h("summary", {}, `${t("pendingHere")} (${view.opinions.length + view.opinionsLeftOut})`),
    view.opinions.length === 0 ? h("p", { class: "quiet" }, "–") : h("table", {}, h("tbody", {}, view.opinions.map((each) => h("tr", {},
      h("td", {}, podLink(each.pod)),
      h("td", {}, each.passed ? h("span", { class: "good" }, `✓ ${t("passes")}`)
        : h("span", {}, h("span", { class: "bad" }, `✗ ${each.plugin}${each.rule ? ` (${each.rule})` : ""}`), ` ${each.reason}`)))))),
    view.opinionsLeftOut ? h("p", { class: "quiet" }, t("moreLeftOut", view.opinionsLeftOut)) : ""),
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
  ];
}

/** What each policy says of a node: those that say something first. */
async function opinions(name: string): Promise<HTMLElement[]> {
  const view = await get<NodePolicies>("node-policies", { name });
  const text = (each: NodePolicy): HTMLElement => h("td", {},
    each.refused ? h("span", { class: "bad" }, `✗ ${t("refusesOf", each.refused, each.pods)}: `) : null,
    each.role ? h("strong", {}, each.reason ? `${each.role}: ` : each.role) : null, each.reason,
    each.score === null ? null : h("span", {}, each.reason ? " · " : "", t("meanScore", short(each.score))),
    !each.refused && !each.role && each.score === null ? h("span", { class: "quiet" }, "–") : null);
  return [
    scroll(t("policiesSay"), h("table", {}, h("tbody", {}, view.policies.map((each) => h("tr", {},
      h("td", {}, each.document ? h("a", { href: link("policies", { name: each.policy }) }, each.policy) : each.policy,
        each.enforcement === "Enforce" ? null : h("span", { class: "badge" }, coded("enforcement", each.enforcement))), text(each)))))),
    ...(view.evicted.length ? [h("h4", {}, t("evictedFromHere")), h("table", {}, h("tbody", {}, view.evicted.map((each) =>
      h("tr", {}, h("td", {}, podLink(each.pod)), h("td", {}, each.plugin), h("td", {}, each.reason)))))] : []),
    h("h4", {}, t("qosSays")), view.qos ? tree(view.qos) : h("p", { class: "quiet" }, t("notMeasured")),
  ];
}
