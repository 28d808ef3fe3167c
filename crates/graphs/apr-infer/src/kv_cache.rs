//! Keys and values of the tokens so far, in memory that grows in place.
//!
//! A graph joins the keys of earlier tokens with new ones, and turns them before it multiplies
//! them. As tensors, all of them would be copied for each of these steps and each token. So they
//! are rows here, head by head, to which rows are added, and which products read as they lie.

mod size;

use std::borrow::Cow;
use std::sync::Arc;

use apr_core::{DType, Error, Result};
use apr_graph::{Body, Dim, ElementType, Graph, Meaning, ValueId};
use apr_tensor::half_float::f32_to_f16;

use crate::Tensor;
use crate::action::read_by_bodies;
use crate::matrix::{HeadRows, push_q8_0};
use crate::tensor::elements;

pub use size::{KeptSize, kept_size};

/// Storage type of the keys and values of earlier tokens.
///
/// ```
/// use apr_infer::CacheType;
///
/// // Of a head of 64 numbers, each token takes:
/// assert_eq!(CacheType::F32.row_bytes(64), Some(256));
/// assert_eq!(CacheType::F16.row_bytes(64), Some(128));
/// assert_eq!(CacheType::Q8_0.row_bytes(64), Some(68));
/// // Blocks have 32 elements.
/// assert_eq!(CacheType::Q8_0.row_bytes(80), None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum CacheType {
    /// Single precision, the precision in which they are computed.
    #[default]
    F32,
    /// Half precision.
    F16,
    /// ggml's blocks of 32 8-bit integers with a scale.
    Q8_0,
}

impl CacheType {
    /// Returns the name used in reports: `f32`, `f16` or `q8_0`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q8_0 => "q8_0",
        }
    }

    /// The type of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::F32, Self::F16, Self::Q8_0].into_iter().find(|kind| kind.name() == name)
    }

    /// Returns the size in bytes of a row for a head of `size` elements, or `None` if they do not
    /// fill whole blocks.
    #[must_use]
    pub fn row_bytes(self, size: usize) -> Option<usize> {
        let dtype = self.dtype();
        let block = dtype.block_len() as usize;
        size.is_multiple_of(block).then(|| size / block * dtype.block_bytes() as usize)
    }

    fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::Q8_0 => DType::Q8_0,
        }
    }
}

/// Keys or values of all tokens so far: a tensor `[batch, heads, tokens, head size]` of `f32`, or
/// another look at it. Copies share the rows until one of them grows.
#[derive(Debug, Clone)]
pub struct CachedHeads {
    rows: Arc<Rows>,
    /// `true` if the last two dimensions are swapped.
    turned: bool,
}

#[derive(Debug, Clone)]
struct Rows {
    kind: CacheType,
    /// Elements of a row.
    size: usize,
    tokens: usize,
    /// Texts side by side.
    batch: usize,
    /// Heads of the first text, then heads of the next.
    heads: Vec<Head>,
}

/// The rows of a head, token by token.
#[derive(Debug, Clone)]
enum Head {
    Floats(Vec<f32>),
    /// Rows in the encoding of the dtype.
    Bytes(Vec<u8>),
}

/// Minimum number of tokens to reserve when rows are appended. The reserve is an eighth of the
/// existing rows, if that is more.
const ROOM: usize = 16;

/// Makes room for more elements, without doubling what is there.
fn make_room<T>(rows: &mut Vec<T>, more: usize, row: usize) {
    if rows.is_empty() {
        rows.reserve_exact(more);
    } else if rows.capacity() - rows.len() < more {
        rows.reserve_exact(more.max(ROOM * row).max(rows.len() / 8));
    }
}

impl CachedHeads {
    /// Creates an empty cache without tokens.
    ///
    /// # Errors
    /// E003 where the size of a head does not fill the type's blocks.
    pub(crate) fn new(kind: CacheType, heads: usize, size: usize) -> Result<Self> {
        if kind.row_bytes(size).is_none() {
            return Err(Error::version(format!(
                "a head size of {size} does not fill the blocks of {}, which have {}",
                kind.name(),
                kind.dtype().block_len()
            )));
        }
        let empty = match kind {
            CacheType::F32 => Head::Floats(Vec::new()),
            _ => Head::Bytes(Vec::new()),
        };
        let rows = Rows { kind, size, tokens: 0, batch: 1, heads: vec![empty; heads] };
        Ok(Self { rows: Arc::new(rows), turned: false })
    }

    /// Returns the storage type of the keys or values.
    #[must_use]
    pub fn cache_type(&self) -> CacheType {
        self.rows.kind
    }

