/** The frame of all views: navigation, search, theme, language, keyboard. */

import { ApiError, get, setToken } from "./api.ts";
import { debounced, h } from "./dom.ts";
import { type Changes, Live } from "./live.ts";
import type { SearchView, Session } from "./models.ts";
import { Page } from "./page.ts";
import { keepFocus, paint, replace } from "./paint.ts";
import { notTimes } from "./parts.ts";
import { OF_TIMES, link, parse, setPast } from "./route.ts";
import { nearest } from "./similar.ts";
import { type Key, coded, language, setLanguage, t } from "./texts.ts";
import { mapView } from "./views/map.ts";
import { nodeTimeView } from "./views/node-time.ts";
import { overviewView } from "./views/overview.ts";
import { playgroundView } from "./views/playground.ts";
import { podView } from "./views/pod.ts";
import { policiesView } from "./views/policies.ts";
import { timeView } from "./views/time.ts";

const VIEWS: Record<string, (page: Page) => Promise<void>> = {
  overview: overviewView, map: mapView, pod: podView, policies: policiesView, playground: playgroundView, time: timeView, "node-time": nodeTimeView,
};
/** What the addresses of views may have. */
const PARTS: Record<string, readonly string[]> = {
  overview: ["at"], map: ["at", "expression", "group", "node", "pod"], pod: ["at", "key", "node"], policies: ["at", "kind", "name"], playground: ["at", "file", "pod"],
  time: ["at", "end", "start"], "node-time": ["end", "name", "start", "time"],
};
const KEYS: Record<string, string> = { o: "overview", c: "map", p: "pod", l: "policies", y: "playground", t: "time", n: "node-time" };
const THEME = "koord-policy-theme";
const TARGETS: Record<string, (name: string, document: string) => string> = {
  node: (node) => link("map", { node }), pod: (key) => link("pod", { key }), policy: (name, kind) => link("policies", { name, kind }),
};

let page: Page | null = null;
/** True if the view could not be loaded. */
let failed = false;
const live = new Live(changed, away);

