// Elements without a framework. Texts are always texts: nothing here parses HTML.

/** What an element may contain. */
export type Child = Node | string | number | null | undefined | false | readonly Child[];

/** Attributes by name; functions are listeners (`onclick`), `true` is an attribute without a value. */
export type Attributes = Record<string, string | number | boolean | ((event: never) => void) | undefined>;

/** Makes an element: `h("button.primary", { onclick }, "Open")`. */
export function h<K extends keyof HTMLElementTagNameMap>(
  selector: K | `${K}.${string}`,
  ...rest: (Attributes | Child)[]
): HTMLElementTagNameMap[K] {
  const [tag, ...classes] = selector.split(".");
  const element = document.createElement(tag as K);
  if (classes.length) element.className = classes.join(" ");
  const [first, ...others] = rest;
  const hasAttributes = typeof first === "object" && first !== null && !(first instanceof Node) && !Array.isArray(first);
  if (hasAttributes) setAttributes(element, first as Attributes);
  append(element, (hasAttributes ? others : rest) as Child[]);
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** The same for SVG. */
export function svg(tag: string, attributes: Attributes = {}, ...children: Child[]): SVGElement {
  const element = document.createElementNS(SVG, tag);
  setAttributes(element, attributes);
  append(element, children);
  return element;
}

function setAttributes(element: Element, attributes: Attributes): void {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value as EventListener);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== undefined && value !== false) element.setAttribute(name, String(value));
  }
}

function append(element: Element, children: readonly Child[]): void {
  for (const child of children) {
    if (Array.isArray(child)) append(element, child);
    else if (child !== null && child !== undefined && child !== false) element.append(child as Node | string);
  }
}

/** Replaces what an element contains. */
export function fill(element: Element, ...children: Child[]): void {
  element.replaceChildren();
  append(element, children);
}

/** Whether an element takes room on the page. */
export function isShown(element: Element | null): boolean {
  return element !== null && element.getClientRects().length > 0;
}

/** Calls `run` once, some time after the last call. */
export function debounced<A extends unknown[]>(milliseconds: number, run: (...args: A) => void): (...args: A) => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => run(...args), milliseconds);
  };
}
