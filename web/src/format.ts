/** Amounts as text, with few digits. */

const BINARY = [["Ti", 1024 ** 4], ["Gi", 1024 ** 3], ["Mi", 1024 ** 2], ["Ki", 1024]] as const;

export function amount(value: number | null, unit: string): string {
  if (value === null) return "–";
  if (unit === "milli-cores") return short(value / 1000);
  if (unit === "bytes") {
    const found = BINARY.find(([, size]) => Math.abs(value) >= size);
    return found ? short(value / found[1]) + found[0] : short(value);
  }
  return unit === "%" ? `${short(value)} %` : short(value);
}

export function short(value: number): string {
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  return value.toLocaleString("en-US", { maximumFractionDigits: Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 1 ? 1 : 3 });
}

/** Seconds as a short duration. */
export function duration(seconds: number): string {
  if (seconds < 1) return `${short(seconds * 1000)} ms`;
  if (seconds < 120) return `${short(Math.round(seconds))} s`;
  if (seconds < 7200) return `${short(Math.round(seconds / 60))} min`;
  return seconds < 172_800 ? `${short(Math.round(seconds / 3600))} h` : `${short(Math.round(seconds / 86_400))} d`;
}

/** An offset in code points of an offset in UTF-16 units, as the server counts. */
export function codePoints(text: string, offset: number): number {
  return Array.from(text.slice(0, offset)).length;
}

/** An offset in UTF-16 units of a 1-based line and a 1-based column in code points. */
export function offsetAt(text: string, line: number, column: number): number {
  let start = 0;
  for (let number = 1; number < line; number += 1) {
    const end = text.indexOf("\n", start);
    if (end < 0) return text.length;
    start = end + 1;
  }
  const end = text.indexOf("\n", start);
  const content = Array.from(text.slice(start, end < 0 ? text.length : end));
  return start + content.slice(0, column - 1).join("").length;
}
