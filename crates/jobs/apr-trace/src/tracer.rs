//! The tap that measures.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use apr_graph::Node;
use apr_infer::{Data, Flow, Step, Tap, Tensor, Value};
use apr_registry::Result;
use apr_run::Host;
use serde::Serialize;

use crate::attention::AttentionPattern;
use crate::profile::{DeadNeurons, Profile, correlation};
use crate::sites::Sites;
use crate::statistics::ValueStatistics;

/// Elements of a value that a trace keeps.
const FIRST: usize = 16;

/// An operator that ran.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct OperatorTrace {
    /// Path of the operator: `layers.3/attention/scores`.
    pub path: String,
    /// The operator: `MatMul`.
    pub op: String,
    /// Start in seconds since the beginning of the trace; `None` without a clock.
    pub start: Option<f64>,
    /// Duration in seconds.
    pub seconds: Option<f64>,
    /// Bytes of all values when it was done.
    pub live_bytes: u64,
    /// Number of bytes of the outputs.
    pub made_bytes: u64,
    /// Dimensions of the first output; empty for a scalar, and for a value that is not an array.
    pub shape: Vec<usize>,
    /// Number of NaN or infinite elements in the float outputs, if values are traced.
    #[serde(skip_serializing_if = "is_none_or_zero")]
    pub not_finite: Option<u64>,
    /// Position of its site.
    #[serde(skip)]
    pub site: usize,
}

fn is_none_or_zero(count: &Option<u64>) -> bool {
    count.is_none_or(|count| count == 0)
}

/// A value that was looked at.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ValueTrace {
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Element type, such as `f32` or `i64`, or a description of a value that is not an array.
    #[serde(rename = "type")]
    pub element: String,
    /// Statistics of floats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statistics: Option<ValueStatistics>,
    /// The first elements in row-major order, 16 at most; none of texts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub first: Vec<f64>,
    /// Positions and channels, if the value is the result of a step.
    #[serde(skip)]
    pub(crate) profile: Option<Profile>,
    /// [Correlation](correlation) of neighbours, if the value is an input.
    #[serde(skip)]
    pub(crate) correlation: Option<f64>,
}

impl ValueTrace {
    /// Describes a value, with statistics if it is an array of floats.
    ///
    /// # Errors
    /// Returns the same errors as [`ValueStatistics::of`].
    pub fn of(value: &Value) -> Result<Self> {
        let (shape, element) = match value.tensor() {
            Ok(tensor) => (tensor.shape().to_vec(), tensor.element().name().to_owned()),
            Err(_) => (Vec::new(), value.kind().to_owned()),
        };
        let statistics = ValueStatistics::of(value)?;
        let first = value.tensor().map(first).unwrap_or_default();
        Ok(Self { shape, element, statistics, first, profile: None, correlation: None })
    }

    /// Describes the result of a step, with its profile.
    pub(crate) fn of_result(value: &Value) -> Result<Self> {
        Ok(Self { profile: Profile::of(value), ..Self::of(value)? })
    }

    /// Describes an input, with the correlation of neighbours.
    pub(crate) fn of_input(value: &Value) -> Result<Self> {
        Ok(Self { correlation: correlation(value), ..Self::of(value)? })
    }
}

/// The first elements of a tensor.
fn first(tensor: &Tensor) -> Vec<f64> {
    fn widened<T: Copy>(values: &[T], widen: impl Fn(T) -> f64) -> Vec<f64> {
        values.iter().take(FIRST).copied().map(widen).collect()
    }
    match tensor.data() {
        Data::F32(values) => widened(values, f64::from),
        Data::F64(values) => widened(values, |value| value),
        Data::I8(values) => widened(values, f64::from),
        Data::I16(values) => widened(values, f64::from),
        Data::I32(values) => widened(values, f64::from),
        Data::I64(values) => widened(values, |value| value as f64),
        Data::U8(values) => widened(values, f64::from),
        Data::U16(values) => widened(values, f64::from),
        Data::U32(values) => widened(values, f64::from),
        Data::U64(values) => widened(values, |value| value as f64),
        Data::Text(_) => Vec::new(),
    }
}

/// Receives values, each with the name of the model's part and its path.
pub type ValueSink<'s> = dyn FnMut(&str, &str, &Value) -> Result<()> + 's;

/// Values that a tracer reads.
#[derive(Default)]
pub(crate) struct Watched<'s> {
    /// Values of these sites.
    pub(crate) sites: HashSet<usize>,
    /// Attention, and whether values are finite.
    pub(crate) looks_inside: bool,
    /// Receives every value, under the name of a part.
    pub(crate) sink: Option<(&'s str, &'s mut ValueSink<'s>)>,
}

