//! What a model is, and what one of its tensors is for.

use apr_arch::{Description, Families, FamilyModel, Resemblance, TensorKind, TensorNameMapper};
use apr_core::Progress;
use apr_graph::Use;
use apr_registry::{CheckpointReader, DType, Format, Pipeline, Result, Shape, keys};
use apr_source::adapter::Adapter;
use apr_tensor::stats::Stats;
use apr_view::{named, nearest_or_first};
use serde::Serialize;

use super::stored::StoredQuantization;
use crate::graph::Computed;
use crate::inspect::inspect;
use crate::physics::{Physics, Violation, expectation};
use crate::tensors::{TensorsOptions, find, list};

/// Number of similar names that an error lists for an unknown one.
const SIMILAR: usize = 5;

/// A model, explained.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ModelExplanation {
    /// Path or location of the opened model.
    pub path: String,
    /// Format of the model.
    pub format: &'static Format,
    /// Description by the model's family; `None` if the family is unknown.
    pub description: Option<Description>,
    /// The adapter, if the file contains an adapter instead of a model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<Adapter>,
    /// Model type in the metadata, if the family is unknown.
    pub model_type: Option<String>,
    /// The known family most similar to a model of an unknown family, and the differences.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resembles: Option<Resemblance>,
    /// Beginning of a family table for a model of an unknown family.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft: Option<String>,
    /// Dimensions worth knowing: `layers`, `hidden`, `vocab`.
    pub dimensions: Vec<(&'static str, u64)>,
    /// Elements of all tensors.
    pub parameters: u64,
    /// Number of tensors.
    pub tensor_count: usize,
    /// The dtype that most bytes have.
    pub dtype: Option<DType>,
    /// Quantization of weights in codes and scales.
    ///
    /// `None` if there are no such weights and no method is stated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantization: Option<StoredQuantization>,
    /// Warnings about the model, which may be only a part of one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Explains a model from its headers alone. One of an unknown family is compared with `families`.
#[must_use]
pub(crate) fn explain_model(
    reader: &dyn CheckpointReader,
    file: &str,
    model: Option<&FamilyModel<'_>>,
    families: &Families,
) -> ModelExplanation {
    const DIMENSIONS: [&str; 9] = [
        "layers",
        "encoder_layers",
        "decoder_layers",
        "hidden",
        "heads",
        "kv_heads",
        "experts",
        "vocab",
        "positions",
    ];

    let inspected = inspect(reader, file, model);
    let known = |name: &'static str| Some((name, model?.dimension(name)?));
    let is_unknown = inspected.family.is_none() && inspected.adapter.is_none();
    let (tensors, metadata) = (reader.tensors(), reader.metadata());
    let resembles = is_unknown.then(|| families.nearest(tensors, metadata)).flatten();
    let base = resembles.as_ref().map(|nearest| nearest.family.as_str());
    let draft = is_unknown.then(|| families.draft(tensors, metadata, base)).flatten();
    ModelExplanation {
        warnings: reader.warnings().to_vec(),
        path: file.to_owned(),
        format: reader.format(),
        description: inspected.family,
        adapter: inspected.adapter,
        model_type: metadata.text(keys::MODEL_TYPE).map(str::to_owned),
        resembles,
        draft,
        dimensions: DIMENSIONS.into_iter().filter_map(known).collect(),
        parameters: inspected.parameters,
        tensor_count: inspected.tensor_count,
        dtype: inspected.dtypes.first().map(|share| share.dtype),
        quantization: StoredQuantization::of(reader, &inspected.dtypes),
    }
}

/// A tensor, explained.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct TensorExplanation {
    /// Path or location of the opened model.
    pub path: String,
    /// Name in the checkpoint.
    pub name: String,
    /// Canonical name, if it differs.
    pub canonical: Option<String>,
    /// Purpose of the tensor.
    pub role: Option<String>,
    /// Kind of the tensor, which decides what values are expected.
    pub kind: Option<TensorKind>,
    /// Element type of the tensor.
    pub dtype: DType,
    /// Dimensions of the tensor.
    pub shape: Shape,
    /// Meaning of the dimensions.
    pub axes: Option<Vec<String>>,
    /// Nodes of the model's graph that read the tensor; `None` if the graph is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uses: Option<Vec<Use>>,
    /// Statistics; `None` for quantized tensors.
    pub stats: Option<Stats>,
    /// Violations found in the values; empty for a valid tensor.
    pub violations: Vec<Violation>,
}

