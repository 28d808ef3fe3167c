//! How a module's matrices make what is added to its weight: which of them, and which way round.

use apr_core::{CheckpointReader, Error, Result, Shape, TensorInfo};

use crate::adapter::{Part, Parts};
use crate::bank;
use crate::configuration::{Method, Writer};
use crate::fourier;
use crate::matrix::{Delta, Matrix, Product};

/// Maximum number of elements of a core times its matrix, which are in memory: 20 times those of
/// rank 512 for the largest kernel of Stable Diffusion XL.
const MOST_CONTRACTED: u64 = 1 << 28;

/// A matrix of an adapter, transposed or not.
#[derive(Debug, Clone, Copy)]
struct Factor {
    tensor: usize,
    is_transposed: bool,
}

/// Two matrices that are multiplied.
#[derive(Debug, Clone, Copy)]
struct Pair {
    left: Factor,
    right: Factor,
    /// Core of a kernel, `[left, right, height, width]`, between the two.
    core: Option<usize>,
}

/// A matrix that is stored whole or as two factors.
#[derive(Debug, Clone, Copy)]
enum Side {
    Whole(usize),
    Pair(Pair),
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Product(Pair),
    Hadamard(Pair, Pair),
    Kronecker(Side, Side),
    /// Matrices for a stack of weights, side by side: `first` is `[experts * rank, in]`, `second`
    /// is `[out, rank * experts]`.
    Experts {
        first: usize,
        second: usize,
        experts: usize,
        is_turned: bool,
    },
    /// A product whose rank has factors (AdaLoRA).
    Scaled(Pair, usize),
    /// The beginnings of two matrices that all modules share, with factors of the outputs and of
    /// the rank (VeRA).
    Shared {
        first: usize,
        second: usize,
        outputs: usize,
        rank: usize,
        /// Inputs and outputs of the weight.
        sizes: [u64; 2],
        is_turned: bool,
    },
    /// Two matrices whose rows are mixtures of vectors of a bank (VB-LoRA).
    Bank(bank::Tensors, bool),
    /// MiSS.
    Repeated(usize),
    /// The inverse transform of a few frequencies (FourierFT).
    Fourier {
        spectrum: usize,
        seed: u64,
        rows: u64,
    },
}

/// Form of the change of a weight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Form {
    kind: Kind,
    /// Magnitudes (DoRA) of columns instead of rows.
    pub(crate) by_column: bool,
    /// Elements of a row of the weight, as the matrices have it.
    pub(crate) columns: u64,
    pub(crate) rank: Option<u64>,
}

/// Rows and columns of a weight: dimensions after the first count as one.
pub(crate) fn rows_and_columns(shape: &Shape) -> Option<(u64, u64)> {
    let rows = shape.dims().first().copied()?;
    Some((rows, shape.elements()?.checked_div(rows)?))
}

/// Default orientation of matrices whose shapes are ambiguous.
#[derive(Clone, Copy)]
pub(crate) struct Orientation {
    pub(crate) writer: Writer,
    /// The weight is `[in, out]`, or a stack of such.
    pub(crate) inputs_first: bool,
}

