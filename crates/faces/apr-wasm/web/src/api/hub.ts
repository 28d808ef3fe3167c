// Models on hubs: which files there are, and where.

import { AprError } from "./errors.js";
import type { FileSpec } from "./files.js";

/** Where Hugging Face's hub is, unless another one is named. */
export const HUB = "https://huggingface.co";

interface HubEntry {
  type: string;
  path: string;
  size: number;
}

/** What `hf://OWNER/NAME[@REVISION][/FILE]` says. */
export function parseHubLocation(location: string): { repository: string; revision: string; file?: string } {
  const [owner, name, ...file] = location.slice("hf://".length).split("/").filter((part) => part !== "");
  if (!owner || !name) {
    throw new AprError(`'${location}' names no model: hf://OWNER/NAME`);
  }
  const [plain, revision = "main"] = name.split("@");
  const found = { repository: `${owner}/${plain}`, revision };
  return file.length ? { ...found, file: file.join("/") } : found;
}

/** The files of a model on a hub, and the one that was named. */
export async function filesOfHub(
  location: string,
  hub = HUB,
): Promise<{ files: FileSpec[]; name?: string; title: string }> {
  const { repository, revision, file } = parseHubLocation(location);
  const list = `${hub}/api/models/${repository}/tree/${encodeURIComponent(revision)}?recursive=true`;
  let response: Response;
  try {
    response = await fetch(list);
  } catch {
    throw new AprError("the hub can't be reached", "E007", { file: location });
  }
  if (!response.ok) {
    const why = response.status === 401 || response.status === 404
      ? "the model does not exist, or is not public"
      : `the hub answers ${response.status}`;
    throw new AprError(why, "E007", { file: location });
  }
  const entries = (await response.json()) as HubEntry[];
  const resolve = (path: string) =>
    `${hub}/${repository}/resolve/${encodeURIComponent(revision)}/${path.split("/").map(encodeURIComponent).join("/")}`;
  const files = entries
    .filter((entry) => entry.type === "file")
    .map((entry) => ({ name: entry.path, url: resolve(entry.path), size: entry.size }));
  if (file !== undefined && !files.some((entry) => entry.name === file)) {
    throw new AprError("the repository has no such file", "E007", { file });
  }
  return file === undefined ? { files, title: repository } : { files, name: file, title: `${repository}/${file}` };
}
