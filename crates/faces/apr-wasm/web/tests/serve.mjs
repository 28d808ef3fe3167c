// A server on loopback: the page, models with and without ranges, a hub with one repository.
//
//     node serve.mjs FOLDER [PORT]

import { createReadStream, statSync } from "node:fs";
import { readdir } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";
import { pathToFileURL } from "node:url";

const TYPES = {
  ".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml",
  ".wasm": "application/wasm", ".json": "application/json", ".webmanifest": "application/manifest+json",
};

/**
 * Serves `site`, and what `mounts` name by the first part of the path: `{ folder, ranges, cors }`. A
 * mount with `hub` answers as a hub does about the folder's models. Counts the bytes of each path.
 */
export async function serve(site, { port = 0, mounts = {} } = {}) {
  const sent = new Map();
  const server = createServer((request, response) => {
    answer(request, response, site, mounts, sent).catch(() => response.writeHead(500).end());
  });
  await new Promise((resolve) => server.listen(port, "127.0.0.1", resolve));
  const { port: actual } = server.address();
  const close = () => new Promise((resolve) => {
    server.close(resolve);
    // Those that a browser keeps open for later would be waited for.
    server.closeAllConnections();
  });
  return { url: `http://127.0.0.1:${actual}`, sent, close };
}

async function answer(request, response, site, mounts, sent) {
  const path = decodeURIComponent(new URL(request.url, "http://localhost").pathname);
  const [, first, ...rest] = path.split("/");
  const mount = mounts[first];
  const headers = { "cache-control": "no-cache" };
  if (mount?.cors) Object.assign(headers, { "access-control-allow-origin": "*", "access-control-allow-headers": "range", "access-control-expose-headers": "content-range, content-length" });
  if (request.method === "OPTIONS") return response.writeHead(204, headers).end();
  if (mount?.hub && rest[0] === "api") {
    const files = await readdir(mount.folder);
    const list = files.map((name) => ({ type: "file", path: name, size: statSync(join(mount.folder, name)).size }));
    return response.writeHead(200, { ...headers, "content-type": "application/json" }).end(JSON.stringify(list));
  }
  // OWNER/NAME/resolve/REVISION/FILE
  const inner = mount?.hub ? rest.slice(4).join("/") : rest.join("/");
  const file = mount ? join(mount.folder, normalize(`/${inner}`)) : join(site, normalize(path === "/" ? "/index.html" : path));
  let size;
  try {
    size = statSync(file).size;
  } catch {
    return response.writeHead(404, headers).end("not found");
  }
  headers["content-type"] = TYPES[extname(file)] ?? "application/octet-stream";
  const range = mount?.ranges === false ? null : /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? "");
  const start = range ? Number(range[1]) : 0;
  const end = range?.[2] ? Math.min(Number(range[2]), size - 1) : size - 1;
  if (range) headers["content-range"] = `bytes ${start}-${end}/${size}`;
  headers["content-length"] = end - start + 1;
  sent.set(path, (sent.get(path) ?? 0) + (end - start + 1));
  response.writeHead(range ? 206 : 200, headers);
  createReadStream(file, { start, end: Math.max(start, end) }).pipe(response);
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const [, , folder, port] = process.argv;
  const { url } = await serve(folder, { port: Number(port ?? 8080) });
  console.log(`${url}/`);
}
