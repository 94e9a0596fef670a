/** Policies: documents with syntax colours, findings at their place, rules and what they read. */

import { get } from "../api.ts";
import { h } from "../dom.ts";
import type { Fault, FileView, PoliciesView, PolicyView } from "../models.ts";
import type { Page } from "../page.ts";
import { faultList, scroll } from "../parts.ts";
import { link } from "../route.ts";
import { t } from "../texts.ts";
import { changesPanel } from "./changes.ts";

export async function policiesView(page: Page): Promise<void> {
  const view = await get<PoliciesView>("policies");
  const name = page.route.query["name"] ?? view.policies[0]?.name ?? "";
  const policy = view.policies.find((each) => each.name === name && (!page.route.query["kind"] || each.kind === page.route.query["kind"]));
  const list = h("ul", { class: "list" }, view.policies.map((each) => h("li", {}, h("a", {
    href: link("policies", { name: each.name, kind: each.kind }), "aria-current": each === policy ? "true" : null,
  }, each.name, badge(view.faults, each), h("br"), h("small", {}, each.kind)))));
  const detail = h("div");
  page.show(h("h1", {}, t("policies")), changesPanel(page),
    h("div", { class: "policies" }, h("nav", { "aria-label": t("policies"), class: "panel" }, list), detail));
  const chosen = list.querySelector<HTMLElement>("[aria-current]");
  if (chosen) list.scrollTop = chosen.offsetTop - list.offsetTop - list.clientHeight / 2;
  const orphans = view.faults.filter((each) => !view.policies.some((other) => other.file === each.file));
  if (!policy) {
    detail.replaceChildren(h("p", {}, t("choosePolicy")), orphans.length ? faultList(orphans, () => undefined) : "");
    return;
  }
  const [file, { openEditor }] = await Promise.all([get<FileView>("file", { name: policy.file }), import("../editor.ts")]);
  const holder = h("div", { class: "editor short" });
  detail.replaceChildren(
    h("section", { class: "panel" }, h("h2", {}, policy.name), policy.description ? h("p", {}, policy.description) : "",
      h("div", { class: "badges" }, [policy.kind, policy.enforcement, policy.points.join(", "), ...policy.profiles.map((each) => `${t("profile")} ${each}`),
        policy.active ? t("active") : t("inactive")].filter(Boolean).map((each) => h("span", { class: "badge" }, each))),
      view.pairs && policy.kind === "SchedulerPlugin" ? h("p", { class: "quiet" }, t("refuses", policy.refuses, view.pairs)) : "",
      h("p", {}, h("a", { href: link("playground", { file: policy.file }) }, t("openPlayground"))),
      h("p", { class: "quiet" }, `${policy.file}`), holder,
      h("h3", {}, t("findings")), faultList([...file.faults, ...orphans], (fault) => editor.reveal(fault.line, fault.column))),
    policy.rules.length ? h("section", { class: "panel" }, h("h3", {}, t("rules")), scroll(t("rules"), h("table", {}, h("thead", {}, h("tr", {},
      h("th", {}, t("point")), h("th", {}, t("name")), h("th", {}, t("expression")))),
    h("tbody", {}, policy.rules.map((rule) => h("tr", {}, h("td", {}, rule.point), h("td", {}, h("button", { class: "icon", type: "button",
      onclick: () => editor.reveal(rule.line, rule.column) }, rule.name || t("line", rule.line))), h("td", {}, h("code", {}, rule.expression)))))))) : "",
    policy.reads.length ? h("section", { class: "panel" }, h("h3", {}, t("reads")), h("div", { class: "badges" },
      policy.reads.map((each) => h("span", { class: "badge mono" }, each)))) : "",
    Object.keys(policy.params).length ? h("section", { class: "panel" }, h("h3", {}, t("params")), h("dl", { class: "pairs" },
      Object.entries(policy.params).flatMap(([key, value]) => [h("dt", {}, key), h("dd", { class: "mono" }, JSON.stringify(value))]))) : "",
  );
  const editor = openEditor(holder, file.text, { readOnly: true, label: policy.file });
  page.closing(() => editor.close());
  editor.mark(file.faults);
  editor.reveal(policy.line, 1, false);
}

function badge(faults: readonly Fault[], policy: PolicyView): HTMLElement | null {
  const mine = faults.filter((each) => each.file === policy.file);
  const errors = mine.filter((each) => each.severity === "error").length;
  const warnings = mine.filter((each) => each.severity === "warning").length;
  if (errors) return h("span", { class: "badge bad" }, `✗ ${errors}`);
  return warnings ? h("span", { class: "badge warn" }, `! ${warnings}`) : null;
}
