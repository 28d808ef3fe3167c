//! Styles by meaning.

use ratatui::style::{Color, Modifier, Style};

/// Styles by meaning.
///
/// The background is the terminal's, and the colours are the sixteen of its theme, so that light
/// and dark terminals both work.
#[derive(Debug, Clone, Copy)]
pub struct Palette {
    has_colors: bool,
}

impl Palette {
    /// Returns the palette with colours, or with font weights only, as `NO_COLOR` requests.
    #[must_use]
    pub fn new(has_colors: bool) -> Self {
        Self { has_colors }
    }

    fn color(self, color: Color) -> Style {
        if self.has_colors { Style::new().fg(color) } else { Style::new() }
    }

    /// Returns the style of headings.
    pub(crate) fn heading(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// Something secondary.
    pub(crate) fn faint(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    /// A key that does something.
    pub(crate) fn key(self) -> Style {
        self.color(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    /// Returns the style of the selection.
    pub(crate) fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// Returns the style of the current position.
    pub(crate) fn here(self) -> Style {
        self.color(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    /// Something good.
    pub(crate) fn good(self) -> Style {
        self.color(Color::Green)
    }

    /// Returns the style of warnings and unusual values.
    pub(crate) fn odd(self) -> Style {
        self.color(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    /// Something wrong.
    pub(crate) fn bad(self) -> Style {
        self.color(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// A negative number on a map.
    pub(crate) fn negative(self) -> Style {
        self.color(Color::Magenta)
    }

    /// Bars of a chart.
    pub(crate) fn bar(self) -> Style {
        self.color(Color::Blue)
    }
}
