//! The vectors of experts, which are the rows of routers.

use apr_core::{CheckpointReader, Error, Result};
use apr_view::values;

use super::{Expert, Recipe};
use crate::random::Draws;

/// The tensor of token embeddings, under the name that frameworks have for it.
pub(super) const EMBEDDING: &str = "model.embed_tokens.weight";

/// Norm below which a vector has no direction.
const SMALL: f32 = 1e-8;

/// Gate vectors of all experts, one for each layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Gates {
    pub(super) rows: Rows,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Rows {
    /// Vectors by expert, equal for all layers.
    Same(Vec<Vec<f32>>),
    /// Vectors by expert and layer.
    Each(Vec<Vec<Vec<f32>>>),
    /// Vectors drawn from a normal distribution when they are read.
    Normal,
    Uniform,
}

impl Gates {
    /// Random ones, which follow from the seed of the recipe.
    ///
    /// # Errors
    /// E001 where the recipe's are not random.
    pub fn random(recipe: &Recipe) -> Result<Self> {
        use super::GateMode::{Random, UniformRandom};

        match recipe.gate {
            Random => Ok(Self { rows: Rows::Normal }),
            UniformRandom => Ok(Self { rows: Rows::Uniform }),
            other => Err(Error::format(format!("gates of '{}' are not random", other.name()))),
        }
    }

    /// Computes the gates from the embeddings of prompts.
    ///
    /// `tokens` returns the tokens of a prompt, including the token that begins a text.
    ///
    /// # Errors
    /// E001 if the base has no embedding for a token. Also the errors of `tokens` and of reading.
    pub fn of_embeddings(
        recipe: &Recipe,
        base: &dyn CheckpointReader,
        tokens: impl Fn(&str) -> Result<Vec<i64>>,
    ) -> Result<Self> {
        let missing = || Error::format(format!("the base has no tensor '{EMBEDDING}'"));
        let tensor = base.tensors().iter().position(|info| info.name == EMBEDDING);
        let tensor = tensor.ok_or_else(missing)?;
        let [count, width] = *base.tensors()[tensor].shape.dims() else { return Err(missing()) };
        let sum = |prompts: &[String]| {
            let mut sum = vec![0.0_f32; usize::try_from(width).unwrap_or_default()];
            for prompt in prompts {
                // As the reference does: a text by itself, then the texts.
                let mut of_prompt = vec![0.0_f32; sum.len()];
                for token in tokens(prompt)? {
                    let row = u64::try_from(token).ok().filter(|row| *row < count);
                    let row = row.ok_or_else(|| {
                        let message = format!("token {token} of a prompt, of {count} tokens");
                        Error::format(message).for_tensor(EMBEDDING)
                    })?;
                    let row = values::read(base, tensor, row * width..(row + 1) * width)?;
                    add(&mut of_prompt, &row);
                }
                sum.iter_mut().zip(&of_prompt).for_each(|(sum, value)| *sum += value);
            }
            normalize(&mut sum);
            Ok(sum)
        };
        let rows = recipe.gated().map(|expert| difference(expert, sum)).collect::<Result<_>>()?;
        Ok(Self { rows: Rows::Same(rows) })
    }

    /// Computes the gates from hidden states.
    ///
    /// `states` returns one vector per layer: the hidden state of a prompt before the layer.
    ///
    /// # Errors
    /// E001 if the states of prompts do not match in size. Also the errors of `states`.
    pub fn of_states<E: From<Error>>(
        recipe: &Recipe,
        mut states: impl FnMut(&str) -> Result<Vec<Vec<f32>>, E>,
    ) -> Result<Self, E> {
        let mut rows = Vec::new();
        for expert in recipe.gated() {
            let mut layers = mean(&expert.positive, &mut states)?;
            if !expert.negative.is_empty() {
                let negative = mean(&expert.negative, &mut states)?;
                for (layer, negative) in layers.iter_mut().zip(&negative) {
                    layer.iter_mut().zip(negative).for_each(|(value, other)| *value -= other);
                }
            }
            layers.iter_mut().for_each(|layer| normalize(layer));
            rows.push(layers);
        }
        Ok(Self { rows: Rows::Each(rows) })
    }

