/** Colours that people with colour blindness can tell apart: cividis for numbers, Okabe and Ito's for classes. */

/** Stops of cividis (Nuñez, Anderton, Renslow 2018), low to high. */
const CIVIDIS = [
  [0, 34, 78], [18, 53, 112], [59, 73, 108], [87, 93, 109], [112, 113, 115],
  [138, 134, 120], [165, 156, 116], [195, 179, 105], [225, 204, 85], [254, 232, 56],
] as const;
/** Okabe and Ito (2008), without black; then shades for further classes. */
const CLASSES = [
  "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999", "#4b3f8f", "#8c5a2b",
  "#7fb800", "#c2185b", "#607d8b",
] as const;
export const TRUTH = { false: "#d55e00", true: "#0072b2" } as const;

/** The colour of a value between 0 and 1. */
export function shade(part: number): string {
  const place = Math.min(Math.max(part, 0), 1) * (CIVIDIS.length - 1);
  const low = Math.floor(place);
  const [from, to] = [CIVIDIS[low]!, CIVIDIS[Math.min(low + 1, CIVIDIS.length - 1)]!];
  const mixed = from.map((value, channel) => Math.round(value + (to[channel]! - value) * (place - low)));
  return `rgb(${mixed.join(",")})`;
}

export function classColour(number: number, name: string): string {
  if (name === "true" || name === "false") return TRUTH[name];
  return CLASSES[number % CLASSES.length]!;
}

/** The range that a scale covers: 0 to 100 for percentages of that size, else that of the values. */
export function range(lowest: number | null, highest: number | null, unit: string): [number, number] {
  if (lowest === null || highest === null) return [0, 1];
  if (unit === "%" && lowest >= 0 && highest <= 100) return [0, 100];
  return lowest === highest ? [lowest, lowest + 1] : [lowest, highest];
}

/** Black or white, whichever is easier to read on a colour (`#rrggbb` or `rgb(r,g,b)`). */
export function inkOn(colour: string): string {
  const parts = colour.startsWith("#")
    ? [1, 3, 5].map((start) => parseInt(colour.slice(start, start + 2), 16))
    : (colour.match(/\d+/g) ?? []).map(Number);
  return luminance(parts) > 0.179 ? "#000000" : "#ffffff";
}

/** The relative luminance of WCAG 2, 0 to 1. */
export function luminance(parts: readonly number[]): number {
  const [red = 0, green = 0, blue = 0] = parts.map((value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
