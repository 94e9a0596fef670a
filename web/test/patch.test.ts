import assert from "node:assert/strict";
import { test } from "node:test";
import { patchOf } from "../src/patch.ts";
import { nearest } from "../src/similar.ts";

const text = (...lines: string[]): string => lines.map((line) => `${line}\n`).join("");

test("a patch has each change with three lines around it", () => {
  const before = text("a", "b", "c", "d", "e", "f", "g", "h");
  const after = text("a", "b", "c", "d", "E", "f", "g", "h", "i");
  assert.equal(patchOf(before, after, "policies/x.yaml"), text(
    "--- a/policies/x.yaml", "+++ b/policies/x.yaml", "@@ -2,7 +2,8 @@", " b", " c", " d", "-e", "+E", " f", " g", " h", "+i"));
});

test("changes that are far apart are hunks of their own", () => {
  const middle = Array.from({ length: 9 }, (_, number) => `m${number}`);
  assert.equal(patchOf(text("a", ...middle, "z"), text("A", ...middle, "Z"), "x"), text(
    "--- a/x", "+++ b/x", "@@ -1,4 +1,4 @@", "-a", "+A", " m0", " m1", " m2", "@@ -8,4 +8,4 @@", " m6", " m7", " m8", "-z", "+Z"));
});

test("a new file, an emptied one and a last line without an end are written as git does", () => {
  assert.equal(patchOf("", text("a"), "x"), text("--- /dev/null", "+++ b/x", "@@ -0,0 +1,1 @@", "+a"));
  assert.equal(patchOf(text("a"), "", "x"), text("--- a/x", "+++ b/x", "@@ -1,1 +0,0 @@", "-a"));
  assert.equal(patchOf("a", text("a"), "x"), text("--- a/x", "+++ b/x", "@@ -1,1 +1,1 @@", "-a", "\\ No newline at end of file", "+a"));
  assert.equal(patchOf(text("a"), text("a"), "x"), "");
});

test("a path cannot add lines to a patch", () => {
  assert.equal(patchOf("", text("a"), "x\n+++ b/etc").split("\n")[1], '+++ "b/x\\n+++ b/etc"');
});

test("texts that are too large to compare are replaced as a whole", () => {
  const [before, after] = [0, 1].map((start) => text(...Array.from({ length: 3000 }, (_, number) => `${number * 2 + start}`)));
  const patch = patchOf(before!, after!, "x").split("\n");
  assert.equal(patch[2], "@@ -1,3000 +1,3000 @@");
});

test("the nearest name is suggested, and none that is another word", () => {
  assert.equal(nearest("keep-of-hot-nodes", ["prefer-zone", "keep-off-hot-nodes"]), "keep-off-hot-nodes");
  assert.equal(nearest("nope", ["prefer-zone", "keep-off-hot-nodes"]), undefined);
});
