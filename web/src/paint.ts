/** Content that changes while people use it: the focus, selected text, what was typed and the scroll positions stay. */

import { type Child, nodesOf, takeListeners } from "./dom.ts";

const WHOLES = new WeakSet<Node>();

/** Marks an element that its maker refers to later, as it has a state of its own: painted content holds it or another one, never a mixture. */
export function whole<E extends Element>(element: E): E {
  WHOLES.add(element);
  return element;
}

/**
 * Gives an element other content. Elements of before that are those of now too stay where they are, and take attributes,
 * listeners and content of the new ones: what nobody refers to but the content itself, unless it is `whole`, or the very
 * element that was there. Rows, list items, links and buttons are the same if their `data-key`, `id`, address or name is;
 * others if they have the same place among those of their tag. Details stay open or closed, and inputs as they were typed.
 */
export function paint(holder: Element, ...children: (Child | Child[])[]): void {
  const keep = keepFocus(holder);
  arrange(holder, nodesOf(children));
  keep();
}

/** Gives an element new content, without anything of before. */
export function replace(holder: Element, ...children: (Child | Child[])[]): void {
  const keep = keepFocus(holder);
  holder.replaceChildren(...nodesOf(children));
  keep();
}

/**
 * Returns a function that is called after a change of what is in an element. If what had the focus is gone then, what is
 * called the same gets it; else the element itself, so that Tab goes on from there and keys still reach the view.
 */
export function keepFocus(holder: Element): () => void {
  const focused = document.activeElement;
  if (!(focused instanceof HTMLElement) || focused === holder || !holder.contains(focused)) return () => undefined;
  const name = identity(focused);
  const place = alike(holder, focused.tagName, name).indexOf(focused);
  return () => {
    if (document.activeElement !== document.body && document.activeElement !== holder) return;
    const found = alike(holder, focused.tagName, name);
    (found[place] ?? found[0])?.focus({ preventScroll: true });
    if (document.activeElement !== document.body || !(holder instanceof HTMLElement)) return;
    if (!holder.hasAttribute("tabindex")) holder.tabIndex = -1;
    holder.focus({ preventScroll: true });
  };
}

function alike(holder: Element, tag: string, name: string): HTMLElement[] {
  return [...holder.querySelectorAll<HTMLElement>(tag)].filter((each) => identity(each) === name);
}

/** What an element is known by among others of its tag; empty if only by its place. */
function identity(element: Element): string {
  const given = element.getAttribute("data-key") ?? element.id;
  if (given) return given;
  switch (element.tagName) {
    case "A": return element.getAttribute("href") ?? "";
    case "BUTTON": return element.getAttribute("aria-label") ?? element.textContent ?? "";
    case "OPTION": return (element as HTMLOptionElement).value;
    case "TR": case "LI": {
      const named = element.querySelector("a[href], button");
      return named ? identity(named) : "";
    }
    default: return element.getAttribute("aria-label") ?? "";
  }
}

function slot(node: Node): string {
  return node instanceof Element ? `${node.tagName} ${identity(node)}` : node.nodeName;
}

/** Makes the wanted nodes, or those of before that are the same, the only children of a parent. */
function arrange(parent: Element, wanted: readonly Node[]): void {
  const before = [...parent.childNodes];
  const taken = new Set<Node>(wanted);
  const reusable = new Map<string, Node[]>();
  for (const node of [...before].reverse()) { // the first of a name is taken first, from the end of its list
    if (taken.has(node) || WHOLES.has(node)) continue;
    const name = slot(node);
    const same = reusable.get(name);
    if (same) same.push(node);
    else reusable.set(name, [node]);
  }
  const final = wanted.map((node) => {
    if (node.parentNode === parent || WHOLES.has(node)) return node;
    const old = reusable.get(slot(node))?.pop();
    if (old) update(old, node);
    return old ?? node;
  });
  const staying = new Set(final);
  for (const node of before) if (!staying.has(node)) node.remove();
  // What has the focus would lose it if it were taken out: the others are moved around it.
  const fixed = final.find((node) => node.parentNode === parent && node.contains(document.activeElement));
  let at: ChildNode | null = parent.firstChild;
  for (const node of final) {
    while (node === fixed && at && at !== node) {
      const next: ChildNode | null = at.nextSibling;
      at.remove();
      at = next;
    }
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
  }
}

function update(old: Node, fresh: Node): void {
  if (!(old instanceof HTMLElement && fresh instanceof HTMLElement)) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  const users = old.tagName === "DETAILS" ? ["open", "style"] : ["style"];
  for (const name of new Set([...old.getAttributeNames(), ...fresh.getAttributeNames()])) {
    const value = fresh.getAttribute(name);
    if (users.includes(name) || old.getAttribute(name) === value) continue;
    if (value === null) old.removeAttribute(name);
    else old.setAttribute(name, value);
  }
  // Set by script, which the policy for styles permits.
  if (old.style.cssText !== fresh.style.cssText) old.style.cssText = fresh.style.cssText;
  takeListeners(old, fresh);
  arrange(old, [...fresh.childNodes]);
}
