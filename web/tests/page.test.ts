import { readFileSync } from "node:fs";
import { beforeEach, describe, expect, it } from "vitest";
import { findControls } from "../src/controls";
import { make, refill } from "../src/dom";
import { commandOf, KEYS } from "../src/keys";
import { plotMeasure } from "../src/plot";

beforeEach(() => {
  const page = readFileSync("index.html", "utf8");
  document.body.innerHTML = /<body>([^]*)<\/body>/.exec(page)?.[1] ?? "";
});

function press(target: Element, key: string, options: KeyboardEventInit = {}): ReturnType<typeof commandOf> {
  let found: ReturnType<typeof commandOf> = null;
  const listen = (event: Event): void => {
    found = commandOf(event as KeyboardEvent);
  };
  document.addEventListener("keydown", listen);
  target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, ...options }));
  document.removeEventListener("keydown", listen);
  return found;
}

describe("page", () => {
  it("has every control, and no script or style inside", () => {
    expect(() => findControls()).not.toThrow();
    expect(document.body.innerHTML).not.toMatch(/<script|style=|onclick/);
  });

  it("names the key of every button in its text", () => {
    const keys = new Set<string>(KEYS.map(([key]) => key));
    for (const kbd of document.querySelectorAll("button kbd")) expect(keys).toContain(kbd.textContent);
  });
});

describe("lists", () => {
  it("keep the focus and the place when they are filled again", () => {
    const { cases } = findControls();
    const items = (): HTMLElement[] => ["a", "b", "c"].map((name) => make("li", [make("button", name)]));
    refill(cases, items());
    expect(document.activeElement).toBe(document.body);
    cases.querySelectorAll("button")[1]?.focus();
    cases.scrollTop = 40;
    refill(cases, items());
    expect(document.activeElement).toBe(cases.querySelectorAll("button")[1]);
    expect(cases.scrollTop).toBe(40);
  });
});

describe("keys", () => {
  it("choose and move", () => {
    expect(press(document.body, "3")).toEqual({ name: "choose", hypothesis: 2 });
    expect(press(document.body, "ArrowLeft", { shiftKey: true })).toEqual({ name: "move", dx: -5, dy: 0 });
    expect(press(document.body, "=")).toEqual({ name: "closer" });
    expect(press(document.body, "U", { shiftKey: true })).toEqual({ name: "redo" });
  });

  it("are text in a note, and the control's own on buttons and sliders", () => {
    const ui = findControls();
    expect(press(ui.note, "a")).toBeNull();
    expect(press(ui.number, "3")).toBeNull();
    expect(press(ui.slice, "ArrowLeft")).toBeNull();
    expect(press(ui.undo, " ")).toBeNull();
    expect(press(ui.undo, "u")).toEqual({ name: "undo" });
    expect(press(document.body, "r", { ctrlKey: true })).toBeNull();
  });
});

describe("plot", () => {
  it("has a bar per value, a line for the chosen one, and says the range", () => {
    const svg = plotMeasure("Area", "mm²", [0, 5, 10], 5);
    expect(svg.querySelectorAll("rect")).toHaveLength(3);
    expect(svg.querySelectorAll("line")).toHaveLength(2);
    expect(svg.querySelector("title")?.textContent).toBe("Area of 3 samples: 0 to 10 mm²; now 5 mm²");
  });

  it("shows shares truly, however many samples have the same value", () => {
    const svg = plotMeasure("Area", "mm²", [...Array.from({ length: 48 }, () => 0), ...Array.from({ length: 16 }, () => 9)], null);
    const heights = [...svg.querySelectorAll("rect")].map((bar) => Number(bar.getAttribute("height")));
    expect(heights[0]).toBeCloseTo(3 * (heights[1] ?? 0));
    expect(Math.max(...heights)).toBeLessThan(46);
  });
});
