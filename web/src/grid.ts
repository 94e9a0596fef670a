/** The layout of the map: where each node's square is. Pure, so that it can be tested without a page. */

export interface Block {
  name: string;
  top: number;
  left: number;
  width: number;
}

export interface Layout {
  /** The edge of a square with its gap, in CSS pixels. */
  pitch: number;
  height: number;
  blocks: Block[];
  x: Float32Array;
  y: Float32Array;
}

export const TITLE = 22;
const GAP = 10;
const SMALLEST = 5;
const LARGEST = 84;
/** The least pitch of squares that have room for a name. */
export const NAMED = 44;

/** Arranges groups below each other; squares are as large as the wanted height permits. */
export function arrange(sizes: readonly number[], names: readonly string[], groupOf: readonly number[], width: number,
  wanted: number): Layout {
  let pitch = LARGEST;
  for (; pitch > SMALLEST; pitch -= 1) {
    if (heightOf(sizes, columns(width, pitch), pitch) <= wanted) break;
  }
  const across = columns(width, pitch);
  const blocks: Block[] = [];
  let top = 0;
  for (const [group, size] of sizes.entries()) {
    blocks.push({ name: names[group] ?? "", top, left: 0, width: Math.min(size, across) * pitch });
    top += TITLE + Math.ceil(size / across) * pitch + GAP;
  }
  const x = new Float32Array(groupOf.length);
  const y = new Float32Array(groupOf.length);
  const next = sizes.map(() => 0);
  for (const [row, group] of groupOf.entries()) {
    const place = next[group]!++;
    x[row] = (place % across) * pitch;
    y[row] = blocks[group]!.top + TITLE + Math.floor(place / across) * pitch;
  }
  return { pitch, height: Math.max(top, TITLE), blocks, x, y };
}

/** The row at a point, or -1. */
export function rowAt(layout: Layout, x: number, y: number): number {
  for (let row = 0; row < layout.x.length; row += 1) {
    const [left, top] = [layout.x[row]!, layout.y[row]!];
    if (x >= left && x < left + layout.pitch && y >= top && y < top + layout.pitch) return row;
  }
  return -1;
}

function columns(width: number, pitch: number): number {
  return Math.max(1, Math.floor(width / pitch));
}

function heightOf(sizes: readonly number[], across: number, pitch: number): number {
  return sizes.reduce((sum, size) => sum + TITLE + Math.ceil(size / across) * pitch + GAP, 0);
}
