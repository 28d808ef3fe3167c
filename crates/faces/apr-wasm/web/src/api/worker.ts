// The thread that reads files and computes. Messages are calls by number, and their answers.

import { Desk, type Method, type OpenSpec, type OutputFile, type OutputFiles } from "./desk.js";
import { toAprError } from "./errors.js";
import { openInWorker } from "./files.js";

/** A call, the wish to forget a model, or the module that explores, where the page could compile
 * it. */
export type Request =
  | { kind: "module"; module: WebAssembly.Module | undefined }
  | { kind: "call"; call: number; id: string; spec: OpenSpec; method: Method; args: unknown[] }
  | { kind: "close"; id: string };

/** What comes back. */
export type Response =
  | { kind: "done"; call: number; value: unknown }
  | { kind: "failed"; call: number; error: ReturnType<ReturnType<typeof toAprError>["toJSON"]> }
  | { kind: "progress"; call: number; phase: string; done: number; total: number }
  | { kind: "text"; call: number; piece: string };

/** Comes once, from the page, which compiles for all of its workers. */
let receive: (module: WebAssembly.Module | undefined) => void;
const explore = new Promise<WebAssembly.Module | undefined>((resolve) => (receive = resolve));
const desk = new Desk({
  open: openInWorker,
  create,
  moduleBinary: async (name) => (name === "explore" ? await explore : undefined),
});

self.addEventListener("message", ({ data }: MessageEvent<Request>) => {
  if (data.kind === "module") {
    receive(data.module);
    return;
  }
  if (data.kind === "close") {
    void desk.close(data.id);
    return;
  }
  const { call, id, spec, method, args } = data;
  const listeners = {
    onProgress: (phase: string, done: number, total: number) =>
      answer({ kind: "progress", call, phase, done, total }),
    onText: (piece: string) => answer({ kind: "text", call, piece }),
  };
  desk.call(id, spec, method, args, listeners).then(
    (value) => answer({ kind: "done", call, value }),
    (thrown: unknown) => answer({ kind: "failed", call, error: toAprError(thrown).toJSON() }),
  );
});

function answer(response: Response): void {
  self.postMessage(response);
}

/** Files in the origin's private file system: of any size, and on disk until they are saved. */
async function create(names: string[]): Promise<OutputFiles> {
  const root = await navigator.storage.getDirectory();
  const folder = await root.getDirectoryHandle("converted", { create: true });
  // What an earlier conversion left is not needed any more.
  for await (const old of folder.keys()) await folder.removeEntry(old).catch(() => undefined);
  const handles = new Map<string, { file: FileSystemFileHandle; access: FileSystemSyncAccessHandle; size: number }>();
  for (const name of names) {
    const file = await folder.getFileHandle(name.replaceAll("/", "_"), { create: true });
    handles.set(name, { file, access: await file.createSyncAccessHandle(), size: 0 });
  }
  let current = handles.get(names[0]!)!;
  return {
    output: {
      begin(name) {
        const next = handles.get(name);
        if (!next) throw new Error(`the plan has no file ${name}`);
        current = next;
        current.size = 0;
        current.access.truncate(0);
      },
      write(bytes) {
        current.access.write(bytes, { at: current.size });
        current.size += bytes.length;
      },
      patch(offset, bytes) {
        current.access.write(bytes, { at: offset });
      },
    },
    async finish(isGood) {
      const files: OutputFile[] = [];
      for (const [name, { file, access, size }] of handles) {
        access.flush();
        access.close();
        if (isGood) files.push({ name, size, blob: await file.getFile() });
        else await folder.removeEntry(file.name).catch(() => undefined);
      }
      return files;
    },
  };
}
