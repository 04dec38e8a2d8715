// Instances in a map of ids: which one lies where, in how many samples it is whole, and how strokes merge and split.

import { DISTINCT, distinct, type Colour } from "./colours";
import type { Place } from "./api";
import type { Point, Size } from "./pixels";
import { differences, encode, place, type Labels, type Run, type Span } from "./runs";

export const MAX_ID = 2 ** 16 - 1;
const [WHOLE, MOST] = [0.9, 0.5];
/** Smaller parts of an instance that is cut are crumbs of the stroke. */
const MIN_PART = 4;
/** Pixels up to which two instances are neighbours, which have different colours. */
const NEAR = 3;
/** White, the last one, marks what is selected. */
const NUM_COLOURS = DISTINCT.length - 1;

/** The id at a point; 0 is background. */
export function idAt(labels: Labels, { height, width }: Size, { x, y }: Point): number {
  const [column, row] = [Math.floor(x), Math.floor(y)];
  return column < 0 || row < 0 || column >= width || row >= height ? 0 : (labels[row * width + column] ?? 0);
}

/** The ids of a map, in the order in which rows from the top meet them. */
export function idsOf(labels: Labels): number[] {
  const found = new Set<number>(labels);
  found.delete(0);
  return [...found];
}

export function areaOf(labels: Labels, id: number): number {
  let area = 0;
  for (const label of labels) if (label === id) area += 1;
  return area;
}

/** So many ids that the map does not have. */
export function newIds(labels: Labels, count: number): number[] {
  const used = new Set<number>(labels);
  const found: number[] = [];
  let next = 1;
  for (const id of used) next = Math.max(next, id + 1);
  if (next + count - 1 > MAX_ID) next = 1;
  for (; found.length < count && next <= MAX_ID; next += 1) if (!used.has(next)) found.push(next);
  if (found.length < count) throw new Error(`A map holds ${MAX_ID} instances; merge or erase some.`);
  return found;
}

/** Pairs of different ids whose pixels are at most so far from each other, along rows, columns and diagonals. */
function forNeighbours(labels: Labels, { height, width }: Size, far: number, act: (a: number, b: number) => void): void {
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) {
      const a = labels[y * width + x] ?? 0;
      if (a === 0) continue;
      for (let step = 1; step <= far; step += 1) {
        for (const [dx, dy] of [[step, 0], [0, step], [step, step], [-step, step]] as const) {
          if (x + dx < 0 || x + dx >= width || y + dy >= height) continue;
          const b = labels[(y + dy) * width + x + dx] ?? 0;
          if (b !== 0 && b !== a) act(a, b);
        }
      }
    }
  }
}

/** A number of a colour for every id; neighbours have different ones while there are enough. */
export function colouring(labels: Labels, size: Size): Map<number, number> {
  const near = new Map<number, Set<number>>();
  const add = (a: number, b: number): void => {
    const known = near.get(a);
    if (known) known.add(b);
    else near.set(a, new Set([b]));
  };
  forNeighbours(labels, size, NEAR, (a, b) => {
    add(a, b);
    add(b, a);
  });
  const colours = new Map<number, number>();
  for (const id of idsOf(labels).sort((a, b) => a - b)) {
    const times = Array.from({ length: NUM_COLOURS }, () => 0);
    for (const other of near.get(id) ?? []) {
      const colour = colours.get(other);
      if (colour !== undefined) times[colour] = (times[colour] ?? 0) + 1;
    }
    const order = times.map((_, i) => (id - 1 + i) % NUM_COLOURS);
    const least = Math.min(...times);
    colours.set(id, order.find((colour) => times[colour] === least) ?? 0);
  }
  return colours;
}

const known = new WeakMap<Labels, { colours: Map<number, number>; numbers: Uint8Array | null }>();

/** The colour of each id of a map, remembered until `keepColours`. */
export function colourOf(labels: Labels, size: Size): (id: number) => Colour {
  const { colours } = found(labels, size);
  return (id) => distinct(numberOf(colours, id));
}

/** A map that is being changed in place has the colours of the one that it comes from. */
export function keepColours(labels: Labels, from: Labels, size: Size): void {
  known.set(labels, { colours: found(from, size).colours, numbers: null });
}

