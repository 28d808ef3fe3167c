//! Screens for a terminal, driven by keys.
//!
//! [`trace_screen`] walks through the steps of a run. A screen shows the reports that the libraries
//! make, and computes nothing of its own: each number is that of the command's `--json`.
//!
//! Whatever ends a screen leaves the terminal as it was: a key, a signal, an error or a panic.

mod chart;
mod explore;
mod export;
mod palette;
mod prompt;
mod screen;
#[cfg(test)]
mod snapshot;
mod svg;
mod terminal;
mod text;
mod trace;
mod wording;
mod zones;

pub use explore::{Job, Scan, Subject, Watch, explore, picture};
pub use palette::Palette;
pub use screen::ScreenOptions;
pub use terminal::{End, is_terminal};
pub use trace::{TraceView, trace_screen};
pub use wording::{Plain, Wording};
