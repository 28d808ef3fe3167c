// Pictures of numbers: distributions, shares, slices.

import type { HistogramReport, ValuesReport } from "../api/index.js";
import { h, svg } from "./dom.js";
import { value, whole } from "./format.js";

const WIDTH = 640;
const HEIGHT = 200;

/** One distribution, or two over each other. */
export function histogram(reports: readonly { report: HistogramReport; label: string }[]): HTMLElement {
  const drawn = reports.filter(({ report }) => report.counts.length > 0);
  if (drawn.length === 0) return h("p.dim", "The tensor has no finite values to draw.");
  const start = Math.min(...drawn.map(({ report }) => report.start));
  const end = Math.max(...drawn.map(({ report }) => report.start + report.width * report.counts.length));
  // Shares of each tensor, by width, so that bins of different widths can be compared.
  const density = ({ report }: { report: HistogramReport }) => {
    const total = report.counts.reduce((sum, count) => sum + count, 0) || 1;
    // Equal values have one bin, as narrow as can be.
    return report.counts.map((count) => Math.min(count / total / (report.width || 1), 1e300));
  };
  const highest = Math.max(...drawn.flatMap(density)) || 1;
  const x = (at: number) => end === start ? WIDTH / 2 : ((at - start) / (end - start)) * WIDTH;
  const y = (share: number) => HEIGHT - (share / highest) * (HEIGHT - 8);
  const bars = drawn.map((one, index) => {
    const { report, label } = one;
    const group = density(one).map((share, bin) => {
      const from = report.start + bin * report.width;
      const bar = { x: x(from), y: y(share), width: Math.max(0.5, x(from + report.width) - x(from) - 0.5), height: HEIGHT - y(share) };
      const title = svg("title", {}, `${label}: ${value(from)} to ${value(from + report.width)}: ${whole(report.counts[bin] ?? 0)}`);
      return svg("rect", bar, title);
    });
    return svg("g", { class: `bars bars-${index}` }, group);
  });
  const zero = start < 0 && end > 0 ? svg("line", { class: "zero", x1: x(0), x2: x(0), y1: 0, y2: HEIGHT }) : null;
  const described = drawn.map(({ report, label }) => `${label}: ${value(report.tensor.stats?.min)} to ${value(report.tensor.stats?.max)}`).join("; ");
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `Histogram. ${described}` }, zero, bars);
  return h("figure.histogram",
    picture,
    h("figcaption",
      h("span", value(start)),
      drawn.length > 1 && h("span.legend", drawn.map(({ label }, index) => h(`span.key.key-${index}`, label))),
      h("span", value(end)),
    ),
  );
}

/** A bar of shares with its legend. */
export function shares(parts: readonly { label: string; share: number; detail: string }[]): HTMLElement {
  const bar = h("div.shares", { role: "img", "aria-label": parts.map(({ label, detail }) => `${label}: ${detail}`).join(", ") });
  for (const [index, { share }] of parts.entries()) {
    const piece = h(`span.share.share-${index % 6}`);
    piece.style.flexGrow = String(Math.max(share, 0.004));
    bar.append(piece);
  }
  return h("div", bar, h("ul.legend", parts.map(({ label, detail }, index) => h(`li.key.share-key-${index % 6}`, h("strong", label), ` ${detail}`))));
}

/** A slice of values as colours: blue below zero, orange above. */
export function heatmap(report: ValuesReport, rows: number, columns: number): HTMLElement {
  const canvas = h("canvas", { role: "img", "aria-label": `Values of ${rows} rows and ${columns} columns as colours` });
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const numbers = report.values.map((number) => (typeof number === "number" ? number : Number.NaN));
  const largest = numbers.reduce((most, number) => (Number.isFinite(number) ? Math.max(most, Math.abs(number)) : most), 0) || 1;
  if (context) {
    const image = context.createImageData(columns, rows);
    for (const [index, number] of numbers.entries()) {
      image.data.set(Number.isFinite(number) ? colour(number / largest) : [220, 38, 38, 255], index * 4);
    }
    context.putImageData(image, 0, 0);
  }
  return h("figure.heatmap", canvas, h("figcaption",
    h("span", value(-largest)), h("span.scale", { "aria-hidden": "true" }), h("span", value(largest)),
    numbers.some((number) => !Number.isFinite(number)) && h("span.bad", "red: not finite"),
  ));
}

/** A colour for -1 to 1: dark blue, white, dark orange. */
function colour(share: number): [number, number, number, number] {
  const [from, to] = share < 0 ? [[255, 255, 255], [37, 99, 205]] : [[255, 255, 255], [217, 98, 9]];
  // Small values are the most, so that they get more of the scale.
  const much = Math.sqrt(Math.abs(share));
  const mixed = from!.map((channel, index) => Math.round(channel + (to![index]! - channel) * much));
  return [mixed[0]!, mixed[1]!, mixed[2]!, 255];
}