impl Form {
    /// Creates the form for a module with these parts and a weight of this shape.
    ///
    /// # Errors
    /// E001 if a part is missing, or its shape does not fit.
    pub(crate) fn new(
        parts: &Parts,
        infos: &[TensorInfo],
        weight: &TensorInfo,
        orientation: Orientation,
        method: Method,
    ) -> Result<Self> {
        let planner = Planner { parts, infos, weight };
        match method {
            Method::Bank { top } => return planner.bank(top, orientation),
            Method::Miss => return planner.repeated(orientation),
            Method::Fourier { seed } => return planner.fourier(seed, orientation),
            _ if parts.contains_key(&Part::VeraLambdaB) => return planner.shared(orientation),
            _ => {}
        }
        if parts.contains_key(&Part::EmbeddingA) || parts.contains_key(&Part::EmbeddingB) {
            let (first, second) = planner.both(Part::EmbeddingA, Part::EmbeddingB)?;
            return planner.product(&[turned(first, second)]);
        }
        if parts.contains_key(&Part::LoraA) || parts.contains_key(&Part::LoraB) {
            let (first, second) = planner.both(Part::LoraA, Part::LoraB)?;
            if let Some(&core) = parts.get(&Part::LoraCore) {
                let pair = Pair { core: Some(core), ..straight(first, second) };
                return planner.product(&[pair]);
            }
            let is_flat = infos[first].shape.dims().len() == 2;
            if let ([experts, _, _], true) = (weight.shape.dims(), is_flat) {
                return planner.experts(first, second, *experts, orientation);
            }
            let form = planner.product(&candidates(first, second, weight, orientation))?;
            return match (parts.get(&Part::LoraE), form.kind) {
                (Some(factors), Kind::Product(pair)) => planner.scaled(form, pair, *factors),
                _ => Ok(form),
            };
        }
        if parts.contains_key(&Part::Hada1A) {
            let (a, b) = planner.both(Part::Hada1A, Part::Hada1B)?;
            let (c, d) = planner.both(Part::Hada2A, Part::Hada2B)?;
            let first = planner.maybe_with_core(a, b, Part::Hada1Core);
            let second = planner.maybe_with_core(c, d, Part::Hada2Core);
            let rank = planner.fits(&first)?;
            planner.fits(&second)?;
            let kind = Kind::Hadamard(first, second);
            let columns = planner.columns();
            return Ok(Self { kind, by_column: false, columns, rank: Some(rank) });
        }
        planner.kronecker()
    }

    /// Positions of the matrices in the adapter.
    pub(crate) fn tensors(&self) -> Vec<usize> {
        let pair = |pair: &Pair| {
            [pair.left.tensor, pair.right.tensor].into_iter().chain(pair.core).collect::<Vec<_>>()
        };
        let side = |side: &Side| match side {
            Side::Whole(tensor) => vec![*tensor],
            Side::Pair(factors) => pair(factors),
        };
        match &self.kind {
            Kind::Product(factors) => pair(factors),
            Kind::Hadamard(first, second) => [pair(first), pair(second)].concat(),
            Kind::Kronecker(first, second) => [side(first), side(second)].concat(),
            Kind::Experts { first, second, .. } => vec![*first, *second],
            Kind::Scaled(factors, rank) => [pair(factors), vec![*rank]].concat(),
            Kind::Shared { first, second, outputs, rank, .. } => {
                vec![*first, *second, *outputs, *rank]
            }
            Kind::Bank(tensors, _) => tensors.all(),
            Kind::Repeated(tensor) | Kind::Fourier { spectrum: tensor, .. } => vec![*tensor],
        }
    }

