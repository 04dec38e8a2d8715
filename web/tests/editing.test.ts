import { beforeEach, describe, expect, it, vi } from "vitest";
import type { Api, Case, EditRequest, Prediction, Request } from "../src/api";
import { OpenCase } from "../src/case";
import { Editing } from "../src/editing";
import type { Event } from "../src/history";
import type { Outbox } from "../src/outbox";

const SIDE = 4;
const ITEM = { id: 3, name: "case", slices: 1, height: SIDE, width: SIDE } as Case;
const PLACE = { y: 0, x: 0, height: SIDE, width: SIDE };

let asked: EditRequest[];
let said: string[];
let open: OpenCase;
let host: { open: OpenCase | null };
let editing: Editing;
let answers: (() => void)[];

/** An edit marks as many pixels as there were requests; the answer comes when the test lets it. */
function answer(_: number, request: EditRequest): Promise<object> {
  asked.push(request);
  const found = { state: { edit: asked.length }, place: PLACE, value_map: [[0, asked.length, 1]] };
  return new Promise((resolve) => {
    answers.push(() => {
      resolve(found);
    });
  });
}

async function rest(): Promise<void> {
  for (let i = 0; i < 20; i += 1) await Promise.resolve();
}

async function answerAll(): Promise<void> {
  await rest();
  while (answers.length > 0) {
    answers.shift()?.();
    await rest();
  }
}

function marked(): number {
  return [...open.mask].reduce((sum, value) => sum + value, 0);
}

beforeEach(async () => {
  [asked, said, answers] = [[], [], []];
  const hypotheses = [1, 2].map((state) => ({ share: 0.5, representative: state, members: [state], description: "", same_iou: 1, state: { state } }));
  const scales = [{ height: 1, width: 1, channels: 1 }, { height: 2, width: 2, channels: 1 }];
  const api = {
    samples: (_: number, { seed, num_samples }: Request) =>
      Promise.resolve({ prediction: "p", seed, num_samples, place: PLACE, grid: PLACE, scales, hypotheses } as unknown as Prediction),
    maps: () => Promise.resolve(new Uint8Array(16 * SIDE * SIDE)),
    edit: answer,
  } as unknown as Api;
  open = new OpenCase(api, ITEM, [], { add: () => undefined } as unknown as Outbox);
  await open.draw(new AbortController().signal);
  host = { open };
  editing = new Editing({
    get open() {
      return host.open;
    },
    act: (event: Event) => {
      open.act(event);
    },
    say: (words) => {
      said.push(words);
    },
    changed: () => undefined,
    run: (work) => {
      work.catch((error: unknown) => said.push(String(error)));
    },
  });
});

const keep = () => ({ kind: "keep" as const });

