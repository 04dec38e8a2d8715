// Links to a map: an address whose fragment holds case, slice, and the state that the map decodes from.

import type { MapState, Source } from "./history";

export interface Link {
  case: number;
  slice: number;
  source: Source & { state: MapState };
}

/** The link's address: that of the page without anything else that the page's address may hold. */
export function addressOf({ case: number, slice, source }: Link, page: { origin: string; pathname: string }): string {
  const bytes = new TextEncoder().encode(JSON.stringify(source));
  const text = btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  const state = text.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  return `${page.origin}${page.pathname}#case=${number}&slice=${slice}&state=${state}`;
}

/** What a fragment links to; null if it is no link. */
export function readLink(fragment: string): Link | null {
  const parts = new URLSearchParams(fragment.replace(/^#/, ""));
  const [number, slice] = [Number(parts.get("case") ?? NaN), Number(parts.get("slice") ?? NaN)];
  const text = parts.get("state");
  if (!text || !isIndex(number) || !isIndex(slice)) return null;
  try {
    const bytes = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
    const source = sourceOf(JSON.parse(new TextDecoder().decode(bytes)) as Partial<Source> | null);
    return source && { case: number, slice, source };
  } catch {
    return null;
  }
}

/** Only what a source has, in the order in which the server gives it; the server checks the state. */
function sourceOf(found: Partial<Source> | null): Link["source"] | null {
  const { hypothesis, share, seed, num_samples, at = null, state, num_edits = 0 } = found ?? {};
  const isPoint = at === null || (Array.isArray(at) && (at as number[]).length === 2 && at.every(Number.isFinite));
  const isShare = typeof share === "number" && share >= 0 && share <= 1;
  if (!isIndex(hypothesis) || !isIndex(seed) || !isIndex(num_edits) || !isShare || !isPoint) return null;
  if (!isIndex(num_samples) || num_samples < 1 || num_samples > 64 || typeof state !== "object" || !state) return null;
  return { hypothesis, share, seed, num_samples, at, state, num_edits };
}

function isIndex(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}
