//! Attention heads and neurons that go: the same number of each layer, so that the configuration
//! can say how many are left.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use apr_arch::LayerStack;
use apr_core::{
    CheckpointReader, Convention, Error, Phase, Pipeline, Progress, Result, Shape, TensorInfo,
};
use apr_source::Source;
use apr_view::{Computation, Derived, Target, check_decodable};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::configuration::{Configuration, counted};
use crate::weights::{Buffers, in_memory, read};

/// Root mean square gradients of all elements by the names of tensors.
pub type Gradients = HashMap<String, Arc<[f32]>>;

/// Entries of a configuration that count heads of queries.
const HEADS: [&str; 3] = ["num_attention_heads", "n_head", "n_heads"];
/// Entries that count heads of keys and values.
const KEY_VALUE_HEADS: [&str; 2] = ["num_key_value_heads", "n_kv_heads"];
/// Entries that count neurons.
const NEURONS: [&str; 3] = ["intermediate_size", "hidden_dim", "ffn_dim"];
/// Configuration key with the width of a head.
const HEAD_DIM: &str = "head_dim";

/// Numbers of heads and neurons to remove from each layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WidthChoice {
    /// Heads of queries, with the heads of keys and values that they share.
    pub heads: u64,
    /// Neurons: rows of the projections before the activation function, columns of the one after.
    pub neurons: u64,
}

/// Kind of the units of a layer, each of which is kept or removed as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UnitKind {
    /// Groups of heads: a head of keys and values each, with the heads of queries that share it.
    Groups,
    /// Neurons of the feed-forward network.
    Neurons,
}

/// Matrix or bias with some consecutive rows or columns for each unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitTensor {
    /// Canonical name of the tensor.
    pub name: String,
    /// The layer that it is in.
    pub layer: u64,
    /// Kind of the units.
    pub kind: UnitKind,
    /// Units of the layer.
    pub count: u64,
    /// Rows or columns of each.
    pub width: u64,
    /// `true` if units are columns, `false` if they are rows.
    pub of_columns: bool,
}

/// The tensors of a layer that units have parts of: a name within the layer, whether units are its
/// columns, and how many rows or columns each has.
type Projections = Vec<(&'static str, bool, u64)>;

/// The projections of heads, of which each group has rows of queries and of keys, by their number.
fn head_projections(queries: u64, keys: u64) -> Projections {
    vec![
        ("attn.q_proj", false, queries),
        ("attn.k_proj", false, keys),
        ("attn.v_proj", false, keys),
        ("attn.o_proj", true, queries),
    ]
}

fn neuron_projections() -> Projections {
    vec![("mlp.gate_proj", false, 1), ("mlp.up_proj", false, 1), ("mlp.down_proj", true, 1)]
}

/// The weights and biases of projections; a bias behind columns is of no unit.
fn names(layer: u64, projections: &Projections) -> impl Iterator<Item = (String, bool, u64)> {
    projections.iter().flat_map(move |(name, of_columns, width)| {
        let parts = if *of_columns { &["weight"][..] } else { &["weight", "bias"] };
        let name = move |part| format!("layers.{layer}.{name}.{part}");
        parts.iter().map(move |part| (name(part), *of_columns, *width))
    })
}

/// Returns the tensors of a model that contain rows or columns of heads and neurons.
///
/// The list is empty for families that do not define their numbers.
///
/// # Errors
/// Returns the errors of [`Source::family`].
pub fn unit_tensors(source: &Source<'_>) -> Result<Vec<UnitTensor>> {
    let Some(model) = source.family()? else { return Ok(Vec::new()) };
    let dimension = |name: &str| model.dimension(name).filter(|count| *count > 0);
    let Some(layers) = dimension("layers") else { return Ok(Vec::new()) };
    let mut kinds = Vec::new();
    if let (Some(heads), Some(width)) = (dimension("heads"), dimension(HEAD_DIM)) {
        let shared = dimension("kv_heads").unwrap_or(heads);
        if heads.is_multiple_of(shared) {
            let projections = head_projections(heads / shared * width, width);
            kinds.push((UnitKind::Groups, shared, projections));
        }
    }
    if let Some(all) = dimension("intermediate") {
        kinds.push((UnitKind::Neurons, all, neuron_projections()));
    }

    let reader = source.reader();
    let named = (0..reader.tensors().len()).filter_map(|at| Some((model.canonical(at)?, at)));
    let positions: BTreeMap<&str, usize> = named.collect();
    let mut found = Vec::new();
    for layer in 0..layers {
        for (kind, count, projections) in &kinds {
            for (name, of_columns, width) in names(layer, projections) {
                let dims =
                    positions.get(name.as_str()).map(|at| reader.tensors()[*at].shape.dims());
                let len = dims.and_then(|dims| dims.get(usize::from(of_columns))).copied();
                if len.is_some() && len == count.checked_mul(width) {
                    let (kind, count) = (*kind, *count);
                    found.push(UnitTensor { name, layer, kind, count, width, of_columns });
                }
            }
        }
    }
    Ok(found)
}

/// Report on the removed heads and neurons.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct WidthReport {
    /// `magnitude` or `fisher`.
    pub method: &'static str,
    /// Numbers of query heads before and after, if some were removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heads: Option<[u64; 2]>,
    /// Numbers of neurons before and after, if some were removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub neurons: Option<[u64; 2]>,
    /// Removed units of each layer.
    pub layers: Vec<LayerWidth>,
    /// Bytes that went.
    pub bytes: u64,
    /// Entries of the configuration that were changed.
    pub configuration: Vec<String>,
}

