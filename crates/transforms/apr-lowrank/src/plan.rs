//! What is factorized, and how far.

use apr_core::{CheckpointReader, DType, Error, Phase, Pipeline, Progress, Result, TensorInfo};
use apr_quantize::{Kept, Role, roles_of};
use apr_source::Source;
use apr_tensor::factors::{encode, stored_len, suits};
use apr_tensor::sparse::Matrix;
use apr_view::{NamePattern, check_decodable};

use crate::factored::{Place, factored, loss, record};
use crate::matrix::{read, sides};
use crate::report::{FactorReport, FactorTotal, FactorizedTensor, Left, Loss};
use crate::store::FactorStore;
use crate::svd::{Extent, Svd, check_available, memory, truncated_svd};
use crate::within_memory::run_within_memory;

/// Amount of a matrix to keep.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Amount {
    /// Number of singular values; all of them if the matrix has fewer.
    Rank(u64),
    /// Share of the energy, above 0 and at most 1, that the kept singular values must have.
    Energy(f64),
}

/// Form of the factors; their product does not depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Method {
    /// Each has the roots of the singular values.
    #[default]
    Svd,
    /// The second has orthonormal rows, and the first all of the singular values: matrices B and A
    /// of a LoRA adapter.
    Lora,
}

/// Options for factorizing.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Factorization {
    /// Amount of each matrix to keep.
    pub amount: Amount,
    /// Form of the factors.
    pub method: Method,
    /// Tensors whose names match; without one, the matrices that multiply vectors, but neither
    /// embeddings nor the output projection.
    pub targets: Option<NamePattern>,
    /// Quantized tensors become floats of this dtype first.
    pub dequantize: Option<DType>,
    /// Factors are of this dtype instead of the tensor's.
    pub precision: Option<DType>,
    /// Bytes that decompositions may take, all that run at the same time together.
    pub memory: u64,
    /// Tensors that the pipeline works on at the same time.
    pub threads: usize,
}

impl Factorization {
    /// Creates options with the defaults: SVD factors of the default targets, with 1 GiB of memory.
    #[must_use]
    pub const fn new(amount: Amount) -> Self {
        Self {
            amount,
            method: Method::Svd,
            targets: None,
            dequantize: None,
            precision: None,
            memory: 1 << 30,
            threads: 1,
        }
    }

    /// Creates options to keep `rank` singular values of each matrix.
    #[must_use]
    pub const fn to_rank(rank: u64) -> Self {
        Self::new(Amount::Rank(rank))
    }
}

/// A matrix that is to be factorized.
#[derive(Debug, Clone)]
struct Target {
    position: usize,
    /// Tensor after the factorization.
    info: TensorInfo,
    sides: (usize, usize),
    extent: Extent,
    /// Bytes that decomposing it takes.
    memory: u64,
}

/// Plan for factorizing a checkpoint.
#[derive(Debug, Clone)]
#[must_use = "nothing is factorized until it is applied"]
pub struct FactorPlan {
    factorization: Factorization,
    targets: Vec<Target>,
    left: Vec<Left>,
}

/// Decides what is factorized of a model.
///
/// # Errors
/// E001 for a rank of 0, a share of the energy that is none, quantized tensors that are not to be
/// dequantized, a glob that matches nothing, and a model without anything to factorize; E003 for
/// weights in codes that can't be decoded; E008 for a matrix whose decomposition takes more memory
/// than there may be.
pub fn plan(source: &Source<'_>, factorization: Factorization) -> Result<FactorPlan> {
    check(factorization.amount)?;
    let reader = source.reader();
    check_decodable(reader)?;
    let roles = roles_of(reader, source.family()?);
    let (mut targets, mut left) = (Vec::new(), Vec::new());
    let (mut matches, mut first_unsuited) = (0_usize, None);
    for (position, (info, role)) in reader.tensors().iter().zip(roles).enumerate() {
        let is_target = factorization.targets.as_ref().map(|glob| glob.is_match(&info.name));
        matches += usize::from(is_target == Some(true));
        let why = match (is_target, role) {
            (Some(false), _) | (None, Some(Role::Kept(Kept::Vector)) | None) => continue,
            (None, Some(Role::TokenEmbedding)) => Err("the token embeddings".to_owned()),
            (None, Some(Role::Output)) => Err("the output projection".to_owned()),
            (None, Some(Role::Kept(why))) => Err(why.to_string()),
            (None, Some(Role::Matrix)) | (Some(true), _) => {
                let target = target(position, info, &factorization)?;
                first_unsuited = first_unsuited.or_else(|| target.is_err().then_some(left.len()));
                target
            }
            (None, Some(_)) => continue,
        };
        match why {
            Ok(target) => targets.push(target),
            Err(why) => left.push(Left { name: info.name.clone(), why }),
        }
    }

    if targets.is_empty() {
        let message = match (&factorization.targets, first_unsuited.and_then(|at| left.get(at))) {
            (Some(glob), _) if matches == 0 => {
                format!("no tensor's name matches '{}'", glob.text())
            }
            (_, Some(Left { name, why })) => format!("nothing to factorize: {name}: {why}"),
            _ => "nothing to factorize: the model has no matrices of floats".to_owned(),
        };
        return Err(Error::format(message));
    }
    Ok(FactorPlan { factorization, targets, left })
}

