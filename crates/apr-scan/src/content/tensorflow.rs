//! TensorFlow's graphs: SavedModels and frozen graphs, by the operators of their nodes.
//!
//! ```text
//! SavedModel    2: MetaGraphDef        MetaGraphDef  2: GraphDef
//! GraphDef      1: NodeDef  2: FunctionDefLibrary    FunctionDefLibrary  1: FunctionDef
//! FunctionDef   3: NodeDef             NodeDef       1: name  2: op
//! ```

use std::collections::BTreeMap;

use apr_core::protobuf::{Message, Walker};
use apr_registry::{Escaped, HEAD_LEN, Limits, Result, read_vec, tensorflow};

use super::ContentRemarks;
use crate::leaf::Leaf;
use crate::report::FileVerdict;

/// Operators that run Python, or reach files that are no weights, vocabularies or checkpoints.
pub(super) const DANGEROUS: [&str; 22] = [
    "CreateSummaryDbWriter",
    "CreateSummaryFileWriter",
    "DatasetToTFRecord",
    "DebugIdentity",
    "DebugIdentityV2",
    "DebugIdentityV3",
    "EagerPyFunc",
    "ImmutableConst",
    "LMDBReader",
    "MatchingFiles",
    "PyFunc",
    "PyFuncStateless",
    "ReadFile",
    "RemoteCall",
    "RpcCall",
    "SaveDataset",
    "SaveDatasetV2",
    "SqlDataset",
    "WholeFileReader",
    "WholeFileReaderV2",
    "WriteSummary",
    "WriteFile",
];

/// Longest name of an operator, in bytes.
const MAX_NAME: usize = 256;

/// Operators, and a node of each, with the function that it is in.
type Operators = BTreeMap<String, String>;

/// Whether a file is a graph by its first bytes.
pub(crate) fn is_graph(head: &[u8]) -> bool {
    (tensorflow::SAVED_MODEL.recognises)(head) || (tensorflow::GRAPH.recognises)(head)
}

/// Whether a name is that of a shard of a checkpoint: `model.ckpt.data-00000-of-00001`.
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
        // Values by name, and digests: nothing of it is a graph.
        return Ok(Some(Vec::new()));
    }
    if !base.ends_with(".pb") && !is_graph(&head) {
        return Ok(None);
    }

    let mut operators = Operators::new();
    let saved_model = read(leaf, limits, &[2, 2], &mut operators);
    if saved_model.is_err() || operators.is_empty() {
        operators.clear();
        let graph = read(leaf, limits, &[], &mut operators);
        if base == "saved_model.pb" || (tensorflow::SAVED_MODEL.recognises)(&head) {
            saved_model?;
        }
        if graph.is_err() || operators.is_empty() {
            return Ok(None);
        }
    }

    Ok(Some(found(&operators)))
}

/// What is said of operators.
fn found(operators: &Operators) -> ContentRemarks {
    let place = |node: &String| match node.as_str() {
        "" => String::new(),
        node => format!(" (node '{}')", Escaped::short(node)),
    };
    let known = DANGEROUS.iter().filter_map(|name| {
        let place = operators.get(*name).map(place)?;
        let message = format!("the operator {name} {}{place}", what_it_does(name));
        Some((FileVerdict::Dangerous, message))
    });
    let mut found: ContentRemarks = known.collect();
    if let Some(node) = operators.get(PRINTS_TO_A_FILE) {
        let message = format!("the operator PrintV2 writes to a file{}", place(node));
        found.push((FileVerdict::Dangerous, message));
    }
    // Operators that a library adds have a namespace: `Addons>Name`.
    if let Some((name, node)) = operators.iter().find(|(name, _)| name.contains('>')) {
        let name = Escaped::short(name);
        let message = format!("the operator {name} is not part of TensorFlow{}", place(node));
        found.push((FileVerdict::Suspicious, message));
    }
    found
}

/// What a dangerous operator does when the graph runs.
fn what_it_does(operator: &str) -> &'static str {
    match operator {
        "PyFunc" | "PyFuncStateless" | "EagerPyFunc" => "runs Python",
        "WriteFile"
        | "DatasetToTFRecord"
        | "SaveDataset"
        | "SaveDatasetV2"
        | "CreateSummaryFileWriter"
        | "CreateSummaryDbWriter"
        | "WriteSummary" => "writes files",
        "MatchingFiles" => "lists files",
        "RemoteCall" | "RpcCall" => "calls other machines",
        "DebugIdentity" | "DebugIdentityV2" | "DebugIdentityV3" => "sends values elsewhere",
        _ => "reads files",
    }
}

