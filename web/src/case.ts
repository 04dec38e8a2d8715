// The case on the screen: its pixels, what was drawn for it, and what the person did.

import { Refused, type Api, type Case, type Hypothesis, type Prediction, type Request, type ScaleMap, type State, type Values } from "./api";
import { History, type Choose, type ChooseVolume, type Event, type MapState, type Source } from "./history";
import type { Action, ScaleMapKind, Start } from "./latents";
import type { Outbox } from "./outbox";
import { decode, encode, place, type Labels } from "./runs";
import { Volume, type Plane } from "./volume";

export interface Drawn {
  answer: Prediction;
  at: [number, number] | null;
  /** Labels of all samples, one after the other. */
  samples: Uint8Array;
  /** Samples of a model of instances, clustered: the only hypothesis. */
  instances: Labels | null;
  /** Of a volume: the map of each hypothesis on this slice. */
  maps?: Labels[];
}

/** A hypothesis whose latents are edited, and the choice that it was before. */
export interface Origin {
  slice: number;
  start: Start;
  source: Source;
}
export interface ScaleMapWish {
  scale: number;
  kind: ScaleMapKind;
  point?: [number, number];
  channel?: number;
}
export interface Edited {
  /** Of the whole slice. */
  map: Labels;
  state: MapState;
}

const [KEPT_SLICES, KEPT_SCALE_MAPS] = [32, 64];

export class OpenCase {
  readonly history: History;
  state: State;
  slice = 0;
  at: [number, number] | null = null;
  seed = 0;
  numSamples = 16;
  /** What is drawn and shown in three planes; null while slices are shown one by one. */
  volume: Volume | null = null;
  private keptVolume: Volume | null = null;
  private readonly values = new Map<number, Values>();
  private readonly drawn = new Map<number, Drawn>();
  private readonly heat = new Map<string, Uint8Array>();
  private readonly gradings = new Map<string, Uint8Array | null>();
  private readonly scaleMaps = new Map<string, ScaleMap>();
  private readonly placed = new Map<string, Labels>();

  constructor(
    private readonly api: Api,
    readonly item: Case,
    events: readonly Event[],
    readonly outbox: Outbox,
  ) {
    this.history = new History(item.height * item.width, events);
    this.state = item.state;
  }

  get size(): { height: number; width: number } {
    return { height: this.item.height, width: this.item.width };
  }

  get mask(): Labels {
    return this.history.mask(this.slice);
  }

  /** What was drawn for this slice. */
  get current(): Drawn | null {
    if (!this.volume) return this.drawn.get(this.slice) ?? null;
    const { answer, at } = this.volume;
    const maps = this.volume.known("hypotheses", "axial", this.slice) ?? [];
    const hasInstances = typeof answer?.num_instances === "number";
    return answer && { answer, at, samples: new Uint8Array(), instances: hasInstances ? (maps[0] ?? new Uint16Array()) : null, maps };
  }

  /** Go on in three planes, or slice by slice; what was drawn stays. */
  showPlanes(on: boolean): void {
    this.volume = on ? (this.keptVolume ??= new Volume(this.api, this.item)) : null;
  }

  /** Whether the image must be pointed at before anything can be drawn. */
  get waitsForPoint(): boolean {
    return this.item.needs_point && this.at === null;
  }

  /** The drawn hypothesis that the mask of this slice is or was; null if its latents were edited or other samples are drawn. */
  get chosen(): number | null {
    return this.history.origin(this.slice).source?.num_edits ? null : this.chosenFrom;
  }

  /** The drawn hypothesis that the mask of this slice began with, also if it was edited; null if other samples are drawn. */
  get chosenFrom(): number | null {
    const { source } = this.history.origin(this.slice);
    const drawn = this.current;
    if (!source || !drawn) return null;
    if (this.history.isOfVolume(this.slice) !== (this.volume !== null)) return null;
    const isSame = source.seed === drawn.answer.seed && source.num_samples === drawn.answer.num_samples;
    return isSame && String(source.at) === String(drawn.at) ? source.hypothesis : null;
  }

  /** What was chosen for this slice says which samples are drawn next, so that the strip shows the choice again. */
  resume(): void {
    const { source } = this.history.origin(this.slice);
    if (source) [this.at, this.seed, this.numSamples] = [source.at, source.seed, source.num_samples];
  }

