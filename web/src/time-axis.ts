/** Axes of charts over time: ranges, ticks and their texts. Times are in seconds since the epoch, and shown as UTC. */

export interface Range {
  start: number;
  end: number;
}

const STEPS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
const DAY = 86400;

/** The times of at most `most` ticks in a range, at round distances. */
export function ticks(range: Range, most: number): number[] {
  const length = range.end - range.start;
  if (!(length > 0) || most < 1) return [];
  const step = STEPS.find((each) => length / each <= most) ?? DAY * 7 * Math.ceil(length / (DAY * 7 * most));
  const found = [];
  for (let number = Math.ceil(range.start / step); number * step <= range.end; number += 1) found.push(Math.round(number * step * 10) / 10);
  return found;
}

/** The text of a tick among others `step` apart: the time of day, or the date where days begin. */
export function tickText(time: number, step: number): string {
  const iso = new Date(Math.round(time * 1000)).toISOString();
  if (step >= DAY || time % DAY === 0) return iso.slice(5, 10);
  return step < 1 ? iso.slice(11, 21) : step < 60 ? iso.slice(11, 19) : iso.slice(11, 16);
}

/** A time as RFC 3339, without a fraction if it has none. */
export function timeText(time: number): string {
  return new Date(Math.round(time * 1000)).toISOString().replace(".000Z", "Z");
}

/** A time with its date for people: `2026-11-02 09:30:00`. */
export function shown(time: number): string {
  return timeText(time).replace("T", " ").replace("Z", "");
}

/** The seconds since the epoch of RFC 3339; null if it is no time. */
export function parseTime(text: string): number | null {
  const found = /^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:\d{2})?$/.exec(text.trim());
  if (!found) return null;
  const time = Date.parse(text.trim().replace(" ", "T") + (found[3] ? "" : "Z"));
  return Number.isNaN(time) ? null : time / 1000;
}

/** A range that is `factor` times as long around a time, within limits and not shorter than `least`. */
export function zoomed(range: Range, at: number, factor: number, limits: Range, least: number): Range {
  const length = Math.min(Math.max((range.end - range.start) * factor, least), limits.end - limits.start);
  const part = range.end > range.start ? (at - range.start) / (range.end - range.start) : 0.5;
  return within({ start: at - length * part, end: at + length * (1 - part) }, limits);
}

/** A range of the same length that begins later by a part of it, within limits. */
export function panned(range: Range, part: number, limits: Range): Range {
  const by = (range.end - range.start) * part;
  return within({ start: range.start + by, end: range.end + by }, limits);
}

/** A range in whole milliseconds, as addresses have it. */
export function rounded(range: Range): Range {
  return { start: Math.round(range.start * 1000) / 1000, end: Math.round(range.end * 1000) / 1000 };
}

function within(range: Range, limits: Range): Range {
  const length = Math.min(range.end - range.start, limits.end - limits.start);
  const start = Math.min(Math.max(range.start, limits.start), limits.end - length);
  return { start, end: start + length };
}

/** The number of the last of ascending times that is not after a time; -1 if all are. */
export function spanAt(times: readonly number[], time: number): number {
  let [low, high] = [0, times.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle]! <= time) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** A round number that is not less than a value: 1, 2 or 5 times a power of ten; of bytes in Ki, Mi, Gi and so on. */
export function roundUp(value: number, unit = ""): number {
  if (!(value > 0)) return 1;
  if (unit === "bytes" && value > 1024) {
    const size = 1024 ** Math.floor(Math.log(value) / Math.log(1024));
    return size * roundUp(value / size);
  }
  const power = 10 ** Math.floor(Math.log10(value));
  const found = [1, 2, 5, 10].find((each) => each * power >= value * (1 - 1e-9)) ?? 10;
  return found * power;
}
