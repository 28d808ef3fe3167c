//! Where the values of a family's tensors lie otherwise in GGUF files: the entries of
//! `[gguf.layouts]`.

use std::collections::BTreeSet;

use apr_core::Result;
use serde::Deserialize;

use crate::expression::Expression;
use crate::family::Family;

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum LayoutEntry {
    Swap([String; 4]),
    Add(f32),
    Transposed,
    SkipRows(String),
    Rows(String),
    Key(String),
    Stack(String),
    Groups([String; 3]),
    Cut(CutEntry),
    Arranged(ArrangedEntry),
    Scaled(ScaledEntry),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ArrangedEntry {
    swap: Option<[String; 4]>,
    #[serde(default = "zero")]
    from: String,
    width: Option<String>,
    #[serde(default)]
    fading: bool,
    shape: Option<[String; 2]>,
}

fn zero() -> String {
    "0".to_owned()
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScaledEntry {
    #[serde(default)]
    by: Vec<String>,
    /// Numbers of rows, from the first on, with a factor each.
    #[serde(default)]
    rows: Vec<[String; 2]>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CutEntry {
    of: String,
    groups: String,
    first: String,
    #[serde(default = "one")]
    step: u64,
    count: String,
    /// Further rows of each group, `[first, count]`, behind the first ones of all groups.
    #[serde(default)]
    more: Vec<[String; 2]>,
    /// `true` if the rows of all groups make one matrix.
    #[serde(default)]
    flat: bool,
    /// Condition for files with this tensor, if others have the rows under another name.
    when: Option<String>,
    #[serde(default)]
    turned: GgufTurned,
    /// Shape of the tensor that is cut out, if rows are not those of a matrix.
    #[serde(default)]
    shape: Vec<String>,
}

fn one() -> u64 {
    1
}

/// Side of a cut on which rows are columns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum GgufTurned {
    /// Neither tensor.
    #[default]
    No,
    /// The tensor that is cut.
    Before,
    /// The tensor that is cut out.
    After,
}

/// Conversion of a tensor's values from Hugging Face's layout to GGUF.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum GgufLayout {
    /// The values are unchanged.
    Same,
    /// Rows, seen as `[outer, a, b, inner]`, are in the order `[outer, b, a, inner]`.
    Swap([u64; 4]),
    /// A constant is added to each.
    Add(f32),
    /// Rows are columns.
    Transposed,
    /// The first rows are left out.
    SkipRows(u64),
    /// As many rows: zeros follow the tensor's own, or its last ones are left out.
    Rows(u64),
    /// Rows are groups of queries with one key and one value each: `[groups, queries, rows]`.
    ///
    /// `rows` is the number of rows of each query, key and value. In the file, all queries come
    /// first, then all keys, then all values.
    Groups([u64; 3]),
    /// Values are in other places, changed one by one, or of another shape.
    Arranged(GgufArrangement),
    /// Values are multiplied by factors that GGUF has no keys for.
    Scaled(GgufFactors),
}

/// Values in other places, changed one by one, or of another shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct GgufArrangement {
    /// Rows as in [`GgufLayout::Swap`].
    pub swap: Option<[u64; 4]>,
    /// The first row that moves.
    pub from: u64,
    /// Number of elements of a row that moves, if it is not all with the same first index.
    pub width: Option<u64>,
    /// `true` if logarithms of how fast states fade become factors in an exponent: `-exp(x)`.
    pub fading: bool,
    /// Shape in GGUF, with as many elements.
    pub shape: Option<[u64; 2]>,
}

/// Factors that values are multiplied by.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct GgufFactors {
    /// Factors of all values, one after another.
    pub all: Vec<f32>,
    /// Numbers of rows, from the first on, each with a further factor.
    pub rows: Vec<(u64, f32)>,
}

/// Rows of a tensor that form another tensor in a GGUF file, if several tensors are cut out of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufCut {
    /// Groups of rows, each of which is cut alike.
    pub groups: u64,
    /// The first row in a group.
    pub first: u64,
    /// Distance to the next row.
    pub step: u64,
    /// Number of rows.
    pub count: u64,
    /// Further rows of each group: the first of them and their number.
    ///
    /// They follow the first ones of all groups.
    pub more: Vec<(u64, u64)>,
    /// `true` if the rows of all groups make one matrix, without a dimension for groups.
    pub flat: bool,
    /// Side on which rows are columns.
    pub turned: GgufTurned,
    /// Shape of the tensor that is cut out. Its rows are as many elements as the groups leave;
    /// empty if rows are those of a matrix.
    pub shape: Vec<u64>,
}

