//! Characters that are drawn as areas and lines, so that they join whatever the font.

/// A part of a cell that is filled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Area {
    /// Width from the left, as a share of the cell.
    pub(super) width: f64,
    /// Height from the bottom, as a share of the cell.
    pub(super) height: f64,
    pub(super) opacity: f64,
}

impl Area {
    pub(super) const FULL: Self = Self { width: 1.0, height: 1.0, opacity: 1.0 };
}

/// Returns the area that a block element fills.
pub(super) fn area_of(symbol: &str) -> Option<Area> {
    let c = symbol.chars().next()?;
    let eighths = |first: char| f64::from(u32::from(c) - u32::from(first) + 1) / 8.0;
    Some(match c {
        '▁'..='█' => Area { height: eighths('▁'), ..Area::FULL },
        '▉'..='▏' => Area { width: 1.0 - eighths('▉'), ..Area::FULL },
        '░' => Area { opacity: 0.25, ..Area::FULL },
        '▒' => Area { opacity: 0.5, ..Area::FULL },
        '▓' => Area { opacity: 0.75, ..Area::FULL },
        _ => return None,
    })
}

/// Weights of the lines from the middle of a cell: up, right, down, left; 0 for no line.
pub(super) type Ends = [u8; 4];

/// The lines of a box-drawing character.
pub(super) fn ends_of(symbol: &str) -> Option<Ends> {
    Some(match symbol {
        "─" => [0, 1, 0, 1],
        "│" => [1, 0, 1, 0],
        "┌" => [0, 1, 1, 0],
        "┐" => [0, 0, 1, 1],
        "└" => [1, 1, 0, 0],
        "┘" => [1, 0, 0, 1],
        "├" => [1, 1, 1, 0],
        "┤" => [1, 0, 1, 1],
        "┬" => [0, 1, 1, 1],
        "┴" => [1, 1, 0, 1],
        "┼" => [1, 1, 1, 1],
        "━" => [0, 2, 0, 2],
        "┃" => [2, 0, 2, 0],
        "┏" => [0, 2, 2, 0],
        "┓" => [0, 0, 2, 2],
        "┗" => [2, 2, 0, 0],
        "┛" => [2, 0, 0, 2],
        "┯" => [0, 2, 1, 2],
        _ => return None,
    })
}
