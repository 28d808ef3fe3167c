//! Integers and scales that apr exports quantized tensors as, described by `scales.json`: see
//! [`Unpacked`](crate::Unpacked), which writes them.
//!
//! ```text
//! NAME         i8 [.., in]     8-bit quants       ┐
//!              u8 [.., in/2]   two 4-bit quants   │
//! NAME.scales  f32 [..]        of rows            ├─▶ NAME f32 [.., in]
//!              f16 [.., in/32] of blocks          │
//! NAME.mins    f16 [.., in/32] to add             ┘
//! ```
//!
//! A value is `scale * (quant - zero point)`, or `scale * quant + min`, in single precision. The
//! tensors themselves show which: 4-bit quants without minimums have the zero point 8. So they keep
//! their meaning when a weight gets another name than the description has.

use std::ops::Range;

use apr_core::{CheckpointReader, DType, Result, Shape, TensorInfo};
use apr_tensor::grouped::{Code, Decoding, Rule};

use super::find::{Kind, Tensors, Weight};
use super::grouped::{Form, Grouped, Numbers};
use super::read::{Tile, bytes_of, scales_of, usize_of};
use super::stated::Stated;
use super::zero::Scaling;
use crate::SCALES_FILE;

pub(super) const KIND: Kind = Kind { id: "apr-integers", find };

/// Elements of a block.
const BLOCK: u64 = 32;

fn find(tensors: &Tensors<'_>, _: &Stated, quants: usize) -> Option<Result<Weight>> {
    let info = tensors.info(quants);
    if !matches!(info.dtype, DType::I8 | DType::U8) || !tensors.has_companion(SCALES_FILE) {
        return None;
    }
    let scales = tensors.beside(&info.name, &[".scales"])?;
    Some(weight(tensors, quants, scales))
}

fn weight(tensors: &Tensors<'_>, quants: usize, scales: usize) -> Result<Weight> {
    let info = tensors.info(quants);
    let name = &info.name;
    let per_byte = if info.dtype == DType::I8 { 1 } else { 2 };
    let unfit = || tensors.unfit(quants, name, "rows of quants");
    let (&wide, outer) = info.shape.dims().split_last().ok_or_else(unfit)?;
    let columns = wide.checked_mul(per_byte).filter(|columns| *columns > 0).ok_or_else(unfit)?;
    let mins = tensors.beside(name, &[".mins"]);

    // Only 8-bit quants have a scale for each row.
    let is_of_rows = tensors.info(scales).dtype == DType::F32 && per_byte == 1;
    let group = if is_of_rows { columns } else { BLOCK };
    let along = columns / group;
    let (dtype, of_blocks) =
        if is_of_rows { (DType::F32, Vec::new()) } else { (DType::F16, vec![along]) };
    if !columns.is_multiple_of(group) {
        return Err(tensors.unfit(quants, name, "rows of whole blocks of 32 quants"));
    }
    let shape = [outer, &of_blocks].concat();
    for part in [Some(scales), mins].into_iter().flatten() {
        tensors.check(part, name, &[dtype], &shape)?;
    }
    if let Some(mins) = mins.filter(|_| per_byte == 1) {
        return Err(tensors.unfit(mins, name, "no minimum beside quants of 8 bits"));
    }

    let shape: Shape = [outer, &[columns]].concat().into();
    let bits = 8 / per_byte;
    let scaled = if is_of_rows { "a scale for each row" } else { "blocks of 32" };
    Ok(Weight {
        description: format!("integers of {bits} bits of apr, {scaled}"),
        info: TensorInfo { name: name.clone(), dtype: DType::F32, shape },
        parts: [quants, scales].into_iter().chain(mins).collect(),
        decode: Box::new(Integers { quants, scales, mins, per_byte, columns, group }),
    })
}

struct Integers {
    quants: usize,
    scales: usize,
    mins: Option<usize>,
    per_byte: u64,
    /// Columns of a row, and of a group.
    columns: u64,
    group: u64,
}

impl Grouped for Integers {
    fn scaling(&self) -> Vec<Scaling> {
        // All scales may be 0 where minimums hold the values.
        let scaling = Scaling { scales: self.scales, codes: self.quants };
        if self.mins.is_some() { Vec::new() } else { vec![scaling] }
    }

    fn form(&self) -> Form {
        Form { bits: 8 / self.per_byte, group: self.group, count: self.columns / self.group }
    }

    fn decoding(&self, _: &dyn CheckpointReader) -> Result<Decoding> {
        let code = Code::Number(if self.per_byte == 1 { DType::I8 } else { DType::U8 });
        let rule = if self.mins.is_some() { Rule::Sum } else { Rule::Difference(1.0) };
        Ok(Decoding { code, rule, dtype: DType::F32 })
    }

