//! The tensors of a model, with their names in the file.

use std::collections::{BTreeMap, HashMap, HashSet};

use apr_core::{Error, Escaped, Limits, Result, Shape, TensorInfo, counted};
use apr_graph::ElementType;
use serde_json::{Map, Value};

use super::Naming;
use super::build::{self, Built};
use super::content::Content;
use super::external::Files;
use super::message::Message;
use super::paths::{self, ModelTensor, Owner};
use crate::names::{Candidate, Revealed};
use crate::proto::Graph;

/// Total tensor bytes allowed for any file, in addition to [`MAX_GROWTH`] times its length.
///
/// Sparse tensors and several tensors that share their data can declare any size.
const FREE_BYTES: u64 = 1 << 30;
const MAX_GROWTH: u64 = 16;

/// Longest tensor that may be part of the graph itself, in bytes.
pub(crate) const SMALL: u64 = 1024;

/// Inputs whose values, though floats, decide on shapes.
const SHAPING: [(&str, &[usize]); 3] =
    [("Resize", &[1, 2]), ("Upsample", &[1]), ("Range", &[0, 1, 2])];

/// The end of the names that onnxruntime's quantizers give the codes of weights and of biases.
const QUANTIZED: &str = "_quantized";

/// The tensors of a model so far.
pub(super) struct Collected<'a> {
    pub(super) files: Files<'a>,
    pub(super) tensors: Vec<Item>,
    names: HashSet<String>,
    /// Names of values that decide on shapes.
    shaping: HashSet<String>,
    /// Omitted tensors: the reason and the name.
    left_out: Vec<(&'static str, String)>,
    /// Names of the tensors whose elements become wider.
    narrow: Vec<String>,
    /// Bytes that names may still take.
    names_budget: u64,
    /// Bytes that tensors may still have.
    budget: u64,
}

/// Tensor of a model, with its content and its owner.
pub(super) struct Item {
    pub(super) info: TensorInfo,
    pub(super) content: Content,
    pub(super) owner: Owner,
    /// Description of the tensor if it is part of the graph and not a weight.
    pub(super) constant: Option<&'static str>,
}

impl<'a> Collected<'a> {
    pub(super) fn new(files: Files<'a>, limits: &Limits) -> Self {
        let budget = files.infos[0].len.saturating_mul(MAX_GROWTH).saturating_add(FREE_BYTES);
        Self {
            files,
            tensors: Vec::new(),
            names: HashSet::new(),
            shaping: HashSet::new(),
            left_out: Vec::new(),
            narrow: Vec::new(),
            names_budget: limits.max_index,
            budget,
        }
    }

    /// Adds all that a file holds.
    pub(super) fn add(&mut self, content: &Message) -> Result<()> {
        match content {
            Message::Model(model) if model.graph.is_none() && model.functions.is_empty() => {
                Err(Error::format("this is not an ONNX model, or one without a graph"))
            }
            Message::Model(model) => {
                self.shaping = model.graph.as_ref().map(shaping_inputs).unwrap_or_default();
                paths::tensors(model, &mut |name, found, owner| self.take(name, found, owner))
            }
            Message::Tensor(tensor) => {
                let name = if tensor.name.is_empty() { "tensor" } else { &tensor.name };
                self.take(name.to_owned(), ModelTensor::Dense(tensor), Owner::Inner)
            }
        }
    }

