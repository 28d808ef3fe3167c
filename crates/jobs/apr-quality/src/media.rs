//! Sounds and pictures as files that are made: WAV of 16 bits, BMP of 24.

/// Bytes before the pixels of a BMP file.
const BMP_HEADER: u32 = 54;

/// A WAV file of one channel with 16-bit samples.
#[must_use]
pub fn wav(rate: u32, samples: &[i16]) -> Vec<u8> {
    // A length that does not fit stands for a stream whose length is not known.
    let len = u32::try_from(samples.len() * 2).unwrap_or(u32::MAX);
    let mut file = Vec::with_capacity(44 + samples.len() * 2);
    file.extend(b"RIFF");
    file.extend(len.saturating_add(36).to_le_bytes());
    file.extend(b"WAVEfmt ");
    file.extend(16_u32.to_le_bytes());
    file.extend([1_u16, 1].map(u16::to_le_bytes).concat());
    file.extend([rate, rate.saturating_mul(2)].map(u32::to_le_bytes).concat());
    file.extend([2_u16, 16].map(u16::to_le_bytes).concat());
    file.extend(b"data");
    file.extend(len.to_le_bytes());
    samples.iter().for_each(|sample| file.extend(sample.to_le_bytes()));
    file
}

/// Writes a BMP file of 24-bit pixels, or returns `None` for a file beyond the format's 4 GiB.
///
/// `pixel` returns the three bytes of a pixel, given its column and row in file order (lowest row
/// first).
#[must_use]
pub fn bmp(width: u32, height: u32, mut pixel: impl FnMut(u32, u32) -> [u8; 3]) -> Option<Vec<u8>> {
    let row = width.checked_mul(3)?.checked_next_multiple_of(4)?;
    let len = row.checked_mul(height)?;
    let size = BMP_HEADER.checked_add(len)?;
    let mut file = Vec::with_capacity(usize::try_from(size).ok()?);
    file.extend(b"BM");
    file.extend([size, 0, BMP_HEADER, 40, width, height].map(u32::to_le_bytes).concat());
    file.extend([1_u16, 24].map(u16::to_le_bytes).concat());
    file.extend([0, len, 2835, 2835, 0, 0].map(u32::to_le_bytes).concat());
    let padding = usize::try_from(row - width * 3).ok()?;
    for y in 0..height {
        (0..width).for_each(|x| file.extend(pixel(x, y)));
        file.resize(file.len() + padding, 0);
    }
    Some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_match_the_files() {
        let file = wav(16_000, &[1, -1, 256]);
        assert_eq!(file.len(), 50);
        assert_eq!(file[4..8], 42_u32.to_le_bytes());
        assert_eq!(file[44..], [1, 0, 0xff, 0xff, 0, 1]);

        // Rows are padded to four bytes.
        let file = bmp(2, 3, |x, y| [u8::try_from(10 * y + x).unwrap(); 3]).unwrap();
        assert_eq!((file.len(), &file[2..6]), (78, &78_u32.to_le_bytes()[..]));
        assert_eq!(file[54..70], [0, 0, 0, 1, 1, 1, 0, 0, 10, 10, 10, 11, 11, 11, 0, 0]);
    }

    #[test]
    fn an_image_beyond_4_gib_is_rejected() {
        for (width, height) in [(u32::MAX, 1), (1 << 30, 1 << 30), (1 << 16, 1 << 16)] {
            assert_eq!(bmp(width, height, |_, _| [0; 3]), None);
        }
    }
}
