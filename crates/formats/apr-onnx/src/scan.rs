//! What loading a model would reach besides its own file.

use std::collections::BTreeSet;

use apr_core::protobuf::Walker;
use apr_core::{ByteSource, Limits, Result};

use crate::proto::{Graph, Model, Node};
use crate::reader::{ExternalLocation, checked_location, each_tensor};

/// Well-known operator domains: ONNX, onnxruntime and PyTorch's exporters.
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

/// Prefixes of further well-known operator domains.
const KNOWN_BEGINNINGS: [&str; 4] = ["pkg.onnxscript", "pkg.torch", "onnxscript.", "org.pytorch"];

/// Returns `true` for an operator domain of ONNX, onnxruntime or an exporter of PyTorch.
#[must_use]
pub fn is_known_domain(domain: &str) -> bool {
    KNOWN.contains(&domain) || KNOWN_BEGINNINGS.iter().any(|known| domain.starts_with(known))
}

/// Files of data that are listed.
const MAX_DATA: usize = 10_000;

/// Operators that run Python of the program that loads the model.
const PYTHON: [&str; 3] = ["PyOp", "PythonOp", "PyCustomOp"];

/// The files, operators and programs that loading a model uses besides the model's own file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Scan {
    /// Tensors whose declared data location is outside the model's folder, with that location.
    pub outside: Vec<(String, String)>,
    /// Files beside the model in which its tensors have their data, once each.
    pub data: BTreeSet<String>,
    /// Operators that run Python, once each.
    pub python: BTreeSet<String>,
    /// Domains of operators that are neither known nor functions of the model.
    pub domains: BTreeSet<String>,
    /// Programs of accelerators (`EPContext`) in files of their own: the nodes, and the files.
    pub contexts: Vec<(String, String)>,
}

/// Examines the nodes and the data locations, without resolving or running anything.
///
/// # Errors
/// E001 and E002 for a file that is not a valid model, E007 when reading fails, E008 over the
/// limits.
pub fn scan(source: &dyn ByteSource, limits: &Limits) -> Result<Scan> {
    let model = Model::read(source, limits)?;
    let mut walker = Walker::new(source, limits);
    let mut found = of_model(&model);
    found.reaches(&model, &mut walker)?;

    // Training runs graphs of its own, with tensors of their own.
    for span in &model.training {
        let mut training = walker.message_in(*span);
        while let Some(field) = training.next(&mut walker)? {
            if ![1, 2].contains(&field.number) {
                continue;
            }
            let graph = Graph::read(&mut walker, field.message()?)?;
            let part = Model { graph: Some(graph), ..Model::default() };
            let mut more = of_nodes(&part, &own_functions(&model));
            more.reaches(&part, &mut walker)?;
            found.outside.extend(more.outside);
            found.contexts.extend(more.contexts);
            found.data.extend(more.data);
            found.python.extend(more.python);
            found.domains.extend(more.domains);
        }
    }
    Ok(found)
}

/// Examines the nodes of a model.
pub(crate) fn of_model(model: &Model) -> Scan {
    of_nodes(model, &own_functions(model))
}

/// Functions that a model has itself, by domain and name.
fn own_functions(model: &Model) -> BTreeSet<(&str, &str)> {
    let functions = model.functions.iter();
    functions.map(|function| (function.domain.as_str(), function.name.as_str())).collect()
}

fn of_nodes(model: &Model, own: &BTreeSet<(&str, &str)>) -> Scan {
    let mut found = Scan::default();
    for node in nodes(model) {
        found.node(node, own);
    }
    found
}

/// Returns all nodes of a model, including the nodes of nested graphs and of functions.
fn nodes(model: &Model) -> Vec<&Node> {
    let functions = model.functions.iter().map(|function| function.nodes.as_slice());
    let mut rest: Vec<&[Node]> =
        model.graph.iter().map(|graph| graph.nodes.as_slice()).chain(functions).collect();
    let mut all = Vec::new();
    // A list of what is left needs no stack.
    while let Some(nodes) = rest.pop() {
        all.extend(nodes);
        let attributes = nodes.iter().flat_map(|node| &node.attributes);
        let graphs = attributes
            .flat_map(|attribute| attribute.graph.as_deref().into_iter().chain(&attribute.graphs));
        rest.extend(graphs.map(|graph: &Graph| graph.nodes.as_slice()));
    }
    all
}

impl Scan {
    /// Adds the data locations of tensors and of `EPContext` nodes.
    ///
    /// Locations outside the model's folder are listed separately.
    fn reaches(&mut self, model: &Model, walker: &mut Walker<'_>) -> Result<()> {
        each_tensor(model, &mut |name, tensor| {
            let Some(last) = ExternalLocation::of(tensor, walker)? else { return Ok(()) };
            // Of several, loaders may take another one than the last.
            let mut locations = vec![last.location];
            for property in tensor.external.iter().filter(|property| property.key == "location") {
                locations.push(property.text(walker)?);
            }
            let outside = locations.iter().find(|location| checked_location(location).is_err());
            self.outside.extend(outside.map(|location| (name, location.clone())));
            if outside.is_none() && self.data.len() < MAX_DATA {
                self.data.extend(locations);
            }
            Ok(())
        })?;
        nodes(model).into_iter().try_for_each(|node| self.context(node, walker))
    }

    /// An `EPContext` that is not embedded names the file of its program.
    fn context(&mut self, node: &Node, walker: &mut Walker<'_>) -> Result<()> {
        /// Longest name of a file, in bytes.
        const LONGEST: u64 = 4096;

        if node.op_type != "EPContext" {
            return Ok(());
        }
        let attribute =
            |name: &str| node.attributes.iter().find(|attribute| attribute.name == name);
        let is_embedded =
            attribute("embed_mode").and_then(|mode| mode.integer).is_none_or(|mode| mode == 1);
        let text = attribute("ep_cache_context").and_then(|context| context.text);
        if let Some(span) = text.filter(|span| !is_embedded && span.len <= LONGEST) {
            let file = String::from_utf8_lossy(&walker.bytes(span)?).into_owned();
            if !file.is_empty() {
                self.contexts.push((node.name.clone(), file));
            }
        }
        Ok(())
    }

    fn node(&mut self, node: &Node, own: &BTreeSet<(&str, &str)>) {
        let domain = node.domain.as_str();

        // It may be one of the model's own functions, which runs no Python.
        if own.contains(&(domain, node.op_type.as_str())) {
            return;
        }
        if PYTHON.contains(&node.op_type.as_str()) {
            self.python.insert(format!("{domain}::{}", node.op_type));
        }
        if !is_known_domain(domain) && !self.domains.contains(domain) {
            self.domains.insert(domain.to_owned());
        }
    }

    /// Returns the warnings about operators for a report.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if !self.python.is_empty() {
            let operators = listed(&self.python);
            warnings.push(format!(
                "it has operators that run Python when the model is loaded: {operators}"
            ));
        }

        warnings.extend(self.unknown());
        warnings
    }

    /// Returns the warning about operators of unknown domains, if any.
    ///
    /// The loading program must register such operators.
    #[must_use]
    pub fn unknown(&self) -> Option<String> {
        (!self.domains.is_empty()).then(|| {
            format!("it has operators of domains that apr does not know: {}", listed(&self.domains))
        })
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
