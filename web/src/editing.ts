// Tools that edit the latents of a hypothesis: redraw a part, take it from another hypothesis, drag one latent.

import type { Edited, OpenCase, Origin } from "./case";
import type { Event } from "./history";
import { cellAt, limited, middleOf, nameOf, Newest, sigmasOf, signed, type Action, type Box } from "./latents";
import { stamp, type Point } from "./pixels";
import { differences, type Labels } from "./runs";

export interface Host {
  readonly open: OpenCase | null;
  act: (event: Event) => void;
  say: (words: string, isSeen?: boolean) => void;
  /** What is shown of the edit has changed. */
  changed: () => void;
  run: (work: Promise<unknown>) => void;
}

interface Drag {
  open: OpenCase;
  origin: Origin;
  /** The mask that it began with. */
  mask: Labels;
  name: string;
  scale: number;
  channel: number;
  at: [number, number];
  cell: Box;
  by: number;
  shown: (Edited & { by: number }) | null;
  requests: Newest<number>;
}

const KEY_MS = 700;
const KEY_SIGMAS = 0.25;

export class Editing {
  /** Of pixels that a stroke marks. */
  region: Uint8Array | null = null;
  /** Regions whose answers have not come yet. */
  readonly waiting: Uint8Array[] = [];
  private drag: Drag | null = null;
  private keyTimer = 0;
  private queue: Promise<unknown> = Promise.resolve();

  constructor(private readonly host: Host) {}

  // ---------------------------------------------------------------- one request, one step

  /** Edit the hypothesis as it is when edits that were asked for before are done. */
  edit(action: (open: OpenCase) => Action, words: string): Promise<void> {
    this.commit();
    const { open } = this.host;
    const slice = open?.slice;
    const done = this.queue.then(async () => {
      if (open === this.host.open && slice === open?.slice) await this.editNow(action, words);
    });
    this.queue = done.catch(() => undefined);
    return done;
  }

  private async editNow(action: (open: OpenCase) => Action, words: string): Promise<void> {
    const { host } = this;
    const { open, origin } = this.begin();
    host.say("Decoding…", true);
    const mask = open.history.mask(origin.slice);
    const edited = await open.edit(origin, action(open));
    if (open !== host.open) return;
    if (mask !== open.history.mask(origin.slice)) throw new Error("The mask changed meanwhile; the edit was left out.");
    host.act(open.editedChoice(origin, edited));
    host.say(words);
  }

  private begin(): { open: OpenCase; origin: Origin } {
    const { open } = this.host;
    const origin = open?.origin;
    if (!open?.current) throw new Error("Wait for the samples first.");
    if (!origin) throw new Error("Choose a hypothesis first; what was chosen before cannot be edited any more.");
    return { open, origin };
  }

  // ---------------------------------------------------------------- regions

  paintTo(from: Point, to: Point, size: number): void {
    const { open } = this.host;
    if (!open) return;
    const { height, width } = open.size;
    this.region = this.region?.slice() ?? new Uint8Array(height * width); // a new one, since pictures of it are kept
    stamp(this.region, open.size, from, to, size, 1);
    this.host.changed();
  }

  /** Edit under the region that a stroke marked. */
  async finishRegion(action: (region: [number, number][], open: OpenCase) => Action, words: string): Promise<void> {
    const { region, host } = this;
    const { place } = host.open?.current?.answer ?? {};
    this.region = null;
    if (!region || !host.open || !place) return;
    const { width } = host.open.size;
    region.forEach((value, i) => {
      const [x, y] = [i % width, Math.floor(i / width)];
      const isInside = x >= place.x && y >= place.y && x < place.x + place.width && y < place.y + place.height;
      if (value && !isInside) region[i] = 0;
    });
    const runs = differences(new Uint8Array(region.length), region).map(([start, length]): [number, number] => [start, length]);
    if (runs.length === 0) return;
    this.waiting.push(region);
    try {
      await this.edit((open) => action(runs, open), words);
    } finally {
      this.waiting.splice(this.waiting.indexOf(region), 1);
      host.changed();
    }
  }

  // ---------------------------------------------------------------- dragging a latent

  /** What is shown instead of the mask while a latent moves. */
  get preview(): Labels | null {
    return this.drag?.shown?.map ?? null;
  }

  get isDragging(): boolean {
    return this.drag !== null;
  }

  /** What the shown outline is, in words. */
  get caption(): string {
    return this.drag ? `Latent of ${this.drag.name}: ${signed(this.drag.shown?.by ?? 0)}` : "";
  }

  /** The cell that moves. */
  get cell(): Box | null {
    return this.drag?.cell ?? null;
  }

  /** Take hold of the latent at a point of the image. */
  take(point: Point, scale: number, channel: number): boolean {
    this.commit();
    const { open, origin } = this.begin();
    const { scales, grid, place } = open.current?.answer ?? {};
    const found = scales?.[scale];
    const cell = found && grid && place ? cellAt(point, found, grid, place) : null;
    if (!found || !cell || !place) return false;
    const at = middleOf(cell, place);
    const drag: Drag = {
      open, origin, mask: open.history.mask(origin.slice), name: nameOf(found), scale, channel, at, cell, by: 0, shown: null,
      requests: new Newest(async (by) => {
        const edited = await open.edit(origin, { kind: "nudge", scale, at, by, channel });
        if (drag !== this.drag) return;
        drag.shown = { ...edited, by };
        this.host.changed();
      }),
    };
    this.drag = drag;
    this.host.changed();
    return true;
  }

  /** Move the latent to so many CSS pixels above where it was taken. */
  moveTo(up: number): void {
    this.want(sigmasOf(up));
  }

  /** A step up or down by the keyboard; a short rest after the last one is the release. */
  step(direction: 1 | -1, point: Point, scale: number, channel: number): void {
    const { drag } = this;
    const isSame = drag?.scale === scale && drag.channel === channel && contains(drag.cell, point);
    if (!isSame && !this.take(point, scale, channel)) return;
    this.want((this.drag?.by ?? 0) + direction * KEY_SIGMAS);
    this.host.say(`${this.drag?.name ?? ""}: ${signed(this.drag?.by ?? 0)}`);
    window.clearTimeout(this.keyTimer);
    this.keyTimer = window.setTimeout(() => {
      this.host.run(this.release());
    }, KEY_MS);
  }

  private want(by: number): void {
    const { drag } = this;
    if (!drag || drag.by === limited(by)) return;
    drag.by = limited(by);
    this.host.run(drag.requests.want(drag.by));
  }

  /** Wait for the outline of the last move; it becomes a step. */
  async release(): Promise<void> {
    const { drag } = this;
    await drag?.requests.settled();
    if (drag && drag === this.drag) this.commit();
  }

  /** What is shown becomes a step now. */
  commit(): void {
    const { drag } = this;
    this.cancel();
    if (!drag?.shown || drag.shown.by === 0 || drag.open !== this.host.open) return;
    if (drag.mask !== drag.open.history.mask(drag.origin.slice)) return; // it was decided otherwise meanwhile
    this.host.act(drag.open.editedChoice(drag.origin, drag.shown));
    this.host.say(`A latent of ${drag.name} is moved by ${signed(drag.shown.by)}.`);
  }

  /** Take back what was not committed. */
  cancel(): void {
    window.clearTimeout(this.keyTimer);
    this.drag?.requests.drop();
    this.drag = this.region = null;
    this.host.changed();
  }
}

function contains(cell: Box, { x, y }: Point): boolean {
  return x >= cell.x && y >= cell.y && x < cell.x + cell.width && y < cell.y + cell.height;
}
