//! What every screen has: a frame, a line of keys, help.

use std::ops::Range;

use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, MouseEvent};
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Wrap};
use ratatui::{Frame, Terminal};

use crate::palette::Palette;
use crate::text::{fit, width};
use crate::wording::Wording;
use crate::zones::key_named;

/// The smallest terminal that a screen is drawn on.
const SMALLEST: (u16, u16) = (50, 12);

/// Decision to keep or close a screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    Stay,
    Quit,
}

/// Change of a screen while no key was pressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tick {
    /// The screen is unchanged.
    Idle,
    /// A computation for the screen is running, and its progress may have changed.
    Busy,
    /// Something arrived.
    News,
}

/// Something that is drawn and gets keys.
pub(crate) trait Screen {
    fn draw(&mut self, frame: &mut Frame<'_>);

    fn key(&mut self, key: KeyEvent) -> Flow;

    fn mouse(&mut self, mouse: MouseEvent) -> Flow;

    /// Returns `true` if the screen captures the mouse; the terminal cannot select text meanwhile.
    fn takes_mouse(&self) -> bool;

    /// Receives results that have arrived.
    fn tick(&mut self) -> Tick {
        Tick::Idle
    }
}

/// Appearance and wording of screens.
#[derive(Clone, Copy)]
pub struct ScreenOptions<'o> {
    /// Colours of the screens.
    pub palette: Palette,
    /// `true` to capture clicks and the mouse wheel; a key of the screen releases the mouse.
    pub takes_mouse: bool,
    /// Names of settings in messages.
    pub wording: &'o dyn Wording,
}

/// Returns a screen drawn with this number of columns and rows.
pub(crate) fn drawn(screen: &mut dyn Screen, (columns, rows): (u16, u16)) -> Buffer {
    let Ok(mut terminal) = Terminal::new(TestBackend::new(columns, rows));
    let Ok(_) = terminal.draw(|frame| screen.draw(frame));
    terminal.backend().buffer().clone()
}

/// Key and its effect: the key as users write it, and a verb.
pub(crate) type Key = (&'static str, &'static str);

/// The frame around a screen.
pub(crate) struct Frames<'f> {
    /// Name of the model, escaped.
    pub(crate) title: &'f str,
    /// The beginning of the title that may be left out.
    pub(crate) about: &'f str,
    /// The kind of screen.
    pub(crate) kind: &'f str,
    /// The line at the bottom.
    pub(crate) keys: KeyLine,
    /// Keys that do not fit there and are shown in the rule above.
    pub(crate) above: KeyLine,
    /// Position: `4/47`.
    pub(crate) place: String,
}

impl Frames<'_> {
    /// Draws the frame; returns the areas within, of the keys, and of the rule above.
    ///
    /// Returns `None` if the terminal is too small.
    pub(crate) fn draw(&self, frame: &mut Frame<'_>, palette: Palette) -> Option<[Rect; 3]> {
        let area = frame.area();
        if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
            let (columns, rows) = SMALLEST;
            let text = format!(
                "The terminal has {}x{} cells; at least {columns}x{rows} are needed. q quits.",
                area.width, area.height
            );
            frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
            return None;
        }

        let kind = format!(" [{}] ", self.kind);
        let room = usize::from(area.width).saturating_sub(width(&kind) + 6);
        // What is looked at matters more than what this is called.
        let short = self.title.strip_prefix(self.about).unwrap_or(self.title);
        let title = if width(self.title) <= room { self.title } else { short };
        let title = format!(" {} ", fit(title, room));
        let block = Block::bordered()
            .title_top(Line::styled(title, palette.heading()))
            .title_top(Line::from(kind).alignment(Alignment::Right));
        let inner = block.inner(area);
        frame.render_widget(block, area);
        let has_keys = !self.above.keys.is_empty();
        let has_rule = area.height >= TALL || area.height >= ROOMY && has_keys;
        let [body, rule, keys] = Layout::vertical([
            Constraint::Min(0),
            Constraint::Length(u16::from(has_rule)),
            Constraint::Length(1),
        ])
        .areas(inner);
        joint(frame.buffer_mut(), area, rule);
        let place = width(&self.place);
        let [keys, at] = Layout::horizontal([
            Constraint::Min(0),
            Constraint::Length(u16::try_from(place + 1).unwrap_or(u16::MAX)),
        ])
        .areas(keys);
        frame.render_widget(&self.above.line, rule);
        frame.render_widget(&self.keys.line, keys);
        frame.render_widget(Line::from(self.place.as_str()), at);
        Some([body, keys, rule])
    }
}

/// Rows from which on there is room for a rule with keys.
const ROOMY: u16 = 20;
/// Rows from which on there is room for an empty rule.
const TALL: u16 = 24;

/// Returns the columns of the rule of a screen, or 0 if it has no rule.
pub(crate) fn rule_columns((columns, rows): (u16, u16)) -> usize {
    if rows < ROOMY { 0 } else { usize::from(columns).saturating_sub(2) }
}