    /// Returns the number of tokens so far.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.rows.tokens
    }

    /// Returns a copy that shares no memory with the original.
    pub(crate) fn unshared(&self) -> Self {
        Self { rows: Arc::new((*self.rows).clone()), ..*self }
    }

    /// Returns the dimensions in the current orientation.
    pub(crate) fn shape(&self) -> Vec<usize> {
        let Rows { size, tokens, batch, heads, .. } = &*self.rows;
        let [rows, columns] = if self.turned { [*size, *tokens] } else { [*tokens, *size] };
        vec![*batch, heads.len() / (*batch).max(1), rows, columns]
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.rows.heads.len() * self.rows.tokens * self.rows.size
    }

    /// Returns the size in memory in bytes, including the capacity reserved for more tokens.
    pub(crate) fn bytes(&self) -> u64 {
        let of = |head: &Head| match head {
            Head::Floats(rows) => size_of::<f32>() * rows.capacity(),
            Head::Bytes(rows) => rows.capacity(),
        };
        self.rows.heads.iter().map(|head| of(head) as u64).sum()
    }

    /// Returns the maximum number of bytes that `tokens` more tokens may take.
    pub(crate) fn bytes_of(&self, tokens: usize) -> u64 {
        let Rows { kind, size, heads, tokens: before, .. } = &*self.rows;
        let more = tokens.max(ROOM).max(before / 8) as u64;
        let row = kind.row_bytes(*size).unwrap_or(0) as u64;
        // A shared memory is copied before it grows.
        let copied = if Arc::strong_count(&self.rows) > 1 { *before as u64 } else { 0 };
        (more + copied) * row * heads.len() as u64
    }

    /// Returns an id that differs for values that do not share rows.
    pub(crate) fn identity(&self) -> usize {
        Arc::as_ptr(&self.rows) as usize
    }

    /// Swaps the last two dimensions.
    pub(crate) fn turned(self) -> Self {
        Self { turned: !self.turned, ..self }
    }

    /// Returns `true` if rows can be appended. Turned keys are only a view, so rows can't be
    /// appended to them.
    pub(crate) fn can_grow(&self) -> bool {
        !self.turned
    }

    /// Appends the rows of more tokens, `[batch, heads, tokens, head size]`.
    ///
    /// # Errors
    /// E001 for other shapes and types, and for elements that the cache type can't hold.
    pub(crate) fn with(mut self, fresh: &Tensor) -> Result<Self> {
        let &[batch, heads, tokens, size] = fresh.shape() else {
            return Err(self.unfit(fresh));
        };
        let Rows { size: own, batch: texts, heads: all, .. } = &*self.rows;
        if !self.can_grow() || batch != *texts || batch * heads != all.len() || size != *own {
            return Err(self.unfit(fresh));
        }
        let values = fresh.values::<f32>()?;
        let rows = Arc::make_mut(&mut self.rows);
        if tokens * size > 0 {
            let parts = rows.heads.iter_mut().zip(values.chunks_exact(tokens * size));
            parts.into_iter().try_for_each(|(head, values)| head.push(rows.kind, values, size))?;
        }
        rows.tokens += tokens;
        Ok(self)
    }

    fn unfit(&self, fresh: &Tensor) -> Error {
        Error::format(format!(
            "keys or values of shapes {:?} and {:?} can't be joined",
            self.shape(),
            fresh.shape()
        ))
    }

    /// The first tokens alone.
    pub(crate) fn truncated(mut self, tokens: usize) -> Self {
        let rows = Arc::make_mut(&mut self.rows);
        let row = rows.kind.row_bytes(rows.size).unwrap_or(0);
        for head in &mut rows.heads {
            match head {
                Head::Floats(values) => values.truncate(tokens * rows.size),
                Head::Bytes(bytes) => bytes.truncate(tokens * row),
            }
        }
        rows.tokens = rows.tokens.min(tokens);
        self
    }

    /// Texts side by side, each with rows of zeros before its own as far as others have more.
    ///
    /// # Errors
    /// E001 where their heads differ.
    pub(crate) fn side_by_side(texts: &[Self]) -> Result<Self> {
        let Some(Rows { kind, size, .. }) = texts.first().map(|first| &*first.rows) else {
            return Err(Error::format("no keys or values"));
        };
        let tokens = texts.iter().map(Self::tokens).max().unwrap_or(0);
        let mut heads = Vec::new();
        for text in texts {
            let differs = text.turned
                || text.shape()[1..] != [texts[0].shape()[1], text.tokens(), *size]
                || text.cache_type() != *kind;
            if differs {
                return Err(Error::format("keys or values of different heads"));
            }
            let before = (tokens - text.tokens()) * size;
            for head in &text.rows.heads {
                heads.push(head.behind_zeros(*kind, before, *size)?);
            }
        }
        let batch = texts.iter().map(|text| text.rows.batch).sum();
        let rows = Rows { kind: *kind, size: *size, tokens, batch, heads };
        Ok(Self { rows: Arc::new(rows), turned: false })
    }

    /// These texts of a batch, in this order; one may be there several times.
    ///
    /// # Panics
    /// When there is no such text.
    pub(crate) fn select(self, texts: &[usize]) -> Self {
        let rows = Arc::unwrap_or_clone(self.rows);
        let each = rows.heads.len() / rows.batch.max(1);
        let mut left: Vec<Option<Head>> = rows.heads.into_iter().map(Some).collect();
        let mut heads = Vec::with_capacity(texts.len() * each);
        for (at, text) in texts.iter().enumerate() {
            let is_last = !texts[at + 1..].contains(text);
            for head in &mut left[text * each..(text + 1) * each] {
                // The last that wants a head takes it without a copy.
                heads.extend(if is_last { head.take() } else { head.clone() });
            }
        }
        let rows = Rows { batch: texts.len(), heads, ..rows };
        Self { rows: Arc::new(rows), turned: self.turned }
    }

    /// All but the first tokens.
    pub(crate) fn without_first(mut self, tokens: usize) -> Self {
        if tokens == 0 {
            return self;
        }
        let rows = Arc::make_mut(&mut self.rows);
        let tokens = tokens.min(rows.tokens);
        let row = rows.kind.row_bytes(rows.size).unwrap_or(0);
        for head in &mut rows.heads {
            match head {
                Head::Floats(values) => drop(values.drain(..tokens * rows.size)),
                Head::Bytes(bytes) => drop(bytes.drain(..tokens * row)),
            }
        }
        rows.tokens -= tokens;
        self
    }

    /// Returns the rows as a tensor of `f32` in the current orientation.
    ///
    /// # Errors
    /// E008 if the tensor does not fit the memory.
    pub fn tensor(&self) -> Result<Tensor> {
        let shape = self.shape();
        let too_large = || Error::memory(format!("keys or values of {shape:?} are too large"));
        elements(&shape).ok_or_else(too_large)?;
        let mut values = crate::pool::with_capacity(self.len());
        for head in &self.rows.heads {
            values.extend_from_slice(&head.floats(self.rows.kind, self.rows.size)?);
        }
        let Rows { heads, tokens, size, .. } = &*self.rows;
        let plain = Tensor::new(vec![heads.len(), *tokens, *size], values)?;
        let looked_at =
            if self.turned { crate::moving::transposed(&plain, &[0, 2, 1])? } else { plain };
        looked_at.reshaped(shape)
    }

    /// Returns the heads as matrices of a product, in the current orientation.
    pub(crate) fn matrices(&self) -> Vec<HeadRows<'_>> {
        self.rows.heads.iter().map(|head| self.matrix(head)).collect()
    }

    fn matrix<'m>(&self, head: &'m Head) -> HeadRows<'m> {
        let Rows { kind, size, tokens, .. } = *self.rows;
        let (floats, bytes): (&[f32], &[u8]) = match head {
            Head::Floats(values) => (values, &[]),
            Head::Bytes(bytes) => (&[], bytes),
        };
        HeadRows { dtype: kind.dtype(), floats, bytes, tokens, size, is_turned: self.turned }
    }
}

