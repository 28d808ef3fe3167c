//! The names that exporters lost, and the graph still tells.
//!
//! PyTorch's exporters fold what they can: the weight of a linear layer becomes an anonymous
//! `onnx::MatMul_314` or `val_46`, transposed. The node that uses it still says where it was: by
//! its name, `/encoder/layer.0/query/MatMul`, or by the modules that the exporter notes down
//! (`pkg.torch.onnx.name_scopes`). The path of the module and what the operator does with the
//! tensor make the name again: `encoder.layer.0.query.weight`.

use std::collections::{HashMap, HashSet};

use apr_core::Result;
use apr_core::protobuf::Walker;

use crate::proto::{Graph, Node};

/// Key of the node property in which the newer exporter stores the modules around a node.
const SCOPES: &str = "pkg.torch.onnx.name_scopes";

/// Names that the newer exporter gives to computed values, with a number from the second one on.
const OPERATIONS: [&str; 8] =
    ["val", "zeros", "ones", "full", "new_zeros", "new_ones", "new_full", "scalar_tensor"];

/// The module that turns keys and queries, and its frequencies, which are computed and no weights.
const ROTARY: &str = "rotary_emb";
const FREQUENCIES: &str = "rotary_emb.inv_freq";

/// The table of positions in its module.
const POSITIONS: &str = "embed_positions.weight";

/// Maximum number of leading modules that scopes omit.
const LEFT_OUT: usize = 4;

/// Maximum number of nodes that pass tensors on to their users; each is visited once.
const MAX_ALIASES: usize = 1 << 20;

/// The facts that the graph reveals about a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Revealed {
    /// The name of the parameter it was.
    pub(crate) name: String,
    /// `true` if the parameter is the transpose of the tensor.
    pub(crate) transposed: bool,
    /// `true` if the parameter is a vector, without the file's dimensions of 1.
    pub(crate) squeezed: bool,
    /// Shape in the file, if the tensor is squeezed.
    pub(crate) stored_shape: Option<Vec<u64>>,
}

impl Revealed {
    /// Returns the facts about a matrix that the file declares to be stored transposed.
    pub(crate) fn transposed(name: &str) -> Self {
        Self { name: name.to_owned(), transposed: true, squeezed: false, stored_shape: None }
    }
}

/// A tensor whose name may not be the name of a parameter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate<'m> {
    pub(crate) name: &'m str,
    pub(crate) rank: usize,
    /// `true` if all dimensions after the first are 1.
    pub(crate) is_column: bool,
    /// `true` if the tensor is a matrix with a single row.
    pub(crate) is_row: bool,
    /// `true` if the tensor is a single number.
    pub(crate) is_scalar: bool,
    /// `true` if the tensor is small enough to be part of the graph.
    pub(crate) is_small: bool,
}

impl Candidate<'_> {
    /// Returns `true` if the tensor is a constant, not a parameter of the module at `path`.
    fn is_constant(&self, path: &str) -> bool {
        self.is_scalar || self.is_small && path.ends_with(ROTARY)
    }
}

/// The facts that the graph reveals about all tensors.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Revealed facts by the name of the tensor in the file.
    pub(crate) revealed: HashMap<String, Revealed>,
    /// Numbers that an exporter put among the weights.
    pub(crate) constants: HashSet<String>,
    /// Scales and biases that an exporter added to a normalization without parameters of its own.
    ///
    /// If another tensor has the same revealed name, that tensor keeps the name.
    makeshift: HashSet<String>,
    /// `true` if the names in the file are known to be names of other modules.
    is_certain: bool,
    /// `true` if the outermost module is a stack of layers with embeddings.
    ///
    /// A tensor that the outermost module itself adds is then a position table.
    is_stack: bool,
}

