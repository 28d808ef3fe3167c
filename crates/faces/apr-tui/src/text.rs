//! Text from files, cut to columns of a terminal.

use apr_core::Escaped;
use apr_core::human::{shortened_apart, statistic};
use apr_ops::left_out::LeftOut;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Returns a name escaped for display, so that it cannot control the terminal.
pub(crate) fn clean(name: &str) -> String {
    Escaped(name).to_string()
}

/// Columns that a text takes.
pub(crate) fn width(text: &str) -> usize {
    UnicodeWidthStr::width(text)
}

/// Fits a text into `columns` columns.
///
/// The middle of a longer text is left out, because its start and its end are more informative.
pub(crate) fn fit(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    if columns == 0 {
        return String::new();
    }
    let tail_room = (columns - 1).div_ceil(2);
    let head_room = columns - 1 - tail_room;
    let head = taken(text.chars(), head_room);
    let tail: String = taken(text.chars().rev(), tail_room).chars().rev().collect();
    format!("{head}…{tail}")
}

/// The first characters that fit.
fn taken(chars: impl Iterator<Item = char>, columns: usize) -> String {
    let mut left = columns;
    chars
        .take_while(|c| {
            let wide = c.width().unwrap_or_default();
            let fits = wide <= left;
            left = left.saturating_sub(wide);
            fits
        })
        .collect()
}

/// Returns a text padded with spaces on the right, or shortened if it is longer.
pub(crate) fn cell(text: &str, columns: usize) -> String {
    let shown = fit(text, columns);
    let pad = columns.saturating_sub(width(&shown));
    format!("{shown}{:pad$}", "")
}

/// Returns names as cells of `columns` columns; names that are shortened stay distinct if possible.
pub(crate) fn cells(names: impl IntoIterator<Item = String>, columns: usize) -> Vec<String> {
    let names: Vec<String> = names.into_iter().collect();
    shortened_apart(&names, columns).iter().map(|name| cell(name, columns)).collect()
}

/// Returns a list of names in `columns` columns, with the number of names that do not fit: `a, b,
/// +3`.
///
/// The first name is always included, shortened if necessary.
pub(crate) fn listed(
    names: impl IntoIterator<Item = String, IntoIter: ExactSizeIterator>,
    columns: usize,
) -> String {
    let mut names = names.into_iter();
    let count = names.len();
    let rest = |shown: usize| match count - shown {
        0 => String::new(),
        left => format!(", +{left}"),
    };
    let Some(first) = names.next() else { return String::new() };
    let mut text = fit(&first, columns.saturating_sub(width(&rest(1))));
    let mut shown = 1;
    for name in names {
        let longer = format!("{text}, {name}");
        if width(&longer) + width(&rest(shown + 1)) > columns {
            break;
        }
        text = longer;
        shown += 1;
    }
    text + &rest(shown)
}

/// Returns the first lines that fit into `rows` rows, with the number of the other lines in the
/// last row.
///
/// A single row has the number after the first line.
pub(crate) fn cut(mut lines: Vec<Line<'static>>, rows: u16, style: Style) -> Vec<Line<'static>> {
    let rows = usize::from(rows);
    if lines.len() <= rows || rows == 0 {
        return lines;
    }
    let shown = (rows - 1).max(1);
    let rest = Span::styled(format!(" {}", more(lines.len() - shown)), style);
    lines.truncate(shown);
    match lines.first_mut() {
        Some(first) if rows == 1 => first.push_span(rest),
        _ => lines.push(Line::from(rest)),
    }
    lines
}

/// Returns a line for each kind of data that is not a tensor, escaped for display.
pub(crate) fn left_out(left_out: &LeftOut) -> Vec<String> {
    left_out.lines("e writes all").iter().map(|line| clean(line)).collect()
}

/// Returns a text with a note at the right end of a line of `columns` columns.
pub(crate) fn beside(text: &str, note: &str, columns: usize) -> String {
    match note {
        "" => text.to_owned(),
        note => format!("{} {note} ", cell(text, columns.saturating_sub(width(note) + 2))),
    }
}

/// Returns the number of rows of a list that are not shown, as `+3 more`, or an empty text.
pub(crate) fn more(hidden: usize) -> String {
    match hidden {
        0 => String::new(),
        hidden => format!("+{} more", apr_core::grouped(hidden as u64)),
    }
}

/// Returns a text in an area of `columns` columns, as lines that all begin after a margin.
pub(crate) fn paragraph(text: &str, columns: u16, style: Style) -> Vec<Line<'static>> {
    let lines = wrapped(text, usize::from(columns).saturating_sub(2));
    lines.into_iter().map(|line| Line::styled(format!(" {line}"), style)).collect()
}

