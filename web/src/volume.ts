// Three planes of a volume: their sizes, and the slices of them that the page has.

import { Refused, type Api, type Case, type Prediction, type Values } from "./api";
import type { Point, Size } from "./pixels";
import type { Labels } from "./runs";

export const PLANES = ["axial", "coronal", "sagittal"] as const;
export type Plane = (typeof PLANES)[number];
export type MapKind = "hypotheses" | "samples" | "mean" | "std";
/** A voxel: slice, row, column. */
export interface Voxel {
  z: number;
  y: number;
  x: number;
}
export interface Solid extends Size {
  slices: number;
}

/** The axis that a plane goes across. */
export const ACROSS = { axial: "z", coronal: "y", sagittal: "x" } as const;

/** How many planes there are. */
export function countOf(plane: Plane, { slices, height, width }: Solid): number {
  return { axial: slices, coronal: height, sagittal: width }[plane];
}

/** Rows and columns of a plane. Slices are the rows of the two upright planes. */
export function sizeOf(plane: Plane, { slices, height, width }: Solid): Size {
  return plane === "axial" ? { height, width } : { height: slices, width: plane === "coronal" ? width : height };
}

/** The height of a pixel of a plane, by its width; negative if rows go up. */
export function aspectOf(plane: Plane, { spacing, spacing_z, ascends }: Pick<Case, "spacing" | "spacing_z" | "ascends">): number {
  const [y, x] = spacing ?? [1, 1];
  if (plane === "axial") return y / x;
  const aspect = (spacing && spacing_z ? spacing_z : 1) / (plane === "coronal" ? x : y);
  return ascends ? -aspect : aspect;
}

/** The middle of a voxel on a plane. */
export function pointOn(plane: Plane, { z, y, x }: Voxel): Point {
  const [column, row] = { axial: [x, y], coronal: [x, z], sagittal: [y, z] }[plane] as [number, number];
  return { x: column + 0.5, y: row + 0.5 };
}

/** The voxel at a point of a plane that goes through another voxel. */
export function voxelAt(plane: Plane, { x: across, y: down }: Point, at: Voxel): Voxel {
  const [column, row] = [Math.floor(across), Math.floor(down)];
  if (plane === "axial") return { ...at, x: column, y: row };
  return plane === "coronal" ? { ...at, x: column, z: row } : { ...at, y: column, z: row };
}

/** The nearest voxel of a volume. */
export function inside({ z, y, x }: Voxel, { slices, height, width }: Solid): Voxel {
  const limited = (value: number, end: number): number => Math.min(Math.max(value, 0), end - 1);
  return { z: limited(z, slices), y: limited(y, height), x: limited(x, width) };
}

/** What was used last, at most so many bytes of it. */
export class Recent<T> {
  private readonly kept = new Map<string, { value: T; bytes: number }>();
  private bytes = 0;

  constructor(private readonly maxBytes: number) {}

  get(key: string): T | null {
    const found = this.kept.get(key);
    if (!found) return null;
    this.kept.delete(key);
    this.kept.set(key, found);
    return found.value;
  }

  put(key: string, value: T, bytes: number): T {
    this.bytes -= this.kept.get(key)?.bytes ?? 0;
    this.kept.delete(key);
    this.kept.set(key, { value, bytes });
    this.bytes += bytes;
    for (const [oldest, { bytes: size }] of this.kept) {
      if (this.bytes <= this.maxBytes || oldest === key) break;
      this.kept.delete(oldest);
      this.bytes -= size;
    }
    return value;
  }
}

const KEPT_BYTES = 2 ** 26;

/** The planes of a case, and those of the samples that were drawn of all its slices. */
export class Volume {
  answer: Prediction | null = null;
  private wish: { num_samples: number; seed: number; at: [number, number] | null } | null = null;
  private readonly values = new Recent<Values>(KEPT_BYTES);
  private readonly maps = new Recent<Labels[]>(KEPT_BYTES);

  constructor(
    private readonly api: Api,
    readonly item: Case,
  ) {}

  /** The point around which was drawn. */
  get at(): [number, number] | null {
    return this.wish?.at ?? null;
  }

  async draw(wish: { num_samples: number; seed: number; at: [number, number] | null }, signal: AbortSignal): Promise<Prediction> {
    const answer = await this.api.volume(this.item.id, wish, signal);
    [this.wish, this.answer] = [wish, answer];
    return answer;
  }

  async image(plane: Plane, index: number): Promise<Values> {
    const key = `${plane}/${index}`;
    const known = this.values.get(key);
    if (known) return known;
    const values = await this.api.image(this.item, index, plane);
    return this.values.put(key, values, values.byteLength);
  }

  /** Maps on a plane if they are here. */
  known(kind: MapKind, plane: Plane, index: number): Labels[] | null {
    return this.answer && this.maps.get(keyOf(this.answer, kind, plane, index));
  }

  /** Maps on a plane: of each hypothesis or sample, or the only one; null if nothing is drawn yet. */
  async load(kind: MapKind, plane: Plane, index: number): Promise<Labels[] | null> {
    const known = this.known(kind, plane, index);
    if (known || !this.answer) return known;
    const found = await this.remembered((name) => this.api.planes(name, kind, plane, index));
    return this.maps.put(keyOf(this.answer, kind, plane, index), found, found.reduce((sum, { byteLength }) => sum + byteLength, 0));
  }

  /** The runs of a hypothesis in all slices. */
  runs(hypothesis: number): Promise<[number, number, number][]> {
    return this.remembered((name) => this.api.runs(name, hypothesis));
  }

  /** Ask about what was drawn; what the server has forgotten is drawn again, which gives the same. */
  private async remembered<T>(ask: (name: string) => Promise<T>): Promise<T> {
    const { answer, wish } = this;
    if (!answer || !wish) throw new Error("Draw samples first.");
    try {
      return await ask(answer.prediction);
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 404) throw error;
      answer.prediction = (await this.api.volume(this.item.id, wish, new AbortController().signal)).prediction;
      return ask(answer.prediction);
    }
  }
}

function keyOf({ prediction }: Prediction, kind: MapKind, plane: Plane, index: number): string {
  return `${prediction}/${kind}/${plane}/${index}`;
}
