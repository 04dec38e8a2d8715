// A plot of one measurement over the samples: one dot per sample, stacked, and a line at the chosen map's value.

import { short } from "./dom";

const [WIDTH, ROW, LEFT, RIGHT, BINS] = [260, 46, 8, 252, 24] as const;

export function plotMeasure(name: string, unit: string, values: readonly number[], chosen: number | null): SVGSVGElement {
  const all = chosen === null ? values : [...values, chosen];
  const high = Math.max(...all, 1e-9);
  const x = (value: number): number => LEFT + (value / high) * (RIGHT - LEFT);
  const bins = Array.from({ length: BINS + 1 }, () => 0);
  const svg = element("svg", { viewBox: `0 0 ${WIDTH} ${ROW + 16}`, role: "img" });
  const range = `${short(Math.min(...values))} to ${short(Math.max(...values))} ${unit}`;
  const now = chosen === null ? "" : `; now ${short(chosen)} ${unit}`;
  svg.append(text(`${name} of ${values.length} samples: ${range}${now}`, "title"));
  for (const value of values) {
    const bin = Math.round((value / high) * BINS);
    const level = bins[bin] ?? 0;
    bins[bin] = level + 1;
    const cy = Math.max(4, ROW - 4 - 5 * level);
    svg.append(element("circle", { cx: x(high * (bin / BINS)), cy, r: 3, fill: "#56b4e9" }));
  }
  svg.append(element("line", { x1: LEFT, x2: RIGHT, y1: ROW, y2: ROW, stroke: "#b4bec6" }));
  if (chosen !== null) {
    svg.append(element("line", { x1: x(chosen), x2: x(chosen), y1: 2, y2: ROW, stroke: "#f0e442", "stroke-width": 2 }));
  }
  const label = { y: ROW + 12, fill: "#b4bec6", "font-size": 10 };
  svg.append(text("0", "text", { ...label, x: LEFT }));
  svg.append(text(`${name}, ${unit}`, "text", { ...label, x: WIDTH / 2, "text-anchor": "middle" }));
  svg.append(text(short(high), "text", { ...label, x: RIGHT, "text-anchor": "end" }));
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
