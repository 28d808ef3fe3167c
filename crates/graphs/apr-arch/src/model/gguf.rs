//! What GGUF has of a model: its layout of the values, its parts and its keys.

use std::cell::Cell;

use apr_core::{DType, Error, Result};
use serde_json::Value as Json;

use super::FamilyModel;
use crate::dimensions::Dimensions;
use crate::expression::{Expression, Value};
use crate::family::{Family, GGUF, Naming};
use crate::gguf::{
    ArrangedLayout, Defaults, GgufArrangement, GgufCut, GgufFactors, GgufLayout, GgufValue,
    ScaledLayout, TensorLayout,
};
use crate::layer_stack::LayerStack;

impl<'a> FamilyModel<'a> {
    /// Returns `true` if values are in GGUF's layout instead of the layout of Hugging Face
    /// checkpoints.
    #[must_use]
    pub fn is_in_gguf_layout(&self) -> bool {
        self.in_gguf_layout
    }

    /// Returns the reason why the model is not written as GGUF: the family's, or one of this model.
    ///
    /// Returns `None` if the family's table has no such reason.
    #[must_use]
    pub fn gguf_refusal(&self) -> Option<&str> {
        let holds = |when: &Expression| self.dimensions.truth(when, &[]) == Some(true);
        let conditions = self.family.gguf.iter().flat_map(|gguf| &gguf.refused_if);
        let of_model = || conditions.clone().find(|(when, _)| holds(when));
        let of_family = self.family.file.gguf.refused.as_deref();
        of_family.or_else(|| of_model().map(|(_, why)| why.as_str()))
    }

    /// Returns the name that a tensor has in GGUF files of this model, by its canonical name.
    ///
    /// Returns `None` if the tensor is unknown, or GGUF has no name for it.
    #[must_use]
    pub fn gguf_name(&self, canonical: &str) -> Option<String> {
        let mut found = self.family.find_canonical(canonical)?;
        for (index, number) in &mut found.numbers {
            if let Some(list) = self.gguf_numbers(index) {
                *number = *list.get(usize::try_from(*number).ok()?)?;
            }
        }
        self.family.written(&found, &Naming::new(GGUF, ""))
    }

    /// Returns the numbers that an index has in GGUF files, if they are not those of the index
    /// itself.
    fn gguf_numbers(&self, index: &str) -> Option<Vec<u64>> {
        gguf_numbers(self.family, &self.dimensions, index)
    }

    /// Returns the dtype that llama.cpp needs a tensor in, by canonical name.
    ///
    /// Returns `None` if the family's table does not state one.
    #[must_use]
    pub fn gguf_dtype(&self, canonical: &str) -> Option<DType> {
        let found = self.family.find_canonical(canonical)?;
        let name = &self.family.file.tensors.get(found.tensor)?.name;
        let dtypes = &self.family.gguf.as_ref()?.dtypes;
        dtypes.iter().find(|(of, _)| of == name).map(|(_, dtype)| *dtype)
    }

    /// Returns the conversion of a tensor's values from Hugging Face's layout to GGUF, by canonical
    /// name.
    ///
    /// # Errors
    /// E001 if the configuration lacks an entry that the conversion depends on.
    pub fn gguf_layout(&self, canonical: &str) -> Result<GgufLayout> {
        let found = self.family.find_canonical(canonical);
        let size = |expression: &Expression| {
            let size = self.dimensions.size(expression);
            size.ok_or_else(|| {
                Error::format("the configuration does not state the order of rows in GGUF")
                    .for_tensor(canonical)
            })
        };

        Ok(match found.and_then(|found| self.family.layout(found.tensor)) {
            None | Some(TensorLayout::Stack(_) | TensorLayout::Cut(_) | TensorLayout::Key(_)) => {
                GgufLayout::Same
            }
            Some(TensorLayout::Groups([groups, queries, rows])) => {
                GgufLayout::Groups([size(groups)?, size(queries)?, size(rows)?])
            }
            Some(TensorLayout::Swap([outer, a, b, inner])) => {
                GgufLayout::Swap([size(outer)?, size(a)?, size(b)?, size(inner)?])
            }
            Some(TensorLayout::Add(constant)) => GgufLayout::Add(*constant),
            Some(TensorLayout::Transposed) => GgufLayout::Transposed,
            Some(TensorLayout::SkipRows(rows)) => GgufLayout::SkipRows(size(rows)?),
            Some(TensorLayout::Rows(rows)) => GgufLayout::Rows(size(rows)?),
            Some(TensorLayout::Arranged(arranged)) => {
                GgufLayout::Arranged(arrangement(arranged, size)?)
            }
            Some(TensorLayout::Scaled(scaled)) => {
                GgufLayout::Scaled(self.gguf_factors(scaled, size)?)
            }
        })
    }