  /** Do these events, after reopening the case if they change its mask; the slice that changed last, or null. */
  act(...events: Event[]): number | null {
    const changes = events.some((event) => !["note", "accept", "reopen"].includes(event.kind));
    const all: Event[] = changes && this.history.status === "accepted" ? [{ kind: "reopen" }, ...events] : events;
    const changed = all.map((event) => this.history.add(event)).filter((slice) => slice !== null);
    this.outbox.add(...all);
    return changed.at(-1) ?? null;
  }

  /** The event that chooses a hypothesis. */
  choice(hypothesis: number): Choose | null {
    const [drawn, found] = [this.current, this.current?.answer.hypotheses[hypothesis]];
    if (!drawn || !found) return null;
    const { seed, num_samples } = drawn.answer;
    const { share, state } = found;
    const source = { hypothesis, share, seed, num_samples, at: drawn.at, state, num_edits: 0 };
    return { kind: "choose", slice: this.slice, value_map: encode(this.map(hypothesis)), source };
  }

  /** The event that chooses a hypothesis of all slices. */
  async volumeChoice(hypothesis: number): Promise<ChooseVolume | null> {
    const { volume } = this;
    const found = volume?.answer?.hypotheses[hypothesis];
    if (!volume?.answer || !found) return null;
    const [{ seed, num_samples }, { at }] = [volume.answer, volume];
    const source = { hypothesis, share: found.share, seed, num_samples, at, state: null, num_edits: 0 };
    return { kind: "choose-volume", value_map: await volume.runs(hypothesis), source };
  }

  /** What edits of this slice start from: the chosen hypothesis, else the first; null if neither can be edited. */
  get origin(): Origin | null {
    const [{ slice, current }, { source }] = [this, this.history.origin(this.slice)];
    if (current?.instances) return null;
    const isHere = source !== null && (!current || String(source.at) === String(current.at));
    if (isHere && source.state) return { slice, start: { state: source.state }, source };
    const number = isHere ? this.chosen : 0;
    const event = number === null ? null : this.choice(number);
    const start = number === null ? null : this.startOf(number);
    return event && start && { slice, start, source: event.source };
  }

  /** A drawn hypothesis, for the server. */
  startOf(hypothesis: number): Start | null {
    const [answer, found] = [this.current?.answer, this.current?.answer.hypotheses[hypothesis]];
    if (!answer || !found) return null;
    const { num_samples, seed } = answer;
    return found.state ? { state: found.state } : { drawn: { num_samples, seed, sample: found.representative } };
  }

  async edit({ slice, start, source }: Origin, action: Action): Promise<Edited> {
    const { state, place: at, value_map } = await this.api.edit(this.item.id, { slice, at: source.at, start, action });
    return { map: place(decode(value_map, at.height * at.width), at, this.size), state };
  }

  /** The event that chooses an edited hypothesis. */
  editedChoice({ slice, source }: Origin, { map, state }: Edited, numEdits = (source.num_edits ?? 0) + 1): Event {
    const { hypothesis, share, seed, num_samples, at } = source;
    const from = { hypothesis, share, seed, num_samples, at, state, num_edits: numEdits };
    return { kind: "choose", slice, value_map: encode(map), source: from };
  }

  /** A map of what a scale, or one latent of it, is about. */
  async scaleMap({ slice, start, source: { at } }: Origin, what: ScaleMapWish): Promise<ScaleMap> {
    const request = { slice, at, start, ...what };
    const key = JSON.stringify(request);
    const map = this.scaleMaps.get(key) ?? (await this.api.scaleMap(this.item.id, request));
    if (this.scaleMaps.size >= KEPT_SCALE_MAPS) this.scaleMaps.delete([...this.scaleMaps.keys()][0] ?? key);
    this.scaleMaps.set(key, map);
    return map;
  }

  /** The map of a hypothesis of this slice, in the whole image. */
  map(hypothesis: number): Labels {
    const { instances, answer, maps } = this.current ?? {};
    if (maps) return maps[hypothesis] ?? new Uint16Array(this.item.height * this.item.width);
    if (instances) return this.placedMap("instances", instances);
    return this.sample(answer?.hypotheses[hypothesis]?.representative ?? 0);
  }

