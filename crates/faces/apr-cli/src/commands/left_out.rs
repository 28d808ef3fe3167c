//! What is no tensor of a checkpoint, in the texts of `apr tensors`, `inspect` and `validate`.

use std::io::{self, Write};

use apr_ops::left_out::LeftOut;
use apr_registry::Escaped;

use crate::printer::DIM;

/// Renders the data of the file that are not tensors, and the data that are not read.
pub(super) fn render(out: &mut dyn Write, left_out: &LeftOut) -> io::Result<()> {
    let lines = left_out.lines("--json lists them all");
    lines.iter().try_for_each(|line| writeln!(out, "{DIM}{}{DIM:#}", Escaped(line)))
}
