//! The graphs that a model's file has.

use std::collections::{BTreeMap, HashMap, HashSet};

use apr_core::counted;
use apr_graph::{
    AttributeValue, Body, Constant, ConstantData, ElementType, Graph, Node, ValueOrigin, WeightRef,
    foreign,
};
use apr_registry::tflite::lower::Affine;
use apr_registry::{
    CheckpointReader, Code, Error, Escaped, Format, Limits, Result, TensorInfo, coreml, graphs_of,
    keras, keys, lightgbm, onnx, openvino, tensorflow, tflite, trees, xgboost,
};
use apr_source::Source;
use apr_source::naming::original;
use serde_json::Value;

use crate::graph::GraphPart;
use crate::import::graph_misfits;
use crate::inline::ValidationError;

/// The graphs of the model's original file.
pub(crate) struct OwnGraphs {
    /// Graphs by name; the main one is first.
    pub(crate) parts: Vec<(String, Graph)>,
    /// Names of the tensors that none of them uses.
    pub(crate) unused: Vec<String>,
    /// The format of that file.
    pub(crate) format: &'static Format,
}

/// The graphs, as the file has them: their weights have the names of the model's tensors now.
///
/// # Errors
/// E002 where one is damaged, E007 when reading fails, E008 over the limits.
pub(crate) fn own_graphs(source: &Source<'_>) -> Result<Option<OwnGraphs>> {
    let reader = source.reader();
    let limits = Limits::default();
    let Some((format, mut parts)) = graphs_of(reader, &limits)? else { return Ok(None) };
    let auxiliary = reader.metadata().auxiliary_tensor();
    let now = || {
        reader
            .tensors()
            .iter()
            .map(|info| info.name.as_str())
            .filter(|name| Some(*name) != auxiliary)
    };

    // Graphs refer to tensors by the names that the file gives them. Most models have those names
    // still, and their graphs are read once.
    let before = original(source, format)?;
    let is_as_read = before
        .tensors()
        .iter()
        .map(|info| &info.name)
        .eq(reader.tensors().iter().map(|info| &info.name));
    if !is_as_read {
        parts = graphs_of(&before, &limits)?.map(|(_, parts)| parts).unwrap_or_default();
    }
    let names = before.tensors().iter().map(|info| info.name.as_str()).zip(now()).collect();
    let mut renaming = Renaming { names, used: HashSet::new() };
    for (_, graph) in &mut parts {
        renaming.body(&mut graph.body);
        for function in &mut graph.functions {
            renaming.body(&mut function.body);
        }
    }

    let scales = scales(reader, &renaming.used);
    // Lists of trees are settings of a node, which it has instead of weights.
    let is_list = |name: &str| has_lists(format) && trees::is_in_graph(name);
    let is_used = |name: &str| renaming.used.contains(name) || scales.contains(name);
    let unused = now().filter(|name| !is_used(name) && !is_list(name));
    let unused = unused.map(str::to_owned).collect();
    Ok(Some(OwnGraphs { parts, unused, format }))
}

/// Returns the graphs, or the error if the bytes they are read from are damaged.
///
/// Work that needs no graph continues and reports the error
/// ([`unreadable`](crate::graph::unreadable)).
///
/// # Errors
/// E007 when reading fails, E008 over the limits.
pub(crate) fn own_graphs_or_damage(source: &Source<'_>) -> Result<Result<Option<OwnGraphs>>> {
    match own_graphs(source) {
        Err(error) if matches!(error.code(), Code::Io | Code::Memory) => Err(error),
        found => Ok(found),
    }
}

/// Returns the names of the tensors with the scales and zero points of the used tensors.
fn scales<'r>(reader: &'r dyn CheckpointReader, used: &HashSet<String>) -> HashSet<&'r str> {
    let entries = reader.metadata().object(keys::AFFINE).into_iter().flatten();
    entries
        .filter(|(name, _)| used.contains(*name))
        .flat_map(|(_, entry)| ["scales", "zero_points"].map(|key| entry.get(key)))
        .filter_map(|name| name.and_then(Value::as_str))
        .collect()
}

impl OwnGraphs {
    /// Returns the errors that make the graphs invalid for any runtime.
    pub(crate) fn misfits(&self) -> Vec<ValidationError> {
        let judged = |(name, graph): &(String, Graph)| GraphPart::new(name, graph.clone());
        graph_misfits(self.parts.iter().map(judged))
    }