  /** The map of a sample of this slice, in the whole image. */
  sample(index: number): Labels {
    if (this.volume) return this.volume.known("samples", "axial", this.slice)?.[index] ?? new Uint16Array(this.item.height * this.item.width);
    const { height, width } = this.current?.answer.place ?? { height: 0, width: 0 };
    return this.placedMap(String(index), this.current?.samples.subarray(index * height * width, (index + 1) * height * width));
  }

  private placedMap(name: string, part: Labels | undefined): Labels {
    const { answer } = this.current ?? {};
    if (!answer || !part) return new Uint16Array(this.item.height * this.item.width);
    const key = `${answer.prediction}/${name}`;
    const map = this.placed.get(key) ?? place(part, answer.place, this.size);
    this.placed.set(key, map);
    return map;
  }

  async pixels(): Promise<Values> {
    const { slice } = this;
    if (this.volume) return this.volume.image("axial", slice);
    const known = this.values.get(slice);
    if (known) return known;
    const values = await this.api.image(this.item, slice);
    if (this.values.size >= KEPT_SLICES) this.values.delete([...this.values.keys()][0] ?? slice);
    this.values.set(slice, values);
    return values;
  }

  /** A grader's map of this slice, null if that grader did not look. */
  async grading(grader: number, plane: Plane = "axial", index = this.slice): Promise<Uint8Array | null> {
    const key = `${plane}/${index}/${grader}`;
    const known = this.gradings.get(key);
    if (known !== undefined) return known;
    const map = await this.api.grader(this.item.id, grader, index, plane).catch((error: unknown) => {
      if (error instanceof Refused && error.status === 404) return null;
      throw error;
    });
    this.gradings.set(key, map);
    return map;
  }

  /** Mean or spread of what was drawn for this slice. */
  async summary(kind: "mean" | "std"): Promise<Uint8Array | null> {
    if (this.volume) return ((await this.volume.load(kind, "axial", this.slice))?.[0] ?? null) as Uint8Array | null;
    const drawn = this.current;
    if (!drawn) return null;
    const key = `${drawn.answer.prediction}/${kind}`;
    const map = this.heat.get(key) ?? (await this.fetchMap(drawn, kind));
    this.heat.set(key, map);
    return map;
  }

  /** Draw samples of this slice. */
  async draw(signal: AbortSignal): Promise<Drawn> {
    const { slice, at, volume } = this;
    if (volume) {
      const answer = await volume.draw({ num_samples: this.numSamples, seed: this.seed, at }, signal);
      if (typeof answer.num_instances === "number") answer.hypotheses = [clusteringOf(answer)];
      return { answer, at, samples: new Uint8Array(), instances: null };
    }
    const request: Request = { slice, num_samples: this.numSamples, seed: this.seed, at };
    const answer = await this.api.samples(this.item.id, request, signal);
    const hasInstances = typeof answer.num_instances === "number";
    const [samples, instances] = await Promise.all([
      this.api.maps(answer.prediction, "samples"),
      hasInstances ? this.api.instances(answer.prediction) : null,
    ]);
    if (hasInstances) answer.hypotheses = [clusteringOf(answer)];
    const drawn = { answer, at, samples, instances };
    this.placed.clear();
    this.drawn.set(slice, drawn);
    return drawn;
  }

  /** A map of a prediction; one that the server has forgotten is drawn again, which gives the same. */
  private async fetchMap(drawn: Drawn, kind: "mean" | "std"): Promise<Uint8Array> {
    const { answer, at } = drawn;
    try {
      return await this.api.maps(answer.prediction, kind);
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 404) throw error;
      const request = { slice: this.slice, num_samples: answer.num_samples, seed: answer.seed, at };
      const again = await this.api.samples(this.item.id, request, new AbortController().signal);
      drawn.answer.prediction = again.prediction;
      return this.api.maps(again.prediction, kind);
    }
  }
}

/** The only hypothesis of a model of instances. */
function clusteringOf({ num_instances, num_samples }: Prediction): Hypothesis {
  const members = Array.from({ length: num_samples }, (_, i) => i);
  const description = num_instances === 1 ? "1 instance" : `${num_instances ?? 0} instances`;
  return { share: 1, representative: 0, members, description, same_iou: 1, state: null };
}
