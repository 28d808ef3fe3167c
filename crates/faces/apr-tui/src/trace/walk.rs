//! A trace, walked through step by step: what the screen of a trace and the view of a model share.

use apr_core::Escaped;
use apr_trace::{Trace, TraceDiff};
use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph};

use super::flow::Flow;
use super::stops::{Stop, stops};
use super::{TraceView, details, layer, pipeline};
use crate::palette::Palette;
use crate::text::{cell, clean, fit, millis, shown};
use crate::zones::{Target, Zones};

/// Rows from which on the pipeline has lines that bypass boxes.
const ROOMY: u16 = 21;
/// Columns from which on all steps are listed beside the one that is shown.
const WIDE: u16 = 110;
/// Columns of that list.
const LIST: u16 = 44;
/// Number of steps that a page key moves.
const PAGE: usize = 10;

/// Mode of the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Steps,
    Inspect { scroll: u16 },
}

/// Position in a trace.
pub(crate) struct Walk {
    pub(super) view: TraceView,
    pub(super) stops: Vec<Stop>,
    pub(super) flow: Flow,
    pub(super) at: usize,
    pub(super) mode: Mode,
    shows_diff: bool,
    sought: String,
    pub(super) palette: Palette,
}

impl Walk {
    pub(crate) fn new(view: TraceView, palette: Palette) -> Self {
        let stops = stops(&view.trace);
        let flow = Flow::new(&view.trace, &stops);
        let shows_diff = view.diff.is_some();
        let (at, mode, sought) = (0, Mode::Steps, String::new());
        Self { view, stops, flow, at, mode, shows_diff, sought, palette }
    }

    pub(crate) fn trace(&self) -> &Trace {
        &self.view.trace
    }

    /// Returns the number of the step, and the number of steps.
    pub(crate) fn place(&self) -> String {
        format!("{}/{}", self.at + 1, self.stops.len())
    }

    /// Names of the tensors that the step reads.
    pub(crate) fn weights(&self) -> Vec<String> {
        let step = self.stop().and_then(|stop| stop.step(&self.view.trace));
        let weights = step.and_then(|step| step.weights.as_ref());
        let weights = weights.into_iter().flat_map(|weights| &weights.weights);
        weights.map(|weight| weight.tensor.clone()).collect()
    }

    /// Returns `true` if one step is shown in full.
    pub(crate) fn inspects(&self) -> bool {
        matches!(self.mode, Mode::Inspect { .. })
    }

    fn stop(&self) -> Option<&Stop> {
        self.stops.get(self.at)
    }

    /// Moves to a step; an open inspection stays open and scrolls to the top.
    pub(crate) fn go(&mut self, at: usize) {
        self.at = at.min(self.stops.len().saturating_sub(1));
        if let Mode::Inspect { scroll } = &mut self.mode {
            *scroll = 0;
        }
    }

    /// Moves to the next matching step, wrapping around.
    fn seek(&mut self, is_forward: bool, is_wanted: impl Fn(&Self, &Stop) -> bool) -> bool {
        let count = self.stops.len();
        let order = (1..=count).map(|step| match is_forward {
            true => (self.at + step) % count,
            false => (self.at + count - step) % count,
        });
        let found = { order }.find(|at| is_wanted(self, &self.stops[*at]));
        if let Some(at) = found {
            self.go(at);
        }
        found.is_some()
    }

    /// Moves to the next step with a text in its name; returns a message if there is none.
    pub(crate) fn find(&mut self, text: &str) -> Option<String> {
        text.clone_into(&mut self.sought);
        self.find_again(true)
    }

    fn find_again(&mut self, is_forward: bool) -> Option<String> {
        if self.sought.is_empty() {
            return None;
        }
        let sought = self.sought.to_lowercase();
        let found = self.seek(is_forward, |_, stop| stop.name.to_lowercase().contains(&sought));
        (!found).then(|| format!("no step has '{}' in its name", Escaped(&self.sought)))
    }

    fn find_odd(&mut self, is_forward: bool) -> Option<String> {
        let found = self.seek(is_forward, |walk, stop| !stop.is_sound(&walk.view.trace));
        (!found).then(|| "every step is finite".to_owned())
    }

    fn toggle_diff(&mut self) -> Option<String> {
        if self.view.diff.is_none() {
            let advice = "only one model ran; `apr trace A B --diff --interactive` compares two";
            return Some(advice.to_owned());
        }
        self.shows_diff = !self.shows_diff;
        None
    }

