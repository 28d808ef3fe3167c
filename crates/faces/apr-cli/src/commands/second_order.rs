//! Matrices that are rewritten layer by layer, each by the inputs that the rewritten layers before
//! it give.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use apr_core::counted;
use apr_importance::{measured_weights, observe};
use apr_lowrank::second_order::{Gram, Layers, Matrix, Rewrites};
use apr_quality::Subject;
use apr_registry::{CheckpointReader, Error};
use apr_run::{Runner, with_runner};
use apr_source::Source;
use apr_view::View;

use super::imatrix::{Data, to_measure, with_data};
use super::lowrank::FactorFile;
use super::run::terse_host;
use super::running::{self, Opened};
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::progress::Bar;
use crate::{human, signals};

/// A model, and the data that it is run on.
pub(super) struct Calibration<'c> {
    opened: Opened,
    path: &'c Path,
    context: &'c Context,
}

impl<'c> Calibration<'c> {
    /// Opens the model that is run on a file of calibration data.
    pub(super) fn new(model: &Path, data: &'c Path, context: &'c Context) -> Outcome<Self> {
        signals::stop_cleanly(&context.interrupt)?;
        Ok(Self { opened: to_measure(model, context)?, path: data, context })
    }

    /// The model, whose matrices are rewritten.
    pub(super) fn reader(&self) -> &dyn CheckpointReader {
        &*self.opened.model().reader
    }

    /// Returns the layers of matrices by position, in the order of a run; `verb` names the
    /// operation in errors.
    ///
    /// # Errors
    /// Usage where a run meets none, E008 where a layer takes more memory than a run may.
    pub(super) fn layers(
        &self,
        positions: impl IntoIterator<Item = usize>,
        verb: &str,
    ) -> Outcome<Layers> {
        let reader = self.reader();
        let source = self.context.source(reader, self.opened.name())?;
        let names = self.with_runner(&source, |runner| {
            Ok(measured_weights(&Subject::of(runner)?, source.family()?)?)
        })?;
        let layers = Layers::new(positions, reader, source.family()?, &names);
        let layers = layers.within(self.context.max_memory());
        if layers.layers.is_empty() {
            return Err(Failure::Usage(format!(
                "nothing to {verb}: the calibration run uses none of the selected matrices"
            )));
        }
        self.tell_memory(&layers)?;
        Ok(layers)
    }

    /// Reports the memory that the work requires before it begins.
    fn tell_memory(&self, layers: &Layers) -> Outcome {
        let (needed, most) = (layers.memory(), self.context.max_memory());
        let count = counted(layers.layers.len() as u64, "run");
        let bytes = human::bytes(needed);
        if needed > most {
            let message = format!(
                "the input products of a layer need {bytes}, more than the limit of {} per run",
                human::bytes(most)
            );
            return Err(Error::memory(message).into());
        }
        if !self.context.json {
            let printer = &self.context.printer;
            printer.detail(&format!("{count}, one after another, with {bytes} for each"));
        }
        Ok(())
    }

    /// Calls `rewrite` for each matrix, with the products of its inputs after the finished layers.
    ///
    /// Matrices that no input reached, which can happen with experts, are skipped. Returns the
    /// rewritten matrices.
    pub(super) fn rewrite(
        &self,
        layers: &mut Layers,
        mut rewrite: impl FnMut(&Matrix, Gram, &Rewrites) -> Outcome,
    ) -> Outcome<Arc<Rewrites>> {
        let rewrites = Arc::new(Rewrites::new(Box::new(FactorFile::create()?)));
        let Layers { layers, left } = layers;
        let bar = Bar::counting(&self.context.printer, layers.len() as u64);
        for (at, layer) in layers.iter().enumerate() {
            let mut grams = self.grams(layer, &rewrites)?;
            for matrix in layer {
                self.context.interrupt.check()?;
                match grams.remove(&matrix.measured).filter(|gram| gram.rows() > 0) {
                    Some(gram) => rewrite(matrix, gram, &rewrites)?,
                    None => left.push((matrix.tensor, "no input reached it")),
                }
            }
            bar.reached(at as u64 + 1);
        }
        drop(bar);
        self.context.sources.check_unchanged()?;
        Ok(rewrites)
    }

    /// The products of the inputs of a layer's matrices, behind what was rewritten before.
    fn grams(&self, layer: &[Matrix], rewrites: &Arc<Rewrites>) -> Outcome<BTreeMap<String, Gram>> {
        let base = Box::new(View::new(self.reader()));
        let reader = rewrites.over(base);
        let source = self.context.source(&reader, self.opened.name())?;
        let wanted: BTreeSet<&str> = layer.iter().map(|matrix| &*matrix.measured).collect();
        let mut grams = BTreeMap::new();
        let mut take = |name: &str, rows: &[f32], columns: usize| {
            let gram = match grams.entry(name.to_owned()) {
                std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::btree_map::Entry::Vacant(entry) => {
                    entry.insert(Gram::new(columns)?)
                }
            };
            gram.add(rows).map_err(|error: Error| error.for_tensor(name))
        };
        self.with_runner(&source, |runner| {
            let subject = Subject::of(runner)?;
            let model = source.family()?;
            let data = Data::of_calibration(self.path, self.opened.facts(), self.context)?;
            with_data(&subject, &data, self.context, |inputs, _| {
                Ok(observe(&subject, model, inputs, &wanted, &mut take, &mut |_| {})?)
            })
        })?;
        Ok(grams)
    }

    fn with_runner<R>(
        &self,
        source: &Source<'_>,
        then: impl FnOnce(&Runner<'_>) -> Outcome<R>,
    ) -> Outcome<R> {
        let options = running::reading(self.context, 1);
        with_runner(source, self.opened.facts(), &options, &terse_host(self.context), then)
    }
}
