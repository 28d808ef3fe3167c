//! What a model computes: the layers of its network, or the operations of its program, as nodes of
//! the domain `coreml`.
//!
//! The models of a pipeline are graphs of their own, and so are the functions of a program. Weights
//! are inputs of the nodes that have them; constants of a program that are no weights are constants
//! of the graph. Branches and loops have bodies.

mod frames;
mod network;
mod program;
mod types;

use std::collections::BTreeMap;

use apr_core::protobuf::{Message, Walker};
use apr_core::{CheckpointReader, Error, Limits, Result, TensorInfo};
use apr_graph::{Body, Dim, ElementType, Graph, Opset, TensorType, ValueType};
use apr_skeleton::Skeleton;

use crate::model::{Parts, pipeline};
use crate::{MODEL, PACKAGE};

/// The domain of the layers and operations.
pub const DOMAIN: &str = "coreml";

/// Number of the model type for neural network classifiers.
const CLASSIFIER: u32 = 403;

/// Maximum nesting of pipelines.
const MAX_PIPELINES: u32 = 8;

/// Returns the graphs of the Core ML model that a checkpoint was imported from, by their names.
///
/// Returns `None` if the checkpoint has no Core ML model, or a model that is neither a network nor
/// a program. Weights have the names of that model's tensors.
///
/// # Errors
/// E001 for pipelines that are too deep, E002 for a damaged companion or file, E007 when reading
/// fails, E008 over the limits.
pub fn graphs_of(
    reader: &dyn CheckpointReader,
    limits: &Limits,
) -> Result<Option<Vec<(String, Graph)>>> {
    let formats = [MODEL.id, PACKAGE.id];
    let Some(skeleton) = Skeleton::of(reader, &formats, limits)? else { return Ok(None) };
    let limits = skeleton.limits(limits);
    let mut walker = Walker::new(skeleton.source(), &limits);
    let message = walker.message();
    let mut models = Models {
        tensors: reader.tensors().iter().map(|info| (info.name.as_str(), info)).collect(),
        graphs: Vec::new(),
    };
    let read = models.add(&mut walker, message, "", 0);
    read.map_err(|error| error.in_file(skeleton.file()))?;
    Ok(Some(models.graphs).filter(|graphs| !graphs.is_empty()))
}

/// Tensors of a checkpoint, by their names.
type Tensors<'r> = BTreeMap<&'r str, &'r TensorInfo>;

/// Returns the type of a tensor.
fn type_of(info: &TensorInfo) -> ValueType {
    ValueType::Tensor(TensorType {
        element: ElementType::from_dtype(info.dtype),
        shape: Some(info.shape.dims().iter().copied().map(Dim::fixed).collect()),
    })
}

/// The graphs of a model and of its nested models.
struct Models<'r> {
    /// The checkpoint's tensors, by their names.
    tensors: Tensors<'r>,
    graphs: Vec<(String, Graph)>,
}

impl Models<'_> {
    fn add(
        &mut self,
        walker: &mut Walker<'_>,
        message: Message,
        prefix: &str,
        depth: u32,
    ) -> Result<()> {
        if depth > MAX_PIPELINES {
            let message = format!("more than {MAX_PIPELINES} pipelines are in each other");
            return Err(Error::format(message));
        }
        let parts = Parts::read(walker, message)?;
        let Some(own) = parts.own else { return Ok(()) };
        let name = prefix.strip_suffix('/').unwrap_or("model").to_owned();
        match own.number {
            200..=202 => {
                for (name, model) in pipeline(walker, &own)? {
                    walker.keep((prefix.len() + name.len()) as u64)?;
                    self.add(walker, model, &format!("{prefix}{name}/"), depth + 1)?;
                }
            }
            303 | 403 | 500 => {
                let ends = match parts.description {
                    Some(description) => types::ends(walker, description)?,
                    None => Default::default(),
                };
                let (network, is_classifier) = (own.message()?, own.number == CLASSIFIER);
                let tensors = &self.tensors;
                let body = network::body(walker, network, &ends, is_classifier, prefix, tensors)?;
                self.push(name, body, parts.version);
            }
            502 => {
                for (function, body) in
                    program::bodies(walker, own.message()?, prefix, &self.tensors)?
                {
                    let name = if function.is_empty() { name.clone() } else { function };
                    self.push(name, body, parts.version);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn push(&mut self, name: String, body: Body, version: u64) {
        let version = i64::try_from(version).unwrap_or_default().max(1);
        let opsets = vec![Opset { domain: DOMAIN.into(), version }];
        self.graphs.push((name, Graph { opsets, functions: Vec::new(), body }));
    }
}
