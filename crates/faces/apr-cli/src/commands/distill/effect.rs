//! How much each layer of a teacher changes what passes through it.

use std::path::Path;

use apr_importance::{Inputs, layer_influence};
use apr_quality::{Sample, Subject};
use apr_run::with_runner;

use super::{reading, rows};
use crate::commands::run::terse_host;
use crate::commands::running::Opened;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::progress::Bar;

/// Rows that layers are compared on: more change little.
const ROWS: usize = 256;

/// The influence of each layer on the first rows of the data.
pub(super) fn of_layers(
    opened: &Opened,
    data: &Path,
    text: &str,
    context: &Context,
) -> Outcome<Vec<f64>> {
    let options = reading(context);
    let source = context.source(&*opened.model().reader, opened.name())?;
    let found = with_runner(&source, opened.facts(), &options, &terse_host(context), |runner| {
        let (rows, _) = rows(text, data, runner)?;
        let sample = |(at, row): (usize, apr_distill::Row)| {
            let mut sample = Sample::default();
            sample.name = format!("row {}", at + 1);
            sample.tokens = row.tokens;
            sample
        };
        let samples: Vec<Sample> = rows.into_iter().take(ROWS).enumerate().map(sample).collect();
        let subject = Subject::of(runner)?;
        let bar = Bar::counting(&context.printer, samples.len() as u64);
        let done = &mut |at: usize| bar.reached(at as u64);
        Ok::<_, Failure>(layer_influence(&subject, Inputs::Samples(&samples), done)?)
    })?;
    context.sources.check_unchanged()?;
    Ok(found)
}
