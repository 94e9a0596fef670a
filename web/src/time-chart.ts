/** Charts over time on a canvas: lanes below each other with one axis of time, marks for events, and a cursor. */

import { swatch } from "./chart.ts";
import { h } from "./dom.ts";
import { amount } from "./format.ts";
import { whole } from "./paint.ts";
import { type Range, panned, roundUp, shown, spanAt, tickText, ticks, zoomed } from "./time-axis.ts";
import { t } from "./texts.ts";
import { visible } from "./visible.ts";

export interface Line {
  name: string;
  /** One per time; null where there is none. */
  values: readonly (number | null)[];
  colour: Tone;
  /** Dashes make lines of one lane differ in more than their colour: one of `DASHES`. */
  dash?: Dash;
}

/** A chart in a lane of its own. */
export interface Lane {
  title: string;
  unit: string;
  /** One if they are bars: its title says what they are. */
  lines: Line[];
  /** `steps` for states, which hold until the next time; `bars` for numbers of events in a span, in a lower lane. */
  kind: "steps" | "bars";
  /** The top of the scale unless a value is above it: 100 for percentages. */
  top?: number;
}

export interface Mark {
  time: number;
  text: string;
  colour: Tone;
  shape: "up" | "down" | "diamond" | "square";
}

export interface TimeData {
  times: readonly number[];
  /** The length of a span in seconds. */
  width: number;
  lanes: Lane[];
  marks: Mark[];
  gaps?: { start: number; end: number }[];
}

export type Tone = "bar" | "bar2" | "good" | "bad" | "warn" | "accent" | "quiet" | "s1" | "s2" | "s3" | "s4" | "s5" | "s6" | "s7";

/** A way to draw a line, and the same in a legend. */
export interface Dash {
  lengths: readonly number[];
  sample: string;
}

export const DASHES = [
  { lengths: [], sample: "──" }, { lengths: [7, 4], sample: "– –" }, { lengths: [2, 3], sample: "····" }, { lengths: [9, 3, 2, 3], sample: "– ·" },
  { lengths: [14, 4], sample: "— —" }, { lengths: [9, 3, 2, 3, 2, 3], sample: "– ··" }, { lengths: [14, 3, 5, 3], sample: "— –" }, { lengths: [1, 6], sample: "·  ·" },
] as const satisfies readonly Dash[];

export interface TimeChartOptions {
  label: string;
  /** A time was chosen. */
  chosen?: (time: number) => void;
  /** Another range was chosen. */
  ranged?: (range: Range) => void;
}

const HEIGHTS: Record<Lane["kind"], number> = { steps: 92, bars: 36 };
const GAP = 26;
const MARKS = 16;
const LEFT = 52;
const RIGHT = 10;
const AXIS = 20;
const NEAR = 6;
const STEP_FACTOR = 0.5;

export class TimeChart {
  readonly element: HTMLElement;
  private readonly canvas: HTMLCanvasElement;
  private readonly legend = h("div", { class: "legend" });
  private readonly tip = h("div", { class: "tip", hidden: true });
  private readonly said = h("p", { class: "said", "aria-live": "polite" });
  private readonly options: TimeChartOptions;
  private readonly watcher: ResizeObserver;
  private data: TimeData = { times: [], width: 1, lanes: [], marks: [] };
  private range: Range = { start: 0, end: 1 };
  private limits: Range = { start: 0, end: 1 };
  /** The chosen time; null for none. */
  private at: number | null = null;
  /** The time under the mouse or the keyboard's cursor. */
  private cursor: number | null = null;
  private dragged: { from: number; to: number } | null = null;

  constructor(options: TimeChartOptions) {
    this.options = options;
    this.canvas = h("canvas", { tabindex: 0, role: "application", "aria-label": `${options.label}. ${t("timeChartLabel")}`,
      onkeydown: (event: KeyboardEvent) => this.key(event), onmousedown: (event: MouseEvent) => this.press(event),
      onmousemove: (event: MouseEvent) => this.move(event), onmouseup: (event: MouseEvent) => this.release(event),
      onmouseleave: () => this.leave(), ondblclick: () => this.options.ranged?.(this.limits), onblur: () => this.leave() });
    this.element = whole(h("div", { class: "timechart" }, this.legend, this.canvas, this.said, this.tip));
    this.watcher = new ResizeObserver(() => this.paint());
    this.watcher.observe(this.element);
  }

