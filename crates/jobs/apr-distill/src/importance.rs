//! How much weights matter: the diagonal of the empirical Fisher information.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use apr_core::{Error, Result};
use apr_graph::Intermediates;
use apr_infer::{Tensor, Value};
use apr_ops::graph::Runnable;
use apr_prune::{UnitKind, UnitTensor};
use apr_run::{RunError, RunResult, Runner};
use serde::Serialize;

use crate::Row;
use crate::batch::Batch;
use crate::graph::{LABEL_WEIGHTS, LABELS, LOSS, TARGET, TOKENS, Terms, TrainingGraph};
use crate::parameters::{Parameter, initial};
use crate::targets::Goal;

/// Importance of a model's weights for the texts that it was measured on.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct WeightImportance {
    /// Rows that it was measured on.
    pub rows: usize,
    /// Tokens of these rows.
    #[serde(rename = "token_count")]
    pub tokens: u64,
    /// The tensors that the predictions depend on, in the order of the graph.
    pub tensors: Vec<TensorImportance>,
    /// Heads and neurons of each layer; empty if the family does not define their number.
    pub units: Vec<LayerUnits>,
}

/// Importance of a layer's heads and neurons: the sums of the saliency of their weights.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LayerUnits {
    /// Number of the layer.
    pub layer: u64,
    /// Saliency of each key-value head, including the query heads that share it.
    pub groups: Vec<f64>,
    /// Saliency of each neuron.
    pub neurons: Vec<f64>,
}

/// Importance of a tensor.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct TensorImportance {
    /// Canonical name of the tensor.
    pub name: String,
    /// Number of elements.
    pub elements: u64,
    /// Mean over its elements of the squared gradient.
    pub squared_gradient: f64,
    /// Half of the sum of squared gradients times squared weights.
    ///
    /// It estimates to second order by how much the loss would rise if the tensor were zero
    /// (optimal brain damage, LeCun et al. 1990, with the Fisher information for the curvature:
    /// Theis et al. 2018, arXiv:1801.05787).
    pub saliency: f64,
}

/// Measures the importance of each tensor of a model for the next tokens of texts.
///
/// The gradient of each row's mean cross-entropy is squared, and averaged over rows. `padding` is
/// the token that fills up rows; `done` receives the number of measured rows.
///
/// # Errors
/// [`RunError::Request`] for models that do not generate text, or have several parts; E001 for
/// gradients that are not finite; E003 if the graph has no gradient; E008 if the memory limit is
/// exceeded.
pub fn importance(
    runner: &Runner<'_>,
    rows: &[Row],
    padding: i64,
    units: &[UnitTensor],
    done: &mut dyn FnMut(usize),
) -> RunResult<WeightImportance> {
    let parts: HashMap<&str, &UnitTensor> =
        units.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    let mut units: BTreeMap<u64, LayerUnits> = BTreeMap::new();
    let mut sums: Vec<(f64, f64)> = Vec::new();
    let measured =
        each_gradient(runner, rows, padding, done, &mut |at, parameter, gradient, weight| {
            sums.resize(sums.len().max(at + 1), (0.0, 0.0));
            for (gradient, weight) in gradient.iter().zip(weight) {
                let square = f64::from(*gradient) * f64::from(*gradient);
                sums[at].0 += square;
                sums[at].1 += square * f64::from(*weight) * f64::from(*weight);
            }
            if let Some(part) = parts.get(parameter.tensor.as_str()) {
                let products = gradient.iter().zip(weight).map(|(gradient, weight)| {
                    let product = gradient * weight;
                    product * product
                });
                let products = parameter.stored(&products.collect::<Vec<f32>>());
                let layer = units.entry(part.layer).or_default();
                add_to_units(part, &products, layer);
            }
            Ok(())
        })?;

    let count = rows.len().max(1) as f64;
    let tensor =
        |((parameter, weight), sums): (&(Parameter, Tensor), (f64, f64))| TensorImportance {
            name: parameter.tensor.clone(),
            elements: weight.len() as u64,
            squared_gradient: sums.0 / count / weight.len().max(1) as f64,
            saliency: 0.5 * sums.1 / count,
        };
    let tensors = measured.iter().zip(sums).map(tensor).collect();
    let tokens = rows.iter().map(|row| row.tokens.len() as u64).sum();
    let units = units.into_iter().map(|(layer, mut found)| {
        found.layer = layer;
        let all = found.groups.iter_mut().chain(&mut found.neurons);
        all.for_each(|sum| *sum *= 0.5 / count);
        found
    });
    let units = units.collect();
    Ok(WeightImportance { rows: rows.len(), tokens, tensors, units })
}

/// Adds products of a tensor's elements to the sums of the units that they are of.
fn add_to_units(part: &UnitTensor, products: &[f32], layer: &mut LayerUnits) {
    let sums = match part.kind {
        UnitKind::Groups => &mut layer.groups,
        UnitKind::Neurons => &mut layer.neurons,
    };
    let size = |size: u64| usize::try_from(size).unwrap_or(usize::MAX);
    let (count, width) = (size(part.count), size(part.width));
    sums.resize(count, 0.0);
    let of_a_unit = if part.of_columns { width } else { products.len() / count.max(1) };
    // Units of columns come again in each row.
    for (at, products) in products.chunks(of_a_unit.max(1)).enumerate() {
        let sum: f64 = products.iter().map(|product| f64::from(*product)).sum();
        sums[at % count] += sum;
    }
}

