/** Small charts of a figure over the last minutes, on a canvas with a description in words. */

import { h } from "./dom.ts";
import { whole } from "./paint.ts";

/** Parts of a line: places from 0 to 1 in both directions, y downwards; a point without a value ends a part. */
export function segments(times: readonly number[], points: readonly (number | null)[]): { x: number; y: number }[][] {
  const values = points.filter((each): each is number => each !== null);
  const top = Math.max(...values, 0) || 1;
  const first = times[0] ?? 0;
  const span = (times.at(-1) ?? 0) - first || 1;
  const found: { x: number; y: number }[][] = [];
  let part: { x: number; y: number }[] = [];
  for (const [number, value] of points.entries()) {
    if (value === null) {
      if (part.length) found.push(part);
      part = [];
    } else part.push({ x: ((times[number] ?? 0) - first) / span, y: 1 - value / top });
  }
  if (part.length) found.push(part);
  return found;
}

/** A line chart from 0 to the highest value. */
export function spark(times: readonly number[], points: readonly (number | null)[], label: string): HTMLElement {
  const canvas = h("canvas", { class: "spark", role: "img", "aria-label": label });
  const paint = (): void => {
    if (!canvas.isConnected || !canvas.clientWidth) return;
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const context = canvas.getContext("2d")!;
    const style = getComputedStyle(canvas);
    context.scale(ratio, ratio);
    context.strokeStyle = style.getPropertyValue("--line");
    context.beginPath();
    context.moveTo(0, height - 0.5);
    context.lineTo(width, height - 0.5);
    context.stroke();
    context.strokeStyle = style.getPropertyValue("--bar");
    context.fillStyle = style.getPropertyValue("--bar");
    context.lineWidth = 1.5;
    for (const part of segments(times, points)) {
      const at = part.map(({ x, y }) => [1.5 + x * (width - 3), 2 + y * (height - 4)] as const);
      context.beginPath();
      for (const [x, y] of at) context.lineTo(x, y);
      context.stroke();
      const last = at.at(-1)!;
      if (at.length === 1) context.fillRect(last[0] - 1.5, last[1] - 1.5, 3, 3);
    }
  };
  new ResizeObserver(paint).observe(canvas);
  return whole(canvas);
}
