import { describe, expect, it } from "vitest";
import { cellAt, middleOf, Newest, sigmasOf, signed } from "../src/latents";
import { addressOf, readLink, type Link } from "../src/link";

const SCALE = { height: 2, width: 4, channels: 1 };

describe("cells", () => {
  const place = { x: 10, y: 20, width: 30, height: 14 };
  const grid = { x: 9, y: 19, width: 32, height: 16 }; // padded by a pixel on all sides

  it("divide the padded crop evenly", () => {
    expect(cellAt({ x: 10.5, y: 20.5 }, SCALE, grid, place)).toEqual({ x: 9, y: 19, width: 8, height: 8 });
    expect(cellAt({ x: 39.5, y: 33.5 }, SCALE, grid, place)).toEqual({ x: 33, y: 27, width: 8, height: 8 });
    expect(cellAt({ x: 17, y: 27 }, SCALE, grid, place)).toEqual({ x: 17, y: 27, width: 8, height: 8 });
  });

  it("are only of what was sampled", () => {
    for (const [x, y] of [[9.5, 25], [40, 25], [20, 19.9], [20, 34]] as const) {
      expect(cellAt({ x, y }, SCALE, grid, place)).toBeNull();
    }
  });

  it("have a middle that was sampled", () => {
    expect(middleOf({ x: 17, y: 19, width: 8, height: 8 }, place)).toEqual([21, 23.5]);
    expect(middleOf({ x: 9, y: 19, width: 8, height: 8 }, { x: 16, y: 26, width: 1, height: 1 })).toEqual([16.5, 26.5]);
  });
});

describe("a drag", () => {
  it("is a σ per 40 pixels, upwards, within bounds", () => {
    expect([40, -20, 1, 0, 9999].map(sigmasOf)).toEqual([1, -0.5, 0.05, 0, 20]);
    expect(signed(-0.5)).toBe("−0.50 σ");
    expect(signed(sigmasOf(-0.1))).toBe("+0.00 σ");
  });
});

describe("requests", () => {
  it("are one at a time, and skip all but the newest", async () => {
    const asked: number[] = [];
    const answers: (() => void)[] = [];
    const newest = new Newest<number>((value) => {
      asked.push(value);
      return new Promise((resolve) => answers.push(resolve));
    });
    const done = [newest.want(1), newest.want(2), newest.want(3)];
    expect(asked).toEqual([1]);
    answers[0]?.();
    await new Promise((resolve) => setTimeout(resolve));
    expect(asked).toEqual([1, 3]);
    answers[1]?.();
    await Promise.all(done);
    await newest.settled();
    expect(asked).toEqual([1, 3]);
  });

  it("go on after one that failed", async () => {
    const newest = new Newest<boolean>((isGood) => (isGood ? Promise.resolve() : Promise.reject(new Error("no"))));
    await expect(newest.want(false)).rejects.toThrow("no");
    await expect(newest.want(true)).resolves.toBeUndefined();
  });
});

describe("links", () => {
  const source = { hypothesis: 1, share: 0.5, seed: 7, num_samples: 16, at: [3, 4] as [number, number], state: { name: "ö" }, num_edits: 2 };
  const link: Link = { case: 3, slice: 1, source };
  const page = { origin: "http://127.0.0.1:8765", pathname: "/", search: "?token=secret" };

  it("lead back to what they were made from, and hold no password", () => {
    const address = addressOf(link, page);
    expect(address).toMatch(/^http:\/\/127\.0\.0\.1:8765\/#case=3&slice=1&state=[\w-]+$/);
    expect(readLink(new URL(address).hash)).toEqual(link);
  });

  it("are nothing if they are broken", () => {
    const { hash } = new URL(addressOf(link, page));
    const wrong = (change: object): string =>
      new URL(addressOf({ ...link, source: { ...source, ...change } }, page)).hash;
    const broken = ["", "#top", hash.slice(0, -9), hash.replace("case=3", "case=-1"), hash.replace("slice=1", "slice=x")];
    broken.push(wrong({ state: null }), wrong({ num_samples: 65 }), wrong({ share: "1" }), wrong({ at: [1] }), wrong({ seed: 0.5 }));
    for (const fragment of broken) expect(readLink(fragment)).toBeNull();
    expect(readLink(wrong({ more: 1 }))).toEqual(link); // only what is known
  });
});
