import { describe, expect, it } from "vitest";
import { History, type Source } from "../src/history";
import { areaOf, colouring, idAt, idsOf, merged, newIds, numWhole, split, touching } from "../src/instances";
import { stamp } from "../src/pixels";
import { decode, encode, type Labels, type Run } from "../src/runs";

/** A map of one digit per pixel. */
function map(...rows: string[]): { labels: Uint16Array; size: { height: number; width: number } } {
  const labels = Uint16Array.from(rows.join("").replaceAll(".", "0"), Number);
  return { labels, size: { height: rows.length, width: rows[0]?.length ?? 0 } };
}

function show(labels: Labels, width: number): string[] {
  const text = [...labels].map((label) => (label === 0 ? "." : String(label))).join("");
  return Array.from({ length: labels.length / width }, (_, y) => text.slice(y * width, (y + 1) * width));
}

function changed(labels: Labels, runs: Run[]): Labels {
  const after = labels.slice();
  for (const [start, length, value] of runs) after.fill(value, start, start + length);
  return after;
}

describe("ids of a map", () => {
  const { labels, size } = map("11.2", "11.2", "..33");

  it("are found by place, with their areas and who touches whom", () => {
    expect(idAt(labels, size, { x: 3.9, y: 1.1 })).toBe(2);
    expect([idAt(labels, size, { x: -1, y: 0 }), idAt(labels, size, { x: 0, y: 3 })]).toEqual([0, 0]);
    expect(idsOf(labels)).toEqual([1, 2, 3]);
    expect([1, 2, 3, 4].map((id) => areaOf(labels, id))).toEqual([4, 2, 2, 0]);
    expect([1, 2, 3].map((id) => [...touching(labels, size, id)].sort())).toEqual([[3], [3], [1, 2]]);
  });

  it("are new above all others, and below if there is no room", () => {
    expect(newIds(labels, 2)).toEqual([4, 5]);
    expect(newIds(Uint16Array.of(0, 1, 65535), 2)).toEqual([2, 3]);
    const full = Uint16Array.from({ length: 65536 }, (_, i) => i);
    expect(() => newIds(full, 1)).toThrow("65535");
  });

  it("beyond 255 survive events", () => {
    const source: Source = { hypothesis: 0, share: 1, seed: 0, num_samples: 16, at: null };
    const many = Uint16Array.from({ length: 400 }, (_, i) => i);
    const history = new History(400, [{ kind: "choose", slice: 0, value_map: encode(many), source }]);
    expect([...history.mask(0)]).toEqual([...many]);
    history.add({ kind: "relabel", slice: 0, value_map: [[0, 2, 777], [2, 1, 0]] });
    expect([...history.mask(0).slice(0, 4)]).toEqual([777, 777, 0, 3]);
    history.add({ kind: "undo" });
    expect([...history.mask(0)]).toEqual([...many]);
  });
});

describe("colours", () => {
  it("differ between neighbours, also across a thin gap, whatever their ids", () => {
    const { labels, size } = map("18.8", "1111", "...5"); // alone, 1 and 8 have the first of 7 colours
    const colours = colouring(labels, size);
    expect(colours.get(1)).toBe(0);
    expect(colours.get(8)).not.toBe(0);
    expect(new Set(colours.values()).size).toBe(3);
  });

  it("are shared where instances are far apart, and taken evenly where there are too few", () => {
    expect([...colouring(map("1......8").labels, { height: 1, width: 8 }).values()]).toEqual([0, 0]);
    const labels = Uint16Array.from({ length: 9 }, (_, i) => i + 1);
    expect(new Set(colouring(labels, { height: 3, width: 3 }).values()).size).toBe(7);
  });
});

describe("an instance", () => {
  const { labels, size } = map("1111122222", "1111122222");
  const place = { y: 0, x: 0, ...size };
  const foreground = [1, 2, 3];
  const whole = (rows: string[][], id = 1): number =>
    numWhole(labels, size, id, { samples: Uint8Array.from(rows.flatMap((each) => [...map(...each).labels])), place, foreground });

  it("is whole where one id covers 90 % of it, and not most of its neighbour", () => {
    expect(whole([["3333311111", "3333311111"]])).toBe(1);
    expect(whole([["3333.11111", "3333311111"]])).toBe(1); // 9 of 10
    expect(whole([["333..11111", "3333311111"]])).toBe(0);
    expect(whole([["3333333311", "3333333..."]])).toBe(1); // 5 of 10 of the neighbour
    expect(whole([["3333333333", "33333333.."]])).toBe(0); // 8 of 10
    expect(whole([["..........", ".........."]])).toBe(0);
    expect(whole([["1111122222", "1111122222"], ["3333333333", "3333333333"], ["2222211111", "2222211111"]])).toBe(2);
  });

  it("is not whole by background or a class that is no id", () => {
    const samples = new Uint8Array(20).fill(1);
    expect(numWhole(labels, size, 1, { samples, place, foreground: [2, 3] })).toBe(0);
  });

  it("is not whole beyond the part that was sampled", () => {
    const samples = Uint8Array.from(map("33333", "33333").labels);
    expect(numWhole(labels, size, 1, { samples, place: { y: 0, x: 0, height: 2, width: 5 }, foreground })).toBe(1);
    expect(numWhole(labels, size, 2, { samples, place: { y: 0, x: 0, height: 2, width: 5 }, foreground })).toBe(0);
    const right = { y: 0, x: 5, height: 2, width: 5 };
    expect(numWhole(labels, size, 2, { samples, place: right, foreground })).toBe(1);
  });
});

