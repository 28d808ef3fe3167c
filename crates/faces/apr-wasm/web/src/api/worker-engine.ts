// Calls answered by workers: one for what is on the screen, one for what takes long.

import type { Method, OpenSpec } from "./desk.js";
import { AprError } from "./errors.js";
import type { CallOptions, Engine } from "./model.js";
import { compileModule } from "./module.js";
import type { Request, Response } from "./worker.js";

/** Calls that may read a whole model. They get a worker of their own, which can be ended. */
const LONG = new Set<Method>(["validate", "scan", "diff", "convert", "run", "stats", "histogram"]);

interface Waiting {
  request: Request;
  /** Whether pieces of a text were heard, which would come twice if it were asked again. */
  hasText: boolean;
  resolve(value: unknown): void;
  reject(error: unknown): void;
  options: CallOptions;
}

/** A worker with its calls. */
class Lane {
  readonly #explore: Promise<WebAssembly.Module | undefined>;
  #worker: Worker | undefined;
  readonly #waiting = new Map<number, Waiting>();

  /** Its workers take the module that explores. */
  constructor(explore: Promise<WebAssembly.Module | undefined>) {
    this.#explore = explore;
  }

  /** Starts the worker, which has nothing to do yet. */
  prepare(): Worker {
    return (this.#worker ??= this.#start());
  }

  ask(call: number, waiting: Waiting): void {
    this.#waiting.set(call, waiting);
    this.prepare().postMessage(waiting.request);
  }

  tell(request: Request): void {
    this.#worker?.postMessage(request);
  }

  /** Ends the worker; a new one takes the calls that still wait. */
  end(call: number): void {
    const ended = this.#waiting.get(call);
    if (!ended) return;
    this.#waiting.delete(call);
    this.#worker?.terminate();
    this.#worker = undefined;
    ended.reject(new DOMException("the call was ended", "AbortError"));
    const others = [...this.#waiting];
    this.#waiting.clear();
    for (const [other, waiting] of others) {
      if (waiting.hasText) waiting.reject(new AprError("another call ended this worker: try again"));
      else this.ask(other, waiting);
    }
  }

  #start(): Worker {
    const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
    worker.addEventListener("message", ({ data }: MessageEvent<Response>) => this.#hear(data));
    worker.addEventListener("error", (event) => {
      this.#worker = undefined;
      worker.terminate();
      const message = event.message || "the worker can't be started";
      for (const waiting of this.#waiting.values()) waiting.reject(new AprError(message));
      this.#waiting.clear();
    });
    void this.#explore.then((module) => worker.postMessage({ kind: "module", module } satisfies Request));
    return worker;
  }

  #hear(response: Response): void {
    const waiting = this.#waiting.get(response.call);
    if (!waiting) return;
    switch (response.kind) {
      case "progress":
        waiting.options.onProgress?.(response.phase, response.done, response.total);
        return;
      case "text":
        waiting.hasText = true;
        waiting.options.onText?.(response.piece);
        return;
      case "done":
        waiting.resolve(response.value);
        break;
      case "failed": {
        const { message, code, where } = response.error;
        waiting.reject(new AprError(message, code, where));
      }
    }
    this.#waiting.delete(response.call);
  }
}

/** Two workers: one that is started at once, and one when it is first needed. The module is compiled
 * once for both. */
export class WorkerEngine implements Engine {
  readonly #quick: Lane;
  readonly #long: Lane;
  #calls = 0;

  constructor() {
    const explore = compileModule("explore");
    this.#quick = new Lane(explore);
    this.#long = new Lane(explore);
    this.#quick.prepare();
  }

  call(id: string, spec: OpenSpec, method: Method, args: unknown[], options: CallOptions): Promise<unknown> {
    const lane = LONG.has(method) ? this.#long : this.#quick;
    const call = (this.#calls += 1);
    return new Promise((resolve, reject) => {
      const { signal } = options;
      if (signal?.aborted) {
        reject(new DOMException("the call was ended", "AbortError"));
        return;
      }
      signal?.addEventListener("abort", () => lane.end(call), { once: true });
      const request: Request = { kind: "call", call, id, spec, method, args };
      lane.ask(call, { request, hasText: false, resolve, reject, options });
    });
  }

  close(id: string): void {
    this.#quick.tell({ kind: "close", id });
    this.#long.tell({ kind: "close", id });
  }
}
