// The server's answers, and the requests that get them.

import type { Event, MapState, Source } from "./history";
import type { Action, Scale, ScaleMapKind, Start } from "./latents";
import type { Labels, Run } from "./runs";
import type { MapKind, Plane } from "./volume";

export interface Session {
  version: string;
  model: {
    name: string;
    iteration: number;
    classes: { index: number; name: string }[];
    foreground: number[];
    has_instances: boolean;
    /** How many samples are drawn if nobody says how many. */
    num_samples: number;
    num_scales: number;
    /** 3: it draws whole volumes. */
    ndim: 2 | 3;
  };
  num_cases: number;
  disclaimer: string;
}
export interface CaseSummary {
  id: number;
  name: string;
  status: "open" | "accepted";
  note: boolean;
}
export interface SliceState {
  area: number;
  diameter: number;
  /** Of models of instances. */
  num_instances?: number;
  source: Source | null;
  is_edited: boolean;
}
export interface State {
  status: "open" | "accepted";
  note: string;
  steps_done: number;
  steps_undone: number;
  slices: Record<string, SliceState>;
  /** What all slices mark together. */
  volume?: { size: number; units: "ml" | "voxels" };
}
export interface Case {
  id: number;
  name: string;
  slices: number;
  height: number;
  width: number;
  channels: number;
  dtype: "uint8" | "uint16" | "int16" | "float32";
  spacing: [number, number] | null;
  spacing_z: number | null;
  /** Whether later slices are higher in the patient. */
  ascends: boolean;
  range: [number, number];
  window: [number, number];
  graders: string[];
  formats: string[];
  notes: string[];
  needs_point: boolean;
  version: number;
  state: State;
}
export interface Place {
  y: number;
  x: number;
  height: number;
  width: number;
}
export interface Hypothesis {
  share: number;
  representative: number;
  members: number[];
  description: string;
  same_iou: number;
  state: MapState | null;
  /** Of a volume: in ml, or in voxels. */
  volume?: number;
}
export interface Prediction {
  prediction: string;
  seed: number;
  num_samples: number;
  place: Place;
  hypotheses: Hypothesis[];
  /** How many instances the samples cluster into; null if the model knows classes. */
  num_instances: number | null;
  samples: { area: number; diameter: number }[];
  /** Of samples of a volume: in ml, or in voxels. */
  volumes?: number[];
  /** Of a volume: the part of a slice in which any sample of it marks something. */
  box?: Place | null;
  units: "mm" | "px";
  /** The part of the slice that the latents of each scale divide evenly. */
  grid: Place;
  scales: Scale[];
  notes: string[];
  seconds: number;
}
export interface Request {
  slice: number;
  num_samples: number;
  seed: number;
  at: [number, number] | null;
}
export interface EditRequest {
  slice: number;
  at: [number, number] | null;
  start: Start;
  action: Action;
}
export interface Edit {
  state: MapState;
  place: Place;
  /** Within the place. */
  value_map: Run[];
}
export interface ScaleMapRequest {
  slice: number;
  at: [number, number] | null;
  start: Start;
  scale: number;
  kind: ScaleMapKind;
  point?: [number, number];
  channel?: number;
}
export interface ScaleMap {
  values: Uint8Array;
  /** What 255 stands for. */
  most: number;
}
export type Values = Uint8Array | Uint16Array | Int16Array | Float32Array;

/** An answer of the server that is no success, in words. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    detail: string,
  ) {
    super(detail);
  }
}

/** The server did not answer. */
export class Lost extends Error {}

export class Api {
  constructor(private readonly token: string) {}

  session = (): Promise<Session> => this.json("session");
  cases = async (): Promise<CaseSummary[]> => (await this.json<{ cases: CaseSummary[] }>("cases")).cases;
  case = (id: number): Promise<Case> => this.json(`cases/${id}`);
  events = (id: number): Promise<{ version: number; events: Event[] }> => this.json(`cases/${id}/events`);

  post = (id: number, version: number, events: readonly Event[]): Promise<{ version: number; state: State }> =>
    this.json(`cases/${id}/events`, { version, events });

  samples = (id: number, request: Request, signal: AbortSignal): Promise<Prediction> =>
    this.json(`cases/${id}/samples`, request, signal);

