//! One scan: the coefficients of some planes, or some bits of some of them.

use super::bits::{Bits, Huffman};
use super::{Component, Decoder, ZIGZAG};

/// Header of a scan.
#[derive(Debug)]
pub(super) struct Scan {
    /// Planes, and the numbers of their tables.
    pub(super) chosen: Vec<(usize, usize, usize)>,
    /// First and last coefficient.
    pub(super) band: (u8, u8),
    /// Bits that earlier scans left out; 0 for a first scan.
    pub(super) high: u8,
    /// Bits that this one leaves out.
    pub(super) low: u8,
}

/// Settings of the scan for one block.
struct Coding<'c> {
    dc: Option<&'c Huffman>,
    ac: Option<&'c Huffman>,
    first: usize,
    last: usize,
    is_first: bool,
    low: u8,
    is_progressive: bool,
}

impl Scan {
    /// Reads the data of a scan, and returns their number of bytes.
    pub(super) fn read(&self, decoder: &mut Decoder, bytes: &[u8]) -> Option<usize> {
        let (first, last) = (usize::from(self.band.0), usize::from(self.band.1));
        let (dc, ac) = (decoder.dc.clone(), decoder.ac.clone());
        if first > last || last > 63 || self.low > 13 {
            return None;
        }
        let is_progressive = decoder.is_progressive;
        if is_progressive && (first == 0 && last > 0 || first > 0 && self.chosen.len() > 1) {
            return None;
        }
        let coding = |(_, of_dc, of_ac): (usize, usize, usize)| Coding {
            dc: dc[of_dc].as_ref(),
            ac: ac[of_ac].as_ref(),
            first,
            last,
            is_first: self.high == 0,
            low: self.low,
            is_progressive,
        };

        let codings: Vec<Coding<'_>> = self.chosen.iter().copied().map(coding).collect();
        let mut state =
            State { bits: Bits::new(bytes), before: vec![0; self.chosen.len()], run: 0 };
        let (across, down) = decoder.largest();
        let units = match self.chosen[..] {
            // A plane alone has the blocks that it needs, and no more.
            [(place, ..)] => {
                let plane = &decoder.components[place];
                (plane.width.div_ceil(8), plane.height.div_ceil(8))
            }
            _ => (decoder.width.div_ceil(8 * across), decoder.height.div_ceil(8 * down)),
        };
        for unit in 0..units.0 * units.1 {
            if decoder.restart > 0 && unit > 0 && unit.is_multiple_of(decoder.restart) {
                state.bits.restart()?;
                state.before.fill(0);
                state.run = 0;
            }
            let (column, row) = (unit % units.0, unit / units.0);
            self.unit(decoder, &codings, &mut state, (column, row))?;
        }
        Some(state.bits.read())
    }

    /// Reads the blocks of a unit.
    fn unit(
        &self,
        decoder: &mut Decoder,
        codings: &[Coding<'_>],
        state: &mut State<'_>,
        (column, row): (usize, usize),
    ) -> Option<()> {
        let is_alone = self.chosen.len() == 1;
        for (number, (place, ..)) in self.chosen.iter().enumerate() {
            let plane = &mut decoder.components[*place];
            let (across, down) = if is_alone { (1, 1) } else { (plane.across, plane.down) };
            for within in 0..across * down {
                let x = column * across + within % across;
                let y = row * down + within / across;
                let block = block_of(plane, x, y)?;
                state.block(block, &codings[number], number)?;
            }
        }
        Some(())
    }
}

fn block_of(plane: &mut Component, x: usize, y: usize) -> Option<&mut [i16; 64]> {
    let at = 64 * (y * plane.blocks.0 + x);
    plane.coefficients.get_mut(at..at + 64)?.try_into().ok()
}

/// State that is kept from block to block.
struct State<'b> {
    bits: Bits<'b>,
    /// The first coefficient of the block before, for each plane.
    before: Vec<i32>,
    /// Number of following blocks without data in this scan.
    run: u32,
}

#[expect(clippy::cast_possible_truncation, reason = "coefficients that do not fit are damaged")]
fn narrow(value: i32) -> i16 {
    value as i16
}

