// Validation, and code that loading the model would run.

import type { LintReport, Model, PickleFinding, ScanSummary, ValidateReport } from "../../api/index.js";
import { fill, h, type Child } from "../dom.js";
import { bytes, counted, visible, whole } from "../format.js";
import { jsonButton } from "../save.js";
import type { Session } from "../session.js";
import { Bar, failure, isEnded, show } from "../waiting.js";
import { leftOut } from "./left-out.js";

/** Findings that are shown. */
const MOST = 200;

export function checks(session: Session, place: HTMLElement): void {
  const [scan, validation, lint] = [h("div"), h("div"), h("div")];
  fill(place, h("div.cards.wide",
    h("section.card", h("h2", "Code that loading would run"), scan),
    h("section.card", h("h2", "Every byte"), validation),
    h("section.card", h("h2", "Suggestions"), lint)));
  const { open: { model }, left } = session;
  void scanning(model, left, scan);
  void validating(session, validation);
  void show(lint, model.lint(), linted);
}

/** Scans files, whether they can be opened or not. */
export function scanning(model: Model, left: AbortSignal, place: HTMLElement): Promise<void> {
  // The scanner looks at what may hold code, which is little of a large model.
  return new Pass(model.title, left, place, "Scan", (options) => model.scan(options), scanned).begin();
}

/** Larger models are validated when it is asked for: every byte is read. */
const VALIDATED_AT_ONCE = 100e6;

async function validating(session: Session, place: HTMLElement): Promise<void> {
  const { open: { model }, left } = session;
  const pass = new Pass(model.title, left, place, "Validate", (options) => model.validate(options), validated);
  const { bytes: size } = await session.open.inspect().catch(() => ({ bytes: 0 }));
  if (size < VALIDATED_AT_ONCE) await pass.begin();
  else fill(place, h("p", "Reads the whole model once."), h("button.primary", { onclick: () => void pass.begin() }, `Validate ${bytes(size)}`));
}

type Options = { onProgress: Bar["tell"]; signal: AbortSignal };

/** Something that takes long, and can be ended and begun again. */
class Pass<T> {
  constructor(
    readonly title: string,
    readonly left: AbortSignal,
    readonly place: HTMLElement,
    readonly label: string,
    readonly run: (options: Options) => Promise<T>,
    readonly draw: (report: T) => Child,
  ) {}

  async begin(): Promise<void> {
    const { title, left, place, label } = this;
    const bar = new Bar();
    fill(place, bar.element);
    left.addEventListener("abort", () => bar.controller.abort(), { once: true });
    const button = (text: string) => h("button", { onclick: () => void this.begin() }, text);
    try {
      const report = await this.run({ onProgress: bar.tell, signal: bar.controller.signal });
      fill(place, this.draw(report), h("p.tools", button(`${label} again`), jsonButton(report, `${title}.${label.toLowerCase()}.json`)));
    } catch (thrown) {
      if (!isEnded(thrown)) fill(place, failure(thrown));
      else if (!left.aborted) fill(place, h("p.dim", "Cancelled."), button(label));
    }
  }
}

function validated(report: ValidateReport): Child {
  const verdict = report.valid ? h("p.good", "The model is valid.") : h("p.bad", "The model is not valid.");
  const findings = report.findings.slice(0, MOST).map((finding) => {
    const { tensor, message, severity } = finding;
    return h("li", severity && h("span.badge.odd", String(severity)), tensor && h("strong", ` ${visible(String(tensor))}`), ` ${visible(text(message ?? finding))}`);
  });
  return [
    verdict,
    h("table.lines", h("tbody", report.checks.map(({ check, status, detail }) => h("tr",
      h("td", h(`span.badge.${tone(status)}`, status)), h("th", { scope: "row" }, TITLES[check] ?? check), h("td", visible(detail)))))),
    findings.length > 0 && h("ul.remarks", findings),
    report.findings.length > MOST && h("p.dim", `and ${whole(report.findings.length - MOST)} more`),
    leftOut(report),
    h("p.dim", `${bytes(report.bytes_read)} read`),
  ];
}