  close(): void {
    this.watcher.disconnect();
  }

  show(data: TimeData, range: Range, limits: Range, at: number | null): void {
    this.data = data;
    this.range = range;
    this.limits = limits;
    this.at = at;
    const lines = data.lanes.filter((lane) => lane.kind === "steps").flatMap((lane) => lane.lines);
    const entries = new Map(lines.map((line) => [`${line.dash ? `${line.dash.sample} ` : ""}${line.name}`, line.colour])); // lanes may share lines
    this.legend.replaceChildren(...[...entries].map(([text, colour]) => h("span", {}, swatch(this.colour(colour)), text)));
    this.paint();
  }

  choose(at: number | null): void {
    this.at = at;
    this.paint();
  }

  private colour(tone: Tone): string {
    return getComputedStyle(document.documentElement).getPropertyValue(`--${tone}`).trim();
  }

  private get height(): number {
    return MARKS + this.data.lanes.reduce((sum, lane) => sum + HEIGHTS[lane.kind] + GAP, 0) + AXIS;
  }

  private x(time: number): number {
    const width = this.element.clientWidth - LEFT - RIGHT;
    return LEFT + (width * (time - this.range.start)) / Math.max(this.range.end - this.range.start, 1e-9);
  }

  private time(x: number): number {
    const width = this.element.clientWidth - LEFT - RIGHT;
    const part = Math.min(Math.max((x - LEFT) / Math.max(width, 1), 0), 1);
    return this.range.start + (this.range.end - this.range.start) * part;
  }

