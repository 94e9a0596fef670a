import assert from "node:assert/strict";
import { test } from "node:test";
import { LANGUAGES, t } from "../src/texts.ts";

const places = (text: string): string[] => Array.from(text.matchAll(/\{\d\}/g), ([place]) => place).sort();
/** Words that Chinese users know by the same name. */
const SAME = new Set(["pod", "podsCard", "language", "waitingGang", "kind_pod"]);

test("every text is in all languages, with the same places for values", () => {
  const { en, zh } = LANGUAGES;
  assert.deepEqual(Object.keys(zh).sort(), Object.keys(en).sort());
  const differing = Object.entries(en).filter(([key, text]) => String(places(text)) !== String(places(zh[key as keyof typeof zh])));
  assert.deepEqual(differing, []);
});

test("Chinese texts are Chinese", () => {
  const foreign = Object.entries(LANGUAGES.zh).filter(([key, text]) => !/\p{Script=Han}/u.test(text) && !SAME.has(key));
  assert.deepEqual(foreign.map(([key]) => key), []);
});

test("no text is empty, and sentences end as sentences", () => {
  const odd = Object.entries(LANGUAGES).flatMap(([language, texts]) => Object.entries(texts).filter(([, text]) =>
    !text.trim() || text !== text.trim()).map(([key]) => `${language}.${key}`));
  assert.deepEqual(odd, []);
});

test("numbers have separators and all their digits, and names of digits are as they are", () => {
  Object.defineProperty(globalThis, "localStorage", { value: { getItem: () => "en" }, configurable: true });
  assert.deepEqual(
    [t("passedOf", 4999, 5000), t("scored", 1234.56789), t("byGeneration", "1234")],
    ["4,999 of 5,000 nodes pass", "score 1,234.56789", "by generation 1234"]);
});
