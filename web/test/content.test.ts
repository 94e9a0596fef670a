import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";

/** Charts write their legends, which nobody can focus; all else goes through `paint.ts`. */
const PAINTERS = ["chart.ts", "paint.ts", "time-chart.ts"];

test("content is changed, and buttons are disabled, in ways that leave the focus where it is", () => {
  const files = readdirSync("src", { recursive: true, encoding: "utf-8" }).filter((file) => file.endsWith(".ts"));
  assert.ok(files.includes("views/map.ts"));
  const others = files.filter((file) => /replaceChildren|innerHTML|\.disabled = /.test(readFileSync(`src/${file}`, "utf-8")));
  assert.deepEqual(others.sort(), PAINTERS);
});
