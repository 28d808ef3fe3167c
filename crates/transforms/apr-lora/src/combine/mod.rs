//! Several adapters as one, and an adapter of a lower rank.
//!
//! The result adds to a model what the adapters add, each times its weight. Their matrices side by
//! side are that exactly ([`CombineMethod::Cat`]). A truncated singular value decomposition lowers
//! the rank. The other methods combine matrices element by element, as PEFT's
//! `add_weighted_adapter` does.

mod modules;
mod result;
mod rules;

use apr_core::{DType, Error, Phase, Pipeline, Progress, Result, Shape, TensorInfo};
use apr_lowrank::{
    Adapter as MadeAdapter, AdapterBytes, Amount, Extent, FactorStore, check_available,
    product_svd, run_within_memory, truncated_svd,
};
use apr_tensor::cast::cast_values;
use apr_view::values::decode;
use serde::Serialize;

use self::modules::{Module, Modules};
use self::rules::Rule;
use crate::adapter::Adapter;
use crate::matrix::{Matrix, Product};
use crate::report::MergedAdapter;

/// How the matrices of several adapters become those of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum CombineMethod {
    /// Side by side: the exact sum, of the sum of their ranks.
    #[default]
    Cat,
    /// Weighted sums of matrices.
    Linear,
    /// Sums of the largest elements that have the sign of the majority.
    Ties,
    /// Sums of random elements.
    DareLinear,
    /// Sums of random elements that have the sign of the majority.
    DareTies,
    /// Sums of the largest elements.
    MagnitudePrune,
}

impl CombineMethod {
    /// All methods.
    pub const ALL: [Self; 6] = [
        Self::Cat,
        Self::Linear,
        Self::Ties,
        Self::DareLinear,
        Self::DareTies,
        Self::MagnitudePrune,
    ];

    /// Returns the name of the method in PEFT.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cat => "cat",
            Self::Linear => "linear",
            Self::Ties => "ties",
            Self::DareLinear => "dare_linear",
            Self::DareTies => "dare_ties",
            Self::MagnitudePrune => "magnitude_prune",
        }
    }

    /// Returns `true` if the method keeps a share of the elements.
    #[must_use]
    pub const fn takes_density(self) -> bool {
        !matches!(self, Self::Cat | Self::Linear)
    }

    /// Returns `true` if the method elects signs.
    #[must_use]
    pub const fn elects_signs(self) -> bool {
        matches!(self, Self::Ties | Self::DareTies)
    }

    /// Returns `true` if the method draws random numbers.
    #[must_use]
    pub const fn is_random(self) -> bool {
        matches!(self, Self::DareLinear | Self::DareTies)
    }
}

/// How the sign of the majority is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum MajoritySign {
    /// The sign of the sum of the elements.
    #[default]
    Total,
    /// The sign that more of the elements have.
    Frequency,
}

/// Options for combining adapters.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Combination {
    /// How matrices are combined.
    pub method: CombineMethod,
    /// Amount of each product of matrices to keep.
    ///
    /// With it, methods combine products of matrices, of any ranks, and the result is decomposed.
    /// Without it, they combine the matrices themselves, which must be of one rank except for
    /// [`CombineMethod::Cat`].
    pub amount: Option<Amount>,
    /// Share of the elements that a method keeps, from 0 to 1.
    pub density: f64,
    /// How signs are elected.
    pub majority: MajoritySign,
    /// Seed of random numbers.
    pub seed: u64,
    /// Dtype of the matrices. Default: that of the first adapter that has the module.
    pub precision: Option<DType>,
    /// Bytes that modules may take, all that are computed at the same time together.
    pub memory: u64,
    /// Modules that the pipeline works on at the same time.
    pub threads: usize,
}

impl Default for Combination {
    fn default() -> Self {
        Self {
            method: CombineMethod::Cat,
            amount: None,
            density: 1.0,
            majority: MajoritySign::Total,
            seed: 0,
            precision: None,
            memory: 1 << 30,
            threads: 1,
        }
    }
}

