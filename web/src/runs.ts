// Maps as runs of pixels [start, length, value], in row-major order without zeros: how events carry them.

export type Run = readonly [start: number, length: number, value: number];
/** A map of labels: classes in 8 bits, ids of instances in 16. */
export type Labels = Uint8Array | Uint16Array;
export type Span = readonly [start: number, length: number];

/** The runs of a map. */
export function encode(map: Labels): Run[] {
  const runs: Run[] = [];
  for (let i = 0; i < map.length; ) {
    const value = map[i] ?? 0;
    let end = i + 1;
    while (end < map.length && map[end] === value) end += 1;
    if (value !== 0) runs.push([i, end - i, value]);
    i = end;
  }
  return runs;
}

/** The map of so many pixels with these runs. */
export function decode(runs: readonly Run[], size: number): Uint16Array {
  const map = new Uint16Array(size);
  for (const [start, length, value] of runs) map.fill(value, start, start + length);
  return map;
}

/** Where two maps differ. */
export function differences(before: Labels, after: Labels): Span[] {
  const spans: Span[] = [];
  for (let i = 0; i < after.length; i += 1) {
    if (before[i] === after[i]) continue;
    const start = i;
    while (i < after.length && before[i] !== after[i]) i += 1;
    spans.push([start, i - start]);
  }
  return spans;
}

/** A map of a part of an image, put into the whole. */
export function place(
  part: Labels,
  at: { y: number; x: number; height: number; width: number },
  size: { height: number; width: number },
): Uint16Array {
  const whole = new Uint16Array(size.height * size.width);
  for (let y = Math.max(0, -at.y); y < at.height && at.y + y < size.height; y += 1) {
    const from = Math.max(0, -at.x);
    const to = Math.min(at.width, size.width - at.x);
    if (to > from) whole.set(part.subarray(y * at.width + from, y * at.width + to), (at.y + y) * size.width + at.x + from);
  }
  return whole;
}
