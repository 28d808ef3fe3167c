//! One file a command: parse, call, render.

mod analyze;
mod baseline;
#[cfg(feature = "infer")]
mod bench;
mod beside;
mod cache;
#[cfg(feature = "infer")]
mod canary;
mod chosen_files;
mod convert;
mod debug;
mod diff;
#[cfg(feature = "infer")]
mod distill;
#[cfg(feature = "hub")]
mod download;
#[cfg(not(feature = "hub"))]
#[path = "download_off.rs"]
mod download;
mod edit;
mod encrypt;
#[cfg(feature = "infer")]
mod estimate;
mod explain;
mod file_name;
mod graph;
#[cfg(feature = "infer")]
mod imatrix;
mod imatrix_statistics;
#[cfg(feature = "infer")]
mod importance;
mod inspect;
#[cfg(feature = "seals")]
mod keygen;
mod left_out;
#[cfg(feature = "seals")]
mod license;
mod lint;
mod lora;
mod lowrank;
mod manual;
mod merge;
mod nearby;
mod page;
mod parts;
#[cfg(feature = "qa")]
mod points;
#[cfg(all(feature = "infer", not(feature = "qa")))]
#[path = "points_off.rs"]
mod points;
mod prune;
#[cfg(feature = "infer")]
mod quality;
mod quantize;
#[cfg(feature = "linalg")]
mod rounding;
#[cfg(feature = "infer")]
mod run;
#[cfg(feature = "infer")]
mod running;
mod scan;
mod scan_targets;
#[cfg(feature = "tui")]
mod screens;
#[cfg(feature = "infer")]
mod search;
#[cfg(feature = "linalg")]
mod second_order;
mod several;
mod shard;
#[cfg(feature = "seals")]
mod sign;
#[cfg(feature = "infer")]
mod temporary;
mod tensor_edits;
mod tensors;
#[cfg(feature = "infer")]
mod trace;
#[cfg(feature = "tui")]
mod tui;
#[cfg(not(feature = "tui"))]
#[path = "tui_off.rs"]
mod tui;
mod upgrade;
#[cfg(feature = "hub")]
mod upload;
#[cfg(not(feature = "hub"))]
#[path = "upload_off.rs"]
mod upload;
mod validate;
mod version;
mod watermark;
mod weights;
#[cfg(not(feature = "infer"))]
mod without_engine;
#[cfg(not(feature = "linalg"))]
mod without_linalg;
#[cfg(not(feature = "seals"))]
mod without_seals;

pub(crate) use self::manual::COMPLETE;
pub(crate) use self::parts::PLANNED;
#[cfg(not(feature = "infer"))]
use self::without_engine::{
    canary, distill, estimate, imatrix, importance, refused as bench, refused as quality,
    refused as trace, run, search,
};
#[cfg(not(feature = "seals"))]
use self::without_seals::{keygen, license, sign};
use crate::args::Command;
use crate::context::Context;
use crate::failure::Outcome;

/// Runs a command.
pub(crate) fn run(command: Command, context: &Context) -> Outcome {
    match command {
        Command::Inspect(args) => inspect::run(&args, context),
        Command::Tensors(args) => tensors::run(&args, context),
        Command::Validate(args) if args.quality => quality::run(&args, context),
        Command::Validate(args) => validate::run(&args, context),
        Command::Canary { action } => canary::run(&action, context),
        Command::Scan(args) => scan::run(&args, context),
        Command::Diff(args) => diff::run(&args, context),
        Command::Debug(args) => debug::run(&args, context),
        Command::Lint(args) => lint::run(&args, context),
        Command::Explain(args) => explain::run(&args, context),
        Command::Graph(args) => graph::run(&args, context),
        Command::Tui(args) => tui::run(&args, context),
        Command::Page(args) => page::run(&args, context),
        Command::Run(args) => run::run(&args, context),
        Command::Bench(args) => bench::run(&args, context),
        Command::Trace(args) => trace::run(&args, context),
        Command::Tokenize(args) => run::tokenize::run(&args, context),
        Command::Import(args) => convert::import(&args, context),
        Command::Convert(args) => convert::convert(&args, context),
        Command::Prune(args) => convert::prune(&args, context),
        Command::Factorize(args) => convert::factorize(&args, context),
        Command::Distill(args) => convert::distill(&args, context),
        Command::Lora { action } => lora::run(&action, context),
        Command::Merge(args) => merge::run(&args, context),
        Command::Imatrix(args) => imatrix::run(&args, context),
        Command::Quantize(args) => quantize::run(&args, context),
        Command::Export(args) => convert::export(&args, context),
        Command::Keygen(args) => keygen::run(&args, context),
        Command::Sign(args) => sign::sign(&args, context),
        Command::Verify(args) => sign::verify(&args, context),
        Command::Encrypt(args) => encrypt::encrypt(&args, context),
        Command::Decrypt(args) => encrypt::decrypt(&args, context),
        Command::License { action } => license::run(&action, context),
        Command::Edit(args) => edit::run(&args, context),
        Command::Upgrade(args) => upgrade::run(&args, context),
        Command::Shard(args) => shard::shard(&args, context),
        Command::Join(args) => shard::join(&args, context),
        Command::Plan(args) => parts::plan(&args, context),
        Command::RunPart(args) => parts::run_part(&args, context),
        Command::Finish(args) => parts::finish(&args, context),
        Command::Watermark { action } => watermark::run(&action, context),
        Command::Ls(args) => download::list(&args, context),
        Command::Download(args) => download::run(&args, context),
        Command::Upload(args) => upload::run(&args, context),
        Command::Cache { action } => cache::run(&action, context),
        Command::Completions { shell } => manual::completions(shell, context),
        Command::Man { dir } => manual::write_pages(&dir, context),
        Command::Version => version::run(context),
    }
}
