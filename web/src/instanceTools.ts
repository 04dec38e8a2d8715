// What a person does with the instances of a map: select one, merge and split them by a stroke, begin a new one.

import type { OpenCase } from "./case";
import { make, short } from "./dom";
import type { Event } from "./history";
import { areaOf, idAt, idsOf, merged, newIds, numWhole, split } from "./instances";
import { stamp, type Point } from "./pixels";
import type { Labels } from "./runs";

export interface Host {
  readonly open: OpenCase | null;
  /** Whether the slice has a mask; else the clustering is what is shown. */
  readonly isDecided: boolean;
  act: (event: Event) => number | null;
  say: (words: string, isSeen?: boolean) => void;
  /** What is shown of the instances has changed. */
  changed: () => void;
}

export class InstanceTools {
  /** Pixels that a stroke of merging or splitting marks. */
  stroke: Uint8Array | null = null;
  private first = 0;
  private chosen = 0;
  private chosenIn = { open: null as OpenCase | null, slice: 0, clustering: null as Labels | null };
  private shares = { map: null as Labels | null, id: 0, samples: null as Uint8Array | null, words: "" };

  constructor(
    private readonly host: Host,
    private readonly foreground: readonly number[],
  ) {}

  /** The map that is shown: of the person, or the clustering. */
  get map(): Labels | null {
    const { open, isDecided } = this.host;
    if (!open) return null;
    return isDecided ? open.mask : open.current ? open.map(0) : null;
  }

  /** The selected instance; 0 if there is none, or if another slice or clustering is shown by now. */
  get selected(): number {
    const { map, chosenIn } = this;
    const { open, isDecided } = this.host;
    const isSame = open === chosenIn.open && open?.slice === chosenIn.slice && (isDecided || map === chosenIn.clustering);
    if (this.chosen > 0 && !(isSame && map?.includes(this.chosen))) this.chosen = 0;
    return this.chosen;
  }

  select(id: number): void {
    const { open, isDecided } = this.host;
    this.chosenIn = { open, slice: open?.slice ?? 0, clustering: isDecided ? null : this.map };
    this.chosen = id;
    this.host.say(id > 0 ? this.describe() : "No instance is selected.");
    this.host.changed();
  }

  selectAt(point: Point): void {
    const { map, host } = this;
    if (map && host.open) this.select(idAt(map, host.open.size, point));
  }

  /** Select the next instance, from the top of the image down. */
  selectNext(): void {
    const ids = this.map ? idsOf(this.map) : [];
    this.select(ids[(ids.indexOf(this.selected) + 1) % Math.max(ids.length, 1)] ?? 0);
  }

  /** The id that the brush paints with: the selected one, or a new one. */
  get brushId(): number {
    const { open } = this.host;
    return this.selected || (open ? (newIds(open.mask, 1)[0] ?? 0) : 0);
  }

  /** Area of the selected instance, and in how many samples it is whole. */
  describe(): string {
    const { map, host, selected: id, shares } = this;
    const { open } = host;
    if (!map || !open) return "";
    if (id === 0) return "Click an instance.";
    const drawn = open.current;
    if (shares.map === map && shares.id === id && shares.samples === (drawn?.samples ?? null)) return shares.words;
    const [down, across] = open.item.spacing ?? [1, 1];
    const unit = open.item.spacing ? "mm²" : "pixels";
    let words = `Instance ${id}: ${short(areaOf(map, id) * down * across)} ${unit}`;
    if (drawn) {
      const { answer, samples } = drawn;
      const count = numWhole(map, open.size, id, { samples, place: answer.place, foreground: this.foreground });
      words += `, whole in ${count} of ${answer.num_samples} samples`;
    }
    this.shares = { map, id, samples: drawn?.samples ?? null, words };
    return words;
  }

  /** What the page says about instances. */
  show(place: HTMLElement): void {
    const count = this.map ? idsOf(this.map).length : 0;
    const all = count === 1 ? "1 instance." : `${count} instances.`;
    place.replaceChildren(make("span", this.map ? `${all} ${this.describe()}` : ""));
  }

  paintTo(from: Point, to: Point, size: number): void {
    const { open } = this.host;
    const { map } = this;
    if (!open || !map) return;
    if (!this.stroke) this.first = 0;
    this.stroke = this.stroke?.slice() ?? new Uint8Array(map.length); // a new one, since pictures of it are kept
    this.first ||= idAt(map, open.size, from) || idAt(map, open.size, to);
    stamp(this.stroke, open.size, from, to, size, 1);
    this.host.changed();
  }

  cancel(): void {
    this.stroke = null;
  }

  finish(tool: "merge" | "split"): void {
    const { host, stroke, first } = this;
    const { open } = host;
    this.stroke = null;
    if (!open || !stroke) return;
    if (!host.isDecided) {
      host.say("Choose the clustering first: press 1.", true);
      return;
    }
    if (tool === "merge") this.merge(open, stroke, first);
    else this.split(open, stroke);
    host.changed();
  }

  private merge(open: OpenCase, stroke: Uint8Array, into: number): void {
    const before = idsOf(open.mask).length;
    const runs = merged(open.mask, stroke, into);
    if (runs.length === 0) {
      this.host.say("Nothing is merged: drag from one instance to others.", true);
      return;
    }
    this.host.act({ kind: "paint", slice: open.slice, value: into, runs });
    this.select(into);
    this.host.say(`${before - idsOf(open.mask).length + 1} instances are one now. ${this.describe()}`);
  }

  private split(open: OpenCase, stroke: Uint8Array): void {
    const before = idsOf(open.mask).length;
    const value_map = split(open.mask, open.size, stroke);
    if (value_map.length === 0) {
      this.host.say("Nothing is cut: drag across an instance, from side to side.", true);
      return;
    }
    this.host.act({ kind: "relabel", slice: open.slice, value_map });
    this.host.say(`${before} instances are ${idsOf(open.mask).length} now.`);
  }
}
