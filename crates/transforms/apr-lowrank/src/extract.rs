//! What a tuned model has more than its base, as a LoRA adapter.

use std::collections::{BTreeMap, BTreeSet};

use apr_core::json::from_python;
use apr_core::{
    CheckpointReader, DType, Error, Metadata, Phase, Pipeline, Progress, Result, Shape, TensorInfo,
    keys,
};
use apr_quantize::{Role, roles_of};
use apr_source::{MemoryNames, Source};
use apr_tensor::cast::cast_values;
use apr_tensor::factors::suits;
use apr_view::values::decode;
use apr_view::{NamePattern, check_decodable};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::adapter::{Adapter, AdapterBytes, Config, Module};
use crate::matrix::{read, sides, subtract};
use crate::plan::Amount;
use crate::report::{Left, Loss};
use crate::store::FactorStore;
use crate::svd::{Extent, check_available, memory, truncated_svd};
use crate::within_memory::run_within_memory;

/// Prefix that peft adds to the names of modules.
const PREFIX: &str = "base_model.model.";

/// Options for extracting an adapter.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Extraction {
    /// Amount of the difference between the models to keep, for each matrix.
    pub amount: Amount,
    /// Tensors whose names match; without one, the matrices that multiply vectors, but not the
    /// output projection.
    pub targets: Option<NamePattern>,
    /// `true` to store whole copies of other modules that differ, such as norms and embeddings.
    pub save_others: bool,
    /// Name of the base model.
    pub base_name: String,
    /// Dtype of the adapter's matrices. Default: the dtype of the tuned model's tensors.
    pub precision: Option<DType>,
    /// Bytes that decompositions may take, all that run at the same time together.
    pub memory: u64,
    /// Tensors that the pipeline works on at the same time.
    pub threads: usize,
}

impl Extraction {
    /// Creates options for the linear layers of a model with this base, with 1 GiB of memory.
    #[must_use]
    pub fn new(amount: Amount, base_name: impl Into<String>) -> Self {
        Self {
            amount,
            targets: None,
            save_others: false,
            base_name: base_name.into(),
            precision: None,
            memory: 1 << 30,
            threads: 1,
        }
    }
}

/// Report on an extracted adapter.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ExtractReport {
    /// Name of the base model.
    pub base: String,
    /// Requested rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u64>,
    /// Requested share of the energy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy: Option<f64>,
    /// Norm of the differences that the adapter lacks in its layers, relative to the norm of all
    /// differences.
    pub relative_error: f64,
    /// The layers that it changes.
    pub tensors: Vec<ExtractedTensor>,
    /// Modules that it has a whole copy of.
    pub saved: Vec<String>,
    /// Tensors that are the same in both models.
    #[serde(rename = "unchanged_count")]
    pub unchanged: usize,
    /// Tensors that differ, and that the adapter does not have; and why.
    pub left: Vec<Left>,
}

/// Result of the extraction for one layer.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ExtractedTensor {
    /// Name of the tensor in the tuned model.
    pub name: String,
    /// Outputs and inputs.
    pub shape: [u64; 2],
    /// Rank of its matrices.
    pub rank: u64,
    /// Norm of the difference, relative to the norm of the base's weights.
    pub change: f64,
    /// Share of the sum of squared singular values of the difference that was kept.
    pub energy: f64,
    /// Norm of the missing part of the difference, relative to the norm of the difference.
    ///
    /// It is measured on the rounded matrices.
    pub relative_error: f64,
}

/// A layer whose difference is decomposed.
struct Target {
    /// Name of the module in the base, to which the adapter is added.
    module: String,
    position: usize,
    base: usize,
    /// Stored rows and columns.
    sides: (usize, usize),
    inputs_first: bool,
    dtype: DType,
    extent: Extent,
    memory: u64,
}

/// Result for one target.
#[derive(Default)]
struct Found {
    /// Matrices A and B, row by row; `None` if the models are equal in this layer.
    matrices: Option<[Vec<u8>; 2]>,
    rank: u64,
    share: f64,
    change: f64,
    loss: Loss,
}

