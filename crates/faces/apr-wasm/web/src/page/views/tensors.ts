// All tensors, and one of them.

import type { HistogramReport, TensorRow, ValuesReport } from "../../api/index.js";
import { heatmap, histogram } from "../charts.js";
import { debounced, fill, h, isShown, type Child } from "../dom.js";
import { bytes, counted, shape, value, visible, whole, words } from "../format.js";
import { jsonButton } from "../save.js";
import type { Follow, Session } from "../session.js";
import { Table } from "../table.js";
import { Bar, failure, isEnded, show } from "../waiting.js";
import { leftOut } from "./left-out.js";

/** Tensors up to this size are read when they are chosen; longer ones when it is asked for. */
const READ_AT_ONCE = 256e6;

/** Most characters that a column of types or shapes has room for. */
const WIDEST = 24;

export function tensors(session: Session, place: HTMLElement): Follow {
  place.classList.add("full");
  let choose = (): void => undefined;
  void show(place, session.open.tensors(), (report) => {
    const side = h("aside.side", { tabindex: 0, "aria-label": "The chosen tensor" });
    // As wide as their texts, so that the names get the rest.
    const width = (text: (row: TensorRow) => string, least: number) =>
      `${Math.min(WIDEST, report.tensors.reduce((most, row) => Math.max(most, text(row).length), least))}ch`;
    const table = new Table<TensorRow>("Tensors", [
      { title: "Name", cell: (row) => h("span.name", { title: row.name }, h("bdi", { dir: "ltr" }, visible(row.name))), by: (row) => row.name, width: "minmax(10rem, 1fr)" },
      { title: "Type", cell: (row) => row.dtype, by: (row) => row.dtype, width: width((row) => row.dtype, 6) },
      { title: "Shape", cell: (row) => shape(row.shape), by: (row) => row.elements, width: width((row) => shape(row.shape), 8), isSpare: true },
      { title: "Size", cell: (row) => bytes(row.bytes), by: (row) => row.bytes, isNumber: true, width: "5rem" },
    ], (row) => {
      session.go({ tensor: row.name });
    });
    const count = h("span.dim", { role: "status" });
    const filter = (text: string) => {
      const wanted = text.toLowerCase().split(/\s+/u).filter(Boolean);
      const rows = report.tensors.filter((row) => {
        const all = `${row.name} ${row.dtype} ${shape(row.shape)}`.toLowerCase();
        return wanted.every((word) => all.includes(word));
      });
      table.rows = rows;
      count.textContent = rows.length === report.tensor_count ? counted(report.tensor_count, "tensor") : `${whole(rows.length)} of ${whole(report.tensor_count)}`;
    };
    const later = debounced(100, filter);
    const main = h("div.main",
      h("div.tools",
        h("input", { type: "search", placeholder: "Filter: name, type or shape", "aria-label": "Filter tensors", oninput: (event: Event) => later((event.target as HTMLInputElement).value) }),
        count, jsonButton(report, `${session.open.title}.tensors.json`)),
      table.element, leftOut(report));
    const split = h("div.split", main, side);
    let shown = new AbortController();
    let last: TensorRow | undefined;
    choose = () => {
      shown.abort();
      shown = new AbortController();
      const chosen = session.place.tensor;
      const row = report.tensors.find((tensor) => tensor.name === chosen);
      const hadFocus = split.contains(document.activeElement);
      split.classList.toggle("chosen", chosen !== undefined);
      table.mark(row);
      // A list that was not shown has lost its place.
      if (!row && last) table.reveal(last);
      if (row) one(session, row, side, AbortSignal.any([session.left, shown.signal]));
      else if (chosen !== undefined) void canonical(session, chosen, side);
      else fill(side, h("p.dim", "Choose a tensor to see its distribution and values."));
      last = row;
      side.scrollTop = 0;
      // On a narrow screen the list and the tensor take turns.
      if (!hadFocus || split.contains(document.activeElement) && isShown(document.activeElement)) return;
      if (chosen === undefined) table.focus();
      else side.focus();
    };
    queueMicrotask(() => {
      filter("");
      choose();
    });
    return split;
  });
  return () => {
    choose();
    return true;
  };
}

/** A tensor by the name that the graph has for it. */
async function canonical(session: Session, name: string, side: HTMLElement): Promise<void> {
  try {
    const found = await session.open.model.explain(name);
    session.go({ tensor: found.name });
  } catch (thrown) {
    fill(side, failure(thrown));
  }
}

/** One tensor until another one is chosen: what it is for, how its values are distributed, some of
 * them. */
function one(session: Session, row: TensorRow, side: HTMLElement, left: AbortSignal): void {
  const [about, spread, grid, uses, remarks] = [h("div"), h("div"), h("div"), h("div"), h("div")];
  fill(side,
    h("button.back", { onclick: () => session.go({ tensor: undefined }) }, "← All tensors"),
    h("h2", visible(row.name)),
    h("p", `${row.dtype} ${shape(row.shape)}, ${counted(row.elements, "element")}, ${bytes(row.bytes)}`),
    row.file !== undefined && h("p.dim", `in ${visible(row.file)}${row.offset === undefined ? "" : ` at byte ${whole(row.offset)}`}`),
    about, remarks,
    h("h3", "Distribution"), spread,
    h("h3", "Values"), grid,
    uses,
  );
  const read = () => void distribution(session, row, spread, about, left);
  if (row.bytes <= READ_AT_ONCE) read();
  else fill(spread, h("button", { onclick: read }, `Read ${bytes(row.bytes)}`));
  values(session, row, grid, left);
  session.open.lint().then((report) => {
    if (left.aborted) return;
    const said = report.remarks.filter((remark) => remark.tensor === row.name);
    fill(remarks, said.map((remark) => h("p.notice", h("span.badge.plain", remark.severity.toLowerCase()), ` ${visible(remark.message)}`)));
  }, () => undefined);
  session.open.model.uses(row.name).then((found) => {
    if (found.length === 0 || left.aborted) return;
    fill(uses, h("h3", "Read by"), h("ul.values", found.slice(0, 20).map(({ part, node }) =>
      h("li", h("button.link", { onclick: () => session.go({ view: "structure", part, node, tensor: undefined }) }, visible(node))))));
  }, () => undefined);
}

