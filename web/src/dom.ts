// Small helpers for the document.

/** The element with this id, which must be of this kind. */
export function get<T extends Element>(id: string, kind: new () => T): T {
  const found = document.getElementById(id);
  if (!(found instanceof kind)) throw new Error(`the page has no ${kind.name} #${id}`);
  return found;
}

/** A new element with this text and these children. */
export function make<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  content: string | (string | Node)[] = [],
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  if (typeof content === "string") element.textContent = content;
  else element.append(...content);
  return element;
}

/** Put new children into an element that stays scrolled; where an old one had the focus, the new one gets it. */
export function refill(parent: Element, children: readonly Element[]): void {
  const { scrollLeft, scrollTop } = parent;
  const index = [...parent.children].findIndex((child) => child.contains(document.activeElement));
  parent.replaceChildren(...children);
  [parent.scrollLeft, parent.scrollTop] = [scrollLeft, scrollTop];
  const next = children[index];
  const button = next instanceof HTMLButtonElement ? next : next?.querySelector("button");
  button?.focus({ preventScroll: true });
}

export function percent(share: number): string {
  return `${Math.round(100 * share)} %`;
}

/** A measurement with three digits that count. */
export function short(value: number): string {
  return value >= 100 ? String(Math.round(value)) : String(Number(value.toPrecision(3)));
}