    fn codes(&self, base: &dyn CheckpointReader, tile: Tile, out: &mut [u8]) -> Result<()> {
        let first = tile.row * self.columns + tile.column;
        if self.per_byte == 1 {
            return base.read_tensor(self.quants, first, out);
        }
        let end = first + out.len() as u64;
        let bytes = bytes_of(base, self.quants, first / 2, usize_of(end.div_ceil(2) - first / 2)?)?;
        let skipped = usize_of(first % 2)?;
        for (at, out) in out.iter_mut().enumerate() {
            let at = at + skipped;
            *out = bytes[at / 2] >> (at % 2 * 4) & 0xf;
        }
        Ok(())
    }

    fn numbers(
        &self,
        base: &dyn CheckpointReader,
        rows: Range<u64>,
        groups: Range<u64>,
    ) -> Result<Numbers> {
        let count = self.columns / self.group;
        let count_of_rows = rows.end - rows.start;
        let last = rows.end.saturating_sub(1) * count;
        // Several rows are asked for with all of their groups.
        let range = rows.start * count + groups.start..last + groups.end;
        let of =
            |tensor: usize| scales_of(base, tensor, base.tensors()[tensor].dtype, range.clone());
        let zeros = match self.mins {
            Some(mins) => of(mins)?,
            None if self.per_byte == 1 => Vec::new(),
            None => vec![8.0; usize_of(count_of_rows * (groups.end - groups.start))?],
        };
        Ok(Numbers { scales: of(self.scales)?, zeros })
    }

    fn as_they_lie(&self) -> Option<usize> {
        (self.per_byte == 1).then_some(self.quants)
    }
}

#[cfg(test)]
mod tests {
    use apr_tensor::element::widen_f32;

    use super::super::testing::{Part, beside, f32s, u16s};
    use super::*;

    /// Opens tensors beside a file that describes them.
    fn described(parts: &[Part<'_>]) -> Box<dyn CheckpointReader> {
        beside(parts, SCALES_FILE, "{}")
    }

    /// The values of the only tensor, read whole and in pieces.
    fn values(parts: &[Part<'_>]) -> Result<Vec<f32>> {
        let model = described(parts);
        assert_eq!(model.tensors().len(), 1);
        assert!(model.companions().iter().all(|companion| companion.name != SCALES_FILE));
        let len = model.tensors()[0].byte_len()?;
        let mut bytes = vec![0; usize_of(len)?];
        model.read_tensor(0, 0, &mut bytes)?;
        let mut pieces = vec![0; bytes.len()];
        for (number, piece) in pieces.chunks_mut(7).enumerate() {
            model.read_tensor(0, number as u64 * 7, piece)?;
        }
        assert_eq!(pieces, bytes);
        let mut floats = Vec::new();
        widen_f32(DType::F32, &bytes, &mut floats);
        Ok(floats)
    }

    #[test]
    fn each_form_that_is_exported_is_read() -> Result<()> {
        let quants: Vec<u8> = (0..64).map(|quant: u8| quant.wrapping_sub(32)).collect();
        let signed = |row: usize| {
            quants[row * 32..][..32].iter().map(|&q| f32::from(i8::from_le_bytes([q])))
        };
        let scales = f32s(&[0.5, 2.0]);
        let rows: Vec<f32> = signed(0).map(|q| q * 0.5).chain(signed(1).map(|q| q * 2.0)).collect();
        let codes: Part<'_> = ("up.weight", "I8", &[2, 32], &quants);
        assert_eq!(values(&[codes, ("up.weight.scales", "F32", &[2], &scales)])?, rows);
        // 0.5 and 2 as f16.
        let halves = u16s(&[0x3800, 0x4000]);
        assert_eq!(values(&[codes, ("up.weight.scales", "F16", &[2, 1], &halves)])?, rows);

        let nibbles = [0x21; 16];
        let four: Part<'_> = ("up.weight", "U8", &[1, 16], &nibbles);
        let scale: Part<'_> = ("up.weight.scales", "F16", &[1, 1], &halves[..2]);
        assert_eq!(values(&[four, scale])?, [-3.5, -3.0].repeat(16));
        let least: Part<'_> = ("up.weight.mins", "F16", &[1, 1], &halves[2..]);
        assert_eq!(values(&[four, scale, least])?, [2.5, 3.0].repeat(16));
        Ok(())
    }

    #[test]
    fn parts_of_other_shapes_are_an_error() {
        let (quants, halves) = ([1; 32], u16s(&[0x3800, 0x4000]));
        let codes: Part<'_> = ("up.weight", "I8", &[1, 32], &quants);
        let short: Part<'_> = ("up.weight", "I8", &[2, 16], &quants);
        let scale: Part<'_> = ("up.weight.scales", "F16", &[2, 1], &halves);
        let floats = f32s(&[1.0]);
        let nibbles: Part<'_> = ("up.weight", "U8", &[1, 32], &quants);
        let of_row: Part<'_> = ("up.weight.scales", "F32", &[1], &floats);
        for parts in [[codes, scale], [short, scale], [nibbles, of_row]] {
            let model = described(&parts);
            let error = model.read_tensor(0, 0, &mut []).expect_err("a shape");
            assert_eq!(error.code(), apr_core::Code::Format, "{error}");
        }
    }
}
