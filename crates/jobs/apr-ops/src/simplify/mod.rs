//! Graphs with fewer nodes that compute the same.
//!
//! Each pass is a file. The passes run in turns until none changes anything:
//!
//! | pass | effect |
//! |---|---|
//! | `fold` | the engine computes nodes whose inputs are known, and inference computes shapes |
//! | `no_ops` | removes nodes that return their input |
//! | `transposes` | joins transposes of transposes |
//! | `reshapes` | joins reshapes of reshapes, and replaces shapes that are nearly known |
//! | `batch_norm` | moves normalizations of convolutions to the weights, for `fold` to compute |
//! | `duplicates` | joins nodes and tensors that are the same |
//! | `branches` | replaces an `If` with a known condition by the nodes of its branch |
//! | `dead` | removes nodes and tensors that no output depends on |
//!
//! Then both graphs run on the same random inputs. Only `batch_norm` changes the arithmetic.
//! Without it the outputs must be bit-identical, and with it they may differ by 1e-5 of the largest
//! magnitude.

mod batch_norm;
mod branches;
mod dead;
mod duplicates;
mod edit;
#[cfg_attr(not(feature = "infer"), path = "engine_off.rs")]
mod engine;
mod facts;
mod fold;
mod no_ops;
mod report;
mod reshapes;
mod shapes;
#[cfg(all(test, feature = "infer"))]
mod tests;
mod transposes;

use std::collections::{BTreeMap, BTreeSet};

use apr_core::{CheckpointReader, Error, Escaped, Result, UniqueNames};
use apr_graph::{
    AttributeValue, Body, ElementType, Graph, Node, Opset, ValueOrigin, View as Look, infer,
};
use apr_view::View;

use duplicates::Twins;
use engine::Comparison;
use facts::Facts;
use fold::Folding;

pub(crate) use dead::run as remove_dead;
pub(crate) use edit::{bodies_mut, reads, set_origins};
pub use report::{Compared, PassReport, Simplified};
pub use shapes::NamedShape;
pub(crate) use shapes::set_shapes;

/// Maximum number of turns of all passes.
const MOST_TURNS: usize = 64;
/// Maximum number of inputs and of outputs of a body. Passes look for a value among them.
const MOST_ENDS: usize = 4096;

/// The passes in the order of a turn, which is the order of [`Simplified::passes`].
const PASSES: [&str; 8] = [
    "fold_constants",
    "no_ops",
    "transposes",
    "reshapes",
    "batch_normalization",
    "duplicates",
    "constant_branches",
    "dead",
];
/// Position of the pass that changes the arithmetic.
const INEXACT: usize = 4;

/// Simplifies a graph without function calls.
///
/// `view` has the tensors that the graph names, and receives the computed tensors. Returns the
/// graph, its report, and a warning if the outputs were not compared.
///
/// # Errors
/// E001 for a graph with a cycle; E003 if the outputs can't be compared and `must_run`, and if they
/// differ; E008 for a graph with thousands of inputs.
pub(crate) fn simplify(
    name: &str,
    before: &Graph,
    view: &mut View<'_>,
    must_run: bool,
) -> Result<(Graph, Simplified, Option<String>)> {
    let mut graph = before.clone();
    prepare(&mut graph.body)?;
    let before = graph.clone();
    let mut names = UniqueNames::of_values();
    take_names(&graph.body, &mut names);
    let (mut folding, mut twins) = (Folding::of(view), Twins::default());
    let mut tally = Tally::default();
    for _ in 0..MOST_TURNS {
        infer(&mut graph);
        let facts = Facts::of(&graph.body, &graph.opsets);
        let Graph { opsets, body, .. } = &mut graph;
        let (folding, twins, names) = (&mut folding, &mut twins, &mut names);
        let view = &mut *view;
        let tally_of_turn = Tally::default();
        let mut turn = Turn { opsets, folding, twins, names, view, tally: tally_of_turn };
        turn.body(body, None, &facts);
        let turned = turn.tally;
        tally.add(&turned);
        if turned.0.iter().all(|each| each.changes == 0) {
            break;
        }
    }
    infer(&mut graph);

    let is_exact = tally.0[INEXACT].changes == 0;
    let (compared, warning) = match engine::compare(&before, &graph, view, is_exact) {
        Comparison::Same(compared) => (Some(compared), None),
        Comparison::Different(why) => {
            let message = format!("the simplified graph does not compute the same: {why}");
            return Err(Error::version(message));
        }
        Comparison::NotRun(error) if must_run => {
            return Err(Error::version(format!(
                "the outputs of the simplified graph can't be compared, because the model does \
                 not run: {}; `relaxed` writes it without the comparison",
                error.message()
            )));
        }
        Comparison::NotRun(error) => {
            let warning = format!(
                "the outputs of the simplified graph were not compared: {}",
                error.message()
            );
            (None, Some(warning))
        }
    };
    let passes: Vec<PassReport> = PASSES
        .into_iter()
        .zip(tally.0)
        .map(|(name, Change { changes, nodes })| PassReport { name, changes, nodes })
        .collect();
    let simplified = Simplified {
        name: name.to_owned(),
        changed: passes.iter().any(|pass| pass.changes > 0),
        before: report::count(&before.body),
        after: report::count(&graph.body),
        passes,
        tensors_folded: folding.tensors,
        bytes_added: bytes(&graph.body, view) - bytes(&before.body, view),
        too_large: folding.too_large,
        compared,
    };
    Ok((graph, simplified, warning))
}

