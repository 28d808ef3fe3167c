// The models that are open, and what is asked of them once.

import type { GraphSummary, InspectReport, LintReport, Model, TensorsReport } from "../api/index.js";
import type { Place } from "./place.js";

/** An open model with what several views ask for. */
export class OpenModel {
  readonly #asked = new Map<string, Promise<unknown>>();

  constructor(
    readonly model: Model,
    /** The address that it was opened by. */
    readonly address?: string,
  ) {}

  get title(): string {
    return this.model.title;
  }

  inspect(): Promise<InspectReport> {
    return this.#once("inspect", () => this.model.inspect());
  }

  tensors(): Promise<TensorsReport> {
    return this.#once("tensors", () => this.model.tensors());
  }

  graph(): Promise<GraphSummary> {
    return this.#once("graph", () => this.model.graph());
  }

  lint(): Promise<LintReport> {
    return this.#once("lint", () => this.model.lint());
  }

  #once<T>(name: string, ask: () => Promise<T>): Promise<T> {
    let asked = this.#asked.get(name);
    if (!asked) {
      asked = ask();
      this.#asked.set(name, asked);
      asked.catch(() => this.#asked.delete(name));
    }
    return asked as Promise<T>;
  }
}

/** What is another in a place; `undefined` takes it out. */
export type Change = { [K in keyof Place]?: Place[K] | undefined };

/** Shows another place within a view; false where the view is to be drawn again. */
export type Follow = () => boolean;

/** What views get. */
export interface Session {
  readonly open: OpenModel;
  /** The model that it is compared with. */
  other: OpenModel | undefined;
  /** Where one is now. */
  readonly place: Place;
  /** Shows another place. */
  go(change: Change): void;
  /** Ends what a view has started, when it is left. */
  readonly left: AbortSignal;
}
