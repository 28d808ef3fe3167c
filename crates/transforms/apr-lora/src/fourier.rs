//! FourierFT (arXiv 2405.03003): a change whose transform has a few numbers, at places that a seed
//! chose.

use std::collections::HashMap;
use std::f64::consts::TAU;

use crate::matrix::{Matrix, Product};

/// The most elements of a weight: torch draws places of larger ones in another way.
pub(crate) const MOST: u64 = u32::MAX as u64 / 20 - 1;

/// The most numbers of waves in memory: 256 MiB.
pub(crate) const IN_MEMORY: u64 = 1 << 26;

/// Returns the real part of the inverse transform of a matrix that is zero but for `spectrum`, as a
/// product: the wave of a frequency is the sum of two products of a column and a row.
pub(crate) fn product(spectrum: &[f32], [rows, columns]: [u64; 2], seed: u64) -> Option<Product> {
    let [high, wide] = [rows, columns].map(|size| usize::try_from(size).unwrap_or(usize::MAX));
    let rank = spectrum.len() * 2;
    let zeros =
        |rows: usize, columns: usize| Matrix { rows, columns, values: vec![0.0; rows * columns] };
    let (mut left, mut right) = (zeros(high, rank), zeros(rank, wide));
    let all = rows.checked_mul(columns)?;
    let places = chosen(all, spectrum.len(), seed);
    let wave = |number: u64, at: usize, size: u64| {
        let turns = (u128::from(number) * at as u128 % u128::from(size)) as f64;
        (TAU * turns / size as f64).sin_cos()
    };
    #[expect(clippy::cast_possible_truncation, reason = "PEFT computes in single precision")]
    let single = |number: f64| number as f32;
    for (number, (place, value)) in places.into_iter().zip(spectrum).enumerate() {
        let factor = f64::from(*value) / all as f64;
        for row in 0..high {
            let (sin, cos) = wave(place / columns, row, rows);
            let of_row = &mut left.values[row * rank + 2 * number..][..2];
            of_row.copy_from_slice(&[single(factor * cos), single(-factor * sin)]);
        }
        for column in 0..wide {
            let (sin, cos) = wave(place % columns, column, columns);
            right.values[2 * number * wide + column] = single(cos);
            right.values[(2 * number + 1) * wide + column] = single(sin);
        }
    }
    Product::new(left, right)
}

/// Returns the first numbers of torch's `randperm` of `all` numbers with this seed.
fn chosen(all: u64, count: usize, seed: u64) -> Vec<u64> {
    let mut generator = Mt19937::new(seed);
    let mut moved: HashMap<u64, u64> = HashMap::new();
    let mut first = Vec::with_capacity(count);
    for at in 0..count as u64 {
        if at + 1 == all {
            first.push(moved.get(&at).copied().unwrap_or(at));
            break;
        }
        let other = at + u64::from(generator.next()) % (all - at);
        let here = moved.get(&at).copied().unwrap_or(at);
        let there = moved.get(&other).copied().unwrap_or(other);
        moved.insert(other, here);
        moved.insert(at, there);
        first.push(there);
    }
    first
}

/// The generator of torch for the CPU (Matsumoto and Nishimura, 1998).
struct Mt19937 {
    state: Vec<u32>,
    at: usize,
}

impl Mt19937 {
    const LEN: usize = 624;

    fn new(seed: u64) -> Self {
        let [a, b, c, d, ..] = seed.to_le_bytes();
        let mut last = u32::from_le_bytes([a, b, c, d]);
        let mut state = vec![last];
        for at in (1..).take(Self::LEN - 1) {
            last = (last ^ last >> 30).wrapping_mul(1_812_433_253).wrapping_add(at);
            state.push(last);
        }
        Self { state, at: Self::LEN }
    }

    fn next(&mut self) -> u32 {
        if self.at == Self::LEN {
            for at in 0..Self::LEN {
                let (one, two) = (self.state[at], self.state[(at + 1) % Self::LEN]);
                let bits = one & 0x8000_0000 | two & 0x7fff_ffff;
                let odd = if two & 1 == 1 { 0x9908_b0df } else { 0 };
                self.state[at] = self.state[(at + 397) % Self::LEN] ^ bits >> 1 ^ odd;
            }
            self.at = 0;
        }
        let mut number = self.state[self.at];
        self.at += 1;
        number ^= number >> 11;
        number ^= number << 7 & 0x9d2c_5680;
        number ^= number << 15 & 0xefc6_0000;
        number ^ number >> 18
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_published_generator() {
        let mut generator = Mt19937::new(5489);
        assert_eq!(generator.next(), 3_499_211_612);
        let last = (0..9999).map(|_| generator.next()).last();
        assert_eq!(last, Some(4_123_659_995));
    }
}
