//! AdamW: Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101).

use std::sync::Mutex;

use apr_core::Result;
use apr_infer::{Tensor, Workers};

use crate::DistillOptions;

/// Decay rates of the two moments.
const BETAS: [f32; 2] = [0.9, 0.98];
const EPSILON: f32 = 1e-8;

/// The moments of one parameter.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Moments {
    pub(crate) first: Vec<f32>,
    pub(crate) second: Vec<f32>,
}

impl Moments {
    pub(crate) fn zeros(len: usize) -> Self {
        Self { first: vec![0.0; len], second: vec![0.0; len] }
    }
}

/// One step of all parameters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AdamW {
    rate: f32,
    decay: f32,
    /// Factor for the gradients, which limits their total norm to the allowed maximum.
    scale: f32,
    corrections: [f32; 2],
}

impl AdamW {
    /// Creates the optimizer for a step, counted from 0. `norm` is the norm of all gradients.
    pub(crate) fn new(options: &DistillOptions, step: u64, steps: u64, norm: f64) -> Self {
        let power = i32::try_from(step + 1).unwrap_or(i32::MAX);
        #[expect(clippy::cast_possible_truncation, reason = "a factor of at most 1")]
        let scale = (f64::from(options.clip) / norm.max(1e-12)).min(1.0) as f32;
        Self {
            rate: options.rate(step, steps),
            decay: options.weight_decay,
            scale,
            corrections: BETAS.map(|beta| 1.0 - beta.powi(power)),
        }
    }

    /// Changes parameters by their gradients, each on a thread of its own.
    pub(crate) fn apply(
        &self,
        parameters: &mut [Tensor],
        moments: &mut [Moments],
        gradients: &[Tensor],
        workers: &dyn Workers,
    ) -> Result<()> {
        let mut changed = Vec::with_capacity(parameters.len());
        for parameter in parameters.iter_mut() {
            let shape = parameter.shape().to_vec();
            let values = std::mem::replace(parameter, Tensor::scalar(0.0_f32));
            changed.push((shape, values.into_values::<f32>()?));
        }

        let gradients = gradients.iter().map(Tensor::values).collect::<Result<Vec<&[f32]>>>()?;
        let tasks: Vec<_> = changed
            .iter_mut()
            .zip(moments)
            .zip(&gradients)
            .map(|(((shape, values), moments), gradient)| {
                Mutex::new(Some((shape.len() > 1, values, moments, *gradient)))
            })
            .collect();
        workers.run(tasks.len(), &|at| {
            let task = tasks[at].lock().ok().and_then(|mut task| task.take());
            if let Some((is_matrix, values, moments, gradient)) = task {
                self.update(if is_matrix { self.decay } else { 0.0 }, values, moments, gradient);
            }
        });
        drop(tasks);

        for (parameter, (shape, values)) in parameters.iter_mut().zip(changed) {
            *parameter = Tensor::new(shape, values)?;
        }
        Ok(())
    }

    fn update(&self, decay: f32, values: &mut [f32], moments: &mut Moments, gradient: &[f32]) {
        let kept = 1.0 - self.rate * decay;
        let step = self.rate / self.corrections[0];
        let root = self.corrections[1].sqrt();
        let moments = moments.first.iter_mut().zip(&mut moments.second);
        for ((value, (first, second)), gradient) in values.iter_mut().zip(moments).zip(gradient) {
            let gradient = gradient * self.scale;
            *first = BETAS[0] * *first + (1.0 - BETAS[0]) * gradient;
            *second = BETAS[1] * *second + (1.0 - BETAS[1]) * gradient * gradient;
            *value = *value * kept - step * *first / (second.sqrt() / root + EPSILON);
        }
    }
}

#[cfg(test)]
mod tests {
    use apr_infer::Alone;

    use super::*;

    #[test]
    fn two_steps_match_torch() {
        // torch.optim.AdamW(lr=0.1, betas=(0.9, 0.98), weight_decay=0.1), gradients below.
        let options = DistillOptions {
            learning_rate: 0.1,
            warmup: Some(0),
            clip: 1e9,
            ..DistillOptions::default()
        };
        let mut parameters = vec![Tensor::new(vec![1, 2], vec![1.0_f32, -2.0]).unwrap()];
        let mut moments = vec![Moments::zeros(2)];
        for (step, gradient) in [[0.5_f32, -0.25], [0.125, 1.0]].into_iter().enumerate() {
            let adamw = AdamW::new(&options, step as u64, u64::MAX, 1.0);
            let gradient = [Tensor::new(vec![1, 2], gradient.to_vec()).unwrap()];
            adamw.apply(&mut parameters, &mut moments, &gradient, &Alone).unwrap();
        }
        let found = parameters[0].values::<f32>().unwrap();
        let expected = [0.797_686_04, -1.916_914_9];
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        }
    }
}
