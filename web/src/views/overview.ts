/** The overview: running servers with alerts and figures over the last minutes, nodes, pods, policies, and what waits. */

import { ApiError, current, get } from "../api.ts";
import { type Child, h, latest, throttled } from "../dom.ts";
import { amount, duration, short } from "../format.ts";
import type { ClusterOverview, KindAge, ServerChart, ServerLine, ServersView, WaitingView } from "../models.ts";
import type { Page } from "../page.ts";
import { paint } from "../paint.ts";
import { bars, leftOut, nodeLink, podLink, rows, withRest } from "../parts.ts";
import { link, pastTime } from "../route.ts";
import { spark } from "../spark.ts";
import { coded, named, t } from "../texts.ts";

const KINDS = ["SchedulerPlugin", "QoSPlugin", "DeschedulerPlugin", "PolicyParams", "PolicyTest"];
const CLUSTER_REFRESH = 3000;
/** Beyond so many seconds without news a kind of a watched cluster is old: it is heard of once a minute. */
const OLD = 120;

export async function overviewView(page: Page): Promise<void> {
  const [servers, cluster] = [h("div", { class: "part" }), h("div", { class: "part" })];
  const title = h("h1", {}, t("overview"));
  const serversNow = latest(() => Promise.all([permitted<ServersView>("servers"), permitted<WaitingView>("waiting")]));
  const clusterNow = latest(() => get<ClusterOverview>("overview"));

  async function showServers(): Promise<void> {
    const found = pastTime() ? null : await serversNow();
    if (!found) return;
    const [view, waiting] = found;
    paint(servers, view?.servers.length ? serverParts(view, waiting) : []);
  }

  async function showCluster(): Promise<void> {
    const view = await clusterNow();
    if (!view) return;
    paint(title, t("overview"), " ", h("span", { class: "quiet" }, `${t("from", view.source)} · ${t("at", view.now)}`));
    paint(cluster, clusterParts(view));
  }

  const again = throttled(CLUSTER_REFRESH, () => void showCluster().catch(() => undefined)); // the next change comes
  page.closing(again.cancel);
  page.onChange((changes) => {
    if (changes.servers) void showServers().catch(() => undefined);
    if (changes.cluster && !pastTime()) again();
  });
  await Promise.all([showServers(), showCluster()]);
  page.show(title, servers, cluster);
}

/** A view, or null for a user who may not see it. */
async function permitted<T>(view: string): Promise<T | null> {
  try {
    return await current<T>(view);
  } catch (error) {
    if (error instanceof ApiError && error.status === 403) return null;
    throw error;
  }
}

function serverParts(view: ServersView, waiting: WaitingView | null): Child[] {
  const refused = view.servers.flatMap((server) => server.refused.map((fault) => ({ server, fault })));
  return [
    view.charts.length ? h("div", { class: "cards", "data-key": "charts" }, view.charts.map((each) => chartCard(view, each))) : null,
    alerts(view),
    h("section", { class: "panel", "data-key": "servers" }, h("h2", {}, `${t("servers")} `, h("span", { class: "quiet" }, t("serversEvery", view.interval))),
      view.disagreeing.length ? h("p", { class: "error" }, t("disagree", view.disagreeing.join(", "))) : h("p", { class: "good" }, `✓ ${t("agree")}`),
      rows(t("servers"), [{ text: t("server") }, { text: t("state") }, { text: t("generationHash") }, { text: t("knownSince") }, { text: t("restarts"), number: true }],
        view.servers.map(serverRow))),
    refused.length ? h("section", { class: "panel", "data-key": "refused" }, h("h2", {}, t("refusedPolicies")), h("ul", { class: "plain" }, refused.map(({ server, fault }) => h("li", {},
      h("span", { class: `mark ${fault.severity === "error" ? "bad" : "warn"}` }, coded("severity", fault.severity)),
      h("span", { class: "mono" }, fault.line ? `${fault.file}:${fault.line}` : fault.file), " ", fault.message,
      fault.help ? h("span", { class: "quiet" }, ` ${fault.help}`) : null, h("br"), h("small", { class: "quiet" }, server.endpoint)))),
    leftOut(view.servers.reduce((sum, server) => sum + server.refusedLeftOut, 0))) : null,
    waiting?.known ? waitingPanel(waiting) : null,
  ];
}

