//! `apr explain` (seed 001 §4.12).

use std::io::{self, Write};

use apr::{Code, Escaped};
use apr_ops::explain::{ErrorExplanation, error_code};
use apr_ops::nearest;

use crate::Outcome;
use crate::args::ExplainArgs;
use crate::context::Context;
use crate::failure::Failure;
use crate::printer::BOLD;

/// Explains an error code.
pub(super) fn run(args: &ExplainArgs, context: &Context) -> Outcome {
    let Some(explanation) = error_code(&args.code) else {
        let codes: Vec<_> = Code::ALL.iter().map(|code| code.id()).collect();
        let upper = args.code.to_ascii_uppercase();
        let similar = nearest(&upper, codes.iter().copied(), 3);
        let known = if similar.is_empty() { codes } else { similar };
        return Err(Failure::General(format!(
            "Unknown Error Code '{}'; try {}",
            Escaped(&args.code),
            known.join(", ")
        )));
    };
    context.printer.report(&explanation, render)
}

fn render(out: &mut dyn Write, explanation: &ErrorExplanation) -> io::Result<()> {
    let ErrorExplanation { code, title, meaning, causes, steps } = explanation;
    writeln!(out, "{BOLD}{code}: {title}{BOLD:#}")?;
    writeln!(out, "{meaning}")?;
    writeln!(out, "- {BOLD}Common Causes{BOLD:#}: {}.", causes.join(", "))?;
    writeln!(out, "- {BOLD}Troubleshooting{BOLD:#}:")?;
    for (number, step) in (1..).zip(*steps) {
        writeln!(out, "  {number}. {step}")?;
    }
    Ok(())
}
