//! What a merge changed, in words.

use std::io::{self, Write};

use apr_core::counted;
use apr_lora::{AdaptReport, MergedAdapter};
use apr_merge::moe::MoeReport;
use apr_merge::{Change, MergeReport, TensorChange};
use apr_registry::Escaped;

use crate::printer::DIM;

/// A line about the merge, one about the change, and the tensors that changed most.
pub(crate) fn render(out: &mut dyn Write, report: &MergeReport) -> io::Result<()> {
    let MergeReport { method, models, merged, copied, identical, total, compared_with, .. } =
        report;
    let models = counted(models.len() as u64, "model");
    let tensors = counted(*merged as u64, "tensor");
    let copied = match (*copied, *identical) {
        (0, _) => String::new(),
        (copied, 0) => format!(", {copied} copied"),
        (copied, same) if copied == same => format!(", {copied} copied, the same in all"),
        (copied, same) => format!(", {copied} copied, {same} of them the same in all"),
    };
    writeln!(out, "  {method} of {models}: {tensors} merged{copied}")?;
    if *merged == 0 {
        return Ok(());
    }
    render_change(out, total, &report.worst, compared_with)
}

/// A line about a mixture of experts, and one for each expert.
pub(crate) fn render_moe(out: &mut dyn Write, report: &MoeReport) -> io::Result<()> {
    let MoeReport { architecture, base, experts, shared, per_token, gate_mode, .. } = report;
    let count = counted(experts.len() as u64, "expert");
    let (name, gates) = (Escaped::short(base), gate_mode.name());
    writeln!(
        out,
        "  {} of {count} over {name}, {per_token} for each token, gates by {gates}",
        architecture.name()
    )?;
    for (at, expert) in experts.iter().enumerate() {
        writeln!(out, "    {DIM}expert {at}:{DIM:#} {}", Escaped::short(expert))?;
    }
    if let Some(shared) = shared {
        writeln!(out, "    {DIM}shared:{DIM:#} {}", Escaped::short(shared))?;
    }
    let (of_experts, copied) = (counted(report.of_experts as u64, "tensor"), report.copied);
    writeln!(out, "  {of_experts} of experts, {copied} of {name}")
}

/// A line about each adapter, one about the change, and unless a merge names its own, the tensors
/// that changed most.
pub(crate) fn render_adapters(
    out: &mut dyn Write,
    report: &AdaptReport,
    with_worst: bool,
) -> io::Result<()> {
    let AdaptReport { base, adapters, changed, copied, total, worst, .. } = report;
    adapters.iter().try_for_each(|adapter| render_adapter(out, adapter))?;
    writeln!(out, "  {} changed, {copied} copied", counted(*changed as u64, "tensor"))?;
    let worst: &[TensorChange] = if with_worst { worst } else { &[] };
    render_change(out, total, worst, base)
}

/// Renders one of the adapters that something is made of.
pub(crate) fn render_adapter(out: &mut dyn Write, adapter: &MergedAdapter) -> io::Result<()> {
    let MergedAdapter { name, kind, weight, ranks, modules, replaced, trained_on, .. } = adapter;
    let ranks: Vec<String> = ranks.iter().map(u64::to_string).collect();
    let rank = match ranks.is_empty() {
        true => String::new(),
        false => format!(" of rank {}", ranks.join(", ")),
    };
    let times = if *weight == 1.0 { String::new() } else { format!(", times {weight}") };
    let modules = counted(*modules as u64, "module");
    let whole = match *replaced {
        0 => String::new(),
        count => format!(", {} trained as a whole", counted(count as u64, "tensor")),
    };
    let on = trained_on.as_deref().map(|on| format!(", trained on {}", Escaped::short(on)));
    let on = on.unwrap_or_default();
    let (kind, name) = (Escaped::short(kind), Escaped::short(name));
    writeln!(out, "  {kind}{rank} from {name}{times}: {modules}{whole}{on}")
}

fn render_change(
    out: &mut dyn Write,
    total: &Change,
    worst: &[TensorChange],
    compared_with: &str,
) -> io::Result<()> {
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
