// Windows: the stored values that are black and white.

export type Window = [low: number, high: number];

/** What the window key goes through: as the file says, the whole range, its dark and bright half; for CT also lung and soft tissue. */
export function presets(given: Window, range: Window): Window[] {
  const [low, high] = range;
  const middle = (low + high) / 2;
  const all: Window[] = [given, [low, high], [low, middle], [middle, high]];
  if (low <= -500 && high >= 200) all.push([-1350, 150], [-160, 240]); // Hounsfield units
  const texts = all.map(String);
  return all.filter((_, i) => texts.indexOf(texts[i] ?? "") === i);
}

/** The next preset after the window in use. */
export function following(now: Window, all: readonly Window[]): Window {
  const index = all.findIndex((window) => String(window) === String(now));
  return all[(index + 1) % all.length] ?? now;
}

/** A window moved by a drag: to the right is more contrast range, up is brighter; a range per 300 CSS pixels. */
export function dragged([low, high]: Window, dx: number, dy: number, range: Window): Window {
  const unit = Math.max(range[1] - range[0], 1e-6) / 300;
  const middle = (low + high) / 2 + dy * unit;
  const width = Math.max(high - low + dx * unit, unit / 10);
  return [middle - width / 2, middle + width / 2];
}
