//! What loading a model would reach besides its own file.

use std::collections::BTreeSet;

use apr_core::protobuf::Walker;
use apr_core::{ByteSource, Limits, Result};

use crate::proto::{Graph, Model, Node};
use crate::reader::{ExternalLocation, check_location, each_tensor};

/// Domains of operators that everybody knows: ONNX, onnxruntime, PyTorch's exporters.
const KNOWN: [&str; 11] = [
    "",
    "ai.onnx",
    "ai.onnx.ml",
    "ai.onnx.training",
    "ai.onnx.preview.training",
    "ai.onnx.preview",
    "ai.onnx.contrib",
    "com.microsoft",
    "com.microsoft.experimental",
    "com.microsoft.nchwc",
    "com.ms.internal.nhwc",
];

/// Beginnings of further domains that everybody knows.
const KNOWN_BEGINNINGS: [&str; 4] = ["pkg.onnxscript", "pkg.torch", "onnxscript.", "org.pytorch"];

/// Operators that run Python of the program that loads the model.
const PYTHON: [&str; 3] = ["PyOp", "PythonOp", "PyCustomOp"];

/// What a model reaches besides its own file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Scan {
    /// Tensors whose data are said to lie outside of the model's folder, and where.
    pub outside: Vec<(String, String)>,
    /// Operators that run Python, once each.
    pub python: BTreeSet<String>,
    /// Domains of operators that are neither known nor functions of the model.
    pub domains: BTreeSet<String>,
}

/// Looks at the nodes and at the places of data; nothing is resolved or run.
///
/// # Errors
/// E001 and E002 for what is no sound model, E007 when reading fails, E008 over the limits.
pub fn scan(source: &dyn ByteSource, limits: &Limits) -> Result<Scan> {
    let model = Model::read(source, limits)?;
    let mut found = of_model(&model);
    let mut walker = Walker::new(source, limits);
    each_tensor(&model, &mut |name, tensor| {
        let Some(last) = ExternalLocation::of(tensor, &mut walker)? else { return Ok(()) };
        // Of several, loaders may take another one than the last.
        let mut locations = vec![last.location];
        for property in tensor.external.iter().filter(|property| property.key == "location") {
            locations.push(property.text(&mut walker)?);
        }
        let outside = locations.into_iter().find(|location| check_location(location).is_err());
        found.outside.extend(outside.map(|location| (name, location)));
        Ok(())
    })?;
    Ok(found)
}

/// What the nodes of a model are.
pub(crate) fn of_model(model: &Model) -> Scan {
    let mut found = Scan::default();
    let own: BTreeSet<&str> =
        model.functions.iter().map(|function| function.domain.as_str()).collect();
    let functions = model.functions.iter().map(|function| function.nodes.as_slice());
    let mut rest: Vec<&[Node]> =
        model.graph.iter().map(|graph| graph.nodes.as_slice()).chain(functions).collect();

    // A list of what is left needs no stack, however deep graphs lie in each other.
    while let Some(nodes) = rest.pop() {
        for node in nodes {
            found.node(node, &own);
            let attributes = node.attributes.iter();
            let graphs = attributes.flat_map(|attribute| {
                attribute.graph.as_deref().into_iter().chain(&attribute.graphs)
            });
            rest.extend(graphs.map(|graph: &Graph| graph.nodes.as_slice()));
        }
    }

    found
}

impl Scan {
    fn node(&mut self, node: &Node, own: &BTreeSet<&str>) {
        let domain = node.domain.as_str();

        // It may be one of the model's own functions, which runs no Python.
        if PYTHON.contains(&node.op_type.as_str()) && !own.contains(domain) {
            self.python.insert(format!("{domain}::{}", node.op_type));
        }
        let is_known = KNOWN.contains(&domain)
            || KNOWN_BEGINNINGS.iter().any(|known| domain.starts_with(known));
        if !is_known && !own.contains(domain) && !self.domains.contains(domain) {
            self.domains.insert(domain.to_owned());
        }
    }

    /// What a report says about operators.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if !self.python.is_empty() {
            let operators = listed(&self.python);
            warnings.push(format!(
                "it has operators that run Python when the model is loaded: {operators}"
            ));
        }

        if !self.domains.is_empty() {
            warnings.push(format!(
                "it has operators of domains that apr does not know: {}",
                listed(&self.domains)
            ));
        }

        warnings
    }
}

fn listed(names: &BTreeSet<String>) -> String {
    /// Names that are shown.
    const SHOWN: usize = 5;
    let shown: Vec<_> =
        names.iter().take(SHOWN).map(|name| apr_core::Escaped::short(name).to_string()).collect();
    let more = if names.len() > SHOWN {
        format!(" and {} more", names.len() - SHOWN)
    } else {
        String::new()
    };
    format!("{}{more}", shown.join(", "))
}
