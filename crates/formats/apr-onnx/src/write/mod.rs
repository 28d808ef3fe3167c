//! Writing: a graph and the plan of its tensors become the bytes of a `ModelProto`.
//!
//! ```text
//! model.onnx       ModelProto
//!                  ├─ ir_version, producer
//!                  ├─ graph: nodes, initializers (with their bytes, or where those lie),
//!                  │         inputs, outputs, types
//!                  └─ opset_import, metadata_props, functions
//! model.onnx_data  the bytes of large tensors, each from a multiple of 4 KiB on (64 KiB from 1 MiB
//!                  up)
//! ```
//!
//! Protobuf wants the length of a message in front of it. Names, types and lengths of all tensors
//! are known before any of them is read, so the messages are made first, with holes, and the
//! tensors stream into the holes. Memory is that of the graph and one chunk. A message has less
//! than 2 GiB; above that, tensors lie beside the model.

mod body;
pub(crate) mod message;
mod model;
mod node;
mod types;
mod weights;
mod writer;

use apr_core::{Error, Loss, Result, TensorInfo, check_file_name};
use apr_graph::Graph;

pub use self::model::{Properties, ir_version};
pub use self::weights::holds;
pub use self::writer::OnnxWriter;

use self::message::Message;
use self::weights::Weights;

/// Maximum length in bytes of a file with all tensors.
///
/// Protobuf's libraries count bytes with 31 bits.
const MAX_INSIDE: u64 = (1 << 31) - 1;

/// Location of the tensor data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ExternalData {
    /// In the model's file if it stays below 2 GiB, otherwise in a file beside it.
    #[default]
    Auto,
    /// Into a file beside the model, but for small ones.
    Always,
    /// Into the model's file; models that are too large are refused.
    Never,
}

/// Options for writing a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteOptions {
    /// `true` to announce a single file to the sink, as folders require.
    ///
    /// See [`Sink::next_file`](apr_core::Sink::next_file).
    ///
    /// Several files are always announced.
    pub named_files: bool,
    /// Location of the tensor data.
    pub external_data: ExternalData,
}

/// A model to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// Name of the file, `model.onnx`. The file with the tensors is `model.onnx_data`.
    pub file_name: String,
    /// Computation graph of the model.
    pub graph: Graph,
    /// Properties of the file besides the graph.
    pub properties: Properties,
}

impl Model {
    /// Creates a model whose producer is `apr`.
    #[must_use]
    pub fn new(file_name: &str, graph: Graph) -> Self {
        Self { file_name: file_name.to_owned(), graph, properties: Properties::default() }
    }
}

/// Plans models, each a file of its own, of these tensors. Each weight of a graph names one of the
/// tensors, as it is: views were applied before. A model uses a tensor once.
///
/// A tensor that no weight names is not written, and is among
/// [`Layout::losses`](apr_core::Layout::losses).
///
/// ```
/// use apr_core::{CheckpointWriter, DType, Notes, Shape, TensorInfo};
/// use apr_graph::{Dim, ElementType, GraphBuilder, Meaning};
/// use apr_onnx::write::{Model, WriteOptions, plan};
///
/// let mut graph = GraphBuilder::new(17);
/// let main = graph.body();
/// let x =
///     main.input("x", ElementType::F32, [Dim::symbol("batch"), Dim::fixed(2)], Meaning::Unknown);
/// let weight = main.weight("weight", ElementType::F32, [2, 1]);
/// let product = main.op("MatMul", [x, weight]).output("product");
/// main.output("y", product, Meaning::Unknown);
///
/// let tensor =
///     TensorInfo { name: "weight".into(), dtype: DType::F32, shape: Shape::from([2, 1]) };
/// let model = Model::new("model.onnx", graph.finish());
/// let mut writer = plan(&[model], &[tensor], WriteOptions::default())?;
/// let mut file = Vec::new();
/// writer.begin(&mut file)?;
/// writer.write_chunk(&mut file, &[0; 8], None)?;
/// writer.finish(&mut file, &Notes::default())?;
/// assert_eq!(file.len() as u64, writer.layout().total_len());
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// # Errors
/// E001 for a weight that is not among the tensors or differs from what the graph says of it, and
/// for a name that is not valid for a file. E008 for a model that is too large for one file where
/// only one is allowed, and for graphs that are nested too deep.
pub fn plan(models: &[Model], tensors: &[TensorInfo], options: WriteOptions) -> Result<OnnxWriter> {
    let mut files = Vec::new();
    let mut used = vec![false; tensors.len()];
    for model in models {
        let (message, weights) = encoded(model, tensors, options.external_data)?;
        let (of_model, outside) = weights.finish();
        used.iter_mut().zip(of_model).for_each(|(used, also)| *used |= also);
        files.push((model.file_name.clone(), message.into_pieces()));
        if let Some(outside) = outside.filter(|outside| !outside.pieces.is_empty()) {
            files.push((outside.location, outside.pieces));
        }
    }

    if options.named_files || files.len() > 1 {
        files.iter().try_for_each(|(name, _)| check_file_name(name))?;
    }

    let unused = tensors.iter().zip(used).filter(|(_, used)| !used);
    let losses = unused.map(|(info, _)| Loss {
        name: info.name.clone(),
        what: "tensor".into(),
        why: "the graph does not use it".into(),
    });
    Ok(OnnxWriter::new(files, tensors, losses.collect(), options.named_files))
}

/// The message of a model, with its tensors inside or beside it.
fn encoded<'a>(
    model: &Model,
    tensors: &'a [TensorInfo],
    asked: ExternalData,
) -> Result<(Message, Weights<'a>)> {
    let encode = |location: Option<String>| {
        let mut weights = Weights::new(tensors, location);
        let message = model::model(&model.graph, &model.properties, &mut weights)?;
        Ok::<_, Error>((message, weights))
    };
    let beside = || encode(Some(format!("{}_data", model.file_name)));
    let (message, weights) = match asked {
        ExternalData::Always => beside()?,
        ExternalData::Never => encode(None)?,
        // The length is known once the message is made. Making it again reads no tensor.
        ExternalData::Auto => match encode(None)? {
            (message, _) if message.len() > MAX_INSIDE => beside()?,
            inside => inside,
        },
    };

    if message.len() <= MAX_INSIDE {
        return Ok((message, weights));
    }

    let advice = match asked {
        ExternalData::Never => {
            "; without `external_data` never the tensors are stored in a file next to it"
        }
        _ => ", its tensors not counted",
    };
    let len = message.len();
    let message = format!("the model has {len} bytes, and an ONNX file less than 2 GiB{advice}");
    Err(Error::memory(message).in_file(&model.file_name))
}