/// Explains the tensor called `name`, by the checkpoint or canonically, and reads it for its
/// statistics; gives the names most like it when there is none. `graphs` are the model's, where
/// they are known.
///
/// # Errors
/// E002 and E007 when bytes can't be read.
pub(crate) fn explain_tensor<P: Pipeline>(
    (reader, path): (&dyn CheckpointReader, &str),
    model: Option<&FamilyModel<'_>>,
    graphs: Option<&Computed>,
    name: &str,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<Result<TensorExplanation, Vec<String>>> {
    let position = match find(reader, name) {
        Ok(position) => position,
        Err(similar) => match canonical_position(reader, model, name) {
            Some(position) => position,
            None => return Ok(Err(similar.into_iter().map(str::to_owned).collect())),
        },
    };

    let info = &reader.tensors()[position];
    let options = TensorsOptions {
        filter: Some(named(&info.name)),
        stats: true,
        ..TensorsOptions::default()
    };
    let stats = list(reader, "", &options, pipeline, progress)?
        .tensors
        .into_iter()
        .next()
        .and_then(|row| row.stats);
    let canonical = model.and_then(|model| model.canonical(position));
    let expected = expectation(model, position, info);
    let violations =
        stats.as_ref().map(|stats| Physics::ALL.violations(&info.name, stats, expected));
    Ok(Ok(TensorExplanation {
        path: path.to_owned(),
        name: info.name.clone(),
        canonical: canonical.filter(|canonical| *canonical != info.name).map(str::to_owned),
        role: model.and_then(|model| model.role(position)),
        kind: expected.map(|expected| expected.kind),
        dtype: info.dtype,
        shape: info.shape.clone(),
        uses: graphs.map(|graphs| graphs.uses(&info.name, canonical)),
        axes: axes(model, position, expected.map(|expected| expected.kind), &info.shape),
        stats,
        violations: violations.unwrap_or_default(),
    }))
}

fn canonical_position(
    reader: &dyn CheckpointReader,
    model: Option<&FamilyModel<'_>>,
    name: &str,
) -> Option<usize> {
    let model = model?;
    // A name of another convention, the source's for one, means the same tensor.
    let canonical = model.family().map_name(name);
    let is_meant = |found: &str| found == name || canonical.as_deref() == Some(found);
    (0..reader.tensors().len()).find(|&position| model.canonical(position).is_some_and(is_meant))
}

fn axes(
    model: Option<&FamilyModel<'_>>,
    position: usize,
    kind: Option<TensorKind>,
    shape: &Shape,
) -> Option<Vec<String>> {
    let named = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect());
    match (kind, shape.dims().len()) {
        (Some(TensorKind::Conv), 3) => named(&["Filters", "Input Channels", "Kernel Size"]),
        (Some(TensorKind::Conv), 4) => {
            named(&["Filters", "Input Channels", "Kernel Height", "Kernel Width"])
        }
        _ => {
            let (_, formula) = model?.expected_shape(position)?;
            let names: Vec<String> = formula
                .trim_matches(['[', ']'])
                .split(", ")
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect();
            (!names.is_empty()).then_some(names)
        }
    }
}

/// A tensor as the families know it, without a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KnownTensor {
    /// Title of the family.
    pub family: String,
    /// Canonical name.
    pub canonical: String,
    /// Purpose of the tensor.
    pub role: String,
}

/// Returns what the families know about a tensor of this name.
///
/// # Errors
/// Returns similar canonical names, or if there are none, some as examples, when no family knows
/// the name.
pub fn known_tensor(families: &Families, name: &str) -> Result<Vec<KnownTensor>, Vec<String>> {
    let of = |family: &apr_arch::Family| {
        let canonical = family.map_name(name)?;
        let role = family.role(&canonical)?;
        Some(KnownTensor { family: family.title().to_owned(), canonical, role })
    };
    let known: Vec<KnownTensor> = families.iter().filter_map(of).collect();
    if !known.is_empty() {
        return Ok(known);
    }

    let mut names: Vec<String> =
        families.iter().flat_map(apr_arch::Family::example_names).collect();
    names.sort_unstable();
    names.dedup();
    Err(nearest_or_first(name, names.iter().map(String::as_str), SIMILAR)
        .into_iter()
        .map(str::to_owned)
        .collect())
}
