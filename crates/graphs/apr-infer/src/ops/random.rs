//! Random numbers: SplitMix64 (Steele, Lea and Flood 2014), and normal ones by Box and Muller's
//! method (1958).
//!
//! A node with a `seed` begins with its bits, one without with the run's seed
//! ([`RunLimits::seed`](crate::RunLimits)), both with how many times numbers were drawn in the run
//! before: the same model gives the same numbers at every run, and a loop others in every round.

use apr_core::{Error, Result};
use apr_graph::ElementType;

use super::cast::element;
use crate::Value;
use crate::call::Call;
use crate::cast::{from_doubles, from_integers};
use crate::operator::{Operator, moves};
use crate::shape::sizes;

pub(super) const TABLE: &[Operator] = &[
    moves("RandomNormal", |call| normal(call, false)),
    moves("RandomNormalLike", |call| normal(call, true)),
    moves("RandomUniform", |call| uniform(call, false)),
    moves("RandomUniformLike", |call| uniform(call, true)),
    moves("Bernoulli", bernoulli),
    moves("Multinomial", multinomial),
];

/// A source of random numbers.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// Creates the random number generator of a node.
    pub(crate) fn of(call: &mut Call<'_>) -> Self {
        let drawn = call.environment.draw();
        let seed = match call.attribute("seed") {
            Some(apr_graph::AttributeValue::Float(seed)) => u64::from(seed.to_bits()),
            Some(apr_graph::AttributeValue::Int(seed)) => *seed as u64,
            _ => call.environment.seed(),
        };
        Self(Self(seed).next() ^ Self(drawn).next())
    }

    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number from 0 to 1, without 1.
    pub(crate) fn number(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number of the normal distribution.
    fn normal(&mut self) -> f64 {
        let (radius, angle) = (1.0 - self.number(), self.number());
        (-2.0 * libm::log(radius)).sqrt() * libm::cos(2.0 * std::f64::consts::PI * angle)
    }
}

/// Steps of work that a number is.
const DRAW: usize = 30;

/// Returns the shape and type of the output, from the input or from attributes.
fn target(call: &Call<'_>, like: bool) -> Result<(Vec<usize>, ElementType)> {
    let (shape, default) = if like {
        let x = call.tensor(0)?;
        (x.shape().to_vec(), x.element())
    } else {
        (sizes(&call.ints("shape").unwrap_or_default())?, ElementType::F32)
    };
    let to = call.optional_int("dtype").map_or(Ok(default), element)?;
    let len = call.room(&shape, ElementType::F64)?;
    call.work(&[len, DRAW])?;
    Ok((shape, to))
}

fn draw(call: &mut Call<'_>, like: bool, of: impl Fn(&mut Random) -> f64) -> Result<Vec<Value>> {
    let (shape, to) = target(call, like)?;
    let mut random = Random::of(call);
    let values = (0..crate::shape::count(&shape)).map(|_| of(&mut random)).collect();
    Ok(vec![from_doubles(values, shape, to)?.into()])
}

fn normal(call: &mut Call<'_>, like: bool) -> Result<Vec<Value>> {
    let (mean, scale) = (f64::from(call.float("mean", 0.0)), f64::from(call.float("scale", 1.0)));
    draw(call, like, |random| mean + scale * random.normal())
}

fn uniform(call: &mut Call<'_>, like: bool) -> Result<Vec<Value>> {
    let (low, high) = (f64::from(call.float("low", 0.0)), f64::from(call.float("high", 1.0)));
    draw(call, like, |random| low + (high - low) * random.number())
}

fn bernoulli(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (shape, to) = target(call, true)?;
    let mut random = Random::of(call);
    let one = |p: f64| f64::from(u8::from(random.number() < p));
    let values = call.tensor(0)?.doubles()?.into_iter().map(one).collect();
    Ok(vec![from_doubles(values, shape, to)?.into()])
}

/// Draws classes with probabilities that are given as logarithms.
fn multinomial(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let &[rows, classes] = call.tensor(0)?.shape() else {
        return Err(Error::format("logarithms of shares have two dimensions"));
    };
    let samples = usize::try_from(call.int("sample_size", 1)).unwrap_or(0);
    let to = call.optional_int("dtype").map_or(Ok(ElementType::I32), element)?;
    let shape = vec![rows, samples];
    let len = call.room(&shape, ElementType::I64)?;
    call.work(&[len, DRAW])?;
    call.work(&[rows, classes, DRAW])?;
    if classes == 0 {
        return Err(Error::format("missing classes"));
    }

    let mut random = Random::of(call);
    let mut out = Vec::with_capacity(len);
    for row in call.tensor(0)?.doubles()?.chunks_exact(classes) {
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut sum = 0.0;
        let sums: Vec<f64> = row
            .iter()
            .map(|log| {
                sum += if largest.is_finite() { libm::exp(log - largest) } else { 1.0 };
                sum
            })
            .collect();
        for _ in 0..samples {
            let at = random.number() * sum;
            out.push(sums.partition_point(|sum| *sum <= at).min(classes - 1) as i64);
        }
    }
    Ok(vec![from_integers(out, shape, to)?.into()])
}

/// Returns 1 for each kept element and 0 for each dropped one. An element is dropped with the
/// probability `ratio`.
pub(super) fn kept(call: &mut Call<'_>, len: usize, ratio: f64) -> Result<Vec<u8>> {
    call.work(&[len, DRAW])?;
    let mut random = Random::of(call);
    Ok((0..len).map(|_| u8::from(random.number() >= ratio)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spread_as_they_should_be() {
        const MANY: usize = 40_000;

        let mut random = Random(7);
        let numbers: Vec<_> = (0..MANY).map(|_| random.number()).collect();
        assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)));
        let mean = numbers.iter().sum::<f64>() / MANY as f64;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
        let normal: Vec<_> = (0..MANY).map(|_| random.normal()).collect();
        let (mean, squares) = normal.iter().fold((0.0, 0.0), |(sum, squares), number| {
            (sum + number / MANY as f64, squares + number * number / MANY as f64)
        });
        assert!(mean.abs() < 0.02 && (squares - 1.0).abs() < 0.03, "{mean}, {squares}");
    }
}