fn check(amount: Amount) -> Result<()> {
    match amount {
        Amount::Rank(0) => Err(Error::format("the rank must be at least 1")),
        Amount::Energy(share) if !(share > 0.0 && share <= 1.0) => {
            Err(Error::format(format!("a share of {share} is not above 0 and at most 1")))
        }
        _ => Ok(()),
    }
}

/// Returns a tensor as a target, or the reason why it can't be one.
fn target(
    position: usize,
    info: &TensorInfo,
    factorization: &Factorization,
) -> Result<core::result::Result<Target, String>> {
    let dtype = match (info.dtype.is_quantized(), factorization.dequantize) {
        (true, None) => {
            let message = format!("it is {}: weights are factorized as floats", info.dtype);
            return Err(Error::format(message).for_tensor(&info.name));
        }
        (true, Some(dtype)) => dtype,
        (false, _) => info.dtype,
    };
    if !info.dtype.is_quantized() && !info.dtype.is_float() {
        return Ok(Err(format!("its elements are {}", info.dtype)));
    }

    let dtype = factorization.precision.unwrap_or(dtype);
    if !suits(dtype) {
        return Ok(Err(format!("factors are f32, f16 or bf16, not {dtype}")));
    }
    let Some(sides @ (rows, columns)) = sides(info) else {
        return Ok(Err(format!("its shape {} is not a matrix", info.shape)));
    };

    let info = TensorInfo { dtype, ..info.clone() };
    let matrix = Matrix::new(dtype, &info.shape)?;
    let most = largest_rank(matrix);
    let extent = match factorization.amount {
        Amount::Rank(rank) if rank > most as u64 => {
            return Ok(Err(saves_nothing(rank, (rows, columns))));
        }
        _ if most == 0 => return Ok(Err(saves_nothing(1, (rows, columns)))),
        Amount::Rank(rank) => Extent::Rank(usize::try_from(rank).unwrap_or(most)),
        Amount::Energy(share) => Extent::Energy { share, most: most + 1 },
    };

    let itself = (rows as u64).saturating_mul(columns as u64).saturating_mul(4);
    let memory = memory(rows, columns, extent).saturating_add(itself);
    if memory > factorization.memory {
        let message = format!(
            "decomposing its {rows} x {columns} elements needs {memory} bytes of memory; the \
             limit is {}",
            factorization.memory
        );
        return Err(Error::memory(message).for_tensor(&info.name));
    }
    Ok(Ok(Target { position, info, sides, extent, memory }))
}

/// The largest rank with which factors are smaller than the matrix.
fn largest_rank(matrix: Matrix) -> usize {
    let one = stored_len(matrix, 1).unwrap_or(u64::MAX);
    let none = stored_len(matrix, 0).unwrap_or_default();
    let room = matrix.dense_len().saturating_sub(none + 1);
    usize::try_from(room / (one - none).max(1)).unwrap_or(usize::MAX)
}

fn saves_nothing(rank: u64, (rows, columns): (usize, usize)) -> String {
    format!("factors of rank {rank} are not smaller than {rows} x {columns}")
}

/// Result for one target.
#[derive(Default)]
struct Found {
    /// Bytes of the factors; empty if there are none, for the reason `why`.
    stored: Vec<u8>,
    why: Option<String>,
    rank: u64,
    share: f64,
    loss: Loss,
}

impl FactorPlan {
    /// Returns the number of tensors to factorize.
    #[must_use]
    pub fn len(&self) -> usize {
        self.targets.len()
    }

