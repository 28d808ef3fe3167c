//! TensorFlow's graphs: SavedModels and frozen graphs, by the operators of their nodes.
//!
//! ```text
//! SavedModel    2: MetaGraphDef        MetaGraphDef  2: GraphDef
//! GraphDef      1: NodeDef  2: FunctionDefLibrary    FunctionDefLibrary  1: FunctionDef
//! FunctionDef   3: NodeDef             NodeDef       1: name  2: op
//! ```

use std::collections::BTreeSet;

use apr_core::protobuf::{Message, Walker};
use apr_registry::pytorch::{FileVerdict, Leaf};
use apr_registry::{Escaped, Limits, Result};

use super::examine::Found;

/// Operators that run Python, or reach files that are no weights, vocabularies or checkpoints.
const DANGEROUS: [&str; 12] = [
    "DebugIdentity",
    "DebugIdentityV2",
    "DebugIdentityV3",
    "EagerPyFunc",
    "ImmutableConst",
    "MatchingFiles",
    "PyFunc",
    "PyFuncStateless",
    "ReadFile",
    "SqlDataset",
    "WholeFileReaderV2",
    "WriteFile",
];

/// Longest name of an operator, in bytes.
const MAX_NAME: usize = 256;

/// Judges a TensorFlow file; `None` for any other.
///
/// # Errors
/// E001 and E002 for a `saved_model.pb` that is none, E007 when reading fails.
pub(super) fn judge(leaf: &Leaf<'_>, limits: &Limits) -> Result<Option<Found>> {
    let base = leaf.name.rsplit('/').next().unwrap_or_default();
    if base == "keras_metadata.pb" {
        return Ok(Some(lambda_layers(leaf)?));
    }
    if base.starts_with("variables.data-") || base == "variables.index" || base == "fingerprint.pb"
    {
        // Values by name, and digests: nothing of it is a graph.
        return Ok(Some(Vec::new()));
    }
    if !base.ends_with(".pb") {
        return Ok(None);
    }

    let mut operators = BTreeSet::new();
    let saved_model = read(leaf, limits, &[2, 2], &mut operators);
    if saved_model.is_err() || operators.is_empty() {
        operators.clear();
        let graph = read(leaf, limits, &[], &mut operators);
        if base == "saved_model.pb" {
            saved_model?;
        }
        if graph.is_err() || operators.is_empty() {
            return Ok(None);
        }
    }

    let found = DANGEROUS.iter().filter(|name| operators.contains(**name)).map(|name| {
        let message = format!("the operator {name} runs Python or reaches files when it is run");
        (FileVerdict::Dangerous, message)
    });
    Ok(Some(found.collect()))
}

/// Collects the operators of the graph at the end of a path of fields.
fn read(
    leaf: &Leaf<'_>,
    limits: &Limits,
    path: &[u32],
    operators: &mut BTreeSet<String>,
) -> Result<()> {
    let mut walker = Walker::new(leaf.source, limits);
    let message = walker.message();
    follow(&mut walker, message, path, operators)
}

fn follow(
    walker: &mut Walker<'_>,
    mut message: Message,
    path: &[u32],
    operators: &mut BTreeSet<String>,
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

fn graph(
    walker: &mut Walker<'_>,
    mut graph: Message,
    operators: &mut BTreeSet<String>,
) -> Result<()> {
    while let Some(field) = graph.next(walker)? {
        match field.number {
            1 => node(walker, field.message()?, operators)?,
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
    operators: &mut BTreeSet<String>,
) -> Result<()> {
    while let Some(field) = function.next(walker)? {
        if field.number == 3 {
            node(walker, field.message()?, operators)?;
        }
    }
    Ok(())
}

fn node(
    walker: &mut Walker<'_>,
    mut node: Message,
    operators: &mut BTreeSet<String>,
) -> Result<()> {
    while let Some(field) = node.next(walker)? {
        if field.number == 2 {
            let name = field.text(walker)?;
            // TensorFlow registers some thousand; what is longer or of other letters is none.
            if name.len() <= MAX_NAME && name.chars().all(|c| c.is_ascii_graphic()) {
                operators.insert(name);
            }
        }
    }
    Ok(())
}

/// The configurations of Keras' layers are JSON in there; one of a Lambda names its function.
fn lambda_layers(leaf: &Leaf<'_>) -> Result<Found> {
    const LAMBDA: &[u8] = b"\"class_name\": \"Lambda\"";
    let bytes = apr_registry::read_vec(leaf.source, 0, leaf.source.len().min(64 << 20))?;
    let has_lambda = bytes.windows(LAMBDA.len()).any(|window| window == LAMBDA);
    let message = || {
        let name = Escaped::short(leaf.name);
        (FileVerdict::Dangerous, format!("'{name}' has a Lambda layer, which is Python's bytecode"))
    };
    Ok(has_lambda.then(message).into_iter().collect())
}