  /** Samples of all slices. */
  volume = (id: number, request: Omit<Request, "slice">, signal: AbortSignal): Promise<Prediction> =>
    this.json(`cases/${id}/volumes`, request, signal);

  /** Samples of slices that the model has drawn of what it draws now. */
  progress = async (): Promise<number> => (await this.json<{ num_done: number }>("progress")).num_done;

  runs = async (name: string, hypothesis: number): Promise<[number, number, number][]> =>
    (await this.json<{ value_map: [number, number, number][] }>(`volumes/${name}/runs/${hypothesis}`)).value_map;

  /** Maps on a plane of a volume. */
  async planes(name: string, kind: MapKind, plane: Plane, index: number): Promise<Labels[]> {
    const answer = await this.fetch(`volumes/${name}/${kind}?plane=${plane}&slice=${index}`);
    const content = await answer.arrayBuffer();
    const all = answer.headers.get("X-Dtype") === "uint16" ? new Uint16Array(content) : new Uint8Array(content);
    const count = Number(answer.headers.get("X-Shape")?.split(",")[0] ?? 0);
    const size = all.length / Math.max(count, 1);
    return Array.from({ length: count }, (_, i) => all.subarray(i * size, (i + 1) * size));
  }

  edit = (id: number, request: EditRequest): Promise<Edit> => this.json(`cases/${id}/edits`, request);

  async scaleMap(id: number, request: ScaleMapRequest): Promise<ScaleMap> {
    const answer = await this.fetch(`cases/${id}/scale-maps`, request);
    return { values: new Uint8Array(await answer.arrayBuffer()), most: Number(answer.headers.get("X-Most") ?? 1) };
  }

  async image(item: Case, slice: number, plane: Plane = "axial"): Promise<Values> {
    const content = await this.bytes(`cases/${item.id}/image?slice=${slice}&plane=${plane}`);
    const types = { uint8: Uint8Array, uint16: Uint16Array, int16: Int16Array, float32: Float32Array };
    return new types[item.dtype](content);
  }

  grader = async (id: number, number: number, slice: number, plane: Plane = "axial"): Promise<Uint8Array> =>
    new Uint8Array(await this.bytes(`cases/${id}/graders/${number}?slice=${slice}&plane=${plane}`));

  maps = async (prediction: string, kind: "samples" | "mean" | "std"): Promise<Uint8Array> =>
    new Uint8Array(await this.bytes(`predictions/${prediction}/${kind}`));

  instances = async (prediction: string): Promise<Labels> =>
    new Uint16Array(await this.bytes(`predictions/${prediction}/instances`));

  async export(id: number, format: string, slice: number): Promise<{ name: string; content: Blob }> {
    const answer = await this.fetch(`cases/${id}/export`, { format, slice });
    const name = /filename\*=UTF-8''([^;]+)/.exec(answer.headers.get("Content-Disposition") ?? "")?.[1];
    return { name: decodeURIComponent(name ?? `case-${id}.${format}`), content: await answer.blob() };
  }

  upload = async (file: File): Promise<number> =>
    (await (await this.fetch(`upload?name=${encodeURIComponent(file.name)}`, file)).json() as { id: number }).id;

  private async json<T>(path: string, body?: object, signal?: AbortSignal): Promise<T> {
    return (await (await this.fetch(path, body, signal)).json()) as T;
  }

  private async bytes(path: string): Promise<ArrayBuffer> {
    return (await this.fetch(path)).arrayBuffer();
  }

  private async fetch(path: string, body?: object, signal?: AbortSignal): Promise<Response> {
    const headers: Record<string, string> = { "X-Hpunet-Token": this.token };
    const options: RequestInit = { headers, signal: signal ?? null };
    if (body !== undefined) {
      options.method = "POST";
      options.body = body instanceof Blob ? body : JSON.stringify(body);
      headers["Content-Type"] = body instanceof Blob ? "application/octet-stream" : "application/json";
    }
    let answer: Response;
    try {
      answer = await fetch(`api/${path}`, options);
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new Lost("The server does not answer.");
    }
    if (answer.ok) return answer;
    const detail = (await answer.json().catch(() => ({}))) as { detail?: unknown };
    throw new Refused(answer.status, typeof detail.detail === "string" ? detail.detail : `Error ${answer.status}.`);
  }
}
