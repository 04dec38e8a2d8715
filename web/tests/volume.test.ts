import { describe, expect, it, vi } from "vitest";
import { Refused, type Api, type Case, type Prediction } from "../src/api";
import { History, type Event } from "../src/history";
import { Outbox, type Storage } from "../src/outbox";
import { Camera } from "../src/view";
import { aspectOf, inside, PLANES, pointOn, Recent, sizeOf, voxelAt, Volume, type Solid } from "../src/volume";

const SOLID: Solid = { slices: 3, height: 4, width: 5 };
const source = { hypothesis: 1, share: 0.5, seed: 0, num_samples: 16, at: null };

/** Masks of all slices, one after the other. */
function whole(history: History): number[] {
  return [0, 1, 2].flatMap((z) => [...history.mask(z)]);
}

describe("planes", () => {
  it("have the sizes and shapes of pixels that the spacing says", () => {
    expect(PLANES.map((plane) => sizeOf(plane, SOLID))).toEqual([
      { height: 4, width: 5 },
      { height: 3, width: 5 },
      { height: 3, width: 4 },
    ]);
    const item = { spacing: [0.5, 0.8] as [number, number], spacing_z: 2, ascends: true };
    expect(PLANES.map((plane) => aspectOf(plane, item))).toEqual([0.625, -2.5, -4]);
    expect(PLANES.map((plane) => aspectOf(plane, { spacing: null, spacing_z: null, ascends: false }))).toEqual([1, 1, 1]);
  });

  it("show a voxel where a click finds it again", () => {
    const voxel = { z: 2, y: 1, x: 4 };
    for (const plane of PLANES) expect(voxelAt(plane, pointOn(plane, voxel), voxel)).toEqual(voxel);
    expect(voxelAt("sagittal", { x: 3.2, y: 0.9 }, voxel)).toEqual({ z: 0, y: 3, x: 4 });
    expect(inside({ z: -1, y: 9, x: 2 }, SOLID)).toEqual({ z: 0, y: 3, x: 2 });
  });

  it("fit with tall pixels, and with rows that go up", () => {
    const camera = new Camera();
    camera.aspect = -4;
    const canvas = { height: 120, width: 500 };
    camera.fit({ height: 3, width: 5 }, canvas);
    expect(camera.zoom).toBeCloseTo(10 * 0.97);
    const high = camera.toImage(250, 1, canvas);
    expect(high.y).toBeGreaterThan(2.5);
    expect(high.x).toBeCloseTo(2.5);
    camera.moveBy(0, 4 * camera.zoom); // a row down on the canvas
    expect(camera.centre.y).toBeCloseTo(2.5);
  });
});

describe("the history of a volume", () => {
  const volume: Event = { kind: "choose-volume", value_map: [[3, 4, 1], [18, 2, 2], [21, 1, 1], [40, 20, 1]], source };
  const events: Event[] = [
    { kind: "paint", slice: 0, value: 1, runs: [[0, 20]] },
    volume,
    { kind: "paint", slice: 1, value: 2, runs: [[4, 9]] },
    { kind: "choose", slice: 2, value_map: [[6, 9, 1]], source },
    { kind: "clear", slice: 0 },
    { kind: "paint", slice: 0, value: 1, runs: [[9, 2]] },
  ];

  it("has on every plane what its slices have there, after every step", () => {
    for (let count = 0; count <= events.length; count += 1) {
      const history = new History(20, events.slice(0, count));
      const all = whole(history);
      for (let y = 0; y < 4; y += 1) {
        const row = [0, 1, 2].flatMap((z) => all.slice(z * 20 + y * 5, z * 20 + y * 5 + 5));
        expect([...history.plane("coronal", y, SOLID)]).toEqual(row);
      }
      for (let x = 0; x < 5; x += 1) {
        const column = [0, 1, 2].flatMap((z) => [0, 1, 2, 3].map((y) => all[z * 20 + y * 5 + x]));
        expect([...history.plane("sagittal", x, SOLID)]).toEqual(column);
      }
    }
  });

  it("chooses all slices in one step, which one undo takes back", () => {
    const history = new History(20, [volume]);
    expect(whole(history).map((value, i) => (value ? `${i}:${value}` : "")).join(" ").trim().split(/ +/)).toHaveLength(27);
    expect(history.mask(1)[1]).toBe(1);
    expect(history.origin(2)).toEqual({ source, isEdited: false });
    expect(history.isOfVolume(2)).toBe(true);
    expect(history.numSlices).toBe(Infinity);
    history.add({ kind: "clear", slice: 2 });
    expect(history.isOfVolume(2)).toBe(false);
    history.add({ kind: "undo" });
    expect(history.plane("coronal", 1, SOLID).some(Boolean)).toBe(true);
    expect(history.add({ kind: "undo" })).toBeNull();
    expect(whole(history).some(Boolean)).toBe(false);
    expect(history.plane("coronal", 1, SOLID).some(Boolean)).toBe(false);
    expect(history.isTouched).toBe(false);
  });
});

describe("the planes that the page keeps", () => {
  it("are bounded, and those used last stay", () => {
    const kept = new Recent<string>(10);
    kept.put("a", "A", 4);
    kept.put("b", "B", 4);
    expect(kept.get("a")).toBe("A");
    kept.put("c", "C", 4);
    expect([kept.get("a"), kept.get("b"), kept.get("c")]).toEqual(["A", null, "C"]);
    kept.put("d", "D", 99);
    expect([kept.get("a"), kept.get("d")]).toEqual([null, "D"]);
  });

  it("are asked for once, and drawn again when the server has forgotten them", async () => {
    let name = "v1";
    const planes = vi.fn((asked: string) => (asked === name ? Promise.resolve([new Uint8Array(4)]) : Promise.reject(new Refused(404, "gone"))));
    const draw = vi.fn(() => Promise.resolve({ prediction: name } as Prediction));
    const volume = new Volume({ planes, volume: draw } as unknown as Api, { id: 0 } as Case);
    expect(await volume.load("mean", "axial", 0)).toBeNull();
    await volume.draw({ num_samples: 2, seed: 0, at: null }, new AbortController().signal);
    await volume.load("mean", "axial", 0);
    await volume.load("mean", "axial", 0);
    expect(planes).toHaveBeenCalledTimes(1);
    name = "v2";
    expect(await volume.load("mean", "axial", 1)).toHaveLength(1);
    expect(draw).toHaveBeenCalledTimes(2);
  });
});

describe("the outbox", () => {
  const large: Event = { kind: "choose-volume", value_map: Array.from({ length: 150_000 }, (_, i) => [2 * i, 1, 1] as const), source };

  it("sends maps of volumes one by one, and keeps in the tab what the browser cannot store", async () => {
    const sizes: number[] = [];
    const api = {
      post: (_: number, version: number, events: readonly Event[]) => {
        sizes.push(events.length);
        return Promise.resolve({ version: version + events.length, state: {} });
      },
    } as unknown as Api;
    const storage: Storage = {
      getItem: () => null,
      removeItem: () => undefined,
      setItem: () => {
        throw new DOMException("full", "QuotaExceededError");
      },
    };
    const outbox = new Outbox(api, 0, 0, "key", storage, { sent: () => undefined, changed: () => undefined, failed: () => undefined });
    outbox.add(large, large, { kind: "undo" });
    await outbox.settled();
    expect(sizes).toEqual([1, 2]);
    expect(outbox.version).toBe(3);
  });
});