    /// Handles a key, and returns a message, if any.
    pub(crate) fn key(&mut self, key: KeyCode) -> Option<String> {
        let last = self.stops.len().saturating_sub(1);
        match key {
            KeyCode::Right | KeyCode::Char('l') => self.go(self.at + 1),
            KeyCode::Left | KeyCode::Char('h') => self.go(self.at.saturating_sub(1)),
            KeyCode::PageDown => self.go(self.at + PAGE),
            KeyCode::PageUp => self.go(self.at.saturating_sub(PAGE)),
            KeyCode::Home | KeyCode::Char('g') => self.go(0),
            KeyCode::End | KeyCode::Char('G') => self.go(last),
            KeyCode::Char(']' | 'a') => return self.find_odd(true),
            KeyCode::Char('[') => return self.find_odd(false),
            KeyCode::Char('d') => return self.toggle_diff(),
            KeyCode::Char('n') => return self.find_again(true),
            KeyCode::Char('N') => return self.find_again(false),
            _ => self.key_of_mode(key),
        }
        None
    }

    fn key_of_mode(&mut self, key: KeyCode) {
        match (&mut self.mode, key) {
            (Mode::Steps, KeyCode::Enter) => self.mode = Mode::Inspect { scroll: 0 },
            (Mode::Inspect { .. }, KeyCode::Esc | KeyCode::Enter) => self.mode = Mode::Steps,
            (Mode::Inspect { scroll }, KeyCode::Down | KeyCode::Char('j')) => {
                *scroll = scroll.saturating_add(1);
            }
            (Mode::Inspect { scroll }, KeyCode::Up | KeyCode::Char('k')) => {
                *scroll = scroll.saturating_sub(1);
            }
            (Mode::Steps, KeyCode::Down | KeyCode::Char('j')) => self.go(self.at + 1),
            (Mode::Steps, KeyCode::Up | KeyCode::Char('k')) => self.go(self.at.saturating_sub(1)),
            _ => {}
        }
    }

    /// Draws the steps, or the inspected one; clicks select steps.
    pub(crate) fn draw(&mut self, frame: &mut Frame<'_>, area: Rect, zones: &mut Zones) {
        match self.mode {
            Mode::Steps => self.draw_steps(frame, area, zones),
            Mode::Inspect { scroll } => self.draw_inspection(frame, area, scroll),
        }
    }

    fn draw_steps(&self, frame: &mut Frame<'_>, area: Rect, zones: &mut Zones) {
        let Some(stop) = self.stop() else { return };
        let is_roomy = area.height >= ROOMY;
        let [pipeline, rest] = Layout::vertical([
            Constraint::Length(if is_roomy { 7 } else { 5 }),
            Constraint::Min(0),
        ])
        .areas(area);
        pipeline::draw(frame, pipeline, self, zones);
        let (list, rest) = if area.width >= WIDE {
            let parts = [Constraint::Length(LIST), Constraint::Min(0)];
            let [list, rest] = Layout::horizontal(parts).areas(rest);
            (Some(list), rest)
        } else {
            (None, rest)
        };
        if let Some(list) = list {
            self.draw_list(frame, list, zones);
        }
        let [layer, payload] =
            Layout::vertical([Constraint::Min(0), Constraint::Length(4)]).areas(rest);
        layer::draw(frame, layer, self, stop);
        match &self.view.diff {
            Some(diff) if self.shows_diff => self.draw_drift(frame, payload, stop, diff),
            _ => self.draw_payload(frame, payload, stop),
        }
    }

    /// All steps, around the current one.
    fn draw_list(&self, frame: &mut Frame<'_>, area: Rect, zones: &mut Zones) {
        let block = Block::bordered().title(" Steps ");
        let inner = block.inner(area);
        frame.render_widget(block, area);
        let rows = usize::from(inner.height);
        let first = self.at.saturating_sub(rows / 2).min(self.stops.len().saturating_sub(rows));
        let columns = usize::from(inner.width).saturating_sub(15);
        for (row, at) in (first..self.stops.len()).take(rows).enumerate() {
            let stop = &self.stops[at];
            let time = match stop.step(&self.view.trace) {
                Some(step) => millis(step.seconds),
                None => String::new(),
            };
            let text = format!("{:>4} {} {time:>9}", stop.number, cell(&stop.name, columns));
            let is_here = at == self.at;
            let style = if is_here { self.palette.selected() } else { Style::new() };
            let y = inner.y + u16::try_from(row).unwrap_or_default();
            frame.buffer_mut().set_stringn(inner.x, y, text, usize::from(inner.width), style);
            zones.add(Rect { y, height: 1, ..inner }, Target::Item(at));
        }
    }

