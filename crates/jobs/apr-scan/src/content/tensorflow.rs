//! TensorFlow's graphs: SavedModels and frozen graphs, by the operators of their nodes.
//!
//! ```text
//! SavedModel    2: MetaGraphDef        MetaGraphDef  2: GraphDef  6: AssetFileDef
//! GraphDef      1: NodeDef  2: FunctionDefLibrary    FunctionDefLibrary  1: FunctionDef
//! FunctionDef   3: NodeDef             NodeDef       1: name  2: op  3: input  5: attr
//! ```

use std::collections::{BTreeMap, HashMap, HashSet};

use apr_core::protobuf::{Message, Walker};
use apr_registry::{Code, Error, Escaped, HEAD_LEN, Limits, Result, read_vec, tensorflow};

use super::document::Document;
use super::tensorflow_names::{Touches, touches};
use super::tensorflow_paths::{passes, paths, text_of};
use super::{ContentRemarks, textproto};
use crate::leaf::Leaf;
use crate::paths::leads_out;
use crate::report::FileVerdict;

/// Longest name of an operator, in bytes.
const MAX_NAME: usize = 256;

/// Longest path that is looked at, in bytes.
pub(super) const MAX_PATH: u64 = 4096;

/// Inputs of an operator that are remembered.
const MAX_INPUTS: usize = 16;

/// Constants of texts that are remembered, and operators with paths.
const MAX_TEXTS: usize = 10_000;

/// The examined parts of a graph, including its functions.
#[derive(Default)]
pub(super) struct Graph {
    /// Operators, and a node of each, with the function that it is in.
    operators: BTreeMap<String, String>,
    /// Functions, which nodes call like operators.
    functions: HashSet<String>,
    /// Texts of constants, by the names of their nodes.
    pub(super) texts: HashMap<String, String>,
    /// Operators that take a path: the node, and its first inputs.
    pub(super) given: Vec<(String, String, Vec<String>)>,
    /// Operators that pass texts on or make one: the operator and its first inputs, by node.
    pub(super) passing: HashMap<String, (String, Vec<String>)>,
    /// Files in the folder of assets, and the constants that loaders replace by them.
    pub(super) assets: Vec<(String, String)>,
}

impl Graph {
    fn known(&self) -> usize {
        self.operators.keys().filter(|name| touches(name).is_some()).count()
    }

    /// Remembers the text of a constant. Several graphs can have one of the same name, and a
    /// constant several texts: a path out of the folder counts.
    fn constant(&mut self, node: &str, text: String) {
        let is_known = self.texts.get(node).is_some_and(|known| leads_out(known));
        if !is_known && self.texts.len() < MAX_TEXTS {
            self.texts.insert(node.to_owned(), text);
        }
    }
}

/// Returns `true` if the first bytes are those of a graph.
pub(crate) fn is_graph(head: &[u8]) -> bool {
    (tensorflow::SAVED_MODEL.recognises)(head) || (tensorflow::GRAPH.recognises)(head)
}

/// Returns `true` for the name of a checkpoint's shard, such as `model.ckpt.data-00000-of-00001`.
fn is_shard(base: &str) -> bool {
    let number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    base.rsplit_once(".data-")
        .and_then(|(_, numbers)| numbers.split_once("-of-"))
        .is_some_and(|(shard, count)| number(shard) && number(count))
}

/// Judges a TensorFlow file; `None` for any other.
///
/// # Errors
/// E001 and E002 for a `saved_model.pb` that is none, E007 when reading fails.
pub(crate) fn judge(leaf: &Leaf<'_>, limits: &Limits) -> Result<Option<ContentRemarks>> {
    let base = leaf.name.rsplit('/').next().unwrap_or_default();
    if base == "keras_metadata.pb" {
        return Ok(Some(lambda_layers(leaf)?));
    }
    let head = read_vec(leaf.source, 0, leaf.source.len().min(HEAD_LEN))?;
    let is_index = (tensorflow::CHECKPOINT.recognises)(&head) || base == "variables.index";
    if is_shard(base) || is_index || base == "fingerprint.pb" {
        // Values by name, and digests; a graph under such a name is one all the same.
        return Ok(Some(by_content(leaf, limits)?.unwrap_or_default()));
    }
    let is_named = [".pb", ".meta"].iter().any(|end| base.ends_with(end));
    if !is_named && !is_graph(&head) {
        return Ok(None);
    }

    let (mut graphs, failed) = read_all(leaf, limits);
    let is_marked = base == "saved_model.pb" || (tensorflow::SAVED_MODEL.recognises)(&head);
    if graphs.iter().any(|graph| graph.known() > 0) {
        graphs.retain(|graph| graph.known() > 0);
    } else if !is_marked {
        return Ok(None);
    }
    match (graphs.is_empty(), failed) {
        (true, Some(error)) => Err(error),
        _ => Ok(Some(graphs.iter().flat_map(found).collect())),
    }
}