/** A map with the numbers of colours from 1 on instead of ids, since outlines of a few colours are quick to find. */
export function colourNumbers(labels: Labels, size: Size): Uint8Array {
  const entry = found(labels, size);
  entry.numbers ??= Uint8Array.from(labels, (id) => (id === 0 ? 0 : numberOf(entry.colours, id) + 1));
  return entry.numbers;
}

function numberOf(colours: ReadonlyMap<number, number>, id: number): number {
  return colours.get(id) ?? (id - 1) % NUM_COLOURS;
}

function found(labels: Labels, size: Size): { colours: Map<number, number>; numbers: Uint8Array | null } {
  let entry = known.get(labels);
  if (!entry) known.set(labels, (entry = { colours: colouring(labels, size), numbers: null }));
  return entry;
}

/** Instances with a pixel beside or diagonal to one of this instance. */
export function touching(labels: Labels, size: Size, id: number): Set<number> {
  const found = new Set<number>();
  forNeighbours(labels, size, 1, (a, b) => {
    if (a === id) found.add(b);
    if (b === id) found.add(a);
  });
  return found;
}

/**
 * In how many samples an instance is whole: one of the random ids covers at least 90 % of its pixels, and at most half
 * of every instance that it touches.
 */
export function numWhole(
  labels: Labels,
  size: Size,
  id: number,
  { samples, place, foreground }: { samples: Uint8Array; place: Place; foreground: readonly number[] },
): number {
  const others = touching(labels, size, id);
  const pixels = new Map<number, number[]>([id, ...others].map((each) => [each, []])); // within the part that was sampled
  const areas = new Map<number, number>();
  labels.forEach((label: number, i: number) => {
    const inside = pixels.get(label);
    if (!inside) return;
    areas.set(label, (areas.get(label) ?? 0) + 1);
    const [y, x] = [Math.floor(i / size.width) - place.y, (i % size.width) - place.x];
    if (x >= 0 && y >= 0 && x < place.width && y < place.height) inside.push(y * place.width + x);
  });
  const length = place.height * place.width;
  const share = (label: number, start: number): Float64Array => {
    const shares = new Float64Array(256); // of each value
    const area = areas.get(label) ?? 1;
    for (const i of pixels.get(label) ?? []) shares[samples[start + i] ?? 0] = (shares[samples[start + i] ?? 0] ?? 0) + 1;
    return shares.map((count) => count / area);
  };
  let count = 0;
  for (let start = 0; start + length <= samples.length; start += length) {
    const mine = share(id, start);
    const value = foreground.find((each) => (mine[each] ?? 0) >= WHOLE);
    if (value !== undefined && [...others].every((other) => (share(other, start)[value] ?? 0) <= MOST)) count += 1;
  }
  return count;
}

/** The pixels that a stroke marks, of these ids only. */
function idsUnder(labels: Labels, stroke: Labels): Set<number> {
  const found = new Set<number>();
  stroke.forEach((value: number, i: number) => {
    if (value) found.add(labels[i] ?? 0);
  });
  found.delete(0);
  return found;
}

/** What becomes `into` if the instances under a stroke are merged; none if it meets no other one. */
export function merged(labels: Labels, stroke: Labels, into: number): Span[] {
  const all = idsUnder(labels, stroke);
  const after = labels.map((label) => (all.has(label) ? into : label));
  return into === 0 ? [] : differences(labels, after);
}

/** Numbers of the connected parts (4 neighbours) of what belongs to them, from 1 on, and their sizes. */
function partsOf(belongs: (i: number) => boolean, { height, width }: Size): { parts: Int32Array; sizes: number[] } {
  const parts = new Int32Array(height * width);
  const sizes = [0];
  for (let first = 0; first < parts.length; first += 1) {
    if (parts[first] !== 0 || !belongs(first)) continue;
    const [part, queue] = [sizes.length, [first]];
    parts[first] = part;
    for (let i = queue.pop(), size = 1; i !== undefined; i = queue.pop(), size += 1) {
      sizes[part] = size;
      for (const next of around(i, { height, width })) {
        if (parts[next] === 0 && belongs(next)) {
          parts[next] = part;
          queue.push(next);
        }
      }
    }
  }
  return { parts, sizes };
}

function around(i: number, { height, width }: Size): number[] {
  const x = i % width;
  const found = [i - width, i + width].filter((next) => next >= 0 && next < height * width);
  if (x > 0) found.push(i - 1);
  if (x < width - 1) found.push(i + 1);
  return found;
}

