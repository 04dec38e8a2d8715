// Events on their way to the server: in order, kept until they are acknowledged, also when the tab is closed.

import { Lost, Refused, type Api, type State } from "./api";
import type { Event } from "./history";

export interface Listener {
  /** The server has everything, or so many events wait. */
  sent: (state: State | null, waiting: number) => void;
  /** Another tab or person changed the case: read it again. */
  changed: () => void;
  failed: (message: string) => void;
}
export interface Storage {
  getItem: (key: string) => string | null;
  setItem: (key: string, value: string) => void;
  removeItem: (key: string) => void;
}

const RETRY_MS = 2000;
const MAX_BATCH = 500;
const MAX_RUNS = 200_000;

/** The events of one case that the server has not acknowledged. */
export class Outbox {
  private waiting: Event[];
  private sending: Promise<void> | null = null;

  constructor(
    private readonly api: Pick<Api, "post" | "events">,
    private readonly id: number,
    public version: number,
    private readonly key: string,
    private readonly storage: Storage,
    private readonly listener: Listener,
    private readonly retryMs = RETRY_MS,
  ) {
    this.waiting = parse(storage.getItem(key));
  }

  /** Events of an earlier tab that the server may not have, after `known` ones that it has. */
  static left(key: string, storage: Storage, known: readonly Event[]): Event[] {
    const waiting = parse(storage.getItem(key));
    const tail = known.slice(known.length - waiting.length);
    if (waiting.length > 0 && JSON.stringify(tail) === JSON.stringify(waiting)) {
      storage.removeItem(key);
      return [];
    }
    return waiting;
  }

  get numWaiting(): number {
    return this.waiting.length;
  }

  add(...events: Event[]): void {
    this.waiting.push(...events);
    this.keep();
    this.send();
  }

  /** Send what waits, if nothing is being sent. */
  send(): void {
    this.sending ??= this.sendAll().finally(() => (this.sending = null));
  }

  /** Resolves when nothing is being sent. */
  async settled(): Promise<void> {
    while (this.sending) await this.sending;
  }

  private async sendAll(): Promise<void> {
    while (this.waiting.length > 0) {
      const accept = this.waiting.findIndex(({ kind }, i) => i > 0 && kind === "accept"); // begins a batch of its own
      const batch = this.waiting.slice(0, Math.min(accept > 0 ? accept : MAX_BATCH, MAX_BATCH, fitting(this.waiting)));
      try {
        const { version, state } = await this.api.post(this.id, this.version, batch);
        this.acknowledge(batch.length, version);
        this.listener.sent(state, this.waiting.length);
      } catch (error) {
        if (error instanceof Refused && error.status === 409) {
          if (await this.settle(batch)) continue;
          return;
        }
        if (error instanceof Refused && error.status !== 429 && error.status < 500) {
          this.drop();
          this.listener.failed(error.message);
          this.listener.changed();
          return;
        }
        if (!(error instanceof Lost || error instanceof Refused)) throw error;
        this.listener.sent(null, this.waiting.length);
        await new Promise((resolve) => setTimeout(resolve, this.retryMs));
      }
    }
  }

  /** After a conflict: true if the server has the first of the batch and only its answer was lost. */
  private async settle(batch: readonly Event[]): Promise<boolean> {
    try {
      const { version, events } = await this.api.events(this.id);
      const arrived = events.slice(this.version);
      if (arrived.length > 0 && JSON.stringify(arrived) === JSON.stringify(batch.slice(0, arrived.length))) {
        this.acknowledge(arrived.length, version);
        this.listener.sent(null, this.waiting.length);
        return true;
      }
    } catch (error) {
      if (error instanceof Lost) return true;
      throw error;
    }
    this.drop();
    this.listener.failed("Another tab changed this case. Your last change was not saved; look at the case and repeat it.");
    this.listener.changed();
    return false;
  }

  private acknowledge(count: number, version: number): void {
    this.waiting.splice(0, count);
    this.version = version;
    this.keep();
  }

  private drop(): void {
    this.waiting = [];
    this.keep();
  }

  private keep(): void {
    if (this.waiting.length === 0) {
      this.storage.removeItem(this.key);
      return;
    }
    try {
      this.storage.setItem(this.key, JSON.stringify(this.waiting));
    } catch {
      this.storage.removeItem(this.key); // maps of volumes may be too large for it: they wait in this tab only
    }
  }
}

/** How many events are sent together: at least one, with as many runs as the server takes. */
function fitting(events: readonly Event[]): number {
  let total = 0;
  const end = events.findIndex((event) => {
    total += "value_map" in event ? event.value_map.length : event.kind === "paint" ? event.runs.length : 0;
    return total > MAX_RUNS;
  });
  return end === -1 ? events.length : Math.max(end, 1);
}

function parse(text: string | null): Event[] {
  try {
    const found: unknown = JSON.parse(text ?? "[]");
    return Array.isArray(found) ? (found as Event[]) : [];
  } catch {
    return [];
  }
}
