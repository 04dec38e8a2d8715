// From stored values and maps to pixels on a canvas.

import type { Values } from "./api";
import { css, heat, type Colour } from "./colours";
import type { Labels } from "./runs";

export interface Size {
  height: number;
  width: number;
}

/** Stored values as opaque pixels; those of the window's ends are black and white. */
export function windowed(values: Values, channels: number, [low, high]: readonly [number, number]): Uint8ClampedArray {
  const count = values.length / channels;
  const pixels = new Uint8ClampedArray(4 * count);
  const factor = 255 / Math.max(high - low, 1e-9);
  const colours = channels >= 3;
  for (let i = 0; i < count; i += 1) {
    for (let c = 0; c < 3; c += 1) {
      pixels[4 * i + c] = ((values[i * channels + (colours ? c : 0)] ?? 0) - low) * factor;
    }
    pixels[4 * i + 3] = 255;
  }
  return pixels;
}

/** Labels as transparent colours. */
export function filled(labels: Labels, colour: (label: number) => Colour, opacity: number): Uint8ClampedArray {
  const pixels = new Uint8ClampedArray(4 * labels.length);
  labels.forEach((label: number, i: number) => {
    if (label > 0) pixels.set([...colour(label), 255 * opacity], 4 * i);
  });
  return pixels;
}

/** Values of a heat map; what is zero is clear. */
export function heated(values: Uint8Array, opacity: number): Uint8ClampedArray {
  const table = Array.from({ length: 256 }, (_, i) => heat(i / 255));
  const pixels = new Uint8ClampedArray(4 * values.length);
  values.forEach((value, i) => {
    if (value > 0) pixels.set([...(table[value] ?? [0, 0, 0]), 255 * opacity], 4 * i);
  });
  return pixels;
}

/** The border lines between a label and others: [x0, y0, x1, y1] along edges of pixels, joined where they are straight. */
export function borders(labels: Labels, { height, width }: Size, label: number): number[][] {
  const is = (y: number, x: number): boolean =>
    y >= 0 && x >= 0 && y < height && x < width && labels[y * width + x] === label;
  const lines: number[][] = [];
  const scan = (outer: number, inner: number, differs: (o: number, i: number) => boolean, upright: boolean): void => {
    for (let o = 0; o <= outer; o += 1) {
      for (let i = 0; i < inner; i += 1) {
        if (!differs(o, i)) continue;
        const start = i;
        while (i < inner && differs(o, i)) i += 1;
        lines.push(upright ? [o, start, o, i] : [start, o, i, o]);
      }
    }
  };
  scan(height, width, (y, x) => is(y - 1, x) !== is(y, x), false);
  scan(width, height, (x, y) => is(y, x - 1) !== is(y, x), true);
  return lines;
}

const paths = new WeakMap<Labels, Map<number, Path2D>>();

/** Forget the borders of a map that was changed in place. */
export function forgetBorders(labels: Labels): void {
  paths.delete(labels);
}

function borderPath(labels: Labels, size: Size, label: number): Path2D {
  const known = paths.get(labels) ?? new Map<number, Path2D>();
  paths.set(labels, known);
  let path = known.get(label);
  if (!path) {
    path = new Path2D();
    for (const [x0 = 0, y0 = 0, x1 = 0, y1 = 0] of borders(labels, size, label)) {
      path.moveTo(x0, y0);
      path.lineTo(x1, y1);
    }
    known.set(label, path);
  }
  return path;
}

/** Draw the outline of a label; `width` in pixels of the image. */
export function strokeBorders(
  context: CanvasRenderingContext2D,
  labels: Labels,
  size: Size,
  { label, colour, width, dashed = false }: { label: number; colour: Colour; width: number; dashed?: boolean },
): void {
  let path = borderPath(labels, size, label);
  const transform = context.getTransform();
  context.save();
  if (transform.a !== transform.d) { // lines are as wide up as across, whatever the shape of pixels
    const placed = new Path2D();
    placed.addPath(path, transform);
    [path, width] = [placed, width * transform.a];
    context.setTransform(1, 0, 0, 1, 0, 0);
  }
  context.lineCap = "round";
  context.strokeStyle = "rgb(0 0 0 / 0.6)"; // under the colour, so that it is seen on bright images
  context.lineWidth = 2 * width;
  context.stroke(path);
  context.setLineDash(dashed ? [3 * width, 3 * width] : []);
  context.strokeStyle = css(colour);
  context.lineWidth = width;
  context.stroke(path);
  context.restore();
}

/** A canvas with these pixels. */
export function canvasOf(pixels: Uint8ClampedArray, { height, width }: Size): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width, height];
  const data = new ImageData(width, height);
  data.data.set(pixels);
  canvas.getContext("2d")?.putImageData(data, 0, 0);
  return canvas;
}

/** The pixels of a disc around a point, or of its way from another point. */
export function stamp(mask: Labels, size: Size, from: Point, to: Point, diameter: number, value: number): void {
  const steps = Math.max(1, Math.ceil(2 * Math.hypot(to.x - from.x, to.y - from.y)));
  const radius = diameter / 2;
  for (let step = 0; step <= steps; step += 1) {
    const x = from.x + ((to.x - from.x) * step) / steps;
    const y = from.y + ((to.y - from.y) * step) / steps;
    for (let row = Math.max(0, Math.floor(y - radius)); row <= Math.min(size.height - 1, y + radius); row += 1) {
      for (let column = Math.max(0, Math.floor(x - radius)); column <= Math.min(size.width - 1, x + radius); column += 1) {
        const isUnder = Math.hypot(row + 0.5 - y, column + 0.5 - x) <= radius;
        const isCentre = row === Math.floor(y) && column === Math.floor(x);
        if (isUnder || isCentre) mask[row * size.width + column] = value;
      }
    }
  }
}

export interface Point {
  x: number;
  y: number;
}