/// The root mean square over rows of the gradient of each weight, by the tensors' names: what
/// [`importance`] sums up, element by element.
///
/// # Errors
/// Those of [`importance`].
pub fn mean_gradients(
    runner: &Runner<'_>,
    rows: &[Row],
    padding: i64,
    done: &mut dyn FnMut(usize),
) -> RunResult<HashMap<String, Vec<f32>>> {
    let most = runner.options().max_memory;
    let (mut sums, mut elements): (Vec<Vec<f32>>, u64) = (Vec::new(), 0);
    let measured = each_gradient(runner, rows, padding, done, &mut |at, _, gradient, _| {
        if at == sums.len() {
            elements += gradient.len() as u64;
            // Beside the weights and the gradients of a row.
            let bytes = elements.saturating_mul(3 * size_of::<f32>() as u64);
            if bytes > most {
                let message = format!("gradients of {elements} weights take {bytes} bytes");
                return Err(Error::memory(message));
            }
            sums.push(vec![0.0; gradient.len()]);
        }
        sums[at].iter_mut().zip(gradient).for_each(|(sum, gradient)| *sum += gradient * gradient);
        Ok(())
    })?;

    #[expect(clippy::cast_precision_loss, reason = "a mean is rounded as much")]
    let count = rows.len().max(1) as f32;
    let root = |((parameter, _), mut sums): (&(Parameter, Tensor), Vec<f32>)| {
        sums.iter_mut().for_each(|sum| *sum = (*sum / count).sqrt());
        (parameter.tensor.clone(), parameter.stored(&sums))
    };
    Ok(measured.iter().zip(sums).map(root).collect())
}

/// Receives the position of a weight, what it is, its gradient for a row, and the weight itself.
type WithGradient<'w> = dyn FnMut(usize, &Parameter, &[f32], &[f32]) -> Result<()> + 'w;

/// Calls `with` with the gradient of each weight, row by row; the weights.
fn each_gradient(
    runner: &Runner<'_>,
    rows: &[Row],
    padding: i64,
    done: &mut dyn FnMut(usize),
    with: &mut WithGradient<'_>,
) -> RunResult<Vec<(Parameter, Tensor)>> {
    let part = runner.part()?;
    let generates = runner.prepare()?.generates();
    let mut goal = Goal::of(&part.graph, generates)?;
    if !goal.is_next {
        return Err(RunError::request(
            "importance is measured by the next tokens of texts, and the model continues none",
        ));
    }
    // Predictions of a teacher are not compared: one, which counts with 0, stands for them.
    goal.kept = 1;
    let terms = Terms {
        temperature: 1.0,
        labels: true,
        layers: Vec::new(),
        frozen: BTreeSet::new(),
        intermediates: Intermediates::Kept,
    };
    let mut graph = TrainingGraph::new(&part.graph, &goal, &terms, runner.weights())?;
    let runnable = Runnable::new(part.name.clone(), std::mem::take(&mut graph.graph));
    let prepared = runner.prepared_with(&runnable, runner.weights())?;
    let weights = initial(&graph.parameters, runner.weights(), runner.options().max_memory)?;
    let mut wanted = vec![LOSS];
    wanted.extend(graph.gradients.iter().map(String::as_str));

    for (at, row) in rows.iter().enumerate() {
        let batch = Batch::of(rows, &[at]);
        let mut inputs = batch.inputs(&part.graph.body, padding, None)?;
        inputs.extend(labels(&goal, row)?);
        for (parameter, weight) in graph.parameters.iter().zip(&weights) {
            inputs.push((parameter.input.clone(), Value::Tensor(weight.clone())));
        }
        let outcome = prepared.run(inputs, &wanted)?;
        for (position, (gradient, weight)) in outcome.outputs[1..].iter().zip(&weights).enumerate()
        {
            let gradient = gradient.tensor()?.values::<f32>()?;
            if !gradient.iter().all(|value| value.is_finite()) {
                let message = format!("the gradient of row {} is not finite", at + 1);
                return Err(Error::format(message).into());
            }
            let parameter = &graph.parameters[position];
            with(position, parameter, gradient, weight.values::<f32>()?)?;
        }
        done(at + 1);
    }
    Ok(graph.parameters.into_iter().zip(weights).collect())
}

/// Returns the next tokens of a row and their weights.
fn labels(goal: &Goal, row: &Row) -> Result<Vec<(String, Value)>> {
    let places = row.tokens.len();
    let found: Vec<Option<i64>> = (0..places).map(|place| goal.label(row, place)).collect();
    #[expect(clippy::cast_precision_loss, reason = "a text has far fewer than 2^24 tokens")]
    let weight = 1.0 / found.iter().flatten().count().max(1) as f32;
    let ids = found.iter().map(|label| label.unwrap_or(0)).collect::<Vec<i64>>();
    let weights = found.iter().map(|label| if label.is_some() { weight } else { 0.0 });
    let shape = || vec![1, places, 1];
    Ok(vec![
        (LABELS.to_owned(), Tensor::new(shape(), ids)?.into()),
        (LABEL_WEIGHTS.to_owned(), Tensor::new(shape(), weights.collect::<Vec<f32>>())?.into()),
        (TARGET.to_owned(), Tensor::new(shape(), vec![0.0_f32; places])?.into()),
        (TOKENS.to_owned(), Tensor::new(shape(), vec![0_i64; places])?.into()),
    ])
}