/** Names of the checks, as the command prints them. */
const TITLES: Record<string, string> = {
  structure: "Structure", checksum: "File checksum", digests: "Tensor digests", finite: "NaN and infinity",
  zeros: "Zero tensors", shapes: "Names and shapes", hyperparameters: "Hyperparameters", graph: "Graph",
  physics: "Physics", signature: "Signature", sha256: "SHA-256", manifest: "Manifest", source: "Source",
};

const tone = (status: string) => ({ pass: "good", fail: "bad", warn: "odd" })[status] ?? "plain";

function scanned(report: ScanSummary): Child {
  const words: Record<string, [string, string]> = {
    clean: ["good", "Loading these files executes nothing."],
    "not-run": ["plain", "Scripts that loading a model does not run; they were not examined."],
    "not-examined": ["odd", "No findings, but some parts could not be examined."],
    suspicious: ["odd", "Suspicious."],
    unreadable: ["odd", "Parts of the file can't be read."],
    dangerous: ["bad", "Dangerous: loading executes code."],
  };
  const [tone, said] = words[report.verdict] ?? ["odd", report.verdict];
  const odd = report.files.filter((file) => !["clean", "not-run"].includes(file.verdict));
  return [
    h(`p.${tone}`, said),
    odd.slice(0, MOST).map((file) => h("details", { open: odd.length < 4 },
      h("summary", h(`span.badge.${words[file.verdict]?.[0] ?? "odd"}`, file.verdict.replaceAll("-", " ")), ` ${visible(file.path)} (${visible(file.kind)})`),
      h("ul.remarks",
        file.pickles.flatMap(({ entry, findings }) => findings.map((found) => imported(found, entry))).slice(0, MOST),
        file.pickles.filter(({ problem }) => problem).slice(0, MOST).map(({ entry, problem }) => h("li", visible(`${entry ? `${entry}: ` : ""}${problem}`))),
        [...file.warnings, ...file.problems].slice(0, MOST).map((remark) => h("li", visible(text(remark.message ?? remark))))))),
    h("p.dim", counted(report.files.length, "file")),
  ];
}

/** How findings of a pickle look, by their verdict. */
const FINDINGS: Record<string, string> = { dangerous: "bad", allowed: "plain" };

/** What a pickle imports or calls, and where. */
function imported({ module, name, action, argument, opcode, offset, verdict }: PickleFinding, entry?: string): HTMLElement {
  const place = `${action}, ${opcode} at byte ${offset}${!entry ? "" : ` of ${entry}`}`;
  return h("li", h(`span.badge.${FINDINGS[verdict] ?? "odd"}`, verdict), " ",
    h("strong", visible(`${module}.${name}`)), argument !== undefined && h("code", visible(argument)), h("span.dim", ` ${visible(place)}`));
}

/** A finding in words: its fields, where it has no sentence. */
function text(finding: unknown): string {
  if (typeof finding === "string") return finding;
  if (typeof finding !== "object" || finding === null) return String(finding);
  return Object.entries(finding)
    .filter(([, content]) => content !== null && content !== "" && !(Array.isArray(content) && content.length === 0))
    .map(([key, content]) => `${key.replaceAll("_", " ")}: ${typeof content === "string" ? content : JSON.stringify(content)}`)
    .join(", ");
}

function linted({ remarks }: LintReport): Child {
  if (remarks.length === 0) return h("p.good", "Nothing.");
  return h("ul.remarks", remarks.slice(0, MOST).map(({ severity, topic, message }) =>
    h("li", h(`span.badge.${severity === "INFO" ? "plain" : "odd"}`, severity.toLowerCase()), " ", h("strong", topic), ` ${visible(message)}`)));
}