async function distribution(session: Session, row: TensorRow, place: HTMLElement, about: HTMLElement, left: AbortSignal): Promise<void> {
  const bar = new Bar();
  const timer = setTimeout(() => fill(place, bar.element), 200);
  left.addEventListener("abort", () => bar.controller.abort(), { once: true });
  try {
    const report = await session.open.model.histogram(row.name, 96, { onProgress: bar.tell, signal: bar.controller.signal });
    clearTimeout(timer);
    fill(place, histogram([{ report, label: row.name }]), statistics(report), jsonButton(report, `${row.name}.json`));
    const kind = report.kind && h("span.badge.plain", words(report.kind));
    const violations = (report.violations ?? []).map((violation) => h("p.notice.bad", visible(violation)));
    fill(about, h("p", kind, violations.length === 0 && report.kind && h("span.badge.good", "as expected of its kind")), violations);
  } catch (thrown) {
    clearTimeout(timer);
    if (isEnded(thrown)) fill(place, h("button", { onclick: () => void distribution(session, row, place, about, left) }, "Read again"));
    else fill(place, failure(thrown));
  }
}

function statistics(report: HistogramReport): Child {
  const { stats } = report.tensor;
  if (!stats) return null;
  const rows: [string, Child][] = [
    ["min", value(stats.min)], ["max", value(stats.max)], ["mean", value(stats.mean)], ["std", value(stats.std)],
    ["L2 norm", value(stats.l2)], ["zeros", whole(stats.zeros)],
  ];
  return h("dl.stats",
    rows.map(([label, shown]) => h("div", h("dt", label), h("dd", shown))),
    (stats.nan > 0 || stats.inf > 0) && h("div.bad", h("dt", "not finite"), h("dd", `${whole(stats.nan)} NaN, ${whole(stats.inf)} infinite`)),
  );
}

/** Rows and columns of a picture. */
const PICTURE = [192, 192] as const;

function values(session: Session, row: TensorRow, place: HTMLElement, left: AbortSignal): void {
  const grid = h("div");
  const picture = h("div");
  const input = h("input", { type: "text", "aria-label": "Range of values, as in Python", size: 14 });
  const draw = (ranges: string) => void show(grid, session.open.model.values(row.name, ranges), (report) => {
    // The corner that is shown first is an example of a slice of this rank.
    input.placeholder ||= sliceOf(report);
    return table(report);
  });
  const form = h("form.tools", { onsubmit: (event: Event) => { event.preventDefault(); draw(input.value); } }, h("label", "Slice ", input), h("button", "Show"));
  fill(place, form, grid, picture);
  draw("");
  const [height, width] = row.shape.length > 1 ? row.shape.slice(-2) : [1, row.shape[0] ?? 1];
  const [rows, columns] = [Math.min(height ?? 1, PICTURE[0]), Math.min(width ?? 1, PICTURE[1])];
  if (rows * columns < 4) return;
  const leading = row.shape.slice(0, -2).map(() => "0:1");
  const ranges = [...leading, ...(row.shape.length > 1 ? [`0:${rows}`] : []), `0:${columns}`].join(", ");
  session.open.model.values(row.name, ranges).then((report) => {
    if (!left.aborted) fill(picture, h("h3", `The first ${rows} × ${columns} as colours`), heatmap(report, rows, columns));
  }, () => undefined);
}

const sliceOf = ({ ranges }: ValuesReport) => ranges.map(([from, to]) => `${from}:${to}`).join(", ");

/** Most rows and columns of values that are shown. */
const MOST = 64;

/** Values with their indices: those of the last dimension above, those of the others beside. */
function table(report: ValuesReport): Child {
  const leading = report.ranges.slice(0, -1);
  const [first, end] = report.ranges.at(-1) ?? [0, 1];
  const width = Math.max(1, end - first);
  const columns = Array.from({ length: Math.min(width, MOST) }, (_, column) => first + column);
  const rows: Child[] = [];
  for (let start = 0; start < report.values.length && rows.length < MOST; start += width) {
    const shown = report.values.slice(start, start + columns.length);
    rows.push(h("tr", leading.length > 0 && h("th", { scope: "row" }, indices(leading, start / width).join(", ")), shown.map((number) => h("td.number", value(number)))));
  }
  const head = report.ranges.length > 0 && h("thead", h("tr", leading.length > 0 && h("td"), columns.map((column) => h("th", { scope: "col" }, column))));
  return [
    h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Values" }, h("table.grid", head, h("tbody", rows))),
    h("p.dim", `[${sliceOf(report)}]`, report.values.length > rows.length * columns.length ? ` (the first ${MOST} rows and columns)` : ""),
  ];
}

/** The indices of a row of values, counted in the order in which they are stored. */
function indices(ranges: readonly [number, number][], row: number): number[] {
  let rest = row;
  const found = [...ranges].reverse().map(([from, to]) => {
    const size = Math.max(1, to - from);
    const index = from + (rest % size);
    rest = Math.floor(rest / size);
    return index;
  });
  return found.reverse();
}