#[derive(Debug)]
pub(crate) enum TensorLayout {
    Swap([Expression; 4]),
    Add(f32),
    Transposed,
    SkipRows(Expression),
    Rows(Expression),
    /// Key with the single value of this tensor in every layer.
    Key(String),
    /// Canonical pattern of the tensors that are stacked.
    Stack(String),
    Groups([Expression; 3]),
    Cut(CutLayout),
    Arranged(Box<ArrangedLayout>),
    Scaled(ScaledLayout),
}

#[derive(Debug)]
pub(crate) struct ArrangedLayout {
    pub(crate) swap: Option<[Expression; 4]>,
    pub(crate) from: Expression,
    pub(crate) width: Option<Expression>,
    pub(crate) fading: bool,
    pub(crate) shape: Option<[Expression; 2]>,
    /// The shape as text.
    pub(crate) formula: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct ScaledLayout {
    pub(crate) by: Vec<Expression>,
    pub(crate) rows: Vec<[Expression; 2]>,
}

#[derive(Debug)]
pub(crate) struct CutLayout {
    /// Canonical pattern of the tensor that is cut.
    pub(crate) of: String,
    pub(crate) groups: Expression,
    pub(crate) first: Expression,
    pub(crate) step: u64,
    pub(crate) count: Expression,
    pub(crate) more: Vec<[Expression; 2]>,
    pub(crate) flat: bool,
    pub(crate) when: Option<Expression>,
    pub(crate) turned: GgufTurned,
    pub(crate) shape: Vec<Expression>,
}

impl TensorLayout {
    pub(super) fn parse(entry: &LayoutEntry) -> Result<Self> {
        let pair = |[a, b]: &[String; 2]| Ok([Expression::parse(a)?, Expression::parse(b)?]);
        let pairs = |all: &[[String; 2]]| all.iter().map(pair).collect::<Result<Vec<_>>>();
        Ok(match entry {
            LayoutEntry::Swap(order) => Self::Swap(four(order)?),
            LayoutEntry::Arranged(arranged) => Self::Arranged(Box::new(ArrangedLayout {
                swap: arranged.swap.as_ref().map(four).transpose()?,
                from: Expression::parse(&arranged.from)?,
                width: arranged.width.as_deref().map(Expression::parse).transpose()?,
                fading: arranged.fading,
                shape: arranged.shape.as_ref().map(pair).transpose()?,
                formula: arranged.shape.iter().flatten().cloned().collect(),
            })),
            LayoutEntry::Scaled(scaled) => Self::Scaled(ScaledLayout {
                by: scaled.by.iter().map(|by| Expression::parse(by)).collect::<Result<_>>()?,
                rows: pairs(&scaled.rows)?,
            }),
            LayoutEntry::Add(constant) => Self::Add(*constant),
            LayoutEntry::Transposed => Self::Transposed,
            LayoutEntry::SkipRows(rows) => Self::SkipRows(Expression::parse(rows)?),
            LayoutEntry::Rows(rows) => Self::Rows(Expression::parse(rows)?),
            LayoutEntry::Key(key) => Self::Key(key.clone()),
            LayoutEntry::Stack(part) => Self::Stack(part.clone()),
            LayoutEntry::Groups([groups, queries, rows]) => Self::Groups([
                Expression::parse(groups)?,
                Expression::parse(queries)?,
                Expression::parse(rows)?,
            ]),
            LayoutEntry::Cut(cut) => Self::Cut(CutLayout {
                of: cut.of.clone(),
                groups: Expression::parse(&cut.groups)?,
                first: Expression::parse(&cut.first)?,
                step: cut.step,
                count: Expression::parse(&cut.count)?,
                more: pairs(&cut.more)?,
                flat: cut.flat,
                when: cut.when.as_deref().map(Expression::parse).transpose()?,
                turned: cut.turned,
                shape: cut.shape.iter().map(|dim| Expression::parse(dim)).collect::<Result<_>>()?,
            }),
        })
    }
}

fn four([outer, a, b, inner]: &[String; 4]) -> Result<[Expression; 4]> {
    let parsed = Expression::parse;
    Ok([parsed(outer)?, parsed(a)?, parsed(b)?, parsed(inner)?])
}

impl Family {
    /// Returns the names of the entries of `config.json` whose factors are multiplied into the
    /// weights of a GGUF file.
    #[must_use]
    pub fn factors_in_gguf_weights(&self) -> Vec<&str> {
        let layouts = self.gguf.iter().flat_map(|gguf| &gguf.layouts);
        let scaled = layouts.filter_map(|(_, layout)| match layout {
            TensorLayout::Scaled(scaled) => Some(scaled),
            _ => None,
        });
        let factors =
            scaled.flat_map(|scaled| scaled.by.iter().chain(scaled.rows.iter().map(|[_, by]| by)));
        let names: BTreeSet<&str> = factors.flat_map(Expression::names).collect();
        names.into_iter().collect()
    }
}
