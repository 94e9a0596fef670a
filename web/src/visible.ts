/** Texts of others as they are shown: hidden characters are seen, and none turns the direction of what is beside it. Pure. */

/** The characters that `koordpolicy.engine.escaping` keeps from terminals: control characters, invisible ones, and those for the direction. */
export const HIDDEN = new RegExp(
  "[\\0-\\x08\\x0b-\\x1f\\x7f-\\x9f"
  + "\\xad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ufeff\\uffa0\\ufff9-\\ufffb"
  + "\\u{1d173}-\\u{1d17a}\\u{e0000}-\\u{e0fff}\\ud800-\\udfff]", "gu");

/** A text with U+FFFD for each hidden character, as in the terminal. */
export function visible(text: string): string {
  return text.replace(HIDDEN, "\ufffd");
}