    /// Returns the factors of a tensor. A factor that the configuration does not state is 1, as in
    /// the classes of such models.
    fn gguf_factors(
        &self,
        scaled: &ScaledLayout,
        size: impl Fn(&Expression) -> Result<u64>,
    ) -> Result<GgufFactors> {
        #[expect(clippy::cast_possible_truncation, reason = "factors are single precision there")]
        let factor = |by: &Expression| match self.dimensions.value(by, &[]) {
            Some(Value::Number(factor)) => factor as f32,
            _ => 1.0,
        };
        let of_rows = |[rows, by]: &[Expression; 2]| Ok((size(rows)?, factor(by)));
        Ok(GgufFactors {
            all: scaled.by.iter().map(factor).collect(),
            rows: scaled.rows.iter().map(of_rows).collect::<Result<_>>()?,
        })
    }

    /// Returns the rows that form the tensor with this canonical name in a GGUF file, if it is cut
    /// out of another in files of this model.
    ///
    /// # Errors
    /// E001 if the configuration lacks an entry that the rows depend on.
    pub fn gguf_cut(&self, canonical: &str) -> Result<Option<GgufCut>> {
        let found = self.family.find_canonical(canonical);
        let Some(TensorLayout::Cut(cut)) = found.and_then(|found| self.family.layout(found.tensor))
        else {
            return Ok(None);
        };
        let holds = |when: &Expression| self.dimensions.truth(when, &[]) == Some(true);
        if !cut.when.as_ref().is_none_or(holds) {
            return Ok(None);
        }
        let size = |expression: &Expression| {
            self.dimensions.size(expression).ok_or_else(|| {
                Error::format("the configuration does not state which of its rows GGUF has")
                    .for_tensor(canonical)
            })
        };
        let (groups, first, count) = (size(&cut.groups)?, size(&cut.first)?, size(&cut.count)?);
        let more = cut.more.iter().map(|[first, count]| Ok((size(first)?, size(count)?)));
        let more = more.collect::<Result<_>>()?;
        let flat = cut.flat || !cut.more.is_empty() || !cut.shape.is_empty();
        let (step, turned) = (cut.step, cut.turned);
        let shape = cut.shape.iter().map(size).collect::<Result<_>>()?;
        Ok(Some(GgufCut { groups, first, step, count, more, flat, turned, shape }))
    }

    /// Returns the number of parts that GGUF stacks in the tensor with this canonical name.
    #[must_use]
    pub fn parts_of(&self, stack: &str) -> Option<u64> {
        let found = self.family.find_canonical(&self.family.part(stack, 0)?)?;
        let whole = self.family.stack_of(found.tensor)?;
        self.counts.get(self.family.stacked_index(found.tensor, whole)?).copied()
    }

    /// Returns the keys that GGUF files have in place of tensors with a single value, each with the
    /// canonical names of these tensors by layer.
    #[must_use]
    pub fn gguf_lists(&self) -> Vec<(&str, Vec<String>)> {
        let layouts = self.family.gguf.iter().flat_map(|gguf| &gguf.layouts);
        let lists = layouts.filter_map(|(name, layout)| match layout {
            TensorLayout::Key(key) => Some((key.as_str(), self.in_all_layers(name))),
            _ => None,
        });
        lists.collect()
    }

    /// Returns the canonical names of the tensors that llama.cpp reads in every layer, although the
    /// model may do without.
    #[must_use]
    pub fn gguf_needs(&self) -> Vec<String> {
        let needs = self.family.gguf.iter().flat_map(|gguf| &gguf.needs);
        needs.flat_map(|name| self.in_all_layers(name)).collect()
    }

