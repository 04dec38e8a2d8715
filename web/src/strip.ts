// The strip of distinct hypotheses: a picture, a number, a share and a few words each.

import { distinct, type Colour } from "./colours";
import { make, percent, refill } from "./dom";
import { colourNumbers } from "./instances";
import { strokeBorders, type Size } from "./pixels";
import type { Labels } from "./runs";
import type { OpenCase } from "./case";

const SIDE = 96;

/**
 * Fill the strip; `choose` is called with the number of a hypothesis. Its colours are those of the canvas: one for each
 * hypothesis while the canvas shows all of them, then one for each class.
 */
export function fillStrip(
  strip: HTMLElement,
  item: OpenCase,
  image: HTMLCanvasElement | null,
  { chosen, isDecided }: { chosen: number | null; isDecided: boolean },
  choose: (hypothesis: number) => void,
): void {
  const hypotheses = item.current?.answer.hypotheses ?? [];
  const box = boxOf(item);
  refill(
    strip,
    hypotheses.map((hypothesis, index) => {
      const words = `${percent(hypothesis.share)}: ${hypothesis.description}`;
      const ofInstances = Boolean(item.current?.instances);
      const colour = (label: number): Colour => distinct(isDecided || ofInstances ? label - 1 : index);
      const map = item.map(index);
      const button = make("button", [
        thumbnail(ofInstances ? colourNumbers(map, item.size) : map, item.size, image, box, colour),
        make("span", [make("kbd", String(index + 1)), ofInstances ? " clustering" : ` ${percent(hypothesis.share)}`]),
        make("span", hypothesis.description),
      ]);
      const label = ofInstances ? `Clustering, ${hypothesis.description}` : `Hypothesis ${index + 1}, ${words}`;
      button.setAttribute("aria-label", label);
      button.setAttribute("aria-pressed", String(index === chosen));
      if (index < 9) button.setAttribute("aria-keyshortcuts", String(index + 1));
      button.addEventListener("click", () => {
        choose(index);
      });
      return button;
    }),
  );
}

interface Box {
  x: number;
  y: number;
  side: number;
}

/** A square around everything that any hypothesis marks. */
function boxOf(item: OpenCase): Box {
  const { height, width } = item.size;
  const drawn = item.current;
  let [top, left, bottom, right] = [height, width, -1, -1];
  const { box } = drawn?.answer ?? {};
  if (box) [top, left, bottom, right] = [box.y, box.x, box.y + box.height - 1, box.x + box.width - 1];
  for (let hypothesis = 0; !box && hypothesis < (drawn?.answer.hypotheses.length ?? 0); hypothesis += 1) {
    item.map(hypothesis).forEach((label: number, i: number) => {
      if (label === 0) return;
      const [y, x] = [Math.floor(i / width), i % width];
      [top, left, bottom, right] = [Math.min(top, y), Math.min(left, x), Math.max(bottom, y), Math.max(right, x)];
    });
  }
  if (bottom < 0) {
    const place = drawn?.answer.place ?? { y: 0, x: 0, height, width };
    [top, left, bottom, right] = [place.y, place.x, place.y + place.height, place.x + place.width];
  }
  const side = Math.max(bottom - top, right - left, 16) * 1.5;
  return { x: (left + right + 1 - side) / 2, y: (top + bottom + 1 - side) / 2, side };
}

function thumbnail(
  labels: Labels,
  size: Size,
  image: HTMLCanvasElement | null,
  box: Box,
  colourOf: (label: number) => Colour,
): HTMLCanvasElement {
  const canvas = make("canvas");
  [canvas.width, canvas.height] = [SIDE, SIDE];
  const context = canvas.getContext("2d");
  if (!context) return canvas;
  const scale = SIDE / box.side;
  context.setTransform(scale, 0, 0, scale, -box.x * scale, -box.y * scale);
  context.imageSmoothingEnabled = false;
  if (image) context.drawImage(image, 0, 0);
  for (const label of new Set(labels)) {
    if (label > 0) strokeBorders(context, labels, size, { label, colour: colourOf(label), width: 2 / scale });
  }
  return canvas;
}