impl Head {
    /// Returns a copy with `zeros` zeros before the existing rows.
    fn behind_zeros(&self, kind: CacheType, zeros: usize, size: usize) -> Result<Self> {
        let mut out = match self {
            Self::Floats(rows) => Self::Floats(Vec::with_capacity(zeros + rows.len() + size)),
            Self::Bytes(rows) => Self::Bytes(Vec::with_capacity(rows.len())),
        };
        if zeros > 0 {
            out.push(kind, &vec![0.0; zeros], size)?;
        }
        match (&mut out, self) {
            (Self::Floats(out), Self::Floats(rows)) => out.extend_from_slice(rows),
            (Self::Bytes(out), Self::Bytes(rows)) => out.extend_from_slice(rows),
            _ => {}
        }
        Ok(out)
    }

    /// Appends rows of values, in the cache type.
    fn push(&mut self, kind: CacheType, values: &[f32], size: usize) -> Result<()> {
        match self {
            Self::Floats(rows) => {
                make_room(rows, values.len(), size);
                rows.extend_from_slice(values);
                Ok(())
            }
            Self::Bytes(rows) => {
                let row = kind.row_bytes(size).unwrap_or(0);
                make_room(rows, values.len() / size * row, row);
                match kind {
                    CacheType::Q8_0 => push_q8_0(values, rows),
                    _ => push_halves(values, rows),
                }
                .then_some(())
                .ok_or_else(|| too_large(kind, values))
            }
        }
    }

