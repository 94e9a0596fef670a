/** Differences of two texts as a patch that `git apply` and `patch -p1` take. Pure. */

type Step = readonly [sign: " " | "-" | "+", line: string];

const CONTEXT = 3;
/** The largest table of a comparison; beyond it the part that differs is replaced as a whole. */
const MOST_CELLS = 4_000_000;
const NO_END = "\\ No newline at end of file";

/** Returns a patch of one file; an empty `before` makes a new file. Empty if the texts are equal. */
export function patchOf(before: string, after: string, path: string): string {
  if (before === after) return "";
  const steps = compare(lines(before), lines(after));
  const head = before ? [`--- ${quoted(`a/${path}`)}`, `+++ ${quoted(`b/${path}`)}`] : ["--- /dev/null", `+++ ${quoted(`b/${path}`)}`];
  return [...head, ...hunks(steps)].map((line) => `${line}\n`).join("");
}

/** The lines of a text with their ends: the last one may have none. */
function lines(text: string): string[] {
  return text.match(/[^\n]*\n|[^\n]+$/g) ?? [];
}

function quoted(path: string): string {
  // eslint-disable-next-line no-control-regex
  return /["\\\x00-\x1f\x7f]/.test(path) ? JSON.stringify(path) : path;
}

/** The steps from one list of lines to another, with as few changes as there can be. */
export function compare(before: readonly string[], after: readonly string[]): Step[] {
  let start = 0;
  while (start < before.length && start < after.length && before[start] === after[start]) start += 1;
  let end = 0;
  while (end < before.length - start && end < after.length - start && before.at(-1 - end) === after.at(-1 - end)) end += 1;
  const old = before.slice(start, before.length - end);
  const fresh = after.slice(start, after.length - end);
  return [...before.slice(0, start).map((line): Step => [" ", line]), ...middle(old, fresh),
    ...before.slice(before.length - end).map((line): Step => [" ", line])];
}

function middle(old: readonly string[], fresh: readonly string[]): Step[] {
  const width = fresh.length + 1;
  if (old.length * width > MOST_CELLS) return [...old.map((line): Step => ["-", line]), ...fresh.map((line): Step => ["+", line])];
  // The length of the longest common subsequence of the rests that begin at a pair of lines.
  const common = new Uint32Array((old.length + 1) * width);
  for (let row = old.length - 1; row >= 0; row -= 1) {
    for (let column = fresh.length - 1; column >= 0; column -= 1) {
      common[row * width + column] = old[row] === fresh[column] ? common[(row + 1) * width + column + 1]! + 1
        : Math.max(common[(row + 1) * width + column]!, common[row * width + column + 1]!);
    }
  }
  const steps: Step[] = [];
  let [row, column] = [0, 0];
  while (row < old.length || column < fresh.length) {
    if (row < old.length && column < fresh.length && old[row] === fresh[column]) {
      steps.push([" ", old[row]!]);
      [row, column] = [row + 1, column + 1];
    } else if (row < old.length && (column === fresh.length || common[(row + 1) * width + column]! >= common[row * width + column + 1]!)) {
      steps.push(["-", old[row]!]);
      row += 1;
    } else {
      steps.push(["+", fresh[column]!]);
      column += 1;
    }
  }
  return steps;
}

function hunks(steps: readonly Step[]): string[] {
  const changed = steps.flatMap(([sign], place) => (sign === " " ? [] : [place]));
  const ranges: [number, number][] = [];
  for (const place of changed) {
    const last = ranges.at(-1);
    if (last && place - last[1] <= 2 * CONTEXT) last[1] = place;
    else ranges.push([place, place]);
  }
  return ranges.flatMap(([first, last]) => {
    const from = Math.max(0, first - CONTEXT);
    const to = Math.min(steps.length, last + 1 + CONTEXT);
    const part = steps.slice(from, to);
    const count = (sign: "-" | "+", of: readonly Step[]): number => of.filter(([each]) => each === " " || each === sign).length;
    const side = (sign: "-" | "+"): string => {
      const size = count(sign, part);
      return `${count(sign, steps.slice(0, from)) + (size ? 1 : 0)},${size}`;
    };
    return [`@@ -${side("-")} +${side("+")} @@`, ...part.flatMap(([sign, line]) =>
      line.endsWith("\n") ? [sign + line.slice(0, -1)] : [sign + line, NO_END])];
  });
}