describe("edits", () => {
  it("start from the first hypothesis, then from the one that was chosen or edited", async () => {
    for (let i = 0; i < 2; i += 1) {
      void editing.edit(keep, "done");
      await answerAll();
    }
    const choice = open.choice(1);
    if (choice) open.act(choice);
    void editing.edit(keep, "done");
    await answerAll();
    expect(asked.map(({ start }) => start)).toEqual([{ state: { state: 1 } }, { state: { edit: 1 } }, { state: { state: 2 } }]);
    expect(open.history.origin(0).source).toMatchObject({ hypothesis: 1, num_edits: 1, state: { edit: 3 } });
    expect([open.chosen, open.chosenFrom]).toEqual([null, 1]);
  });

  it("wait for each other, and are undone one by one", async () => {
    void editing.edit(keep, "one");
    void editing.edit(keep, "two");
    await answerAll();
    expect(asked[1]?.start).toEqual({ state: { edit: 1 } });
    expect(marked()).toBe(2);
    open.act({ kind: "undo" });
    expect(marked()).toBe(1);
    open.act({ kind: "undo" });
    expect([marked(), open.history.canUndo]).toEqual([0, false]);
  });

  it("are left out if the mask or the case changed meanwhile", async () => {
    const first = editing.edit(keep, "one");
    await rest();
    open.act({ kind: "paint", slice: 0, value: 1, runs: [[5, 3]] });
    const refused = expect(first).rejects.toThrow("meanwhile");
    await answerAll();
    await refused;
    void editing.edit(keep, "two");
    await rest();
    host.open = null;
    await answerAll();
    expect(marked()).toBe(3);
  });

  it("begin from a sample if the state is not kept", async () => {
    for (const hypothesis of open.current?.answer.hypotheses ?? []) hypothesis.state = null;
    void editing.edit(keep, "one");
    await answerAll();
    expect(asked[0]?.start).toEqual({ drawn: { num_samples: 16, seed: 0, sample: 1 } });
  });

  it("under a stroke have its pixels", async () => {
    editing.paintTo({ x: 1.5, y: 1.5 }, { x: 2.5, y: 1.5 }, 1);
    void editing.finishRegion((region) => ({ kind: "redraw", seed: 1, region }), "done");
    expect(editing.waiting).toHaveLength(1);
    await answerAll();
    expect(asked[0]?.action).toEqual({ kind: "redraw", seed: 1, region: [[5, 2]] });
    expect(editing.waiting).toHaveLength(0);
    editing.paintTo({ x: -5, y: -5 }, { x: -5, y: -5 }, 1);
    await editing.finishRegion((region) => ({ kind: "redraw", seed: 1, region }), "done");
    expect(asked).toHaveLength(1);
  });
});

describe("a dragged latent", () => {
  it("starts where it was, shows the newest answer, and becomes one step", async () => {
    expect(editing.take({ x: 3, y: 1 }, 1, 0)).toBe(true);
    expect(editing.cell).toEqual({ x: 2, y: 0, width: 2, height: 2 });
    for (const up of [20, 30, 40]) editing.moveTo(up);
    await answerAll();
    expect(asked.map(({ action }) => action.kind === "nudge" && action.by)).toEqual([0.5, 1]);
    expect(asked.map(({ start }) => start)).toEqual([{ state: { state: 1 } }, { state: { state: 1 } }]);
    expect(editing.caption).toBe("Latent of 2×2: +1.00 σ");
    expect([marked(), [...(editing.preview ?? [])].reduce((a, b) => a + b, 0)]).toEqual([0, 2]);
    editing.moveTo(80);
    const released = editing.release();
    await answerAll();
    await released;
    expect([marked(), editing.preview]).toEqual([3, null]);
    open.act({ kind: "undo" });
    expect([marked(), open.history.canUndo]).toEqual([0, false]);
  });

  it("is taken back, and answers that come later change nothing", async () => {
    editing.take({ x: 3, y: 1 }, 1, 0);
    editing.moveTo(40);
    await rest();
    editing.cancel();
    await answerAll();
    expect([marked(), editing.preview, open.history.canUndo]).toEqual([0, null, false]);
  });

  it("is no step if it comes back to where it was", async () => {
    editing.take({ x: 3, y: 1 }, 1, 0);
    editing.moveTo(40);
    await answerAll();
    editing.moveTo(0);
    void editing.release();
    await answerAll();
    expect([editing.isDragging, open.history.canUndo]).toEqual([false, false]);
  });

  it("moves by keys, which become one step after a rest", async () => {
    vi.useFakeTimers();
    for (let i = 0; i < 3; i += 1) editing.step(1, { x: 3, y: 1 }, 1, 0);
    editing.step(-1, { x: 2, y: 0 }, 1, 0); // the same cell
    expect(said.at(-1)).toBe("2×2: +0.50 σ");
    await answerAll();
    expect(marked()).toBe(0);
    vi.runAllTimers();
    await answerAll();
    vi.useRealTimers();
    expect(asked.at(-1)?.action).toEqual({ kind: "nudge", scale: 1, at: [3, 1], by: 0.5, channel: 0 });
    expect([open.history.origin(0).source?.num_edits, marked()]).toEqual([1, 2]);
  });
});
