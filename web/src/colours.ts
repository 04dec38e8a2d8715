// Colours that people with any colour vision tell apart.

export type Colour = readonly [red: number, green: number, blue: number];

/** Of classes and graders: after Okabe and Ito, the bright ones first, since images are dark. */
export const DISTINCT: readonly Colour[] = [
  [240, 228, 66],
  [86, 180, 233],
  [230, 159, 0],
  [0, 200, 150],
  [204, 121, 167],
  [213, 94, 0],
  [150, 150, 255],
  [255, 255, 255],
];

export function distinct(index: number): Colour {
  return DISTINCT[index % DISTINCT.length] ?? [255, 255, 255];
}

export function css([red, green, blue]: Colour, alpha = 1): string {
  return `rgb(${red} ${green} ${blue} / ${alpha})`;
}

// Anchors of a map from dark blue over magenta to yellow whose lightness rises evenly.
const HEAT: readonly Colour[] = [
  [13, 8, 135],
  [84, 2, 163],
  [139, 10, 165],
  [185, 50, 137],
  [219, 92, 104],
  [244, 136, 73],
  [254, 188, 43],
  [240, 249, 33],
];

/** The colour of a value from 0 to 1. */
export function heat(value: number): Colour {
  const place = Math.min(Math.max(value, 0), 1) * (HEAT.length - 1);
  const index = Math.min(Math.floor(place), HEAT.length - 2);
  const [low, high] = [HEAT[index] ?? [0, 0, 0], HEAT[index + 1] ?? [0, 0, 0]];
  const mix = (a: number, b: number): number => Math.round(a + (b - a) * (place - index));
  return [mix(low[0], high[0]), mix(low[1], high[1]), mix(low[2], high[2])];
}