/// Report on a combined adapter.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CombineReport {
    /// Name of the method.
    pub method: &'static str,
    /// Requested rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u64>,
    /// Requested share of the energy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy: Option<f64>,
    /// Share of the elements that the method kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub density: Option<f64>,
    /// The adapters, in their order.
    pub adapters: Vec<MergedAdapter>,
    /// Norm of the changes that the result lacks, relative to the norm of all changes; `None` if
    /// nothing was decomposed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relative_error: Option<f64>,
    /// The modules that the result changes.
    #[serde(rename = "by_module")]
    pub modules: Vec<CombinedModule>,
    /// Tensors that the result has as they are, such as modules that were trained as a whole.
    #[serde(rename = "copied_tensors")]
    pub copied: Vec<String>,
    /// Warnings, which the caller shows.
    #[serde(skip)]
    pub warnings: Vec<String>,
}

/// Result for one module.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CombinedModule {
    /// Name of the module in the adapters.
    pub name: String,
    /// Ranks of its matrices in the adapters that have it.
    pub ranks_before: Vec<u64>,
    /// Rank of the new matrices.
    pub rank: u64,
    /// Share of the sum of squared singular values that was kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy: Option<f64>,
    /// Norm of the missing part of the change, relative to the norm of the change.
    ///
    /// It is measured on the rounded matrices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relative_error: Option<f64>,
}

/// What a decomposition kept of a change.
#[derive(Debug, Clone, Copy)]
struct Kept {
    energy: f64,
    /// Sums of squares of the change, and of the part that is missing.
    whole: f64,
    lost: f64,
}

/// Result for one module, before it is stored.
#[derive(Default)]
struct Made {
    /// Matrices A and B, row by row.
    matrices: [Vec<u8>; 2],
    rank: u64,
    kept: Option<Kept>,
}

/// Combines adapters, each with its weight: of PEFT, or all of image models. The first one has the
/// names and the configuration.
///
/// # Errors
/// E001 for adapters that do not have pairs of matrices alone (DoRA, LoHa, modules that were
/// trained as a whole beside other adapters), or whose matrices do not go together; E003 to
/// decompose without linear algebra; E008 for a module that takes more memory than there may be;
/// E002 and E007 when a tensor can't be read, and what `store` returns.
pub fn combine<'a, P: Pipeline>(
    adapters: &'a [Adapter<'a>],
    combination: &Combination,
    store: Box<dyn FactorStore>,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<(MadeAdapter<'a>, CombineReport)> {
    if combination.amount.is_some() {
        check_available()?;
    }
    let found = Modules::of(adapters, combination)?;
    let needs: Vec<u64> =
        found.list.iter().map(|module| module.memory(combination)).collect::<Result<_>>()?;
    progress.begin(Phase::Measuring, found.list.iter().map(Module::bytes).sum());

    let work = |at: usize, slot: &mut Made| {
        let module = &found.list[at];
        let made = make(adapters, module, combination);
        *slot = made.map_err(|error| match error.tensor() {
            Some(_) => error,
            None => error.for_tensor(&module.infos[0].name),
        })?;
        Ok(())
    };
    let (mut made, mut tensors) = (Vec::new(), vec![None; found.list.len()]);
    made.resize_with(found.list.len(), || None);
    let take = |at: usize, slot: &mut Made| {
        let Made { matrices: [first, second], rank, kept } = std::mem::take(slot);
        let stored = [&first, &second].map(|bytes| AdapterBytes::append(&*store, bytes));
        let [first, second] = stored;
        tensors[at] = Some([first?, second?]);
        made[at] = Some((rank, kept));
        progress.advance(found.list[at].bytes());
        Ok(())
    };
    let at_once = combination.memory / combination.threads.max(1) as u64;
    run_within_memory(pipeline, &needs, at_once, work, take)?;

    let mut report = found.report(adapters, combination);
    let (mut whole, mut lost) = (0.0, 0.0);
    let mut list = Vec::with_capacity(2 * found.list.len());
    for ((module, made), stored) in found.list.iter().zip(made).zip(tensors) {
        let (Some((rank, kept)), Some([first, second])) = (made, stored) else { continue };
        let [a, b] = &module.infos;
        list.push((resized(a, 0, rank, module.dtype), first));
        list.push((resized(b, 1, rank, module.dtype), second));
        if let Some(kept) = kept {
            whole += kept.whole;
            lost += kept.lost;
        }
        report.modules.push(CombinedModule {
            name: module.name.clone(),
            ranks_before: module.pairs.iter().map(|pair| pair.rank as u64).collect(),
            rank,
            energy: kept.map(|kept| kept.energy),
            relative_error: kept.map(|kept| relative(kept.lost, kept.whole)),
        });
    }
    report.relative_error = combination.amount.map(|_| relative(lost, whole));
    let is_lower = |module: &CombinedModule| module.rank < module.ranks_before.iter().sum::<u64>();
    if combination.amount.is_some() && !report.modules.iter().any(is_lower) {
        report.warnings.push("no module has a lower rank than before".to_owned());
    }
    let adapter = result::adapter(adapters, &found, &mut report, list, store)?;
    Ok((adapter, report))
}