    /// Returns `true` if there are no tensors to factorize. A plan always has some.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// Decomposes the matrices, one after the other or as many at a time as memory allows, and puts
    /// their factors into `store`.
    ///
    /// # Errors
    /// E002 and E007 when a tensor can't be read, what `store` says.
    pub fn apply<'b, P: Pipeline>(
        &self,
        base: Box<dyn CheckpointReader + 'b>,
        store: Box<dyn FactorStore>,
        pipeline: &P,
        progress: &dyn Progress,
    ) -> Result<(Box<dyn CheckpointReader + 'b>, FactorReport)> {
        check_available()?;
        let Factorization { amount, method, .. } = self.factorization;
        let elements = self.targets.iter().map(|target| target.sides.0 * target.sides.1);
        progress.begin(Phase::Measuring, elements.map(|count| count as u64 * 4).sum());

        let mut found: Vec<Option<(Found, Place)>> = self.targets.iter().map(|_| None).collect();
        let take = |at: usize, done: &mut Found| {
            let place =
                Place { offset: store.append(&done.stored)?, len: done.stored.len() as u64 };
            let (rows, columns) = self.targets[at].sides;
            progress.advance(rows as u64 * columns as u64 * 4);
            found[at] = Some((Found { stored: Vec::new(), ..std::mem::take(done) }, place));
            Ok(())
        };

        let work = |at: usize, slot: &mut Found| {
            *slot = self.factorize(&*base, &self.targets[at])?;
            Ok(())
        };

        let needs: Vec<u64> = self.targets.iter().map(|target| target.memory).collect();
        let at_once = self.factorization.memory / self.factorization.threads.max(1) as u64;
        run_within_memory(pipeline, &needs, at_once, work, take)?;

        let mut report = FactorReport {
            method: match method {
                Method::Svd => "svd".to_owned(),
                Method::Lora => "lora".to_owned(),
            },
            rank: if let Amount::Rank(rank) = amount { Some(rank) } else { None },
            energy: if let Amount::Energy(share) = amount { Some(share) } else { None },
            total: FactorTotal::default(),
            tensors: Vec::new(),
            left: self.left.clone(),
        };

        let (mut loss, mut factorized) = (Loss::default(), Vec::new());
        for (target, found) in self.targets.iter().zip(found) {
            let Some((found, place)) = found else { continue };
            let Target { position, info, sides: (rows, columns), .. } = target;
            if let Some(why) = found.why {
                report.left.push(Left { name: info.name.clone(), why });
                continue;
            }

            loss.add(found.loss);
            factorized.push((*position, info.dtype, place));
            report.total.bytes += place.len;
            report.total.bytes_before += info.byte_len()?;
            report.tensors.push(FactorizedTensor {
                name: info.name.clone(),
                shape: [*rows as u64, *columns as u64],
                rank: found.rank,
                bytes_before: info.byte_len()?,
                bytes: place.len,
                energy: found.share,
                relative_error: found.loss.relative_error(),
            });
        }

        report.total.relative_error = loss.relative_error();
        let mut factored = factored(base, store, &factorized, self.factorization.dequantize)?;
        record(factored.metadata_mut(), &report);
        Ok((Box::new(factored), report))
    }

    /// Decomposes a matrix.
    fn factorize(&self, base: &dyn CheckpointReader, target: &Target) -> Result<Found> {
        let Target { position, info, sides: (rows, columns), extent, .. } = target;
        let values = read(base, *position)?;
        let left_alone = |why: String| Found { why: Some(why), ..Found::default() };
        let svd = match truncated_svd(&values, *rows, *columns, *extent) {
            Ok(svd) => svd,
            // Dense, it is judged as every tensor that is written.
            Err(error) => return Ok(left_alone(error.message().to_owned())),
        };

        if let Extent::Energy { share, most } = extent
            && svd.rank() >= *most
        {
            let message = saves_nothing(*most as u64, (*rows, *columns));
            let what = if *share < 1.0 {
                format!("{share} of its energy")
            } else {
                "all of its energy".to_owned()
            };
            return Ok(left_alone(format!("{message}, and {what} needs more")));
        }
        let (rank, share) = (svd.rank(), svd.share());
        let [left, right] = self.factorization.method.factors(svd, *columns);
        let stored = encode(info.dtype, rank, &left, &right)?;
        let loss = loss(&stored, info, &values)?;
        if !loss.lost.is_finite() {
            return Ok(left_alone(format!("its factors exceed what {} holds", info.dtype)));
        }
        Ok(Found { stored, why: None, rank: rank as u64, share, loss })
    }
}

impl Method {
    /// Returns the factors of a matrix with `columns` columns.
    fn factors(self, svd: Svd, columns: usize) -> [Vec<f32>; 2] {
        if self == Self::Svd {
            return svd.into_factors(columns);
        }
        let Svd { mut left, values, right, .. } = svd;
        for row in left.chunks_exact_mut(values.len().max(1)) {
            row.iter_mut().zip(&values).for_each(|(element, value)| *element *= *value);
        }
        [left, right]
    }
}
