import assert from "node:assert/strict";
import { test } from "node:test";
import { amount, codePoints, duration, offsetAt } from "../src/format.ts";
import { arrange, rowAt } from "../src/grid.ts";
import { classColour, inkOn, luminance, range, shade } from "../src/palette.ts";
import { link, parse } from "../src/route.ts";
import { segments } from "../src/spark.ts";

test("nodes are arranged in their groups, from left to right and below each other", () => {
  const layout = arrange([3, 1], ["a", "b"], [0, 1, 0, 0], 170, 10_000);
  assert.deepEqual([...layout.x], [0, 0, 84, 0]);
  assert.deepEqual([...layout.y], [22, 22 + 2 * 84 + 10 + 22, 22, 22 + 84]);
  assert.deepEqual(layout.blocks.map((block) => block.name), ["a", "b"]);
});

test("5,000 nodes fit into the wanted height, and every square is found at its place", () => {
  const groups = Array.from({ length: 5000 }, (_, row) => row % 5);
  const layout = arrange([1000, 1000, 1000, 1000, 1000], ["a", "b", "c", "d", "e"], groups, 1300, 700);
  assert.ok(layout.height <= 700, `${layout.height}`);
  assert.deepEqual(Array.from(groups, (_, row) => rowAt(layout, layout.x[row]! + 1, layout.y[row]! + 1)), Array.from(groups, (_, row) => row));
  assert.equal(rowAt(layout, 1, 1), -1);
});

test("an address says what is shown, and says it again when it is read", () => {
  const query = { expression: "a == 'x&y' ? 1 : 2 % 3", group: "pool" };
  assert.deepEqual(parse(link("map", query)), { view: "map", query });
  assert.deepEqual(parse(""), { view: "map", query: {} });
  assert.equal(link("map", { node: "" }), "#/map");
});

test("amounts have few digits and the units of Kubernetes", () => {
  assert.deepEqual([amount(14080, "milli-cores"), amount(2 ** 30, "bytes"), amount(89, "%"), amount(null, "%"), amount(1234567, "")],
    ["14.1", "1Gi", "89 %", "–", "1,234,567"]);
});

test("places are counted in code points, as the server counts them", () => {
  const text = "a: 𝒳\nb: 𝒳 end";
  const offset = text.indexOf("end");
  assert.equal(codePoints(text, offset), offset - 2);
  assert.equal(offsetAt(text, 2, 6), offset);
  assert.equal(offsetAt(text, 9, 1), text.length);
});

test("scales begin dark and end light, percentages cover 0 to 100", () => {
  assert.deepEqual([shade(0), shade(1), shade(-1), shade(2)], ["rgb(0,34,78)", "rgb(254,232,56)", "rgb(0,34,78)", "rgb(254,232,56)"]);
  assert.deepEqual([range(8, 89, "%"), range(8, 189, "%"), range(3, 3, ""), range(null, null, "")], [[0, 100], [8, 189], [3, 4], [0, 1]]);
});

test("text on every colour has a contrast of at least 4.5", () => {
  const colours = [...Array.from({ length: 21 }, (_, step) => shade(step / 20)), ...Array.from({ length: 13 }, (_, code) => classColour(code, "")),
    classColour(0, "true"), classColour(0, "false")];
  for (const colour of colours) {
    const parts = colour.startsWith("#") ? [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16)) : colour.match(/\d+/g)!.map(Number);
    const [ink, ground] = [inkOn(colour) === "#000000" ? 0 : 1, luminance(parts)];
    assert.ok((Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05) >= 4.5, colour);
  }
});

test("a chart begins at 0, and points without a value part its line", () => {
  assert.deepEqual(segments([-10, -5, 0], [0, 2, 4]), [[{ x: 0, y: 1 }, { x: 0.5, y: 0.5 }, { x: 1, y: 0 }]]);
  assert.deepEqual(segments([-10, -5, 0], [1, null, 1]), [[{ x: 0, y: 0 }], [{ x: 1, y: 0 }]]);
  assert.deepEqual(segments([], []), []);
  assert.deepEqual(segments([0], [0]), [[{ x: 0, y: 1 }]]);
});

test("durations have one unit", () => {
  assert.deepEqual([0.0123, 1, 119, 121, 7300, 200_000].map(duration), ["12.3 ms", "1 s", "119 s", "2 min", "2 h", "2 d"]);
});
