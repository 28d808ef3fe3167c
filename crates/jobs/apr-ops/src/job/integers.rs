//! Weights of integers in groups that become blocks of GGUF's types with the same codes: nothing is
//! rounded a second time.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use apr_arch::FamilyModel;
use apr_core::{BlockFit, CodesInBlocks, Coding, counted};
use apr_registry::{CheckpointReader, DType, Metadata, Result as ModelResult};
use apr_source::Source;
use apr_view::View;

use super::blocks::is_in_rows;
use crate::convert::ConvertOptions;

/// Weights whose codes are copied into blocks.
pub(super) struct Integers {
    /// The type of the blocks, by position in the content that has the weights.
    pub(super) dtypes: Vec<Option<DType>>,
    /// The weights by the names of their parts.
    pub(super) weights: BTreeSet<String>,
    /// Metadata of the output, which state how it is quantized.
    pub(super) metadata: Metadata,
}

/// Weights that are rounded again, by the reason.
#[derive(Default)]
struct Rounded {
    /// Number of weights, name of the first weight and its new type, by reason.
    reasons: BTreeMap<&'static str, (u64, String, DType)>,
}

impl Integers {
    /// Finds the weights of `content` whose codes fit the blocks that the options give them in
    /// `view`, which has the content under the output's names; the options then leave these alone,
    /// and have a warning about others that almost fit.
    ///
    /// # Errors
    /// Those of reading scales and zero points.
    pub(super) fn find(
        content: &View<'_>,
        view: &View<'_>,
        options: &mut ConvertOptions,
        source: &Source<'_>,
    ) -> ModelResult<Option<Self>> {
        let tensors = content.tensors().iter().enumerate();
        let coded: HashMap<&str, (usize, Coding<'_>, &dyn CodesInBlocks)> = tensors
            .filter_map(|(position, info)| {
                let coding = content.stored(position).coding()?;
                Some((info.name.as_str(), (position, coding, coding.in_blocks?)))
            })
            .collect();
        let Some(family) = source.family_in(content)?.filter(|_| !coded.is_empty()) else {
            return Ok(None);
        };

        let mut found = Self {
            dtypes: vec![None; content.tensors().len()],
            weights: BTreeSet::new(),
            metadata: view.metadata().clone(),
        };
        let mut rounded = Rounded::default();
        for (info, target) in view.tensors().iter().zip(&mut options.targets) {
            let Some(target) = target.as_mut().filter(|target| target.dtype.is_quantized()) else {
                continue;
            };
            let dtype = target.dtype;
            let below = view.names_below(&info.name);
            let parts: Option<Vec<_>> = below.iter().map(|name| coded.get(name).copied()).collect();
            let Some(parts) = parts.filter(|parts| !parts.is_empty()) else { continue };
            match fit(&family, &parts, dtype)? {
                BlockFit::Narrower => {}
                BlockFit::Rounded(why) => rounded.add(why, &info.name, dtype),
                BlockFit::Exact => {
                    (target.importance, target.why) = (None, None);
                    for (position, coding, _) in parts {
                        found.dtypes[position] = Some(dtype);
                        found.weights.insert(coding.weight.to_owned());
                    }
                }
            }
        }
        options.warnings.extend(rounded.warnings());
        Ok((!found.weights.is_empty()).then_some(found))
    }
}

/// Returns how blocks of a type fit all parts of a tensor.
fn fit(
    family: &FamilyModel<'_>,
    parts: &[(usize, Coding<'_>, &dyn CodesInBlocks)],
    dtype: DType,
) -> ModelResult<BlockFit> {
    for (position, coding, codes) in parts {
        let fit = codes.fit(coding.base, dtype)?;
        if fit != BlockFit::Exact {
            return Ok(fit);
        }
        let canonical = family.canonical(*position);
        if !canonical.is_some_and(|canonical| is_in_rows(family, canonical)) {
            return Ok(BlockFit::Rounded("llama.cpp stores it in another layout"));
        }
    }
    Ok(BlockFit::Exact)
}

impl Rounded {
    fn add(&mut self, why: &'static str, name: &str, dtype: DType) {
        let first = || (0, name.to_owned(), dtype);
        self.reasons.entry(why).or_insert_with(first).0 += 1;
    }

    fn warnings(self) -> impl Iterator<Item = String> {
        self.reasons.into_iter().map(|(why, (count, name, dtype))| {
            let count = counted(count, "weight");
            format!("{count} of integers rounded again to {dtype}, as '{name}': {why}")
        })
    }
}