/// Removed units of one layer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct LayerWidth {
    /// Groups of heads: one head of keys and values each, with the heads of queries that share it.
    pub groups: Vec<u64>,
    /// Numbers of the removed neurons.
    pub neurons: Vec<u64>,
}

/// A checkpoint with fewer heads or neurons.
#[derive(Debug, Clone)]
#[must_use = "nothing goes until it is applied"]
pub struct WidthPlan {
    kept: Vec<Option<Kept>>,
    counts: Vec<(&'static [&'static str], u64, u64)>,
    head_dim: Option<u64>,
    report: WidthReport,
}

/// Kept ranges of rows or columns of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Kept {
    of_columns: bool,
    ranges: Vec<Range<u64>>,
}

/// Tensor of a unit, which is kept or removed as a whole together with its other tensors.
struct Unit {
    tensor: usize,
    of_columns: bool,
    /// Number of consecutive rows or columns per unit.
    width: u64,
}

/// Decides which heads and neurons to remove: in each layer, those with the smallest sum of
/// squares.
///
/// The sum covers all weights of a unit. With `gradients`, the root mean square gradients of all
/// elements by tensor name, the squares are weighted with the squares of the gradients. Half of the
/// sum then estimates to second order by how much the loss rises without the unit (Theis et al.
/// 2018, arXiv:1801.05787).
///
/// # Errors
/// E001 for a model of an unknown family, one whose projections are not matrices of their own, a
/// number of heads that cuts a group, all of them, quantized tensors, and a GGUF file; E003 for
/// weights in codes that can't be decoded; E002 and E007 when a tensor can't be read.
pub fn plan_widths<P: Pipeline>(
    source: &Source<'_>,
    choice: WidthChoice,
    gradients: Option<&Gradients>,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<WidthPlan> {
    let reader = source.reader();
    check_decodable(reader)?;
    let Some(model) = source.family()? else {
        return Err(Error::format("the model's family is unknown, and so are its heads"));
    };
    let title = model.family().title();
    if reader.format().convention == Convention::LlamaCpp {
        return Err(Error::format(
            "heads and neurons of GGUF files can't be dropped: convert the model to safetensors \
             or .apr first",
        ));
    }
    let dimension = |name: &str| {
        model.dimension(name).filter(|count| *count > 0).ok_or_else(|| {
            Error::format(format!("{title} models do not state their number of {name}"))
        })
    };
    if model.layer_stack() == Some(LayerStack::Decoder) {
        return Err(Error::format(format!(
            "heads and neurons of {title} models, which have an encoder and a decoder, can't be \
             dropped: only models with one stack of layers are supported"
        )));
    }
    let layers = dimension("layers")?;
    let (mut counts, mut head_dim, mut groups) = (Vec::new(), None, None);
    if choice.heads > 0 {
        let (heads, width) = (dimension("heads")?, dimension(HEAD_DIM)?);
        let shared = model.dimension("kv_heads").filter(|count| *count > 0).unwrap_or(heads);
        if !heads.is_multiple_of(shared) {
            return Err(Error::format(format!(
                "{heads} heads of queries can't share {shared} of keys and values evenly"
            )));
        }
        // Heads of queries go with those that share one of keys and values with them.
        let group = heads / shared;
        let gone = choice.heads.div_ceil(group);
        if gone >= shared {
            return Err(Error::format(format!("no head would be left of {heads}")));
        }
        counts.push((&HEADS[..], heads, heads - gone * group));
        counts.push((&KEY_VALUE_HEADS[..], shared, shared - gone));
        head_dim = Some(width);
        groups = Some((shared, group * width, width, gone));
    }
    let mut neurons = None;
    if choice.neurons > 0 {
        let all = dimension("intermediate")?;
        if choice.neurons >= all {
            return Err(Error::format(format!("no neuron would be left of {all}")));
        }
        counts.push((&NEURONS[..], all, all - choice.neurons));
        neurons = Some(all);
    }

    let named = (0..reader.tensors().len()).filter_map(|at| Some((model.canonical(at)?, at)));
    let positions: BTreeMap<&str, usize> = named.collect();
    let mut kept: Vec<Option<Kept>> = vec![None; reader.tensors().len()];
    let mut gone = Vec::new();
    let total = layers.saturating_mul(choice.heads.max(choice.neurons));
    progress.begin(Phase::Measuring, total);
    for layer in 0..layers {
        let units = |projections: &Projections| {
            let unit = |(name, of_columns, width): (String, bool, u64)| {
                let tensor = *positions.get(name.as_str())?;
                Some(Unit { tensor, of_columns, width })
            };
            names(layer, projections).filter_map(unit).collect::<Vec<_>>()
        };
        let mut width = LayerWidth::default();
        if let Some((shared, queries, keys, count)) = groups {
            let units = units(&head_projections(queries, keys));
            check(reader, &units, shared, 4, title)?;
            width.groups = least((reader, gradients), &units, shared, count, pipeline)?;
            keep(&mut kept, &units, shared, &width.groups);
        }
        if let Some(all) = neurons {
            let units = units(&neuron_projections());
            check(reader, &units, all, 2, title)?;
            width.neurons = least((reader, gradients), &units, all, choice.neurons, pipeline)?;
            keep(&mut kept, &units, all, &width.neurons);
        }
        gone.push(width);
        progress.advance(choice.heads.max(choice.neurons));
    }

    let report = WidthReport {
        method: if gradients.is_some() { "fisher" } else { "magnitude" },
        heads: groups.and(counts.first()).map(|(_, before, now)| [*before, *now]),
        neurons: neurons.map(|all| [all, all - choice.neurons]),
        layers: gone,
        bytes: 0,
        configuration: Vec::new(),
    };
    Ok(WidthPlan { kept, counts, head_dim, report })
}

/// Rejects projections that are missing or narrower.
fn check(
    reader: &dyn CheckpointReader,
    units: &[Unit],
    all: u64,
    at_least: usize,
    title: &str,
) -> Result<()> {
    let weights = units.iter().filter(|unit| reader.tensors()[unit.tensor].shape.dims().len() == 2);
    if weights.count() < at_least {
        return Err(Error::format(format!(
            "the projections of {title} models are not separate matrices"
        )));
    }
    for unit in units {
        let info = &reader.tensors()[unit.tensor];
        if info.dtype.is_quantized() {
            let message = format!("it is {}: floats can be cut", info.dtype);
            return Err(Error::format(message).for_tensor(&info.name));
        }
        let dims = info.shape.dims();
        let len = if unit.of_columns { dims.get(1) } else { dims.first() };
        if dims.len() > 2 || len.copied() != all.checked_mul(unit.width) {
            let message = format!("its shape {} does not match {all} units", info.shape);
            return Err(Error::format(message).for_tensor(&info.name));
        }
    }
    Ok(())
}

/// The units with the smallest sums of squares, in order.
fn least<P: Pipeline>(
    (reader, gradients): (&dyn CheckpointReader, Option<&Gradients>),
    units: &[Unit],
    all: u64,
    count: u64,
    pipeline: &P,
) -> Result<Vec<u64>> {
    let mut sums = vec![0.0_f64; in_memory(all)?];
    for unit in units {
        let info = &reader.tensors()[unit.tensor];
        let row_len = info.shape.row_len().max(1);
        let rows = info.shape.elements().unwrap_or_default() / row_len;
        let row_len = if info.shape.dims().len() == 1 { 1 } else { row_len };
        let rows = if row_len == 1 { info.shape.elements().unwrap_or_default() } else { rows };
        let gradients = match gradients {
            Some(all) => Some(gradients_of(all, info)?),
            None => None,
        };
        let step = (crate::weights::PIECE / row_len).max(1);
        let tasks = in_memory(rows.div_ceil(step))?;
        pipeline.run(
            tasks,
            |task, slot: &mut (Buffers, Vec<f64>)| {
                let first = task as u64 * step;
                let last = (first + step).min(rows);
                let (buffers, found) = slot;
                read(reader, unit.tensor, first * row_len..last * row_len, buffers)?;
                found.clear();
                found.resize(sums_len(unit, first, last, row_len)?, 0.0);
                let (row_len, first) = (in_memory(row_len)?, in_memory(first)?);
                for (row, values) in buffers.values.chunks(row_len).enumerate() {
                    for (column, value) in values.iter().enumerate() {
                        let place = if unit.of_columns { column } else { row };
                        let weight =
                            gradients.map_or(1.0, |all| all[(first + row) * row_len + column]);
                        let product = f64::from(*value) * f64::from(weight);
                        found[place] += product * product;
                    }
                }
                Ok(())
            },
            |task, (_, found)| {
                let first = if unit.of_columns { 0 } else { task as u64 * step };
                for (place, sum) in (first..).zip(found) {
                    if let Some(all) = sums.get_mut(in_memory(place / unit.width)?) {
                        *all += *sum;
                    }
                }
                Ok(())
            },
        )?;
    }
    let mut order: Vec<usize> = (0..sums.len()).collect();
    order.sort_by(|a, b| sums[*a].total_cmp(&sums[*b]).then(a.cmp(b)));
    order.truncate(in_memory(count)?);
    order.sort_unstable();
    Ok(order.into_iter().map(|unit| unit as u64).collect())
}

/// A gradient for each element of a tensor.
fn gradients_of<'g>(all: &'g Gradients, info: &TensorInfo) -> Result<&'g [f32]> {
    let found = all.get(&*info.name).map(|values| &**values);
    let found = found.filter(|values| info.shape.elements() == Some(values.len() as u64));
    found.ok_or_else(|| {
        let message = "the predictions have no gradient for it, which is needed to compare units";
        Error::format(message).for_tensor(&info.name)
    })
}

