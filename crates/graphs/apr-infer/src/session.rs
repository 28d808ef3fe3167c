//! A graph with its weights, ready to run.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use apr_core::{CheckpointReader, Error, Result};
use apr_graph::{AttributeValue, Body, Graph, ValueId, ValueOrigin};

use crate::kv_cache::{CacheType, CachedHeads, check_cache_type, heads_and_size};
use crate::matrix::can_multiply;
use crate::plan::{BodyPlan, BodyPlans};
use crate::store::Store;
use crate::value::WeightHandle;
use crate::weight::{Weight, Weights};
use crate::{Tensor, Value, constant};

/// Bounds of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunLimits {
    /// Bytes of all values that are alive at the same time, and of weights that are kept in memory;
    /// 4 GiB by default. Weights are kept where they take no more than half of it.
    pub max_memory: u64,
    /// Steps of work of one run ([`apr_core::Work`]); a node is a thousand, and so is each round of
    /// a loop. By default as many as [`Session::run`] says.
    pub max_work: Option<u64>,
    /// Random seed for nodes without a `seed`. Default: 0.
    pub seed: u64,
    /// Arithmetic for weights in blocks. Default: exact.
    pub arithmetic: Arithmetic,
}

/// Arithmetic for products of block-quantized weights with activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Arithmetic {
    /// Products of decoded weights with unchanged activations, in single precision.
    #[default]
    Exact,
    /// Integers with integers, as ggml does: each row of activations is quantized to 8 bits for
    /// each product, in blocks of 32 or 256. This is for weights in all of ggml's blocks. For
    /// weights in `f16` and `bf16` beside them, activations are rounded to that precision, and
    /// products and sums are single. Products with others, `int8` and `int4` among them, and those
    /// whose activations don't fit (infinities, NaN, beyond 8 million, or 65,504 for `f16`), are
    /// exact. So are those of a model that has no blocks.
    Fast,
}

impl Arithmetic {
    /// Returns the name used in reports: `exact` or `fast`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Fast => "fast",
        }
    }

    /// Returns the requested arithmetic if some weights are in blocks, and exact arithmetic
    /// otherwise.
    fn with(self, weights: &dyn CheckpointReader) -> Self {
        let in_blocks = weights.tensors().iter().any(|info| can_multiply(info.dtype));
        if in_blocks { self } else { Self::Exact }
    }
}

/// Steps that all runs of a session may take together beyond the steps expected for their inputs.
/// They take some seconds.
const WORK: u64 = 10_000_000_000;
/// Steps beyond the expected ones that each run may take, whatever earlier runs took.
const WORK_OF_EACH: u64 = WORK / 64;
/// Steps for each element that is given: a hundred nodes.
const WORK_BY_ELEMENT: u64 = 100_000;
/// Steps for each element that is given and each of the weights. A product of matrices takes a
/// sixteenth of one; images may become larger on the way.
const WORK_BY_WEIGHT: u64 = 8;

impl Default for RunLimits {
    fn default() -> Self {
        Self { max_memory: 4 << 30, max_work: None, seed: 0, arithmetic: Arithmetic::Exact }
    }
}

/// A graph that is ready to run, any number of times.
pub struct Session<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) plans: BodyPlans,
    /// Plans of the main body for some of its values.
    pub(crate) narrowed: Mutex<Vec<(Vec<ValueId>, Arc<BodyPlan>)>>,
    weights: Weights<'a>,
    pub(crate) store: Store<'a>,
    /// Weights that are decoded when they are used.
    pub(crate) large: Vec<Weight<'a>>,
    pub(crate) limits: RunLimits,
    /// Bytes that weights take once they are all read and kept.
    kept_bytes: u64,
    /// Elements of all weights.
    weight_elements: u64,
    /// Steps that runs took beyond the steps expected for their inputs.
    beyond: AtomicU64,
    /// Constants, small weights and handles of large ones, by body and value.
    given: HashMap<(usize, ValueId), Value>,
}

