import { beforeEach, describe, expect, it } from "vitest";
import type { Api, Case, Prediction } from "../src/api";
import { OpenCase } from "../src/case";
import { InstanceTools } from "../src/instanceTools";
import type { Outbox } from "../src/outbox";
import type { Labels } from "../src/runs";

const PLACE = { y: 0, x: 0, height: 2, width: 4 };
const ITEM = { id: 3, name: "case", slices: 2, spacing: null, ...PLACE } as unknown as Case;
const CLUSTERS = Uint16Array.of(1, 1, 0, 300, 1, 1, 0, 300);
const SAMPLES = Uint8Array.of(2, 2, 0, 1, 2, 2, 0, 1, 2, 0, 0, 1, 0, 0, 0, 1);

let open: OpenCase;
let isDecided: boolean;
let said: string[];
let tools: InstanceTools;
let clusters: Labels;

beforeEach(async () => {
  [isDecided, said, clusters] = [false, [], CLUSTERS];
  const api = {
    samples: () => Promise.resolve({ prediction: "p", seed: 0, num_samples: 2, place: PLACE, num_instances: 2 } as unknown as Prediction),
    maps: () => Promise.resolve(SAMPLES),
    instances: () => Promise.resolve(clusters),
  } as unknown as Api;
  open = new OpenCase(api, ITEM, [], { add: () => undefined } as unknown as Outbox);
  await open.draw(new AbortController().signal);
  const host = {
    get open() {
      return open;
    },
    get isDecided() {
      return isDecided;
    },
    act: (...events: Parameters<OpenCase["act"]>) => open.act(...events),
    say: (words: string) => {
      said.push(words);
    },
    changed: () => undefined,
  };
  tools = new InstanceTools(host, [1, 2]);
});

function choose(): void {
  const event = open.choice(0);
  if (event) open.act(event);
  isDecided = true;
}

describe("the clustering", () => {
  it("is the only hypothesis, and what is chosen", () => {
    expect(open.current?.answer.hypotheses.map(({ description }) => description)).toEqual(["2 instances"]);
    choose();
    expect([...open.mask]).toEqual([...CLUSTERS]);
    expect([open.chosen, open.origin, open.history.origin(0).source?.state]).toEqual([0, null, null]);
  });
});

describe("the selected instance", () => {
  it("is described, before and after the clustering is chosen", () => {
    tools.selectAt({ x: 0.5, y: 0.5 });
    expect(said.at(-1)).toBe("Instance 1: 4 pixels, whole in 1 of 2 samples");
    choose();
    expect(tools.selected).toBe(1);
    tools.selectNext();
    expect(tools.describe()).toBe("Instance 300: 2 pixels, whole in 2 of 2 samples");
    tools.selectAt({ x: 2.5, y: 0.5 });
    expect(tools.selected).toBe(0);
  });

  it("is what the brush paints with, else a new one", () => {
    choose();
    expect(tools.brushId).toBe(301);
    tools.select(1);
    expect(tools.brushId).toBe(1);
  });

  it("is none on another slice, in another clustering, or if it is gone", async () => {
    tools.select(1);
    open.slice = 1;
    expect(tools.selected).toBe(0);
    open.slice = 0;
    tools.select(1);
    clusters = CLUSTERS.slice();
    await open.draw(new AbortController().signal);
    expect(tools.selected).toBe(0);
    choose();
    tools.select(300);
    open.act({ kind: "paint", slice: 0, value: 0, runs: [[3, 1], [7, 1]] });
    expect(tools.selected).toBe(0);
  });
});

describe("a stroke", () => {
  it("waits for the choice", () => {
    tools.paintTo({ x: 0.5, y: 0.5 }, { x: 3.5, y: 0.5 }, 1);
    tools.finish("merge");
    expect(said.at(-1)).toContain("Choose");
    expect(open.history.canUndo).toBe(false);
  });

  it("merges into the instance where it began, and splits again, a step each", () => {
    choose();
    tools.paintTo({ x: 3.5, y: 0.5 }, { x: 0.5, y: 0.5 }, 1);
    tools.finish("merge");
    expect([...open.mask]).toEqual([300, 300, 0, 300, 300, 300, 0, 300]);
    expect([tools.selected, tools.stroke]).toEqual([300, null]);
    tools.paintTo({ x: 0.5, y: 0.5 }, { x: 3.5, y: 0.5 }, 1);
    tools.finish("split");
    expect([...open.mask]).toEqual([300, 300, 0, 301, 300, 300, 0, 301]);
    open.act({ kind: "undo" });
    open.act({ kind: "undo" });
    expect([...open.mask]).toEqual([...CLUSTERS]);
  });

  it("that does nothing says so", () => {
    choose();
    for (const tool of ["merge", "split"] as const) {
      tools.paintTo({ x: 0.5, y: 0.5 }, { x: 0.5, y: 0.5 }, 1);
      tools.finish(tool);
      expect(said.at(-1)).toContain("Nothing");
    }
    expect([...open.mask]).toEqual([...CLUSTERS]);
  });
});
