//! What `e` writes: the report of a view as JSON, or a picture as SVG.

use std::path::Path;

use apr_core::Escaped;
use apr_graph::draw;
use apr_ops::tensors::TensorsReport;

use super::{Asks, Explorer, Loaded, View};
use crate::export::{Written, json, overwrites, write};
use crate::prompt::Prompt;
use crate::screen::drawn;
use crate::svg::svg;

/// Boxes of a picture that are still legible, as in `apr graph`.
const BOXES: usize = 160;

/// Bytes, or why there are none.
type Content = Result<Vec<u8>, String>;

impl Explorer<'_> {
    /// Asks for the file; Tab goes through what the view has to write.
    pub(crate) fn ask_export(&mut self) {
        self.prompt = Some((Asks::Export, Prompt::offering("write to", self.view.files())));
    }

    /// Writes the report that the prompt offered last, or the picture where the file is an SVG. A
    /// file that is there is replaced where the user says so.
    pub(crate) fn export(&mut self, path: &str, offer: usize, overwrite: bool) {
        let report = self.view.files().get(offer).copied().unwrap_or_default();
        let content = if path.ends_with(".svg") { self.image() } else { self.report(report) };
        let bytes = match content {
            Ok(bytes) => bytes,
            Err(why) => {
                self.message = Some(why);
                return;
            }
        };
        match write(Path::new(path), &bytes, overwrite) {
            Ok(Written::Told(message)) => self.message = Some(message),
            Ok(Written::Exists) => {
                self.prompt = Some((Asks::Overwrite(offer), overwrites(path)));
            }
            Err(error) => self.message = Some(self.worded(&error.to_string())),
        }
    }

    /// The report that a file of this name has.
    fn report(&self, file: &str) -> Content {
        fn of<R: serde::Serialize>(report: Option<&R>) -> Content {
            let report = report.ok_or("no report yet")?;
            json(report).map_err(|error| error.to_string())
        }
        let found = match file {
            "lint.json" => of(self.checks.ready().map(|checks| &checks.lint)),
            "scan.json" => of(self.scan.ready()),
            "scores.json" => of(self.scores.ready()),
            "quality.json" => of(self.outputs.ready()),
            _ => match self.view {
                View::Tensors => of(self.list.ready()),
                View::Stats => of(Some(&self.statistics_report()?)),
                View::Histogram => of(self.histogram.ready().map(|found| &found.report)),
                View::Values => of(self.values.ready()),
                View::Graph => of(self.graph.ready()),
                View::Compare => of(self.diff.ready()),
                View::Checks => of(self.checks.ready().map(|checks| &checks.validation)),
                View::Vocabulary => of(self.vocabulary.ready().and_then(Option::as_ref)),
                View::Trace => of(self.trace.ready().map(|walk| walk.trace())),
            },
        };
        found.map_err(|error| self.worded(&error))
    }

    /// What `apr tensors --stats --json` prints, once all tensors are measured.
    fn statistics_report(&self) -> Result<TensorsReport, String> {
        let list = self.list.ready().ok_or("no report yet")?;
        let (known, all) = (self.statistics.len(), list.tensors.len());
        if known < all {
            return Err(format!("{known} of {all} tensors are measured; wait for the others"));
        }
        let mut list = list.clone();
        for (tensor, row) in list.tensors.iter_mut().enumerate() {
            if let Some(found) = self.statistics.get(&tensor) {
                row.stats.clone_from(&found.report.stats);
            }
        }
        Ok(list)
    }

    /// The graph as `apr graph` draws it, or the screen.
    fn image(&mut self) -> Content {
        if self.view == View::Graph
            && let Loaded::Ready(_) = &self.graph
        {
            let scene = self.graph_place.scene().ok_or("the model has no graph")?;
            let depth = draw::Depth::that_fits(scene, BOXES);
            return match draw::svg(scene, &depth) {
                Ok(image) => Ok(image.into_bytes()),
                Err(error) => Err(format!("{error}; open a group to write less")),
            };
        }
        let title = format!("{} of {}", self.view.title(), Escaped(self.job.model.name));
        let size = self.size;
        self.is_for_file = true;
        let buffer = drawn(self, size);
        self.is_for_file = false;
        Ok(svg(&buffer, &title).into_bytes())
    }
}
