//! What `e` writes: the report of a view as JSON, or a picture as SVG.

use std::path::Path;

use apr_core::Escaped;
use apr_graph::draw;
use apr_ops::tensors::TensorsReport;

use super::{Asks, Explorer, Loaded, View};
use crate::export::{Written, headed, json, overwrites, write};
use crate::prompt::Prompt;
use crate::screen::drawn;
use crate::svg::svg;

/// Boxes of a picture that are still legible, as in `apr graph`.
const BOXES: usize = 160;

/// Bytes of a file, or the reason for which there are none.
type Content = Result<Vec<u8>, String>;

impl Explorer<'_> {
    /// Asks for the file name; Tab cycles through the files that the view can write.
    pub(crate) fn ask_export(&mut self) {
        self.prompt = Some((Asks::Export, Prompt::offering("write to", self.view.files())));
    }

    /// Writes the report that the prompt offered last, or the image if the file is an SVG.
    ///
    /// An existing file is overwritten if the user confirms it.
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
        fn ready<R>(report: Option<R>) -> Result<R, String> {
            report.ok_or_else(|| "no report yet".to_owned())
        }
        fn text<R: serde::Serialize>(report: &R) -> Content {
            json(report).map_err(|error| error.to_string())
        }
        fn of<R: serde::Serialize>(command: &str, report: Option<&R>) -> Content {
            text(&headed(command, ready(report)?))
        }
        let found = match file {
            "lint.json" => of("lint", self.checks.ready().map(|checks| &checks.lint)),
            "scan.json" => of("scan", self.scan.ready()),
            "scores.json" => ready(self.scores.ready())
                .and_then(|both| text(&both.each_ref().map(|report| headed("validate", report)))),
            // A part of the report of `validate --quality`, not a report.
            "quality.json" => ready(self.outputs.ready()).and_then(text),
            _ => match self.view {
                View::Tensors => of("tensors", self.list.ready()),
                View::Stats => of("tensors", Some(&self.statistics_report()?)),
                View::Histogram => of("tensors", self.histogram.ready().map(|found| &found.report)),
                View::Values => of("tensors", self.values.ready()),
                View::Graph => of("graph", self.graph.ready()),
                View::Compare => of("diff", self.diff.ready()),
                View::Checks => {
                    of("validate", self.checks.ready().map(|checks| &checks.validation))
                }
                // A part of the report of `inspect`, not a report.
                View::Vocabulary => {
                    ready(self.vocabulary.ready().and_then(Option::as_ref)).and_then(text)
                }
                View::Trace => of("trace", self.trace.ready().map(|walk| walk.trace())),
            },
        };
        found.map_err(|error| self.worded(&error))
    }

    /// Returns the report of `apr tensors --stats --json`, once all tensors are measured.
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
