//! Types and shapes of the values in real ONNX files, beside those that onnx itself infers.

use std::collections::HashMap;
use std::path::Path;

use apr_core::Limits;
use apr_graph::{
    Attribute, AttributeValue, Body, Dim, Graph, TensorType, ValueOrigin, ValueType, check, cost,
    infer, inline, upgrade,
};

/// Result of onnx for a file.
struct Expected {
    path: String,
    /// `true` if onnx rejects the file with its declared types.
    contradicts: bool,
    /// Types by place and name.
    values: HashMap<(String, String), String>,
}

fn expected(text: &str) -> Vec<Expected> {
    let mut files = Vec::new();
    for line in text.lines() {
        match (line.splitn(3, ' ').collect::<Vec<_>>().as_slice(), files.last_mut()) {
            (["#" | "!", ..], _) => files.push(Expected {
                path: line[2..].to_owned(),
                contradicts: line.starts_with('!'),
                values: HashMap::new(),
            }),
            ([place, name, kind], Some(Expected { values, .. })) => {
                values.insert(((*place).to_owned(), (*name).to_owned()), (*kind).to_owned());
            }
            _ => panic!("{line}"),
        }
    }
    files
}

fn open(path: &Path) -> Option<Graph> {
    let folder = apr_io::ModelFolder::open(path.parent()?).ok()?;
    let name = path.file_name()?.to_str()?;
    apr_onnx::open_in(&folder, name, &Limits::default()).ok()?.graph().ok()?
}

/// Removes the types of values that nodes produce, except of weights stored in nodes: only the
/// value has their types.
fn forget(body: &mut Body) {
    let is_weight = |attribute: &Attribute| matches!(attribute.value, AttributeValue::Weight(_));
    let holds: Vec<bool> =
        body.nodes.iter().map(|node| node.attributes.iter().any(is_weight)).collect();
    for value in &mut body.values {
        let made = match value.origin {
            ValueOrigin::Node(node) => !holds[node.0 as usize],
            ValueOrigin::Outer(_) => true,
            _ => false,
        };
        if made {
            value.kind = ValueType::Unknown;
        }
    }
    for attribute in body.nodes.iter_mut().flat_map(|node| &mut node.attributes) {
        if let AttributeValue::Body(inner) = &mut attribute.value {
            forget(inner);
        }
    }
}

fn tensor(tensor: &TensorType) -> String {
    let element = tensor.element.map_or("?".to_owned(), |element| element.to_string());
    match &tensor.shape {
        None => format!("{element}[*]"),
        Some(shape) => {
            let dims: Vec<_> = shape.iter().map(|dim| dim.to_string().replace(' ', "~")).collect();
            format!("{element}[{}]", dims.join(","))
        }
    }
}

fn show(kind: &ValueType) -> String {
    match kind {
        ValueType::Tensor(kind) => tensor(kind),
        ValueType::Sequence(inner) => format!("seq({})", show(inner)),
        ValueType::Optional(inner) => format!("optional({})", show(inner)),
        _ => "nothing".to_owned(),
    }
}

fn values(body: &Body, place: &str, into: &mut HashMap<(String, String), String>) {
    for value in &body.values {
        into.insert((place.to_owned(), value.name.replace(' ', "~")), show(&value.kind));
    }
    for (position, node) in body.nodes.iter().enumerate() {
        for attribute in &node.attributes {
            for inner in attribute.value.bodies() {
                values(inner, &format!("{place}/{position}.{}", attribute.name), into);
            }
        }
    }
}

/// Returns `true` if our type is at least as specific as theirs.
///
/// A size that they leave open may be anything, and a symbol may be a number.
fn covers(ours: &str, theirs: &str) -> bool {
    let parts = |text: &str| {
        let (head, dims) = text.split_once('[')?;
        let dims = dims.trim_end_matches(')').strip_suffix(']')?;
        Some((
            head.to_owned(),
            dims.split(',').filter(|dim| !dim.is_empty()).map(str::to_owned).collect::<Vec<_>>(),
        ))
    };
    let (Some((our_head, ours)), Some((their_head, theirs))) = (parts(ours), parts(theirs)) else {
        return false;
    };
    let fits = |(ours, theirs): (&String, &String)| {
        let symbol = theirs.parse::<u64>().is_err();
        theirs == "?"
            || ours == theirs
            || (symbol && (ours.parse::<u64>().is_ok() || same_symbol(ours, theirs)))
    };
    let open = theirs == ["*"];
    our_head == their_head
        && (open || (ours.len() == theirs.len() && ours.iter().zip(&theirs).all(fits)))
}

