import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { KeptDraft, storedDraft, storedFiles } from "../src/drafts.ts";

class Memory {
  private readonly items = new Map<string, string>();
  full = false;
  get length(): number { return this.items.size; }
  key(number: number): string | null { return [...this.items.keys()][number] ?? null; }
  getItem(key: string): string | null { return this.items.get(key) ?? null; }
  removeItem(key: string): void { this.items.delete(key); }
  setItem(key: string, value: string): void {
    if (this.full) throw new Error("full");
    this.items.set(key, value);
  }
}

let shared = new Memory();

/** Goes to a tab: drafts that are made, and what is written, are of it until another one is gone to. */
function inTab(session: Memory): void {
  Object.defineProperty(globalThis, "localStorage", { value: shared, configurable: true });
  Object.defineProperty(globalThis, "sessionStorage", { value: session, configurable: true });
}

beforeEach(() => { shared = new Memory(); inTab(new Memory()); });

test("each file has a draft, and one that is as its file is none", () => {
  const draft = new KeptDraft("a.yaml", "start");
  assert.deepEqual([draft.text, draft.changed, storedFiles()], ["start", false, []]);
  draft.write("edit");
  new KeptDraft("", "first").write("new");
  new KeptDraft("b.yaml", "other").write("edit of b");
  assert.deepEqual(storedFiles(), ["", "a.yaml", "b.yaml"]);
  assert.equal(new KeptDraft("a.yaml", "start").text, "edit");
  assert.equal(storedDraft("b.yaml")?.text, "edit of b");
  draft.write("start");
  assert.deepEqual(storedFiles(), ["", "b.yaml"]);
});

test("a draft knows whether its file has changed since it was begun, and is none once the file is as it", () => {
  new KeptDraft("a.yaml", "one").write("edit");
  assert.equal(new KeptDraft("a.yaml", "one").outdated, false);
  const late = new KeptDraft("a.yaml", "two");
  assert.deepEqual([late.text, late.outdated], ["edit", true]);
  late.write("edit more");
  assert.equal(new KeptDraft("a.yaml", "two").outdated, true);
  assert.equal(new KeptDraft("a.yaml", "edit more").changed, false);
  assert.deepEqual(storedFiles(), []);
});

test("two tabs that write one draft lose neither text before somebody chooses", () => {
  const [one, two] = [new Memory(), new Memory()];
  inTab(one);
  const first = new KeptDraft("a.yaml", "start");
  first.write("of one");
  inTab(two);
  const second = new KeptDraft("a.yaml", "start");
  assert.equal(second.text, "of one");
  second.write("of two");
  inTab(one);
  assert.equal(first.heard(), true);
  assert.equal(first.conflict, true);
  first.write("of one, more");
  assert.equal(storedDraft("a.yaml")?.text, "of two");
  const again = new KeptDraft("a.yaml", "start"); // the tab was loaded again
  assert.deepEqual([again.text, again.conflict], ["of one, more", true]);
  assert.equal(again.takeOther(), "of two");
  assert.equal(again.conflict, false);
  assert.equal(new KeptDraft("a.yaml", "start").text, "of two");
});

test("a change of another tab that nobody heard of is noticed by the next key", () => {
  const [one, two] = [new Memory(), new Memory()];
  inTab(one);
  const first = new KeptDraft("a.yaml", "start");
  inTab(two);
  new KeptDraft("a.yaml", "start").write("of two");
  inTab(one);
  first.write("of one");
  assert.equal(first.conflict, true);
  assert.equal(storedDraft("a.yaml")?.text, "of two");
  first.keepOwn();
  assert.deepEqual([first.conflict, storedDraft("a.yaml")?.text], [false, "of one"]);
});

test("a tab that has written nothing takes the text of the other one, and keeps nothing of its own", () => {
  const [one, two] = [new Memory(), new Memory()];
  inTab(one);
  const first = new KeptDraft("a.yaml", "start");
  inTab(two);
  const second = new KeptDraft("a.yaml", "start");
  for (const text of ["of two", "of two, more"]) {
    inTab(two);
    second.write(text);
    inTab(one);
    assert.equal(first.heard(), true);
    first.write(first.text); // the editor shows it
    assert.deepEqual([first.text, first.conflict, one.length], [text, false, 0]);
  }
  const again = new KeptDraft("a.yaml", "start"); // the tab was loaded again
  assert.deepEqual([again.text, again.conflict], ["of two, more", false]);
  first.write("of one");
  assert.deepEqual([first.conflict, storedDraft("a.yaml")?.text], [false, "of one"]);
  inTab(two);
  second.heard();
  assert.deepEqual([second.text, second.conflict], ["of two, more", true]);
});

test("a tab whose text is again that of the file takes the text of the other one", () => {
  const [one, two] = [new Memory(), new Memory()];
  inTab(one);
  const first = new KeptDraft("a.yaml", "start");
  first.write("of one");
  first.write("start");
  inTab(two);
  new KeptDraft("a.yaml", "start").write("of two");
  inTab(one);
  first.heard();
  assert.deepEqual([first.text, first.conflict, one.length], ["of two", false, 0]);
});

test("a tab that has been loaded again knows what it has written itself", () => {
  const [one, two] = [new Memory(), new Memory()];
  inTab(one);
  new KeptDraft("a.yaml", "start").write("of one");
  const again = new KeptDraft("a.yaml", "start");
  inTab(two);
  const second = new KeptDraft("a.yaml", "start");
  second.write("of two");
  inTab(one);
  again.heard();
  assert.deepEqual([again.text, again.conflict], ["of one", true]);
  again.takeOther();
  const taken = new KeptDraft("a.yaml", "start");
  inTab(two);
  second.write("of two, more");
  inTab(one);
  taken.heard();
  assert.deepEqual([taken.text, taken.conflict, one.length], ["of two, more", false, 0]);
});

test("a draft that another tab discards stays in a tab that shows it until somebody chooses", () => {
  const [one, two] = [new Memory(), new Memory()];
  inTab(two);
  const second = new KeptDraft("a.yaml", "start");
  second.write("edit");
  inTab(one);
  const first = new KeptDraft("a.yaml", "start");
  inTab(two);
  second.write("start");
  inTab(one);
  first.heard();
  assert.deepEqual([first.text, first.conflict], ["edit", true]);
  inTab(two);
  second.write("other");
  inTab(one);
  first.heard();
  assert.deepEqual([first.text, first.conflict], ["edit", true]);
});

test("a text that both tabs have is no conflict", () => {
  const [one, two] = [new Memory(), new Memory()];
  inTab(one);
  const first = new KeptDraft("a.yaml", "start");
  first.write("same");
  inTab(two);
  const second = new KeptDraft("a.yaml", "start");
  second.write("other");
  second.write("same");
  inTab(one);
  first.heard();
  assert.equal(first.conflict, false);
});

test("a full browser keeps nothing, and says so until it does again", () => {
  const draft = new KeptDraft("a.yaml", "start");
  shared.full = true;
  draft.write("edit");
  assert.equal(draft.kept, false);
  shared.full = false;
  draft.write("edit 2");
  assert.deepEqual([draft.kept, storedDraft("a.yaml")?.text], [true, "edit 2"]);
});
