//! A graph as the list of what runs: every operator with its path, through all calls of functions.

use std::collections::{BTreeMap, HashMap};

use apr_core::{Error, Result, UniqueNames};
use apr_graph::{AttributeValue, Body, Graph, Meaning, Node, ValueId, ValueOrigin, WeightRef};

/// Maximum number of operators in a trace: a model of a hundred layers has some ten thousand.
const MOST: usize = 1 << 20;
/// Maximum total length of all paths in bytes.
///
/// The paths of a model of ten thousand operators take 1 MiB. A long name of a call, however,
/// precedes the path of each operator in its function.
const LONGEST: usize = 1 << 26;
/// Maximum number of values and operators that are visited, once for each call of their function.
///
/// A model of a hundred layers has some hundred thousand.
const LOOKS: usize = 1 << 24;
/// Maximum nesting of calls, as in the engine.
const DEEPEST: usize = 64;

/// Operator of a graph. Operators inside loops and branches belong to the loop or branch.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Site {
    /// Path, unique in the graph: `layers.3/attention/scores`.
    pub path: String,
    /// The operator: `MatMul`.
    pub op: String,
    /// Operators whose values it reads, as positions in the list.
    pub reads: Vec<usize>,
    /// Weights that it reads, as it looks at them.
    pub weights: Vec<WeightRef>,
    /// `true` for a product that transposes its second input.
    pub transposes: bool,
    /// Inputs of the model that it reads, by name.
    pub inputs: Vec<String>,
    /// Purpose of the output, if it is an output of the model.
    pub meaning: Option<Meaning>,
    /// Number of outputs.
    pub outputs: usize,
}

/// All operators of a graph, in the order of its nodes.
#[derive(Debug, Clone, Default)]
pub struct Sites {
    list: Vec<Site>,
    /// Positions by the node's address and the path of a step.
    by_step: HashMap<usize, HashMap<String, usize>>,
}

/// Source of a value.
#[derive(Debug, Clone)]
enum Source {
    Site(usize),
    Weight(WeightRef),
    /// An input of the model.
    Input(String),
    /// Other source, such as a constant.
    Other,
}

type Sources = BTreeMap<ValueId, Source>;

impl Sites {
    /// Returns the operators of a graph.
    ///
    /// # Errors
    /// E008 if there are more than a million, if their paths take more than 64 MiB, or if functions
    /// call each other too deeply or too often.
    pub fn of(graph: &Graph) -> Result<Self> {
        let mut walk = Walk {
            graph,
            sites: Self::default(),
            taken: UniqueNames::of_tensors(),
            paths: 0,
            looks: 0,
        };
        let body = &graph.body;
        let input = |id: &ValueId| (*id, Source::Input(body.value(*id).name.clone()));
        let found = walk.body(body, "", body.inputs.iter().map(input).collect(), 0)?;
        let mut sites = walk.sites;
        for id in &graph.body.outputs {
            if let Some(Source::Site(at)) = found.get(id) {
                sites.list[*at].meaning = Some(graph.body.value(*id).meaning);
            }
        }
        Ok(sites)
    }

    /// Returns all sites.
    #[must_use]
    pub fn list(&self) -> &[Site] {
        &self.list
    }

    /// The operator that a step of a run is; `None` for calls, and within loops and branches.
    #[must_use]
    pub fn find(&self, path: &str, node: &Node) -> Option<usize> {
        self.by_step.get(&address(node))?.get(path).copied()
    }

    /// The last operator of each group whose value something outside reads, by the group's name in
    /// the order of their first operators.
    #[must_use]
    pub fn ends<'s>(&'s self, group: impl Fn(&'s str) -> &'s str) -> Vec<(&'s str, usize)> {
        let groups: Vec<&str> = self.list.iter().map(|site| group(&site.path)).collect();
        let mut leaves = vec![false; self.list.len()];
        for (at, site) in self.list.iter().enumerate() {
            leaves[at] |= site.meaning.is_some();
            for read in &site.reads {
                leaves[*read] |= groups[*read] != groups[at];
            }
        }

        let mut ends: Vec<(&str, usize)> = Vec::new();
        let mut seen: HashMap<&str, usize> = HashMap::new();
        for (at, name) in groups.iter().enumerate() {
            let place = *seen.entry(name).or_insert_with(|| {
                ends.push((name, at));
                ends.len() - 1
            });
            let held = ends[place].1;
            if leaves[at] || !leaves[held] {
                ends[place].1 = at;
            }
        }
        ends
    }
}

fn address(node: &Node) -> usize {
    std::ptr::from_ref(node) as usize
}

