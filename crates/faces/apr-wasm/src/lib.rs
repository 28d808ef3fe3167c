//! Model files as a page sees them: [`open`](model::Model::open) takes files that the page lends
//! and reads the ranges of them that are asked for; every report is the one that the command prints
//! with `--json`.
//!
//! The module runs where bytes can be read synchronously: in a worker of a browser, or in Node. The
//! typed interface for programs, with promises, progress and cancellation, is TypeScript around it:
//! `web/src/api`.
//!
//! # How the page works
//!
//! `apr-wasm/src` answers requests with the reports of `apr-ops`, as JSON. `Model` has the
//! reader, and `files.rs` reads ranges of JavaScript files through `blocks.rs`. `web/src/api` is
//! the typed interface. `open` in `index.ts` makes a `Model`, whose calls an `Engine` answers: two
//! workers in a browser (`worker-engine.ts`, `worker.ts`), and the thread itself in Node
//! (`node.ts`). Both have a `Desk`, which opens models and calls the module. `web/src/page` is a
//! page over that interface. `main.ts` shows one view of `views/` at a time, by the address.
//! `table.ts` and `graph-canvas.ts` draw the visible part of any number of rows or boxes. A new
//! format appears by its registration, and a new report by a method in `reports.rs`, `desk.ts` and
//! `model.ts`.
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![allow(clippy::needless_pass_by_value, reason = "JavaScript hands over what it calls with")]

mod blocks;
pub mod convert;
pub mod error;
pub mod files;
pub mod graph;
pub mod measure;
pub mod model;
pub mod progress;
pub mod reports;
#[cfg(feature = "run")]
pub mod run;
pub mod typed;

use std::panic;

use wasm_bindgen::prelude::wasm_bindgen;

/// Called once, when the module is loaded: what a panic says reaches whoever called.
#[wasm_bindgen(start)]
pub fn start() {
    panic::set_hook(Box::new(|panic| wasm_bindgen::throw_str(&panic.to_string())));
}

/// Version of the library.
#[wasm_bindgen]
#[must_use]
pub fn version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}
