/** The map of nodes on a canvas: squares in groups, one colour each. */

import { h } from "./dom.ts";
import { amount, short } from "./format.ts";
import { type Layout, NAMED, TITLE, arrange, rowAt } from "./grid.ts";
import type { ColourView } from "./models.ts";
import { whole } from "./paint.ts";
import { classColour, inkOn, range, shade } from "./palette.ts";
import { t } from "./texts.ts";
import { visible } from "./visible.ts";

/** What the map shows: nodes by row, their groups, and their colours if they are known. */
export interface Chart {
  nodes: readonly string[];
  groups: readonly { name: string; nodes: number }[];
  groupOf: readonly number[];
}

export interface ChartOptions {
  /** The largest height in CSS pixels before squares become smaller. */
  height: number;
  opened?: (node: string) => void;
  selected?: string;
}

export class NodeMap {
  readonly element: HTMLElement;
  private readonly canvas: HTMLCanvasElement;
  private readonly legend = h("div", { class: "legend" });
  private readonly tip = h("div", { class: "tip", hidden: true, role: "status" });
  private readonly options: ChartOptions;
  private chart: Chart = { nodes: [], groups: [], groupOf: [] };
  private colours: ColourView | null = null;
  private unit = "";
  private layout: Layout | null = null;
  private at = -1;
  private readonly watcher: ResizeObserver;

  constructor(options: ChartOptions) {
    this.options = options;
    this.canvas = h("canvas", { tabindex: 0, role: "application", onkeydown: (event: KeyboardEvent) => this.key(event),
      onmousemove: (event: MouseEvent) => this.hover(event), onmouseleave: () => this.leave(),
      onclick: (event: MouseEvent) => this.click(event), onblur: () => this.leave() });
    this.element = whole(h("div", {}, this.legend, this.canvas, this.tip));
    this.watcher = new ResizeObserver(() => this.arrange());
    this.watcher.observe(this.element);
  }

  focus(): void {
    this.canvas.focus();
  }

  close(): void {
    this.watcher.disconnect();
  }

  show(chart: Chart, colours: ColourView | null, unit = ""): void {
    const selected = this.chart.nodes[this.at] ?? this.options.selected;
    this.chart = chart;
    this.colours = colours;
    this.unit = unit;
    if (selected !== undefined) this.at = chart.nodes.indexOf(selected);
    this.canvas.setAttribute("aria-label", t("mapLabel", chart.nodes.length));
    this.arrange();
  }

  recolour(colours: ColourView, unit: string): void {
    this.colours = colours;
    this.unit = unit;
    this.paint();
  }

  select(node: string): void {
    this.at = this.chart.nodes.indexOf(node);
    this.paint();
  }

  /** The colour of a row; null without a value. */
  private colour(row: number): string | null {
    const view = this.colours;
    if (!view) return null;
    if (view.numbers.length) {
      const value = view.numbers[row];
      const [low, high] = range(view.lowest, view.highest, this.unit);
      return value === null || value === undefined ? null : shade((value - low) / (high - low));
    }
    const code = view.codes[row] ?? -1;
    return code < 0 ? null : classColour(code, view.classes[code] ?? "");
  }

  text(row: number): string {
    const view = this.colours;
    if (!view) return "";
    if (view.numbers.length) return amount(view.numbers[row] ?? null, this.unit);
    return view.classes[view.codes[row] ?? -1] ?? "–";
  }

  private arrange(): void {
    const width = this.element.clientWidth;
    if (!width) return;
    const sizes = this.chart.groups.map((group) => group.nodes);
    const names = this.chart.groups.map((group) => group.name || t("without"));
    this.layout = arrange(sizes, names, this.chart.groupOf, width, this.options.height);
    this.paint();
  }

