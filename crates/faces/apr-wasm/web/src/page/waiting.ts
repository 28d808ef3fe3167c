// What stands where something is still being read, or can't be.

import { AprError } from "../api/errors.js";
import { fill, h, type Child } from "./dom.js";
import { visible } from "./format.js";

/** Puts what a promise becomes into a place; until then, that it is on its way. */
export async function show<T>(place: HTMLElement, promised: Promise<T>, draw: (value: T) => Child): Promise<void> {
  place.setAttribute("aria-busy", "true");
  // What comes at once does not flicker.
  const timer = setTimeout(() => fill(place, spinner()), 150);
  try {
    const value = await promised;
    clearTimeout(timer);
    fill(place, draw(value));
  } catch (thrown) {
    clearTimeout(timer);
    fill(place, failure(thrown));
  } finally {
    place.removeAttribute("aria-busy");
  }
}

/** That something is on its way. */
export function spinner(): HTMLElement {
  return h("div.waiting", { role: "status" }, h("span.spinner", { "aria-hidden": "true" }), "Reading…");
}

/** What is said of a code, for people who have never seen one. */
const CODES: Record<string, string> = {
  E001: "Format",
  E002: "Damaged",
  E003: "Not supported",
  E004: "Checksum",
  E005: "Encrypted",
  E006: "Signature",
  E007: "Reading",
  E008: "Limit",
};

/** An error, with its code and where it points. */
export function failure(thrown: unknown): HTMLElement {
  const error = thrown instanceof Error ? thrown : new Error(String(thrown));
  const { code, where } = error instanceof AprError ? error : { code: null, where: {} };
  const places = [
    where.file !== undefined && `file ${visible(where.file)}`,
    where.tensor !== undefined && `tensor ${visible(where.tensor)}`,
    where.offset !== undefined && `byte ${where.offset}`,
  ].filter((place) => place !== false);
  return h(
    "div.failure",
    { role: "alert" },
    code !== null && h("span.badge.bad", `${code} ${CODES[code] ?? ""}`),
    h("p", visible(error.message)),
    places.length > 0 && h("p.dim", places.join(" · ")),
  );
}

/** A bar for what takes long, with a button that ends it. */
export class Bar {
  readonly element: HTMLElement;
  readonly controller = new AbortController();
  readonly #bar = h("progress", { max: 1, "aria-label": "progress" });
  readonly #text = h("span.dim", "starting…");

  constructor() {
    const end = h("button", { onclick: () => this.controller.abort() }, "Cancel");
    this.element = h("div.bar", this.#bar, this.#text, end);
  }

  readonly tell = (phase: string, done: number, total: number): void => {
    const share = total > 0 ? Math.min(1, done / total) : 0;
    this.#bar.value = share;
    this.#text.textContent = `${phase} ${Math.floor(share * 100)} %`;
  };

  /** Shows a phase whose length is not known. */
  readonly name = (phase: string): void => {
    this.#text.textContent = phase;
  };
}

/** Whether a call was ended by the user. */
export function isEnded(thrown: unknown): boolean {
  return thrown instanceof DOMException && thrown.name === "AbortError";
}
