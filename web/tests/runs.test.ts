import { describe, expect, it } from "vitest";
import { decode, differences, encode, place } from "../src/runs";

describe("runs", () => {
  it("hold the pixels that are not zero", () => {
    const map = Uint16Array.from([0, 1, 1, 2, 0, 0, 3]);
    expect(encode(map)).toEqual([[1, 2, 1], [3, 1, 2], [6, 1, 3]]);
    expect(decode(encode(map), map.length)).toEqual(map);
    expect(encode(new Uint16Array(5))).toEqual([]);
  });

  it("of differences cover every changed pixel and no other", () => {
    const [before, after] = [Uint16Array.from([0, 1, 1, 0, 2]), Uint16Array.from([1, 1, 0, 0, 0])];
    expect(differences(before, after)).toEqual([[0, 1], [2, 1], [4, 1]]);
  });

  it("place a part in the whole and cut what is outside", () => {
    const part = Uint16Array.from([1, 2, 3, 4]);
    const size = { height: 2, width: 3 };
    expect([...place(part, { y: 0, x: 1, height: 2, width: 2 }, size)]).toEqual([0, 1, 2, 0, 3, 4]);
    expect([...place(part, { y: -1, x: 2, height: 2, width: 2 }, size)]).toEqual([0, 0, 3, 0, 0, 0]);
    expect([...place(part, { y: 1, x: -1, height: 2, width: 2 }, size)]).toEqual([0, 0, 0, 2, 0, 0]);
  });
});