/// Extracts an adapter of a tuned model, with which `base` becomes almost that. Both have the names
/// and the layout of Hugging Face's folders.
///
/// # Errors
/// E001 where the models do not go together (a layer that the base lacks, or has in another shape),
/// for a glob that matches no layer, and models that are the same; E003 for weights in codes that
/// can't be decoded; E008 for a matrix whose
/// decomposition takes more memory than there may be; E002 and E007 when a tensor can't be read.
pub fn extract<'m, P: Pipeline>(
    tuned: &Source<'m>,
    base: &Source<'_>,
    extraction: &Extraction,
    store: Box<dyn FactorStore>,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<(Adapter<'m>, ExtractReport)> {
    check_available()?;
    let reader = tuned.reader();
    check_decodable(tuned.reader()).map_err(|error| error.in_file(tuned.name()))?;
    check_decodable(base.reader()).map_err(|error| error.in_file(base.name()))?;
    let pairs = Pairs::new(tuned, base, extraction)?;
    let base = base.reader();
    let elements = pairs.targets.iter().map(|target| target.sides.0 as u64 * target.sides.1 as u64);
    progress.begin(Phase::Measuring, elements.sum::<u64>() * 8);

    let mut found: Vec<Option<(Found, [AdapterBytes; 2])>> =
        pairs.targets.iter().map(|_| None).collect();
    let take = |at: usize, done: &mut Found| {
        let done = std::mem::take(done);
        if let Some([first, second]) = &done.matrices {
            let places = [first, second].map(|bytes| AdapterBytes::append(&*store, bytes));
            let [first, second] = places;
            let places = [first?, second?];
            found[at] = Some((Found { matrices: None, ..done }, places));
        }
        let (rows, columns) = pairs.targets[at].sides;
        progress.advance(rows as u64 * columns as u64 * 8);
        Ok(())
    };

    let work = |at: usize, slot: &mut Found| {
        let target = &pairs.targets[at];
        let name = &reader.tensors()[target.position].name;
        *slot = decompose(reader, base, target).map_err(|error| error.for_tensor(name))?;
        Ok(())
    };

    let needs: Vec<u64> = pairs.targets.iter().map(|target| target.memory).collect();
    let at_once = extraction.memory / extraction.threads.max(1) as u64;
    run_within_memory(pipeline, &needs, at_once, work, take)?;

    let others = pairs.differing(reader, base)?;
    Parts { reader, pairs, extraction, others }.adapter(found, store)
}

/// The tensors of both models.
struct Pairs {
    targets: Vec<Target>,
    /// Positions of other tensors and, if the base has them, their positions in the base.
    others: Vec<(usize, Option<usize>)>,
    /// Linear layers that are not targets.
    linear: Vec<String>,
}

impl Pairs {
    fn new(tuned: &Source<'_>, base: &Source<'_>, extraction: &Extraction) -> Result<Self> {
        let (reader, family) = (tuned.reader(), tuned.family()?);
        let (base, base_family) = (base.reader(), base.family()?);
        let of_base: BTreeMap<&str, usize> =
            base.tensors().iter().zip(0..).map(|(info, at)| (info.name.as_str(), at)).collect();
        // Some formats leave out what is before the names of all layers.
        let canonical = |at: usize| Some((base_family?.canonical(at)?, at));
        let by_family: BTreeMap<&str, usize> =
            (0..base.tensors().len()).filter_map(canonical).collect();

        let mut pairs = Self { targets: Vec::new(), others: Vec::new(), linear: Vec::new() };
        let mut matches = 0_usize;
        let roles = roles_of(reader, family);
        for (position, (info, role)) in reader.tensors().iter().zip(roles).enumerate() {
            let other = of_base.get(info.name.as_str()).copied();
            let other = other.or_else(|| by_family.get(family?.canonical(position)?).copied());
            let is_linear = matches!(role, Some(Role::Matrix | Role::Output))
                && module_of(info).is_some()
                && sides(info).is_some();
            let is_target = match &extraction.targets {
                Some(glob) => glob.is_match(&info.name),
                None => role == Some(Role::Matrix),
            };
            matches += usize::from(is_target && is_linear);
            match sides(info).filter(|_| is_target && is_linear) {
                None => {
                    pairs.others.push((position, other));
                    pairs.linear.extend(module_of(info).filter(|_| is_linear).map(str::to_owned));
                }
                Some(sides) => {
                    let inputs_first = family.is_some_and(|model| model.has_inputs_first(position));
                    let at = same_shape(info, other.map(|at| (at, &base.tensors()[at])))?;
                    let mut target = target(info, (position, at), sides, inputs_first, extraction)?;
                    let of_base = &base.tensors()[at];
                    target.module = module_of(of_base).unwrap_or(&of_base.name).to_owned();
                    pairs.targets.push(target);
                }
            }
        }

        if matches == 0 {
            return Err(Error::format(match &extraction.targets {
                Some(glob) => format!("no linear layer's name matches '{}'", glob.text()),
                None => "the model does not have linear layers".to_owned(),
            }));
        }
        Ok(pairs)
    }