/// Sorts the nodes of a body and of the bodies within, and checks what passes rely on.
pub(crate) fn prepare(body: &mut Body) -> Result<()> {
    let ends = body.inputs.len().max(body.outputs.len());
    if ends > MOST_ENDS {
        let message =
            format!("{ends} inputs or outputs; `simplify`, `from` and `to` support {MOST_ENDS}");
        return Err(Error::memory(message));
    }
    if edit::first_unordered(body).is_some() {
        body.sort_nodes();
    }
    if let Some(node) = edit::first_unordered(body) {
        let name = Escaped::short(&node.name);
        return Err(Error::format(format!("node '{name}' is part of a cycle")));
    }
    body.nodes.iter_mut().flat_map(bodies_mut).try_for_each(prepare)
}

/// Takes the names of all values of a body and of the bodies within.
fn take_names(body: &Body, names: &mut UniqueNames) {
    body.values.iter().for_each(|value| _ = names.take(&value.name));
    body.nodes.iter().flat_map(Node::bodies).for_each(|inner| take_names(inner, names));
}

/// Result of a pass.
#[derive(Clone, Copy, Default)]
struct Change {
    changes: u64,
    /// Nodes that were added, minus nodes that were removed.
    nodes: i64,
}

/// Results of all passes.
#[derive(Default)]
struct Tally([Change; PASSES.len()]);

impl Tally {
    /// Runs a pass over a body, and adds its result.
    fn run(&mut self, pass: usize, body: &mut Body, run: impl FnOnce(&mut Body) -> u64) {
        let before = report::total(body);
        let changes = run(body);
        let slot = &mut self.0[pass];
        slot.changes += changes;
        slot.nodes += report::total(body).cast_signed() - before.cast_signed();
    }

    fn add(&mut self, other: &Self) {
        for (slot, each) in self.0.iter_mut().zip(&other.0) {
            slot.changes += each.changes;
            slot.nodes += each.nodes;
        }
    }
}

/// One run of all passes.
struct Turn<'t, 'v> {
    opsets: &'t [Opset],
    folding: &'t mut Folding,
    twins: &'t mut Twins,
    names: &'t mut UniqueNames,
    view: &'t mut View<'v>,
    tally: Tally,
}

impl Turn<'_, '_> {
    fn body(&mut self, body: &mut Body, outer: Option<&Body>, facts: &Facts) {
        let own = self.opsets.iter().find(|opset| opset.domain.is_empty());
        let opset = own.map_or(1, |opset| opset.version);
        let Self { opsets, folding, twins, names, view, tally } = self;
        tally.run(0, body, |body| folding.run(body, outer, facts, opsets, view));
        tally.run(1, body, |body| no_ops::run(body, opset));
        tally.run(2, body, transposes::run);
        tally.run(3, body, |body| reshapes::run(body, facts, opset, names));
        tally.run(INEXACT, body, |body| batch_norm::run(body, opset, folding, names));
        tally.run(5, body, |body| duplicates::run(body, twins, &**view));
        tally.run(6, body, |body| branches::run(body, names));
        tally.run(7, body, dead::run);
        // A body within reads the tensors of this one.
        let has_bodies = body.nodes.iter().any(|node| node.bodies().next().is_some());
        let around = has_bodies.then(|| body.clone());
        for inner in body.nodes.iter_mut().flat_map(bodies_mut) {
            self.body(inner, around.as_ref(), &Facts::default());
        }
    }
}

/// Returns `true` if a node may return another result each time.
fn is_random(node: &Node) -> bool {
    const RANDOM: [&str; 7] = [
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Bernoulli",
        "Multinomial",
        "Dropout",
    ];
    node.op.domain.is_empty() && RANDOM.contains(&&*node.op.name)
}

/// Returns `true` for element types that quantized weights have.
fn is_quantized(element: ElementType) -> bool {
    element != ElementType::Bool && (1..=8).contains(&element.bits())
}

/// Adds the names of the tensors that a graph uses.
pub(crate) fn used(body: &Body, names: &mut BTreeSet<String>) {
    let mut bodies = vec![body];
    while let Some(body) = bodies.pop() {
        let attributes = body.nodes.iter().flat_map(|node| &node.attributes);
        let held = attributes.filter_map(|attribute| match &attribute.value {
            AttributeValue::Weight(weight) => Some(weight),
            _ => None,
        });
        for weight in body.weights().map(|(_, weight)| weight).chain(held) {
            names.insert(weight.tensor.clone());
            for look in &weight.views {
                if let Look::Joined { with, .. } | Look::Stacked(with) = look {
                    names.extend(with.iter().cloned());
                }
            }
        }
        bodies.extend(body.nodes.iter().flat_map(Node::bodies));
    }
}

/// Returns the bytes of all tensors that a graph uses, each once, and of its constants.
fn bytes(body: &Body, reader: &dyn CheckpointReader) -> i64 {
    let mut names = BTreeSet::new();
    used(body, &mut names);
    let lens: BTreeMap<&str, u64> = reader
        .tensors()
        .iter()
        .map(|info| (info.name.as_str(), info.byte_len().unwrap_or_default()))
        .collect();
    let stored: u64 = names.iter().filter_map(|name| lens.get(name.as_str())).sum();
    let constants =
        body.values.iter().filter(|value| matches!(value.origin, ValueOrigin::Constant(_)));
    let constants: u64 = constants.filter_map(fold::bytes).sum();
    (stored + constants).cast_signed()
}
