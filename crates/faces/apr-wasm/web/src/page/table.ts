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
  /** Whether the column is left out on narrow screens. */
  isSpare?: boolean;
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
  /** Where the keyboard is. */
  #current = 0;
  #chosen: T | undefined;

  constructor(label: string, columns: Column<T>[], choose: (row: T) => void) {
    this.#columns = columns;
    this.#choose = choose;
    this.#head = h("div.row.head", { role: "row" });
    this.#space = h("div.space");
    this.#body = h("div.body", { tabindex: 0, role: "rowgroup", "aria-label": `${label}: rows`, onscroll: () => this.#draw(), onkeydown: (event: KeyboardEvent) => this.#key(event) }, this.#space);
    this.element = h("div.table", { role: "table", "aria-label": label }, h("div", { role: "rowgroup" }, this.#head), this.#body);
    const widths = (shown: readonly Column<T>[]) => shown.map((column) => column.width).join(" ");
    this.element.style.setProperty("--columns", widths(columns));
    this.element.style.setProperty("--narrow-columns", widths(columns.filter((column) => !column.isSpare)));
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

  /** Marks a row as the chosen one, and scrolls to it. */
  mark(row: T | undefined): void {
    this.#chosen = row;
    if (row !== undefined) this.reveal(row);
    this.#draw();
  }

  /** Scrolls to a row, unless it is on the screen. */
  reveal(row: T): void {
    const found = this.#sorted.indexOf(row);
    if (found < 0) return;
    this.#current = found;
    const top = found * ROW - this.#body.scrollTop;
    if (top >= 0 && top + ROW <= this.#body.clientHeight) return;
    this.#body.scrollTop = Math.max(0, found * ROW - this.#body.clientHeight / 2);
  }

  /** Gives it the keyboard. */
  focus(): void {
    this.#body.focus();
  }

  #drawHead(): void {
    const cells = this.#columns.map((column, index) => {
      const isSorted = this.#sortBy?.column === index;
      const order = isSorted ? (this.#sortBy?.descending ? "descending" : "ascending") : "none";
      const arrow = isSorted ? (this.#sortBy?.descending ? " ↓" : " ↑") : "";
      const content = column.by
        ? h("button", { onclick: () => this.#sortByColumn(index) }, column.title, arrow)
        : column.title;
      return h(cell(column), { role: "columnheader", "aria-sort": column.by ? order : undefined }, content);
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
    const cells = this.#columns.map((column) => h(cell(column), { role: "cell" }, column.cell(row)));
    const isChosen = row === this.#chosen;
    const element = h(isChosen ? "div.row.chosen" : "div.row", {
      role: "row",
      "aria-rowindex": index + 2,
      "aria-current": isChosen ? "true" : undefined,
      onclick: () => {
        this.#current = index;
        this.#take(row);
      },
    }, cells);
    if (index === this.#current) element.classList.add("current");
    element.style.transform = `translateY(${index * ROW}px)`;
    return element;
  }

  #take(row: T): void {
    this.mark(row);
    this.#choose(row);
  }

  #key(event: KeyboardEvent): void {
    const page = Math.max(1, Math.floor(this.#body.clientHeight / ROW) - 1);
    const steps: Record<string, number> = {
      ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity,
    };
    const row = this.#sorted[this.#current];
    if (event.key === "Enter" && row) {
      event.preventDefault();
      this.#take(row);
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

/** The element of a cell. */
function cell<T>({ isNumber, isSpare }: Column<T>): "span" | `span.${string}` {
  const classes = [isNumber && "number", isSpare && "spare"].filter(Boolean).join(".");
  return classes === "" ? "span" : `span.${classes}`;
}
