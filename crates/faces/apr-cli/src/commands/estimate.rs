//! `apr inspect --memory`.

use std::io::{self, Write};
use std::num::NonZeroUsize;

use apr_core::grouped;
use apr_registry::Escaped;
use apr_run::{ContextOrigin, Facts, MemoryEstimate, MemoryOptions, RunOptions, estimate_memory};

use crate::args::InspectArgs;
use crate::context::Context;
use crate::failure::Outcome;
use crate::human;
use crate::model::Model;
use crate::printer::{BOLD, DIM, ODD};

/// Estimates the memory of a run.
pub(super) fn of(model: &Model, args: &InspectArgs, context: &Context) -> Outcome<MemoryEstimate> {
    let source = context.source(&*model.reader, &model.name)?;
    let facts = Facts::of_source(&source)?;
    let mut options = RunOptions::default();
    options.keeps_past = options.generates(&facts);
    let mut asked = MemoryOptions::default();
    asked.context = args.context.map(NonZeroUsize::get);
    asked.batch = args.batch.map_or(1, NonZeroUsize::get);
    asked.cache_type = args.cache_type.map(Into::into);
    Ok(estimate_memory(&source, &facts, &options, &asked)?)
}

/// A line for each kind of memory, and their sum.
pub(super) fn render(out: &mut dyn Write, estimate: &MemoryEstimate) -> io::Result<()> {
    let mut conditions = Vec::new();
    if let (Some(tokens), Some(origin)) = (estimate.context, estimate.context_origin) {
        let origin = match origin {
            ContextOrigin::Model => ", the model's context",
            ContextOrigin::Default => ", since the model's context is not known",
            _ => "",
        };
        conditions.push(format!("{} tokens{origin}", grouped(tokens)));
    }
    if !estimate.parts.is_empty() {
        conditions.push(format!("batch {}", grouped(estimate.batch)));
    }
    let conditions = conditions.join("; ");
    let conditions =
        if conditions.is_empty() { conditions } else { format!(" {DIM}({conditions}){DIM:#}") };
    writeln!(out, "\n{BOLD}Memory of a run{BOLD:#}{conditions}")?;

    let mut line = |label: &str, bytes: u64, note: &str| {
        let bytes = human::bytes(bytes);
        writeln!(out, "{}", format!("  {label:<12} {bytes:>10}  {note}").trim_end())
    };
    for share in &estimate.weights {
        line("weights", share.bytes, &share.name())?;
    }
    if let Some(kind) = estimate.cache_type {
        line("KV cache", estimate.cache_bytes, kind)?;
    }
    let most = estimate.parts.iter().max_by_key(|part| part.activation_bytes);
    if let Some(part) = most {
        let tokens = part.tokens_at_once.map_or_else(String::new, |tokens| {
            format!("{} at once, ", apr_core::counted(tokens, "token"))
        });
        let part_name = match estimate.parts.len() {
            1 => String::new(),
            _ => format!("{}, ", part.name),
        };
        let note = format!("{part_name}{tokens}most at {}", Escaped(&part.activations_at));
        line("activations", part.activation_bytes, &note)?;
    }
    line("total", estimate.total_bytes, "")?;
    let mut warnings = estimate.warnings.iter();
    warnings.try_for_each(|warning| writeln!(out, "{ODD}warning{ODD:#}: {}", Escaped(warning)))
}