  private paint(): void {
    const width = this.element.clientWidth;
    if (!width) return;
    const scale = window.devicePixelRatio || 1;
    const [across, down] = [Math.round(width * scale), Math.round(this.height * scale)];
    if (this.canvas.width !== across || this.canvas.height !== down) {
      this.canvas.width = across;
      this.canvas.height = down;
      this.canvas.style.height = `${this.height}px`;
    }
    const context = this.canvas.getContext("2d");
    if (!context) return;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, this.height);
    context.font = "12px system-ui, sans-serif";
    this.paintAxis(context, width);
    let top = MARKS;
    for (const lane of this.data.lanes) {
      this.paintLane(context, lane, top + GAP - 6, width);
      top += HEIGHTS[lane.kind] + GAP;
    }
    this.paintMarks(context);
    const bottom = this.height - AXIS;
    for (const [time, tone] of [[this.cursor, "quiet"], [this.at, "accent"]] as const) {
      if (time === null || time < this.range.start || time > this.range.end) continue;
      context.strokeStyle = this.colour(tone);
      context.lineWidth = tone === "accent" ? 2 : 1;
      context.beginPath();
      context.moveTo(this.x(time), 0);
      context.lineTo(this.x(time), bottom);
      context.stroke();
    }
    if (this.dragged) {
      context.fillStyle = this.colour("accent");
      context.globalAlpha = 0.2;
      context.fillRect(this.x(this.dragged.from), 0, this.x(this.dragged.to) - this.x(this.dragged.from), bottom);
      context.globalAlpha = 1;
    }
    this.canvas.dataset["painted"] = `${this.range.start}-${this.range.end}`;
  }

  private paintAxis(context: CanvasRenderingContext2D, width: number): void {
    const style = getComputedStyle(document.documentElement);
    const bottom = this.height - AXIS;
    const found = ticks(this.range, Math.max(2, Math.floor((width - LEFT) / 90)));
    const step = found.length > 1 ? found[1]! - found[0]! : 60;
    context.lineWidth = 1;
    context.textAlign = "center";
    for (const time of found) {
      const x = this.x(time);
      context.strokeStyle = style.getPropertyValue("--line");
      context.beginPath();
      context.moveTo(x, MARKS);
      context.lineTo(x, bottom);
      context.stroke();
      context.fillStyle = style.getPropertyValue("--quiet");
      if (x > LEFT + 12 && x < width - 18) context.fillText(tickText(time, step), x, this.height - 6);
    }
    context.textAlign = "left";
    for (const gap of this.data.gaps ?? []) {
      const [from, to] = [Math.max(this.x(gap.start), LEFT), Math.min(this.x(gap.end), width - RIGHT)];
      if (to <= from) continue;
      context.fillStyle = style.getPropertyValue("--empty");
      context.fillRect(from, MARKS, Math.max(to - from, 2), bottom - MARKS);
      context.fillStyle = style.getPropertyValue("--quiet");
      if (to - from > 60) context.fillText(t("gap"), from + 4, bottom - 4);
    }
  }

  private paintLane(context: CanvasRenderingContext2D, lane: Lane, top: number, width: number): void {
    const style = getComputedStyle(document.documentElement);
    const height = HEIGHTS[lane.kind];
    const bottom = top + height;
    const most = Math.max(0, ...lane.lines.flatMap((line) => line.values.map((value) => value ?? 0)));
    const highest = lane.top !== undefined && most <= lane.top ? lane.top : roundUp(most, lane.unit);
    const y = (value: number): number => bottom - (height * value) / highest;
    context.fillStyle = style.getPropertyValue("--text");
    context.font = "600 12px system-ui, sans-serif";
    context.fillText(visible(lane.title), LEFT, top - 6);
    context.font = "12px system-ui, sans-serif";
    context.fillStyle = style.getPropertyValue("--quiet");
    context.strokeStyle = style.getPropertyValue("--line");
    context.textAlign = "right";
    for (const value of lane.kind === "bars" ? [0, highest] : [0, highest / 2, highest]) {
      context.fillText(amount(value, lane.unit), LEFT - 5, y(value) + 4);
      context.beginPath();
      context.moveTo(LEFT, y(value) + 0.5);
      context.lineTo(width - RIGHT, y(value) + 0.5);
      context.stroke();
    }
    context.textAlign = "left";
    context.save();
    context.beginPath();
    context.rect(LEFT, top - 2, width - LEFT - RIGHT, height + 4);
    context.clip();
    for (const line of lane.lines) {
      if (lane.kind === "bars") this.paintBars(context, line, y, bottom);
      else this.paintSteps(context, line, y);
    }
    context.restore();
  }

  private paintSteps(context: CanvasRenderingContext2D, line: Line, y: (value: number) => number): void {
    context.strokeStyle = this.colour(line.colour);
    context.lineWidth = 2;
    context.setLineDash([...(line.dash?.lengths ?? [])]);
    context.beginPath();
    let drawing = false;
    for (const [number, time] of this.data.times.entries()) {
      const value = line.values[number] ?? null;
      if (value === null) {
        drawing = false;
        continue;
      }
      const next = this.data.times[number + 1] ?? time + this.data.width;
      if (drawing) context.lineTo(this.x(time), y(value));
      else context.moveTo(this.x(time), y(value));
      context.lineTo(this.x(next), y(value));
      drawing = true;
    }
    context.stroke();
    context.setLineDash([]);
    context.lineWidth = 1;
  }

  private paintBars(context: CanvasRenderingContext2D, line: Line, y: (value: number) => number, bottom: number): void {
    context.fillStyle = this.colour(line.colour);
    for (const [place, time] of this.data.times.entries()) {
      const value = line.values[place];
      if (!value) continue;
      context.fillRect(this.x(time), y(value), Math.max(this.x(time + this.data.width) - this.x(time) - 1, 2), bottom - y(value));
    }
  }

  private paintMarks(context: CanvasRenderingContext2D): void {
    for (const mark of this.data.marks) {
      if (mark.time < this.range.start || mark.time > this.range.end) continue;
      const x = this.x(mark.time);
      context.strokeStyle = context.fillStyle = this.colour(mark.colour);
      context.globalAlpha = 0.45;
      context.beginPath();
      context.moveTo(x, MARKS);
      context.lineTo(x, this.height - AXIS);
      context.stroke();
      context.globalAlpha = 1;
      context.beginPath();
      const points: Record<Mark["shape"], [number, number][]> = {
        up: [[0, 2], [6, 13], [-6, 13]], down: [[-6, 2], [6, 2], [0, 13]], diamond: [[0, 1], [6, 7], [0, 13], [-6, 7]],
        square: [[-5, 2], [5, 2], [5, 12], [-5, 12]],
      };
      for (const [right, low] of points[mark.shape]) context.lineTo(x + right, low);
      context.closePath();
      context.fill();
    }
  }

  /** What there is at a time: the values of all lines, and the marks beside it. */
  describe(time: number): string {
    const number = spanAt(this.data.times, time);
    const values = number < 0 ? [] : this.data.lanes.flatMap((lane) => lane.lines.map((line) =>
      `${line.name} ${amount(line.values[number] ?? null, lane.unit)}`));
    const near = this.data.marks.filter((mark) => Math.abs(this.x(mark.time) - this.x(time)) <= NEAR).slice(0, 4).map((mark) => mark.text);
    return visible([shown(time), ...values, ...near].join(" · "));
  }

  private point(time: number, x: number, y: number): void {
    this.cursor = time;
    this.tip.hidden = false;
    this.tip.textContent = this.describe(time);
    this.tip.style.left = `${Math.max(4, Math.min(x + 14, window.innerWidth - 320))}px`;
    this.tip.style.top = `${y + 16}px`;
    this.paint();
  }

  private leave(): void {
    this.tip.hidden = true;
    this.cursor = null;
    this.dragged = null;
    this.paint();
  }

  private press(event: MouseEvent): void {
    const time = this.time(event.clientX - this.canvas.getBoundingClientRect().left);
    this.dragged = { from: time, to: time };
  }

  private move(event: MouseEvent): void {
    const time = this.time(event.clientX - this.canvas.getBoundingClientRect().left);
    if (this.dragged && event.buttons) this.dragged.to = time;
    this.point(time, event.clientX, event.clientY);
  }

  private release(event: MouseEvent): void {
    const dragged = this.dragged;
    this.dragged = null;
    if (!dragged) return;
    const [start, end] = [Math.min(dragged.from, dragged.to), Math.max(dragged.from, dragged.to)];
    if (this.x(end) - this.x(start) > NEAR) this.options.ranged?.({ start, end });
    else this.options.chosen?.(this.time(event.clientX - this.canvas.getBoundingClientRect().left));
  }

  private key(event: KeyboardEvent): void {
    const step = (this.range.end - this.range.start) / (event.shiftKey ? 10 : 100);
    const at = this.cursor ?? this.at ?? (this.range.start + this.range.end) / 2;
    const moves: Record<string, number> = { ArrowLeft: at - step, ArrowRight: at + step, Home: this.range.start, End: this.range.end };
    const moved = moves[event.key];
    const ranges: Record<string, () => Range> = {
      "+": () => zoomed(this.range, at, STEP_FACTOR, this.limits, this.data.width * 4),
      "-": () => zoomed(this.range, at, 1 / STEP_FACTOR, this.limits, this.data.width * 4), "0": () => this.limits,
      PageUp: () => panned(this.range, -0.5, this.limits), PageDown: () => panned(this.range, 0.5, this.limits),
    };
    const ranged = ranges[event.key];
    if (moved !== undefined) {
      const time = Math.min(Math.max(moved, this.range.start), this.range.end);
      const box = this.canvas.getBoundingClientRect();
      this.point(time, box.left + this.x(time), box.top + MARKS);
      this.said.textContent = this.describe(time);
    } else if (event.key === "Enter" || event.key === " ") {
      this.options.chosen?.(at);
    } else if (ranged) {
      this.options.ranged?.(ranged());
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }
}