    /// Returns the other tensors that differ with the reason for each, and the number of unchanged
    /// tensors.
    ///
    /// The reason states why the tensor is not a layer of the adapter.
    fn differing(
        &self,
        tuned: &dyn CheckpointReader,
        base: &dyn CheckpointReader,
    ) -> Result<(Vec<(usize, String)>, usize)> {
        let (mut differing, mut unchanged) = (Vec::new(), 0);
        for &(position, other) in &self.others {
            let info = &tuned.tensors()[position];
            let why = match other {
                None => "the base does not have it".to_owned(),
                Some(other) if base.tensors()[other].shape != info.shape => {
                    let shape = &base.tensors()[other].shape;
                    format!("its shape is {}, and the base's {shape}", info.shape)
                }
                Some(other) if is_same((tuned, position), (base, other))? => {
                    unchanged += 1;
                    continue;
                }
                Some(_) => "it is not one of the linear layers that are extracted".to_owned(),
            };
            differing.push((position, why));
        }
        Ok((differing, unchanged))
    }
}

/// The module that a weight is of.
fn module_of(info: &TensorInfo) -> Option<&str> {
    info.name.strip_suffix(".weight")
}

/// The position of the base's tensor, of the same shape.
fn same_shape(info: &TensorInfo, base: Option<(usize, &TensorInfo)>) -> Result<usize> {
    let Some((position, base)) = base else {
        return Err(Error::format("the base does not have it").for_tensor(&info.name));
    };
    if base.shape != info.shape {
        let message = format!("its shape is {}, and the base's {}", info.shape, base.shape);
        return Err(Error::format(message).for_tensor(&info.name));
    }
    Ok(position)
}

fn target(
    info: &TensorInfo,
    (position, base): (usize, usize),
    sides @ (rows, columns): (usize, usize),
    inputs_first: bool,
    extraction: &Extraction,
) -> Result<Target> {
    let extent = match extraction.amount {
        Amount::Rank(rank) => Extent::Rank(usize::try_from(rank).unwrap_or(usize::MAX)),
        Amount::Energy(share) => Extent::Energy { share, most: usize::MAX },
    };
    let itself = (rows as u64).saturating_mul(columns as u64).saturating_mul(4);
    let memory = memory(rows, columns, extent).saturating_add(itself);
    if memory > extraction.memory {
        let message = format!(
            "decomposing its {rows} x {columns} elements needs {memory} bytes of memory; the \
             limit is {}",
            extraction.memory
        );
        return Err(Error::memory(message).for_tensor(&info.name));
    }
    let dtype = extraction.precision.or(suits(info.dtype).then_some(info.dtype));
    let dtype = dtype.unwrap_or(DType::F32);
    let module = module_of(info).unwrap_or(&info.name).to_owned();
    Ok(Target { module, position, base, sides, inputs_first, dtype, extent, memory })
}