    /// Reads the matrices.
    ///
    /// # Errors
    /// Those of [`Matrix::read`].
    pub(crate) fn load(&self, reader: &dyn CheckpointReader) -> Result<Delta> {
        let broken = || Error::corrupt("the matrices of an adapter do not match");
        let factor = |factor: Factor| -> Result<Matrix> {
            let matrix = Matrix::read(reader, factor.tensor)?;
            Ok(if factor.is_transposed { matrix.transposed() } else { matrix })
        };
        let pair = |pair: Pair| {
            let mut right = factor(pair.right)?;
            if let Some(core) = pair.core {
                right = Matrix::read(reader, core)?.contracted(&right).ok_or_else(broken)?;
            }
            Product::new(factor(pair.left)?, right).ok_or_else(broken)
        };
        let side = |side: Side| match side {
            Side::Whole(tensor) => Matrix::read(reader, tensor),
            Side::Pair(factors) => Ok(pair(factors)?.whole()),
        };
        Ok(match self.kind {
            Kind::Product(factors) => Delta::Product(pair(factors)?),
            Kind::Hadamard(first, second) => Delta::Hadamard(pair(first)?, pair(second)?),
            Kind::Kronecker(first, second) => Delta::Kronecker(side(first)?, side(second)?),
            Kind::Scaled(factors, rank) => {
                let mut product = pair(factors)?;
                product.right.scale_rows(&Matrix::read(reader, rank)?.values);
                Delta::Product(product)
            }
            Kind::Shared { first, second, outputs, rank, sizes: [inputs, count], is_turned } => {
                let mut first = Matrix::read(reader, first)?.cut(inputs);
                first.scale_rows(&Matrix::read(reader, rank)?.values);
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                let mut second = Matrix::read(reader, second)?.chosen(0..count);
                second.scale_rows(&Matrix::read(reader, outputs)?.values);
                Delta::Product(oriented(first, second, is_turned).ok_or_else(broken)?)
            }
            Kind::Bank(tensors, is_turned) => {
                let [first, second] = tensors.load(reader)?;
                Delta::Product(oriented(first, second, is_turned).ok_or_else(broken)?)
            }
            Kind::Repeated(block) => Delta::Repeated(Matrix::read(reader, block)?),
            Kind::Fourier { spectrum, seed, rows } => {
                let numbers = Matrix::read(reader, spectrum)?.values;
                let sizes = [rows, self.columns];
                Delta::Product(fourier::product(&numbers, sizes, seed).ok_or_else(broken)?)
            }
            Kind::Experts { first, second, experts, is_turned } => {
                let first = Matrix::read(reader, first)?;
                let second = Matrix::read(reader, second)?.transposed();
                let products = (0..experts).map(|expert| {
                    // Rows of one expert lie together in one matrix, and apart in the other.
                    let rank = first.rows / experts;
                    let a = first.chosen((0..rank).map(|k| expert * rank + k));
                    let b = second.chosen((0..rank).map(|k| k * experts + expert));
                    let (left, right) = if is_turned { (a, b) } else { (b, a) };
                    Product::new(left.transposed(), right).ok_or_else(broken)
                });
                Delta::Experts(products.collect::<Result<_>>()?)
            }
        })
    }
}

/// `second` times `first`, or its transpose.
fn oriented(first: Matrix, second: Matrix, is_turned: bool) -> Option<Product> {
    match is_turned {
        true => Product::new(first.transposed(), second.transposed()),
        false => Product::new(second, first),
    }
}

/// `second` times `first`.
fn straight(first: usize, second: usize) -> Pair {
    let factor = |tensor| Factor { tensor, is_transposed: false };
    Pair { left: factor(second), right: factor(first), core: None }
}

/// The transpose of `second` times `first`.
fn turned(first: usize, second: usize) -> Pair {
    let factor = |tensor| Factor { tensor, is_transposed: true };
    Pair { left: factor(first), right: factor(second), core: None }
}

/// The ways in which two matrices may be meant, the likeliest first.
///
/// Shapes decide, and `fan_in_fan_out` only for square weights, because PEFT stores one flag for
/// layers of both kinds.
fn candidates(
    first: usize,
    second: usize,
    weight: &TensorInfo,
    orientation: Orientation,
) -> [Pair; 2] {
    let pair = |(left, of_left), (right, of_right)| Pair {
        left: Factor { tensor: left, is_transposed: of_left },
        right: Factor { tensor: right, is_transposed: of_right },
        core: None,
    };
    let is_embedding = ["embed", "wte"].iter().any(|part| weight.name.contains(part));
    let layer_or_embedding = |layer: Pair, embedding: Pair| {
        if is_embedding { [embedding, layer] } else { [layer, embedding] }
    };
    match orientation.writer {
        Writer::Peft | Writer::Images => {
            let (straight, turned) = (straight(first, second), turned(first, second));
            if orientation.inputs_first { [turned, straight] } else { [straight, turned] }
        }
        // Inputs are rows: `[in, rank]` and `[rank, out]`, of an embedding `[tokens, rank]`.
        Writer::Mlx => layer_or_embedding(
            pair((second, true), (first, true)),
            pair((first, false), (second, false)),
        ),
        // Of an embedding, the first has a row for each token.
        Writer::LlamaCpp => {
            layer_or_embedding(straight(first, second), pair((first, false), (second, true)))
        }
    }
}

