//! Writing: a graph and the plan of its tensors become the bytes of a `ModelProto`.
//!
//! ```text
//! model.onnx       ModelProto
//!                  ├─ ir_version, producer
//!                  ├─ graph: nodes, initializers (with their bytes, or where those lie), inputs, outputs, types
//!                  └─ opset_import, metadata_props, functions
//! model.onnx_data  the bytes of large tensors, each from a multiple of 4 KiB on (64 KiB from 1 MiB up)
//! ```
//!
//! Protobuf wants the length of a message in front of it. Names, types and lengths of all tensors are known before any
//! of them is read, so the messages are made first, with holes, and the tensors stream into the holes. Memory is that of
//! the graph and one chunk. A message has less than 2 GiB; above that, tensors lie beside the model.

mod body;
mod message;
mod model;
mod node;
mod types;
mod weights;
mod writer;

use apr_core::{Due, Error, FileInfo, Layout, Loss, PlannedTensor, Result, TensorInfo, check_file_name};
use apr_graph::Graph;

pub use self::model::ir_version;
pub use self::writer::OnnxWriter;

use self::message::{Message, Piece};
use self::weights::{Outside, Weights};

/// Most bytes of a file that holds everything: protobuf's libraries count bytes with 31 bits.
const MAX_INSIDE: u64 = (1 << 31) - 1;

/// Where the bytes of tensors go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ExternalData {
    /// Into the model's file while that stays below 2 GiB.
    #[default]
    Auto,
    /// Into a file beside the model, but for small ones.
    Always,
    /// Into the model's file; models that are too large are refused.
    Never,
}

/// How to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteOptions {
    /// Name of the file, `model.onnx`; that of the tensors beside it is `model.onnx_data`.
    pub file_name: String,
    /// Whether the file is announced to [`Sink::next_file`](apr_core::Sink::next_file), as folders need it. Where there
    /// are two files, both are.
    pub named_files: bool,
    /// Where the bytes of tensors go.
    pub external_data: ExternalData,
    /// What the file says besides the graph.
    pub properties: Properties,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            file_name: "model.onnx".into(),
            named_files: false,
            external_data: ExternalData::Auto,
            properties: Properties::default(),
        }
    }
}

/// What a model's file says besides the graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Properties {
    /// The least version of the file format to write; a newer one is written where the graph needs it.
    pub ir_version: i64,
    /// The program that wrote the model.
    pub producer_name: String,
    /// Its version.
    pub producer_version: String,
    /// Reverse domain name of who made the model.
    pub domain: String,
    /// Version of the model.
    pub model_version: Option<i64>,
    /// A note for people.
    pub doc: String,
    /// Free pairs of keys and values.
    pub metadata: Vec<(String, String)>,
}

impl Default for Properties {
    fn default() -> Self {
        Self {
            ir_version: 0,
            producer_name: "apr".into(),
            producer_version: env!("CARGO_PKG_VERSION").into(),
            domain: String::new(),
            model_version: None,
            doc: String::new(),
            metadata: Vec::new(),
        }
    }
}

/// Plans a model. Each weight of the graph names one of the tensors, as it is: views were applied before.
///
/// A tensor that no weight names is not written, and is among [`Layout::losses`].
///
/// ```
/// use apr_core::{CheckpointWriter, DType, Notes, Shape, TensorInfo};
/// use apr_graph::{Dim, ElementType, GraphBuilder, Meaning};
/// use apr_onnx::write::{WriteOptions, plan};
///
/// let mut graph = GraphBuilder::new(17);
/// let main = graph.body();
/// let x = main.input("x", ElementType::F32, [Dim::symbol("batch"), Dim::fixed(2)], Meaning::Unknown);
/// let weight = main.weight("weight", ElementType::F32, [2, 1]);
/// let product = main.op("MatMul", [x, weight]).output("product");
/// main.output("y", product, Meaning::Unknown);
///
/// let tensor = TensorInfo { name: "weight".into(), dtype: DType::F32, shape: Shape::from([2, 1]) };
/// let mut writer = plan(&graph.finish(), &[tensor], &WriteOptions::default())?;
/// let mut file = Vec::new();
/// writer.begin(&mut file)?;
/// writer.write_chunk(&mut file, &[0; 8], None)?;
/// writer.finish(&mut file, &Notes::default())?;
/// assert_eq!(file.len() as u64, writer.layout().total_len());
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// # Errors
/// E001 for a weight that is not among the tensors or differs from what the graph says of it, and for a file name that
/// is none; E008 for a model that is too large for one file where it must be one, and graphs that lie within each other
/// too deep.
pub fn plan(graph: &Graph, tensors: &[TensorInfo], options: &WriteOptions) -> Result<OnnxWriter> {
    let inside = || {
        let mut weights = Weights::new(tensors, None);
        let message = model::model(graph, &options.properties, &mut weights)?;
        Ok::<_, Error>((message, weights))
    };
    let (message, weights) = match options.external_data {
        ExternalData::Always => beside(graph, tensors, options)?,
        ExternalData::Never | ExternalData::Auto => match inside()? {
            (message, weights) if message.len() <= MAX_INSIDE => (message, weights),
            _ if options.external_data == ExternalData::Auto => beside(graph, tensors, options)?,
            (message, _) => {
                let message = format!(
                    "the model has {} bytes, and an ONNX file less than 2 GiB; without `--external-data never` the \
                     tensors lie beside it",
                    message.len()
                );
                return Err(Error::memory(message));
            }
        },
    };
    if message.len() > MAX_INSIDE {
        return Err(Error::memory("the graph alone exceeds the 2 GiB of an ONNX file"));
    }
    let losses = weights.unused().map(|position| Loss {
        name: tensors[position].name.clone(),
        what: "tensor".into(),
        why: "the model's graph does not use it".into(),
    });
    let losses = losses.collect();
    Ok(writer(message, weights.into_outside(), tensors, losses, options))
}

/// The model with its tensors in a file beside it.
fn beside<'a>(graph: &Graph, tensors: &'a [TensorInfo], options: &WriteOptions) -> Result<(Message, Weights<'a>)> {
    let location = format!("{}_data", options.file_name);
    check_file_name(&location)?;
    let mut weights = Weights::new(tensors, Some(location));
    let message = model::model(graph, &options.properties, &mut weights)?;
    Ok((message, weights))
}

fn writer(
    message: Message,
    outside: Option<Outside>,
    tensors: &[TensorInfo],
    losses: Vec<Loss>,
    options: &WriteOptions,
) -> OnnxWriter {
    let len = message.len();
    let pieces = message.into_pieces();
    let mut layout = Layout { losses, ..Layout::default() };
    layout.files.push(FileInfo { name: options.file_name.clone(), len });
    let mut offset = 0;
    for piece in &pieces {
        match piece {
            Piece::Bytes(bytes) => offset += bytes.len() as u64,
            Piece::Hole(source, len) => {
                layout.tensors.push(PlannedTensor { source: *source, file: 0, offset, len: *len });
                offset += len;
            }
        }
    }
    if let Some(outside) = outside.filter(|outside| !outside.placed.is_empty()) {
        layout.files.push(FileInfo { name: outside.location, len: outside.len });
        let placed = outside.placed.into_iter();
        layout.tensors.extend(placed.map(|(source, offset, len)| PlannedTensor { source, file: 1, offset, len }));
    }
    let names = layout.tensors.iter().map(|planned| tensors[planned.source].name.clone()).collect();
    let named = options.named_files || layout.files.len() > 1;
    OnnxWriter { layout, names, pieces: pieces.into(), named, due: Due::default(), file: 0, beside: 0 }
}