    fn take(&mut self, name: String, found: ModelTensor<'_>, owner: Owner) -> Result<()> {
        // Names repeat the paths of the graphs around, so a short file can make long ones.
        let names = self.names_budget.checked_sub(name.len() as u64);
        self.names_budget =
            names.ok_or_else(|| Error::memory("the names of all tensors take too much memory"))?;
        let files = self.files.infos.len();
        let (kind, built) = match found {
            ModelTensor::Dense(tensor) => (tensor.data_type, build::dense(tensor, &mut self.files)),
            ModelTensor::Sparse(tensor) => {
                (tensor.values.data_type, build::sparse(tensor, &mut self.files))
            }
        };

        let built = built.map_err(|error| error.for_tensor(&name))?;

        // Files that this tensor is the first to name allow for more bytes.
        let more: u64 =
            self.files.infos[files..].iter().map(|file| file.len.saturating_mul(MAX_GROWTH)).sum();
        self.budget = self.budget.saturating_add(more);
        if !self.names.insert(name.clone()) {
            return Err(Error::format("the model has two tensors of this name").for_tensor(name));
        }

        let (dtype, shape, content) = match built {
            Built::LeftOut(why) => {
                self.left_out.push((why, name));
                return Ok(());
            }
            Built::Tensor(dtype, shape, content) => (dtype, shape, content),
        };

        self.budget = self.budget.checked_sub(content.len).ok_or_else(|| {
            let message = "the tensors up to this one take more than 16 times the file's length, \
                and over 1 GiB";
            Error::memory(message).for_tensor(&name)
        })?;
        if content.is_narrow() {
            self.narrow.push(name.clone());
        }

        let is_scalar = shape.elements() == Some(1);
        // The graph reads its own tensors as dense ones alone.
        let is_dense = matches!(found, ModelTensor::Dense(_));
        let is_small = content.len <= SMALL && is_dense;
        let constant = match owner {
            // An attribute with several holds all of them or none.
            Owner::List => is_dense.then_some("tensors in lists of an operator's settings"),
            _ if is_small => self.constant(&name, kind, is_scalar, owner),
            _ => None,
        };

        let info = TensorInfo { name, dtype, shape };
        self.tensors.push(Item { info, content, owner, constant });
        Ok(())
    }

