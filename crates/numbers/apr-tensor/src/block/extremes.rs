//! Least and greatest values of a block.
//!
//! Which of several lanes a value is compared in does not change the extremes, so these loops need
//! no fixed order; where the reference keeps the first of several candidates, the callers look for
//! it.

const LANES: usize = 16;

/// The least and the greatest of finite values. Which zero is returned is not specified.
#[inline(always)]
pub(super) fn least_and_greatest<const N: usize>(values: &[f32; N]) -> (f32, f32) {
    let (mut least, mut greatest) = ([f32::MAX; LANES], [f32::MIN; LANES]);
    for group in values.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            least[lane] = if group[lane] < least[lane] { group[lane] } else { least[lane] };
        }
        for lane in 0..LANES {
            greatest[lane] =
                if group[lane] > greatest[lane] { group[lane] } else { greatest[lane] };
        }
    }

    (
        fold(least, |a, b| if a < b { a } else { b }),
        fold(greatest, |a, b| if a > b { a } else { b }),
    )
}

/// The greatest magnitude; never a negative zero.
#[inline(always)]
pub(super) fn greatest_magnitude<const N: usize>(values: &[f32; N]) -> f32 {
    let mut greatest = [0.0_f32; LANES];
    for group in values.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            let magnitude = group[lane].abs();
            greatest[lane] = if magnitude > greatest[lane] { magnitude } else { greatest[lane] };
        }
    }
    fold(greatest, |a, b| if a > b { a } else { b })
}

/// The value of greatest magnitude, the first if there are several; positive zero if all are zero.
#[inline(always)]
pub(super) fn first_of_greatest_magnitude(values: &[f32; 32]) -> f32 {
    of_greatest_magnitude(least_and_greatest(values), values)
}

/// Returns the value of greatest magnitude, given the least and the greatest value.
#[inline(always)]
pub(super) fn of_greatest_magnitude((least, greatest): (f32, f32), values: &[f32; 32]) -> f32 {
    if greatest > -least {
        greatest
    } else if greatest < -least {
        least
    } else if greatest == 0.0 {
        0.0
    } else {
        values.iter().copied().find(|value| value.abs() == greatest).unwrap_or(greatest)
    }
}

/// Combines the halves, then the quarters, and so on.
#[inline(always)]
fn fold(mut lanes: [f32; LANES], combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] = combine(lanes[lane], lanes[lane + half]);
        }
        half /= 2;
    }
    lanes[0]
}
