// What was done to a case, as events in the order they happened; masks are folded from them, here and in the server.

import { decode, type Labels, type Run, type Span } from "./runs";
import { sizeOf, type Plane, type Solid } from "./volume";

/** What a hypothesis decodes from, as the server gives it. */
export type MapState = Record<string, unknown>;
export interface Source {
  hypothesis: number;
  share: number;
  seed: number;
  num_samples: number;
  at: [number, number] | null;
  /** Not of large images, nor of choices from before there were states. */
  state?: MapState | null;
  num_edits?: number;
}
export interface Choose {
  kind: "choose";
  slice: number;
  value_map: Run[];
  source: Source;
}
/** The map of all slices: runs count voxels slice after slice, and none is in two slices. */
export interface ChooseVolume {
  kind: "choose-volume";
  value_map: Run[];
  source: Source;
}
export interface Paint {
  kind: "paint";
  slice: number;
  value: number;
  runs: Span[];
}
/** Several values at once: 0 erases. */
export interface Relabel {
  kind: "relabel";
  slice: number;
  value_map: Run[];
}
export interface Clear {
  kind: "clear";
  slice: number;
}
export type Step = Choose | ChooseVolume | Paint | Relabel | Clear;
export interface Note {
  kind: "note";
  text: string;
}
export interface Sign {
  kind: "undo" | "redo" | "accept" | "reopen";
}
export type Event = Step | Note | Sign;

const KEPT_MASKS = 256;

/** The fold of a case's events. A step after an undo drops what was undone. */
export class History {
  status: "open" | "accepted" = "open";
  note = "";
  private steps: Step[] = [];
  private done = 0;
  private readonly masks = new Map<number, Labels>();
  /** Masks on upright planes, as long as nothing changes. */
  private readonly planes = new Map<string, Labels>();

  constructor(
    private readonly numPixels: number,
    events: readonly Event[] = [],
  ) {
    for (const event of events) this.add(event);
  }

  get canUndo(): boolean {
    return this.done > 0;
  }

  get canRedo(): boolean {
    return this.done < this.steps.length;
  }

  /** How many slices something was done to. */
  get numSlices(): number {
    const done = this.steps.slice(0, this.done);
    if (done.some(({ kind }) => kind === "choose-volume")) return Infinity;
    return new Set(done.map((step) => (step.kind === "choose-volume" ? null : step.slice))).size;
  }

  /** Apply one more event; the slice that it changed, or null if it changed none or all. */
  add(event: Event): number | null {
    switch (event.kind) {
      case "undo":
      case "redo":
        return this.move(event.kind === "undo" ? -1 : 1);
      case "note":
        this.note = event.text;
        return null;
      case "accept":
      case "reopen":
        this.status = event.kind === "accept" ? "accepted" : "open";
        return null;
      default:
        this.steps.length = this.done;
        this.steps.push(event);
        return this.move(1);
    }
  }

  /** The mask of a slice; do not change it. */
  mask(slice: number): Labels {
    let mask = this.masks.get(slice);
    if (!mask) {
      mask = new Uint16Array(this.numPixels);
      for (const step of this.steps.slice(0, this.done)) {
        if (step.kind === "choose-volume") mask = decode(within(step.value_map, slice, mask.length), mask.length);
        else if (step.slice === slice) mask = applied(step, mask);
      }
      if (this.masks.size >= KEPT_MASKS) this.masks.delete([...this.masks.keys()][0] ?? slice);
      this.masks.set(slice, mask);
    }
    return mask;
  }

  /** The mask on a plane; do not change it. */
  plane(plane: Plane, index: number, solid: Solid): Labels {
    if (plane === "axial") return this.mask(index);
    const key = `${plane}/${index}`;
    const known = this.planes.get(key);
    if (known) return known;
    const { height, width } = sizeOf(plane, solid);
    const found = new Uint16Array(height * width);
    const write = (z: number, start: number, end: number, value: number): void => {
      const first = z * width;
      if (plane === "coronal") {
        const [left, right] = [Math.max(start - index * width, 0), Math.min(end - index * width, width)];
        if (left < right) found.fill(value, first + left, first + right);
        return;
      }
      for (let row = Math.ceil((start - index) / solid.width); row * solid.width + index < end; row += 1) found[first + row] = value;
    };
    for (const step of this.steps.slice(0, this.done)) {
      if (step.kind === "choose-volume") {
        found.fill(0);
        for (const [start, length, value] of step.value_map) {
          const z = Math.floor(start / this.numPixels);
          write(z, start - z * this.numPixels, start - z * this.numPixels + length, value);
        }
        continue;
      }
      if (step.kind === "choose" || step.kind === "clear") found.fill(0, step.slice * width, (step.slice + 1) * width);
      if (step.kind === "paint") for (const [start, length] of step.runs) write(step.slice, start, start + length, step.value);
      else if (step.kind !== "clear") for (const [start, length, value] of step.value_map) write(step.slice, start, start + length, value);
    }
    if (this.planes.size >= KEPT_MASKS) this.planes.clear();
    this.planes.set(key, found);
    return found;
  }

  /** Whether anything was done to the mask of any slice. */
  get isTouched(): boolean {
    return this.done > 0;
  }

  /** Whether a slice's mask began with a choice for all slices. */
  isOfVolume(slice: number): boolean {
    const steps = this.steps.slice(0, this.done).filter((step) => step.kind === "choose-volume" || step.slice === slice);
    const maps = steps.filter(({ kind }) => ["choose", "choose-volume", "clear"].includes(kind));
    return maps.at(-1)?.kind === "choose-volume";
  }

  /** The choice that a slice's mask began with, and whether it was corrected since. */
  origin(slice: number): { source: Source | null; isEdited: boolean } {
    let [source, isEdited]: [Source | null, boolean] = [null, false];
    for (const step of this.steps.slice(0, this.done)) {
      if (step.kind !== "choose-volume" && step.slice !== slice) continue;
      if (step.kind === "choose" || step.kind === "choose-volume") [source, isEdited] = [step.source, false];
      else if (step.kind === "clear") [source, isEdited] = [null, false];
      else isEdited = true;
    }
    return { source, isEdited };
  }

  private move(by: 1 | -1): number | null {
    const step = this.steps[by === 1 ? this.done : this.done - 1];
    if (!step) return null;
    this.done += by;
    this.planes.clear();
    if (step.kind === "choose-volume") {
      this.masks.clear();
      return null;
    }
    this.masks.delete(step.slice);
    return step.slice;
  }
}

/** The runs of a slice, as they lie in it. */
function within(runs: readonly Run[], slice: number, numPixels: number): Run[] {
  const before = (end: number): number => {
    let [low, high] = [0, runs.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((runs[middle]?.[0] ?? 0) < end) low = middle + 1;
      else high = middle;
    }
    return low;
  };
  const first = slice * numPixels;
  return runs.slice(before(first), before(first + numPixels)).map(([start, length, value]) => [start - first, length, value]);
}

function applied(step: Exclude<Step, ChooseVolume>, mask: Labels): Labels {
  if (step.kind === "choose") return decode(step.value_map, mask.length);
  const next = step.kind === "clear" ? new Uint16Array(mask.length) : mask.slice();
  if (step.kind === "paint") for (const [start, length] of step.runs) next.fill(step.value, start, start + length);
  if (step.kind === "relabel") for (const [start, length, value] of step.value_map) next.fill(value, start, start + length);
  return next;
}