/// Stands for `PrintV2` with a file for its stream.
const PRINTS_TO_A_FILE: &str = "PrintV2 to a file";

/// A graph as text: `op: "NAME"`, where the text may be in parts.
pub(super) fn judge_text(text: &str) -> ContentRemarks {
    let mut operators = Operators::new();
    for (at, _) in text.match_indices("op") {
        let value = text[at + 2..].trim_start().strip_prefix(':').map(str::trim_start);
        let mut rest = value.unwrap_or_default();
        let mut name = String::new();
        while let Some(quote) = rest.chars().next().filter(|c| ['"', '\''].contains(c)) {
            let Some((part, more)) = rest[1..].split_once(quote) else { break };
            name.push_str(part);
            rest = more.trim_start();
        }
        operators.insert(name, String::new());
    }
    if text.contains("output_stream") && text.contains("file://") {
        operators.insert(PRINTS_TO_A_FILE.to_owned(), String::new());
    }
    let mut found = found(&operators);
    if operators.keys().any(|name| name.contains('\\')) {
        found.extend(super::not_examined("a graph whose operators are written with escapes"));
    }
    found
}

/// Collects the operators of the graph at the end of a path of fields.
fn read(leaf: &Leaf<'_>, limits: &Limits, path: &[u32], operators: &mut Operators) -> Result<()> {
    let mut walker = Walker::new(leaf.source, limits);
    let message = walker.message();
    follow(&mut walker, message, path, operators)
}

fn follow(
    walker: &mut Walker<'_>,
    mut message: Message,
    path: &[u32],
    operators: &mut Operators,
) -> Result<()> {
    let Some((&number, rest)) = path.split_first() else {
        return graph(walker, message, operators);
    };
    while let Some(field) = message.next(walker)? {
        if field.number == number {
            follow(walker, field.message()?, rest, operators)?;
        }
    }
    Ok(())
}

fn graph(walker: &mut Walker<'_>, mut graph: Message, operators: &mut Operators) -> Result<()> {
    while let Some(field) = graph.next(walker)? {
        match field.number {
            1 => node(walker, field.message()?, "", operators)?,
            2 => {
                let mut library = field.message()?;
                while let Some(function) = library.next(walker)? {
                    if function.number == 1 {
                        nodes_of_function(walker, function.message()?, operators)?;
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
    operators: &mut Operators,
) -> Result<()> {
    let mut name = String::new();
    while let Some(field) = function.next(walker)? {
        match field.number {
            1 => {
                let mut signature = field.message()?;
                while let Some(field) = signature.next(walker)? {
                    if field.number == 1 {
                        name = format!("{}/", field.text(walker)?);
                    }
                }
            }
            3 => node(walker, field.message()?, &name, operators)?,
            _ => {}
        }
    }
    Ok(())
}

fn node(
    walker: &mut Walker<'_>,
    mut node: Message,
    prefix: &str,
    operators: &mut Operators,
) -> Result<()> {
    let (mut name, mut own) = (String::new(), Vec::new());
    while let Some(field) = node.next(walker)? {
        if field.number == 1 {
            name = field.text(walker)?;
        } else if field.number == 2 {
            let operator = field.text(walker)?;
            // TensorFlow registers some thousand; what is longer or of other letters is none.
            if operator.len() <= MAX_NAME && operator.chars().all(|c| c.is_ascii_graphic()) {
                own.push(operator);
            }
        } else if field.number == 5 && prints_to_a_file(walker, field.message()?)? {
            own.push(PRINTS_TO_A_FILE.to_owned());
        }
    }
    for operator in own {
        operators.entry(operator).or_insert_with(|| format!("{prefix}{name}"));
    }
    Ok(())
}

/// Whether an attribute is a stream that is a file: `output_stream` of `PrintV2`.
fn prints_to_a_file(walker: &mut Walker<'_>, mut attribute: Message) -> Result<bool> {
    let (mut is_stream, mut is_file) = (false, false);
    while let Some(field) = attribute.next(walker)? {
        match field.number {
            1 => is_stream = field.text(walker)? == "output_stream",
            2 => {
                let mut value = field.message()?;
                while let Some(field) = value.next(walker)? {
                    // Bytes, or a number of another kind.
                    let is_short = field.number == 2
                        && field.range().is_ok_and(|range| range.len <= MAX_NAME as u64);
                    if is_short {
                        is_file |= field.bytes(walker)?.starts_with(b"file://");
                    }
                }
            }
            _ => {}
        }
    }
    Ok(is_stream && is_file)
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
            Some(Ok(value)) => {
                found.extend(super::json::judge_value(&value));
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