fn same_symbol(ours: &str, theirs: &str) -> bool {
    Dim::parse(&ours.replace('~', " ")) == Dim::parse(&theirs.replace('~', " "))
}

/// Data in another file that is not among the files.
const WITHOUT_DATA: &str = "mixed_data.onnx";

fn expected_and_graphs() -> Option<Vec<(Expected, Graph)>> {
    let folder = apr_testkit::locate::shared_data("onnx")?;
    let files = expected(include_str!("../../../../fixtures/graph/inferred.txt"));
    let files = files.into_iter().filter(|file| !file.path.ends_with(WITHOUT_DATA));
    Some(
        files
            .map(|file| {
                let graph =
                    open(&folder.join(&file.path)).unwrap_or_else(|| panic!("{}", file.path));
                (file, graph)
            })
            .collect(),
    )
}

#[test]
fn shapes_of_real_files_are_onnxs_own() {
    let Some(files) = expected_and_graphs() else { return };
    let (mut compared, mut differences) = (0, Vec::new());
    for (file, mut graph) in files {
        forget(&mut graph.body);
        infer(&mut graph);
        let mut ours = HashMap::new();
        values(&graph.body, "-", &mut ours);
        for (key, theirs) in file.values {
            compared += 1;
            let ours = ours.get(&key).map_or("absent", String::as_str);
            if !covers(ours, &theirs) {
                differences.push(format!(
                    "{}: {} {}: {ours}, onnx says {theirs}",
                    file.path, key.0, key.1
                ));
            }
        }
    }
    assert_eq!(differences, Vec::<String>::new());
    assert!(compared > 3000);
}

#[test]
fn contradictions_in_real_files_are_the_ones_that_onnx_finds() {
    let Some(files) = expected_and_graphs() else { return };
    let mut found = 0;
    for (file, mut graph) in files {
        let findings = infer(&mut graph).findings;
        // Sizes that contradict what is made warn, as in onnxruntime.
        let is_contradiction = |finding: &&apr_graph::Finding| {
            finding.severity == apr_graph::Severity::Error
                || finding.message.contains("is declared")
        };
        let contradiction = findings.list.iter().find(is_contradiction);
        assert!(file.contradicts || contradiction.is_none(), "{}: {contradiction:?}", file.path);
        found += usize::from(contradiction.is_some());
    }
    assert!(found > 25);
}

#[test]
fn upgraded_files_make_the_same_types() {
    let Some(files) = expected_and_graphs() else { return };
    let mut upgraded = 0;
    for (file, mut graph) in files {
        let before = infer(&mut graph).findings;
        let from = graph.opset("").unwrap_or(i64::MAX);
        let sound = from <= 24
            && before.errors().next().is_none()
            && check(&graph).errors().next().is_none();
        let Some(mut newer) = sound
            .then(|| upgrade(&graph, 24).unwrap_or_else(|error| panic!("{}: {error}", file.path)))
        else {
            continue;
        };
        let found = check(&newer);
        assert!(found.errors().next().is_none(), "{}: {found:?}", file.path);
        let found = infer(&mut newer).findings;
        assert!(found.errors().next().is_none(), "{}: {found:?}", file.path);
        upgraded += 1;
    }
    assert!(upgraded > 500);
}

/// Everything that is done with a graph.
fn use_all(mut graph: Graph) {
    let _ = check(&graph);
    let inference = infer(&mut graph);
    let _ = cost(&graph, &inference, &|_| Some(3));
    let _ = upgrade(&graph, 24);
    if let Ok(mut flat) = inline(&graph) {
        infer(&mut flat);
    }
}

#[test]
fn a_file_with_a_changed_byte_is_an_error_or_a_graph() {
    let Some(folder) = apr_testkit::locate::shared_data("onnx") else { return };
    let files = expected(include_str!("../../../../fixtures/graph/inferred.txt"));
    let mut opened = 0;
    for (number, file) in files.iter().enumerate() {
        let bytes = std::fs::read(folder.join(&file.path)).unwrap();
        if bytes.len() > 4096 {
            continue;
        }
        for at in (number % 13..bytes.len()).step_by(13) {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1 << (at % 8);
            let Ok(reader) = apr_onnx::open(bytes, "", &Limits::default()) else { continue };
            if let Ok(Some(graph)) = reader.graph() {
                opened += 1;
                use_all(graph);
            }
        }
    }
    assert!(opened > 5_000);
}
