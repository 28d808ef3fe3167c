//! A quantization as asked for, turned into what each tensor of a checkpoint becomes.

use std::sync::Arc;

use crate::TensorType;
use apr_arch::FamilyModel;
use apr_registry::{CheckpointReader, Convention, Error, Result, TensorInfo, keys};
use apr_view::{NamePattern, named, parse_expression, parse_search};

use super::idle::{changes_something, idle_choices, idle_patterns};
use super::role::{expert_of, gguf_names, roles};
use super::{
    Candidate, Choices, ColumnStatistics, Decision, DecisionReason, Imatrix, ModelFacts, Scheme,
    TensorTarget, assign,
};

/// Source of the importance of a tensor's columns.
#[derive(Debug, Clone)]
pub enum Weighting {
    /// Importance matrix that llama.cpp measured during a run of the model.
    Matrix {
        /// The measurements.
        matrix: Imatrix,
        /// Name of the file with the importance.
        file: String,
    },
    /// Mean squares of samples, for tensors whose rows are as long as a sample.
    Columns(ColumnStatistics),
}

/// Target of a quantization and its importance weights.
#[derive(Debug, Clone)]
pub struct Quantization {
    /// Chosen types.
    pub choices: Choices,
    /// Importance weights.
    pub weighting: Option<Weighting>,
}

impl Quantization {
    /// To this type or mix, by llama.cpp's rules, every error weighing the same.
    #[must_use]
    pub const fn to(scheme: Scheme) -> Self {
        Self { choices: Choices::new(scheme), weighting: None }
    }
}

impl From<Scheme> for Quantization {
    fn from(scheme: Scheme) -> Self {
        Self::to(scheme)
    }
}

/// Target of every tensor, and warnings for the user.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct QuantizationPlan {
    /// Targets by position.
    pub targets: Vec<Option<TensorTarget>>,
    /// Warnings, including choices that had no effect.
    pub warnings: Vec<String>,
}

impl QuantizationPlan {
    fn is_unweighted(&self) -> bool {
        self.targets.iter().flatten().all(|target| target.importance.is_none())
    }
}

/// Decides about every tensor of a checkpoint, with the rules of its family if it is known.
///
/// # Errors
/// Returns the errors of [`assign`]. Also E001 if no tensor changes although the scheme uses blocks
/// or integers, and E001 for importance weights of another length than the tensor's rows.
pub fn plan(
    reader: &dyn CheckpointReader,
    model: Option<&FamilyModel<'_>>,
    quantization: &Quantization,
) -> Result<QuantizationPlan> {
    let is_gguf = reader.format().convention == Convention::LlamaCpp
        || reader.metadata().get(keys::GGUF).is_some();
    let gguf_names = gguf_names(reader, model);
    let roles = roles(reader, model, &gguf_names);
    let own = reader.tensors().iter().map(|info| info.name.clone());
    let names: Vec<String> =
        gguf_names.into_iter().zip(own).map(|(name, own)| name.unwrap_or(own)).collect();
    let facts = facts(reader, model, is_gguf)?;
    let Quantization { choices, weighting } = quantization;
    let auxiliary = reader.metadata().auxiliary_tensor();
    let chosen: Vec<usize> = (0..names.len())
        // The mel filterbank that an import adds is no weight of the model.
        .filter(|&i| auxiliary != Some(reader.tensors()[i].name.as_str()))
        .collect();
    let candidates: Vec<Candidate> = chosen
        .iter()
        .map(|&i| {
            let info = &reader.tensors()[i];
            Candidate {
                name: names[i].clone(),
                dtype: info.dtype,
                shape: info.shape.clone(),
                role: roles[i],
            }
        })
        .collect();
    let overrides = overrides(reader, &names, &choices.overrides);
    let warnings = idle_patterns(&overrides, &names);
    let choices = Choices { overrides, has_importance: weighting.is_some(), ..choices.clone() };
    let decisions = assign(&candidates, &facts, &choices)?;
    changes_something(&candidates, &decisions, &choices)?;
    let warnings = warnings
        .into_iter()
        .chain(idle_choices(&candidates, &decisions, &facts, &choices))
        .collect();

    let mut plan = QuantizationPlan { targets: vec![None; names.len()], warnings };
    let mut unweighted = Vec::new();
    for ((&i, candidate), decision) in chosen.iter().zip(&candidates).zip(decisions) {
        let weights = weights(reader, i, candidate, &decision, weighting.as_ref())?;
        let lacks = weighting.is_some() && weights.is_none() && decision.dtype.is_quantized();
        if lacks && decision.needs_importance {
            let message = format!(
                "{} has so few bits that it needs importance weights for this tensor",
                decision.dtype
            );
            return Err(Error::format(message).for_tensor(&reader.tensors()[i].name));
        }

        if lacks {
            unweighted.push(reader.tensors()[i].name.as_str());
        }

        plan.targets[i] =
            Some(TensorTarget { dtype: decision.dtype, importance: weights, why: note(&decision) });
    }

    if let Some(Weighting::Columns(columns)) = weighting.as_ref().filter(|_| plan.is_unweighted()) {
        let message = format!(
            "no tensor to quantize has rows of {} elements, as the samples have",
            columns.columns
        );
        return Err(Error::format(message));
    }

    plan.warnings.extend(note_of_unweighted(&unweighted));
    Ok(plan)
}

