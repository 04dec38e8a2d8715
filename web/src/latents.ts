// Edits in latent space: what is asked of the server, which latent lies under a point, and one request at a time.

import type { MapState } from "./history";
import type { Span } from "./runs";
import type { Point } from "./pixels";

/** Positions and channels of the latents of a scale. */
export interface Scale {
  height: number;
  width: number;
  channels: number;
}
/** A hypothesis: one of samples, or what a state decodes to. */
export type Start = { drawn: { num_samples: number; seed: number; sample: number } } | { state: MapState };
export type Action =
  | { kind: "keep" }
  | { kind: "redraw"; seed: number; scales?: number[]; region?: Span[]; temperature?: number }
  | { kind: "nudge"; scale: number; at: [number, number]; by: number; channel: number }
  | { kind: "combine"; other: Start; region: Span[] };
export type ScaleMapKind = "sigma" | "spread" | "effect";
export interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

/** Of the mouse, for one σ. */
const CSS_PIXELS_PER_SIGMA = 40;
const MAX_SIGMAS = 20;

/** The name of a scale, for example "8×8". */
export function nameOf({ height, width }: Scale): string {
  return `${height}×${width}`;
}

/** The cell of a scale in which a point of the image lies; null outside of what was sampled. */
export function cellAt({ x, y }: Point, scale: Scale, grid: Box, place: Box): Box | null {
  if (x < place.x || y < place.y || x >= place.x + place.width || y >= place.y + place.height) return null;
  const [width, height] = [grid.width / scale.width, grid.height / scale.height];
  const [column, row] = [Math.floor((x - grid.x) / width), Math.floor((y - grid.y) / height)];
  return { x: grid.x + column * width, y: grid.y + row * height, width, height };
}

/** The middle of the part of a cell that was sampled: the same point for every point of the cell. */
export function middleOf(cell: Box, place: Box): [number, number] {
  const middle = (start: number, length: number, low: number, size: number): number =>
    (Math.max(start, low) + Math.min(start + length, low + size)) / 2;
  return [middle(cell.x, cell.width, place.x, place.width), middle(cell.y, cell.height, place.y, place.height)];
}

/** How many σ a drag upwards by so many CSS pixels is. */
export function sigmasOf(up: number): number {
  return limited(Math.round((20 * up) / CSS_PIXELS_PER_SIGMA) / 20);
}

export function limited(by: number): number {
  return Math.min(Math.max(by, -MAX_SIGMAS), MAX_SIGMAS) + 0; // no -0
}

/** A number of σ with its sign. */
export function signed(by: number): string {
  return `${by < 0 ? "−" : "+"}${Math.abs(by).toFixed(2)} σ`;
}

/** Asks for one thing at a time; of those that are wanted meanwhile only the newest. */
export class Newest<T> {
  private wanted: { value: T } | null = null;
  private running: Promise<void> | null = null;

  constructor(private readonly ask: (value: T) => Promise<void>) {}

  /** Resolves when nothing is wanted any more. */
  want(value: T): Promise<void> {
    this.wanted = { value };
    return this.settled();
  }

  drop(): void {
    this.wanted = null;
  }

  settled(): Promise<void> {
    if (!this.running && !this.wanted) return Promise.resolve();
    return (this.running ??= this.askAll().finally(() => (this.running = null)));
  }

  private async askAll(): Promise<void> {
    while (this.wanted) {
      const { value } = this.wanted;
      this.wanted = null;
      await this.ask(value);
    }
  }
}
