import { describe, expect, it } from "vitest";
import { History, type Event } from "../src/history";

const source = { hypothesis: 1, share: 0.5, seed: 0, num_samples: 16, at: null };
const choose: Event = { kind: "choose", slice: 0, value_map: [[1, 2, 1]], source };
const paint = (value: number, start: number): Event => ({ kind: "paint", slice: 0, value, runs: [[start, 1]] });

function masks(...events: Event[]): number[] {
  return [...new History(4, events).mask(0)];
}

describe("history", () => {
  it("folds choices, strokes and clearing", () => {
    expect(masks(choose)).toEqual([0, 1, 1, 0]);
    expect(masks(choose, paint(1, 3), paint(0, 1))).toEqual([0, 0, 1, 1]);
    expect(masks(choose, { kind: "clear", slice: 0 })).toEqual([0, 0, 0, 0]);
    expect(masks(paint(1, 0), choose)).toEqual([0, 1, 1, 0]);
  });

  it("undoes to the start and does all again", () => {
    const history = new History(4, [choose, paint(1, 3)]);
    for (const expected of [[0, 1, 1, 0], [0, 0, 0, 0]]) {
      expect(history.add({ kind: "undo" })).toBe(0);
      expect([...history.mask(0)]).toEqual(expected);
    }
    expect(history.canUndo).toBe(false);
    expect(history.add({ kind: "undo" })).toBeNull();
    history.add({ kind: "redo" });
    history.add({ kind: "redo" });
    expect([...history.mask(0)]).toEqual([0, 1, 1, 1]);
    expect(history.canRedo).toBe(false);
  });

  it("drops what was undone when a new step comes", () => {
    const history = new History(4, [choose, { kind: "undo" }, paint(1, 0)]);
    expect(history.canRedo).toBe(false);
    expect([...history.mask(0)]).toEqual([1, 0, 0, 0]);
  });

  it("keeps slices apart, and knows where a mask comes from", () => {
    const history = new History(4, [choose, { kind: "paint", slice: 2, value: 1, runs: [[0, 4]] }]);
    expect([...history.mask(0)]).toEqual([0, 1, 1, 0]);
    expect([...history.mask(2)]).toEqual([1, 1, 1, 1]);
    expect(history.origin(0)).toEqual({ source, isEdited: false });
    expect(history.origin(2)).toEqual({ source: null, isEdited: true });
    history.add(paint(1, 0));
    expect(history.origin(0)).toEqual({ source, isEdited: true });
    history.add({ kind: "clear", slice: 0 });
    expect(history.origin(0)).toEqual({ source: null, isEdited: false });
  });

  it("counts the slices that something was done to", () => {
    const history = new History(4, [choose, paint(1, 3), { kind: "clear", slice: 5 }]);
    expect(history.numSlices).toBe(2);
    history.add({ kind: "undo" });
    expect(history.numSlices).toBe(1);
  });

  it("has notes and acceptance beside the steps", () => {
    const history = new History(4, [choose, { kind: "note", text: "faint" }, { kind: "accept" }]);
    expect([history.note, history.status]).toEqual(["faint", "accepted"]);
    history.add({ kind: "reopen" });
    history.add({ kind: "undo" });
    expect([history.note, history.status, history.canUndo]).toEqual(["faint", "open", false]);
  });
});
