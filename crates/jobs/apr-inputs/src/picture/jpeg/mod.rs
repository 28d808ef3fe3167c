//! JPEG with the pixels of libjpeg-turbo, which Pillow and so transformers read it with: ITU T.81,
//! sequential and progressive, with Huffman codes, 8 bits, grey or three colours.
//!
//! ```text
//! markers ─▶ scans: coefficients of all blocks ─▶ inverse transform ─▶ planes at full size ─▶ RGB
//! ```
//!
//! The standard leaves the last bit to the decoder, and models see the difference: libjpeg's
//! transform in whole numbers, its smooth enlargement of colours and its rounding are in
//! `transform.rs` and `planes.rs`. Whatever else there is (arithmetic codes, 12 bits, CMYK) and
//! whatever is damaged is left to the library that reads the other kinds of pictures.

mod bits;
mod planes;
mod scan;
mod transform;

use bits::Huffman;
use scan::Scan;

use super::Picture;

/// Scans of a picture: encoders make some ten.
const MAX_SCANS: usize = 128;
/// The order in which coefficients are stored: positions in a block, row by row.
const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20,
    13, 6, 7, 14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59,
    52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
];

/// One of the planes of a picture.
#[derive(Debug, Default)]
struct Component {
    id: u8,
    /// Samples across and down for each unit of the picture.
    across: usize,
    down: usize,
    /// Number of the quantization table.
    table: usize,
    /// Contents of that table at the first scan of the plane.
    quantization: Option<[u16; 64]>,
    /// Samples in a row, and rows.
    width: usize,
    height: usize,
    /// Blocks in a row and rows of blocks, up to whole units.
    blocks: (usize, usize),
    coefficients: Vec<i16>,
}

/// Contents of a file that were read so far.
#[derive(Debug, Default)]
struct Decoder {
    width: usize,
    height: usize,
    is_progressive: bool,
    components: Vec<Component>,
    quantization: [Option<[u16; 64]>; 4],
    dc: [Option<Huffman>; 4],
    ac: [Option<Huffman>; 4],
    /// Units between two restarts; 0 for none.
    restart: usize,
    has_jfif: bool,
    /// The transform that Adobe's marker names.
    adobe: Option<u8>,
    scans: usize,
}

