//! Tensors that are views of the same bytes without being one tensor: elsewhere, each has bytes of
//! its own.

use apr_core::{Escaped, TensorInfo};

use crate::content::Content;

/// Names that a warning lists.
const TOLD: usize = 4;

/// Returns a warning with the tensors that overlap, if any.
///
/// Two names of one tensor are tied, which is not an overlap.
pub(crate) fn warning<'a>(
    tensors: impl Iterator<Item = (&'a TensorInfo, &'a Content)>,
) -> Option<String> {
    let found = overlapping(tensors);
    if found.is_empty() {
        return None;
    }

    let names: Vec<String> =
        found.iter().take(TOLD).map(|name| format!("'{}'", Escaped::short(name))).collect();
    let more = if found.len() > TOLD {
        format!(" and {} more", found.len() - TOLD)
    } else {
        String::new()
    };
    Some(format!(
        "different tensors share bytes ({}{more}); conversions write separate copies",
        names.join(", ")
    ))
}

/// Returns the names of tensors that share bytes with another or with themselves, by start offset.
fn overlapping<'a>(tensors: impl Iterator<Item = (&'a TensorInfo, &'a Content)>) -> Vec<&'a str> {
    let mut views: Vec<(&TensorInfo, u64, u64, bool)> = Vec::new();
    for (info, content) in tensors {
        let Content::Stored(view) = content else { continue };
        // Elements that lie apart may have others between them, which are not theirs; they are left
        // alone.
        if view.len >= view.span && view.len > 0 {
            views.push((info, view.offset, view.offset + view.span, view.len > view.span));
        }
    }

    views.sort_by_key(|&(_, start, end, _)| (start, end));
    let mut overlaps: Vec<bool> = views.iter().map(|&(.., repeats)| repeats).collect();
    let mut widest = 0;
    for at in 1..views.len() {
        // In this order, what overlaps any earlier view overlaps the one that reaches furthest.
        let ((_, start, end, _), (_, first, last, _)) = (views[at], views[widest]);
        if start < last && (start, end) != (first, last) {
            (overlaps[at], overlaps[widest]) = (true, true);
        }
        if end > last {
            widest = at;
        }
    }

    views
        .iter()
        .zip(&overlaps)
        .filter(|(_, overlaps)| **overlaps)
        .map(|((info, ..), _)| &*info.name)
        .collect()
}
