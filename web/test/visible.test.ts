import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { HIDDEN, visible } from "../src/visible.ts";

test("characters that hide, or turn the direction, are seen, and all others stay", () => {
  for (const hidden of ["\u202e", "\u2066", "\u2069", "\u200b", "\u061c", "\0", "\x1b", "\r", "\x9b", "\ufeff", "\u{e0041}", "\ud800"]) {
    assert.equal(visible(`a${hidden}b${hidden}`), "a\ufffdb\ufffd", JSON.stringify(hidden));
  }
  for (const text of ["line\n\ttab", "节点 (4,990)", "שלום", "😀", ""]) assert.equal(visible(text), text);
});

test("they are those that the terminal does not get", () => {
  const python = readFileSync(new URL("../../../engine/escaping.py", import.meta.url), "utf-8");
  for (const part of HIDDEN.source.replace(/\\u\{([0-9a-f]+)\}/g, (_, code: string) => `\\U${code.padStart(8, "0")}`).replace("\\0", "\\x00").match(/\\[xuU][0-9a-f]+(-\\[xuU][0-9a-f]+)?/g) ?? []) {
    assert.ok(python.includes(part), part);
  }
});