struct Walk<'g> {
    graph: &'g Graph,
    sites: Sites,
    /// Paths that are taken: files may have a name twice.
    taken: UniqueNames,
    /// Bytes of all paths.
    paths: usize,
    /// Values and operators that were looked at.
    looks: usize,
}

impl Walk<'_> {
    /// Adds the operators of a body, and returns the sources of its values.
    fn body(
        &mut self,
        body: &Body,
        around: &str,
        mut sources: Sources,
        depth: usize,
    ) -> Result<Sources> {
        if depth > DEEPEST {
            return Err(Error::memory("functions call each other too deeply to be traced"));
        }
        self.looks = self.looks.saturating_add(body.values.len() + body.nodes.len());
        if self.looks > LOOKS {
            return Err(Error::memory(format!(
                "the calls of the graph's functions have more than {LOOKS} values and operators"
            )));
        }
        for (position, value) in body.values.iter().enumerate() {
            let id = ValueId(u32::try_from(position).unwrap_or(u32::MAX));
            if let ValueOrigin::Weight(weight) = &value.origin {
                sources.entry(id).or_insert_with(|| Source::Weight(weight.clone()));
            }
        }

        for node in &body.nodes {
            let path = joined(around, &node.name);
            let given = |id: &Option<ValueId>| {
                id.and_then(|id| sources.get(&id).cloned()).unwrap_or(Source::Other)
            };
            if let Some(function) = self.graph.function(&node.op) {
                let inputs = function.body.inputs.iter().copied();
                let inner = inputs.zip(node.inputs.iter().map(given)).collect();
                let made = self.body(&function.body, &path, inner, depth + 1)?;
                for (own, inner) in node.outputs.iter().zip(&function.body.outputs) {
                    if let (Some(own), Some(source)) = (own, made.get(inner)) {
                        sources.insert(*own, source.clone());
                    }
                }
                continue;
            }

            let mut read: Vec<Source> = node.inputs.iter().map(given).collect();
            for inner in node.bodies() {
                let outer = inner.values.iter().filter_map(|value| match value.origin {
                    ValueOrigin::Outer(id) => Some(given(&Some(id))),
                    _ => None,
                });
                read.extend(outer);
                weights_of(inner, &mut |weight| read.push(Source::Weight(weight.clone())));
            }
            let at = self.add(body, node, path, read)?;
            for id in node.outputs.iter().flatten() {
                sources.insert(*id, Source::Site(at));
            }
        }

        Ok(sources)
    }

    fn add(&mut self, body: &Body, node: &Node, path: String, read: Vec<Source>) -> Result<usize> {
        let at = self.sites.list.len();
        if at >= MOST {
            return Err(Error::memory(format!("the graph has more than {MOST} operators")));
        }

        // Nodes without a name go by what they make.
        let made = node.outputs.iter().flatten().next().map(|id| body.value(*id).name.as_str());
        let own = match node.name.is_empty() {
            true => joined(&path, made.unwrap_or_default()),
            false => path.clone(),
        };
        self.paths = self.paths.saturating_add(own.len());
        if self.paths > LONGEST {
            return Err(Error::memory(format!(
                "the paths of the graph's operators take more than {} MiB",
                LONGEST >> 20
            )));
        }
        let mut site = Site {
            path: self.taken.unique(own),
            op: node.op.name.to_string(),
            reads: Vec::new(),
            weights: Vec::new(),
            transposes: matches!(
                node.attribute("transB"),
                Some(AttributeValue::Int(turned)) if *turned != 0
            ),
            inputs: Vec::new(),
            meaning: None,
            outputs: node.outputs.len(),
        };
        for source in read {
            match source {
                Source::Site(read) if !site.reads.contains(&read) => site.reads.push(read),
                Source::Weight(weight) if !site.weights.contains(&weight) => {
                    site.weights.push(weight);
                }
                Source::Input(name) if !site.inputs.contains(&name) => site.inputs.push(name),
                _ => {}
            }
        }

        self.sites.by_step.entry(address(node)).or_default().insert(path, at);
        self.sites.list.push(site);
        Ok(at)
    }
}

/// Calls `then` with each weight that a body and those within it read.
fn weights_of(body: &Body, then: &mut dyn FnMut(&WeightRef)) {
    for value in &body.values {
        if let ValueOrigin::Weight(weight) = &value.origin {
            then(weight);
        }
    }
    for inner in body.nodes.iter().flat_map(Node::bodies) {
        weights_of(inner, then);
    }
}

fn joined(around: &str, name: &str) -> String {
    match (around.is_empty(), name.is_empty()) {
        (true, _) => name.to_owned(),
        (false, true) => around.to_owned(),
        (false, false) => format!("{around}/{name}"),
    }
}