  private paint(): void {
    const layout = this.layout;
    if (!layout) return;
    const scale = window.devicePixelRatio || 1;
    const width = this.element.clientWidth;
    const [across, down] = [Math.round(width * scale), Math.round(layout.height * scale)];
    if (this.canvas.width !== across || this.canvas.height !== down) {
      this.canvas.width = across;
      this.canvas.height = down;
      this.canvas.style.height = `${layout.height}px`;
    }
    const context = this.canvas.getContext("2d");
    if (!context) return;
    const style = getComputedStyle(document.documentElement);
    const [text, empty, line] = ["--text", "--empty", "--quiet"].map((name) => style.getPropertyValue(name)) as [string, string, string];
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, layout.height);
    context.fillStyle = text;
    context.font = "600 13px system-ui, sans-serif";
    for (const [group, block] of layout.blocks.entries()) {
      const label = `${visible(block.name)}  ${this.chart.groups[group]?.nodes.toLocaleString("en-US") ?? ""}`;
      context.fillText(label, block.left, block.top + TITLE - 7, width);
    }
    const size = layout.pitch - (layout.pitch > 8 ? 2 : 1);
    for (let row = 0; row < layout.x.length; row += 1) {
      const [x, y] = [layout.x[row]!, layout.y[row]!];
      const colour = this.colour(row);
      context.fillStyle = colour ?? empty;
      context.fillRect(x, y, size, size);
      if (layout.pitch >= NAMED) this.write(context, row, x, y, size, colour ? inkOn(colour) : text);
      if (!colour && this.colours) { // a stroke: missing values differ in more than their colour
        context.strokeStyle = line;
        context.beginPath();
        context.moveTo(x, y + size);
        context.lineTo(x + size, y);
        context.stroke();
      }
    }
    if (this.at >= 0) {
      context.strokeStyle = text;
      context.lineWidth = 2;
      context.strokeRect(layout.x[this.at]! - 1, layout.y[this.at]! - 1, size + 2, size + 2);
      context.lineWidth = 1;
    }
    this.explain();
    this.canvas.dataset["painted"] = this.colours ? this.colours.expression : "";
  }

  /** Writes a node's name and value into its square. */
  private write(context: CanvasRenderingContext2D, row: number, x: number, y: number, size: number, ink: string): void {
    context.save();
    context.beginPath();
    context.rect(x, y, size, size);
    context.clip();
    context.fillStyle = ink;
    context.font = "11px system-ui, sans-serif";
    // The ends of names differ, so that their beginnings are left out.
    let name = visible(this.chart.nodes[row] ?? "");
    while (name.length > 2 && context.measureText(name).width > size - 8) name = `…${name.slice(2)}`;
    context.fillText(name, x + 5, y + 16);
    if (this.colours) context.fillText(visible(this.text(row)), x + 5, y + 32);
    context.restore();
  }

  private explain(): void {
    const view = this.colours;
    this.legend.replaceChildren();
    if (!view) return;
    const missing = view.numbers.filter((each) => each === null).length - view.failed;
    if (view.numbers.length && view.lowest === null) {
      // no square has a colour, and a scale would say nothing
    } else if (view.numbers.length) {
      const [low, high] = range(view.lowest, view.highest, this.unit);
      const bar = h("canvas", { width: 160, height: 12, "aria-hidden": "true" });
      const context = bar.getContext("2d");
      for (let x = 0; context && x < 160; x += 1) {
        context.fillStyle = shade(x / 159);
        context.fillRect(x, 0, 1, 12);
      }
      this.legend.append(h("span", {}, amount(low, this.unit)), bar, h("span", {}, amount(high, this.unit)));
    } else {
      const counts = view.classes.map(() => 0);
      for (const code of view.codes) if (code >= 0) counts[code]! += 1;
      for (const [code, name] of view.classes.entries()) {
        this.legend.append(h("span", {}, swatch(classColour(code, name)), `${name || '""'} (${short(counts[code]!)})`));
      }
    }
    if (missing > 0) this.legend.append(h("span", { class: "warn" }, t("withoutNumber", missing)));
    if (view.failed) this.legend.append(h("span", { class: "warn" }, t("withoutValue", view.failed, view.failure)));
  }

  private row(event: MouseEvent): number {
    const box = this.canvas.getBoundingClientRect();
    return this.layout ? rowAt(this.layout, event.clientX - box.left, event.clientY - box.top) : -1;
  }

  private hover(event: MouseEvent): void {
    const row = this.row(event);
    this.point(row, event.clientX, event.clientY);
    this.canvas.style.cursor = row >= 0 ? "pointer" : "";
  }

  private point(row: number, x: number, y: number): void {
    this.tip.hidden = row < 0;
    if (row < 0) return;
    this.tip.textContent = visible(`${this.chart.nodes[row]}  ${this.text(row)}`);
    this.tip.style.left = `${Math.min(x + 14, window.innerWidth - 240)}px`;
    this.tip.style.top = `${y + 16}px`;
  }

  private leave(): void {
    this.tip.hidden = true;
  }

  private click(event: MouseEvent): void {
    this.open(this.row(event));
  }

  private open(row: number): void {
    const node = this.chart.nodes[row];
    if (node === undefined) return;
    this.at = row;
    this.paint();
    this.options.opened?.(node);
  }

  private key(event: KeyboardEvent): void {
    const layout = this.layout;
    if (!layout || !layout.x.length) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.open(this.at);
      return;
    }
    const steps: Record<string, [number, number]> = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    this.at = this.at < 0 ? this.first() : this.next(layout, step);
    this.paint();
    const box = this.canvas.getBoundingClientRect();
    this.point(this.at, box.left + layout.x[this.at]!, box.top + layout.y[this.at]!);
  }

  private first(): number {
    const layout = this.layout!;
    let best = 0;
    for (let row = 1; row < layout.x.length; row += 1) {
      if (layout.y[row]! < layout.y[best]! || (layout.y[row] === layout.y[best] && layout.x[row]! < layout.x[best]!)) best = row;
    }
    return best;
  }

  /** The nearest row in a direction; across groups too. */
  private next(layout: Layout, [right, down]: [number, number]): number {
    const [x, y] = [layout.x[this.at]!, layout.y[this.at]!];
    let best = this.at;
    let nearest = Infinity;
    for (let row = 0; row < layout.x.length; row += 1) {
      const [across, along] = [layout.x[row]! - x, layout.y[row]! - y];
      const ahead = right ? across * right : along * down;
      const aside = Math.abs(right ? along : across);
      if (ahead <= 0 || (right && aside > 0)) continue;
      const distance = ahead + aside * 4;
      if (distance < nearest) [nearest, best] = [distance, row];
    }
    return best;
  }
}

export function swatch(colour: string): HTMLElement {
  const element = h("span", { class: "swatch", "aria-hidden": "true" });
  element.style.background = colour; // set by script, which the policy for styles permits
  return element;
}
