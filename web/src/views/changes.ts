/** Generations of running servers and their shadow; for users with the right, promotions and rollbacks. What would change is shown before it is confirmed. */

import { get, post } from "../api.ts";
import { type Child, enable, h } from "../dom.ts";
import type { ChangeableServer, ChangePlan, ChangeResult, ChangesView, DiffLine, EarlierGeneration, FileDiff, GenerationDifference, PlannedServer, ServerResult, Session, ShadowCounts } from "../models.ts";
import type { Page } from "../page.ts";
import { paint, replace, whole } from "../paint.ts";
import { leftOut, scroll, withRest } from "../parts.ts";
import { type Key, t } from "../texts.ts";
import { shown } from "../time-axis.ts";

type Change = { action: "promote" | "rollback"; to?: string; decisions?: number; maxDifferences?: number };

const MARKS: Record<string, string> = { added: "+", removed: "-", same: " ", place: "" };
const COLOURS: Record<string, string> = { changes: "good", changed: "good", complete: "good", refused: "bad", failed: "bad", unknown: "bad", none: "bad", partial: "bad", skipped: "warn" };

/** A panel with what users may see and change of running servers; without servers, and for others, it stays empty. */
export function changesPanel(page: Page): HTMLElement {
  const holder = h("div", { class: "changes" });
  void (async (): Promise<void> => {
    const session = await get<Session>("session");
    holder.dataset["permitted"] = String(session.mayChange);
    if (!page.current || !session.mayLookAtChanges) return;
    const inside = h("div");
    const details = h("details", { class: "panel", ontoggle: () => {
      if (details.open && !inside.hasChildNodes()) overview(inside, session.mayChange).catch((error: unknown) => paint(inside, failure(error)));
    } }, h("summary", {}, h("h2", {}, t(session.mayChange ? "changeTitle" : "changeReadTitle"))), inside);
    holder.append(details);
  })().catch((error: unknown) => paint(holder, failure(error)));
  return holder;
}

async function overview(holder: HTMLElement, mayChange: boolean): Promise<void> {
  const view = await get<ChangesView>("changes");
  if (!mayChange) {
    paint(holder, whole(h("section", { "aria-label": t("changeReadTitle") }, servers(view), generations(view))));
    return;
  }
  const outlet = h("div");
  const decisions = h("input", { type: "number", min: 1, step: 1, value: view.decisions, size: 8, required: true });
  const differing = h("input", { type: "number", min: 0, max: 100, step: "any", value: view.maxDifferences * 100, size: 6, required: true });
  const target = h("select", {}, h("option", { value: "" }, t("changeBefore")), view.generations.filter((each) => each.active < view.servers.length)
    .map((each) => h("option", { value: each.hash }, generation(each, view.servers.length))));
  const show = (name: Key, change: () => Change): HTMLElement => h("button", { type: "button", onclick: (event: Event) => {
    if ([decisions, differing].every((input) => input.reportValidity())) void plan(holder, outlet, event.currentTarget as HTMLButtonElement, change());
  } }, t(name));
  const roll = show("changeShowRollback", () => ({ action: "rollback", to: target.value }));
  paint(holder, whole(h("section", { "aria-label": t("changeTitle") },
    servers(view),
    generations(view, (to) => { target.value = to; roll.click(); }),
    h("h3", {}, t("changePromote")), h("p", { class: "quiet" }, t("changePromoteHint")),
    h("div", { class: "tools" }, h("label", {}, t("changeDecisions"), decisions), h("label", {}, t("changeDiffer"), differing),
      show("changeShowPromotion", () => ({ action: "promote", decisions: decisions.valueAsNumber, maxDifferences: differing.valueAsNumber / 100 }))),
    h("h3", {}, t("changeRollback")), h("p", { class: "quiet" }, t("changeRollbackHint")),
    h("div", { class: "tools" }, h("label", {}, t("changeTo"), target), roll),
    outlet)));
}

function servers(view: ChangesView): HTMLElement {
  return scroll(t("changeServers"), h("table", { class: "roomy" }, h("thead", {}, h("tr", {}, (["changeServer", "changeActive", "changeShadow", "changeCompared"] as Key[]).map((each) => h("th", {}, t(each))))),
    h("tbody", {}, view.servers.map(serverRow))));
}