/// Decodes a JPEG file. Returns `None` if it is not one of the supported kinds, is damaged, or
/// takes more than `most` bytes of memory.
pub(super) fn decode(bytes: &[u8], most: u64) -> Option<Picture> {
    let mut decoder = Decoder::default();
    let mut at = if bytes.starts_with(&[0xff, 0xd8]) { 2 } else { return None };
    loop {
        // Bytes before a marker are fill.
        while *bytes.get(at)? != 0xff || matches!(bytes.get(at + 1)?, 0xff | 0x00) {
            at += 1;
        }
        let marker = *bytes.get(at + 1)?;
        at += 2;
        match marker {
            0xd9 => break,
            0x01 | 0xd0..=0xd7 => continue,
            _ => {}
        }

        let len = usize::from(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let segment = bytes.get(at + 2..at + len)?;
        at += len;
        match marker {
            0xc0..=0xc2 => decoder.frame(segment, marker == 0xc2, most)?,
            0xc4 => decoder.huffman(segment)?,
            0xc3 | 0xc5..=0xcf => return None,
            0xda => at = decoder.scan(segment, bytes, at)?,
            0xdb => decoder.quantization(segment)?,
            0xdd => decoder.restart = usize::from(u16_at(segment, 0)?),
            0xe0 => decoder.has_jfif |= segment.starts_with(b"JFIF\0"),
            0xee if segment.starts_with(b"Adobe") => decoder.adobe = segment.get(11).copied(),
            _ => {}
        }
    }
    decoder.picture()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

impl Decoder {
    fn frame(&mut self, segment: &[u8], is_progressive: bool, most: u64) -> Option<()> {
        let (header, planes) = segment.split_at_checked(6)?;
        let count = usize::from(header[5]);
        if header[0] != 8 || !self.components.is_empty() || !matches!(count, 1 | 3) {
            return None;
        }
        self.height = usize::from(u16_at(header, 1)?);
        self.width = usize::from(u16_at(header, 3)?);
        if self.width == 0 || self.height == 0 {
            return None;
        }
        self.is_progressive = is_progressive;
        for plane in planes.chunks_exact(3).take(count) {
            let (across, down) = (usize::from(plane[1] >> 4), usize::from(plane[1] & 15));
            if !(1..=4).contains(&across) || !(1..=4).contains(&down) {
                return None;
            }
            self.components.push(Component {
                id: plane[0],
                across,
                down,
                table: usize::from(plane[2]),
                ..Component::default()
            });
        }
        if self.components.len() != count {
            return None;
        }
        self.lay_out(most)
    }

    /// Sizes of the planes.
    fn lay_out(&mut self, most: u64) -> Option<()> {
        let (across, down) = self.largest();
        let units = (self.width.div_ceil(8 * across), self.height.div_ceil(8 * down));
        let mut needed = 3 * (self.width as u64) * (self.height as u64);
        for plane in &mut self.components {
            // Fractions of the largest plane have no rule in libjpeg.
            if !across.is_multiple_of(plane.across) || !down.is_multiple_of(plane.down) {
                return None;
            }
            plane.width = (self.width * plane.across).div_ceil(across);
            plane.height = (self.height * plane.down).div_ceil(down);
            plane.blocks = (units.0 * plane.across, units.1 * plane.down);

            // Coefficients, samples, and the plane at the full size.
            needed += 64 * 3 * (plane.blocks.0 as u64) * (plane.blocks.1 as u64);
            needed += (self.width as u64) * (self.height as u64);
        }
        if needed > most {
            return None;
        }
        for plane in &mut self.components {
            plane.coefficients = vec![0; 64 * plane.blocks.0 * plane.blocks.1];
        }
        Some(())
    }

    /// The most samples across and down.
    fn largest(&self) -> (usize, usize) {
        let across = self.components.iter().map(|plane| plane.across).max().unwrap_or(1);
        (across, self.components.iter().map(|plane| plane.down).max().unwrap_or(1))
    }

    fn quantization(&mut self, mut segment: &[u8]) -> Option<()> {
        while let Some((kind, rest)) = segment.split_first() {
            let is_wide = kind >> 4 == 1;
            let len = if is_wide { 128 } else { 64 };
            let (values, rest) = rest.split_at_checked(len)?;
            let mut table = [0; 64];
            for (at, place) in ZIGZAG.iter().enumerate() {
                table[usize::from(*place)] =
                    if is_wide { u16_at(values, 2 * at)? } else { values[at].into() };
            }
            *self.quantization.get_mut(usize::from(kind & 15))? = Some(table);
            segment = rest;
        }
        Some(())
    }

    fn huffman(&mut self, mut segment: &[u8]) -> Option<()> {
        while let Some((kind, rest)) = segment.split_first() {
            let (counts, rest) = rest.split_at_checked(16)?;
            let total = counts.iter().map(|count| usize::from(*count)).sum();
            let (symbols, rest) = rest.split_at_checked(total)?;
            let table = Huffman::new(counts.try_into().ok()?, symbols)?;
            let tables = if kind >> 4 == 0 { &mut self.dc } else { &mut self.ac };
            *tables.get_mut(usize::from(kind & 15))? = Some(table);
            segment = rest;
        }
        Some(())
    }

    /// Reads a scan, and returns the offset at which the next marker may be.
    fn scan(&mut self, segment: &[u8], bytes: &[u8], at: usize) -> Option<usize> {
        self.scans += 1;
        let (count, rest) = segment.split_first()?;
        let (planes, last) = rest.split_at_checked(2 * usize::from(*count))?;
        let &[start, end, approximation] = last.first_chunk::<3>()?;
        if self.scans > MAX_SCANS || self.components.is_empty() || planes.is_empty() {
            return None;
        }

        let mut chosen: Vec<(usize, usize, usize)> = Vec::new();
        for plane in planes.chunks_exact(2) {
            let place = self.components.iter().position(|own| own.id == plane[0])?;
            let own = &mut self.components[place];
            if own.quantization.is_none() {
                own.quantization = *self.quantization.get(own.table)?;
            }
            let (dc, ac) = (usize::from(plane[1] >> 4), usize::from(plane[1] & 15));
            if dc > 3 || ac > 3 || chosen.iter().any(|(other, ..)| *other == place) {
                return None;
            }
            chosen.push((place, dc, ac));
        }

        let band = if self.is_progressive { (start, end) } else { (0, 63) };
        let shifts = if self.is_progressive { approximation } else { 0 };
        let scan = Scan { chosen, band, high: shifts >> 4, low: shifts & 15 };
        let read = scan.read(self, bytes.get(at..)?)?;
        Some(at + read)
    }

    fn picture(self) -> Option<Picture> {
        let (across, down) = self.largest();
        let is_rgb = match (self.has_jfif, self.adobe) {
            (true, _) => false,
            (false, Some(transform)) => transform == 0,
            (false, None) => self.components.iter().map(|plane| plane.id).eq(*b"RGB"),
        };
        let size = (self.width, self.height);
        let mut planes = Vec::with_capacity(3);
        for plane in self.components {
            let ratio = (across / plane.across, down / plane.down);
            let samples = transform::samples(&plane)?;
            planes.push(planes::enlarged(&samples, (plane.width, plane.height), ratio, size));
        }
        let pixels = planes::colours(&planes, is_rgb)?;
        Some(Picture { width: size.0, height: size.1, pixels })
    }
}