impl std::fmt::Debug for Session<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// Maximum size in bytes of weights that are decoded only once. Larger weights, and weights that
/// are multiplied in stored form, are decoded at each use.
const SMALL: u64 = 64 << 10;

impl<'a> Session<'a> {
    /// Looks at all nodes, and finds all weights.
    pub(crate) fn new(
        graph: &'a Graph,
        weights: &'a dyn CheckpointReader,
        limits: RunLimits,
    ) -> Result<Self> {
        let plans = BodyPlans::of(graph)?;
        let mut session = Self {
            graph,
            plans,
            narrowed: Mutex::default(),
            weights: Weights::new(weights),
            store: Store::new(weights, limits.arithmetic.with(weights)),
            limits,
            kept_bytes: 0,
            weight_elements: 0,
            beyond: AtomicU64::new(0),
            given: HashMap::new(),
            large: Vec::new(),
        };

        session.collect(&graph.body)?;
        for function in &graph.functions {
            session.collect(&function.body)?;
        }

        session.keep();
        Ok(session)
    }

    /// Decodes the constants and finds the weights of a body and of its inner bodies.
    fn collect(&mut self, body: &Body) -> Result<()> {
        for (position, value) in body.values.iter().enumerate() {
            let given = match &value.origin {
                ValueOrigin::Constant(constant) => Value::Tensor(constant::tensor(constant)?),
                ValueOrigin::Weight(weight) => {
                    let weight = self.weights.find(weight, value.element())?;
                    self.ready(weight)?
                }
                _ => continue,
            };

            // A body is told by its address, which stays while the graph is borrowed.
            let id = ValueId(u32::try_from(position).unwrap_or(u32::MAX));
            self.given.insert((std::ptr::from_ref(body) as usize, id), given);
        }

        body.nodes
            .iter()
            .flat_map(apr_graph::Node::bodies)
            .try_for_each(|inner| self.collect(inner))
    }

    /// Keeps weights in stored form, if they fit half of the memory limit. Otherwise, they are read
    /// from the checkpoint at each use.
    fn keep(&mut self) {
        let mut tensors: Vec<_> = self.large.iter().flat_map(Weight::tensors).collect();
        tensors.sort_unstable();
        tensors.dedup();
        self.kept_bytes = self.store.keep(&tensors, self.limits.max_memory / 2);
    }

    /// Bytes that values may take beside the weights that are kept.
    pub(crate) fn values_limit(&self) -> u64 {
        self.limits.max_memory.saturating_sub(self.kept_bytes)
    }

    /// Returns the steps of work that a run with `given` input elements may take.
    ///
    /// The work of real models grows with their weights and inputs. A file of some kilobytes must
    /// not request more.
    pub(crate) fn work_limit(&self, given: u64) -> u64 {
        let left = WORK.saturating_sub(self.beyond.load(Ordering::Relaxed)).max(WORK_OF_EACH);
        self.limits.max_work.unwrap_or_else(|| self.work_of(given).saturating_add(left))
    }

    /// Steps that follow from this many elements.
    fn work_of(&self, given: u64) -> u64 {
        let by_weights = self.weight_elements.saturating_mul(WORK_BY_WEIGHT);
        given.saturating_mul(by_weights.saturating_add(WORK_BY_ELEMENT))
    }

    /// Counts the steps of a run with `given` input elements. Otherwise, a file with long runs
    /// could take any amount of time by running often.
    pub(crate) fn count_work(&self, given: u64, spent: u64) {
        self.beyond.fetch_add(spent.saturating_sub(self.work_of(given)), Ordering::Relaxed);
    }

