// Files that the page gives away.

import { h } from "./dom.js";

/** Has the browser save something under a name. */
export function save(content: Blob, name: string): void {
  const url = URL.createObjectURL(content);
  h("a", { href: url, download: name.replaceAll("/", "-") }).click();
  // The browser has begun to read it by then.
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** A button that saves a report as JSON. */
export function jsonButton(report: unknown, name: string): HTMLElement {
  const click = () => save(new Blob([JSON.stringify(report, null, 2)], { type: "application/json" }), name);
  return h("button", { onclick: click, title: "Save the report" }, "JSON");
}