function serverRow(server: ChangeableServer): HTMLElement {
  return h("tr", {}, h("td", {}, server.endpoint), h("td", {}, server.error ? h("span", { class: "bad" }, server.error)
    : [h("code", {}, server.hash), ` ${t("changeGeneration", String(server.generation ?? ""))}`, server.restored === null ? "" : h("div", { class: "warn" }, t("changeRestored", String(server.restored)))]),
  h("td", {}, server.shadow ? h("code", {}, server.shadow) : ""), h("td", {}, server.comparison ? [counts(server.comparison), examples(server.comparison)] : ""));
}

/** The history: two generations are chosen and compared, or one is rolled back to by those who may. */
function generations(view: ChangesView, rollBack?: (to: string) => void): HTMLElement {
  const outlet = h("div", { "aria-live": "polite" });
  const chosen: Record<"before" | "after", string> = { before: view.generations[1]?.hash ?? "", after: view.generations[0]?.hash ?? "" };
  const choice = (side: "before" | "after", each: EarlierGeneration): HTMLElement => h("td", { class: "cell" }, h("input", {
    type: "radio", name: `generation-${side}`, checked: chosen[side] === each.hash, "aria-label": t(side === "before" ? "changeFirst" : "changeSecond", each.hash),
    onchange: () => { chosen[side] = each.hash; } }));
  const compare = h("button", { type: "button", disabled: view.generations.length < 2, onclick: () => void (async (): Promise<void> => {
    paint(outlet, h("p", { role: "status" }, t("loading")));
    try {
      const found = await post<GenerationDifference>("changes/difference", chosen);
      paint(outlet, h("section", { class: "panel", "aria-label": t("changeDifference") },
        h("p", {}, h("code", {}, found.before), " → ", h("code", {}, found.after), ` ${t("changeOf", found.endpoint)}`),
        ...(found.files.length ? found.files.map(difference) : [h("p", { class: "quiet" }, t("changeNoFiles"))]), leftOut(found.filesLeftOut)));
    } catch (error) {
      paint(outlet, failure(error));
    }
  })() }, t("changeShowDifference"));
  return h("div", {}, h("h3", {}, t("changeHistory")), h("p", { class: "quiet" }, t("changeHistoryHint")),
    scroll(t("changeHistory"), h("table", { class: "roomy" }, h("thead", {}, h("tr", {}, h("th", { class: "cell" }, t("before")), h("th", { class: "cell" }, t("after")),
      (["policyHashHead", "changeSince", "changeBy", "changeKept", "state"] as Key[]).map((each) => h("th", {}, t(each))), h("th", {}, ""))),
    h("tbody", {}, view.generations.map((each) => h("tr", {}, choice("before", each), choice("after", each), h("td", {}, h("code", {}, each.hash)),
      h("td", { class: "name" }, `${shown(Math.round(each.since))} UTC`), h("td", {}, each.by ? `${each.by}, ${t(each.action === "promote" ? "changePromoted" : "changeRolledBack")}` : "–"),
      h("td", {}, t("changeOn", each.servers, view.servers.length)),
      h("td", {}, each.active ? h("span", { class: "good" }, t("active")) : "", each.failed ? h("span", { class: "bad" }, ` ${each.failed}`) : ""),
      h("td", {}, rollBack && each.active < view.servers.length ? h("button", { type: "button", "aria-label": t("changeBackTo", each.hash), onclick: () => rollBack(each.hash) }, t("changeRollback")) : "")))))),
    view.comparable ? h("div", { class: "tools" }, compare) : h("p", { class: "quiet" }, t("changeIncomparable")), outlet);
}

function generation(each: EarlierGeneration, servers: number): string {
  const since = `${shown(Math.round(each.since))} UTC`;
  return [each.hash, since, t("changeOn", each.servers, servers), each.failed].filter(Boolean).join(" · ");
}

function counts(found: ShadowCounts): string {
  return t("changeCounts", found.decisions, found.differs, found.error, found.skipped);
}

/** Decisions for which the shadow would have answered otherwise. */
function examples(found: ShadowCounts): HTMLElement | null {
  return found.examples.length ? h("details", {}, h("summary", {}, t("changeExamples", found.examples.length)), h("ul", {}, found.examples.map((each) =>
    h("li", {}, `${each.pod} (${each.verb}): `, [each.lost.length ? `− ${withRest(each.lost, each.lostLeftOut).join(", ")}` : "", each.gained.length ? `+ ${withRest(each.gained, each.gainedLeftOut).join(", ")}` : "", ...withRest(each.why, each.whyLeftOut)].filter(Boolean).join("; ")))), leftOut(found.examplesLeftOut)) : null;
}