/// Wraps a text into lines of at most `columns` columns, broken between words if possible.
pub(crate) fn wrapped(text: &str, columns: usize) -> Vec<String> {
    // A character is never wider than two columns.
    let columns = columns.max(2);
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let mut word = word;
        let last = lines.len() - 1;
        let used = width(&lines[last]);
        if used > 0 && used + 1 + width(word) <= columns {
            lines[last].push(' ');
            lines[last].push_str(word);
            continue;
        }
        if used > 0 {
            lines.push(String::new());
        }
        while width(word) > columns {
            let head = taken(word.chars(), columns);
            let last = lines.len() - 1;
            lines[last].push_str(&head);
            lines.push(String::new());
            word = &word[head.len()..];
        }
        let last = lines.len() - 1;
        lines[last].push_str(word);
    }
    lines
}

/// Dimensions, outermost first.
pub(crate) fn dims<T: ToString>(shape: &[T]) -> String {
    let sizes: Vec<String> = shape.iter().map(ToString::to_string).collect();
    format!("[{}]", sizes.join(", "))
}

/// Returns a statistic, or a dash if there are no finite values.
pub(crate) fn shown(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), statistic)
}

/// Seconds as milliseconds.
pub(crate) fn millis(seconds: Option<f64>) -> String {
    match seconds.map(|seconds| seconds * 1e3) {
        None => "-".to_owned(),
        Some(millis) if millis < 10.0 => format!("{millis:.3}ms"),
        Some(millis) => format!("{millis:.1}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_cut_by_columns_and_never_within_a_character() {
        assert_eq!(fit("layers.10.attn.q_proj.weight", 15), "layers.….weight");
        assert_eq!(fit("模型的权重", 7), "模…重");
        assert_eq!(fit("模型的权重", 9), "模型…权重");
        assert_eq!(width(&fit("模型的权重", 6)), 5);
        assert_eq!(fit("name", 0), "");
        assert_eq!(cell("模型", 6), "模型  ");
        assert_eq!(width(&cell(&"模".repeat(5000), 9)), 9);
    }

    #[test]
    fn a_list_that_is_cut_counts_what_it_leaves_out() {
        let names = || ["cos", "sin", "mask", "hidden"].map(str::to_owned);
        assert_eq!(listed(names(), 24), "cos, sin, mask, hidden");
        assert_eq!(listed(names(), 21), "cos, sin, mask, +1");
        assert_eq!(listed(names(), 17), "cos, sin, +2");
        assert_eq!(listed(names(), 7), "cos, +3");
        assert_eq!(listed(names(), 6), "…s, +3");
        assert_eq!(listed(["mask".to_owned()], 2), "…k");
        assert_eq!(listed([], 9), "");
        let lines = |count: usize| (0..count).map(|at| Line::from(at.to_string())).collect();
        let texts = |lines: Vec<Line<'_>>| lines.iter().map(Line::to_string).collect::<Vec<_>>();
        assert_eq!(texts(cut(lines(3), 3, Style::new())), ["0", "1", "2"]);
        assert_eq!(texts(cut(lines(4), 3, Style::new())), ["0", "1", " +2 more"]);
        assert_eq!(texts(cut(lines(4), 1, Style::new())), ["0 +3 more"]);
        assert_eq!(texts(cut(lines(1), 0, Style::new())), ["0"]);
    }

    #[test]
    fn lines_are_broken_between_words_where_there_are_some() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("abcdefgh ij", 3), ["abc", "def", "gh", "ij"]);
        assert_eq!(wrapped("", 3), [""]);
        assert_eq!(wrapped("模型", 1), ["模", "型"]);
        let lines = paragraph("one two three", 9, Style::new());
        assert_eq!(lines.iter().map(Line::to_string).collect::<Vec<_>>(), [" one two", " three"]);
    }

    #[test]
    fn escapes_are_text() {
        assert_eq!(clean("a\u{1b}[2Jb"), r"a\u{1b}[2Jb");
    }
}