struct Planner<'p> {
    parts: &'p Parts,
    infos: &'p [TensorInfo],
    weight: &'p TensorInfo,
}

impl Planner<'_> {
    fn both(&self, first: Part, second: Part) -> Result<(usize, usize)> {
        match (self.parts.get(&first), self.parts.get(&second)) {
            (Some(first), Some(second)) => Ok((*first, *second)),
            (Some(alone), None) | (None, Some(alone)) => {
                let message = "the other matrix of the pair is missing";
                Err(Error::format(message).for_tensor(&self.infos[*alone].name))
            }
            (None, None) => {
                let message = "the adapter has parts of a change and not the whole";
                Err(Error::format(message).for_tensor(&self.weight.name))
            }
        }
    }

    fn columns(&self) -> u64 {
        rows_and_columns(&self.weight.shape).map_or(1, |(_, columns)| columns.max(1))
    }

    fn shape(&self, factor: Factor) -> Option<(u64, u64)> {
        let (rows, columns) = rows_and_columns(&self.infos[factor.tensor].shape)?;
        Some(if factor.is_transposed { (columns, rows) } else { (rows, columns) })
    }

    /// The product of `b` and `a`; of `a`, transposed, and `b` if the part between them is there.
    fn maybe_with_core(&self, a: usize, b: usize, core: Part) -> Pair {
        match self.parts.get(&core) {
            None => straight(b, a),
            Some(&core) => Pair {
                left: Factor { tensor: a, is_transposed: true },
                right: Factor { tensor: b, is_transposed: false },
                core: Some(core),
            },
        }
    }

    /// Rows, rank and columns of a pair.
    fn extent(&self, pair: &Pair) -> Option<(u64, u64, u64)> {
        let ((rows, rank), (other, columns)) = (self.shape(pair.left)?, self.shape(pair.right)?);
        let Some(core) = pair.core else {
            return (rank == other && rank > 0).then_some((rows, rank, columns));
        };
        let &[of_left, of_right, height, width] = self.infos[core].shape.dims() else {
            return None;
        };
        let columns = columns.checked_mul(height)?.checked_mul(width)?;
        rank.checked_mul(columns).filter(|elements| *elements <= MOST_CONTRACTED)?;
        ([of_left, of_right] == [rank, other] && other > 0).then_some((rows, other, columns))
    }

    fn unfit(&self, pair: &Pair) -> Error {
        let [left, right] = [pair.left, pair.right].map(|factor| &self.infos[factor.tensor]);
        Error::format(format!(
            "{} and {} of the adapter do not make a change of the base's {}",
            left.shape, right.shape, self.weight.shape
        ))
        .for_tensor(&left.name)
    }

    /// The rank of a pair that makes the weight's shape.
    fn fits(&self, pair: &Pair) -> Result<u64> {
        let wanted = rows_and_columns(&self.weight.shape);
        self.extent(pair)
            .filter(|(rows, _, columns)| Some((*rows, *columns)) == wanted)
            .map(|(_, rank, _)| rank)
            .ok_or_else(|| self.unfit(pair))
    }

    /// The first pair that fits.
    fn product(&self, pairs: &[Pair]) -> Result<Form> {
        let found = pairs.iter().find_map(|pair| Some((pair, self.fits(pair).ok()?)));
        let Some((pair, rank)) = found else {
            return Err(pairs
                .first()
                .map_or_else(|| Error::format("missing matrices"), |pair| self.unfit(pair)));
        };
        // Rows of the weight are then inputs, and magnitudes are of outputs.
        let by_column = pair.left.is_transposed
            && pair.right.is_transposed
            && self.infos[pair.left.tensor].shape.dims().first() == Some(&rank);
        let kind = Kind::Product(*pair);
        Ok(Form { kind, by_column, columns: self.columns(), rank: Some(rank) })
    }

    fn experts(
        &self,
        first: usize,
        second: usize,
        experts: u64,
        orientation: Orientation,
    ) -> Result<Form> {
        let unfit = || self.unfit(&straight(first, second));
        let dims = self.weight.shape.dims();
        let (all, inputs) = rows_and_columns(&self.infos[first].shape).ok_or_else(unfit)?;
        let (outputs, also_all) = rows_and_columns(&self.infos[second].shape).ok_or_else(unfit)?;
        let rank = all.checked_div(experts).filter(|rank| *rank > 0 && rank * experts == all);
        let fits = |is_turned: &bool| {
            let wanted = if *is_turned { [inputs, outputs] } else { [outputs, inputs] };
            dims.get(1..) == Some(&wanted)
        };
        // Where sizes are equal, both ways would do: the family's comes first.
        let ways = [orientation.inputs_first, !orientation.inputs_first];
        let is_turned = ways.into_iter().find(fits).ok_or_else(unfit)?;
        let (Some(rank), true) = (rank, also_all == all) else { return Err(unfit()) };
        let experts = usize::try_from(experts).map_err(|_| unfit())?;
        let kind = Kind::Experts { first, second, experts, is_turned };
        let columns = self.weight.shape.row_len().max(1);
        Ok(Form { kind, by_column: false, columns, rank: Some(rank) })
    }

    fn part(&self, part: Part) -> Result<usize> {
        self.parts.get(&part).copied().ok_or_else(|| {
            let message = "the adapter has parts of a change and not the whole";
            Error::format(message).for_tensor(&self.weight.name)
        })
    }

    fn unfit_part(&self, tensor: usize) -> Error {
        let info = &self.infos[tensor];
        let message =
            format!("{} of the adapter does not fit the base's {}", info.shape, self.weight.shape);
        Error::format(message).for_tensor(&info.name)
    }

    fn of(&self, kind: Kind, rank: Option<u64>) -> Form {
        Form { kind, by_column: false, columns: self.columns(), rank }
    }

    /// Inputs and outputs of the weight, and whether its rows are inputs.
    fn sizes(&self, orientation: Orientation) -> Option<([u64; 2], bool)> {
        let (rows, columns) = rows_and_columns(&self.weight.shape)?;
        let is_turned = orientation.inputs_first;
        Some((if is_turned { [rows, columns] } else { [columns, rows] }, is_turned))
    }

    fn scaled(&self, form: Form, pair: Pair, factors: usize) -> Result<Form> {
        if self.infos[factors].shape.elements() != form.rank {
            return Err(self.unfit_part(factors));
        }
        Ok(Form { kind: Kind::Scaled(pair, factors), ..form })
    }

    fn shared(&self, orientation: Orientation) -> Result<Form> {
        let [first, second] = [self.part(Part::VeraA)?, self.part(Part::VeraB)?];
        let [outputs, rank] = [self.part(Part::VeraLambdaB)?, self.part(Part::VeraLambdaD)?];
        let unfit = || self.unfit_part(outputs);
        let (sizes, is_turned) = self.sizes(orientation).ok_or_else(unfit)?;
        let shape = |tensor: usize| rows_and_columns(&self.infos[tensor].shape);
        let elements = |tensor: usize| self.infos[tensor].shape.elements();
        let fits = match (shape(first), shape(second)) {
            (Some((of_first, inputs)), Some((all, of_second))) => {
                of_first == of_second
                    && elements(rank) == Some(of_first)
                    && inputs >= sizes[0]
                    && all >= sizes[1]
                    && elements(outputs) == Some(sizes[1])
            }
            _ => false,
        };
        if !fits {
            return Err(unfit());
        }
        let of_rank = elements(rank);
        let kind = Kind::Shared { first, second, outputs, rank, sizes, is_turned };
        Ok(self.of(kind, of_rank))
    }

    fn bank(&self, top: usize, orientation: Orientation) -> Result<Form> {
        let tensors = bank::Tensors::of(self.parts, top)
            .ok_or_else(|| self.part(Part::VectorBank).err())
            .map_err(|error| error.unwrap_or_else(|| Error::format("missing logits")))?;
        let (sizes, is_turned) =
            self.sizes(orientation).ok_or_else(|| self.unfit_part(tensors.bank))?;
        let rank = tensors.rank(self.infos, sizes).map_err(|tensor| self.unfit_part(tensor))?;
        Ok(self.of(Kind::Bank(tensors, is_turned), Some(rank)))
    }

    fn repeated(&self, orientation: Orientation) -> Result<Form> {
        let block = self.part(Part::Block)?;
        let fits = match (rows_and_columns(&self.weight.shape), self.infos[block].shape.dims()) {
            (Some((rows, columns)), &[size, outputs]) => {
                size > 0 && size <= columns && outputs > 0 && rows.is_multiple_of(outputs)
            }
            _ => false,
        };
        if !fits || orientation.inputs_first {
            return Err(self.unfit_part(block));
        }
        Ok(self.of(Kind::Repeated(block), None))
    }

    fn fourier(&self, seed: u64, orientation: Orientation) -> Result<Form> {
        let spectrum = self.part(Part::Spectrum)?;
        let (rows, columns) = rows_and_columns(&self.weight.shape).unwrap_or_default();
        let all = rows.checked_mul(columns).filter(|all| *all <= fourier::MOST);
        let count = self.infos[spectrum].shape.elements().unwrap_or(u64::MAX);
        if all.is_none_or(|all| count > all) || orientation.inputs_first {
            return Err(self.unfit_part(spectrum));
        }
        let in_memory = rows.saturating_add(columns).saturating_mul(2).saturating_mul(count);
        if in_memory > fourier::IN_MEMORY {
            let message = format!("{count} frequencies are more than memory is taken for");
            return Err(Error::memory(message).for_tensor(&self.infos[spectrum].name));
        }
        Ok(self.of(Kind::Fourier { spectrum, seed, rows }, None))
    }

    fn kronecker(&self) -> Result<Form> {
        let side = |whole: Part, a: Part, b: Part, core: Option<Part>| -> Result<Side> {
            if let Some(tensor) = self.parts.get(&whole) {
                return Ok(Side::Whole(*tensor));
            }
            let (a, b) = self.both(a, b)?;
            Ok(Side::Pair(match core {
                Some(core) => self.maybe_with_core(a, b, core),
                None => straight(b, a),
            }))
        };
        // Of a kernel, the second one has the height and the width.
        let first = side(Part::Kron1, Part::Kron1A, Part::Kron1B, None)?;
        let second = side(Part::Kron2, Part::Kron2A, Part::Kron2B, Some(Part::Kron2Core))?;
        let shape = |side: Side| match side {
            Side::Whole(tensor) => rows_and_columns(&self.infos[tensor].shape),
            Side::Pair(pair) => self.extent(&pair).map(|(rows, _, columns)| (rows, columns)),
        };
        let product = |((a, b), (c, d)): ((u64, u64), (u64, u64))| {
            Some((a.checked_mul(c)?, b.checked_mul(d)?))
        };
        let made = shape(first).zip(shape(second)).and_then(product);
        if made.is_none() || made != rows_and_columns(&self.weight.shape) {
            let message = format!(
                "the Kronecker product of the adapter's matrices does not have the base's shape \
                 {}",
                self.weight.shape
            );
            return Err(Error::format(message).for_tensor(&self.weight.name));
        }
        let kind = Kind::Kronecker(first, second);
        Ok(Form { kind, by_column: false, columns: self.columns(), rank: None })
    }
}
