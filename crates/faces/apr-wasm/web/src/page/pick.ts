// Where files, folders and addresses are taken from.

import type { Input } from "../api/index.js";
import { h } from "./dom.js";

/** Called with what was chosen, and its address where it has one. */
export type Picked = (input: Input, address?: string) => void | Promise<void>;

/** Choosing by handles, which a reload can open again; only some browsers have it. */
interface Pickers {
  showOpenFilePicker?(options: { multiple: boolean }): Promise<FileSystemHandle[]>;
  showDirectoryPicker?(): Promise<FileSystemHandle>;
}

/** Buttons and a field for whatever can be opened. Files are dropped anywhere on the page. */
export function pick(picked: Picked): HTMLElement {
  const files = h("input", { type: "file", multiple: true, hidden: true, "aria-label": "Files", onchange: () => chosen(files) });
  const folder = h("input", { type: "file", webkitdirectory: true, hidden: true, "aria-label": "A folder", onchange: () => chosen(folder) });
  const chosen = (input: HTMLInputElement) => {
    const list = [...(input.files ?? [])];
    if (list.length > 0) void picked(list.length === 1 && list[0] ? list[0] : list);
    input.value = "";
  };
  const chooseFiles = async () => {
    const dialog = (window as Pickers).showOpenFilePicker?.({ multiple: true });
    if (!dialog) return files.click();
    const handles = await unlessClosed(dialog);
    if (handles) void picked(handles.length === 1 && handles[0] ? handles[0] : handles);
  };
  const chooseFolder = async () => {
    const dialog = (window as Pickers).showDirectoryPicker?.();
    if (!dialog) return folder.click();
    const handle = await unlessClosed(dialog);
    if (handle) void picked(handle);
  };
  const address = h("input", { type: "text", inputmode: "url", spellcheck: "false", autocapitalize: "off", placeholder: "https://… or hf://owner/model", "aria-label": "An address, or a model of Hugging Face's hub" });
  const form = h("form.address", {
    onsubmit: (event: Event) => {
      event.preventDefault();
      const text = completed(address.value);
      if (text !== "") void picked(text, text);
    },
  }, address, h("button.primary", "Open"));
  return h("div.pick",
    h("div.pick-buttons",
      h("button.primary", { onclick: () => void chooseFiles() }, "Choose files"),
      h("button", { onclick: () => void chooseFolder() }, "Choose a folder"),
      files, folder),
    form);
}

/** What a dialog gives; nothing where the user closes it. */
async function unlessClosed<T>(dialog: Promise<T>): Promise<T | undefined> {
  try {
    return await dialog;
  } catch (thrown) {
    if (thrown instanceof DOMException && thrown.name === "AbortError") return undefined;
    throw thrown;
  }
}

/** `owner/model` and the hub's own pages are the hub's models. */
function completed(text: string): string {
  const plain = text.trim();
  if (/^[\w.-]+\/[\w.-]+$/u.test(plain)) return `hf://${plain}`;
  const page = /^https:\/\/huggingface\.co\/([\w.-]+\/[\w.-]+)\/?$/u.exec(plain);
  return page?.[1] ? `hf://${page[1]}` : plain;
}

/** What was dropped: files, or folders with what is in them. */
export async function dropped(transfer: DataTransfer): Promise<Input | undefined> {
  const items = [...transfer.items].filter((item) => item.kind === "file");
  const plain = [...transfer.files];
  const handles = await Promise.all(items.map((item) => "getAsFileSystemHandle" in item
    ? (item as { getAsFileSystemHandle(): Promise<FileSystemHandle | null> }).getAsFileSystemHandle().catch(() => null)
    : null));
  const known = handles.filter((handle) => handle !== null);
  // With handles, the files can be opened again after a reload.
  if (known.length > 0 && known.length === items.length) return known.length === 1 ? known[0] : known;
  if (plain.length === 0) return undefined;
  return plain.length === 1 ? plain[0] : plain;
}
