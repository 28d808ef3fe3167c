// Keeps the page for visits without a network. `apr page` serves nothing in place of this script:
// its address is another one each time.

if ("serviceWorker" in navigator && location.protocol !== "file:") {
  navigator.serviceWorker.register("service-worker.js").catch(() => undefined);
}

export {};