async function plan(holder: HTMLElement, outlet: HTMLElement, opener: HTMLButtonElement, change: Change): Promise<void> {
  paint(outlet, h("p", { role: "status" }, t("loading")));
  enable(opener, false);
  try {
    const found = await post<ChangePlan>("changes/plan", change);
    const changed = found.servers.filter((each) => each.state === "changes").length;
    const heading = h("h3", { tabindex: -1 }, t(change.action === "promote" ? "changePlanPromote" : "changePlanRollback"));
    const cancel = (): void => { paint(outlet); opener.focus(); };
    const confirm = found.confirm ? h("button", { class: "primary", type: "button", onclick: () => void apply(holder, outlet, confirm as HTMLButtonElement, { ...change, confirm: found.confirm }) },
      t(change.action === "promote" ? "changeDoPromote" : "changeDoRollback", changed, found.servers.length, found.confirm.slice(0, 12))) : null;
    replace(outlet, heading, ...found.servers.map(planned),
      found.confirm ? h("p", {}, t("changeConfirmHint", found.confirm.slice(0, 12))) : h("p", { class: "error" }, t("changeNothing")),
      h("div", { class: "tools" }, confirm, h("button", { type: "button", onclick: cancel }, t("changeCancel"))));
    heading.focus();
  } catch (error) {
    paint(outlet, failure(error));
  } finally {
    enable(opener, true);
  }
}

function planned(server: PlannedServer): HTMLElement {
  return h("section", { class: "panel", "aria-label": server.endpoint }, h("h4", {}, server.endpoint, " ", mark(server.state)),
    server.message ? h("p", {}, server.message) : null,
    server.before && server.after && server.before !== server.after ? h("p", {}, h("code", {}, server.before), " → ", h("code", {}, server.after),
      server.generation === null ? "" : ` ${t("changeGeneration", String(server.generation))}`, server.path ? ` ${t("changeWrites", server.path)}` : "") : null,
    server.comparison ? h("p", {}, counts(server.comparison)) : null,
    server.comparison ? examples(server.comparison) : null,
    ...server.files.map(difference), leftOut(server.filesLeftOut),
    server.state === "changes" && !server.files.length ? h("p", { class: "quiet" }, t("changeNoFiles")) : null);
}

function difference(file: FileDiff): HTMLElement {
  return h("details", { open: true }, h("summary", {}, `${file.file} (${t(`file_${file.state}` as Key)})`), file.note ? h("p", { class: "quiet" }, file.note) : null,
    file.lines.length ? scroll(file.file, h("pre", { class: "diff" }, file.lines.map(diffLine))) : null);
}

function diffLine(line: DiffLine): HTMLElement {
  return h("span", { class: line.kind }, `${MARKS[line.kind] ?? ""}${line.text}\n`);
}

async function apply(holder: HTMLElement, outlet: HTMLElement, button: HTMLButtonElement, change: Change & { confirm: string }): Promise<void> {
  enable(button, false);
  let outcome: HTMLElement;
  try {
    outcome = result(await post<ChangeResult>("changes/apply", change));
  } catch (error) {
    paint(outlet, failure(error));
    return;
  }
  try {
    await overview(holder, true); // the versions that are active now
  } finally {
    holder.append(outcome);
    outcome.focus();
  }
}

function result(found: ChangeResult): HTMLElement {
  const children: Child[] = [h("h3", {}, t(`outcome_${found.outcome}` as Key)), h("ul", {}, found.servers.map(resultLine))];
  if (found.audit) children.push(h("p", { class: "error" }, found.audit));
  return h("section", { class: "panel", tabindex: -1, role: found.outcome === "complete" && !found.audit ? "status" : "alert", "aria-label": t("changeResult") }, children);
}

function resultLine(server: ServerResult): HTMLElement {
  return h("li", {}, `${server.endpoint} `, mark(server.state), server.hash ? [" ", h("code", {}, server.hash)] : "",
    server.generation === null ? "" : ` ${t("changeGeneration", String(server.generation))}`, server.message ? ` ${server.message}` : "");
}

function mark(state: string): HTMLElement {
  return h("span", { class: `mark ${COLOURS[state] ?? "quiet"}` }, t(`state_${state}` as Key));
}

function failure(error: unknown): HTMLElement {
  return h("p", { class: "error", role: "alert" }, t("failed", error instanceof Error ? error.message : String(error)));
}
