//! Weights of four-bit floats and of integers in groups as tensors of ggml's types: the same
//! numbers in another order of bytes. Of integers, see `integers.rs`; of four-bit floats:
//!
//! | | codes | scales | in blocks | factor of the matrix |
//! |---|---|---|---|---|
//! | NVFP4 | 32 bytes, neighbours in one byte | 4 of E4M3 | `nvfp4`, 64 elements | beside it |
//! | MXFP4 | 16 bytes, neighbours in one byte | an exponent | `mxfp4`, 32 elements | none |
//!
//! In a block, an element shares its byte with the one that is half a group further on. GGUF has
//! the factor of the whole matrix in a tensor of its own, which the blocks' dtype knows nothing of:
//! [`Blocks`] keeps it apart as [`Factors`], for whoever writes the file.

use std::collections::BTreeMap;

use apr_core::{
    CheckpointReader, Coding, Container, DType, Error, Result, Stored, TensorInfo, pass_on,
};

use super::find::is_of_activations;
use super::read::{bytes_of, floats_of, usize_of};
use super::{MXFP4_EXPERTS, NVFP4_BLOCKS};
use crate::base::Base;
use crate::four_bits::halves_apart;

/// Kinds whose first two parts are codes and their scales, if the codes are four-bit floats.
const KINDS: [&str; 2] = ["fp4", "mlx"];

/// Block types to which integers in groups can be converted.
const OF_INTEGERS: [DType; 3] = [DType::Q4_0, DType::Q4_1, DType::Q8_0];

/// Blocks that are made at a time.
const AT_ONCE: u64 = 1 << 13;

/// Factors of weights in blocks, one for each matrix of a stack.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Factors {
    /// Factor of the weight; `None` for 1.
    pub scale: Option<Vec<f32>>,
    /// The scale of its activations.
    pub input_scale: Option<Vec<f32>>,
}

/// A checkpoint with blocks of ggml's types in place of weights that are stored in the same
/// numbers.
pub struct Blocks<'a> {
    base: Base<'a>,
    tensors: Vec<TensorInfo>,
    /// Block dtype of each tensor, or `None` if the tensor is not converted.
    made: Vec<Option<DType>>,
    factors: BTreeMap<String, Factors>,
}

impl<'a> Blocks<'a> {
    /// The dtype of blocks with a weight's numbers, and whether its rows are whole blocks; `None`
    /// where no blocks have such numbers.
    #[must_use]
    pub fn of(info: &TensorInfo, coding: &Coding<'_>) -> Option<(DType, bool)> {
        if coding.kind == NVFP4_BLOCKS {
            return Some((DType::NVFP4, true));
        }
        let [codes, scales, ..] = coding.parts else { return None };
        let [codes, scales] = [codes, scales].map(|part| &coding.base.tensors()[part.tensor]);
        let columns = info.shape.row_len();
        let is_half_a_byte = Some(info.shape.elements()?) == codes.byte_len().ok()?.checked_mul(2);
        let groups = scales.shape.row_len();
        let of_group = columns.checked_div(groups).filter(|group| group * groups == columns)?;
        if !KINDS.contains(&coding.kind) || !is_half_a_byte {
            return None;
        }
        match (scales.dtype, of_group) {
            (DType::F8_E4M3 | DType::U8, 16) => Some((DType::NVFP4, columns.is_multiple_of(64))),
            (DType::F8_E8M0 | DType::U8, 32) => Some((DType::MXFP4, true)),
            _ => None,
        }
    }

    /// Returns `true` if reading a weight rounds products of codes and scales to its dtype, which
    /// its blocks keep as they are.
    ///
    /// Products of four-bit floats are exact in `bf16`, if no factor of the matrix is involved.
    #[must_use]
    pub fn omits_rounding(info: &TensorInfo, coding: &Coding<'_>) -> bool {
        let is_of_floats = KINDS.contains(&coding.kind) || coding.kind == MXFP4_EXPERTS;
        let has_factor = coding.names().any(|name| name.ends_with(".weight_global_scale"));
        matches!(info.dtype, DType::F16 | DType::BF16) && (has_factor || !is_of_floats)
    }