/**
 * What changes if a stroke cuts the instances under it: of the parts that it leaves, the largest keeps the id, and the
 * others get new ones. A stroke over two pieces of one instance that are apart separates them. Pixels under the stroke
 * stay with the nearest part, so nothing is lost.
 */
export function split(labels: Labels, size: Size, stroke: Labels): Run[] {
  const after = Uint16Array.from(labels);
  for (const [id, box] of boxesOf(labels, size, idsUnder(labels, stroke))) {
    const cut = (map: Labels): Uint16Array => place(map, { y: -box.y, x: -box.x, ...size }, box);
    const part = cut(labels);
    const before = part.slice();
    splitOne(before, box, cut(stroke), id, part, (count) => newIds(after, count));
    part.forEach((value, i) => {
      if (value !== before[i]) after[(box.y + Math.floor(i / box.width)) * size.width + box.x + (i % box.width)] = value;
    });
  }
  const spans = differences(labels, after);
  const changed = new Uint16Array(labels.length);
  for (const [start, length] of spans) changed.set(after.subarray(start, start + length), start);
  return encode(changed);
}

/** The smallest box around each of these ids. */
function boxesOf(labels: Labels, { width }: Size, ids: ReadonlySet<number>): Map<number, Place> {
  const boxes = new Map<number, Place>();
  labels.forEach((id: number, i: number) => {
    if (!ids.has(id)) return;
    const [y, x] = [Math.floor(i / width), i % width];
    const box = boxes.get(id) ?? { y, x, height: 1, width: 1 };
    const left = Math.min(box.x, x);
    boxes.set(id, { y: box.y, x: left, height: y + 1 - box.y, width: Math.max(box.x + box.width, x + 1) - left });
  });
  return boxes;
}

function splitOne(
  labels: Labels,
  size: Size,
  stroke: Labels,
  id: number,
  after: Uint16Array,
  fresh: (count: number) => number[],
): void {
  const pieces = partsOf((i) => labels[i] === id, size);
  const touched = new Set<number>();
  const kept = new Set<number>(); // pieces that the stroke leaves something of
  pieces.parts.forEach((piece, i) => {
    if (piece === 0) return;
    if (stroke[i]) touched.add(piece);
    else kept.add(piece);
  });
  const isCut = (i: number): boolean => Boolean(stroke[i]) && kept.has(pieces.parts[i] ?? 0);
  const { parts, sizes } = partsOf((i) => touched.has(pieces.parts[i] ?? 0) && !isCut(i), size);
  const largest = new Map<number, number>(); // of each piece
  parts.forEach((part, i) => {
    const piece = pieces.parts[i] ?? 0;
    if (part > 0) largest.set(piece, Math.max(largest.get(piece) ?? 0, sizes[part] ?? 0));
  });
  const isCrumb = (i: number): boolean => {
    const most = largest.get(pieces.parts[i] ?? 0) ?? 0;
    return (sizes[parts[i] ?? 0] ?? 0) < MIN_PART && most >= MIN_PART;
  };
  const crumbs = new Set<number>();
  parts.forEach((part, i) => {
    if (part > 0 && isCrumb(i)) crumbs.add(part);
  });
  for (const part of crumbs) sizes[part] = 0;
  const left = sizes.map((_, part) => part).filter((part) => part > 0 && !crumbs.has(part));
  if (left.length < 2) return;
  left.sort((a, b) => (sizes[b] ?? 0) - (sizes[a] ?? 0));
  const found = fresh(left.length - 1);
  const ids = new Map(left.slice(1).map((part, i) => [part, found[i] ?? id]));
  // Parts grow over the stroke, all at the same time.
  let front: number[] = [];
  parts.forEach((part, i) => {
    if (crumbs.has(part)) parts[i] = 0;
    else if (part > 0) front.push(i);
  });
  while (front.length > 0) {
    const grown: number[] = [];
    for (const i of front) {
      for (const next of around(i, size)) {
        if (parts[next] !== 0 || pieces.parts[next] !== pieces.parts[i]) continue;
        parts[next] = parts[i] ?? 0;
        grown.push(next);
      }
    }
    front = grown;
  }
  parts.forEach((part, i) => {
    if (part > 0) after[i] = ids.get(part) ?? id;
  });
}
