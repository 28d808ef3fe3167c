//! Bars of counts.

use apr_trace::sparkline;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use crate::text::{shown, width};

/// Eighths of a row.
const BLOCKS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

/// Counts as bars, the lowest values on the left, over an axis.
pub(crate) struct Chart<'c> {
    pub(crate) counts: &'c [u64],
    /// Start of the first bar and end of the last one.
    pub(crate) range: (f64, f64),
    pub(crate) style: Style,
}

impl Chart<'_> {
    /// Returns the columns of a bar; all bars have the same width.
    fn bar_width(&self, columns: u16) -> u16 {
        let bars = u16::try_from(self.counts.len()).unwrap_or(u16::MAX).max(1);
        (columns / bars).clamp(1, 6)
    }

    /// Draws bars over as many rows as there are, the last of which is the axis.
    pub(crate) fn draw(&self, buffer: &mut Buffer, area: Rect) {
        if area.height < 2 || area.width == 0 || self.counts.is_empty() {
            return;
        }
        let wide = self.bar_width(area.width);
        let rows = usize::from(area.height - 1);
        if rows == 1 {
            let line = sparkline(self.counts);
            for (at, block) in (0_u16..).zip(line.chars()) {
                let bar = block.to_string().repeat(usize::from(wide));
                put(buffer, area, (at * wide, 0), &bar, self.style);
            }
        } else {
            self.bars(buffer, area, rows, wide);
        }
        let bars = u16::try_from(self.counts.len()).unwrap_or(u16::MAX);
        let drawn = Rect { width: area.width.min(bars.saturating_mul(wide)), ..area };
        self.axis(buffer, Rect { y: area.bottom() - 1, height: 1, ..drawn });
    }

    fn bars(&self, buffer: &mut Buffer, area: Rect, rows: usize, wide: u16) {
        let most = self.counts.iter().copied().max().unwrap_or_default().max(1);
        for (at, &count) in (0_u16..).zip(self.counts) {
            // What is there is seen, however little.
            let eighths = u128::from(count) * (rows * 8) as u128;
            let eighths = usize::try_from(eighths.div_ceil(u128::from(most))).unwrap_or(1);
            for row in 0..rows {
                let filled = eighths.saturating_sub((rows - 1 - row) * 8).min(8);
                let bar = BLOCKS[filled].repeat(usize::from(wide));
                let y = u16::try_from(row).unwrap_or(u16::MAX);
                put(buffer, area, (at.saturating_mul(wide), y), &bar, self.style);
            }
        }
    }

    /// Draws the ends of the axis, and zero if it is between them.
    fn axis(&self, buffer: &mut Buffer, area: Rect) {
        let (low, high) = self.range;
        let (left, right) = (shown(Some(low)), shown(Some(high)));
        let room = usize::from(area.width);
        put(buffer, area, (0, 0), &left, Style::new());
        let start = room.saturating_sub(width(&right)).max(width(&left) + 1);
        put(buffer, area, (u16::try_from(start).unwrap_or(u16::MAX), 0), &right, Style::new());
        if low < 0.0 && high > 0.0 {
            let share = -low / (high - low);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a share of a few columns"
            )]
            let at = (share * room as f64) as usize;
            if at > width(&left) && at + 1 < start {
                put(buffer, area, (u16::try_from(at).unwrap_or(u16::MAX), 0), "0", Style::new());
            }
        }
    }
}

/// Writes a text at a position within an area; the part outside the area is cut off.
pub(crate) fn put(buffer: &mut Buffer, area: Rect, (x, y): (u16, u16), text: &str, style: Style) {
    if x < area.width && y < area.height {
        let room = usize::from(area.width - x);
        buffer.set_stringn(area.x + x, area.y + y, text, room, style);
    }
}