    /// Converts the `wanted` weights to blocks, unless no block type can represent them.
    ///
    /// # Errors
    /// E002 for a factor that is not finite or can't be divided by, E007 when reading fails.
    pub fn new(
        base: impl Into<Base<'a>>,
        wanted: impl Fn(usize, &Coding<'_>) -> bool,
    ) -> Result<Self> {
        let base = base.into();
        let mut tensors = base.tensors().to_vec();
        let mut made = vec![None; tensors.len()];
        let mut factors = BTreeMap::new();
        for (position, (info, made)) in tensors.iter_mut().zip(&mut made).enumerate() {
            let Some(coding) = base.stored(position).coding() else { continue };
            let dtype = match Self::of(info, &coding) {
                Some((dtype, true)) if wanted(position, &coding) => dtype,
                _ => continue,
            };
            // Scales that are lost are found before the first value.
            base.read_tensor(position, 0, &mut [])?;
            let of_weight = factors_of(info, &coding).map_err(|error| error.for_tensor(&info.name));
            factors.insert(info.name.clone(), of_weight?);
            info.dtype = dtype;
            *made = Some(dtype);
        }
        Ok(Self { base, tensors, made, factors })
    }

    /// Converts weights of integers in groups to blocks in which their codes
    /// [fit](apr_core::CodesInBlocks::fit).
    ///
    /// `made` has the block type of each tensor, by position.
    ///
    /// # Errors
    /// E001 for a weight that is not of integers in groups.
    pub fn of_integers(base: impl Into<Base<'a>>, made: Vec<Option<DType>>) -> Result<Self> {
        let base = base.into();
        let mut tensors = base.tensors().to_vec();
        for (position, (info, dtype)) in tensors.iter_mut().zip(&made).enumerate() {
            let Some(dtype) = dtype else { continue };
            let coding = base.stored(position).coding();
            if coding.is_none_or(|coding| coding.in_blocks.is_none()) {
                return Err(Error::format("its codes must be integers").for_tensor(&info.name));
            }
            info.dtype = *dtype;
        }
        Ok(Self { base, tensors, made, factors: BTreeMap::new() })
    }

    /// The weights of four-bit floats that are in blocks, by name, with their factors.
    #[must_use]
    pub fn factors(&self) -> &BTreeMap<String, Factors> {
        &self.factors
    }
}

/// The factors among the parts of a weight.
fn factors_of(info: &TensorInfo, coding: &Coding<'_>) -> Result<Factors> {
    let dims = info.shape.dims();
    let outer = dims.split_last_chunk::<2>().map_or(&[][..], |(outer, _)| outer);
    let matrices = outer.iter().fold(1_u64, |all, &dim| all.saturating_mul(dim));
    let mut factors = Factors::default();
    for part in coding.parts.iter().skip(1) {
        let part_info = &coding.base.tensors()[part.tensor];
        let end = part_info.name.rsplit('.').next().unwrap_or_default();
        let divides = match end {
            "scale" if coding.kind == NVFP4_BLOCKS => false,
            "weight_scale_2" | "input_scale" => false,
            "weight_global_scale" | "input_global_scale" => true,
            _ => continue,
        };
        let is_of_activations = is_of_activations(&part_info.name);
        if part_info.shape.elements() != Some(matrices) {
            // What is no factor of a matrix is no factor of blocks; the weight does without.
            continue;
        }
        let mut values = floats_of(coding.base, part.tensor, 0..matrices)?;
        if divides {
            values.iter_mut().for_each(|value| *value = 1.0 / *value);
        }
        if !is_of_activations && !values.iter().all(|value| value.is_finite()) {
            let message =
                format!("a factor in '{}' is not finite, or divides by 0", part_info.name);
            return Err(Error::corrupt(message));
        }
        match is_of_activations {
            true => factors.input_scale = Some(values),
            false => factors.scale = Some(values),
        }
    }
    Ok(factors)
}

impl Blocks<'_> {
    /// Reads whole blocks of a weight.
    fn blocks(&self, coding: &Coding<'_>, dtype: DType, first: u64, count: u64) -> Result<Vec<u8>> {
        if let Some(integers) = coding.in_blocks.filter(|_| OF_INTEGERS.contains(&dtype)) {
            let mut blocks = vec![0; usize_of(count * dtype.block_bytes())?];
            integers.read_blocks(coding.base, dtype, first, &mut blocks)?;
            return Ok(blocks);
        }
        let (scales, groups) = if dtype == DType::NVFP4 { (4, 4) } else { (1, 1) };
        let len = usize_of(dtype.block_bytes())?;
        let codes = len - scales;
        let [codes_at, scales_at] =
            [0, 1].map(|part| coding.parts.get(part).map(|part| part.tensor));
        let (Some(codes_at), Some(scales_at)) = (codes_at, scales_at) else {
            return Err(Error::format("its codes have no scales"));
        };
        let part = |tensor: usize, width: usize| {
            bytes_of(coding.base, tensor, first * width as u64, usize_of(count)? * width)
        };
        let (all_codes, all_scales) = (part(codes_at, codes)?, part(scales_at, scales)?);
        let is_nan = |scale: &u8| match dtype {
            DType::NVFP4 => scale & 0x7f == 0x7f,
            _ => *scale == 0xff,
        };
        if let Some(at) = all_scales.iter().position(is_nan) {
            let (at, name) =
                (first * scales as u64 + at as u64, &coding.base.tensors()[scales_at].name);
            return Err(Error::corrupt(format!("number {at} of the scales '{name}' is NaN")));
        }

        let mut blocks = vec![0; usize_of(count)? * len];
        let each = all_codes.chunks_exact(codes).zip(all_scales.chunks_exact(scales));
        for (block, (codes, scales_of)) in blocks.chunks_exact_mut(len).zip(each) {
            let (head, rest) = block.split_at_mut(scales);
            let group = codes.len() / groups;
            let runs = rest.chunks_exact_mut(group).zip(codes.chunks_exact(group));
            for ((to, from), (run, codes)) in head.iter_mut().zip(scales_of).zip(runs) {
                halves_apart(codes, run);
                *to = *from;
                // The scales of NVFP4's blocks have no sign: the elements get it.
                if dtype == DType::NVFP4 && from & 0x80 != 0 {
                    *to &= 0x7f;
                    run.iter_mut().for_each(|pair| *pair ^= 0x88);
                }
            }
        }
        Ok(blocks)
    }

