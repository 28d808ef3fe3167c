//! Normalisations.

use super::call::{Call, Rule, axis};
use super::elementwise::like_first;
use crate::gradient::{Rule as Gradient, Step, index};
use crate::{Dim, ElementType, TensorType, ValueId};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("BatchNormalization", batch),
    ("GroupNormalization", like_first),
    ("InstanceNormalization", like_first),
    ("LayerNormalization", layer),
    ("MeanVarianceNormalization", like_first),
    ("RMSNormalization", like_first),
    ("SimplifiedLayerNormalization", layer),
];

/// Gradient rules of the operators.
pub(super) const GRADIENTS: &[(&str, Gradient)] = &[
    ("BatchNormalization", batch_gradient),
    ("InstanceNormalization", instance_gradient),
    ("LayerNormalization", layer_gradient),
    ("RMSNormalization", root_mean_square_gradient),
];

/// Infers the outputs of a batch norm.
///
/// Outputs after the first are means and variances of channels, while a model is trained.
fn batch(call: &mut Call<'_>) -> Result<(), String> {
    let channels = call.shape(0).and_then(|shape| shape.get(1)).cloned();
    let given = (1..call.inputs.len())
        .find_map(|position| call.shape(position))
        .and_then(|shape| shape.first())
        .cloned();
    if let Some(channels) = channels.filter(|channels| *channels != Dim::Unknown).or(given) {
        for output in 1..call.outputs.len() {
            call.set_shape(output, vec![channels.clone()]);
        }
    }
    like_first(call)
}

/// Infers the outputs of a layer norm.
///
/// Outputs after the first are means and deviations, computed with the precision of `stash_type`.
fn layer(call: &mut Call<'_>) -> Result<(), String> {
    let stash = call.element_attribute("stash_type")?.or(Some(ElementType::F32));
    for output in 1..call.outputs.len() {
        call.set_element(output, stash);
    }

    if let Some(shape) = call.shape(0) {
        let from = axis(call.int("axis").unwrap_or(-1), shape.len())?;
        let ones = vec![Dim::fixed(1); shape.len() - from];
        for output in 1..call.outputs.len() {
            call.set(
                output,
                TensorType { element: stash, shape: Some([&shape[..from], &ones].concat()) },
            );
        }
    }

    like_first(call)
}

/// Dimensions of a normalization, and the value added to the variance.
struct Along {
    axes: Vec<i64>,
    /// Number of elements along the dimensions.
    count: ValueId,
    epsilon: f32,
}

impl Along {
    fn of(step: &mut Step<'_>, x: ValueId, from: usize) -> Result<Self, String> {
        let shape = step.shape(x)?;
        let dimensions: Vec<usize> = (from..shape.len()).collect();
        let count = step.elements(x, &dimensions)?;
        let axes = (from..shape.len()).map(index).collect();
        Ok(Self { axes, count, epsilon: step.float("epsilon")?.unwrap_or(1e-5) })
    }

    fn mean(&self, step: &mut Step<'_>, value: ValueId) -> ValueId {
        let sum = step.sum(value, &self.axes, true);
        step.op("Div", &[sum, self.count])
    }

    /// The root of the mean square, and epsilon under it.
    fn root(&self, step: &mut Step<'_>, value: ValueId) -> ValueId {
        let square = step.times(value, value);
        let mean = self.mean(step, square);
        let epsilon = step.number(self.epsilon);
        let sum = step.op("Add", &[mean, epsilon]);
        step.op("Sqrt", &[sum])
    }

    /// Returns the gradient for normalized values `n = v / root(v)`: `(g - n * mean(g * n)) /
    /// root`.
    fn back(
        &self,
        step: &mut Step<'_>,
        gradient: ValueId,
        normal: ValueId,
        root: ValueId,
    ) -> ValueId {
        let weighted = step.times(gradient, normal);
        let mean = self.mean(step, weighted);
        let share = step.times(normal, mean);
        let rest = step.op("Sub", &[gradient, share]);
        step.op("Div", &[rest, root])
    }
}

fn layer_gradient(step: &mut Step<'_>) -> Result<(), String> {
    let x = step.input(0)?;
    let shape = step.shape(x)?;
    let from = axis(step.int("axis")?.unwrap_or(-1), shape.len())?;
    let along = Along::of(step, x, from)?;
    normalised(step, &along, true, |_, parameter| Ok(parameter))
}

