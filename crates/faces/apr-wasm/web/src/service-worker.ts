// The page without a network: its own files are kept, and asked for anew when there is one.

/// <reference lib="webworker" />

export {};

declare const self: ServiceWorkerGlobalScope;

const CACHE = "apr-page";

self.addEventListener("install", (event) => {
  event.waitUntil(
    fetch("files.json")
      .then((response) => response.json() as Promise<string[]>)
      .then(async (files) => (await caches.open(CACHE)).addAll(["./", ...files]))
      .then(() => self.skipWaiting()),
  );
});

self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));

self.addEventListener("fetch", (event) => {
  const { request } = event;
  const isOwn = new URL(request.url).origin === location.origin;
  if (request.method !== "GET" || !isOwn || request.headers.has("range")) return;
  event.respondWith(
    fetch(request).then(
      async (response) => {
        // The engine is no part of `files.json`: it is kept once it was needed.
        const cache = await caches.open(CACHE);
        const isKept = request.url.includes("/wasm/run/") || (await cache.match(request));
        if (isKept && response.ok) await cache.put(request, response.clone());
        return response;
      },
      async () => (await caches.match(request)) ?? Response.error(),
    ),
  );
});
