import assert from "node:assert/strict";
import { test } from "node:test";
import { link, parse, setPast } from "../src/route.ts";
import { panned, parseTime, roundUp, shown, spanAt, tickText, ticks, timeText, zoomed } from "../src/time-axis.ts";

const NOON = 1793620800;

test("ticks are at round times, and no more than there is room for", () => {
  assert.deepEqual(ticks({ start: NOON + 100, end: NOON + 1000 }, 4).map((time) => time - NOON), [300, 600, 900]);
  assert.deepEqual(ticks({ start: NOON, end: NOON + 1 }, 5).map((time) => Math.round((time - NOON) * 10)), [0, 2, 4, 6, 8, 10]);
  assert.deepEqual([ticks({ start: 5, end: 5 }, 4), ticks({ start: 0, end: 9 }, 0)], [[], []]);
  for (const length of [1, 60, 5000, 86400, 86400 * 400]) assert.ok(ticks({ start: NOON, end: NOON + length }, 7).length <= 8, `${length}`);
});

test("texts of ticks are times of day, and dates where days begin", () => {
  assert.deepEqual([tickText(NOON, 300), tickText(NOON, 30), tickText(NOON + 0.5, 0.5), tickText(NOON - 43200, 3600), tickText(NOON, 86400)],
    ["12:00", "12:00:00", "12:00:00.5", "11-02", "11-02"]);
});

test("a time is written as it is read", () => {
  assert.equal(timeText(NOON), "2026-11-02T12:00:00Z");
  assert.equal(parseTime(timeText(NOON + 0.25)), NOON + 0.25);
  assert.deepEqual(["2026-11-02 12:00", "2026-11-02T13:00:00+01:00", shown(NOON), "noon", "2026-13-02T12:00:00Z", ""].map((text) => parseTime(text)),
    [NOON, NOON, NOON, null, null, null]);
});

test("a zoom holds the time under the cursor, within limits", () => {
  const limits = { start: 0, end: 1000 };
  assert.deepEqual(zoomed({ start: 0, end: 1000 }, 250, 0.5, limits, 10), { start: 125, end: 625 });
  assert.deepEqual(zoomed({ start: 125, end: 625 }, 250, 4, limits, 10), { start: 0, end: 1000 });
  assert.deepEqual(zoomed({ start: 100, end: 120 }, 110, 0.1, limits, 10), { start: 105, end: 115 });
  assert.deepEqual([panned({ start: 100, end: 300 }, 0.5, limits), panned({ start: 100, end: 300 }, -1, limits), panned({ start: 800, end: 1000 }, 1, limits)],
    [{ start: 200, end: 400 }, { start: 0, end: 200 }, { start: 800, end: 1000 }]);
});

test("a span is found by its time", () => {
  assert.deepEqual([9, 10, 19, 20, 99].map((time) => spanAt([10, 20, 30], time)), [-1, 0, 0, 1, 2]);
  assert.equal(spanAt([], 5), -1);
});

test("scales end at round numbers", () => {
  assert.deepEqual([0, 0.3, 1, 3, 7, 100, 101, 4999].map((value) => roundUp(value)), [1, 0.5, 1, 5, 10, 100, 200, 5000]);
  assert.deepEqual([roundUp(1500, "bytes"), roundUp(60 * 2 ** 30, "bytes"), roundUp(900, "bytes")], [2048, 100 * 2 ** 30, 1000]);
});

test("links lead to the same time while a time of the past is shown", () => {
  setPast("2026-11-02T12:00:00Z");
  assert.deepEqual(parse(link("pod", { key: "a/b" })), { view: "pod", query: { at: "2026-11-02T12:00:00Z", key: "a/b" } });
  assert.deepEqual(parse(link("pod", { key: "a/b", at: "2026-11-02T13:00:00Z" })).query, { at: "2026-11-02T13:00:00Z", key: "a/b" });
  assert.equal(link("time"), "#/time");
  setPast("");
  assert.equal(link("map"), "#/map");
});
