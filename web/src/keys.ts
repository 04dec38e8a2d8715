// What keys do. The table is what the help shows.

export type Command =
  | { name: "choose"; hypothesis: number }
  | { name: (typeof KEYS)[number][1] }
  | { name: "move"; dx: number; dy: number };

export const KEYS = [
  ["[", "previous", "previous hypothesis"],
  ["]", "following", "next hypothesis"],
  ["r", "redraw", "new samples"],
  ["f", "flip", "flip through all samples"],
  ["h", "hide", "hide or show outlines"],
  ["s", "compare", "two hypotheses side by side"],
  ["P", "planes", "three planes of a volume, or slice by slice"],
  ["g", "graders", "outlines of the graders"],
  ["m", "overlay", "map: none, mean probability, spread"],
  ["w", "window", "next window (black and white)"],
  ["+", "closer", "zoom in"],
  ["-", "further", "zoom out"],
  ["0", "fit", "whole image"],
  ["PageUp", "slice-up", "next slice; in three planes, of the plane in use"],
  ["PageDown", "slice-down", "previous slice"],
  ["o", "point", "point at the object"],
  ["b", "brush", "brush; again to stop"],
  ["e", "eraser", "eraser; again to stop"],
  ["l", "here", "redraw latents only under a stroke; again to stop"],
  ["t", "from", "take a region from the hypothesis beside; again to stop"],
  ["d", "drag", "drag a latent; again to stop"],
  ["k", "raise", "latent at the cross up"],
  ["j", "lower", "latent at the cross down"],
  ["v", "effect", "map: what the latent at the cross controls"],
  ["i", "select", "select the next instance"],
  ["I", "add", "new instance with the brush"],
  ["y", "merge", "merge instances by a stroke; again to stop"],
  ["z", "split", "split an instance by a stroke; again to stop"],
  [",", "smaller", "smaller brush; in three planes without a tool, previous slice"],
  [".", "larger", "larger brush; in three planes without a tool, next slice"],
  [" ", "paint", "use the tool at the cross"],
  ["u", "undo", "undo"],
  ["U", "redo", "redo"],
  ["a", "accept", "accept the mask, or open the case again"],
  ["n", "next", "next case"],
  ["p", "back", "previous case"],
  ["x", "export", "export in the chosen format"],
  ["c", "copy", "copy a link to this map"],
  ["?", "help", "these keys"],
] as const;

const ARROWS: Record<string, [number, number]> = {
  ArrowLeft: [-1, 0],
  ArrowRight: [1, 0],
  ArrowUp: [0, -1],
  ArrowDown: [0, 1],
};

/** What a key means, if it is typed where it is a command and not text or a control's own key. */
export function commandOf(event: KeyboardEvent): Command | null {
  if (event.ctrlKey || event.metaKey || event.altKey) return null;
  const target = event.target instanceof Element ? event.target : null;
  const control = target?.closest("input, select, textarea, button, dialog");
  const isRange = control instanceof HTMLInputElement && ["range", "file"].includes(control.type);
  const isButton = control?.tagName === "BUTTON";
  if (control && !isRange && !isButton) return null;
  const { key } = event;
  if (control && (key === " " || key in ARROWS || key.startsWith("Page"))) return null;
  if (/^[1-9]$/.test(key)) return { name: "choose", hypothesis: Number(key) - 1 };
  const arrow = ARROWS[key];
  if (arrow) {
    const far = event.shiftKey ? 5 : 1;
    return { name: "move", dx: far * arrow[0], dy: far * arrow[1] };
  }
  const found = KEYS.find(([typed]) => typed === (key === "=" ? "+" : key));
  return found ? { name: found[1] } : null;
}

/** Rows of the help: keys and what they do. */
export function keyRows(): [string, string][] {
  const named: Record<string, string> = { " ": "Space" };
  const rows = KEYS.map(([key, , words]): [string, string] => [named[key] ?? key, words]);
  return [["1 … 9", "choose a hypothesis"], ...rows, ["arrows", "move the image, the cross of a tool, or the crosshair of three planes"]];
}
