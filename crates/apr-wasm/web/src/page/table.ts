// A table of which only the rows on the screen are elements.

import { fill, h, type Child } from "./dom.js";

/** A column. */
export interface Column<T> {
  title: string;
  /** What a cell shows. */
  cell(row: T): Child;
  /** What rows are sorted by. */
  by?: (row: T) => number | string;
  /** Numbers are aligned to the right. */
  isNumber?: boolean;
  /** Width in the grid: `minmax(12rem, 3fr)`. */
  width: string;
}

/** Height of a row in pixels; `page.css` has the same. */
const ROW = 32;
/** Rows above and below the screen that are there already. */
const SPARE = 8;

/** Rows in any number: sorted by a click on a column, walked by the keyboard. */
export class Table<T> {
  readonly element: HTMLElement;
  readonly #head: HTMLElement;
  readonly #body: HTMLElement;
  readonly #space: HTMLElement;
  readonly #columns: Column<T>[];
  readonly #choose: (row: T) => void;
  #rows: readonly T[] = [];
  #sorted: T[] = [];
  #sortBy: { column: number; descending: boolean } | undefined;
  #current = 0;

  constructor(label: string, columns: Column<T>[], choose: (row: T) => void) {
    this.#columns = columns;
    this.#choose = choose;
    this.#head = h("div.row.head", { role: "row" });
    this.#space = h("div.space");
    this.#body = h("div.body", { tabindex: 0, role: "rowgroup", "aria-label": `${label}: rows`, onscroll: () => this.#draw(), onkeydown: (event: KeyboardEvent) => this.#key(event) }, this.#space);
    this.element = h("div.table", { role: "table", "aria-label": label }, h("div", { role: "rowgroup" }, this.#head), this.#body);
    this.element.style.setProperty("--columns", columns.map((column) => column.width).join(" "));
    this.#drawHead();
    new ResizeObserver(() => this.#draw()).observe(this.#body);
  }

  /** Shows these rows. */
  set rows(rows: readonly T[]) {
    this.#rows = rows;
    this.#current = 0;
    this.#sort();
    this.#body.scrollTop = 0;
  }

  /** Scrolls to a row and marks it. */
  reveal(fits: (row: T) => boolean): void {
    const found = this.#sorted.findIndex(fits);
    if (found < 0) return;
    this.#current = found;
    this.#body.scrollTop = Math.max(0, found * ROW - this.#body.clientHeight / 2);
    this.#draw();
  }

  #drawHead(): void {
    const cells = this.#columns.map((column, index) => {
      const isSorted = this.#sortBy?.column === index;
      const order = isSorted ? (this.#sortBy?.descending ? "descending" : "ascending") : "none";
      const arrow = isSorted ? (this.#sortBy?.descending ? " ↓" : " ↑") : "";
      const content = column.by
        ? h("button", { onclick: () => this.#sortByColumn(index) }, column.title, arrow)
        : column.title;
      return h(column.isNumber ? "span.number" : "span", { role: "columnheader", "aria-sort": column.by ? order : undefined }, content);
    });
    fill(this.#head, cells);
  }

  #sortByColumn(column: number): void {
    const descending = this.#sortBy?.column === column ? !this.#sortBy.descending : (this.#columns[column]?.isNumber ?? false);
    this.#sortBy = { column, descending };
    this.#drawHead();
    this.#sort();
  }

  #sort(): void {
    const by = this.#sortBy && this.#columns[this.#sortBy.column]?.by;
    this.#sorted = [...this.#rows];
    if (by) {
      const sign = this.#sortBy?.descending ? -1 : 1;
      this.#sorted.sort((one, other) => {
        const [a, b] = [by(one), by(other)];
        return sign * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
      });
    }
    this.#space.style.height = `${this.#sorted.length * ROW}px`;
    this.element.setAttribute("aria-rowcount", String(this.#sorted.length + 1));
    this.#draw();
  }

  #draw(): void {
    const first = Math.max(0, Math.floor(this.#body.scrollTop / ROW) - SPARE);
    const count = Math.ceil(this.#body.clientHeight / ROW) + 2 * SPARE;
    const rows = this.#sorted.slice(first, first + count).map((row, index) => this.#row(row, first + index));
    fill(this.#space, rows);
    // The columns of the head end where those of the rows do, beside the scroll bar.
    this.#head.style.marginRight = `${this.#body.offsetWidth - this.#body.clientWidth}px`;
  }

  #row(row: T, index: number): HTMLElement {
    const cells = this.#columns.map((column) =>
      h(column.isNumber ? "span.number" : "span", { role: "cell" }, column.cell(row)),
    );
    const isCurrent = index === this.#current;
    const element = h(isCurrent ? "div.row.current" : "div.row", {
      role: "row",
      "aria-rowindex": index + 2,
      onclick: () => {
        this.#current = index;
        this.#choose(row);
        this.#draw();
      },
    }, cells);
    element.style.transform = `translateY(${index * ROW}px)`;
    return element;
  }

  #key(event: KeyboardEvent): void {
    const page = Math.max(1, Math.floor(this.#body.clientHeight / ROW) - 1);
    const steps: Record<string, number> = {
      ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity,
    };
    const row = this.#sorted[this.#current];
    if (event.key === "Enter" && row) {
      event.preventDefault();
      this.#choose(row);
      return;
    }
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    this.#current = Math.max(0, Math.min(this.#sorted.length - 1, this.#current + step));
    const top = this.#current * ROW;
    if (top < this.#body.scrollTop) this.#body.scrollTop = top;
    if (top + ROW > this.#body.scrollTop + this.#body.clientHeight) this.#body.scrollTop = top + ROW - this.#body.clientHeight;
    this.#draw();
  }
}
