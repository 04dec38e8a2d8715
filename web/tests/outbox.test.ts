import { describe, expect, it } from "vitest";
import { Lost, Refused, type State } from "../src/api";
import type { Event } from "../src/history";
import { Outbox } from "../src/outbox";

const state: State = { status: "open", note: "", steps_done: 0, steps_undone: 0, slices: {} };
const note = (text: string): Event => ({ kind: "note", text });

function storage(): Storage {
  const kept = new Map<string, string>();
  return {
    getItem: (key: string) => kept.get(key) ?? null,
    setItem: (key: string, value: string) => kept.set(key, value),
    removeItem: (key: string) => kept.delete(key),
  } as unknown as Storage;
}

/** A server that keeps events; `fail` decides what a request meets. */
class Server {
  events: Event[] = [];
  batches: number[] = [];
  fail: (attempt: number) => "no" | "lost" | "answer lost" = () => "no";
  attempts = 0;

  post = (_: number, version: number, events: readonly Event[]): Promise<{ version: number; state: State }> => {
    const how = this.fail((this.attempts += 1));
    if (how === "lost") return Promise.reject(new Lost());
    if (version !== this.events.length) return Promise.reject(new Refused(409, "conflict"));
    this.events.push(...events);
    this.batches.push(events.length);
    if (how === "answer lost") return Promise.reject(new Lost());
    return Promise.resolve({ version: this.events.length, state });
  };

  get = { post: this.post, events: () => Promise.resolve({ version: this.events.length, events: this.events }) };
}

function outbox(server: Server, kept = storage(), said: string[] = []): Outbox {
  const listener = {
    sent: () => undefined,
    changed: () => said.push("changed"),
    failed: (message: string) => said.push(message),
  };
  return new Outbox(server.get, 0, server.events.length, "key", kept, listener, 1);
}

describe("outbox", () => {
  it("sends events in order, also those added while it sends", async () => {
    const [server, kept] = [new Server(), storage()];
    const box = outbox(server, kept);
    box.add(note("a"));
    box.add(note("b"), note("c"));
    expect(kept.getItem("key")).not.toBeNull();
    await box.settled();
    expect(server.events).toEqual([note("a"), note("b"), note("c")]);
    expect(kept.getItem("key")).toBeNull();
  });

  it("sends an acceptance apart from what came before", async () => {
    const server = new Server();
    server.fail = (attempt) => (attempt < 3 ? "lost" : "no");
    const box = outbox(server);
    const events: Event[] = [{ kind: "reopen" }, note("a"), { kind: "accept" }, note("b")];
    for (const event of events) box.add(event);
    await box.settled();
    expect(server.events).toEqual(events);
    expect(server.batches).toEqual([2, 2]);
  });

  it("tries again until the server is back", async () => {
    const server = new Server();
    server.fail = (attempt) => (attempt < 4 ? "lost" : "no");
    const box = outbox(server);
    box.add(note("a"));
    await box.settled();
    expect(server.events).toEqual([note("a")]);
  });

  it("does not repeat events whose answer was lost", async () => {
    const server = new Server();
    server.fail = (attempt) => (attempt === 1 ? "answer lost" : "no");
    const said: string[] = [];
    const box = outbox(server, storage(), said);
    box.add(note("a"));
    box.add(note("b"));
    await box.settled();
    expect(server.events).toEqual([note("a"), note("b")]);
    expect(said).toEqual([]);
  });

  it("says when another tab was faster, and forgets what no longer fits", async () => {
    const [server, said, kept] = [new Server(), [] as string[], storage()];
    const box = outbox(server, kept, said);
    server.events.push(note("theirs"));
    box.add(note("ours"));
    await box.settled();
    expect(server.events).toEqual([note("theirs")]);
    expect(said.at(-1)).toBe("changed");
    expect(kept.getItem("key")).toBeNull();
  });

  it("finds what a closed tab left, unless the server has it", () => {
    const kept = storage();
    kept.setItem("key", JSON.stringify([note("a")]));
    expect(Outbox.left("key", kept, [note("z")])).toEqual([note("a")]);
    expect(Outbox.left("key", kept, [note("z"), note("a")])).toEqual([]);
    kept.setItem("key", "no JSON");
    expect(Outbox.left("key", kept, [])).toEqual([]);
  });
});
