/** Elements. Every text becomes a text node, with its hidden characters seen: names of the cluster are never read as markup. */

import { visible } from "./visible.ts";

export type Child = Node | string | number | null | undefined | false;
type Attributes = Record<string, string | number | boolean | null | undefined | ((event: never) => void)>;

/** Attributes that people read. */
const READ = new Set(["title", "aria-label", "placeholder", "data-head"]);
const listeners = new WeakMap<Element, Map<string, EventListener>>();

/** Returns an element. `on...` attributes are listeners, `true` is an attribute without a value, `false` none. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K, attributes: Attributes = {}, ...children: (Child | Child[])[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") {
      listen(element, name.slice(2), value as EventListener);
    } else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, value === true ? "" : READ.has(name) ? visible(String(value)) : String(value));
    }
  }
  element.append(...nodesOf(children));
  return element;
}

/** The nodes of children, without those that are not shown. */
export function nodesOf(children: readonly (Child | Child[])[]): Node[] {
  return children.flat().filter(shown).map((each) => (each instanceof Node ? each : document.createTextNode(visible(String(each)))));
}

function listen(element: Element, event: string, listener: EventListener): void {
  // A button that works already takes no click: it could not keep the focus if it were `disabled`.
  const call: EventListener = (happened) => {
    if (event !== "click" || (happened.currentTarget as Element).getAttribute("aria-disabled") !== "true") listener(happened);
  };
  listeners.set(element, (listeners.get(element) ?? new Map<string, EventListener>()).set(event, call));
  element.addEventListener(event, call);
}

/** Gives an element the listeners of another one in place of its own. */
export function takeListeners(element: Element, from: Element): void {
  const [before, now] = [listeners.get(element), listeners.get(from)];
  for (const [event, listener] of before ?? []) element.removeEventListener(event, listener);
  for (const [event, listener] of now ?? []) element.addEventListener(event, listener);
  if (now) listeners.set(element, now);
  else listeners.delete(element);
}

/** Says whether a button can be used; one that cannot keeps the focus. */
export function enable(button: HTMLButtonElement, enabled: boolean): void {
  if (enabled) button.removeAttribute("aria-disabled");
  else button.setAttribute("aria-disabled", "true");
}

/** Calls that overlap: the answer of each but the last is left, and null in its place. */
export function latest<A extends unknown[], V>(call: (...values: A) => Promise<V>): (...values: A) => Promise<V | null> {
  let number = 0;
  return async (...values) => {
    const mine = ++number;
    try {
      const found = await call(...values);
      return mine === number ? found : null;
    } catch (error) {
      if (mine === number) throw error;
      return null;
    }
  };
}

function shown(child: Child): child is Node | string | number {
  return child !== null && child !== undefined && child !== false;
}

/** Calls a function once calls have stopped for so many milliseconds. */
export function debounced<A extends unknown[]>(milliseconds: number, call: (...values: A) => void): (...values: A) => void {
  let timer = 0;
  return (...values) => {
    window.clearTimeout(timer);
    timer = window.setTimeout(() => call(...values), milliseconds);
  };
}

/** Calls a function at once, and then once in so many milliseconds at most; the last call is not lost. */
export function throttled(milliseconds: number, call: () => void): (() => void) & { cancel: () => void } {
  let timer = 0;
  let last = -Infinity;
  const run = (): void => {
    timer = 0;
    last = performance.now();
    call();
  };
  const throttle = (): void => {
    if (timer) return;
    const left = last + milliseconds - performance.now();
    if (left <= 0) run();
    else timer = window.setTimeout(run, left);
  };
  return Object.assign(throttle, { cancel: () => window.clearTimeout(timer) });
}
