//! Planes of colours at the size of the picture, and red, green and blue of them.
//!
//! Where a plane has half of the samples, each new one is three parts of the nearer and one of the
//! farther; halves are rounded up and down by turns, so that no plane gets brighter. Other ratios
//! repeat samples.

/// A plane, enlarged by whole numbers across and down, and cut to the picture's size.
pub(super) fn enlarged(
    samples: &[u8],
    (width, height): (usize, usize),
    ratio: (usize, usize),
    size: (usize, usize),
) -> Vec<u8> {
    let rows = |at: usize| &samples[at * width..(at + 1) * width];

    // The nearer row, and the one behind it, for a row of the picture.
    let pair = |at: usize| {
        let near = at / 2;
        let far =
            if at.is_multiple_of(2) { near.saturating_sub(1) } else { (near + 1).min(height - 1) };
        (rows(near), rows(far))
    };
    let mut made = Vec::with_capacity(size.0 * size.1);
    for at in 0..size.1 {
        let row = match ratio {
            (1, 1) => rows(at).to_vec(),
            (2, 1) if width > 2 => wide(rows(at)),
            (2, 2) if width > 2 => {
                let (near, far) = pair(at);
                wide_and_high(near, far)
            }
            (1, 2) => {
                let (near, far) = pair(at);
                high(near, far, if at.is_multiple_of(2) { 1 } else { 2 })
            }
            (across, down) => repeated(rows(at / down), across),
        };
        made.extend(&row[..size.0]);
    }
    made
}

fn repeated(row: &[u8], times: usize) -> Vec<u8> {
    row.iter().flat_map(|sample| std::iter::repeat_n(*sample, times)).collect()
}

/// Returns a sum of samples without its lowest `bits` bits.
fn byte(sum: u32, bits: u32) -> u8 {
    u8::try_from(sum >> bits).unwrap_or(u8::MAX)
}

fn wide(row: &[u8]) -> Vec<u8> {
    let at = |place: usize| u32::from(row[place]);
    let last = row.len() - 1;
    let mut made = Vec::with_capacity(2 * row.len());
    for place in 0..=last {
        let near = 3 * at(place);
        made.push(if place == 0 { row[0] } else { byte(near + at(place - 1) + 1, 2) });
        made.push(if place == last { row[last] } else { byte(near + at(place + 1) + 2, 2) });
    }
    made
}

fn high(near: &[u8], far: &[u8], rounding: u32) -> Vec<u8> {
    let sample =
        |(near, far): (&u8, &u8)| byte(3 * u32::from(*near) + u32::from(*far) + rounding, 2);
    near.iter().zip(far).map(sample).collect()
}

fn wide_and_high(near: &[u8], far: &[u8]) -> Vec<u8> {
    let sum = |(near, far): (&u8, &u8)| 3 * u32::from(*near) + u32::from(*far);
    let sums: Vec<u32> = near.iter().zip(far).map(sum).collect();
    let last = sums.len() - 1;
    let mut made = Vec::with_capacity(2 * sums.len());
    for (place, here) in sums.iter().enumerate() {
        let before = if place == 0 { *here } else { sums[place - 1] };
        let behind = if place == last { *here } else { sums[place + 1] };
        made.push(byte(3 * here + before + 8, 4));
        made.push(byte(3 * here + behind + 7, 4));
    }
    made
}

/// Red, green and blue, with 16 bits behind the point (JFIF 1.02).
pub(super) fn colours(planes: &[Vec<u8>], is_rgb: bool) -> Option<Vec<u8>> {
    let [first, rest @ ..] = planes else { return None };
    let [blue, red] = rest else {
        return Some(first.iter().flat_map(|sample| [*sample; 3]).collect());
    };
    let pixels = first.iter().zip(blue).zip(red);
    Some(match is_rgb {
        true => pixels.flat_map(|((r, g), b)| [*r, *g, *b]).collect(),
        false => pixels.flat_map(|((y, cb), cr)| pixel(*y, *cb, *cr)).collect(),
    })
}

fn pixel(y: u8, blue: u8, red: u8) -> [u8; 3] {
    const HALF: i32 = 1 << 15;

    let (y, blue, red) = (i32::from(y), i32::from(blue) - 128, i32::from(red) - 128);
    let clamped = |value: i32| u8::try_from(value.clamp(0, 255)).unwrap_or_default();
    [
        clamped(y + ((91_881 * red + HALF) >> 16)),
        clamped(y + ((-22_554 * blue - 46_802 * red + HALF) >> 16)),
        clamped(y + ((116_130 * blue + HALF) >> 16)),
    ]
}
