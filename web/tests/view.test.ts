import { describe, expect, it } from "vitest";
import { Camera } from "../src/view";

const IMAGE = { height: 128, width: 128 };

describe("the camera", () => {
  it("shows the whole image, also when the canvas becomes smaller or is hidden for a while", () => {
    const camera = new Camera();
    camera.fit(IMAGE, { height: 500, width: 900 });
    for (const width of [900, 400, 0]) camera.resized({ height: 500, width });
    expect(camera.zoom * IMAGE.width).toBeCloseTo(400 * 0.97);
    expect(camera.centre).toEqual({ x: 64, y: 64 });
  });

  it("stays where someone zoomed or moved it to", () => {
    for (const act of [(it: Camera) => { it.zoomBy(2); }, (it: Camera) => { it.moveBy(10, 0); }]) {
      const camera = new Camera();
      camera.fit(IMAGE, { height: 500, width: 500 });
      act(camera);
      const before = [camera.zoom, camera.centre];
      camera.resized({ height: 100, width: 100 });
      expect([camera.zoom, camera.centre]).toEqual(before);
    }
  });

  it("shows a part, and stays there when the canvas changes", () => {
    const camera = new Camera();
    camera.fit(IMAGE, { height: 500, width: 500 });
    camera.show({ x: 20, y: 40, width: 10, height: 20 }, { height: 200, width: 500 });
    camera.resized({ height: 500, width: 500 });
    expect(camera.zoom).toBeCloseTo(10 * 0.97);
    expect(camera.centre).toEqual({ x: 25, y: 50 });
  });

  it("keeps the point under the mouse where it is", () => {
    const camera = new Camera();
    const canvas = { height: 500, width: 500 };
    camera.fit(IMAGE, canvas);
    const point = camera.toImage(100, 200, canvas);
    camera.zoomBy(3, point);
    expect(camera.toImage(100, 200, canvas).x).toBeCloseTo(point.x);
    expect(camera.toImage(100, 200, canvas).y).toBeCloseTo(point.y);
  });
});