fn relative(lost: f64, whole: f64) -> f64 {
    if whole > 0.0 { (lost / whole).sqrt() } else { 0.0 }
}

/// Returns a matrix with another size in one dimension.
fn resized(info: &TensorInfo, dimension: usize, rank: u64, dtype: DType) -> TensorInfo {
    let mut dims = info.shape.dims().to_vec();
    dims[dimension] = rank;
    TensorInfo { name: info.name.clone(), dtype, shape: Shape::from(dims) }
}

/// The matrices of a module in one adapter.
struct Loaded {
    first: Matrix,
    second: Matrix,
    weight: f64,
    scale: f64,
}

/// Computes the matrices of a module.
fn make(adapters: &[Adapter<'_>], module: &Module, combination: &Combination) -> Result<Made> {
    let load = |pair: &modules::Pair| {
        let Adapter { reader, weight, .. } = &adapters[pair.adapter];
        let first = Matrix::read(&**reader, pair.first)?;
        let second = Matrix::read(&**reader, pair.second)?;
        Ok(Loaded { first, second, weight: *weight, scale: pair.scale })
    };
    let loaded: Vec<Loaded> = module.pairs.iter().map(load).collect::<Result<_>>()?;
    let Combination { method, density, majority, seed, .. } = *combination;
    let rule = Rule { method, density, majority, seed, name: &module.name };
    let (rows, columns) = (loaded[0].second.rows, loaded[0].first.columns);
    let Some(amount) = combination.amount else {
        let (matrices, rank) = match method {
            CombineMethod::Cat => side_by_side(loaded),
            _ => by_element(loaded, rule),
        };
        let made = round(matrices, module.dtype)?;
        return Ok(Made { matrices: made.bytes, rank: rank as u64, kept: None });
    };

    let extent = match amount {
        Amount::Rank(rank) => Extent::Rank(usize::try_from(rank).unwrap_or(usize::MAX)),
        Amount::Energy(share) => Extent::Energy { share, most: usize::MAX },
    };
    let is_sum = !method.takes_density();
    let change = if is_sum {
        let ([first, second], inner) = side_by_side(loaded);
        Change::Product { first, second, inner }
    } else {
        Change::Whole(whole(loaded, rule))
    };
    let svd = match &change {
        Change::Product { first, second, inner } => {
            product_svd(second, first, [rows, *inner, columns], extent)?
        }
        Change::Whole(values) => truncated_svd(values, rows, columns, extent)?,
    };
    let (rank, energy, squares) = (svd.rank(), svd.share(), svd.energy);
    let [second, first] = svd.into_factors(columns);
    let made = round([first, second], module.dtype)?;
    let lost = change.without(&made.values, (rows, rank, columns))?;
    let kept = Some(Kept { energy, whole: squares, lost });
    Ok(Made { matrices: made.bytes, rank: rank as u64, kept })
}

/// The change of a weight that is decomposed.
enum Change {
    Product { first: Vec<f32>, second: Vec<f32>, inner: usize },
    Whole(Vec<f32>),
}

impl Change {
    /// Returns the sum of squares of what is left without the product of two matrices.
    fn without(
        &self,
        [first, second]: &[Vec<f32>; 2],
        (rows, rank, columns): (usize, usize, usize),
    ) -> Result<f64> {
        match self {
            Self::Product { first: all_first, second: all_second, inner } => {
                let both_first = [all_first.as_slice(), first].concat();
                let mut both_second = Vec::with_capacity(all_second.len() + second.len());
                for row in 0..rows {
                    both_second.extend_from_slice(&all_second[row * inner..][..*inner]);
                    both_second.extend(second[row * rank..][..rank].iter().map(|value| -value));
                }
                let sizes = [rows, inner + rank, columns];
                Ok(product_svd(&both_second, &both_first, sizes, Extent::Rank(1))?.energy)
            }
            Self::Whole(values) => {
                let left = Matrix { rows, columns: rank, values: second.clone() };
                let right = Matrix { rows: rank, columns, values: first.clone() };
                let made = Product { left, right }.whole().values;
                Ok(values.iter().zip(&made).map(|(a, b)| f64::from(a - b).powi(2)).sum())
            }
        }
    }
}

/// Puts matrices side by side, the first ones times weight and scale; returns the sum of the ranks.
fn side_by_side(loaded: Vec<Loaded>) -> ([Vec<f32>; 2], usize) {
    let inner = loaded.iter().map(|of| of.first.rows).sum();
    let rows = loaded.first().map_or(0, |of| of.second.rows);
    let mut second = Vec::with_capacity(rows * inner);
    for row in 0..rows {
        loaded.iter().for_each(|of| second.extend_from_slice(of.second.row(row)));
    }
    let mut first = Vec::new();
    for Loaded { first: matrix, weight, scale, .. } in loaded {
        let (weight, scale) = (single(weight), single(scale));
        first.extend(matrix.values.iter().map(|value| value * weight * scale));
    }
    ([first, second], inner)
}

/// Combines matrices element by element, each times the root of weight and scale.
fn by_element(loaded: Vec<Loaded>, rule: Rule<'_>) -> ([Vec<f32>; 2], usize) {
    let rank = loaded.first().map_or(0, |of| of.first.rows);
    let factor = |of: &Loaded| of.weight * of.scale;
    let of_second: Vec<f32> = loaded.iter().map(|of| single(factor(of).abs().sqrt())).collect();
    let sign = |of: &Loaded| if factor(of) >= 0.0 { 1.0 } else { -1.0 };
    let of_first: Vec<f32> =
        loaded.iter().zip(&of_second).map(|(of, root)| root * sign(of)).collect();
    let (first, second): (Vec<_>, Vec<_>) =
        loaded.into_iter().map(|of| (of.first.values, of.second.values)).unzip();
    let names = ["A", "B"].map(|half| format!("{}.{half}", rule.name));
    let first = Rule { name: &names[0], ..rule }.apply(first, &of_first);
    let second = Rule { name: &names[1], ..rule }.apply(second, &of_second);
    ([first, second], rank)
}

/// Combines products of matrices element by element.
fn whole(loaded: Vec<Loaded>, rule: Rule<'_>) -> Vec<f32> {
    let weights: Vec<f32> = loaded.iter().map(|of| single(of.weight)).collect();
    let product = |of: Loaded| {
        let scale = single(of.scale);
        let mut product = Product { left: of.second, right: of.first }.whole().values;
        product.iter_mut().for_each(|value| *value *= scale);
        product
    };
    rule.apply(loaded.into_iter().map(product).collect(), &weights)
}

#[expect(clippy::cast_possible_truncation, reason = "PEFT computes in single precision")]
fn single(value: f64) -> f32 {
    value as f32
}

/// Matrices as they are stored: their bytes, and the elements that these have.
struct Rounded {
    bytes: [Vec<u8>; 2],
    values: [Vec<f32>; 2],
}

fn round(mut values: [Vec<f32>; 2], dtype: DType) -> Result<Rounded> {
    let mut bytes = [Vec::new(), Vec::new()];
    for (values, bytes) in values.iter_mut().zip(&mut bytes) {
        cast_values(values, dtype, bytes);
        decode(dtype, bytes, 1, values);
        if !values.iter().all(|value| value.is_finite()) {
            return Err(Error::format(format!("the combined matrix exceeds what {dtype} holds")));
        }
    }
    Ok(Rounded { bytes, values })
}
