//! What is no tensor of a checkpoint, in the texts of `apr tensors`, `inspect` and `validate`.

use std::io::{self, Write};

use apr_ops::left_out::{LeftOut, UnlistedData};
use apr_registry::Escaped;

use crate::human;
use crate::printer::DIM;

/// Names that are shown before the rest is only counted.
const SHOWN: usize = 12;

/// Names data of the file that are no tensors, and what is not read.
pub(super) fn render(out: &mut dyn Write, left_out: &LeftOut) -> io::Result<()> {
    for UnlistedData { what, count, .. } in &left_out.data {
        let (what, count) = (Escaped(what), human::count(*count as u64));
        writeln!(out, "{DIM}not listed: {what} ({count}){DIM:#}")?;
    }
    if left_out.parts.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = left_out.parts.iter().take(SHOWN).map(String::as_str).collect();
    let names = names.join(", ");
    let more = match left_out.parts.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(", and {} more; --json lists them all", human::count(more as u64)),
    };
    writeln!(out, "{DIM}not read: {}{more}{DIM:#}", Escaped(&names))
}
