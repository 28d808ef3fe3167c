//! `--prune-method sparsegpt`: matrices are pruned layer by layer, each by the inputs that the
//! pruned layers before it give.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use apr_core::counted;
use apr_importance::{measured_weights, observe};
use apr_prune::second_order::{Gram, Matrix, Rewrites, Rewritten, SecondOrder};
use apr_prune::{PrunePlan, PruneReport};
use apr_quality::Subject;
use apr_registry::Error;
use apr_run::{Runner, with_runner};
use apr_source::Source;
use apr_view::View;

use super::super::imatrix::{Data, with_data};
use super::super::lowrank::FactorFile;
use super::super::run::terse_host;
use super::super::running::{self, Opened};
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::model::Model;
use crate::progress::Bar;
use crate::{human, signals};

/// The model at `path`, and the data that it is run on.
struct Calibration<'c> {
    opened: &'c Opened,
    data: Data<'c>,
    context: &'c Context,
}

/// Prunes a model by a plan, and by what meets its weights when the model at `path` reads `data`.
pub(super) fn prune(
    plan: PrunePlan,
    (path, data): (&Path, &Path),
    mut model: Model,
    context: &Context,
) -> Outcome<(Model, PruneReport)> {
    signals::stop_cleanly(&context.interrupt)?;
    let opened = Opened::new(path, context)?;
    let data = Data::of_calibration(data, opened.facts(), context);
    let calibration = Calibration { opened: &opened, data, context };
    let rewrites = Arc::new(Rewrites::new(Box::new(FactorFile::create()?)));
    let mut work = calibration.plan(plan)?;
    tell_memory(&work, context)?;

    let layers = work.layers.clone();
    let bar = Bar::counting(&context.printer, layers.len() as u64);
    for (at, layer) in layers.iter().enumerate() {
        let mut grams = calibration.grams(layer, &rewrites)?;
        for matrix in layer {
            context.interrupt.check()?;
            let gram = grams.remove(&matrix.measured);
            let gram = gram.ok_or_else(|| Error::corrupt("a run did not meet its weights"))?;
            work.prune(&*opened.model().reader, matrix, gram, &rewrites)?;
        }
        bar.reached(at as u64 + 1);
    }
    drop(bar);
    context.sources.check_unchanged()?;

    let report = work.report();
    let rewritten = Rewritten::new(model.reader, rewrites).recorded(&report);
    model.reader = Box::new(rewritten);
    Ok((model, report))
}

/// Says what memory the work takes before it begins.
fn tell_memory(work: &SecondOrder, context: &Context) -> Outcome {
    let (needed, most) = (work.memory(), context.max_memory());
    let layers = counted(work.layers.len() as u64, "layer");
    let bytes = human::bytes(needed);
    if needed > most {
        let message = format!(
            "the products of the inputs of a layer take {bytes}, more than the {} that a run may \
             take",
            human::bytes(most)
        );
        return Err(Error::memory(message).into());
    }
    if !context.json {
        context.printer.detail(&format!("{layers}, one after another, with {bytes} for each"));
    }
    Ok(())
}

impl Calibration<'_> {
    /// What runs of the model meet, of what is to be pruned.
    fn plan(&self, plan: PrunePlan) -> Outcome<SecondOrder> {
        let reader = &*self.opened.model().reader;
        let source = self.context.source(reader, self.opened.name())?;
        let names = self.with_runner(&source, |runner| {
            Ok(measured_weights(&Subject::of(runner)?, source.family()?)?)
        })?;
        let work = SecondOrder::new(plan, reader, source.family()?, &names);
        if work.layers.is_empty() {
            return Err(Failure::Usage(
                "nothing to prune: a run of the model meets none of the matrices".to_owned(),
            ));
        }
        Ok(work)
    }

    /// The products of the inputs of a layer's matrices, behind what was pruned before.
    fn grams(&self, layer: &[Matrix], rewrites: &Arc<Rewrites>) -> Outcome<BTreeMap<String, Gram>> {
        let base = Box::new(View::new(&*self.opened.model().reader));
        let reader = Rewritten::new(base, Arc::clone(rewrites));
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
            with_data(&subject, &self.data, self.context, |inputs, _| {
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
