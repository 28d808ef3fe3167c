// A comparison of two models.

import { open, type DiffReport, type DiffRow } from "../../api/index.js";
import { histogram } from "../charts.js";
import { fill, h, isShown, type Child } from "../dom.js";
import { counted, shape, value, visible, whole } from "../format.js";
import { pick } from "../pick.js";
import { jsonButton } from "../save.js";
import { OpenModel, type Session } from "../session.js";
import { Table } from "../table.js";
import { Bar, failure, isEnded } from "../waiting.js";

export function compare(session: Session, place: HTMLElement): void {
  if (session.other) {
    void compared(session, session.other, place);
    return;
  }
  fill(place, h("section.card.narrow",
    h("h2", "Compare with another model"),
    h("p", "Any format: a GGUF file and the folder that it was made from, a fine-tuned model and its base. Tensors are paired by their roles, not by their names."),
    pick(async (input, address) => {
      try {
        session.other = new OpenModel(await open(input), address);
        compare(session, place);
      } catch (thrown) {
        place.append(failure(thrown));
      }
    })));
}

async function compared(session: Session, other: OpenModel, place: HTMLElement): Promise<void> {
  const bar = new Bar();
  const again = h("button", { onclick: () => {
    bar.controller.abort();
    other.model.close();
    session.other = undefined;
    compare(session, place);
  } }, "Choose another model");
  const names = h("p.lead", h("strong", visible(session.open.title)), " and ", h("strong", visible(other.title)));
  fill(place, names, again, bar.element);
  session.left.addEventListener("abort", () => bar.controller.abort(), { once: true });
  try {
    const report = await session.open.model.diff(other.model, { onProgress: bar.tell, signal: bar.controller.signal });
    place.classList.add("full");
    fill(place, names, summary(report), h("div.tools", again, jsonButton(report, "diff.json")), pairs(session, other, report));
  } catch (thrown) {
    if (!isEnded(thrown)) fill(place, names, again, failure(thrown));
    else if (!session.left.aborted) fill(place, names, again);
  }
}

function summary(report: DiffReport): Child {
  const count = (...verdicts: string[]) => report.tensors.filter((pair) => verdicts.includes(pair.verdict)).length;
  const [identical, equal, rounded, drift, apart] = [count("identical"), count("identical", "reshaped", "match"), count("rounded"), count("drift"), count("incomparable")];
  const all = report.tensors.length;
  const line = report.same
    ? h("p.good", all === 1 ? `The tensor ${identical ? "is identical" : "matches"}.` : `All ${whole(all)} tensors ${identical === all ? "are identical" : "match"}.`)
    : h("p", [
        `${whole(equal)} of ${whole(all)} pairs match.`,
        rounded > 0 && `${whole(rounded)} differ within the precision of their types.`,
        drift > 0 && `${whole(drift)} differ by more.`,
        // The report's largest difference is of those that can be compared.
        rounded + drift > 0 && `Largest difference ${value(report.max_delta)}, L2 norm of the differences ${value(report.l2)}.`,
        apart > 0 && `${whole(apart)} can’t be compared: other shapes, or types that can’t be decoded.`,
      ].filter(Boolean).join(" "));
  const list = (title: string, names: string[]) => names.length > 0 && h("details", h("summary", `${title}: ${whole(names.length)}`), h("ul", names.slice(0, 200).map((name) => h("li", visible(name)))));
  const texts = (entry: unknown) => visible(JSON.stringify(entry) ?? "");
  const tokens = tokenizer(report);
  const structure = report.structure;
  const steps = structure ? structure.removed.length + structure.added.length + structure.changed.length : 0;
  return h("section",
    line,
    list("Only in the first", report.removed),
    list("Only in the second", report.added),
    tokens.length > 0 && h("details", h("summary", "Differences between the tokenizers"), h("ul", tokens.map((text) => h("li", visible(text))))),
    report.metadata.length > 0 && h("details", h("summary", `Metadata differences: ${whole(report.metadata.length)}`),
      h("ul", report.metadata.slice(0, 200).map((entry) => h("li", texts(entry))))),
    structure && (steps === 0
      ? h("p.dim", "Both graphs have the same steps.")
      : h("details", h("summary", `Differences between the graphs: ${whole(steps)}`), h("ul",
          [...structure.removed.map((step) => `− ${texts(step)}`), ...structure.added.map((step) => `+ ${texts(step)}`), ...structure.changed.map((step) => `≠ ${texts(step)}`)]
            .slice(0, 200).map((text) => h("li", text))))),
  );
}

