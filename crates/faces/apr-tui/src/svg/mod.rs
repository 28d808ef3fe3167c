//! A screen as an SVG image: text as text, frames as lines, bars as areas, in colours that follow
//! the reader's light or dark.

mod glyphs;
mod lines;

use std::fmt::Write;

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};
use unicode_width::UnicodeWidthStr;

use self::glyphs::{Area, area_of, ends_of};
use self::lines::Lines;

/// Width of a cell in pixels, for a monospaced font of 14 pixels.
const WIDTH: f64 = 8.4;
/// Height of a cell.
const HEIGHT: f64 = 18.0;
/// Distance from the top of a cell to the baseline of the text, in pixels.
const BASE: f64 = 13.5;
/// Pixels around the screen.
const MARGIN: f64 = 12.0;

/// Names of colours, in the light and in the dark.
const COLORS: [(&str, &str, &str); 8] = [
    ("text", "#1f2430", "#d8dee9"),
    ("faint", "#6b7280", "#8b95a7"),
    ("cyan", "#0e7490", "#67d8ef"),
    ("green", "#15803d", "#7bd88f"),
    ("yellow", "#a16207", "#f0c674"),
    ("red", "#b91c1c", "#ff7b72"),
    ("magenta", "#a21caf", "#d2a8ff"),
    ("blue", "#2563eb", "#79b8ff"),
];
/// Background colours.
const GROUND: (&str, &str) = ("#ffffff", "#10151f");

/// Style of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Look {
    color: &'static str,
    is_bold: bool,
    is_reversed: bool,
}

impl Look {
    fn of(cell: &Cell) -> Self {
        let has = |modifier| cell.modifier.contains(modifier);
        let color = match cell.fg {
            Color::Cyan => "cyan",
            Color::Green => "green",
            Color::Yellow => "yellow",
            Color::Red => "red",
            Color::Magenta => "magenta",
            Color::Blue => "blue",
            _ if has(Modifier::DIM) => "faint",
            _ => "text",
        };
        Self { color, is_bold: has(Modifier::BOLD), is_reversed: has(Modifier::REVERSED) }
    }

    /// Returns the CSS class of the foreground.
    fn class(self) -> String {
        let color = if self.is_reversed { "ground" } else { self.color };
        let bold = if self.is_bold { " bold" } else { "" };
        format!("{color}{bold}")
    }
}

/// The image of a screen, with a title for those who do not see it.
pub(crate) fn svg(buffer: &Buffer, title: &str) -> String {
    let (columns, rows) = (f64::from(buffer.area.width), f64::from(buffer.area.height));
    let (width, height) = (columns * WIDTH + 2.0 * MARGIN, rows * HEIGHT + 2.0 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.1} {height:.1}\">\n<title>{}</title>\n",
        escaped(title)
    );
    style(&mut svg);
    svg.push_str("<rect class=\"ground\" width=\"100%\" height=\"100%\" rx=\"8\"/>\n");
    // Writing to a `String` does not fail.
    let _ = writeln!(svg, "<g transform=\"translate({MARGIN} {MARGIN})\">");
    let mut lines = Lines::default();
    let wide = usize::from(buffer.area.width).max(1);
    for (row, cells) in buffer.content.chunks(wide).enumerate() {
        grounds(&mut svg, row, cells);
        areas(&mut svg, row, cells);
        for (column, cell) in cells.iter().enumerate() {
            if let Some(ends) = ends_of(cell.symbol()) {
                lines.add((column, row), ends, Look::of(cell));
            }
        }
        texts(&mut svg, row, cells);
    }
    lines.write(&mut svg);
    svg.push_str("</g>\n</svg>\n");
    svg
}

/// The rules of colours: the light ones, then the dark ones for readers who prefer them.
fn style(svg: &mut String) {
    svg.push_str(
        "<style>\ntext{font:14px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;\
         white-space:pre}\n.bold{font-weight:700}path{fill:none}\n",
    );
    let rules = |svg: &mut String, is_dark: bool| {
        let grounds = ("ground", GROUND.0, GROUND.1);
        for (name, light, dark) in COLORS.into_iter().chain([grounds]) {
            let color = if is_dark { dark } else { light };
            let _ = write!(svg, ".{name}{{fill:{color}}}path.{name}{{fill:none;stroke:{color}}}");
        }
        svg.push('\n');
    };
    rules(svg, false);
    svg.push_str("@media (prefers-color-scheme:dark){\n");
    rules(svg, true);
    svg.push_str("}\n</style>\n");
}

/// Returns the runs of consecutive cells with the same value: the start, the length and the value.
fn runs<T: PartialEq>(cells: &[Cell], of: impl Fn(&Cell) -> Option<T>) -> Vec<(usize, usize, T)> {
    let mut runs: Vec<(usize, usize, T)> = Vec::new();
    for (column, cell) in cells.iter().enumerate() {
        let Some(found) = of(cell) else { continue };
        match runs.last_mut() {
            Some((start, len, last)) if *start + *len == column && *last == found => *len += 1,
            _ => runs.push((column, 1, found)),
        }
    }
    runs
}