/// Judges a file of any name and with any first bytes as a graph, if it has operators of
/// TensorFlow.
///
/// Fields that no message has can begin a graph: an image's mark, a line of text.
///
/// # Errors
/// E007 when reading fails.
pub(crate) fn by_content(leaf: &Leaf<'_>, limits: &Limits) -> Result<Option<ContentRemarks>> {
    let (mut graphs, failed) = read_all(leaf, limits);
    if let Some(error) = failed.filter(|error| error.code() == Code::Io) {
        return Err(error);
    }
    graphs.retain(|graph| graph.known() > 0);
    Ok((!graphs.is_empty()).then(|| graphs.iter().flat_map(found).collect()))
}

/// Reads a file as each kind of graph file.
///
/// Returns the graphs that have operators, and the first error.
fn read_all(leaf: &Leaf<'_>, limits: &Limits) -> (Vec<Graph>, Option<Error>) {
    let (mut graphs, mut failed) = (Vec::new(), None);
    for kind in [GraphFile::SavedModel, GraphFile::MetaGraph, GraphFile::Graph] {
        let mut graph = Graph::default();
        match read(leaf, limits, kind, &mut graph) {
            Ok(()) if !graph.operators.is_empty() => graphs.push(graph),
            Ok(()) => {}
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    (graphs, failed)
}

/// Kind of a file with graphs, as a loader treats it.
#[derive(Debug, Clone, Copy)]
enum GraphFile {
    /// Graphs with their signatures and assets.
    SavedModel,
    /// One of those: `model.ckpt.meta`.
    MetaGraph,
    /// A frozen graph.
    Graph,
}

/// Returns the findings in a graph.
fn found(graph: &Graph) -> ContentRemarks {
    /// Remarks of one kind.
    const SHOWN: usize = 20;

    let place = |node: &str| match node {
        "" => String::new(),
        node => format!(" (node '{}')", Escaped::short(node)),
    };
    let mut found = ContentRemarks::new();
    let mut others = ContentRemarks::new();
    for (name, node) in &graph.operators {
        let (shown, place) = (Escaped::short(name), place(node));
        match touches(name) {
            Some(Touches::System(what)) => {
                let message = format!("the operator {shown} {what}{place}");
                found.push((FileVerdict::Dangerous, message));
            }
            Some(_) => {}
            None if name == PRINTS_TO_A_FILE => {
                let message = format!("the operator PrintV2 writes to a file{place}");
                found.push((FileVerdict::Dangerous, message));
            }
            None if graph.functions.contains(name) || others.len() == SHOWN => {}
            // Operators that a library adds have a namespace: `Addons>Name`.
            None => {
                let verdict = match name.contains('>') {
                    true => FileVerdict::Suspicious,
                    false => FileVerdict::NotExamined,
                };
                let message = format!("the operator {shown} is not part of TensorFlow{place}");
                others.push((verdict, message));
            }
        }
    }
    found.extend(others);
    found.extend(paths(graph).take(SHOWN));
    found
}

/// Placeholder for `PrintV2` with a file as its stream.
const PRINTS_TO_A_FILE: &str = "PrintV2 to a file";

/// A graph as text, of a SavedModel, a checkpoint or alone.
pub(super) fn judge_text(text: &str) -> ContentRemarks {
    let mut graph = Graph::default();
    let (mut key, mut node) = (String::new(), String::new());
    let (mut operator, mut constant) = (String::new(), None);
    textproto::fields(text, |path, value| match path {
        [.., "node" | "node_def", "name"] => value.clone_into(&mut node),
        [.., "node" | "node_def", "op"] => {
            value.clone_into(&mut operator);
            graph.operators.entry(value.to_owned()).or_insert_with(|| node.clone());
            if touches(value) == Some(Touches::Path) && graph.given.len() < MAX_TEXTS {
                graph.given.push((value.to_owned(), node.clone(), Vec::new()));
            }
            if passes(value) && graph.passing.len() < MAX_TEXTS {
                graph.passing.insert(node.clone(), (value.to_owned(), Vec::new()));
            }
        }
        [.., "node" | "node_def", "input"] if passes(&operator) => {
            let passing = graph.passing.get_mut(&node);
            if let Some((_, inputs)) = passing.filter(|(_, inputs)| inputs.len() < MAX_INPUTS) {
                inputs.push(constant_of(value).to_owned());
            }
        }
        [.., "node" | "node_def", "input"] if touches(&operator) == Some(Touches::Path) => {
            let last = graph.given.last_mut();
            if let Some((.., inputs)) = last.filter(|(.., inputs)| inputs.len() < MAX_INPUTS) {
                inputs.push(constant_of(value).to_owned());
            }
        }
        [.., "signature", "name"] => drop(graph.functions.insert(value.to_owned())),
        [.., "attr", "key"] => value.clone_into(&mut key),
        [.., "asset_file_def", "filename"] => {
            graph.assets.push((constant.take().unwrap_or_default(), value.to_owned()));
        }
        [.., "tensor_info", "name"] => constant = Some(constant_of(value).to_owned()),
        [.., "value", "s"] if key == "output_stream" && value.starts_with("file://") => {
            graph.operators.insert(PRINTS_TO_A_FILE.to_owned(), node.clone());
        }
        [.., "tensor", "string_val"] => graph.constant(&node, value.to_owned()),
        _ => {}
    });
    found(&graph)
}

/// The node of an output: `read:0`, `^read`, and in functions `read:output:0`.
fn constant_of(output: &str) -> &str {
    output.trim_start_matches('^').split(':').next().unwrap_or_default()
}

/// Collects what a file has, read as one of a kind.
fn read(leaf: &Leaf<'_>, limits: &Limits, kind: GraphFile, found: &mut Graph) -> Result<()> {
    let mut walker = Walker::new(leaf.source, limits);
    let mut message = walker.message();
    match kind {
        GraphFile::Graph => graph(&mut walker, message, found),
        GraphFile::MetaGraph => meta_graph(&mut walker, message, found),
        GraphFile::SavedModel => {
            while let Some(field) = message.next(&mut walker)? {
                if field.number == 2 {
                    meta_graph(&mut walker, field.message()?, found)?;
                }
            }
            Ok(())
        }
    }
}

fn meta_graph(walker: &mut Walker<'_>, mut meta: Message, found: &mut Graph) -> Result<()> {
    while let Some(field) = meta.next(walker)? {
        match field.number {
            2 => graph(walker, field.message()?, found)?,
            6 => asset(walker, field.message()?, found)?,
            _ => {}
        }
    }
    Ok(())
}

fn asset(walker: &mut Walker<'_>, mut asset: Message, found: &mut Graph) -> Result<()> {
    let (mut constant, mut file) = (String::new(), String::new());
    while let Some(field) = asset.next(walker)? {
        match field.number {
            1 => {
                let mut info = field.message()?;
                while let Some(field) = info.next(walker)? {
                    if field.number == 1 {
                        constant = constant_of(&field.text(walker)?).to_owned();
                    }
                }
            }
            2 => file = field.text(walker)?,
            _ => {}
        }
    }
    if found.assets.len() < MAX_TEXTS {
        found.assets.push((constant, file));
    }
    Ok(())
}

fn graph(walker: &mut Walker<'_>, mut graph: Message, found: &mut Graph) -> Result<()> {
    while let Some(field) = graph.next(walker)? {
        match field.number {
            1 => node(walker, field.message()?, "", found)?,
            2 => {
                let mut library = field.message()?;
                while let Some(function) = library.next(walker)? {
                    if function.number == 1 {
                        nodes_of_function(walker, function.message()?, found)?;
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn nodes_of_function(
    walker: &mut Walker<'_>,
    mut function: Message,
    found: &mut Graph,
) -> Result<()> {
    let mut name = String::new();
    while let Some(field) = function.next(walker)? {
        match field.number {
            1 => {
                let mut signature = field.message()?;
                while let Some(field) = signature.next(walker)? {
                    if field.number == 1 {
                        let own = field.text(walker)?;
                        name = format!("{own}/");
                        found.functions.insert(own);
                    }
                }
            }
            3 => node(walker, field.message()?, &name, found)?,
            _ => {}
        }
    }
    Ok(())
}

fn node(walker: &mut Walker<'_>, mut node: Message, prefix: &str, found: &mut Graph) -> Result<()> {
    let (mut name, mut own, mut inputs) = (String::new(), Vec::new(), Vec::new());
    let mut text = None;
    while let Some(field) = node.next(walker)? {
        match field.number {
            1 => name = field.text(walker)?,
            2 => {
                let operator = field.text(walker)?;
                // TensorFlow registers some thousand; what is longer or of other letters is none.
                if operator.len() <= MAX_NAME && operator.chars().all(|c| c.is_ascii_graphic()) {
                    own.push(operator);
                }
            }
            3 if inputs.len() < MAX_INPUTS => {
                inputs.push(format!("{prefix}{}", constant_of(&field.text(walker)?)));
            }
            5 => match attribute(walker, field.message()?)? {
                Some(Noted::Printing) => own.push(PRINTS_TO_A_FILE.to_owned()),
                Some(Noted::Text(value)) => text = Some(value),
                None => {}
            },
            _ => {}
        }
    }

    let name = format!("{prefix}{name}");
    if let Some(text) = text {
        found.constant(&name, text);
    }
    for operator in own {
        if touches(&operator) == Some(Touches::Path) && found.given.len() < MAX_TEXTS {
            found.given.push((operator.clone(), name.clone(), inputs.clone()));
        }
        if passes(&operator) && found.passing.len() < MAX_TEXTS {
            found.passing.insert(name.clone(), (operator.clone(), inputs.clone()));
        }
        found.operators.entry(operator).or_insert_with(|| name.clone());
    }
    Ok(())
}

/// Fact about an attribute.
enum Noted {
    /// A stream that is a file: `output_stream` of `PrintV2`.
    Printing,
    /// The text of a constant.
    Text(String),
}

fn attribute(walker: &mut Walker<'_>, mut attribute: Message) -> Result<Option<Noted>> {
    let (mut key, mut bytes, mut text) = (String::new(), Vec::new(), None);
    while let Some(field) = attribute.next(walker)? {
        match field.number {
            1 => key = field.text(walker)?,
            2 => {
                let mut value = field.message()?;
                while let Some(field) = value.next(walker)? {
                    // Bytes, or a number of another kind.
                    let is_short = field.range().is_ok_and(|range| range.len <= MAX_PATH);
                    match field.number {
                        2 if is_short => bytes = field.bytes(walker)?,
                        8 => text = text_of(walker, field.message()?)?,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    Ok(match key.as_str() {
        "output_stream" if bytes.starts_with(b"file://") => Some(Noted::Printing),
        "value" => text.map(Noted::Text),
        _ => None,
    })
}

/// The configurations of Keras' layers are JSON in there; one of a Lambda names its function.
fn lambda_layers(leaf: &Leaf<'_>) -> Result<ContentRemarks> {
    let bytes = apr_registry::read_vec(leaf.source, 0, leaf.source.len().min(64 << 20))?;
    let mut found = ContentRemarks::new();
    let mut rest = &bytes[..];
    // Between the configurations are lengths and names; each begins with a bracket.
    while let Some(at) = rest.iter().position(|&byte| byte == b'{') {
        rest = &rest[at..];
        let mut values = serde_json::Deserializer::from_slice(rest).into_iter();
        match values.next() {
            Some(Ok(Document(value))) => {
                found.extend(super::json::judge_value("", &value));
                rest = &rest[values.byte_offset().max(1)..];
            }
            // A length may have been the bracket.
            _ => rest = &rest[1..],
        }
        if found.len() > 100 {
            break;
        }
    }
    Ok(found)
}
