//! What `e` writes.

use std::path::Path;

use super::{Explorer, View};
use crate::export::export;

impl Explorer<'_> {
    /// Writes the report of the view.
    pub(crate) fn write(&self, path: &Path) -> std::result::Result<String, String> {
        const NOT_THERE: &str = "there is no report yet";
        let done = match self.view {
            View::Tensors => self.list.ready().map(|report| export(path, report)),
            View::Stats => return self.write_stats(path),
            View::Histogram => self.histogram.ready().map(|it| export(path, &it.report)),
            View::Values => self.values.ready().map(|report| export(path, report)),
            View::Graph => self.graph.ready().map(|report| export(path, report)),
            View::Compare => self.diff.ready().map(|report| export(path, report)),
            View::Checks => self.checks.ready().map(|report| export(path, &report.validation)),
            View::Vocabulary => {
                self.vocabulary.ready().and_then(Option::as_ref).map(|report| export(path, report))
            }
        };
        done.ok_or(NOT_THERE)?.map_err(|error| error.to_string())
    }
}
