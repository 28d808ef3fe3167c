// The graph of the model, or its tensors as a tree if it has no graph.

import type { DrawnBox, NodeCost, NodeValue, NodeView, PartSummary, TensorRow } from "../../api/index.js";
import { debounced, fill, h, type Child } from "../dom.js";
import { amount, bytes, counted, operations, shape, visible, whole } from "../format.js";
import { GraphCanvas } from "../graph-canvas.js";
import { save } from "../save.js";
import type { Follow, Session } from "../session.js";
import { failure, spinner } from "../waiting.js";

export function structure(session: Session, place: HTMLElement): Follow {
  place.classList.add("full");
  let view: StructureView | undefined;
  // A graph of a large model takes seconds.
  fill(place, spinner());
  session.open.graph().then(
    ({ parts }) => { view = new StructureView(session, place, parts); },
    (thrown: unknown) => void tree(session, place, thrown),
  );
  return () => view?.follow() ?? false;
}

class StructureView {
  readonly #session: Session;
  readonly #parts: readonly PartSummary[];
  readonly #canvas: GraphCanvas;
  readonly #side = h("aside.side", { tabindex: 0, "aria-label": "The chosen box" });
  readonly #results = h("div.results", { role: "listbox", "aria-label": "Nodes found", hidden: true });
  readonly #status = h("span.dim", { role: "status" });
  readonly #folding = h("input", { type: "checkbox", checked: true, onchange: () => {
    this.#fold = this.#folding.checked;
    void this.#drawAnew();
  } });
  #select: HTMLSelectElement | undefined;
  #part: number;
  #fold = true;
  #costs = false;
  #open: number[] | undefined;
  #boxes: readonly DrawnBox[] = [];

  constructor(session: Session, place: HTMLElement, parts: readonly PartSummary[]) {
    this.#session = session;
    this.#parts = parts;
    this.#part = Math.min(session.place.part ?? 0, parts.length - 1);
    this.#canvas = new GraphCanvas((box) => void this.#choose(box), (box) => void this.#toggle(box));
    fill(place, h("div.graph",
      h("div.tools", this.#choices(), this.#search(), this.#buttons(), this.#status),
      h("div.graph-row", this.#canvas.element, this.#side),
    ));
    this.#summary();
    const repaint = () => this.#canvas.repaint();
    document.addEventListener("themechange", repaint, { signal: session.left });
    void this.#draw().then(() => {
      if (session.place.node) void this.#goTo(session.place.node);
    });
  }

  /** Shows the part and the node of the place. */
  follow(): boolean {
    const { part = 0, node } = this.#session.place;
    const next = Math.min(part, this.#parts.length - 1);
    const isOther = next !== this.#part;
    this.#part = next;
    if (this.#select) this.#select.value = String(next);
    if (isOther) {
      this.#open = undefined;
      this.#last = undefined;
      this.#summary();
    }
    void (isOther ? this.#draw() : Promise.resolve()).then(() => {
      if (node !== undefined) void this.#goTo(node);
    });
    return true;
  }

  #choices(): Child {
    if (this.#parts.length < 2) return null;
    const options = this.#parts.map((part, index) => h("option", { value: index, selected: index === this.#part }, visible(part.name)));
    this.#select = h("select", { onchange: (event: Event) => this.#session.go({ part: Number((event.target as HTMLSelectElement).value), node: undefined }) }, options);
    return h("label", "Part ", this.#select);
  }

  #search(): HTMLElement {
    const find = debounced(200, async (text: string) => {
      const found = text === "" ? [] : await this.#session.open.model.searchNodes(this.#part, text, 50);
      this.#results.hidden = found.length === 0 && text === "";
      fill(this.#results, found.length === 0 ? h("p.dim", "No node has such a name.") : found.map((path) =>
        h("button", { role: "option", onclick: () => { this.#results.hidden = true; void this.#goTo(path); } }, visible(path))));
    });
    return h("div.search",
      h("input", { type: "search", placeholder: "Find a node", "aria-label": "Find a node by its name", oninput: (event: Event) => find((event.target as HTMLInputElement).value) }),
      this.#results);
  }

  #buttons(): Child {
    const button = (label: string, title: string, onclick: () => void) =>
      h("button", { title, "aria-label": /\w/u.test(label) ? undefined : title, onclick }, label);
    return h("div.buttons",
      button("−", "Zoom out", () => this.#canvas.zoom(0.8)),
      button("+", "Zoom in", () => this.#canvas.zoom(1.25)),
      button("Fit", "Show all of it", () => this.#canvas.fitAll()),
      h("label.check", this.#folding, "Fold repeated layers"),
      h("label.check", { title: "Operations and bytes of each box; a bar is its share of all operations" }, h("input", { type: "checkbox", checked: this.#costs, onchange: (event: Event) => {
        this.#costs = (event.target as HTMLInputElement).checked;
        void this.#drawAnew();
      } }), "Costs"),
      button("SVG", "Save the image as SVG", () => void this.#saved(this.#saveSvg())),
      button("PNG", "Save the image as PNG", () => void this.#saved(this.#savePng())),
    );
  }

  async #draw(keep?: string): Promise<void> {
    this.#status.textContent = "laying out…";
    try {
      const options = { fold: this.#fold, costs: this.#costs, ...(this.#open && { open: this.#open }) };
      const drawing = await this.#session.open.model.drawing(this.#part, options);
      this.#open = drawing.open;
      this.#boxes = drawing.boxes;
      this.#canvas.show(drawing, this.#parts[this.#part]!.cost.flops, keep);
      this.#status.textContent = drawing.boxes.length === 1 ? "1 box" : `${whole(drawing.boxes.length)} boxes`;
    } catch (thrown) {
      this.#status.textContent = "";
      fill(this.#side, failure(thrown));
    }
  }

  /** Draws another kind of picture, in which groups have other numbers; those that were open are open in it. */
  async #drawAnew(): Promise<void> {
    const opened = new Set(this.#boxes.filter((box) => box.is_frame).map((box) => box.path));
    const keep = this.#last?.path;
    this.#open = undefined;
    await this.#draw(keep);
    for (let depth = 0; depth < 16; depth += 1) {
      const closed = this.#boxes.filter((box) => box.scene !== undefined && !box.is_frame && opened.has(box.path));
      if (closed.length === 0 || !this.#open) return;
      this.#open = [...new Set([...this.#open, ...closed.flatMap(({ scene }) => scene ?? [])])];
      await this.#draw(keep);
    }
  }

  async #toggle(box: DrawnBox): Promise<void> {
    if (box.scene === undefined || !this.#open) return;
    const { scene } = box;
    const before = this.#open;
    this.#open = before.includes(scene) ? before.filter((open) => open !== scene) : [...before, scene];
    await this.#draw(box.path);
  }

  async #goTo(path: string): Promise<void> {
    // Groups are opened until the node itself is shown.
    for (let depth = 0; depth < 16; depth += 1) {
      if (this.#canvas.reveal(path)) return;
      const nearest = this.#canvas.nearest(path);
      if (nearest?.scene !== undefined && !nearest.is_frame) await this.#toggle(nearest);
      else if (this.#fold) {
        // One of the layers that stand behind the first of them.
        this.#fold = false;
        this.#folding.checked = false;
        this.#open = undefined;
        await this.#draw();
      } else return;
    }
  }

  #last: DrawnBox | undefined;

  async #choose(box: DrawnBox): Promise<void> {
    this.#last = box;
    const group = box.scene !== undefined && h("p", h("button", { onclick: () => void this.#toggle(box) }, box.is_frame ? "Close the group" : "Open the group"));
    const header = [h("h2", visible(box.title)), h("p.path", visible(box.path)), box.times > 1 && h("p", `${box.times} times, one after the other`), group];
    const lines = [box.lines.map((line) => h("p.dim", visible(line))), box.cost && this.#cost(box.cost)];
    fill(this.#side, header, lines);
    if (box.scene !== undefined || box.class === "end") return;
    try {
      const nodes = await this.#session.open.model.node(this.#part, box.path);
      if (this.#last === box) fill(this.#side, header, nodes.slice(0, 1).map((node) => this.#node(node, box)));
    } catch (thrown) {
      fill(this.#side, header, failure(thrown));
    }
  }

  /** What a box costs, in full. */
  #cost(cost: NodeCost): Child {
    const all = this.#parts[this.#part]!.cost.flops;
    const rows: [string, string][] = [
      ["Operations", cost.flops === 0 ? "none" : `${operations(cost.flops)}${all > 0 ? `, ${(100 * cost.flops / all).toFixed(1)} % of a run` : ""}`],
      ["Weights read", bytes(cost.weight_bytes)], ["Values read", bytes(cost.read_bytes)], ["Written", bytes(cost.written_bytes)],
    ];
    if (cost.unknown > 0) rows.push(["Not counted", `${counted(cost.unknown, "node")} of unknown sizes`]);
    return [h("h3", "Cost"), h("table.lines", h("tbody", rows.map(([what, much]) => h("tr", h("th", { scope: "row" }, what), h("td.value", much)))))];
  }

  /** `box` is the one that shows the node: its path goes through the calls that the node is in. */
  #node(node: NodeView, box: DrawnBox): Child {
    const calls = box.path.endsWith(node.name) ? box.path.slice(0, box.path.length - node.name.length) : "";
    return [
      box.cost && this.#cost(box.cost),
      node.doc && h("p", visible(node.doc)),
      node.attributes.length > 0 && [h("h3", "Attributes"), h("table.lines", h("tbody", node.attributes.map(({ name, value }) =>
        h("tr", h("th", { scope: "row" }, visible(name)), h("td.value", visible(value))))))],
      h("h3", "Inputs"), h("ul.values", node.inputs.map((input) => this.#value(input, calls))),
      h("h3", "Outputs"), h("ul.values", node.outputs.map((output) => this.#value(output, calls))),
      node.outputs.slice(0, 1).map((output) => output.name !== "" && h("p", h("button", {
        title: "Runs the model and shows this value", onclick: () => this.#session.go({ view: "run", want: calls + output.name }),
      }, "Compute it"))),
    ];
  }

  #value(value: NodeValue, calls: string): HTMLElement {
    const [kind, detail] = typeof value.place === "string" ? [value.place, undefined] : Object.entries(value.place)[0] ?? ["", undefined];
    const link = (text: string, go: () => void) => h("button.link", { onclick: go }, visible(text));
    const nodes = Array.isArray(detail) ? (detail as string[]).slice(0, 8) : [];
    return h("li",
      value.operand !== undefined && h("span.badge.plain", visible(value.operand)), " ",
      h("strong", visible(value.name) || "(left out)"), value.kind && h("span.dim", ` ${value.kind}`),
      kind === "weight" && h("div", "tensor ", link(String(detail), () => this.#session.go({ view: "tensors", tensor: String(detail) }))),
      kind === "node" && h("div", "from ", link(String(detail), () => void this.#goTo(calls + String(detail)))),
      kind === "constant" && h("div.dim", `= ${visible(String(detail))}`),
      nodes.map((node) => h("div", "to ", link(node, () => void this.#goTo(calls + node)))),
    );
  }

  #summary(): void {
    const part = this.#parts[this.#part]!;
    const ends = (title: string, list: PartSummary["inputs"]) => [h("h3", title), h("ul.values", list.slice(0, 12).map((end) =>
      h("li", h("strong", visible(end.name)), end.kind && h("div.dim", end.kind))))];
    const operators = Object.entries(part.operators).sort((one, other) => other[1] - one[1]);
    fill(this.#side,
      h("h2", visible(part.name)),
      h("p", `${counted(part.node_count, "operator")}, ${amount(part.parameters)} parameters, ${operations(part.cost.flops)} per run`),
      h("p.dim", "Click a box to see what it reads and makes; double-click a group to open it."),
      ends("Inputs", part.inputs), ends("Outputs", part.outputs),
      h("h3", "Operators"),
      h("table.lines", h("tbody", operators.slice(0, 30).map(([op, count]) => h("tr", h("td", visible(op)), h("td.number", whole(count)))))),
    );
  }

  /** What could not be saved is said beside the graph. */
  async #saved(saving: Promise<void>): Promise<void> {
    try {
      await saving;
    } catch (thrown) {
      fill(this.#side, failure(thrown));
    }
  }

  #shown(): { fold: boolean; costs: boolean; open: number[] } {
    return { fold: this.#fold, costs: this.#costs, open: this.#open ?? [] };
  }

  async #saveSvg(): Promise<void> {
    const picture = await this.#session.open.model.svg(this.#part, this.#shown());
    save(new Blob([picture], { type: "image/svg+xml" }), `${this.#session.open.title}.svg`);
  }

  async #savePng(): Promise<void> {
    const picture = await this.#session.open.model.svg(this.#part, this.#shown());
    const image = new Image();
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(picture)}`;
    await image.decode().catch(() => {
      throw new Error("The browser can't draw an image of this size: save it as SVG.");
    });
    const canvas = h("canvas");
    // Browsers draw no larger canvas.
    const scale = Math.min(2, 16_000 / Math.max(image.width, image.height));
    canvas.width = image.width * scale;
    canvas.height = image.height * scale;
    canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
    const png = await new Promise<Blob | null>((made) => canvas.toBlob(made));
    if (!png) throw new Error("The browser can't make a PNG of this size: save it as SVG.");
    save(png, `${this.#session.open.title}.png`);
  }
}

/** The tensors by the parts of their names, where no graph is known. */
async function tree(session: Session, place: HTMLElement, why: unknown): Promise<void> {
  const { tensors } = await session.open.tensors();
  const message = why instanceof Error ? why.message : String(why);
  const advice = message.includes("configuration") ? " Open it with its config.json, or as a folder, for more information." : "";
  fill(place, h("p.notice", `apr has no graph of this model (${visible(message)}). These are its tensors by name.${advice}`), h("div.tree", branches(session, grown(tensors))));
}

interface Branch {
  children: Map<string, Branch>;
  tensors: TensorRow[];
  count: number;
  bytes: number;
}

function grown(tensors: readonly TensorRow[]): Branch {
  const seed = (): Branch => ({ children: new Map(), tensors: [], count: 0, bytes: 0 });
  const root = seed();
  for (const tensor of tensors) {
    const parts = tensor.name.split(/[./]/u);
    let branch = root;
    for (const part of parts.slice(0, -1)) {
      branch.count += 1;
      branch.bytes += tensor.bytes;
      const next = branch.children.get(part) ?? seed();
      branch.children.set(part, next);
      branch = next;
    }
    branch.count += 1;
    branch.bytes += tensor.bytes;
    branch.tensors.push(tensor);
  }
  return root;
}

/** The first levels are open where they have little in them. */
function branches(session: Session, branch: Branch, depth = 0): HTMLElement {
  const list = h("ul");
  const open = depth < 3 && branch.children.size <= 3;
  for (const [name, inner] of branch.children) {
    const details = h("details", { open }, h("summary", h("strong", visible(name)), h("span.dim", ` ${counted(inner.count, "tensor")}, ${bytes(inner.bytes)}`)));
    // What is in it is made when it is opened.
    details.addEventListener("toggle", () => details.append(branches(session, inner, depth + 1)), { once: true });
    list.append(h("li", details));
  }
  for (const tensor of branch.tensors) {
    list.append(h("li", h("button.link", { onclick: () => session.go({ view: "tensors", tensor: tensor.name }) }, visible(tensor.name)), h("span.dim", ` ${tensor.dtype} ${shape(tensor.shape)}`)));
  }
  return list;
}
