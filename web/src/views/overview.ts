/** The overview: nodes, pods, policies, and what waits. */

import { get } from "../api.ts";
import { h } from "../dom.ts";
import { amount, short } from "../format.ts";
import type { ClusterOverview } from "../models.ts";
import type { Page } from "../page.ts";
import { bars, nodeLink, podLink, scroll } from "../parts.ts";
import { link } from "../route.ts";
import { t } from "../texts.ts";

const KINDS = ["SchedulerPlugin", "QoSPlugin", "DeschedulerPlugin", "PolicyParams", "PolicyTest"];

export async function overviewView(page: Page): Promise<void> {
  const view = await get<ClusterOverview>("overview");
  const count = (value: number, text: string): HTMLElement => h("div", {}, h("span", { class: "big" }, short(value)), ` ${text}`);
  page.show(
    h("h1", {}, t("overview"), " ", h("span", { class: "quiet" }, `${t("from", view.source)} · ${t("at", view.now)}`)),
    view.lacking.length ? h("p", { class: "error" }, t("lacking", view.lacking.join(", "))) : "",
    h("div", { class: "cards" },
      h("section", { class: "panel" }, h("h2", {}, t("nodesCard")), count(view.nodes, ""), h("p", { class: "quiet" },
        `${short(view.measured)} ${t("measured")}, ${short(view.unschedulable)} ${t("unschedulable")}`), h("a", { href: link("map") }, t("map"))),
      h("section", { class: "panel" }, h("h2", {}, t("podsCard")), count(view.running, t("running")), count(view.pending, t("pending"))),
      h("section", { class: "panel" }, h("h2", {}, t("generation")), KINDS.map((kind) => [kind, view.policies[kind] ?? 0] as const).filter(([, number]) => number).map(([kind, number]) => h("div", {}, `${number} ${kind}`)),
        h("p", {}, h("span", { class: view.errors ? "bad" : "good" }, t("errors", view.errors)), ", ",
          h("span", { class: view.warnings ? "warn" : "good" }, t("warnings", view.warnings))),
        h("p", { class: "quiet" }, t("policyHash", view.digest)), h("a", { href: link("policies") }, t("policies"))),
      h("section", { class: "panel wide" }, h("h2", {}, t("utilization")), scroll(t("utilization"), h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, t("resource")),
        h("th", { class: "number" }, t("requested")), h("th", { class: "number" }, t("measured")), h("th", { class: "number" }, t("allocatable")))),
      h("tbody", {}, view.gauges.map((each) => h("tr", {}, h("td", {}, each.resource, bars(each.allocatable, each.requested, each.used)),
        h("td", { class: "number" }, amount(each.requested, each.unit)), h("td", { class: "number" }, amount(each.used, each.unit)),
        h("td", { class: "number" }, amount(each.allocatable, each.unit))))))))),
    h("section", { class: "panel" }, h("h2", {}, `${t("waiting")} (${view.pending})`),
      h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, t("pod")), h("th", {}, t("waitingReason")))),
        h("tbody", {}, view.waiting.map((each) => h("tr", {}, h("td", {}, podLink(each.pod)),
          h("td", {}, each.node === null ? h("span", {}, h("span", { class: "bad" }, `✗ ${t("noNode")}: `), each.message) : nodeLink(each.node)))))),
      view.waitingLeftOut ? h("p", { class: "quiet" }, t("moreLeftOut", view.waitingLeftOut)) : null),
  );
}
