//! The current layer: its inputs and outputs, their distributions, and its weights.

use apr_core::grouped;
use apr_trace::{Predictions, StepTrace, ValueTrace};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph};

use super::Walk;
use super::stops::Stop;
use crate::chart::Chart;
use crate::palette::Palette;
use crate::text::{clean, cut, dims, fit, millis, shown};

/// Rows of bars at most.
const BARS: u16 = 8;
/// Rows beside the bars: shapes, parameters, a heading, the axis, weights.
const BESIDE: u16 = 5;

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, walk: &Walk, stop: &Stop) {
    let kind = if stop.step(&walk.view.trace).is_some() { "Current Layer" } else { "Current" };
    let room = usize::from(area.width).saturating_sub(kind.len() + 8);
    let title = format!(" {kind}: {} ", fit(&stop.name, room));
    let block = Block::bordered().title(Line::styled(title, walk.palette.heading()));
    let inner = block.inner(area);
    frame.render_widget(block, area);
    if let Some(output) = stop.output(&walk.view.trace) {
        let lines = cut(predictions(output, walk.palette), inner.height, walk.palette.faint());
        frame.render_widget(Paragraph::new(lines), inner);
        return;
    }

    let head = head(walk, stop, usize::from(inner.width));
    let bars = inner.height.saturating_sub(BESIDE).clamp(1, BARS);
    let chart_at = u16::try_from(head.len()).unwrap_or_default();
    frame.render_widget(Paragraph::new(head), inner);
    let chart = Rect { y: inner.y + chart_at, height: bars + 1, ..inner };
    let chart = chart.intersection(inner);
    if let Some(value) = stop.value(&walk.view.trace) {
        distribution(frame, chart, value, walk.palette);
    }
    let y = chart.bottom().min(inner.bottom());
    let foot = Rect { y, height: inner.bottom() - y, ..inner };
    if let Some(step) = stop.step(&walk.view.trace) {
        let lines = cut(foot_lines(step, walk.palette), foot.height, walk.palette.faint());
        frame.render_widget(Paragraph::new(lines), foot);
    }
}

fn head(walk: &Walk, stop: &Stop, columns: usize) -> Vec<Line<'static>> {
    let trace = &walk.view.trace;
    let output = stop.value(trace).map_or_else(
        || "-".to_owned(),
        |value| {
            let element = if value.element == "f32" { "" } else { value.element.as_str() };
            format!("{} {}", dims(&value.shape), clean(element))
        },
    );
    let mut lines = Vec::new();
    if let Some(step) = stop.step(trace) {
        let input = match &step.inputs[..] {
            [] => "-".to_owned(),
            [only] => dims(&only.shape),
            [first, more @ ..] => format!("{} and {} more", dims(&first.shape), more.len()),
        };
        lines.push(Line::from(fit(&format!(" Input: {input}   Output: {output}"), columns)));
        let parameters = step.weights.as_ref().map(|weights| grouped(weights.parameters));
        let mut spans = vec![Span::raw(format!(
            " Params: {}   Time: {}   ",
            parameters.unwrap_or_else(|| "-".to_owned()),
            millis(step.seconds)
        ))];
        spans.push(match &step.not_finite_at {
            Some(path) => {
                let text = format!("NaN or infinity from {}", clean(path));
                Span::styled(text, walk.palette.bad())
            }
            None => Span::raw(format!("Operators: {}", step.operators)),
        });
        lines.push(Line::from(spans));
    } else if let Some(input) = stop.input(trace) {
        lines.push(Line::from(fit(&format!(" Shape: {output}"), columns)));
        let about = match &input.sound {
            Some(sound) => {
                let kilohertz = f64::from(sound.model_rate) / 1000.0;
                format!(" {:.3}s @ {kilohertz}kHz", sound.seconds)
            }
            None => " an input of the model".to_owned(),
        };
        lines.push(Line::styled(about, walk.palette.faint()));
    }
    lines.push(match stop.value(trace).and_then(|value| value.statistics.as_ref()) {
        Some(_) => Line::from(" Activation Distribution:"),
        None => Line::styled(" no floats, so no distribution", walk.palette.faint()),
    });
    lines
}

fn distribution(frame: &mut Frame<'_>, area: Rect, value: &ValueTrace, palette: Palette) {
    let inner = Rect { x: area.x + 3, width: area.width.saturating_sub(5), ..area };
    let found = value.statistics.as_ref();
    let range = found.and_then(|found| Some((found.stats.min?, found.stats.max?)));
    match (found, range) {
        (Some(found), Some(range)) => {
            let chart = Chart { counts: &found.distribution, range, style: palette.bar() };
            chart.draw(frame.buffer_mut(), inner);
        }
        (Some(_), None) => {
            frame.render_widget(Line::styled("no finite values", palette.bad()), inner);
        }
        (None, _) => {}
    }
}

fn foot_lines(step: &StepTrace, palette: Palette) -> Vec<Line<'static>> {
    let weights = step.weights.as_ref();
    let mut lines = vec![match weights.and_then(|weights| weights.weight_statistics.as_ref()) {
        Some(stats) => {
            let [mean, std] = [stats.mean, stats.std].map(shown);
            let mut spans = vec![Span::raw(format!(" Weight Stats: mean={mean}, std={std}"))];
            if stats.nan + stats.inf > 0 {
                let text = format!("  {} NaN, {} infinite", stats.nan, stats.inf);
                spans.push(Span::styled(text, palette.bad()));
            }
            Line::from(spans)
        }
        None => Line::styled(" Weight Stats: it does not read weights", palette.faint()),
    }];
    for weight in weights.iter().flat_map(|weights| &weights.weights) {
        let text = format!("   {} {} {}", clean(&weight.tensor), weight.dtype, weight.shape);
        lines.push(Line::styled(text, palette.faint()));
    }
    if !step.inputs.is_empty() {
        lines.push(Line::from(" Reads:"));
    }
    for input in &step.inputs {
        let text = format!("   {} {}", clean(&input.path), dims(&input.shape));
        lines.push(Line::styled(text, palette.faint()));
    }
    lines
}

fn predictions(output: &Predictions, palette: Palette) -> Vec<Line<'static>> {
    /// Columns of the bar of a certain prediction.
    const CERTAIN: f64 = 20.0;

    let at = output.position.map_or_else(String::new, |at| format!(" at position {at}"));
    let mut lines = vec![
        Line::from(format!(" Output: {}{at}", dims(&output.shape))),
        Line::from(" Top predictions:"),
    ];
    for (place, prediction) in output.top.iter().enumerate() {
        let text = match &prediction.text {
            Some(text) => format!("\"{}\"", clean(text)),
            None => format!("class {}", prediction.id),
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a probability of a few columns"
        )]
        let bar = "█".repeat((prediction.probability * CERTAIN).round() as usize);
        lines.push(Line::from(vec![
            Span::raw(format!("  {}. {:<16} ({:.3}) ", place + 1, text, prediction.probability)),
            Span::styled(bar, palette.bar()),
        ]));
    }
    lines
}