/// Draws the backgrounds of text with reversed colours.
fn grounds(svg: &mut String, row: usize, cells: &[Cell]) {
    let reversed = |cell: &Cell| Some(Look::of(cell).color).filter(|_| Look::of(cell).is_reversed);
    for (column, len, color) in runs(cells, reversed) {
        rectangle(svg, (column, row), len, Area::FULL, color);
    }
}

/// Bars and shades.
fn areas(svg: &mut String, row: usize, cells: &[Cell]) {
    let found = |cell: &Cell| Some((area_of(cell.symbol())?, Look::of(cell).class()));
    for (column, len, (area, class)) in runs(cells, found) {
        rectangle(svg, (column, row), len, area, &class);
    }
}

fn rectangle(svg: &mut String, place: (usize, usize), len: usize, area: Area, class: &str) {
    let (x, y) = corner(place);
    let (top, height) = (y + HEIGHT * (1.0 - area.height), HEIGHT * area.height);
    let width = WIDTH * (len as f64 - 1.0 + area.width);
    let _ = write!(svg, "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{top:.1}\" ");
    let _ = write!(svg, "width=\"{width:.1}\" height=\"{height:.1}\"");
    let shade =
        if area.opacity < 1.0 { format!(" opacity=\"{}\"", area.opacity) } else { "".into() };
    let _ = writeln!(svg, "{shade}/>");
}

/// Draws words and gaps, each as wide as its cells with any font.
fn texts(svg: &mut String, row: usize, cells: &[Cell]) {
    let is_text =
        |cell: &Cell| area_of(cell.symbol()).is_none() && ends_of(cell.symbol()).is_none();
    for (column, len, look) in runs(cells, |cell| is_text(cell).then(|| Look::of(cell))) {
        let run = &cells[column..column + len];
        let is_blank = |cell: &&Cell| cell.symbol().trim().is_empty();
        let before = run.iter().take_while(is_blank).count();
        let after = run.iter().rev().take_while(is_blank).count();
        if before == len {
            continue;
        }
        // A wide character has the cell behind it, too, which holds a space.
        let mut text = String::new();
        let mut skipped = 0;
        for cell in &run[before..len - after] {
            if skipped == 0 {
                text.push_str(cell.symbol());
                skipped = cell.symbol().width().max(1);
            }
            skipped -= 1;
        }
        let (x, y) = corner((column + before, row));
        let columns = text.width();
        let _ = writeln!(
            svg,
            "<text class=\"{}\" x=\"{x:.1}\" y=\"{:.1}\" textLength=\"{:.1}\" \
             lengthAdjust=\"spacingAndGlyphs\" xml:space=\"preserve\">{}</text>",
            look.class(),
            y + BASE,
            WIDTH * columns as f64,
            escaped(&text)
        );
    }
}

fn corner((column, row): (usize, usize)) -> (f64, f64) {
    (column as f64 * WIDTH, row as f64 * HEIGHT)
}

/// Escapes a text for XML, and replaces characters that XML does not allow.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use ratatui::layout::Rect;
    use ratatui::style::Style;

    use super::*;

    fn drawn(text: &str, style: Style) -> String {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 20, 1));
        buffer.set_string(0, 0, text, style);
        svg(&buffer, "a <title>")
    }

    #[test]
    fn text_is_text_and_makes_no_tags() {
        let image = drawn("a <b> & c", Style::new().fg(Color::Red));
        assert!(image.contains("<title>a &lt;title&gt;</title>"), "{image}");
        assert!(image.contains(">a &lt;b&gt; &amp; c</text>"), "{image}");
        assert!(image.contains("<text class=\"red\""), "{image}");
    }

    #[test]
    fn a_wide_character_takes_two_cells() {
        let image = drawn("模型 x", Style::new());
        assert!(
            image.contains("textLength=\"50.4\"") && image.contains(">模型 x</text>"),
            "{image}"
        );
    }

    #[test]
    fn bars_are_areas_and_frames_are_lines() {
        let image = drawn("██▄ ░", Style::new());
        assert!(image.contains("width=\"16.8\" height=\"18.0\"/>"), "{image}");
        assert!(image.contains("y=\"9.0\" width=\"8.4\" height=\"9.0\"/>"), "{image}");
        assert!(image.contains("opacity=\"0.25\""), "{image}");
        assert!(!image.contains("<text "), "{image}");
        let image = drawn("┌──┐", Style::new());
        assert!(image.contains("M4.2 9.0H29.4"), "{image}");
    }

    #[test]
    fn the_selection_is_reversed() {
        let image = drawn("ab", Style::new().add_modifier(Modifier::REVERSED));
        assert!(image.contains("<rect class=\"text\" x=\"0.0\""), "{image}");
        assert!(image.contains("<text class=\"ground\""), "{image}");
    }
}