/// Returns the number of sums for rows `first` to `last`: one per row, or one per column.
fn sums_len(unit: &Unit, first: u64, last: u64, row_len: u64) -> Result<usize> {
    in_memory(if unit.of_columns { row_len } else { last - first })
}

/// Records the kept ranges of the tensors of these units.
fn keep(kept: &mut [Option<Kept>], units: &[Unit], all: u64, gone: &[u64]) {
    for unit in units {
        let stay = (0..all).filter(|place| gone.binary_search(place).is_err());
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for place in stay {
            let (start, end) = (place * unit.width, (place + 1) * unit.width);
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => ranges.push(start..end),
            }
        }
        kept[unit.tensor] = Some(Kept { of_columns: unit.of_columns, ranges });
    }
}

impl WidthPlan {
    /// Drops heads and neurons of the checkpoint that was planned for.
    ///
    /// # Errors
    /// E001 for a configuration that is no JSON object or counts none of them, E007 when it can't
    /// be read.
    pub fn apply<'b>(
        self,
        base: Box<dyn CheckpointReader + 'b>,
    ) -> Result<(Box<dyn CheckpointReader + 'b>, WidthReport)> {
        let Self { kept, counts, head_dim, mut report } = self;
        let count_anew = |config: &mut Map<String, Value>| {
            let mut changed = Vec::new();
            for (keys, before, now) in &counts {
                changed.extend(counted(config, keys, *before, *now));
            }
            if let Some(width) = head_dim.filter(|_| !changed.is_empty()) {
                // Otherwise it is taken to be the hidden size over the heads.
                if config.get(HEAD_DIM).and_then(Value::as_u64) != Some(width) {
                    config.insert(HEAD_DIM.to_owned(), width.into());
                    changed.push(HEAD_DIM.to_owned());
                }
            }
            changed
        };
        let mut metadata = base.metadata().clone();
        let (configuration, changed) = Configuration::changed(&*base, &mut metadata, count_anew)?;
        if changed.is_empty() {
            return Err(Error::format("no configuration states the number of heads or neurons"));
        }
        report.configuration = changed;

        let (mut narrowed, mut bytes) = (Derived::new(base), 0_u64);
        *narrowed.metadata_mut() = metadata;
        for (companion, bytes) in configuration.into_files() {
            narrowed.companions_mut().set(companion, bytes);
        }
        for (tensor, kept) in kept.into_iter().enumerate() {
            let Some(kept) = kept else { continue };
            let info = narrowed.info_mut(tensor);
            let before = info.byte_len()?;
            let mut dims = info.shape.dims().to_vec();
            let left = kept.ranges.iter().map(|range| range.end - range.start).sum();
            dims[usize::from(kept.of_columns)] = left;
            info.shape = Shape::from(dims);
            bytes = bytes.saturating_add(before - info.byte_len()?);
            narrowed.compute(tensor, kept);
        }
        report.bytes = bytes;
        Ok((Box::new(narrowed), report))
    }
}