function theme(): string {
  return localStorage.getItem(THEME) ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

function frame(): void {
  document.documentElement.dataset["theme"] = theme();
  document.documentElement.lang = language() === "zh" ? "zh-CN" : "en";
  document.title = t("title");
  const main = h("main", { id: "content", tabindex: -1 });
  replace(document.body,
    h("a", { class: "skip", href: "#content", onclick: (event: Event) => { event.preventDefault(); main.focus(); } }, t("skip")),
    h("header", {},
      h("a", { class: "brand", href: link("overview") }, "koord-policy"),
      h("nav", { "aria-label": t("views"), id: "views" }, Object.keys(VIEWS).map((view) => h("a", { href: link(view) }, t(view as Key)))),
      searchBox(),
      h("button", { class: "icon", type: "button", title: t("theme"), "aria-label": t("theme"), onclick: toggleTheme }, "◐"),
      h("button", { class: "icon", id: "language", type: "button", lang: language() === "zh" ? "en" : "zh", onclick: toggleLanguage }, t("language"))),
    main, h("footer", {}, t("keys"), language() === "en" ? "" : ` ${t("serverTexts")}`));
  void open();
}

function toggleTheme(): void {
  localStorage.setItem(THEME, theme() === "dark" ? "light" : "dark");
  document.documentElement.dataset["theme"] = theme();
  void open(); // canvases are painted again
}

function toggleLanguage(): void {
  setLanguage(language() === "zh" ? "en" : "zh");
  frame();
}

async function open(): Promise<void> {
  page?.close();
  const main = document.getElementById("content")!;
  const keep = keepFocus(main);
  const route = parse(location.hash);
  const view = Object.hasOwn(VIEWS, route.view) ? route.view : "";
  const wrong = OF_TIMES.has(view) ? notTimes(route.query, ["at"]) : [];
  const at = OF_TIMES.has(view) && !wrong.length ? (route.query["at"] ?? "") : "";
  setPast(at);
  for (const [number, each] of Array.from(document.querySelectorAll("#views a")).entries()) {
    const name = Object.keys(VIEWS)[number]!;
    each.setAttribute("href", name === "time" && at ? link(name, { at }) : link(name));
    if (name === view) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  pastBanner(view, route.query, at);
  unknownParts(view, route.query);
  const opened = (page = new Page(main, { ...route, view }));
  main.setAttribute("aria-busy", "true");
  opened.show(h("p", { class: "quiet" }, t("loading")));
  failed = false;
  live.start();
  try {
    if (wrong.length) opened.show(h("h1", {}, t(view as Key)), ...wrong, h("p", {}, h("a", { href: now(view, route.query) }, t("backToNow"))));
    else if (view) await VIEWS[view]!(opened);
    else opened.show(...unknownView(route.view));
  } catch (error) {
    if (!opened.current) return;
    failed = true;
    if (error instanceof ApiError && error.status === 401) signIn(opened, error.message);
    else {
      opened.show(h("h1", {}, t(view as Key)), h("p", { class: "error", role: "alert" }, t("failed", error instanceof Error ? error.message : String(error))));
      const name = route.query["key"] ?? route.query["node"];
      if (error instanceof ApiError && error.status === 404 && name) await suggest(opened, name).catch(() => undefined);
    }
  }
  if (!opened.current) return;
  main.removeAttribute("aria-busy");
  keep();
}

/** Where nothing has the focus after a view was opened, its heading gets it: keys and screen readers go on from there. */
function begin(): void {
  const main = document.getElementById("content")!;
  if (document.activeElement !== document.body && document.activeElement !== main) return;
  const heading = main.querySelector("h1");
  if (!heading) return;
  heading.tabIndex = -1;
  heading.focus();
}

function changed(changes: Changes): void {
  const taken = page?.changed(changes) ?? false;
  if (failed || (changes.restarted && !taken)) void open();
}

/** Says that the console does not answer; a view that could not be loaded is opened again when it does. */
function away(gone: boolean): void {
  document.getElementById("away")?.remove();
  if (gone) document.querySelector("header")!.after(h("p", { id: "away", role: "status", class: "error" }, t("consoleAway")));
  else if (failed) void open();
  else page?.answered();
}

/** The line above views of another time: which one, and the ways back. */
function pastBanner(view: string, query: Record<string, string>, at: string): void {
  document.getElementById("past")?.remove();
  if (!at) return;
  const back = now(view, query);
  document.querySelector("header")!.after(h("p", { id: "past", role: "status" }, t("asRecorded", at), " ",
    h("a", { href: link("time", { at }) }, t("time")), " ", h("a", { href: back }, t("backToNow"))));
}

/** Says which parts of an address mean nothing to its view, and which it takes. */
function unknownParts(view: string, query: Record<string, string>): void {
  document.getElementById("unknown")?.remove();
  const known = PARTS[view];
  const unknown = known ? Object.keys(query).filter((each) => !known.includes(each)) : [];
  if (!known || !unknown.length) return;
  const rest = Object.fromEntries(Object.entries(query).filter(([each]) => known.includes(each)));
  document.querySelector("header")!.after(h("p", { id: "unknown", role: "status" }, t("unknownParts", unknown.map((each) => `${each}=${query[each]}`).join(", "), known.join(", ")), " ",
    h("a", { href: link(view, rest) }, t("withoutThem"))));
}

/** The address of a view without the time that it is of. */
function now(view: string, query: Record<string, string>): string {
  return link(view, { ...query, at: "" });
}

function unknownView(name: string): HTMLElement[] {
  const views = Object.keys(VIEWS); // a reader may write what the button says
  const near = views.find((each) => t(each as Key).toLowerCase() === name.toLowerCase()) ?? nearest(name, views);
  return [h("h1", {}, t("noView", name)), h("p", { class: "error", role: "alert" }, near ? h("span", {}, t("didYouMean"), " ",
    h("a", { href: link(near) }, t(near as Key))) : t("choose"))];
}

/** Adds links to names that are similar to one that is not known. */
async function suggest(shown: Page, name: string): Promise<void> {
  const view = await get<SearchView>("search", { text: name });
  const similar = view.found.length ? view.found : view.near;
  if (!similar.length) return;
  shown.add(h("p", {}, t("similar")), h("ul", {}, similar.map((each) => h("li", {}, h("a", { href: TARGETS[each.kind]!(each.name, each.document) }, each.name),
    h("small", { class: "quiet" }, ` ${each.document || coded("kind", each.kind)}`)))));
}

function signIn(shown: Page, hint: string): void {
  const input = h("input", { type: "password", autocomplete: "off", size: 40 });
  const problem = h("p", { role: "alert" });
  const enter = async (): Promise<void> => {
    setToken(input.value.trim());
    try {
      await get<Session>("session");
      await open();
    } catch (error) {
      paint(problem, error instanceof Error ? error.message : String(error));
    }
  };
  shown.show(h("h1", {}, t("tokenNeeded")), h("p", { class: "quiet" }, hint), h("div", { class: "tools" }, h("label", {}, t("token"), input),
    h("button", { class: "primary", type: "button", onclick: () => void enter() }, t("signIn"))), problem);
  input.addEventListener("keydown", (event) => { if (event.key === "Enter") void enter(); });
  input.focus();
}

function searchBox(): HTMLElement {
  // A press leaves the focus in the input: the list goes when that loses it.
  const list = h("ul", { class: "results", id: "results", role: "listbox", hidden: true, "aria-label": t("search"), onmousedown: (event: Event) => event.preventDefault() });
  const input = h("input", { type: "search", id: "search", placeholder: `${t("search")} (/)`, "aria-label": t("search"), role: "combobox",
    "aria-expanded": "false", "aria-controls": "results", autocomplete: "off", oninput: debounced(120, () => void look().catch(hide)), onkeydown: key,
    onblur: () => hide() });
  let at = -1;
  let results: SearchView["found"] = [];
  let found = ""; // the text that the list is of

  function hide(): void {
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  }

  /** Marks the result that Enter opens: the focus stays in the input. */
  function mark(number: number): void {
    at = number;
    for (const [place, each] of Array.from(list.children).entries()) each.setAttribute("aria-selected", String(place === at));
    const chosen = list.children[at];
    if (!chosen) return input.removeAttribute("aria-activedescendant");
    input.setAttribute("aria-activedescendant", chosen.id);
    chosen.scrollIntoView({ block: "nearest" });
  }

  async function look(): Promise<void> {
    const text = input.value.trim();
    if (!text) return hide();
    const view = await get<SearchView>("search", { text });
    if (input.value.trim() !== text) return;
    found = text;
    results = view.found;
    paint(list, ...(results.length ? results.map((each, number) => h("li", { role: "option", id: `result-${number}`, "aria-selected": "false", onclick: () => follow(number) },
      h("small", {}, each.document || coded("kind", each.kind)), h("span", {}, each.name))).concat(view.leftOut
      ? [h("li", { class: "quiet", role: "option", id: "result-more", "aria-selected": "false", "aria-disabled": "true" }, t("moreLeftOut", view.leftOut))] : [])
      : [h("li", { role: "option", id: "result-none", "aria-selected": "false", "aria-disabled": "true" }, t("noResults"))]));
    list.hidden = false;
    mark(results.length ? 0 : -1);
    input.setAttribute("aria-expanded", "true");
  }

  /** Opens the selected result, once the results are those of what was typed. */
  async function choose(): Promise<void> {
    if (found !== input.value.trim()) await look();
    follow(at);
  }

  /** Goes to a result, if there is one. */
  function follow(number: number): void {
    const chosen = results[number];
    if (!chosen) return;
    hide();
    input.value = ""; // a search that is still due finds nothing to look for
    location.hash = TARGETS[chosen.kind]!(chosen.name, chosen.document);
    document.getElementById("content")!.focus();
  }

  function key(event: KeyboardEvent): void {
    if (event.key === "Escape") { hide(); input.blur(); return; }
    if (event.key === "Enter") { choose().catch(hide); return; }
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (!step || at < 0) return;
    event.preventDefault();
    mark((at + step + results.length) % results.length);
  }

  return h("div", { class: "search" }, input, list);
}

/** All keys, over the page; Escape closes it, and the focus is where it was. */
function help(): void {
  if (document.querySelector("dialog")) return;
  const keys: [string, Key][] = [["/", "keySearch"], ["?", "keyHelp"], ["Esc", "keyEscape"], ["Tab", "keyTab"], ["← ↑ ↓ →", "keyArrows"], ["Enter", "keyEnter"], ["+ − 0", "keyZoom"], ["Esc Tab", "keyEditor"]];
  const views = Object.entries(KEYS).map(([key, view]) => [h("dt", {}, h("kbd", {}, "g"), " ", h("kbd", {}, key)), h("dd", {}, t(view as Key))]);
  const dialog = h("dialog", { "aria-label": t("keyTitle"), onclose: () => dialog.remove() }, h("form", { method: "dialog" },
    h("button", { class: "close", "aria-label": t("close") }, "✕"), h("h2", {}, t("keyTitle")),
    h("dl", { class: "pairs" }, keys.flatMap(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, t(text))]), views.flat())));
  document.body.append(dialog);
  dialog.showModal();
}

let before = "";
document.addEventListener("keydown", (event) => {
  const target = event.target as HTMLElement;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (target.closest("input:not([type=radio]), select, textarea, [contenteditable=true], dialog")) return;
  if (event.key === "/") {
    event.preventDefault();
    document.getElementById("search")?.focus();
  } else if (event.key === "?") {
    help();
  } else if (event.key === "Escape") {
    page?.escaped();
  } else if (before === "g" && KEYS[event.key]) {
    location.hash = link(KEYS[event.key]!);
  }
  before = event.key;
});
window.addEventListener("hashchange", () => void open().then(begin));
frame();
