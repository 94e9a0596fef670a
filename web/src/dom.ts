/** Elements. Every text becomes a text node: names of the cluster are never read as markup. */

export type Child = Node | string | number | null | undefined | false;
type Attributes = Record<string, string | number | boolean | null | undefined | ((event: never) => void)>;

/** Returns an element. `on...` attributes are listeners, `true` is an attribute without a value, `false` none. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K, attributes: Attributes = {}, ...children: (Child | Child[])[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") {
      element.addEventListener(name.slice(2), value as EventListener);
    } else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...children.flat().filter(shown).map((each) => (each instanceof Node ? each : String(each))));
  return element;
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
