// What the page shows, as its address says it: `#model=hf://...&view=tensors&tensor=...`.

/** Names of the views, in the order of their tabs. */
export const VIEWS = ["overview", "structure", "tensors", "vocabulary", "compare", "checks", "run", "convert"] as const;

export type ViewName = (typeof VIEWS)[number];

/** Where one is. */
export interface Place {
  /** An address that the model was opened by; local files have none. */
  model?: string;
  view: ViewName;
  /** The tensor that is looked at. */
  tensor?: string;
  /** The node of the graph that is looked at. */
  node?: string;
  /** The part of the model whose graph is shown. */
  part?: number;
  /** The value of the graph that is to be computed. */
  want?: string;
}

/** What an address says. */
export function parsePlace(hash: string): Place {
  const said = new URLSearchParams(hash.replace(/^#/, ""));
  const view = said.get("view");
  const place: Place = { view: VIEWS.find((name) => name === view) ?? "overview" };
  const [model, tensor, node, part, want] = ["model", "tensor", "node", "part", "want"].map((key) => said.get(key) ?? undefined);
  if (model) place.model = model;
  if (tensor) place.tensor = tensor;
  if (node) place.node = node;
  if (want) place.want = want;
  if (part && Number.isSafeInteger(Number(part))) place.part = Number(part);
  return place;
}

/** An address that says it. */
export function addressOf(place: Place): string {
  const said = new URLSearchParams();
  for (const key of ["model", "view", "tensor", "node", "part", "want"] as const) {
    const value = place[key];
    if (value !== undefined) said.set(key, String(value));
  }
  // Slashes and colons are readable in what follows the `#`.
  return `#${said.toString().replaceAll("%2F", "/").replaceAll("%3A", ":")}`;
}
