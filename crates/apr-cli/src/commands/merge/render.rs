//! What a merge changed, in words.

use std::io::{self, Write};

use apr_core::counted;
use apr_merge::{MergeReport, TensorChange};
use apr_registry::Escaped;

use crate::printer::DIM;

/// A line about the merge, one about the change, and the tensors that changed most.
pub(crate) fn render(out: &mut dyn Write, report: &MergeReport) -> io::Result<()> {
    let MergeReport { method, models, merged, copied, total, compared_with, worst, .. } = report;
    let models = counted(models.len() as u64, "model");
    let tensors = counted(*merged as u64, "tensor");
    let copied = if *copied > 0 { format!(", {copied} copied") } else { String::new() };
    writeln!(out, "  {method} of {models}: {tensors} merged{copied}")?;
    if *merged == 0 {
        return Ok(());
    }
    let (relative, cosine) = (100.0 * total.relative_error, total.cosine);
    let name = Escaped::short(compared_with);
    writeln!(out, "  {relative:.3}% from {name}, cosine {cosine:.6}")?;
    if worst.is_empty() {
        return Ok(());
    }
    writeln!(out, "  {DIM}changed most:{DIM:#}")?;
    for TensorChange { name, change, .. } in worst {
        let (relative, cosine) = (100.0 * change.relative_error, change.cosine);
        writeln!(out, "    {relative:>7.3}%  cosine {cosine:.6}  {}", Escaped::short(name))?;
    }
    Ok(())
}