    fn ready(&mut self, weight: Weight<'a>) -> Result<Value> {
        let elements = weight.decoded_bytes() / size_of::<u16>() as u64;
        self.weight_elements = self.weight_elements.saturating_add(elements);
        let is_exact = weight.tensors().all(|tensor| self.store.precision(tensor).is_none());
        if weight.decoded_bytes() <= SMALL && is_exact {
            return weight.decode(&self.store).map(Value::Tensor);
        }
        let handle =
            WeightHandle { number: self.large.len(), element: weight.element(), looks: Vec::new() };
        self.large.push(weight);
        Ok(Value::Weight(handle))
    }

    /// Returns the arithmetic for weights in blocks. It is [`Arithmetic::Fast`] if that was
    /// requested and the model has such weights.
    #[must_use]
    pub fn arithmetic(&self) -> Arithmetic {
        self.store.arithmetic
    }

    /// Checks that keys and values of earlier tokens can be stored as a type. This includes only
    /// keys and values that the graph joins with new ones and does not use otherwise. Others, such
    /// as those of an encoder's states, are not converted.
    ///
    /// # Errors
    /// E003 if heads do not fill the type's blocks, or if there are no such keys and values.
    pub fn check_cache_type(&self, cache_type: CacheType) -> Result<()> {
        check_cache_type(self.graph, cache_type)
    }

    /// Returns the value to keep for an input of the graph. Keys and values that the graph only
    /// joins with new ones are stored as `cache_type`, in memory that grows in place. Other values
    /// are unchanged.
    ///
    /// # Errors
    /// E001 for elements that the type can't hold. Otherwise, returns the errors of
    /// [`check_cache_type`](Self::check_cache_type).
    pub fn cached(&self, input: &str, kept: Value, cache_type: CacheType) -> Result<Value> {
        let body = &self.graph.body;
        let id = body.inputs.iter().find(|id| body.value(**id).name == input);
        match (id.and_then(|id| heads_and_size(self.graph, *id)), kept) {
            (Some((heads, size)), Value::Tensor(tensor)) => {
                let empty = CachedHeads::new(cache_type, heads, size)?;
                Ok(Value::Cached(empty.with(&tensor).map_err(|error| error.for_tensor(input))?))
            }
            (_, kept) => Ok(kept),
        }
    }

    /// Returns the value of an id that is not computed by a node.
    pub(crate) fn given(&self, body: &Body, id: ValueId) -> Option<&Value> {
        self.given.get(&(std::ptr::from_ref(body) as usize, id))
    }

    /// The tensor in an attribute.
    pub(crate) fn attribute_tensor(&self, value: &AttributeValue) -> Result<Tensor> {
        match value {
            AttributeValue::Tensor(constant) => constant::tensor(constant),
            AttributeValue::Weight(weight) => {
                self.weights.find(weight, None)?.decode_within(&self.store, self.limits.max_memory)
            }
            _ => Err(Error::format("the attribute must be a tensor")),
        }
    }
}

#[cfg(test)]
mod tests {
    use apr_core::Limits;
    use apr_graph::GraphBuilder;
    use apr_testkit::apr2::Apr2Builder;

    use super::*;

    #[test]
    fn runs_share_the_work_budget_beyond_what_their_inputs_explain() {
        let file = Apr2Builder::new().metadata("{}").build();
        let weights = apr_format::apr2::open(file, "empty.apr", &Limits::default()).unwrap();
        let graph = GraphBuilder::new(17).finish();
        let mut session = Session::new(&graph, &weights, RunLimits::default()).unwrap();
        assert_eq!(session.work_limit(3), 3 * WORK_BY_ELEMENT + WORK);

        // What follows from the inputs is taken from nobody.
        session.count_work(3, 3 * WORK_BY_ELEMENT);
        assert_eq!(session.work_limit(0), WORK);
        session.count_work(0, 10);
        assert_eq!(session.work_limit(0), WORK - 10);
        session.count_work(0, 3 * WORK);
        assert_eq!(session.work_limit(2), 2 * WORK_BY_ELEMENT + WORK_OF_EACH);

        // What was asked for is that of each run.
        session.limits.max_work = Some(7);
        assert_eq!(session.work_limit(3), 7);
    }
}