fn root_mean_square_gradient(step: &mut Step<'_>) -> Result<(), String> {
    let x = step.input(0)?;
    let shape = step.shape(x)?;
    let from = axis(step.int("axis")?.unwrap_or(-1), shape.len())?;
    let along = Along::of(step, x, from)?;
    normalised(step, &along, false, |_, parameter| Ok(parameter))
}

/// Writes the gradients of an instance normalization, for each channel of each image; scale and
/// bias are per channel.
fn instance_gradient(step: &mut Step<'_>) -> Result<(), String> {
    let x = step.input(0)?;
    let shape = step.shape(x)?;
    if shape.len() < 3 {
        return Err("its input has no dimensions behind the channels".to_owned());
    }
    let along = Along::of(step, x, 2)?;
    let behind: Vec<i64> = (1..shape.len() - 1).map(index).collect();
    normalised(step, &along, true, |step, parameter| {
        let axes = step.ints(&behind);
        Ok(step.op("Unsqueeze", &[parameter, axes]))
    })
}

/// `placed` gives a scale or a bias the dimensions in which it is widened.
fn normalised(
    step: &mut Step<'_>,
    along: &Along,
    centres: bool,
    placed: impl Fn(&mut Step<'_>, ValueId) -> Result<ValueId, String>,
) -> Result<(), String> {
    let (gradient, x, scale) = (step.gradient()?, step.input(0)?, step.input(1)?);
    let shape = step.shape(x)?;
    let values = if centres {
        let mean = along.mean(step, x);
        step.op("Sub", &[x, mean])
    } else {
        x
    };
    let root = along.root(step, values);
    let normal = step.op("Div", &[values, root]);

    if step.wants(0) {
        let wide = placed(step, scale)?;
        let scaled = step.times(gradient, wide);
        let back = along.back(step, scaled, normal, root);
        let back = if centres {
            let mean = along.mean(step, back);
            step.op("Sub", &[back, mean])
        } else {
            back
        };
        step.give(0, back);
    }
    for position in [1, 2] {
        if !step.wants(position) {
            continue;
        }
        let part = if position == 1 { step.times(gradient, normal) } else { gradient };
        let parameter = step.input(position)?;
        let narrow = narrowed_parameter(step, part, &shape, parameter)?;
        step.give(position, narrow);
    }
    Ok(())
}

/// The sum over everything but the parameter's dimensions.
fn narrowed_parameter(
    step: &mut Step<'_>,
    gradient: ValueId,
    shape: &[Dim],
    parameter: ValueId,
) -> Result<ValueId, String> {
    let own = step.shape(parameter)?;
    if step.name() == "InstanceNormalization" {
        let others: Vec<i64> = (0..shape.len()).filter(|at| *at != 1).map(index).collect();
        return Ok(step.sum(gradient, &others, false));
    }
    step.narrowed_from(gradient, shape, parameter, &own)
}

/// Writes the gradients of a batch normalization at inference: means and variances are constants.
fn batch_gradient(step: &mut Step<'_>) -> Result<(), String> {
    if step.int("training_mode")?.unwrap_or(0) != 0 {
        return Err("it computes means and variances itself".to_owned());
    }
    let (gradient, x, scale) = (step.gradient()?, step.input(0)?, step.input(1)?);
    let (mean, variance) = (step.input(3)?, step.input(4)?);
    let rank = step.rank(x)?;
    let behind: Vec<i64> = (1..rank - 1).map(index).collect();
    let placed = |step: &mut Step<'_>, value| {
        let axes = step.ints(&behind);
        if behind.is_empty() { value } else { step.op("Unsqueeze", &[value, axes]) }
    };
    let epsilon = step.float("epsilon")?.unwrap_or(1e-5);
    let epsilon = step.number(epsilon);
    let sum = step.op("Add", &[variance, epsilon]);
    let root = step.op("Sqrt", &[sum]);
    let root = placed(step, root);
    if step.wants(0) {
        let scale = placed(step, scale);
        let scaled = step.times(gradient, scale);
        let back = step.op("Div", &[scaled, root]);
        step.give(0, back);
    }
    let others: Vec<i64> = (0..rank).filter(|at| *at != 1).map(index).collect();
    if step.wants(1) {
        let mean = placed(step, mean);
        let centred = step.op("Sub", &[x, mean]);
        let normal = step.op("Div", &[centred, root]);
        let weighted = step.times(gradient, normal);
        let of_scale = step.sum(weighted, &others, false);
        step.give(1, of_scale);
    }
    if step.wants(2) {
        let of_bias = step.sum(gradient, &others, false);
        step.give(2, of_bias);
    }
    Ok(())
}