describe("a stroke", () => {
  it("merges what it meets into the instance where it began", () => {
    const { labels } = map("11.22", "11.22", "33333");
    const stroke = map(".1111", ".....", ".....").labels;
    const spans = merged(labels, stroke, 1).map(([start, length]): Run => [start, length, 1]);
    expect(show(changed(labels, spans), 5)).toEqual(["11.11", "11.11", "33333"]);
    expect(merged(labels, map("1....", ".....", ".....").labels, 1)).toEqual([]);
    expect(merged(labels, stroke, 0)).toEqual([]);
  });

  it("cuts an instance, and every pixel stays with the nearest part", () => {
    const { labels, size } = map("1111111", "1111111", "2222222");
    const stroke = map("...11..", "...11..", ".......").labels;
    expect(show(changed(labels, split(labels, size, stroke)), 7)).toEqual(["1111333", "1111333", "2222222"]);
  });

  it("that is thin and slanted cuts too", () => {
    const { labels, size } = map(...Array.from({ length: 8 }, () => "11111111"));
    const stroke = new Uint8Array(64);
    stamp(stroke, size, { x: 0.5, y: 0.5 }, { x: 7.5, y: 7.5 }, 1, 1);
    const after = changed(labels, split(labels, size, stroke));
    expect(idsOf(after)).toHaveLength(2);
    expect(areaOf(after, 0)).toBe(0);
  });

  it("that does not go through changes nothing", () => {
    const { labels, size } = map("1111111", "1111111", "1111111");
    expect(split(labels, size, map("...1...", "...1...", ".......").labels)).toEqual([]);
    expect(split(labels, size, map("1111111", "1111111", "1111111").labels)).toEqual([]);
  });

  it("leaves no crumbs as instances", () => {
    const { labels, size } = map("1111111", "1111111", "1111111");
    const stroke = map("...1...", "...1.1.", "...1..1").labels; // the corner at the lower right is cut off
    const after = changed(labels, split(labels, size, stroke));
    expect(idsOf(after)).toHaveLength(2);
  });

  it("separates pieces of one instance that are apart, and only those that it meets", () => {
    const { labels, size } = map("111..11", "111..11", ".......", "11.....", "11.....");
    const stroke = map("..1111.", ".......", ".......", ".......", ".......").labels;
    expect(show(changed(labels, split(labels, size, stroke)), 7)).toEqual(["111..22", "111..22", ".......", "11.....", "11....."]);
    const over = map(".......", ".......", ".......", "111....", ".......").labels;
    expect(split(labels, size, over)).toEqual([]);
  });

  it("cuts several instances at once, each into ids of its own", () => {
    const { labels, size } = map("11111", "11111", "11111", "22222", "22222", "22222");
    const stroke = map("..1..", "..1..", "..1..", "..1..", "..1..", "..1..").labels;
    const after = changed(labels, split(labels, size, stroke));
    expect(idsOf(after).sort()).toEqual([1, 2, 3, 4]);
    expect(areaOf(after, 0)).toBe(0);
  });

  it("is one step, which one undo takes back", () => {
    const { labels, size } = map("11111111", "11111111");
    const stroke = map("..1..1..", "..1..1..").labels;
    const source: Source = { hypothesis: 0, share: 1, seed: 0, num_samples: 16, at: null };
    const history = new History(16, [{ kind: "choose", slice: 0, value_map: encode(labels), source }]);
    history.add({ kind: "relabel", slice: 0, value_map: split(labels, size, stroke) });
    expect(idsOf(history.mask(0))).toHaveLength(3);
    history.add({ kind: "undo" });
    expect([...history.mask(0)]).toEqual([...decode(encode(labels), 16)]);
  });
});