    /// Returns the vector of an expert in a layer, or `None` if gates are random.
    pub(super) fn row(&self, expert: usize, layer: usize) -> Option<&[f32]> {
        match &self.rows {
            Rows::Same(rows) => rows.get(expert).map(Vec::as_slice),
            Rows::Each(rows) => rows.get(expert)?.get(layer).map(Vec::as_slice),
            Rows::Normal | Rows::Uniform => None,
        }
    }

    /// Returns `true` if all layers have the same vectors.
    pub(super) fn is_same(&self) -> bool {
        matches!(self.rows, Rows::Same(_))
    }
}

#[expect(clippy::cast_possible_truncation, reason = "embeddings are summed in single precision")]
fn add(sum: &mut [f32], row: &[f64]) {
    sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += *value as f32);
}

/// Returns the vector of an expert: its positive prompts minus its negative prompts, normalized.
fn difference(expert: &Expert, of: impl Fn(&[String]) -> Result<Vec<f32>>) -> Result<Vec<f32>> {
    let mut vector = of(&expert.positive)?;
    if !expert.negative.is_empty() {
        let negative = of(&expert.negative)?;
        vector.iter_mut().zip(&negative).for_each(|(value, other)| *value -= other);
    }
    normalize(&mut vector);
    Ok(vector)
}

fn mean<E: From<Error>>(
    prompts: &[String],
    states: &mut impl FnMut(&str) -> Result<Vec<Vec<f32>>, E>,
) -> Result<Vec<Vec<f32>>, E> {
    let mut sums: Option<Vec<Vec<f32>>> = None;
    for prompt in prompts {
        let found = states(prompt)?;
        let Some(sums) = &mut sums else {
            sums = Some(found);
            continue;
        };
        let fits = sums.len() == found.len()
            && sums.iter().zip(&found).all(|(sum, state)| sum.len() == state.len());
        if !fits {
            return Err(Error::format("states of prompts have different shapes").into());
        }
        for (sum, state) in sums.iter_mut().zip(&found) {
            sum.iter_mut().zip(state).for_each(|(sum, value)| *sum += value);
        }
    }
    let mut sums = sums.unwrap_or_default();
    let count = prompts.len() as f32;
    sums.iter_mut().flatten().for_each(|value| *value /= count);
    Ok(sums)
}

/// Normalizes a vector to length 1.
fn normalize(vector: &mut [f32]) {
    let square: f64 = vector.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
    #[expect(clippy::cast_possible_truncation, reason = "vectors have single precision")]
    let norm = (libm::sqrt(square) as f32).max(SMALL);
    vector.iter_mut().for_each(|value| *value /= norm);
}

/// A number of the normal distribution (Box and Muller 1958), for the element at this position.
pub(super) fn normal(draws: Draws, position: u64) -> f64 {
    // A number below 1 is not 0 as its distance from 1.
    let radius = libm::sqrt(-2.0 * libm::log(1.0 - draws.at(2 * position)));
    radius * libm::cos(core::f64::consts::TAU * draws.at(2 * position + 1))
}

/// A number of the distribution that new linear layers have, whose rows have this length.
pub(super) fn uniform(draws: Draws, position: u64, width: u64) -> f64 {
    let scale = libm::sqrt(1.0 / width.max(1) as f64);
    draws.at(position) * 2.0 * scale - scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_numbers_have_mean_zero_and_variance_one() {
        const COUNT: u64 = 200_000;

        let draws = Draws::of(3, "gate", 0);
        let mut moments = [0.0; 4];
        for position in 0..COUNT {
            let x = normal(draws, position);
            moments.iter_mut().zip(1..).for_each(|(sum, power)| *sum += x.powi(power));
        }
        let [mean, variance, skewness, kurtosis] = moments.map(|sum| sum / COUNT as f64);
        let n = COUNT as f64;
        // Five standard deviations each.
        assert!(mean.abs() < 5.0 / n.sqrt(), "{mean}");
        assert!((variance - 1.0).abs() < 5.0 * (2.0 / n).sqrt(), "{variance}");
        assert!(skewness.abs() < 5.0 * (15.0 / n).sqrt(), "{skewness}");
        assert!((kurtosis - 3.0).abs() < 5.0 * (96.0 / n).sqrt(), "{kurtosis}");
    }
}
