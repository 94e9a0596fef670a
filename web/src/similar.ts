/** Names that are nearly the wanted one. Pure. */

const LONGEST = 253;

/** The known name that is nearest to a wanted one; undefined if none is near. */
export function nearest(wanted: string, known: readonly string[]): string | undefined {
  const most = Math.max(1, Math.floor(Math.min(wanted.length, LONGEST) / 3));
  let [best, distance] = [undefined as string | undefined, most + 1];
  for (const name of known) {
    const found = distanceOf(wanted.slice(0, LONGEST).toLowerCase(), name.slice(0, LONGEST).toLowerCase(), distance);
    if (found < distance) [best, distance] = [name, found];
  }
  return best;
}

/** The number of characters to insert, remove or replace; `limit` if it is not below that. */
function distanceOf(one: string, other: string, limit: number): number {
  if (Math.abs(one.length - other.length) >= limit) return limit;
  let before = Array.from({ length: other.length + 1 }, (_, place) => place);
  for (let row = 1; row <= one.length; row += 1) {
    const line = [row];
    for (let column = 1; column <= other.length; column += 1) {
      const replaced = before[column - 1]! + (one[row - 1] === other[column - 1] ? 0 : 1);
      line.push(Math.min(replaced, before[column]! + 1, line[column - 1]! + 1));
    }
    if (Math.min(...line) >= limit) return limit;
    before = line;
  }
  return before[other.length]!;
}