function value(number: number | null | undefined, unit: string): string {
  if (number === null || number === undefined) return "–";
  if (unit === "seconds") return duration(number);
  if (unit === "per-second") return t("perSecond", short(number));
  return unit === "per-minute" ? t("perMinute", short(number)) : short(number);
}

/** A large number with a small unit. */
function figure(number: number | null | undefined, unit: string): Child[] {
  const [large, small] = value(number, unit === "seconds" ? unit : "").split(" ");
  const word = unit === "per-second" ? t("perSecond", "") : unit === "per-minute" ? t("perMinute", "") : (small ?? "");
  return [h("span", { class: "big" }, large), ` ${word.trim()}`];
}

function chartCard(view: ServersView, chart: ServerChart): HTMLElement {
  const name = named(`chart_${chart.name}`);
  const known = chart.points.filter((each): each is number => each !== null);
  const last = chart.name.startsWith("decision") ? known.at(-1) : chart.points.at(-1); // a round without decisions has none
  const label = t("chartLabel", name, value(last, chart.unit), value(Math.min(...known), chart.unit), value(Math.max(...known), chart.unit), duration(-(view.times[0] ?? 0)));
  return h("section", { class: "panel", "data-key": chart.name }, h("h2", {}, name), h("div", {}, figure(last, chart.unit)),
    spark(view.times, chart.points, label));
}

function alerts(view: ServersView): HTMLElement {
  return h("section", { class: "panel", "data-key": "alerts" }, h("h2", {}, t("alerts")), view.alerts.length ? h("ul", { class: "plain" }, view.alerts.map((each) => h("li", {},
    h("span", { class: `mark ${!each.firing ? "quiet" : each.severity === "critical" ? "bad" : "warn"}` }, each.firing ? coded("severity", each.severity) : t("notYet")),
    h("strong", {}, each.name), " ", each.summary, " ", h("small", { class: "quiet" }, `${each.server} ${t("since", duration(each.seconds))}`))))
    : h("p", { class: "good" }, `✓ ${t("noAlerts")}`), leftOut(view.alertsLeftOut));
}

function serverRow(server: ServerLine): HTMLTableRowElement {
  const state = server.state === "away" ? h("span", { class: "bad" }, server.silent === null ? `✗ ${t("away")}` : `✗ ${t("awaySince", duration(server.silent))}`)
    : server.state === "healthy" ? h("span", { class: "good" }, `✓ ${t("healthy")}`)
      : server.state === "pending" ? h("span", { class: "quiet" }, t("pendingServer")) : h("span", { class: "bad" }, `✗ ${t("serverUnhealthy")}`);
  const lead = server.leading === null ? "" : server.leading ? t("leading") : t("standby");
  return h("tr", {}, h("td", { class: "name" }, h("strong", {}, server.kind || "?"), " ", lead ? h("span", { class: "badge" }, lead) : null, h("br"), h("small", { class: "quiet" }, server.endpoint)),
    h("td", { class: "reason" }, state, server.error ? h("div", {}, server.error) : null, server.problems.map((each) => h("div", { class: "warn" }, `! ${each}`)), leftOut(server.problemsLeftOut)),
    h("td", { class: "name" }, server.generation === null ? "–" : `${server.generation}`, server.hash ? h("span", { class: "mono" }, `, ${server.hash.slice(0, 12)}`) : null),
    h("td", { class: "name" }, ages(server.kinds), leftOut(server.kindsLeftOut)), h("td", { class: `number ${server.restarts ? "warn" : ""}` }, `${server.restarts}`));
}

/** The kinds that are at fault, or old; else the age of the oldest. */
function ages(kinds: readonly KindAge[]): Child[] {
  const heard = kinds.filter((each) => each.age !== null);
  const odd = heard.filter((each) => each.fault || (each.age ?? 0) > OLD);
  if (odd.length) return odd.map((each) => h("div", { class: "bad" }, t("kindFault", each.kind, duration(each.age ?? 0), each.fault)));
  return heard.length ? [t("kindsHeard", duration(Math.max(...heard.map((each) => each.age ?? 0))))] : ["–"];
}