    /// Returns the canonical names of a tensor of the table in all layers of the model.
    fn in_all_layers(&self, name: &str) -> Vec<String> {
        /// Configurations and files may state any number.
        const MOST: u64 = 1 << 12;

        let tensor = self.family.file.tensors.iter().position(|entry| entry.name == name);
        let layers = self.counts.get(LayerStack::Only.index()).copied().unwrap_or_default();
        let layers = layers.min(MOST);
        let of_layer = |layer| self.family.tensors[tensor?].pattern.filled(&[layer]);
        (0..layers).filter_map(of_layer).collect()
    }

    /// Returns `true` if llama.cpp does not use the tensor with this canonical name.
    #[must_use]
    pub fn is_without(&self, canonical: &str) -> bool {
        let condition = self.family.gguf.as_ref().and_then(|gguf| gguf.without_tensors.as_ref());
        let (Some(condition), Some(found)) = (condition, self.family.find_canonical(canonical))
        else {
            return false;
        };

        // The condition is over indices, so it says nothing of tensors without any.
        !found.numbers.is_empty() && self.dimensions.truth(condition, &found.numbers) == Some(true)
    }

    /// Returns the `general.architecture` of a GGUF file of this model, or `None` if llama.cpp does
    /// not support it.
    #[must_use]
    pub fn gguf_architecture(&self) -> Option<&'a str> {
        Some(self.family.gguf.as_ref()?.architecture(&mut |name| self.dimensions.named_value(name)))
    }

    /// Hyperparameters under the keys of GGUF, in llama.cpp's order. `entry` gives entries of the
    /// configuration by dotted path, and whatever else the family's table names.
    ///
    /// # Errors
    /// E001 when one that llama.cpp needs is not there or not of its type.
    pub fn gguf_keys(
        &self,
        entry: &dyn Fn(&str) -> Option<Json>,
    ) -> Result<Vec<(String, GgufValue)>> {
        let Some(gguf) = &self.family.gguf else { return Ok(Vec::new()) };
        let told = |name: &str| entry(name).and_then(|json| Value::of(&json));
        let were_used = Cell::new(false);
        let default = |name: &str| {
            let (value, is_default) = self.dimensions.told_or_default(name)?;
            were_used.set(were_used.get() || is_default);
            Some(value)
        };
        let mut lookup = |name: &str| {
            if let Some(name) = name.strip_prefix("config.") {
                return told(name).or_else(|| default(name));
            }
            if let Some((value, is_default)) = self.dimensions.resolved(name) {
                were_used.set(were_used.get() || is_default);
                return Some(value);
            }
            told(name).or_else(|| default(name))
        };
        let is_dimension = |name: &str| self.dimensions.resolved(name).is_some();
        let stated = |name: &str| if is_dimension(name) { None } else { told(name) };
        let defaults = Defaults { were_used: &were_used, stated: &stated };
        gguf.keys(&mut lookup, defaults, |name| self.family.source_of_dimension(name))
    }
}

fn arrangement(
    arranged: &ArrangedLayout,
    size: impl Fn(&Expression) -> Result<u64>,
) -> Result<GgufArrangement> {
    let swap = arranged.swap.as_ref().map(|[outer, a, b, inner]| {
        Ok::<_, Error>([size(outer)?, size(a)?, size(b)?, size(inner)?])
    });
    let shape = arranged.shape.as_ref();
    let shape = shape.map(|[rows, columns]| Ok::<_, Error>([size(rows)?, size(columns)?]));
    Ok(GgufArrangement {
        swap: swap.transpose()?,
        from: size(&arranged.from)?,
        width: arranged.width.as_ref().map(size).transpose()?,
        fading: arranged.fading,
        shape: shape.transpose()?,
    })
}

/// Returns the numbers that an index of a family's names has in GGUF files.
pub(super) fn gguf_numbers(
    family: &Family,
    dimensions: &Dimensions<'_>,
    index: &str,
) -> Option<Vec<u64>> {
    let numbers = &family.gguf.as_ref()?.numbers;
    let (_, list) = numbers.iter().find(|(of, _)| of == index)?;
    match dimensions.value(list, &[])? {
        Value::List(items) => items.iter().map(Value::as_size).collect(),
        _ => None,
    }
}
