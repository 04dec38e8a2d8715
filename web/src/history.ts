// What was done to a case, as events in the order they happened; masks are folded from them, here and in the server.

import { decode, type Labels, type Run, type Span } from "./runs";

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
export type Step = Choose | Paint | Relabel | Clear;
export interface Note {
  kind: "note";
  text: string;
}
export interface Sign {
  kind: "undo" | "redo" | "accept" | "reopen";
}
export type Event = Step | Note | Sign;

/** The fold of a case's events. A step after an undo drops what was undone. */
export class History {
  status: "open" | "accepted" = "open";
  note = "";
  private steps: Step[] = [];
  private done = 0;
  private readonly masks = new Map<number, Labels>();

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
    return new Set(this.steps.slice(0, this.done).map(({ slice }) => slice)).size;
  }

  /** Apply one more event; the slice that it changed, or null. */
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
        if (step.slice === slice) mask = applied(step, mask);
      }
      this.masks.set(slice, mask);
    }
    return mask;
  }

  /** The choice that a slice's mask began with, and whether it was corrected since. */
  origin(slice: number): { source: Source | null; isEdited: boolean } {
    let [source, isEdited]: [Source | null, boolean] = [null, false];
    for (const step of this.steps.slice(0, this.done)) {
      if (step.slice !== slice) continue;
      if (step.kind === "choose") [source, isEdited] = [step.source, false];
      else if (step.kind === "clear") [source, isEdited] = [null, false];
      else isEdited = true;
    }
    return { source, isEdited };
  }

  private move(by: 1 | -1): number | null {
    const step = this.steps[by === 1 ? this.done : this.done - 1];
    if (!step) return null;
    this.done += by;
    this.masks.delete(step.slice);
    return step.slice;
  }
}

function applied(step: Step, mask: Labels): Labels {
  if (step.kind === "choose") return decode(step.value_map, mask.length);
  const next = step.kind === "clear" ? new Uint16Array(mask.length) : mask.slice();
  if (step.kind === "paint") for (const [start, length] of step.runs) next.fill(step.value, start, start + length);
  if (step.kind === "relabel") for (const [start, length, value] of step.value_map) next.fill(value, start, start + length);
  return next;
}