    fn read(
        &self,
        coding: &Coding<'_>,
        dtype: DType,
        offset: u64,
        mut buf: &mut [u8],
    ) -> Result<()> {
        let width = dtype.block_bytes();
        let (mut at, end) = (offset, offset + buf.len() as u64);
        while at < end {
            let first = at / width;
            let count = (end.div_ceil(width) - first).min(AT_ONCE);
            let blocks = self.blocks(coding, dtype, first, count)?;
            let made = blocks.get(usize_of(at - first * width)?..).unwrap_or_default();
            let len = made.len().min(buf.len());
            let (head, tail) = std::mem::take(&mut buf).split_at_mut(len);
            head.copy_from_slice(&made[..len]);
            (buf, at) = (tail, at + len as u64);
        }
        Ok(())
    }
}

impl CheckpointReader for Blocks<'_> {
    pass_on!(base: format, metadata, files, companions, read_companion, left_out, warnings);

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        match self.made[tensor] {
            Some(_) => Stored::derived_from(&*self.base, &[tensor]),
            None => self.base.stored(tensor),
        }
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let coding = self.base.stored(tensor).coding();
        let Some((dtype, coding)) = self.made[tensor].zip(coding) else {
            return self.base.read_tensor(tensor, offset, buf);
        };
        let info = &self.tensors[tensor];
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| info.byte_len().is_ok_and(|len| end > len)) {
            let error = Error::corrupt("the read ends past the tensor");
            return Err(error.for_tensor(&info.name).at(offset));
        }
        let read = match coding.parts.first() {
            Some(blocks) if coding.kind == NVFP4_BLOCKS => {
                coding.base.read_tensor(blocks.tensor, offset, buf)
            }
            _ => self.read(&coding, dtype, offset, buf),
        };
        read.map_err(|error| error.for_tensor(&info.name))
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        match self.made[tensor] {
            Some(_) => None,
            None => self.base.tensor_slice(tensor),
        }
    }

    fn container(&self) -> Container<'_> {
        self.base.container().altered()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Part, f32s, folder, u32s};
    use super::*;

    /// The codes 1 to 15 and 0, neighbours in one byte, and as a block of NVFP4 has them.
    const CODES: [u8; 8] = [0x21, 0x43, 0x65, 0x87, 0xa9, 0xcb, 0xed, 0x0f];
    const RUN: [u8; 8] = [0x91, 0xa2, 0xb3, 0xc4, 0xd5, 0xe6, 0xf7, 0x08];

    fn blocks<'a>(parts: &[Part<'_>]) -> Result<Blocks<'a>> {
        Blocks::new(folder(parts, ""), |_, _| true)
    }

    /// Returns the bytes of the first tensor, and asserts that reading in pieces gives the same
    /// bytes.
    fn bytes(blocks: &Blocks<'_>) -> Result<Vec<u8>> {
        let len = usize_of(blocks.tensors()[0].byte_len()?)?;
        let mut bytes = vec![0; len];
        blocks.read_tensor(0, 0, &mut bytes)?;
        for step in [1, 5, 50] {
            let mut pieces = vec![0; len];
            for (number, piece) in pieces.chunks_mut(step).enumerate() {
                blocks.read_tensor(0, (number * step) as u64, piece)?;
            }
            assert_eq!(pieces, bytes, "in pieces of {step}");
        }
        Ok(bytes)
    }

    #[test]
    fn nvfp4_keeps_its_scales_and_has_its_factor_apart() {
        // A scale with a sign gives it to its elements.
        let codes = CODES.repeat(8);
        let made = blocks(&[
            ("up.weight_packed", "U8", &[1, 64], &codes),
            ("up.weight_scale", "F8_E4M3", &[1, 8], &[0x40, 0x38, 0xc0, 0x7e, 1, 2, 3, 4]),
            ("up.weight_global_scale", "F32", &[1], &f32s(&[4.0])),
            ("up.input_global_scale", "F32", &[1], &f32s(&[8.0])),
        ]);
        let made = made.expect("blocks");
        let info = &made.tensors()[0];
        assert_eq!((info.dtype, info.shape.dims()), (DType::NVFP4, &[1, 128][..]));
        let negative = RUN.map(|pair| pair ^ 0x88);
        let first = [&[0x40, 0x38, 0x40, 0x7e][..], &RUN, &RUN, &negative, &RUN].concat();
        let second = [&[1, 2, 3, 4][..], &RUN.repeat(4)].concat();
        assert_eq!(bytes(&made).expect("bytes"), [first, second].concat());
        let factors = Factors { scale: Some(vec![0.25]), input_scale: Some(vec![0.125]) };
        assert_eq!(made.factors()["up.weight"], factors);
        // A value is rounded to bf16 where it is read, and is not in a block.
        let of = |made: &Blocks<'_>| {
            let stored = made.base.stored(0);
            let coding = stored.coding().expect("a weight in codes");
            Blocks::omits_rounding(&made.base.tensors()[0], &coding)
        };
        assert!(of(&made));
        let scales: Part<'_> = ("up.weight_scale", "U8", &[1, 4], &[127; 4]);
        let exact = blocks(&[("up.weight_packed", "U8", &[1, 64], &codes), scales]);
        assert!(!of(&exact.expect("blocks")));
    }

    #[test]
    fn mxfp4_keeps_its_exponents() {
        let codes = CODES.repeat(4);
        let words: Vec<u32> = codes.as_chunks().0.iter().map(|c| u32::from_le_bytes(*c)).collect();
        let words = u32s(&words);
        let half = |at: usize| CODES[at / 2] >> (4 * (at % 2)) & 0xf;
        let block: Vec<u8> = (0..16).map(|at| half(at) | half(at) << 4).collect();
        let known = [&[127][..], &block, &[128], &block].concat();
        for parts in [
            [
                ("up.weight_packed", "U8", &[1, 32][..], &codes[..]),
                ("up.weight_scale", "U8", &[1, 2], &[127, 128]),
            ],
            [("up.weight", "U32", &[1, 8], &words[..]), ("up.scales", "U8", &[1, 2], &[127, 128])],
        ] {
            let made = blocks(&parts).expect("blocks");
            assert_eq!(made.tensors()[0].dtype, DType::MXFP4);
            assert_eq!(bytes(&made).expect("bytes"), known);
            assert_eq!(made.factors()["up.weight"], Factors::default());
        }
    }

    #[test]
    fn codes_that_are_not_whole_blocks_or_four_bit_blocks_are_unchanged() {
        let codes = CODES.repeat(3);
        let scale: Part<'_> = ("up.weight_scale", "F8_E4M3", &[1, 3], &[0x38; 3]);
        let global = f32s(&[1.0]);
        let global: Part<'_> = ("up.weight_global_scale", "F32", &[1], &global);
        let made = blocks(&[("up.weight_packed", "U8", &[1, 24], &codes), scale, global]);
        assert_eq!(made.expect("a model").tensors()[0].dtype, DType::BF16);
        // Six bits.
        let scale: Part<'_> = ("up.weight_scale", "U8", &[1, 1], &[127]);
        let made = blocks(&[("up.weight_packed", "U8", &[1, 24], &codes), scale]);
        assert_eq!(made.expect("a model").tensors()[0].dtype, DType::BF16);
    }

    #[test]
    fn scales_and_factors_that_are_not_numbers_are_rejected() {
        let codes = CODES.repeat(4);
        let packed: Part<'_> = ("up.weight_packed", "U8", &[1, 32], &codes);
        let scale: Part<'_> = ("up.weight_scale", "F8_E4M3", &[1, 4], &[0x38, 0x38, 0xff, 0]);
        let global = f32s(&[0.0]);
        let global: Part<'_> = ("up.weight_global_scale", "F32", &[1], &global);
        let error = blocks(&[packed, scale, global]).err().expect("a factor").to_string();
        assert!(error.contains("'up.weight_global_scale'"), "{error}");
        let one = f32s(&[1.0]);
        let global: Part<'_> = ("up.weight_global_scale", "F32", &[1], &one);
        let made = blocks(&[packed, scale, global]).expect("blocks");
        let error = bytes(&made).expect_err("a scale").to_string();
        assert!(error.contains("number 2 of the scales 'up.weight_scale' is NaN"), "{error}");
        let scale: Part<'_> = ("up.weight_scale", "U8", &[1, 2], &[0xff, 127]);
        let made = blocks(&[packed, scale]).expect("blocks");
        assert!(bytes(&made).is_err());
    }
}
