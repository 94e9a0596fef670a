/** What a view is given: its address, the place for its content, and what happens when it is left. */

import type { Child } from "./dom.ts";
import { h } from "./dom.ts";
import type { Changes } from "./live.ts";
import { replace } from "./paint.ts";
import { type Route, link } from "./route.ts";

export class Page {
  route: Route;
  private readonly main: HTMLElement;
  private readonly endings: (() => void)[] = [];
  private escape: () => void = () => undefined;
  private change: ((changes: Changes) => void) | null = null;
  private back: () => void = () => undefined;
  /** False once another view was opened: then its late answers are not shown. */
  current = true;

  constructor(main: HTMLElement, route: Route) {
    this.main = main;
    this.route = route;
  }

  show(...children: Child[]): void {
    if (this.current) replace(this.main, h("div", {}, children));
  }

  /** Adds an element before the first one that a selector finds in what is shown. */
  insert(selector: string, child: Node): void {
    if (this.current) this.main.querySelector(selector)?.before(child);
  }

  /** Adds to what is shown. */
  add(...children: Child[]): void {
    if (this.current) this.main.append(h("div", {}, children));
  }

  /** Changes the address without opening the view again. */
  replace(view: string, query: Record<string, string>): void {
    if (!this.current) return;
    this.route = { view, query: Object.fromEntries(Object.entries(query).filter(([, value]) => value !== "")) };
    history.replaceState(null, "", link(view, query));
  }

  go(view: string, query: Record<string, string>): void {
    location.hash = link(view, query);
  }

  closing(end: () => void): void {
    if (this.current) this.endings.push(end);
    else end();
  }

  /** Calls a function after changes; a view without one stays as it is until it is opened again. */
  onChange(call: (changes: Changes) => void): void {
    this.change = call;
  }

  /** Passes on changes; returns false if the view takes none. */
  changed(changes: Changes): boolean {
    this.change?.(changes);
    return this.change !== null;
  }

  /** Calls a function when the console answers again after it did not. */
  onBack(call: () => void): void {
    this.back = call;
  }

  /** The console answers again. */
  answered(): void {
    this.back();
  }

  onEscape(call: () => void): void {
    this.escape = call;
  }

  escaped(): void {
    this.escape();
  }

  close(): void {
    this.current = false;
    for (const end of this.endings) end();
  }
}
