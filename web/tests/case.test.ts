import { describe, expect, it, vi } from "vitest";
import { Api, type Case, type Prediction, type Request } from "../src/api";
import { OpenCase } from "../src/case";
import type { Event } from "../src/history";
import { Outbox } from "../src/outbox";

const ITEM = { id: 3, name: "case", slices: 2, height: 2, width: 2 } as Case;
const SHARED = { share: 0.5, representative: 0, members: [0], description: "1 pixel", same_iou: 1 };

function chosen(slice: number, source: object): Event {
  return {
    kind: "choose",
    slice,
    value_map: [[0, 1, 1]],
    source: { hypothesis: 1, share: 0.5, seed: 0, num_samples: 16, at: null, ...source },
  };
}

function open(...events: Event[]): OpenCase {
  const place = { y: 0, x: 0, height: 2, width: 2 };
  const api = {
    samples: (_: number, { seed, num_samples }: Request) =>
      Promise.resolve({ prediction: "p", seed, num_samples, place, hypotheses: [SHARED, SHARED] } as unknown as Prediction),
    maps: () => Promise.resolve(new Uint8Array(64 * 4)),
  } as unknown as Api;
  return new OpenCase(api, ITEM, events, {} as Outbox);
}

describe("an open case", () => {
  it("draws the samples again that its choice came from, and shows the choice", async () => {
    const item = open(chosen(0, { seed: 2, num_samples: 64, at: [1, 1] }));
    item.resume();
    const { answer, at } = await item.draw(new AbortController().signal);
    expect([answer.seed, answer.num_samples, at]).toEqual([2, 64, [1, 1]]);
    expect(item.chosen).toBe(1);
  });

  it("says which slice an undo changed", () => {
    const outbox = { add: () => undefined } as unknown as Outbox;
    const item = new OpenCase({} as Api, ITEM, [chosen(0, {}), chosen(1, {})], outbox);
    expect(item.act({ kind: "undo" })).toBe(1);
    expect(item.act({ kind: "note", text: "a" })).toBeNull();
    expect(item.act({ kind: "undo" })).toBe(0);
  });

  it("shows no choice among other samples or on other slices", async () => {
    const item = open(chosen(0, { num_samples: 64 }));
    await item.draw(new AbortController().signal); // 16
    expect(item.chosen).toBeNull();
    item.slice = 1;
    item.resume();
    await item.draw(new AbortController().signal);
    expect(item.chosen).toBeNull();
  });
});

describe("the interface", () => {
  it("exports the slice on the screen", async () => {
    const sent: unknown[] = [];
    vi.stubGlobal("fetch", (_: string, { body }: RequestInit) => {
      sent.push(JSON.parse(body as string));
      return Promise.resolve(new Response("mask", { headers: { "Content-Disposition": "attachment; filename*=UTF-8''a%20b.png" } }));
    });
    const { name } = await new Api("token").export(3, "png", 7);
    vi.unstubAllGlobals();
    expect(sent).toEqual([{ format: "png", slice: 7 }]);
    expect(name).toBe("a b.png");
  });
});