function waitingPanel(view: WaitingView): HTMLElement {
  const heads = [{ text: t("pod") }, { text: t("waitingPart") }, { text: t("waitingWhy") }, { text: t("waitingQuota") }, { text: t("waitingGang") },
    { text: t("waitingFor"), number: true }, { text: t("waitingAttempts"), number: true }, { text: t("waitingBackoff"), number: true }];
  const parts = Object.entries(view.parts).filter(([, count]) => count).map(([part, count]) => `${short(count)} ${named(`part_${part}`)}`);
  return h("section", { class: "panel", "data-key": "waiting" }, h("h2", {}, `${t("waitingInServers")} `, h("span", { class: "quiet" }, parts.join(", "))), view.pods.length
    ? rows(t("waitingInServers"), heads, view.pods.map((each) => h("tr", {},
      h("td", { class: "name" }, podLink(each.pod)), h("td", { class: "short" }, named(`part_${each.part}`)),
      h("td", { class: "reason" }, each.gates.length ? t("waitingGates", withRest(each.gates, each.gatesLeftOut).join(", ")) : each.reason || "–", each.nominated ? h("div", {}, "→ ", nodeLink(each.nominated)) : null),
      h("td", { class: "short" }, each.quota || "–"), h("td", { class: "short" }, each.gang || "–"), h("td", { class: "number" }, duration(each.seconds)),
      h("td", { class: "number" }, `${each.attempts}`), h("td", { class: "number" }, each.backoffSeconds === null ? "–" : t("inSeconds", duration(each.backoffSeconds))))))
    : h("p", { class: "quiet" }, t("nothingWaits")),
  view.leftOut ? h("p", { class: "quiet" }, t("moreLeftOut", view.leftOut)) : null);
}

function clusterParts(view: ClusterOverview): Child[] {
  const count = (amountOf: number, text: string): HTMLElement => h("div", {}, h("span", { class: "big" }, short(amountOf)), ` ${text}`);
  return [
    view.lacking.length ? h("p", { class: "error" }, t("lacking", view.lacking.join(", "))) : null,
    h("div", { class: "cards" },
      h("section", { class: "panel" }, h("h2", {}, t("nodesCard")), count(view.nodes, ""), h("p", { class: "quiet" },
        `${short(view.measured)} ${t("measured")}, ${short(view.unschedulable)} ${t("unschedulable")}`),
      view.kinds.length ? h("p", { class: "quiet" }, `${t("following")}: `, ages(view.kinds)) : null, h("a", { href: link("map") }, t("map"))),
      h("section", { class: "panel" }, h("h2", {}, t("podsCard")), count(view.running, t("running")), count(view.pending, t("pending"))),
      h("section", { class: "panel" }, h("h2", {}, t("generation")), KINDS.map((kind) => [kind, view.policies[kind] ?? 0] as const).filter(([, number]) => number).map(([kind, number]) => h("div", {}, `${number} ${kind}`)),
        h("p", {}, h("span", { class: view.errors ? "bad" : "good" }, t(view.errors === 1 ? "oneError" : "errors", view.errors)), ", ",
          h("span", { class: view.warnings ? "warn" : "good" }, t(view.warnings === 1 ? "oneWarning" : "warnings", view.warnings))),
        h("p", { class: "quiet" }, t("policyHash", view.digest)), h("a", { href: link("policies") }, t("policies"))),
      h("section", { class: "panel wide" }, h("h2", {}, t("utilization")), rows(t("utilization"),
        [{ text: t("resource") }, { text: t("requested"), number: true }, { text: t("measured"), number: true }, { text: t("allocatable"), number: true }],
        view.gauges.map((each) => h("tr", {}, h("td", {}, each.resource, bars(each.allocatable, each.requested, each.used)),
          h("td", { class: "number" }, amount(each.requested, each.unit)), h("td", { class: "number" }, amount(each.used, each.unit)),
          h("td", { class: "number" }, amount(each.allocatable, each.unit))))))),
    h("section", { class: "panel" }, h("h2", {}, `${t("waiting")} (${short(view.pending)})`),
      view.pending ? h("p", { class: "quiet" }, t("eachAlone")) : null,
      view.decided < view.pending ? h("p", { class: "quiet" }, t("waitingDecided", view.decided)) : null,
      rows(t("waiting"), [{ text: t("pod") }, { text: t("waitingReason") }], view.waiting.map((each) => h("tr", {}, h("td", { class: "name" }, podLink(each.pod)),
        h("td", { class: "reason" }, each.node === null ? h("span", {}, h("span", { class: "bad" }, `✗ ${t("noNode")}: `), each.message) : nodeLink(each.node))))),
      view.waitingLeftOut ? h("p", { class: "quiet" }, t("moreLeftOut", view.waitingLeftOut)) : null),
  ];
}
