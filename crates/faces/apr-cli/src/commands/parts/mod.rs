//! `apr plan`, `apr run-part` and `apr finish`: a job in parts that need nothing of each other.

mod draft;
mod finish;
mod gates;
mod input;
mod on_disk;
mod options;
mod plan;
mod reported;
mod run;
mod words;
mod written;

pub(super) use finish::finish;
pub(super) use plan::plan;
pub(super) use run::run_part;
pub(crate) use words::COMMANDS as PLANNED;
