// A plot of one measurement over the samples: bars of how many samples have it, and a line at the mask's value.

import { short } from "./dom";

const [WIDTH, ROW, LEFT, RIGHT, BINS] = [260, 46, 8, 252, 24] as const;
const BAR = (RIGHT - LEFT) / (BINS + 1);
const TALLEST = 5; // of one sample

export function plotMeasure(name: string, unit: string, values: readonly number[], chosen: number | null): SVGSVGElement {
  const all = chosen === null ? values : [...values, chosen];
  const high = Math.max(...all, 1e-9);
  const x = (value: number): number => LEFT + BAR / 2 + (value / high) * (RIGHT - LEFT - BAR);
  const counts = Array.from({ length: BINS + 1 }, () => 0);
  for (const value of values) {
    const bin = Math.round((value / high) * BINS);
    counts[bin] = (counts[bin] ?? 0) + 1;
  }
  const svg = element("svg", { viewBox: `0 0 ${WIDTH} ${ROW + 17}`, role: "img" });
  const range = `${short(Math.min(...values))} to ${short(Math.max(...values))} ${unit}`;
  const now = chosen === null ? "" : `; now ${short(chosen)} ${unit}`;
  svg.append(text(`${name} of ${values.length} samples: ${range}${now}`, "title"));
  const unitHeight = Math.min(TALLEST, (ROW - 4) / Math.max(...counts));
  counts.forEach((count, bin) => {
    const height = count * unitHeight;
    if (count === 0) return;
    svg.append(element("rect", { x: x((high * bin) / BINS) - BAR / 2 + 0.75, y: ROW - height, width: BAR - 1.5, height }));
  });
  svg.append(element("line", { x1: LEFT, x2: RIGHT, y1: ROW, y2: ROW }));
  if (chosen !== null) svg.append(element("line", { class: "now", x1: x(chosen), x2: x(chosen), y1: 1, y2: ROW }));
  svg.append(text("0", "text", { y: ROW + 14, x: LEFT }));
  svg.append(text(`${name}, ${unit}`, "text", { y: ROW + 14, x: WIDTH / 2, "text-anchor": "middle" }));
  svg.append(text(short(high), "text", { y: ROW + 14, x: RIGHT, "text-anchor": "end" }));
  return svg;
}

function element<K extends keyof SVGElementTagNameMap>(
  tag: K,
  attributes: Record<string, string | number> = {},
): SVGElementTagNameMap[K] {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  return made;
}

function text(content: string, tag: "title" | "text", attributes: Record<string, string | number> = {}): SVGElement {
  const made = element(tag, attributes);
  made.textContent = content;
  return made;
}
