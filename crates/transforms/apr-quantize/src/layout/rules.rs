//! Layouts of single weights, chosen by their names.

use std::fmt;

use apr_core::{DType, Error, Result, TensorInfo};
use apr_view::NamePattern;

use super::Layout;
use crate::plan::widened;
use crate::scheme::{Scheme, UnknownType, parse_dtype};

/// Rule for the weights whose names match: their layout, or the floats that they stay in.
#[derive(Debug, Clone, PartialEq)]
pub struct LayoutRule {
    /// Pattern of the names, in the model or in libraries.
    pub pattern: NamePattern,
    /// Layout of the weights, or the dtype of the floats that they stay in.
    pub to: std::result::Result<Layout, DType>,
}

impl LayoutRule {
    /// Creates the rule that gives a type to weights whose names match.
    ///
    /// # Errors
    /// E001 for a type that weights in codes and scales can't have.
    pub fn new(pattern: &NamePattern, wanted: TensorType) -> Result<Self> {
        let to = match wanted {
            TensorType::Layout(layout) => Ok(layout),
            TensorType::Dtype(DType::MXFP4) => Ok(Layout::MxFp4),
            TensorType::Dtype(DType::NVFP4) => Ok(Layout::NvFp4),
            TensorType::Dtype(DType::F8_E4M3) => Ok(Layout::Fp8),
            TensorType::Dtype(DType::I8_ROW) => Ok(Layout::W8A8),
            TensorType::Dtype(DType::I4_ROW) => Ok(Layout::W4A16),
            TensorType::Dtype(dtype @ (DType::F32 | DType::F16 | DType::BF16)) => Err(dtype),
            TensorType::Dtype(dtype) => {
                let pattern = pattern.text();
                return Err(Error::format(format!(
                    "`tensor_type` {pattern}={dtype}: a type of blocks, beside codes and scales"
                )));
            }
        };
        Ok(Self { pattern: pattern.clone(), to })
    }
}

/// Rules for the weights of a model, and which of them changed something.
pub(super) struct Rules<'r> {
    rules: Vec<(NamePattern, &'r LayoutRule)>,
    used: Vec<bool>,
    /// Warnings about weights that stay in other floats than requested.
    warnings: Vec<String>,
    tensors: &'r [TensorInfo],
    named: &'r [TensorInfo],
}

impl<'r> Rules<'r> {
    pub(super) fn new(
        rules: &'r [LayoutRule],
        tensors: &'r [TensorInfo],
        named: &'r [TensorInfo],
    ) -> Self {
        let is_match = |pattern: &NamePattern| {
            let mut names = tensors.iter().chain(named);
            names.any(|info| pattern.is_match(&info.name))
        };
        let rules: Vec<_> =
            rules.iter().map(|rule| (widened(&rule.pattern, is_match), rule)).collect();
        let used = vec![false; rules.len()];
        Self { used, rules, warnings: Vec::new(), tensors, named }
    }

    /// Returns the layout of a weight that would have the layout `otherwise`.
    pub(super) fn layout(&mut self, tensor: usize, otherwise: Layout) -> Option<Layout> {
        let names = [&self.tensors[tensor].name, &self.named[tensor].name];
        let is_match = |pattern: &NamePattern| names.into_iter().any(|name| pattern.is_match(name));
        let found = self.rules.iter().position(|(pattern, _)| is_match(pattern));
        let Some(found) = found else { return Some(otherwise) };
        let rule = self.rules[found].1;
        self.used[found] |= rule.to != Ok(otherwise);
        let own = self.tensors[tensor].dtype;
        let is_other = rule.to.is_err_and(|dtype| dtype != own);
        let warning = || format!("`tensor_type` {rule}: weights that stay in floats stay in {own}");
        if is_other && !self.warnings.contains(&warning()) {
            self.warnings.push(warning());
        }
        rule.to.ok()
    }

    /// Returns the warnings, with one for each rule that changed nothing.
    pub(super) fn warnings(self) -> Vec<String> {
        let idle = self.rules.iter().zip(self.used).filter(|(_, used)| !used);
        let warning = |((_, rule), _): (&(NamePattern, &LayoutRule), bool)| {
            let why = "no weight that it matches gets another type";
            format!("`tensor_type` {rule} has no effect: {why}")
        };
        self.warnings.into_iter().chain(idle.map(warning)).collect()
    }
}

impl fmt::Display for LayoutRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to = self.to.map_or_else(DType::name, Layout::name);
        write!(f, "{}={to}", self.pattern.text())
    }
}

/// Type of a single tensor: a dtype, or a layout of codes and scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TensorType {
    /// Blocks, integers or floats.
    Dtype(DType),
    /// Codes and scales in tensors of their own.
    Layout(Layout),
}

impl From<DType> for TensorType {
    fn from(dtype: DType) -> Self {
        Self::Dtype(dtype)
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl TensorType {
    /// Returns the dtype, or `None` for a layout.
    #[must_use]
    pub const fn dtype(self) -> Option<DType> {
        match self {
            Self::Dtype(dtype) => Some(dtype),
            Self::Layout(_) => None,
        }
    }

    /// Returns the type with this name, in any case.
    ///
    /// Names that dtypes and layouts share, such as `mxfp4`, name the dtype.
    ///
    /// # Errors
    /// With the names like it, for an unknown name.
    pub fn parse(name: &str) -> std::result::Result<Self, UnknownType> {
        let layout = || Scheme::parse(name).ok().and_then(Layout::of).map(Self::Layout);
        parse_dtype(name).map(Self::Dtype).or_else(|unknown| layout().ok_or(unknown))
    }

    /// Returns the name of the type.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dtype(dtype) => dtype.name(),
            Self::Layout(layout) => layout.name(),
        }
    }
}