    /// Returns `true` if the graphs have operators of another framework than ONNX.
    ///
    /// [`in_onnx`](Self::in_onnx) then translates them.
    pub(crate) fn is_translated(&self) -> bool {
        TRANSLATED.contains(&self.format)
    }

    /// Returns `true` if the format may omit the shapes of inputs.
    pub(crate) fn may_lack_shapes(&self) -> bool {
        [&tensorflow::GRAPH, &tensorflow::SAVED_MODEL].contains(&self.format)
    }

    /// Returns the tensors that the graphs use, if what is written of them may have their numbers
    /// as settings.
    pub(crate) fn settings(&self, reader: &dyn CheckpointReader) -> HashSet<String> {
        let unused: HashSet<&String> = self.unused.iter().collect();
        let names = reader.tensors().iter().map(|info| &info.name);
        let may_be = self.is_translated() || has_lists(self.format);
        names.filter(|name| may_be && !unused.contains(name)).cloned().collect()
    }

    /// The tensors that the graphs leave out, which is how the file's program has it.
    pub(crate) fn left_out(&self) -> Option<String> {
        /// Names that are shown.
        const SHOWN: usize = 6;

        // Numbers of the training are no part of what trees compute.
        if has_lists(self.format) {
            return None;
        }
        let names = self.unused.iter().take(SHOWN).map(|name| Escaped::short(name).to_string());
        let mut names: Vec<String> = names.collect();
        if let Some(more) = self.unused.len().checked_sub(SHOWN).filter(|more| *more > 0) {
            names.push(format!("{more} more"));
        }
        let count = counted(self.unused.len() as u64, "tensor");
        (!names.is_empty())
            .then(|| format!("the file's graph does not use {count}: {}", names.join(", ")))
    }

    /// Returns a warning about half precision, which the ONNX graph computes otherwise.
    ///
    /// It applies to Core ML programs, models of OpenVINO, and layers of Keras.
    pub(crate) fn widened(&self) -> Option<String> {
        let bodies = self.parts.iter().map(|(_, graph)| &graph.body);
        let (program, has_halves) = match self.format {
            format if [&coreml::MODEL, &coreml::PACKAGE].contains(&format) => {
                let mut values = bodies.flat_map(|body| &body.values);
                ("Core ML", values.any(|value| value.element() == Some(ElementType::F16)))
            }
            format if format == &openvino::FORMAT => {
                // Weights in half precision are only stored so.
                let is_half = |value: &apr_graph::Value| {
                    !matches!(value.origin, ValueOrigin::Weight(_))
                        && [ElementType::F16, ElementType::BF16]
                            .map(Some)
                            .contains(&value.element())
                };
                ("OpenVINO", bodies.flat_map(|body| &body.values).any(is_half))
            }
            format if [&keras::HDF5, &keras::ARCHIVE].contains(&format) => {
                let functions = self.parts.iter().flat_map(|(_, graph)| &graph.functions);
                let mut bodies = functions.map(|function| &function.body).chain(bodies);
                ("Keras", bodies.any(|body| body.nodes.iter().any(is_half)))
            }
            _ => return None,
        };
        has_halves.then(|| {
            format!("what {program} computes in half precision is computed in single precision")
        })
    }
}

/// Returns `true` for a format whose graphs have the tensors' numbers as settings of a node.
fn has_lists(format: &Format) -> bool {
    [&xgboost::FORMAT, &lightgbm::FORMAT].contains(&format)
}

/// Formats whose graphs are translated into operators of ONNX.
static TRANSLATED: [&Format; 8] = [
    &tflite::FORMAT,
    &tensorflow::GRAPH,
    &tensorflow::SAVED_MODEL,
    &keras::HDF5,
    &keras::ARCHIVE,
    &coreml::MODEL,
    &coreml::PACKAGE,
    &openvino::FORMAT,
];

/// Returns `true` if a layer computes in half precision.
fn is_half(layer: &Node) -> bool {
    let text = match layer.attribute("dtype") {
        Some(AttributeValue::Text(text)) => text.as_slice(),
        _ => &[],
    };
    [&b"float16"[..], b"bfloat16", b"mixed_float16", b"mixed_bfloat16"].contains(&text)
}