/// Returns `true` if two tensors of one shape have equal values.
fn is_same(
    (tuned, position): (&dyn CheckpointReader, usize),
    (base, other): (&dyn CheckpointReader, usize),
) -> Result<bool> {
    /// Number of elements per comparison step.
    const PIECE: u64 = 1 << 18;

    let [info, of_base] = [&tuned.tensors()[position], &base.tensors()[other]];
    let elements = info.shape.elements().unwrap_or_default();
    let is_plain = |info: &TensorInfo| !info.dtype.is_quantized() && info.dtype.block_len() == 1;
    if !is_plain(info) || !is_plain(of_base) {
        return Ok(read(tuned, position)? == read(base, other)?);
    }
    let (mut bytes, mut values) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for start in (0..elements.div_ceil(PIECE)).map(|at| at * PIECE) {
        let count = PIECE.min(elements - start);
        for (at, (reader, position)) in [(tuned, position), (base, other)].into_iter().enumerate() {
            let dtype = reader.tensors()[position].dtype;
            let width = dtype.block_bytes();
            bytes[at].resize(usize::try_from(count * width).unwrap_or_default(), 0);
            reader.read_tensor(position, start * width, &mut bytes[at])?;
            if info.dtype != of_base.dtype {
                decode(dtype, &bytes[at], 1, &mut values[at]);
            }
        }
        if values[0] != values[1] || (info.dtype == of_base.dtype && bytes[0] != bytes[1]) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Decomposes what a layer has more than the base's.
fn decompose(
    tuned: &dyn CheckpointReader,
    base: &dyn CheckpointReader,
    target: &Target,
) -> Result<Found> {
    let Target { position, sides: (rows, columns), dtype, extent, inputs_first, .. } = target;
    let mut values = read(tuned, *position)?;
    let of_base = subtract(&mut values, base, target.base)?;
    if values.iter().all(|value| *value == 0.0) {
        return Ok(Found::default());
    }

    let svd = truncated_svd(&values, *rows, *columns, *extent)?;
    let (rank, share, energy) = (svd.rank(), svd.share(), svd.energy);
    let [mut left, mut right] = svd.into_factors(*columns);
    let mut bytes = [Vec::new(), Vec::new()];
    for (values, bytes) in [&mut left, &mut right].into_iter().zip(&mut bytes) {
        cast_values(values, *dtype, bytes);
        decode(*dtype, bytes, 1, values);
    }
    let loss = loss(&values, (&left, &right), *columns);
    if !loss.lost.is_finite() {
        return Err(Error::format(format!("its matrices exceed what {dtype} holds")));
    }

    let [of_rows, of_columns] = bytes;
    let width = usize::try_from(dtype.block_bytes()).unwrap_or(1);
    // A is applied to the inputs, which are the columns but where weights have inputs first.
    let matrices = match inputs_first {
        false => [of_columns, of_rows],
        true => [
            transposed(&of_rows, (*rows, rank), width),
            transposed(&of_columns, (rank, *columns), width),
        ],
    };
    let change = if of_base > 0.0 { (energy / of_base).sqrt() } else { 1.0 };
    Ok(Found { matrices: Some(matrices), rank: rank as u64, share, change, loss })
}

/// Returns the difference between the product of the rounded matrices and the decomposed matrix.
fn loss(values: &[f32], (left, right): (&[f32], &[f32]), columns: usize) -> Loss {
    let rank = right.len() / columns.max(1);
    let mut loss = Loss::default();
    let mut sums = vec![0.0_f32; columns];
    for (row, of_row) in values.chunks_exact(columns).zip(left.chunks_exact(rank.max(1))) {
        sums.fill(0.0);
        for (coefficient, other) in of_row.iter().zip(right.chunks_exact(columns)) {
            sums.iter_mut().zip(other).for_each(|(sum, value)| *sum += coefficient * value);
        }
        for (value, sum) in row.iter().zip(&sums) {
            loss.energy += f64::from(*value).powi(2);
            loss.lost += (f64::from(*value) - f64::from(*sum)).powi(2);
        }
    }
    loss
}

/// Transposes a matrix of elements of `width` bytes.
fn transposed(bytes: &[u8], (rows, columns): (usize, usize), width: usize) -> Vec<u8> {
    let mut turned = Vec::with_capacity(bytes.len());
    for column in 0..columns {
        for row in 0..rows {
            turned.extend_from_slice(&bytes[(row * columns + column) * width..][..width]);
        }
    }
    turned
}

/// Inputs for assembling an adapter.
struct Parts<'m, 'p> {
    reader: &'m dyn CheckpointReader,
    pairs: Pairs,
    extraction: &'p Extraction,
    /// Other tensors that differ with the reasons why they are not layers, and the number of
    /// unchanged ones.
    others: (Vec<(usize, String)>, usize),
}

impl<'m> Parts<'m, '_> {
    fn adapter(
        self,
        found: Vec<Option<(Found, [AdapterBytes; 2])>>,
        store: Box<dyn FactorStore>,
    ) -> Result<(Adapter<'m>, ExtractReport)> {
        let Self { reader, pairs, extraction, others: (others, unchanged) } = self;
        let amount = extraction.amount;
        let mut report = ExtractReport {
            base: extraction.base_name.clone(),
            rank: if let Amount::Rank(rank) = amount { Some(rank) } else { None },
            energy: if let Amount::Energy(share) = amount { Some(share) } else { None },
            relative_error: 0.0,
            tensors: Vec::new(),
            saved: Vec::new(),
            unchanged,
            left: Vec::new(),
        };

        // PEFT takes the names of modules in memory, and leaves out others in silence.
        let names = MemoryNames::of(reader.tensors().iter().map(|info| info.name.as_str()));
        let (mut tensors, mut modules, mut loss) = (Vec::new(), Vec::new(), Loss::default());
        let mut inputs_first = BTreeSet::new();
        let mut linear = pairs.linear;
        for (target, found) in pairs.targets.iter().zip(found) {
            let info = &reader.tensors()[target.position];
            let module = target.module.as_str();
            let Some((found, places)) = found else {
                report.unchanged += 1;
                linear.push(module.to_owned());
                continue;
            };
            let (rows, columns) = (target.sides.0 as u64, target.sides.1 as u64);
            let [outputs, inputs] =
                if target.inputs_first { [columns, rows] } else { [rows, columns] };
            let shapes = [("A", [found.rank, inputs]), ("B", [outputs, found.rank])];
            for ((half, shape), place) in shapes.into_iter().zip(places) {
                let module = names.module_in_memory(module);
                let name = format!("{PREFIX}{module}.lora_{half}.weight");
                let shape = Shape::from(shape);
                let info = TensorInfo { name, dtype: target.dtype, shape };
                tensors.push((info, place));
            }

            modules.push(Module { name: module.to_owned(), rank: found.rank });
            inputs_first.insert(target.inputs_first);
            loss.add(found.loss);
            report.tensors.push(ExtractedTensor {
                name: info.name.clone(),
                shape: [outputs, inputs],
                rank: found.rank,
                change: found.change,
                energy: found.share,
                relative_error: found.loss.relative_error(),
            });
        }

        report.relative_error = loss.relative_error();
        if modules.is_empty() {
            return Err(Error::format("the linear layers of both models are the same"));
        }
        if inputs_first.len() > 1 {
            return Err(Error::format(
                "some layers have weights with inputs first, others with outputs first, which \
                 one adapter can't represent: select layers by name",
            ));
        }

        let saved = save(reader, &others, &modules, extraction.save_others, &mut report);
        tensors.extend(saved.into_iter().map(|(info, bytes)| {
            let name = [PREFIX, &names.in_memory(&info.name)].concat();
            (TensorInfo { name, ..info }, bytes)
        }));
        for module in &mut modules {
            module.name = names.module_in_memory(&module.name);
        }
        let in_memory = |module: &String| names.module_in_memory(module);
        let saved: Vec<String> = report.saved.iter().map(in_memory).collect();
        let linear: Vec<String> = linear.iter().map(in_memory).collect();
        let config = Config {
            base: &extraction.base_name,
            modules: &modules,
            saved: &saved,
            others: &linear,
            architectures: architectures(reader)?,
            inputs_first: inputs_first.contains(&true),
        };
        let adapter = Adapter::new(reader, store, tensors, Metadata::new(), config.companions());
        Ok((adapter, report))
    }
}

/// The tensors of modules that the adapter has whole copies of; others that differ are reported.
fn save(
    reader: &dyn CheckpointReader,
    differing: &[(usize, String)],
    modules: &[Module],
    saves: bool,
    report: &mut ExtractReport,
) -> Vec<(TensorInfo, AdapterBytes)> {
    let module = |info: &TensorInfo| info.name.rsplit_once('.').map(|(name, _)| name.to_owned());
    let mut saved = BTreeSet::new();
    for (position, why) in differing {
        let info = &reader.tensors()[*position];
        let of = module(info);
        let is_extracted = modules.iter().any(|module| of.as_ref() == Some(&module.name));
        match of.filter(|_| saves && !is_extracted) {
            Some(of) => drop(saved.insert(of)),
            None => {
                let why = match is_extracted {
                    true => "of its layer, the adapter has the weight alone".to_owned(),
                    false => why.clone(),
                };
                report.left.push(Left { name: info.name.clone(), why });
            }
        }
    }

    let copies = reader.tensors().iter().enumerate().filter_map(|(position, info)| {
        module(info).filter(|of| saved.contains(of))?;
        Some((info.clone(), AdapterBytes::Copied(position)))
    });
    let copies = copies.collect();
    report.saved = saved.into_iter().collect();
    copies
}

/// The classes that a model's configuration names.
fn architectures(reader: &dyn CheckpointReader) -> Result<Vec<String>> {
    let place = reader.companions().iter().position(|companion| companion.name == "config.json");
    let beside = place.map(|place| reader.read_companion(place)).transpose()?;
    let beside = beside.and_then(|bytes| from_python::<Map<String, Value>>(&bytes).ok());
    let config = beside.or_else(|| reader.metadata().object(keys::ARCHITECTURE).cloned());
    let names = config.as_ref().and_then(|config| config.get("architectures")?.as_array());
    let names = names.into_iter().flatten().filter_map(Value::as_str);
    Ok(names.map(str::to_owned).collect())
}