    /// Returns the description of a small tensor that is part of the graph, or `None` for a weight.
    ///
    /// Parts of the graph are integers that shapes depend on, settings of operators and single
    /// numbers.
    fn constant(
        &self,
        name: &str,
        kind: i32,
        is_scalar: bool,
        owner: Owner,
    ) -> Option<&'static str> {
        let of_node = matches!(owner, Owner::MainConstant | Owner::InnerConstant);
        let decides = matches!(
            ElementType::from_onnx_code(kind),
            Some(ElementType::I64 | ElementType::I32 | ElementType::Bool)
        ) && !name.ends_with(QUANTIZED);
        if owner == Owner::Setting {
            Some("settings of operators")
        } else if decides {
            Some("integer or boolean tensors of at most 1 KiB, which can determine shapes")
        } else if self.shaping.contains(name) {
            Some("tensors of floats on which shapes depend")
        } else {
            (is_scalar && of_node).then_some("single numbers of the computation")
        }
    }

    /// Names of the tensors that are parts of the graph.
    pub(super) fn constants(&self) -> HashSet<String> {
        self.tensors
            .iter()
            .filter(|item| item.constant.is_some())
            .map(|item| item.info.name.clone())
            .collect()
    }

    /// The floats whose names the graph may reveal.
    pub(super) fn candidates(&self) -> Vec<Candidate<'_>> {
        // Names are revealed by nodes of the main graph.
        let of_main = |item: &&Item| matches!(item.owner, Owner::Main | Owner::MainConstant);
        // The scale of onnxruntime's codes is called after them, and means nothing under another
        // name or among the constants.
        let names: HashSet<&str> = self.tensors.iter().map(|item| &*item.info.name).collect();
        let is_scale = |item: &&Item| {
            let weight = item.info.name.strip_suffix("_scale");
            weight.is_some_and(|weight| {
                let codes = format!("{weight}{QUANTIZED}");
                names.contains(&*codes) || weight.ends_with(QUANTIZED) && names.contains(weight)
            })
        };
        let floats = self
            .tensors
            .iter()
            .filter(of_main)
            .filter(|item| item.info.dtype.is_float() && item.constant.is_none())
            .filter(|item| !is_scale(item));
        floats
            .map(|item| {
                let TensorInfo { name, shape, .. } = &item.info;
                let is_scalar = shape.elements() == Some(1);
                Candidate {
                    name,
                    rank: shape.dims().len(),
                    is_column: shape.dims().iter().skip(1).all(|dim| *dim == 1),
                    is_row: matches!(shape.dims(), [1, columns] if *columns > 1),
                    is_scalar,
                    is_small: item.content.len <= SMALL,
                }
            })
            .collect()
    }

    /// Returns the names of the tensors that the checkpoint does not list, by their description.
    ///
    /// These are the tensors that no dtype holds and, for [`Naming::Revealed`], the parts of the
    /// graph.
    pub(super) fn unlisted(&self, naming: Naming) -> BTreeMap<String, Vec<String>> {
        let mut unlisted = BTreeMap::<_, Vec<String>>::new();
        for (what, name) in &self.left_out {
            unlisted.entry(format!("tensors of {what}")).or_default().push(name.clone());
        }
        for Item { info, constant, .. } in
            self.tensors.iter().filter(|_| naming == Naming::Revealed)
        {
            if let Some(what) = constant {
                unlisted.entry((*what).to_owned()).or_default().push(info.name.clone());
            }
        }
        unlisted
    }

    /// Returns the warnings about tensors that are omitted or whose elements become wider.
    pub(super) fn warnings(&mut self) -> Vec<String> {
        self.left_out.sort_by_key(|(what, _)| *what);
        let groups = self.left_out.chunk_by(|(one, _), (other, _)| one == other);
        let mut warnings: Vec<String> = groups.map(left_out_warning).collect();
        if let [first, ..] = self.narrow.as_slice() {
            let verb = if self.narrow.len() == 1 { "is" } else { "are" };
            warnings.push(format!(
                "{} of integers of 4 or 2 bits {verb} read as integers of 8 bits, the first is \
                 '{}'",
                counted(self.narrow.len() as u64, "tensor"),
                Escaped::short(first)
            ));
        }
        warnings
    }

    /// Tensors that are another one under a second name: the same bytes, dtype and shape.
    pub(super) fn tied(&self) -> Map<String, Value> {
        let mut first = HashMap::new();
        let mut tied = BTreeMap::new();
        for Item { info, content, .. } in &self.tensors {
            // Empty tensors share no bytes.
            let Some(range) = content.flat().filter(|range| range.len > 0) else { continue };
            let owner = *first
                .entry((range.file, range.offset, info.dtype, &info.shape))
                .or_insert(&info.name);
            if *owner != info.name {
                tied.insert(info.name.clone(), Value::from(owner.as_str()));
            }
        }
        tied.into_iter().collect()
    }
}

impl Item {
    /// Takes the name and the layout that the graph reveals; returns the name in the file.
    pub(super) fn rename(&mut self, found: &Revealed) -> String {
        if let (true, &[rows, columns]) = (found.transposed, self.info.shape.dims()) {
            self.info.shape = Shape::from([columns, rows]);
            self.content.turn([rows, columns], self.info.dtype.block_bytes());
        }
        if found.squeezed {
            let len = self.info.shape.dims().iter().copied().max();
            self.info.shape = Vec::from_iter(len).into();
        }
        std::mem::replace(&mut self.info.name, found.name.clone())
    }
}

fn left_out_warning(group: &[(&'static str, String)]) -> String {
    let (what, first) = &group[0];
    let verb = if group.len() == 1 { "is" } else { "are" };
    let (count, first) = (counted(group.len() as u64, "tensor"), Escaped::short(first));
    format!("{count} of {what} {verb} not read, the first is '{first}'")
}

/// Names of values that decide on the shapes of others.
fn shaping_inputs(graph: &Graph) -> HashSet<String> {
    let mut names = HashSet::new();
    for node in &graph.nodes {
        let positions = SHAPING
            .iter()
            .find(|(op, _)| *op == node.op_type)
            .map_or(&[][..], |(_, positions)| *positions);
        names.extend(positions.iter().filter_map(|&at| node.inputs.get(at)).cloned());
    }
    names
}