/// Checks that the inputs of graphs have shapes, which ONNX files require.
///
/// # Errors
/// E003 for an input whose number of dimensions is not known.
pub(crate) fn check_inputs(graphs: &[(String, Graph)]) -> Result<()> {
    for (_, graph) in graphs {
        for id in &graph.body.inputs {
            let value = graph.body.value(*id);
            if value.shape().is_none() {
                return Err(Error::version(format!(
                    "the graph does not state the number of dimensions of its input '{}', which \
                     an ONNX file must",
                    Escaped::short(&value.name)
                )));
            }
        }
    }
    Ok(())
}

/// Returns a warning about parts of a SavedModel or a Core ML classifier that the ONNX graph lacks.
pub(crate) fn left_out(reader: &dyn CheckpointReader) -> Option<String> {
    let own = reader.metadata().object(coreml::METADATA);
    if let Some(label) = own.and_then(|own| own.get("predicted_feature")).and_then(Value::as_str) {
        let label = Escaped::short(label);
        return Some(format!("the graph returns scores: the class label '{label}' is left out"));
    }
    let names = tensorflow::lower::signatures_left_out(reader.metadata());
    let names: Vec<String> = names.iter().map(|name| Escaped::short(name).to_string()).collect();
    (!names.is_empty()).then(|| format!("other signatures are left out: {}", names.join(", ")))
}

/// Returns `true` if a companion is the file of a graph without its tensors.
///
/// A file with another graph does not need it.
pub(crate) fn is_skeleton(companion: &str) -> bool {
    [onnx::skeleton::COMPANION, apr_skeleton::COMPANION].contains(&companion)
}

impl OwnGraphs {
    /// The graphs with the operators of ONNX.
    ///
    /// # Errors
    /// E003 where there are operators that are not translated, with their names.
    pub(crate) fn in_onnx(self, reader: &dyn CheckpointReader) -> Result<Vec<(String, Graph)>> {
        if self.format == &tflite::FORMAT {
            let weights = Weights { reader };
            return self.lowered(|graph| tflite::lower::lower(graph, &weights));
        }
        if [&tensorflow::GRAPH, &tensorflow::SAVED_MODEL].contains(&self.format) {
            let (weights, metadata) = (Weights { reader }, reader.metadata());
            return self.lowered(|graph| tensorflow::lower::lower(graph, &weights, metadata));
        }
        if [&keras::HDF5, &keras::ARCHIVE].contains(&self.format) {
            return self.lowered(keras::lower::lower);
        }
        if [&coreml::MODEL, &coreml::PACKAGE].contains(&self.format) {
            let weights = Weights { reader };
            return self.lowered(|graph| coreml::lower::lower(graph, &weights));
        }

        if self.format == &openvino::FORMAT {
            let weights = Weights { reader };
            return self.lowered(|graph| openvino::lower::lower(graph, &weights));
        }

        let mut others: BTreeMap<String, u64> = BTreeMap::new();
        for (_, graph) in &self.parts {
            let functions = graph.functions.iter().map(|function| &function.body);
            functions.chain([&graph.body]).for_each(|body| count_foreign(graph, body, &mut others));
        }
        match others.is_empty() {
            true => Ok(self.parts),
            false => Err(self.inexpressible(&others)),
        }
    }
}

impl OwnGraphs {
    /// The graphs in operators of ONNX, each as `lower` writes it.
    fn lowered(
        &self,
        lower: impl Fn(&Graph) -> Result<Graph, BTreeMap<String, u64>>,
    ) -> Result<Vec<(String, Graph)>> {
        let (mut parts, mut others) = (Vec::new(), BTreeMap::new());
        for (name, graph) in &self.parts {
            match lower(graph) {
                Ok(graph) => parts.push((name.clone(), graph)),
                Err(found) => {
                    for (name, count) in found {
                        *others.entry(name).or_default() += count;
                    }
                }
            }
        }
        if others.is_empty() { Ok(parts) } else { Err(self.inexpressible(&others)) }
    }