impl Computation for Kept {
    fn read(&self, target: &Target<'_>, offset: u64, buf: &mut [u8]) -> Result<()> {
        let width = target.info.dtype.block_bytes();
        let dims = target.source().shape.dims();
        // Rows are runs of bytes that stay or go as a whole.
        let row = if dims.len() > 1 { dims[1] * width } else { width };
        if self.of_columns {
            let of_row: Vec<Range<u64>> =
                self.ranges.iter().map(|range| range.start * width..range.end * width).collect();
            let len: u64 = of_row.iter().map(|range| range.end - range.start).sum();
            let mut done = 0;
            while done < buf.len() {
                let at = offset + done as u64;
                let (line, within) = (at / len, at % len);
                let count = in_memory((len - within).min((buf.len() - done) as u64))?;
                let out = &mut buf[done..][..count];
                gather(target, &of_row, line * row, within, out)?;
                done += count;
            }
            return Ok(());
        }
        let runs: Vec<Range<u64>> =
            self.ranges.iter().map(|range| range.start * row..range.end * row).collect();
        gather(target, &runs, 0, offset, buf)
    }
}

/// Fills `out` with the concatenated byte ranges `runs`, starting at byte `at` of the result.
///
/// Each range is moved by `from` bytes in the source.
fn gather(
    target: &Target<'_>,
    runs: &[Range<u64>],
    from: u64,
    at: u64,
    out: &mut [u8],
) -> Result<()> {
    let (mut before, mut done) = (0, 0);
    for run in runs {
        let len = run.end - run.start;
        let wanted = at + done as u64;
        if wanted < before + len && done < out.len() {
            let skip = wanted - before;
            let count = in_memory((len - skip).min((out.len() - done) as u64))?;
            target.read_source(from + run.start + skip, &mut out[done..][..count])?;
            done += count;
        }
        before += len;
    }
    Ok(())
}