    /// The first elements of the value, and its statistics.
    fn draw_payload(&self, frame: &mut Frame<'_>, area: Rect, stop: &Stop) {
        let block = Block::bordered().title(" Payload Snapshot ");
        let columns = usize::from(block.inner(area).width).saturating_sub(2);
        let mut lines = Vec::new();
        if let Some(value) = stop.value(&self.view.trace) {
            lines.push(Line::from(snapshot(value, columns)));
            if let Some(found) = &value.statistics {
                let [mean, std, min, max] =
                    [found.stats.mean, found.stats.std, found.stats.min, found.stats.max]
                        .map(shown);
                let mut spans =
                    vec![Span::raw(format!(" mean={mean} std={std} min={min} max={max}"))];
                if found.stats.nan + found.stats.inf > 0 {
                    let text = format!("  {} NaN, {} infinite", found.stats.nan, found.stats.inf);
                    spans.push(Span::styled(text, self.palette.bad()));
                }
                lines.push(Line::from(spans));
            }
        } else {
            lines.push(Line::styled(" no values: the predictions are above", self.palette.faint()));
        }
        frame.render_widget(Paragraph::new(lines).block(block), area);
    }

    /// Draws the other model's result for the same step.
    fn draw_drift(&self, frame: &mut Frame<'_>, area: Rect, stop: &Stop, diff: &TraceDiff) {
        let other = clean(&diff.other_path);
        let columns = usize::from(area.width).saturating_sub(12);
        let title = format!(" Drift to {} ", fit(&other, columns));
        let block = Block::bordered().title(title);
        let trace = &self.view.trace;
        let part = stop.pass(trace).map(|pass| pass.part.as_str());
        let own = stop.step(trace);
        let pass = diff.passes.iter().find(|pass| Some(pass.part.as_str()) == part);
        let step = pass.and_then(|pass| {
            pass.steps.iter().find(|step| own.is_some_and(|own| own.path == step.path))
        });
        let mut lines = Vec::new();
        match step.and_then(|step| Some((step, step.drift.as_ref()?))) {
            None => lines.push(Line::styled(" not compared", self.palette.faint())),
            Some((step, drift)) => {
                let [l2, cosine, most] =
                    [drift.relative_l2, drift.cosine, drift.max_abs].map(|it| shown(Some(it)));
                lines.push(Line::from(format!(" relative L2={l2} cosine={cosine} max={most}")));
                let added = shown(step.added);
                let [mean, theirs] = [drift.mean, drift.other_mean].map(|it| shown(Some(it)));
                let mut spans = vec![Span::raw(format!(" mean={mean} → {theirs} added={added}"))];
                let mut divergences = pass.into_iter().flat_map(|pass| &pass.divergences);
                let diverges = divergences.any(|found| found.step == step.number);
                if diverges {
                    spans.push(Span::styled("  out of line", self.palette.bad()));
                }
                lines.push(Line::from(spans));
            }
        }
        frame.render_widget(Paragraph::new(lines).block(block), area);
    }

    fn draw_inspection(&mut self, frame: &mut Frame<'_>, area: Rect, scroll: u16) {
        let Some(stop) = self.stop() else { return };
        let title = format!(" Step {}: {} ", stop.number, stop.name);
        let block = Block::bordered().title(Line::styled(title, self.palette.heading()));
        let inner = block.inner(area);
        let lines = details::lines(&self.view.trace, stop, usize::from(inner.width), self.palette);
        let most = u16::try_from(lines.len()).unwrap_or(u16::MAX).saturating_sub(inner.height);
        let scroll = scroll.min(most);
        frame.render_widget(Paragraph::new(lines).block(block).scroll((scroll, 0)), area);
        self.mode = Mode::Inspect { scroll };
    }
}

/// The first elements of a value: as many as fit.
fn snapshot(value: &apr_trace::ValueTrace, columns: usize) -> String {
    let mut text = String::from(" [");
    let total: usize = value.shape.iter().product();
    for (at, element) in value.first.iter().enumerate() {
        let is_last = at + 1 == total;
        let number = match value.statistics {
            Some(_) => shown(Some(*element)),
            None => element.to_string(),
        };
        let more = if is_last { "" } else { ", " };
        if text.len() + number.len() + 6 > columns {
            text.push_str("...");
            break;
        }
        text.push_str(&format!("{number}{more}"));
        if at + 1 == value.first.len() && !is_last {
            text.push_str("...");
        }
    }
    text.push(']');
    text
}