    /// Returns the error for operators that can't be expressed in ONNX.
    fn inexpressible(&self, others: &BTreeMap<String, u64>) -> Error {
        /// Names that are shown.
        const SHOWN: usize = 12;

        let name = |(name, count): (&String, &u64)| match count {
            1 => Escaped::short(name).to_string(),
            _ => format!("{} ({count})", Escaped::short(name)),
        };
        let mut names: Vec<String> = others.iter().take(SHOWN).map(name).collect();
        if let Some(more) = others.len().checked_sub(SHOWN).filter(|more| *more > 0) {
            names.push(format!("{more} more"));
        }
        let mut domains = self.parts.iter().flat_map(|(_, graph)| &graph.opsets);
        let program = domains.find_map(|opset| foreign(&opset.domain));
        Error::version(format!(
            "the graph has {} operators that apr does not translate to ONNX: {}",
            program.unwrap_or(self.format.name),
            names.join(", ")
        ))
    }
}

/// The tensors of a checkpoint, for a lowering.
struct Weights<'r> {
    reader: &'r dyn CheckpointReader,
}

impl Weights<'_> {
    /// A tensor of not many bytes.
    fn small(&self, name: &str) -> Option<(&TensorInfo, Vec<u8>)> {
        /// Maximum number of bytes that are read of one tensor.
        const MOST: u64 = 1 << 20;

        let tensors = self.reader.tensors();
        let position = tensors.iter().position(|info| info.name == name)?;
        let len = tensors[position].byte_len().ok().filter(|len| *len <= MOST)?;
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        self.reader.read_tensor(position, 0, &mut bytes).ok()?;
        Some((&tensors[position], bytes))
    }
}

impl apr_lower::Weights for Weights<'_> {
    fn constant(&self, tensor: &str) -> Option<Constant> {
        let (info, bytes) = self.small(tensor)?;
        Some(Constant {
            name: String::new(),
            element: ElementType::from_dtype(info.dtype)?,
            shape: info.shape.dims().to_vec(),
            data: ConstantData::Bytes(bytes),
        })
    }
}

impl tflite::lower::Weights for Weights<'_> {
    fn affine(&self, tensor: &str) -> Option<Affine> {
        let entry = self.reader.metadata().object(keys::AFFINE)?.get(tensor)?;
        let named = |key: &str| entry.get(key).and_then(Value::as_str);
        // Scales of blocks are another thing.
        if entry.get("block_size").is_some() {
            return None;
        }
        let scales = named("scales")?;
        let info = self.reader.tensors().iter().find(|info| info.name == scales)?;
        let zero_points = match named("zero_points") {
            Some(name) => Some(apr_lower::Weights::constant(self, name)?.as_ints()?),
            None => None,
        };
        let axis = entry.get("axis").and_then(Value::as_u64).unwrap_or_default();
        Some(Affine {
            scales: scales.to_owned(),
            count: info.shape.dims().iter().product(),
            zero_points,
            axis: usize::try_from(axis).ok()?,
        })
    }
}

/// Counts the operators of other programs in a body, and in those within.
fn count_foreign(graph: &Graph, body: &Body, others: &mut BTreeMap<String, u64>) {
    let functions: HashSet<_> = graph.functions.iter().map(|function| &function.op).collect();
    let mut bodies = vec![body];
    while let Some(body) = bodies.pop() {
        for node in &body.nodes {
            if foreign(&node.op.domain).is_some() && !functions.contains(&node.op) {
                *others.entry(node.op.name.to_string()).or_default() += 1;
            }
            bodies.extend(node.bodies());
        }
    }
}

/// Gives weights the names that their tensors have now.
struct Renaming<'n> {
    /// Current names of the tensors by their names before an import.
    names: HashMap<&'n str, &'n str>,
    /// Names of now that the graph uses.
    used: HashSet<String>,
}

impl Renaming<'_> {
    fn body(&mut self, body: &mut Body) {
        for value in &mut body.values {
            if let ValueOrigin::Weight(weight) = &mut value.origin {
                self.weight(weight);
            }
        }

        for attribute in body.nodes.iter_mut().flat_map(|node| &mut node.attributes) {
            match &mut attribute.value {
                AttributeValue::Weight(weight) => self.weight(weight),
                AttributeValue::Body(body) => self.body(body),
                AttributeValue::Bodies(bodies) => {
                    bodies.iter_mut().for_each(|body| self.body(body));
                }
                _ => {}
            }
        }
    }

    fn weight(&mut self, weight: &mut WeightRef) {
        if let Some(name) = self.names.get(weight.tensor.as_str()) {
            (*name).clone_into(&mut weight.tensor);
        }
        self.used.insert(weight.tensor.clone());
    }
}
