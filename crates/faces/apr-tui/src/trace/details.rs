//! Everything that a trace says of one step.

use apr_core::grouped;
use apr_core::human::bytes;
use apr_trace::{AttentionPattern, StepTrace, Trace, ValueTrace};
use ratatui::text::{Line, Span};

use super::stops::Stop;
use crate::palette::Palette;
use crate::text::{cell, clean, dims, millis, shown};

/// Lines to be scrolled through.
pub(super) fn lines(
    trace: &Trace,
    stop: &Stop,
    columns: usize,
    palette: Palette,
) -> Vec<Line<'static>> {
    let mut page = Page { lines: Vec::new(), columns, palette };
    if let Some(value) = stop.value(trace) {
        page.value(value);
    }
    if let Some(step) = stop.step(trace) {
        page.step(step);
        let operators = stop.pass(trace).into_iter().flat_map(|pass| &pass.operators);
        page.heading("Operators");
        let prefix = format!("{}/", step.path);
        for operator in operators.filter(|it| it.path == step.path || it.path.starts_with(&prefix))
        {
            let name = operator.path.strip_prefix(&prefix).unwrap_or(&operator.path);
            let rest = format!(
                "{} {} {:>9}",
                cell(&clean(&operator.op), 16),
                cell(&dims(&operator.shape), 20),
                millis(operator.seconds)
            );
            page.row(name, &rest);
        }
    }
    if let Some(output) = stop.output(trace) {
        page.heading("Predictions");
        for prediction in &output.top {
            let text = prediction.text.as_deref().unwrap_or("-");
            page.row(
                text,
                &format!(
                    "id {} probability {}",
                    prediction.id,
                    shown(Some(prediction.probability))
                ),
            );
        }
    }
    page.lines
}

struct Page {
    lines: Vec<Line<'static>>,
    columns: usize,
    palette: Palette,
}

impl Page {
    fn heading(&mut self, text: &str) {
        if !self.lines.is_empty() {
            self.lines.push(Line::default());
        }
        self.lines.push(Line::styled(format!(" {text}"), self.palette.heading()));
    }

    fn fact(&mut self, name: &str, text: &str) {
        self.lines.push(Line::from(vec![
            Span::styled(format!("  {name:<14}"), self.palette.faint()),
            Span::raw(text.to_owned()),
        ]));
    }

    /// A name that gets what the rest leaves.
    fn row(&mut self, name: &str, rest: &str) {
        let room = self.columns.saturating_sub(crate::text::width(rest) + 5).max(8);
        self.lines.push(Line::from(format!("  {} {rest}", cell(&clean(name), room))));
    }

    fn value(&mut self, value: &ValueTrace) {
        self.heading("Value");
        self.fact("shape", &dims(&value.shape));
        self.fact("type", &clean(&value.element));
        let Some(found) = &value.statistics else { return };
        let stats = &found.stats;
        self.fact("elements", &grouped(stats.count));
        let [mean, std, min, max] = [stats.mean, stats.std, stats.min, stats.max].map(shown);
        self.fact("mean, std", &format!("{mean}, {std}"));
        self.fact("min, max", &format!("{min}, {max}"));
        self.fact("l2", &shown(Some(stats.l2)));
        self.fact("zeros", &grouped(stats.zeros));
        self.fact("NaN, infinite", &format!("{}, {}", grouped(stats.nan), grouped(stats.inf)));
        self.fact("largest at", &dims(&found.largest_at));
    }

    fn step(&mut self, step: &StepTrace) {
        self.heading("Run");
        self.fact("time", &millis(step.seconds));
        self.fact(
            "memory",
            &format!("{} at most, {} made", bytes(step.peak_bytes), bytes(step.made_bytes)),
        );
        if let Some(path) = &step.result {
            self.fact("result", &clean(path));
        }
        if let Some(path) = &step.not_finite_at {
            self.fact("not finite", &clean(path));
        }
        if let Some(dead) = &step.activations {
            self.fact("dead neurons", &format!("{} of {}", dead.dead, dead.of));
        }
        self.heading("Inputs");
        for input in &step.inputs {
            self.row(&input.path, &dims(&input.shape));
        }
        self.weights(step);
        if let Some(pattern) = &step.attention {
            self.attention(pattern);
        }
    }

    fn weights(&mut self, step: &StepTrace) {
        let Some(weights) = &step.weights else { return };
        self.heading(&format!("Weights: {} parameters", grouped(weights.parameters)));
        for weight in &weights.weights {
            self.row(&weight.tensor, &format!("{} {}", weight.dtype, weight.shape));
            if let Some(stats) = &weight.statistics {
                let [mean, std, min, max] =
                    [stats.mean, stats.std, stats.min, stats.max].map(shown);
                let text = format!("    mean={mean} std={std} min={min} max={max}");
                self.lines.push(Line::styled(text, self.palette.faint()));
            }
        }
    }

    fn attention(&mut self, pattern: &AttentionPattern) {
        let (heads, queries, keys) = (pattern.heads, pattern.queries, pattern.keys);
        self.heading(&format!("Attention: {heads} heads, {queries} by {keys}"));
        let most = pattern.cells.iter().flatten().copied().fold(f64::MIN_POSITIVE, f64::max);
        for row in &pattern.cells {
            let cells: String = row.iter().map(|cell| shade(cell / most)).collect();
            self.lines.push(Line::styled(format!("  {cells}"), self.palette.bar()));
        }
        for (head, (entropy, peak)) in pattern.entropy.iter().zip(&pattern.peak).enumerate() {
            let text = format!("entropy {}  peak {}", shown(Some(*entropy)), shown(Some(*peak)));
            self.fact(&format!("head {head}"), &text);
        }
    }
}

fn shade(share: f64) -> char {
    match share {
        share if share >= 0.75 => '█',
        share if share >= 0.5 => '▓',
        share if share >= 0.25 => '▒',
        _ => '░',
    }
}
