import { describe, expect, it } from "vitest";
import { heat } from "../src/colours";
import { borders, filled, heated, stamp, windowed } from "../src/pixels";
import { Camera } from "../src/view";
import { dragged, following, presets } from "../src/windows";

describe("pixels", () => {
  it("are black and white at the ends of the window, and clipped beyond", () => {
    const grey = windowed(Int16Array.from([-1000, -500, 0, 500]), 1, [-500, 0]);
    expect([0, 1, 2, 3].map((i) => grey[4 * i])).toEqual([0, 0, 255, 255]);
    expect([...windowed(Uint8Array.from([255, 0, 51]), 3, [0, 255])]).toEqual([255, 0, 51, 255]);
  });

  it("of maps are clear where nothing is", () => {
    expect([...filled(Uint8Array.from([0, 1]), () => [9, 8, 7], 0.2)]).toEqual([0, 0, 0, 0, 9, 8, 7, 51]);
    const map = heated(Uint8Array.from([0, 255]), 1);
    expect([...map]).toEqual([0, 0, 0, 0, ...heat(1), 255]);
  });

  it("have borders on all four sides, joined where they are straight", () => {
    const lines = borders(Uint8Array.from([0, 0, 0, 0, 1, 1]), { height: 2, width: 3 }, 1);
    expect(lines).toHaveLength(4);
    expect(lines).toEqual(expect.arrayContaining([[1, 1, 3, 1], [1, 2, 3, 2], [1, 1, 1, 2], [3, 1, 3, 2]]));
  });

  it("under a brush are a disc, and never outside the image", () => {
    const size = { height: 5, width: 5 };
    const mask = new Uint8Array(25);
    stamp(mask, size, { x: 2.5, y: 2.5 }, { x: 2.5, y: 2.5 }, 3, 1);
    expect([...mask]).toEqual([0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0]);
    stamp(mask, size, { x: -50, y: -50 }, { x: -40, y: 80 }, 9, 1);
    expect(mask.reduce((a, b) => a + b)).toBe(9);
    stamp(mask, size, { x: 0.5, y: 0.5 }, { x: 4.5, y: 0.5 }, 1, 2);
    expect([...mask.subarray(0, 5)]).toEqual([2, 2, 2, 2, 2]);
  });
});

describe("camera", () => {
  it("keeps the point under the mouse when it zooms", () => {
    const camera = new Camera();
    camera.fit({ height: 100, width: 200 }, { height: 400, width: 400 });
    const canvas = { height: 400, width: 400 };
    const point = camera.toImage(100, 150, canvas);
    camera.zoomBy(3, point);
    const after = camera.toImage(100, 150, canvas);
    expect(after.x).toBeCloseTo(point.x);
    expect(after.y).toBeCloseTo(point.y);
  });
});

describe("windows", () => {
  it("come in a circle, with those of CT where values are Hounsfield units", () => {
    const all = presets([0, 200], [0, 200]);
    expect(all).toEqual([[0, 200], [0, 100], [100, 200]]);
    expect(following([100, 200], all)).toEqual([0, 200]);
    expect(following([7, 9], all)).toEqual([0, 200]);
    expect(presets([-1000, 1000], [-1000, 1000])).toContainEqual([-1350, 150]);
  });

  it("never become empty by dragging", () => {
    const [low, high] = dragged([0, 10], -1e6, 0, [0, 300]);
    expect(high).toBeGreaterThan(low);
    expect(dragged([0, 10], 0, 5, [0, 300])).toEqual([5, 15]);
  });
});