/// Measures a run.
pub(crate) struct Tracer<'t, 's> {
    host: &'t dyn Host,
    sites: &'t Sites,
    watched: Watched<'s>,
    begun: Option<Duration>,
    entered: Option<Duration>,
    pub(crate) operators: Vec<OperatorTrace>,
    pub(crate) values: HashMap<usize, ValueTrace>,
    pub(crate) attention: Vec<(usize, AttentionPattern)>,
    /// Dead neurons after activation functions that cut at zero.
    pub(crate) activations: Vec<(usize, DeadNeurons)>,
    /// Error that ended the tracing of a value.
    pub(crate) failed: Option<apr_registry::Error>,
}

impl<'t, 's> Tracer<'t, 's> {
    pub(crate) fn new(
        host: &'t dyn Host,
        sites: &'t Sites,
        watched: Watched<'s>,
        begun: Option<Duration>,
    ) -> Self {
        Self {
            host,
            sites,
            watched,
            begun,
            entered: None,
            operators: Vec::new(),
            values: HashMap::new(),
            attention: Vec::new(),
            activations: Vec::new(),
            failed: None,
        }
    }

    pub(crate) fn host(&self) -> &'t dyn Host {
        self.host
    }

    pub(crate) fn sites(&self) -> &'t Sites {
        self.sites
    }

    fn look(&mut self, site: usize, step: &Step<'_>) -> Result<()> {
        let path = &self.sites.list()[site].path;
        let Some(value) = step.outputs.first() else { return Ok(()) };
        if self.watched.sites.contains(&site) {
            self.values.insert(site, ValueTrace::of_result(value)?);
        }
        if self.watched.looks_inside && is_softmax(step.node) {
            let pattern = AttentionPattern::of(path, value);
            self.attention.extend(pattern.map(|pattern| (site, pattern)));
        }
        if self.watched.looks_inside
            && step.node.op.is("Relu")
            && let Some(profile) = Profile::of(value)
        {
            let (dead, of, inputs) = (profile.dead, profile.width, profile.inputs());
            self.activations.push((site, DeadNeurons { path: path.clone(), dead, of, inputs }));
        }
        if let Some((part, sink)) = &mut self.watched.sink {
            sink(part, path, value)?;
        }
        Ok(())
    }
}

fn is_softmax(node: &Node) -> bool {
    node.op.is("Softmax")
}

/// Elements of floats that are not finite.
fn not_finite(outputs: &[Value]) -> u64 {
    let of = |value: &Value| {
        let tensor = value.tensor().ok().filter(|tensor| tensor.element().is_float())?;
        let values = tensor.floats().ok()?;
        // A sum of products with zero is zero exactly where all are finite, and vectorizes.
        let probe: f32 = values.iter().map(|value| value * 0.0).sum();
        (probe != 0.0 || probe.is_nan())
            .then(|| values.iter().filter(|value| !value.is_finite()).count() as u64)
    };
    outputs.iter().filter_map(of).sum()
}

impl Tap for Tracer<'_, '_> {
    fn wants(&mut self, path: &str, node: &Node) -> bool {
        self.sites.find(path, node).is_some() || self.host.is_cancelled()
    }

    fn before(&mut self, _: &str, _: &Node) {
        self.entered = self.host.elapsed();
    }

    fn after(&mut self, step: &Step<'_>) -> Flow {
        let now = self.host.elapsed();
        if self.host.is_cancelled() {
            return Flow::Stop;
        }
        let Some(site) = self.sites.find(step.path, step.node) else { return Flow::Continue };
        let since = |from: Option<Duration>, to: Option<Duration>| {
            from.zip(to).map(|(from, to)| to.saturating_sub(from).as_secs_f64())
        };
        let of = &self.sites.list()[site];
        self.operators.push(OperatorTrace {
            path: of.path.clone(),
            op: of.op.clone(),
            start: since(self.begun, self.entered),
            seconds: since(self.entered, now),
            live_bytes: step.live_bytes,
            made_bytes: step.outputs.iter().map(bytes).sum(),
            shape: step.outputs.first().map(shape).unwrap_or_default(),
            not_finite: self.watched.looks_inside.then(|| not_finite(step.outputs)),
            site,
        });

        match self.look(site, step) {
            Ok(()) => Flow::Continue,
            Err(error) => {
                self.failed = Some(error);
                Flow::Stop
            }
        }
    }

    fn splits(&mut self, path: &str, node: &Node) -> bool {
        let is_seen = self.watched.sink.is_some()
            || self.watched.looks_inside && (is_softmax(node) || node.op.is("Relu"))
            || self.sites.find(path, node).is_some_and(|site| self.watched.sites.contains(&site));
        is_seen || self.host.is_cancelled()
    }
}

fn shape(value: &Value) -> Vec<usize> {
    value.tensor().map(|tensor| tensor.shape().to_vec()).unwrap_or_default()
}

fn bytes(value: &Value) -> u64 {
    value.tensor().map_or(0, Tensor::bytes)
}
