//! What a model that listens says: letters in a row, and where somebody speaks.

use serde::Serialize;

/// Returns the tokens of a row with one token per frame. Repeated tokens are collapsed, and blanks
/// are removed (CTC: Graves et al. 2006).
#[must_use]
pub(crate) fn collapsed(frames: &[usize], blank: usize) -> Vec<usize> {
    let mut last = blank;
    let mut tokens = Vec::new();
    for &frame in frames {
        if frame != last && frame != blank {
            tokens.push(frame);
        }
        last = frame;
    }
    tokens
}

/// A part of a sound in which somebody speaks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Spoken {
    /// Seconds from the beginning.
    pub start: f64,
    /// Seconds from the beginning.
    pub end: f64,
}

/// Parts whose windows of this many seconds have a probability of a half and more.
#[must_use]
pub(crate) fn spoken(probabilities: &[f32], window: f64) -> Vec<Spoken> {
    let mut parts: Vec<Spoken> = Vec::new();
    let likely = probabilities.iter().enumerate().filter(|(_, probability)| **probability >= 0.5);
    for (at, _) in likely {
        let (start, end) = (at as f64 * window, (at + 1) as f64 * window);
        match parts.last_mut().filter(|part| part.end == start) {
            Some(part) => part.end = end,
            None => parts.push(Spoken { start, end }),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_letters_are_one_unless_something_lies_between() {
        assert_eq!(collapsed(&[0, 1, 1, 0, 1, 2, 2, 0, 0], 0), [1, 1, 2]);
        assert!(collapsed(&[], 0).is_empty());
    }

    #[test]
    fn windows_side_by_side_are_one_part() {
        let parts = spoken(&[0.1, 0.9, 0.5, 0.2, 0.8], 0.5);
        assert_eq!(parts, [Spoken { start: 0.5, end: 1.5 }, Spoken { start: 2.0, end: 2.5 }]);
    }
}