/// A rule that touches the frame.
fn joint(buffer: &mut Buffer, area: Rect, rule: Rect) {
    if rule.height == 0 || area.width < 2 {
        return;
    }
    let inner = usize::from(area.width - 2);
    let line = format!("├{}┤", "─".repeat(inner));
    buffer.set_string(area.x, rule.y, line, ratatui::style::Style::new());
}

/// The line at the bottom: keys, a message, or what is typed.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeyLine {
    pub(crate) line: Line<'static>,
    /// Columns of the keys that a click can press.
    pub(crate) keys: Vec<(Range<u16>, KeyCode)>,
}

impl From<Line<'static>> for KeyLine {
    fn from(line: Line<'static>) -> Self {
        Self { line, keys: Vec::new() }
    }
}

/// Keys on one line: as many as fit, and the last one in any case, which leads out.
pub(crate) fn key_line(keys: &[Key], columns: usize, palette: Palette) -> KeyLine {
    let Some((last, others)) = keys.split_last() else { return KeyLine::default() };
    let mut left = columns.saturating_sub(1 + columns_of(last));
    let fitting = others.iter().take_while(|key| {
        let needed = columns_of(key);
        let fits = needed <= left;
        left = left.saturating_sub(needed);
        fits
    });
    let mut spans = vec![Span::raw(" ")];
    let mut pressed = Vec::new();
    let mut column = 1;
    for (key, verb) in fitting.chain([last]) {
        // `[d]iff`: the key is the verb's first letter.
        let rest = verb.strip_prefix(key).map(str::to_owned);
        spans.push(Span::raw("["));
        spans.push(Span::styled((*key).to_owned(), palette.key()));
        spans.push(Span::raw(match rest {
            Some(rest) => format!("]{rest} "),
            None => format!("] {verb} "),
        }));
        let end = column + columns_of(&(key, verb));
        let place = |column: usize| u16::try_from(column).unwrap_or(u16::MAX);
        pressed.extend(key_named(key).map(|key| (place(column)..place(end - 1), key)));
        column = end;
    }
    KeyLine { line: Line::from(spans), keys: pressed }
}

/// Keys of a screen with views, all of which are listed.
///
/// They are on one line with the other keys if they fit, else in the rule above if they fit there,
/// else abbreviated to their letters.
pub(crate) struct ViewKeys<'k> {
    /// The keys that one should know first, the most important one first.
    pub(crate) own: &'k [Key],
    pub(crate) views: &'k [Key],
    pub(crate) last: Key,
    /// The letters of all views, as one key that names them.
    pub(crate) letters: Key,
}

impl ViewKeys<'_> {
    /// The line at the bottom with `columns` columns, and the one in the rule above it with `rule`
    /// columns, or 0 without a rule.
    pub(crate) fn lines(
        &self,
        columns: usize,
        rule: usize,
        palette: Palette,
    ) -> (KeyLine, KeyLine) {
        let all = [self.own, self.views, &[self.last]].concat();
        if all.iter().map(columns_of).sum::<usize>() < columns {
            return (key_line(&all, columns, palette), KeyLine::default());
        }
        if self.views.iter().map(columns_of).sum::<usize>() < rule {
            let keys = [self.own, &[self.last]].concat();
            let above = key_line(self.views, usize::MAX, palette);
            return (key_line(&keys, columns, palette), above);
        }
        // The line drops keys from its end.
        let keys = [&[self.letters], self.own, &[self.last]].concat();
        (key_line(&keys, columns, palette), KeyLine::default())
    }
}

/// Columns that a key takes in the line.
fn columns_of((key, verb): &Key) -> usize {
    let beside = if verb.starts_with(key) { 3 } else { width(key) + 4 };
    width(verb) + beside
}

/// Draws the effects of the keys over the screen.
pub(crate) fn help(frame: &mut Frame<'_>, title: &str, lines: &[Key], palette: Palette) {
    let widest = |texts: fn(&Key) -> &'static str| {
        lines.iter().map(|line| width(texts(line))).max().unwrap_or_default()
    };
    let keys = widest(|line| line.0);
    let columns = keys + widest(|line| line.1) + 6;
    let area = frame.area();
    let centred = centre(area, columns, lines.len() + 2);
    frame.render_widget(Clear, centred);
    let block = Block::bordered().title(Line::styled(format!(" {title} "), palette.heading()));
    let text: Vec<Line<'_>> = lines
        .iter()
        .map(|(key, verb)| {
            Line::from(vec![
                Span::styled(format!(" {key:<keys$}"), palette.key()),
                Span::raw(format!("  {verb}")),
            ])
        })
        .collect();
    frame.render_widget(Paragraph::new(text).block(block), centred);
}

/// The middle of an area.
fn centre(area: Rect, columns: usize, rows: usize) -> Rect {
    let size = |wanted: usize, most: u16| u16::try_from(wanted).unwrap_or(u16::MAX).min(most);
    let (columns, rows) = (size(columns, area.width), size(rows, area.height));
    Rect::new(area.x + (area.width - columns) / 2, area.y + (area.height - rows) / 2, columns, rows)
}
