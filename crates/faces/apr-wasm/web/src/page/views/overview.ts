// What the model is.

import type { InspectReport } from "../../api/index.js";
import { shares } from "../charts.js";
import { fill, h, type Child } from "../dom.js";
import { amount, bytes, counted, operations, visible, whole, words } from "../format.js";
import type { Session } from "../session.js";
import { failure, show } from "../waiting.js";
import { leftOut } from "./left-out.js";

export function overview(session: Session, place: HTMLElement): void {
  void show(place, session.open.inspect(), (report) => [
    facts(report),
    h("div.cards",
      card("Weights", shares(report.dtypes.map((share) => ({
        label: share.dtype,
        share: share.bytes / Math.max(1, report.tensor_bytes),
        detail: `${bytes(share.bytes)} in ${counted(share.tensor_count, "tensor")}`,
      })))),
      memory(report),
      health(session),
      dimensions(session),
    ),
    metadata(report),
    files(session, report),
  ]);
}

function facts(report: InspectReport): HTMLElement {
  const { family } = report;
  const name = family?.title ?? (typeof report.model_type === "string" ? report.model_type : null);
  const fact = (label: string, value: Child, hint?: string) => h("div.fact", h("dt", label), h("dd", value, hint && h("small", hint)));
  const licence = licenceOf(report);
  return h("section",
    family && h("p.lead", h("strong", name), `, ${family.architecture}. ${family.purpose}: ${lower(family.input)} in, ${lower(family.output)} out.`),
    !family && h("p.lead.dim", name ? `The family ‘${visible(name)}’ is not known here.` : "The family is not known; the tensors are shown as they are."),
    h("dl.facts",
      fact("Format", report.format),
      fact("Parameters", amount(report.parameters), whole(report.parameters)),
      fact("Size", bytes(report.bytes)),
      fact("Bits per weight", report.bits_per_weight.toFixed(2)),
      fact("Tensors", whole(report.tensor_count)),
      typeof report.vocab_size === "number" && fact("Vocabulary", whole(report.vocab_size), "tokens"),
      licence && fact("Licence", visible(licence)),
    ),
    (report.warnings ?? []).map((warning) => h("p.notice", visible(warning))),
    leftOut(report),
  );
}

const lower = (text: string) => text.charAt(0).toLowerCase() + text.slice(1);

function licenceOf(report: InspectReport): string | null {
  for (const key of ["license", "general.license"]) {
    const found = report.metadata?.[key] ?? report[key];
    if (typeof found === "string") return found;
  }
  return null;
}

function card(title: string, ...content: Child[]): HTMLElement {
  return h("section.card", h("h2", title), content);
}

function memory(report: InspectReport): HTMLElement {
  const rows = (report.computes ?? []).map((part) => {
    const { cost } = part;
    const sizes = Object.entries(cost.sizes).map(([name, size]) => `${words(name)} ${size}`).join(", ");
    return [
      h("tr", h("th", { scope: "row" }, report.computes!.length > 1 ? `${visible(part.name)}: activations` : "Activations"), h("td.number", bytes(cost.peak_bytes))),
      cost.cache_bytes_per_token > 0 && h("tr", h("th", { scope: "row" }, "KV cache per token"), h("td.number", bytes(cost.cache_bytes_per_token))),
      cost.flops > 0 && h("tr", h("th", { scope: "row" }, "Compute per run"), h("td.number", operations(cost.flops))),
      sizes !== "" && h("tr", h("td.dim", { colspan: "2" }, `for ${sizes}`)),
    ];
  });
  return card("Memory required", h("table.lines", h("tbody",
    h("tr", h("th", { scope: "row" }, "Weights, as stored"), h("td.number", bytes(report.tensor_bytes))),
    rows,
  )));
}

function health(session: Session): HTMLElement {
  const place = h("div");
  void show(place, session.open.model.lint(), ({ remarks }) => [
    remarks.length === 0
      ? h("p.good", "No problems found in the headers.")
      : h("ul.remarks", remarks.slice(0, 6).map(({ severity, message }) =>
          h("li", h(`span.badge.${severity === "INFO" ? "plain" : "odd"}`, severity.toLowerCase()), " ", visible(message)))),
    h("p", h("button", { onclick: () => session.go({ view: "checks" }) }, "Check every byte")),
  ]);
  return card("Health", place);
}

function dimensions(session: Session): HTMLElement {
  const place = h("div");
  const section = card("Dimensions", place);
  session.open.model.explain().then(({ dimensions }) => {
    if (dimensions.length === 0) section.remove();
    fill(place, h("table.lines", h("tbody", dimensions.map(([name, size]) =>
      h("tr", h("th", { scope: "row" }, words(name)), h("td.number", whole(size)))))));
  }, (thrown: unknown) => fill(place, failure(thrown)));
  return section;
}

/** Entries that are shown before the others are asked for. */
const FIRST = 40;
/** Characters of a value that are shown. */
const LONGEST = 400;

function metadata(report: InspectReport): Child {
  const entries = Object.entries(report.metadata ?? {}).flatMap(([key, value]) => flattened(key, value));
  if (entries.length === 0) return null;
  const table = h("tbody");
  const draw = (count: number) => fill(table, entries.slice(0, count).map(([key, value]) => {
    const text = typeof value === "string" ? value : JSON.stringify(value);
    const short = text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text;
    return h("tr", h("th", { scope: "row" }, visible(key)), h("td.value", visible(short)));
  }));
  draw(FIRST);
  const more = entries.length > FIRST && h("button", {
    onclick: (event: Event) => {
      draw(entries.length);
      (event.currentTarget as HTMLElement).remove();
    },
  }, `Show all ${entries.length}`);
  return h("section.card", h("h2", "Metadata"), h("table.lines.metadata", table), more);
}

/** An object's entries one by one, so that they can be read. */
function flattened(key: string, value: unknown): [string, unknown][] {
  const isObject = typeof value === "object" && value !== null && !Array.isArray(value);
  if (!isObject) return [[key, value]];
  const inner = Object.entries(value);
  return inner.length === 0 ? [[key, value]] : inner.map(([name, entry]) => [`${key}.${name}`, entry]);
}

function files(session: Session, report: InspectReport): HTMLElement {
  const own = report.files.map((file) => h("tr", h("td", visible(file.name || session.open.title)), h("td.number", bytes(file.bytes)), h("td")));
  const companions = report.companions.map(({ name, bytes: size }) => h("tr",
    h("td", visible(name)), h("td.number", bytes(size)), h("td", h("button", { onclick: () => void look(session, name, place) }, "Show")),
  ));
  const place = h("pre.file", { hidden: true, tabindex: 0, "aria-label": "Content of the file" });
  return h("section.card", h("h2", "Files"), h("table.lines.files", h("tbody", own, companions)), place);
}

async function look(session: Session, name: string, place: HTMLElement): Promise<void> {
  /** Bytes of a file that are shown. */
  const SHOWN = 1 << 16;
  place.hidden = false;
  try {
    const content = await session.open.model.companion(name);
    const text = new TextDecoder().decode(content.subarray(0, SHOWN));
    const rest = content.length > SHOWN ? `\n… and ${bytes(content.length - SHOWN)} more` : "";
    place.textContent = `${name}\n\n${text}${rest}`;
  } catch (thrown) {
    fill(place, failure(thrown));
  }
  place.scrollIntoView({ block: "nearest" });
}
