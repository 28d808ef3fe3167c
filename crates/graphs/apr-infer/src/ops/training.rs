//! A step of training: new weights and states, by the gradients of the old ones.

use apr_core::{Error, Result};
use apr_graph::ElementType;

use crate::Value;
use crate::call::Call;
use crate::cast::from_doubles;
use crate::operator::{Operator, computes};

pub(super) const TABLE: &[Operator] = &[
    computes("ai.onnx.preview.training::Adagrad", adagrad),
    computes("ai.onnx.preview.training::Adam", adam),
    computes("ai.onnx.preview.training::Momentum", momentum),
];

/// Runs `step` over the elements of each weight, with its gradient and `N` states. The inputs are
/// the rate, the count of steps, weights, gradients, and states; the outputs weights and states.
fn each<const N: usize>(
    call: &Call<'_>,
    step: impl Fn(f64, f64, [f64; N]) -> (f64, [f64; N]),
) -> Result<Vec<Value>> {
    let given = call.inputs.len().saturating_sub(2);
    let count = given / (2 + N);
    if given == 0 || !given.is_multiple_of(2 + N) {
        return Err(Error::format("weights, gradients and states are not as many as each other"));
    }

    let mut made: Vec<Vec<Value>> = vec![Vec::new(); 1 + N];
    for number in 0..count {
        let tensor = call.tensor(2 + number)?;
        let shape = tensor.shape().to_vec();
        let len = call.room(&[&shape[..], &[2 + 2 * N]].concat(), ElementType::F64)?;
        let of = |part: usize| call.tensor(2 + part * count + number)?.doubles();
        let (weights, gradients) = (of(0)?, of(1)?);
        let states = (0..N).map(|state| of(2 + state)).collect::<Result<Vec<_>>>()?;
        if gradients.len() != weights.len() || states.iter().any(|s| s.len() != weights.len()) {
            return Err(Error::format("a gradient or a state is not as large as its weight"));
        }

        let mut out = vec![Vec::with_capacity(len / (2 + 2 * N)); 1 + N];
        for at in 0..weights.len() {
            let state = std::array::from_fn(|number| states[number][at]);
            let (weight, state) = step(weights[at], gradients[at], state);
            out[0].push(weight);
            for (out, state) in out[1..].iter_mut().zip(state) {
                out.push(state);
            }
        }
        for (made, out) in made.iter_mut().zip(out) {
            made.push(from_doubles(out, shape.clone(), tensor.element())?.into());
        }
    }
    Ok(made.into_iter().flatten().collect())
}

fn setting(call: &Call<'_>, name: &str, default: f32) -> f64 {
    f64::from(call.float(name, default))
}

fn adagrad(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (rate, steps) = (call.tensor(0)?.number()?, call.tensor(1)?.number()?);
    let rate = rate / (1.0 + steps * setting(call, "decay_factor", 0.0));
    let (norm, epsilon) = (setting(call, "norm_coefficient", 0.0), setting(call, "epsilon", 1e-6));
    each(call, |weight, gradient, [squares]| {
        let gradient = norm * weight + gradient;
        let squares = squares + gradient * gradient;
        (weight - rate * gradient / (squares.sqrt() + epsilon), [squares])
    })
}

fn adam(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (rate, steps) = (call.tensor(0)?.number()?, call.tensor(1)?.number()?);
    let (alpha, beta) = (setting(call, "alpha", 0.9), setting(call, "beta", 0.999));
    let (norm, after) =
        (setting(call, "norm_coefficient", 0.0), setting(call, "norm_coefficient_post", 0.0));
    let epsilon = setting(call, "epsilon", 1e-6);
    let rate = if steps > 0.0 {
        rate * (1.0 - libm::pow(beta, steps)).sqrt() / (1.0 - libm::pow(alpha, steps))
    } else {
        rate
    };
    each(call, |weight, gradient, [mean, squares]| {
        let gradient = norm * weight + gradient;
        let mean = alpha * mean + (1.0 - alpha) * gradient;
        let squares = beta * squares + (1.0 - beta) * gradient * gradient;
        let weight = weight - rate * mean / (squares.sqrt() + epsilon);
        ((1.0 - after) * weight, [mean, squares])
    })
}

fn momentum(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (rate, steps) = (call.tensor(0)?.number()?, call.tensor(1)?.number()?);
    let (alpha, beta) = (setting(call, "alpha", 0.0), setting(call, "beta", 0.0));
    let norm = setting(call, "norm_coefficient", 0.0);
    let beta = if steps > 0.0 { beta } else { 1.0 };
    let looks_ahead = match call.text("mode", "standard").as_str() {
        "standard" => false,
        "nesterov" => true,
        other => return Err(Error::format(format!("unknown mode '{other}'"))),
    };
    each(call, |weight, gradient, [moving]| {
        let gradient = norm * weight + gradient;
        let moving = alpha * moving + beta * gradient;
        let step = if looks_ahead { gradient + alpha * moving } else { moving };
        (weight - rate * step, [moving])
    })
}