fn facts(
    reader: &dyn CheckpointReader,
    model: Option<&FamilyModel<'_>>,
    is_gguf: bool,
) -> Result<ModelFacts> {
    if let Some(pairs) = apr_gguf::key_values(reader.metadata())?.filter(|_| is_gguf) {
        return Ok(ModelFacts::from_gguf(&pairs));
    }
    let Some(model) = model else { return Ok(ModelFacts::default()) };
    let architecture = model.gguf_architecture().unwrap_or(model.family().name());
    Ok(ModelFacts::from_dimensions(architecture, |name| model.dimension(name)))
}

/// Returns the pattern, or one for parts of names if only that matches any, as in llama-quantize:
/// `attn_q` selects all tensors with `attn_q` in their names, and the regular expression
/// `blk\.(0|1)\.ffn` those of two blocks.
pub(crate) fn widened(
    pattern: &NamePattern,
    matches: impl Fn(&NamePattern) -> bool,
) -> NamePattern {
    if matches(pattern) {
        return pattern.clone();
    }
    let parts = [parse_search(pattern.text()), parse_expression(pattern.text())];
    parts.into_iter().flatten().find(matches).unwrap_or_else(|| pattern.clone())
}

/// Resolves override patterns, which match GGUF names and the tensors' own names, or parts of them.
fn overrides(
    reader: &dyn CheckpointReader,
    names: &[String],
    rules: &[(NamePattern, TensorType)],
) -> Vec<(NamePattern, TensorType)> {
    let mut result = Vec::new();
    for (pattern, wanted) in rules {
        let own = reader.tensors().iter().zip(names);
        let matches = |pattern: &NamePattern| {
            let mut own = own.clone();
            own.any(|(info, name)| pattern.is_match(&info.name) || pattern.is_match(name))
        };
        let pattern = &widened(pattern, matches);
        // Candidates go by GGUF's names: a match of a tensor's own name becomes a pattern for it
        // alone.
        for (_, name) in
            own.filter(|(info, name)| pattern.is_match(&info.name) && !pattern.is_match(name))
        {
            result.push((named(name), *wanted));
        }
        result.push((pattern.clone(), *wanted));
    }
    result
}

fn weights(
    reader: &dyn CheckpointReader,
    tensor: usize,
    candidate: &Candidate,
    decision: &Decision,
    weighting: Option<&Weighting>,
) -> Result<Option<Arc<[f32]>>> {
    let changes = decision.dtype.is_quantized() && decision.dtype != candidate.dtype;
    match weighting.filter(|_| changes) {
        None => Ok(None),
        Some(Weighting::Matrix { matrix, .. }) => {
            let weights = matrix.for_tensor(&candidate.name, &candidate.shape);
            let weights =
                weights.map_err(|error| error.for_tensor(&reader.tensors()[tensor].name))?;
            Ok(weights.map(|weights| weights.matrices().flatten().copied().collect()))
        }
        Some(Weighting::Columns(columns)) => {
            Ok(columns.importance(candidate.shape.row_len()).map(Arc::from))
        }
    }
}

/// The weights of the columns of each tensor that a matrix of importance has, by position: of a
/// stack, those of its matrices one after another. The matrix of one expert has its part of the
/// weights of the stack. Weights whose rows are inputs have none.
///
/// # Errors
/// E001 for weights of another length than the tensor's rows.
pub fn importance(
    reader: &dyn CheckpointReader,
    model: Option<&FamilyModel<'_>>,
    matrix: &Imatrix,
) -> Result<Vec<Option<Arc<[f32]>>>> {
    let names = gguf_names(reader, model);
    let of_tensor = |(position, (info, name)): (usize, (&TensorInfo, Option<String>))| {
        if model.is_some_and(|model| model.has_inputs_first(position)) {
            return Ok(None);
        }
        let found = matrix.for_tensor(name.as_deref().unwrap_or(&info.name), &info.shape);
        let found = found.map_err(|error| error.for_tensor(&info.name))?;
        let own = found.map(|found| found.matrices().flatten().copied().collect());
        let of_stack = || {
            let (stack, expert) = expert_of(model, position)?;
            matrix.for_expert(&stack, expert, &info.shape).map(Arc::from)
        };
        Ok(own.or_else(of_stack))
    };
    reader.tensors().iter().zip(names).enumerate().map(of_tensor).collect()
}

/// Returns the reason for a decision, or `None` for the dtype that the user chose.
fn note(decision: &Decision) -> Option<String> {
    (decision.reason != DecisionReason::AsAsked).then(|| decision.reason.to_string())
}

/// Returns the note that tensors lack importance weights that others have; `None` for no names.
#[must_use]
pub fn note_of_unweighted(names: &[&str]) -> Option<String> {
    const SHOWN: usize = 4;
    let first = names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    let more = if names.len() > SHOWN {
        format!(" and {} more", names.len() - SHOWN)
    } else {
        String::new()
    };
    (!names.is_empty())
        .then(|| format!("no importance weights for {first}{more}: quantized without"))
}