/** What differs between the tokenizers, a line each. */
function tokenizer({ vocab }: DiffReport): string[] {
  if (!vocab) return [];
  const counts: [string, number][] = [["only in the first", vocab.removed_count], ["only in the second", vocab.added_count], ["with other ids", vocab.moved]];
  return [
    ...counts.filter(([, count]) => count > 0).map(([what, count]) => `${counted(count, "token")} ${what}`),
    ...(vocab.examples ?? []).map((token) => `${token.token}: ${token.ids.join("+")} → ${token.other_ids.join("+")}`),
    ...(vocab.rules ?? []).map((rule) => `${rule.name}: ${rule.detail}`),
  ];
}

function pairs(session: Session, other: OpenModel, report: DiffReport): HTMLElement {
  const side = h("aside.side", { tabindex: 0, "aria-label": "The chosen pair" }, h("p.dim", "Choose a pair to see its distributions in one chart."));
  const both = <T>([left, right]: [T, T], text: (one: T) => string) => text(left) === text(right) ? text(left) : `${text(left)} → ${text(right)}`;
  const widest = report.tensors.reduce((most, row) => Math.max(most, row.verdict.length), 8);
  const table = new Table<DiffRow>("Pairs of tensors", [
    { title: "Name", cell: (row) => h("span.name", { title: row.name }, h("bdi", { dir: "ltr" }, visible(row.name))), by: (row) => row.name, width: "minmax(5rem, 1fr)" },
    { title: "Types", cell: (row) => both(row.dtypes, String), by: (row) => row.dtypes.join(), width: "6.5rem", isSpare: true },
    { title: "Verdict", cell: (row) => h(row.verdict === "identical" ? "span.good" : "span", row.verdict), by: (row) => row.verdict, width: `${widest}ch` },
    { title: "Max", cell: (row) => value(row.max_delta), by: (row) => row.max_delta ?? -1, isNumber: true, width: "5.2rem" },
    { title: "Cosine", cell: (row) => value(row.cosine), by: (row) => row.cosine ?? 2, isNumber: true, width: "4.5rem", isSpare: true },
  ], (row) => {
    // On a narrow screen the list and the pair take turns.
    split.classList.add("chosen");
    const back = h("button.back", { onclick: () => {
      split.classList.remove("chosen");
      table.reveal(row);
      table.focus();
    } }, "← All pairs");
    void pair(session, other, row, side, back);
    if (!isShown(table.element)) side.focus();
  });
  queueMicrotask(() => {
    // The largest differences are what one looks for.
    table.rows = [...report.tensors].sort((one, next) => (next.max_delta ?? Infinity) - (one.max_delta ?? Infinity));
  });
  const split = h("div.split.pairs", h("div.main", table.element), side);
  return split;
}

async function pair(session: Session, other: OpenModel, row: DiffRow, side: HTMLElement, back: HTMLElement): Promise<void> {
  const place = h("div", h("p.dim", "Reading both…"));
  fill(side, back, h("h2", visible(row.name)), h("p", `${row.dtypes.join(" and ")}, ${row.shapes.map(shape).join(" and ")}`), place);
  try {
    const [left, right] = await Promise.all((["left", "right"] as const).map((which) => session.open.model.distribution(other.model, row.name, which, 96)));
    fill(place, histogram([{ report: left!, label: session.open.title }, { report: right!, label: other.title }]),
      h("dl.stats",
        h("div", h("dt", "largest difference"), h("dd", value(row.max_delta))),
        h("div", h("dt", "L2 norm of the difference"), h("dd", value(row.l2))),
        h("div", h("dt", "cosine"), h("dd", value(row.cosine)))));
  } catch (thrown) {
    fill(place, failure(thrown));
  }
}