/// Looks at the nodes that use the candidates, which are tensors of the model's main graph.
pub(crate) fn reveal(
    graph: &Graph,
    candidates: &[Candidate<'_>],
    walker: &mut Walker<'_>,
) -> Result<Names> {
    let is_stack = candidates.iter().any(|one| one.name.starts_with("layers."));
    let mut names = Names { is_stack, ..Names::default() };
    let frequencies =
        candidates.iter().filter(|one| one.is_small && one.name.ends_with(FREQUENCIES));
    names.constants = frequencies.map(|one| one.name.to_owned()).collect();
    names.follow(graph, candidates.iter().filter(|one| may_be_anonymous(one.name)), walker)?;

    // Tied weights may come twice: under the name of one module where another uses it, and
    // transposed without a name.
    let wanted: HashSet<&str> = names.revealed.values().map(|found| found.name.as_str()).collect();
    let taken: Vec<_> = candidates.iter().filter(|one| wanted.contains(one.name)).collect();
    if !taken.is_empty() {
        let mut others = Names { is_certain: true, ..Names::default() };
        others.follow(graph, taken.into_iter(), walker)?;
        others.revealed.retain(|name, found| found.name != *name);
        names.revealed.extend(others.revealed);
    }

    names.complete_paths(candidates);
    names.drop_makeshift();
    names.keep_unique(candidates);
    Ok(names)
}

impl Names {
    /// Learns from every node that uses one of the tensors, directly or through nodes that hand it
    /// on.
    fn follow<'m>(
        &mut self,
        graph: &'m Graph,
        tensors: impl Iterator<Item = &'m Candidate<'m>>,
        walker: &mut Walker<'_>,
    ) -> Result<()> {
        // What a value is: one of the tensors, or its transpose.
        let mut aliases: HashMap<&str, (Candidate<'_>, bool)> =
            tensors.map(|candidate| (candidate.name, (*candidate, false))).collect();
        if aliases.is_empty() {
            return Ok(());
        }

        // A node comes after those whose results it uses, so one pass is enough.
        for node in &graph.nodes {
            for (position, input) in node.inputs.iter().enumerate() {
                let Some(&(candidate, flipped)) = aliases.get(input.as_str()) else { continue };
                if let (0, Some(flips), Some(output)) =
                    (position, passes(node), node.outputs.first())
                {
                    if aliases.len() < MAX_ALIASES {
                        aliases.insert(output, (candidate, flipped != flips));
                    }
                    continue;
                }
                self.learn(candidate, flipped, node, position, walker)?;
            }
        }

        Ok(())
    }

    fn learn(
        &mut self,
        candidate: Candidate<'_>,
        flipped: bool,
        node: &Node,
        position: usize,
        walker: &mut Walker<'_>,
    ) -> Result<()> {
        if self.revealed.contains_key(candidate.name) || self.constants.contains(candidate.name) {
            return Ok(());
        }

        let Some(path) = module(node, walker)? else { return Ok(()) };

        // A parameter of the outermost module has no dot in its name, and is used nowhere else.
        if !self.is_certain && !is_anonymous(candidate.name) && path.is_empty() {
            return Ok(());
        }

        if candidate.is_constant(&path) {
            self.constants.insert(candidate.name.to_owned());
            return Ok(());
        }

        // Dimensions that an operator spreads a vector along are none of the parameter's.
        let squeezed = ["Mul", "Add"].contains(&node.op_type.as_str())
            && (candidate.is_column && (2..=4).contains(&candidate.rank)
                || candidate.is_row && node.op_type == "Add");
        let leaf = leaf(node, position, &candidate)
            .filter(|(leaf, _)| !path.is_empty() || self.is_stack && *leaf == POSITIONS);
        if let Some(revealed) = revealed(&path, leaf, (flipped, squeezed), &candidate) {
            // A norm of groups is an instance norm that changes nothing, and then scale and bias.
            if node.op_type == "InstanceNormalization" {
                self.makeshift.insert(candidate.name.to_owned());
            }
            self.revealed.insert(candidate.name.to_owned(), revealed);
        }
        Ok(())
    }

    /// Prepends the modules that the scopes of nodes omit.
    ///
    /// A module that is called from outside its parent enters only its own scope, while names of
    /// parameters have the whole path. For example, OPT's `model.decoder` has its nodes in
    /// `/decoder`. A prefix is used only if it is the only one and fits at least half of the paths.
    fn complete_paths(&mut self, candidates: &[Candidate<'_>]) {
        let named = candidates.iter().filter(|one| !self.revealed.contains_key(one.name));
        let modules: HashSet<&str> = named.filter_map(|one| module_of(one.name)).collect();
        let paths = self.revealed.values().filter_map(|found| module_of(&found.name));
        let paths: HashSet<&str> = paths.collect();
        let fronts = modules.iter().flat_map(|module| {
            // A name may be of a million dots.
            let dots = module.match_indices('.').take(LEFT_OUT);
            let splits = dots.map(|(at, _)| module.split_at(at + 1));
            splits.filter(|(_, rest)| paths.contains(rest)).map(|(front, _)| front)
        });
        let fronts: Vec<&str> = fronts.collect();
        let Some(front) = fronts.first().copied() else { return };
        let is_one = fronts.iter().all(|other| *other == front);
        if !is_one || fronts.len() * 2 < paths.len() || paths.iter().any(|it| modules.contains(it))
        {
            return;
        }

        let inside =
            modules.iter().filter_map(|module| module.strip_prefix(front)?.split('.').next());
        let inside: HashSet<&str> = inside.collect();
        for found in self.revealed.values_mut() {
            if found.name.split('.').next().is_some_and(|first| inside.contains(first)) {
                found.name.insert_str(0, front);
            }
        }
    }

    /// Turns makeshift scales and biases into constants if another tensor has their revealed name.
    fn drop_makeshift(&mut self) {
        let own = self.revealed.iter().filter(|(name, _)| !self.makeshift.contains(*name));
        let taken: HashSet<&str> = own.map(|(_, found)| found.name.as_str()).collect();
        let idle = self.makeshift.iter().filter(|name| {
            self.revealed.get(*name).is_some_and(|found| taken.contains(found.name.as_str()))
        });
        let idle: Vec<String> = idle.cloned().collect();
        for name in idle {
            self.revealed.remove(&name);
            self.constants.insert(name);
        }
    }

    /// Drops names that another tensor has.
    fn keep_unique(&mut self, candidates: &[Candidate<'_>]) {
        // Names of the file itself go first, then the first that was revealed.
        let stay =
            candidates.iter().filter(|candidate| !self.revealed.contains_key(candidate.name));
        let mut taken: HashSet<String> = stay.map(|candidate| candidate.name.to_owned()).collect();
        for candidate in candidates {
            if let Some(found) = self.revealed.get(candidate.name)
                && !taken.insert(found.name.clone())
            {
                self.revealed.remove(candidate.name);
            }
        }
    }
}

/// The path of the module that a parameter is in.
fn module_of(name: &str) -> Option<&str> {
    name.rsplit_once('.').map(|(module, _)| module)
}

/// Returns `true` if an exporter may have made up the name.
///
/// Names of parameters are paths with dots.
fn may_be_anonymous(name: &str) -> bool {
    is_anonymous(name) || !name.contains('.')
}

/// Returns `true` if an exporter certainly made up the name.
fn is_anonymous(name: &str) -> bool {
    let unnumbered = name.trim_end_matches(|digit: char| digit.is_ascii_digit());
    let operation = unnumbered.strip_suffix('_').unwrap_or(name);
    name.contains("::") || name.starts_with('/') || OPERATIONS.contains(&operation)
}

/// Returns `Some` if a node passes on its first input, with `true` if the node transposes it.
fn passes(node: &Node) -> Option<bool> {
    let perm = || node.attributes.iter().find(|attribute| attribute.name == "perm");
    match node.op_type.as_str() {
        "Identity" | "Cast" | "DequantizeLinear" => Some(false),
        // Without `perm`, ONNX reverses the dimensions.
        "Transpose" if perm().is_none_or(|perm| perm.integers == [1, 0]) => Some(true),
        _ => None,
    }
}

/// Returns the module that a node belongs to, as a path with dots, or `None` if it is not known.
fn module(node: &Node, walker: &mut Walker<'_>) -> Result<Option<String>> {
    if let Some(scopes) = node.properties.iter().find(|property| property.key == SCOPES) {
        // A list as Python prints it: modules from the outermost on, then the operation.
        let scopes = scopes.text(walker)?;
        let quoted: Vec<&str> = scopes.split('\'').skip(1).step_by(2).collect();
        return Ok(quoted.len().checked_sub(2).map(|module| quoted[module].to_owned()));
    }
    let Some(path) = node.name.strip_prefix('/') else { return Ok(None) };
    let module = path.rsplit_once('/').map_or("", |(module, _)| module);
    Ok(Some(module.replace('/', ".")))
}

/// The name in a module, and how the module has the tensor.
fn revealed(
    path: &str,
    leaf: Option<(&str, bool)>,
    (flipped, squeezed): (bool, bool),
    candidate: &Candidate<'_>,
) -> Option<Revealed> {
    let (leaf, turned) = leaf?;
    let transposed = candidate.rank == 2 && turned != flipped && !squeezed;
    let name = if path.is_empty() { leaf.to_owned() } else { format!("{path}.{leaf}") };
    Some(Revealed { name, transposed, squeezed, stored_shape: None })
}

/// Returns the parameter name of an operator's input, and `true` if it is transposed.
fn leaf(node: &Node, position: usize, candidate: &Candidate<'_>) -> Option<(&'static str, bool)> {
    let leaf = match (node.op_type.as_str(), position, candidate.rank) {
        // PyTorch's linear layer multiplies by the transpose of its weight.
        ("MatMul", 1, 2) => return Some(("weight", true)),
        ("Gemm", 1, _) => return Some(("weight", !is_set(node, "transB"))),
        ("Gather" | "GatherND", 0, _) | ("Mul", _, 1) => "weight",
        ("Gemm", 2, _) | ("Add", _, 1) => "bias",
        // Scale and bias of a norm of groups, before dimensions that follow the channels.
        ("Mul", _, 2..=4) if candidate.is_column => "weight",
        ("Add", _, 2..=4) if candidate.is_column => "bias",
        // A vector that is added to every row.
        ("Add", _, 2) if candidate.is_row => "bias",
        // What is added to a whole sequence: the table of positions, of which every row is used.
        ("Add", _, 2) => POSITIONS,
        ("BatchNormalization", 3, _) => "running_mean",
        ("BatchNormalization", 4, _) => "running_var",
        (op, ..) if has_weight_and_bias(op) => ["weight", "bias"].get(position.checked_sub(1)?)?,
        _ => return None,
    };

    Some((leaf, false))
}

fn is_set(node: &Node, name: &str) -> bool {
    node.attributes.iter().any(|found| found.name == name && found.integer == Some(1))
}

fn has_weight_and_bias(op: &str) -> bool {
    let exact = ["Conv", "ConvTranspose", "PRelu"];
    exact.contains(&op) || op.ends_with("Normalization")
}

#[cfg(test)]
mod tests {
    use super::*;
    use apr_core::Limits;

    fn node(name: &str, op: &str, inputs: &[&str], output: &str) -> Node {
        Node {
            name: name.to_owned(),
            op_type: op.to_owned(),
            inputs: inputs.iter().map(|&input| input.to_owned()).collect(),
            outputs: vec![output.to_owned()],
            ..Node::default()
        }
    }

    fn revealed(nodes: Vec<Node>, candidates: &[(&str, usize)]) -> Vec<(String, String, bool)> {
        let graph = Graph { nodes, ..Graph::default() };
        let candidates: Vec<_> = candidates
            .iter()
            .map(|&(name, rank)| Candidate {
                name,
                rank,
                is_column: name.ends_with("column"),
                is_row: name.ends_with("row"),
                is_scalar: rank == 0,
                is_small: true,
            })
            .collect();
        let bytes: &[u8] = &[];
        let names = reveal(&graph, &candidates, &mut Walker::new(&bytes, &Limits::default()))
            .expect("no reading");
        let mut found: Vec<_> =
            names.revealed.into_iter().map(|(from, to)| (from, to.name, to.transposed)).collect();
        found.sort();
        found
    }

    #[test]
    fn the_path_of_the_node_is_the_name_of_the_weight() {
        let nodes =
            vec![node("/layers.0/attn/q_proj/MatMul", "MatMul", &["x", "onnx::MatMul_7"], "y")];
        let expected =
            ("onnx::MatMul_7".to_owned(), "layers.0.attn.q_proj.weight".to_owned(), true);
        assert_eq!(revealed(nodes, &[("onnx::MatMul_7", 2)]), [expected]);
    }

    #[test]
    fn a_weight_that_the_graph_transposes_is_as_the_module_has_it() {
        let nodes = vec![
            node("/fc/Transpose", "Transpose", &["onnx::Transpose_3"], "t"),
            node("/fc/MatMul", "MatMul", &["x", "t"], "y"),
        ];
        let expected = ("onnx::Transpose_3".to_owned(), "fc.weight".to_owned(), false);
        assert_eq!(revealed(nodes, &[("onnx::Transpose_3", 2)]), [expected]);
    }

    #[test]
    fn inputs_of_operators_are_called_as_in_their_modules() {
        let inputs = ["x", "onnx::_1", "onnx::_2", "onnx::_3", "onnx::_4"];
        let nodes = vec![
            node("/bn/BatchNormalization", "BatchNormalization", &inputs, "y"),
            node("/positions/Add", "Add", &["y", "onnx::Add_5"], "z"),
            node("/norm/Add", "Add", &["z", "onnx::Add_6"], "u"),
            node("/norm/Mul", "Mul", &["u", "onnx::Mul_7"], "v"),
            node("/fc/Gemm", "Gemm", &["v", "onnx::Gemm_8", "onnx::Gemm_9"], "w"),
        ];
        let candidates = [
            ("onnx::_1", 1),
            ("onnx::_2", 1),
            ("onnx::_3", 1),
            ("onnx::_4", 1),
            ("onnx::Add_5", 2),
            ("onnx::Add_6", 1),
            ("onnx::Mul_7", 1),
            ("onnx::Gemm_8", 2),
            ("onnx::Gemm_9", 1),
        ];
        let found: Vec<_> =
            revealed(nodes, &candidates).into_iter().map(|(from, to, _)| (from, to)).collect();
        let expected = [
            ("onnx::Add_5", "positions.embed_positions.weight"),
            ("onnx::Add_6", "norm.bias"),
            ("onnx::Gemm_8", "fc.weight"),
            ("onnx::Gemm_9", "fc.bias"),
            ("onnx::Mul_7", "norm.weight"),
            ("onnx::_1", "bn.weight"),
            ("onnx::_2", "bn.bias"),
            ("onnx::_3", "bn.running_mean"),
            ("onnx::_4", "bn.running_var"),
        ];
        assert_eq!(found, expected.map(|(from, to)| (from.to_owned(), to.to_owned())));
    }

    #[test]
    fn names_that_people_gave_stay_and_none_is_given_twice() {
        let nodes = vec![
            node("/fc/MatMul", "MatMul", &["x", "fc.weight"], "y"),
            node("/fc/MatMul_1", "MatMul", &["y", "onnx::MatMul_4"], "z"),
            node("dense/MatMul", "MatMul", &["z", "kernel"], "u"),
            node("/MatMul", "MatMul", &["u", "projection"], "v"),
        ];
        let candidates =
            [("fc.weight", 2), ("onnx::MatMul_4", 2), ("kernel", 2), ("projection", 2)];
        assert_eq!(revealed(nodes, &candidates), []);
    }

    #[test]
    fn a_tied_weight_is_called_like_the_module_that_uses_it() {
        let nodes = vec![
            node("/wte/Gather", "Gather", &["lm_head.weight", "ids"], "x"),
            node("/lm_head/MatMul", "MatMul", &["x", "onnx::MatMul_9"], "y"),
        ];
        let expected = [
            ("lm_head.weight".to_owned(), "wte.weight".to_owned(), false),
            ("onnx::MatMul_9".to_owned(), "lm_head.weight".to_owned(), true),
        ];
        assert_eq!(revealed(nodes, &[("lm_head.weight", 2), ("onnx::MatMul_9", 2)]), expected);
    }

    #[test]
    fn scopes_that_lack_a_module_get_it_from_names_of_the_file() {
        let nodes = vec![
            node("/decoder/layers.0/fc1/MatMul", "MatMul", &["x", "onnx::MatMul_1"], "y"),
            node("/decoder/layers.1/fc1/MatMul", "MatMul", &["y", "onnx::MatMul_2"], "z"),
            node("/lm_head/MatMul", "MatMul", &["z", "onnx::MatMul_3"], "u"),
        ];
        let named =
            [("model.decoder.layers.0.fc1.bias", 1), ("model.decoder.layers.1.fc1.bias", 1)];
        let anonymous = [("onnx::MatMul_1", 2), ("onnx::MatMul_2", 2), ("onnx::MatMul_3", 2)];
        let found = revealed(nodes, &[&named[..], &anonymous].concat());
        let names: Vec<&str> = found.iter().map(|(_, name, _)| name.as_str()).collect();
        let layers = ["model.decoder.layers.0.fc1.weight", "model.decoder.layers.1.fc1.weight"];
        assert_eq!(names, [layers[0], layers[1], "lm_head.weight"]);
    }

    #[test]
    fn rows_added_in_a_module_are_biases_and_tensors_added_by_a_stack_positions() {
        let nodes = || {
            vec![
                node("/layers.0/gate/Add", "Add", &["x", "onnx::Add_row"], "y"),
                node("/Add", "Add", &["y", "onnx::Add_2"], "z"),
            ]
        };
        let anonymous = [("onnx::Add_2", 2), ("onnx::Add_row", 2)];
        let names = |candidates: &[(&str, usize)]| -> Vec<String> {
            revealed(nodes(), candidates).into_iter().map(|(_, name, _)| name).collect()
        };
        let layered = [&anonymous[..], &[("layers.0.fc1.bias", 1)]].concat();
        assert_eq!(names(&layered), ["embed_positions.weight", "layers.0.gate.bias"]);
        assert_eq!(names(&anonymous), ["layers.0.gate.bias"]);
    }

    #[test]
    fn a_norm_of_groups_has_its_scale_and_bias_and_no_stand_ins() {
        let nodes = vec![
            node("/norm/InstanceNormalization", "InstanceNormalization", &["x", "/a", "/b"], "y"),
            node("/norm/Mul", "Mul", &["y", "onnx::Mul_column"], "z"),
            node("/norm/Add", "Add", &["z", "onnx::Add_column"], "u"),
            node("/other/InstanceNormalization", "InstanceNormalization", &["u", "/c", "/d"], "v"),
        ];
        let candidates = [
            ("/a", 1),
            ("/b", 1),
            ("/c", 1),
            ("/d", 1),
            ("onnx::Mul_column", 2),
            ("onnx::Add_column", 2),
        ];
        let named = [
            ("/c", "other.weight"),
            ("/d", "other.bias"),
            ("onnx::Add_column", "norm.bias"),
            ("onnx::Mul_column", "norm.weight"),
        ];
        let expected = named.map(|(from, to)| (from.to_owned(), to.to_owned(), false));
        assert_eq!(revealed(nodes, &candidates), expected);
    }
}