    /// Returns the rows as `f32`.
    fn floats(&self, kind: CacheType, size: usize) -> Result<Cow<'_, [f32]>> {
        match self {
            Self::Floats(rows) => Ok(Cow::Borrowed(rows)),
            Self::Bytes(bytes) => {
                let mut values = Vec::new();
                crate::store::decode(kind.dtype(), bytes, size, &mut values)?;
                Ok(Cow::Owned(values))
            }
        }
    }
}

/// Maximum number of elements in the keys or values of one token.
const MAX_ROW: usize = 1 << 26;

/// Heads and elements of a head of an input that can be [`CachedHeads`]: keys or values of earlier
/// tokens, `[batch, heads, tokens, head size]` of `f32`.
pub(crate) fn heads_and_size(graph: &Graph, id: ValueId) -> Option<(usize, usize)> {
    let value = graph.body.value(id);
    let [_, heads, past, size] = value.shape()? else { return None };
    let is_float = value.element().is_none_or(|element| element == ElementType::F32);
    let size_of = |dim: &Dim| dim.size().and_then(|size| usize::try_from(size).ok());
    let (heads, size) = (size_of(heads)?, size_of(size)?);
    let fits = is_float
        && value.meaning != Meaning::PastState
        && past.size().is_none()
        && heads.saturating_mul(size) <= MAX_ROW
        && can_grow(graph, &graph.body, id);
    fits.then_some((heads, size))
}

/// Checks that a graph can keep keys and values as a type.
///
/// # Errors
/// E003 where heads do not fill the type's blocks, and where the graph has none that grow.
pub(crate) fn check_cache_type(graph: &Graph, cache_type: CacheType) -> Result<()> {
    if cache_type == CacheType::F32 {
        return Ok(());
    }
    let inputs = graph.body.inputs.iter();
    let grow: Vec<_> = inputs.filter_map(|id| heads_and_size(graph, *id)).collect();
    if grow.is_empty() {
        return Err(keeps_others(cache_type));
    }
    grow.into_iter()
        .try_for_each(|(heads, size)| CachedHeads::new(cache_type, heads, size).map(drop))
}

/// Returns the error for a graph without keys and values that can be stored as a cache type.
pub(crate) fn keeps_others(cache_type: CacheType) -> Error {
    Error::version(format!(
        "the cache type {} is not supported by this graph, which does not store the keys and \
         values of each head",
        cache_type.name()
    ))
}

/// Returns `true` if an input can be stored as [`CachedHeads`]. The graph must only append new rows
/// to the input and read its shape.
fn can_grow(graph: &Graph, body: &Body, id: ValueId) -> bool {
    let mut grows = false;
    for node in &body.nodes {
        if read_by_bodies(node).contains(&id) {
            return false;
        }
        let positions = (0..node.inputs.len()).filter(|at| node.inputs[*at] == Some(id));
        for position in positions {
            let is_fine = match (graph.function(&node.op), &*node.op.name, position) {
                (Some(function), ..) => function
                    .body
                    .inputs
                    .get(position)
                    .is_some_and(|inner| can_grow(graph, &function.body, *inner)),
                (None, "Concat", 0) => node.inputs.len() == 2,
                (None, "Shape", _) => continue,
                _ => false,
            };
            if !is_fine {
                return false;
            }
            grows = true;
        }
    }
    grows
}

/// Appends numbers in half precision. Returns `false` if a finite number is too large for half
/// precision.
fn push_halves(values: &[f32], out: &mut Vec<u8>) -> bool {
    /// All set in infinities and NaN.
    const EXPONENT: u16 = 0x7c00;

    let mut fits = true;
    out.extend(values.iter().flat_map(|value| {
        let half = f32_to_f16(*value);
        fits &= half & EXPONENT != EXPONENT || !value.is_finite();
        half.to_le_bytes()
    }));
    fits
}

fn too_large(kind: CacheType, values: &[f32]) -> Error {
    let worst = values.iter().fold(0.0_f32, |worst, value| {
        if value.is_finite() { worst.max(value.abs()) } else { f32::INFINITY }
    });
    Error::format(format!(
        "keys or values of magnitude {worst:e} do not fit the cache type {}; they fit f32",
        kind.name()
    ))
}

#[cfg(test)]
mod tests;
