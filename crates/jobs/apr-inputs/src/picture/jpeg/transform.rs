//! The inverse cosine transform in whole numbers (Loeffler, Ligtenberg and Moschytz 1989), with the
//! precision of libjpeg's accurate one: 13 bits behind the point, 2 of them between rows and
//! columns.

use super::Component;

const BITS: u32 = 13;
const BETWEEN: u32 = 2;

/// A constant with 13 bits behind the point.
const fn fixed(value: f64) -> i32 {
    #[expect(clippy::cast_possible_truncation, reason = "constants of a few units")]
    let fixed = (value * 8192.0 + 0.5) as i32;
    fixed
}

/// The samples of a plane's blocks, row by row, as long as the plane is wide.
pub(super) fn samples(plane: &Component) -> Option<Vec<u8>> {
    let table = plane.quantization.as_ref()?;
    let mut samples = vec![0; plane.width * plane.height];
    for (number, block) in plane.coefficients.chunks_exact(64).enumerate() {
        let (x, y) = (8 * (number % plane.blocks.0), 8 * (number / plane.blocks.0));
        if x >= plane.width || y >= plane.height {
            continue;
        }
        let made = inverse(block, table);
        let width = (plane.width - x).min(8);
        for (line, row) in made.chunks_exact(8).enumerate().take(plane.height - y) {
            let at = (y + line) * plane.width + x;
            samples[at..at + width].copy_from_slice(&row[..width]);
        }
    }
    Some(samples)
}

/// The samples of a block.
fn inverse(block: &[i16], table: &[u16; 64]) -> [u8; 64] {
    let mut values = [0_i32; 64];
    for (value, (coefficient, step)) in values.iter_mut().zip(block.iter().zip(table)) {
        *value = i32::from(*coefficient).wrapping_mul(i32::from(*step));
    }
    for column in 0..8 {
        let line: [i32; 8] = std::array::from_fn(|row| values[8 * row + column]);
        let made = line_of(line, BITS - BETWEEN);
        (0..8).for_each(|row| values[8 * row + column] = made[row]);
    }

    let mut samples = [0; 64];
    for (row, made) in values.chunks_exact(8).zip(samples.chunks_exact_mut(8)) {
        let line: [i32; 8] = std::array::from_fn(|column| row[column]);
        for (sample, value) in made.iter_mut().zip(line_of(line, BITS + BETWEEN + 3)) {
            *sample = u8::try_from(value.saturating_add(128).clamp(0, 255)).unwrap_or_default();
        }
    }
    samples
}

/// Transforms eight values, and removes their lowest `bits` bits. Values from damaged files may
/// wrap.
fn line_of(line: [i32; 8], bits: u32) -> [i32; 8] {
    let by = |value: i32, factor: f64| value.wrapping_mul(fixed(factor));
    let add = i32::wrapping_add;

    // Even part.
    let turned = by(add(line[2], line[6]), 0.541_196_100);
    let low = add(turned, by(line[6], 1.847_759_065).wrapping_neg());
    let high = add(turned, by(line[2], 0.765_366_865));
    let sum = add(line[0], line[4]) << BITS;
    let difference = line[0].wrapping_sub(line[4]) << BITS;
    let even = [
        add(sum, high),
        add(difference, low),
        difference.wrapping_sub(low),
        sum.wrapping_sub(high),
    ];

    // Odd part.
    let [a, b, c, d] = [line[7], line[5], line[3], line[1]];
    let all = by(add(add(a, c), add(b, d)), 1.175_875_602);
    let outer = by(add(a, d), 0.899_976_223).wrapping_neg();
    let inner = by(add(b, c), 2.562_915_447).wrapping_neg();
    let third = add(all, by(add(a, c), 1.961_570_560).wrapping_neg());
    let fourth = add(all, by(add(b, d), 0.390_180_644).wrapping_neg());
    let odd = [
        add(by(d, 1.501_321_110), add(outer, fourth)),
        add(by(c, 3.072_711_026), add(inner, third)),
        add(by(b, 2.053_119_869), add(inner, fourth)),
        add(by(a, 0.298_631_336), add(outer, third)),
    ];

    let round = |value: i32| add(value, 1 << (bits - 1)) >> bits;
    let mut made = [0; 8];
    for at in 0..4 {
        made[at] = round(add(even[at], odd[at]));
        made[7 - at] = round(even[at].wrapping_sub(odd[at]));
    }
    made
}