impl State<'_> {
    fn block(&mut self, block: &mut [i16; 64], coding: &Coding<'_>, plane: usize) -> Option<()> {
        if !coding.is_progressive {
            self.first_dc(block, coding, plane)?;
            return self.sequential(block, coding.ac?);
        }
        match (coding.first, coding.is_first) {
            (0, true) => self.first_dc(block, coding, plane),
            (0, false) => {
                let bit = self.bits.take(1)?;
                block[0] |= narrow(i32::try_from(bit).ok()? << coding.low);
                Some(())
            }
            (_, true) => self.first_ac(block, coding),
            (_, false) => self.refine(block, coding),
        }
    }

    fn first_dc(&mut self, block: &mut [i16; 64], coding: &Coding<'_>, plane: usize) -> Option<()> {
        let len = self.bits.symbol(coding.dc?)?;
        let difference = self.bits.number(len.into())?;
        self.before[plane] = self.before[plane].wrapping_add(difference);
        block[0] = narrow(self.before[plane] << coding.low);
        Some(())
    }

    fn sequential(&mut self, block: &mut [i16; 64], table: &Huffman) -> Option<()> {
        let mut at = 1;
        while at < 64 {
            let symbol = self.bits.symbol(table)?;
            let (zeros, len) = (usize::from(symbol >> 4), u32::from(symbol & 15));
            match (zeros, len) {
                (15, 0) => at += 16,
                (_, 0) => break,
                _ => {
                    at += zeros;
                    let value = self.bits.number(len)?;
                    block[usize::from(*ZIGZAG.get(at)?)] = narrow(value);
                    at += 1;
                }
            }
        }
        Some(())
    }

    fn first_ac(&mut self, block: &mut [i16; 64], coding: &Coding<'_>) -> Option<()> {
        if self.run > 0 {
            self.run -= 1;
            return Some(());
        }
        let mut at = coding.first;
        while at <= coding.last {
            let symbol = self.bits.symbol(coding.ac?)?;
            let (zeros, len) = (u32::from(symbol >> 4), u32::from(symbol & 15));
            match (zeros, len) {
                (15, 0) => at += 16,
                (_, 0) => {
                    self.run = (1 << zeros) - 1 + self.bits.take(zeros)?;
                    break;
                }
                _ => {
                    at += zeros as usize;
                    let value = self.bits.number(len)?;
                    block[usize::from(*ZIGZAG.get(at)?)] = narrow(value << coding.low);
                    at += 1;
                }
            }
        }
        Some(())
    }

    /// Adds a bit to each coefficient that is there, and new ones between them.
    fn refine(&mut self, block: &mut [i16; 64], coding: &Coding<'_>) -> Option<()> {
        let bit = 1_i16 << coding.low;
        let mut at = coding.first;
        if self.run == 0 {
            while at <= coding.last {
                let symbol = self.bits.symbol(coding.ac?)?;
                let (zeros, len) = (u32::from(symbol >> 4), symbol & 15);
                let new = match (zeros, len) {
                    (15, 0) => 0,
                    (_, 0) => {
                        self.run = (1 << zeros) + self.bits.take(zeros)?;
                        break;
                    }
                    _ if self.bits.take(1)? == 1 => bit,
                    _ => -bit,
                };
                at = self.skip(block, coding, at, zeros)?;
                if new != 0 {
                    block[usize::from(*ZIGZAG.get(at)?)] = new;
                }
                at += 1;
            }
        }

        if self.run > 0 {
            self.run -= 1;
            self.skip(block, coding, at, u32::MAX)?;
        }
        Some(())
    }

    /// Skips `zeros` zeros and refines the values between them. Returns the position of the zero
    /// after them.
    fn skip(
        &mut self,
        block: &mut [i16; 64],
        coding: &Coding<'_>,
        from: usize,
        mut zeros: u32,
    ) -> Option<usize> {
        let bit = 1_i16 << coding.low;
        for at in from..=coding.last {
            let value = &mut block[usize::from(ZIGZAG[at])];
            if *value == 0 {
                if zeros == 0 {
                    return Some(at);
                }
                zeros -= 1;
            } else if self.bits.take(1)? == 1 && *value & bit == 0 {
                *value = value.wrapping_add(if *value > 0 { bit } else { -bit });
            }
        }
        Some(coding.last + 1)
    }
}
