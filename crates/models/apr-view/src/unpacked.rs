//! Quantized tensors taken apart into integers and scales, for formats without block types.
//!
//! A tensor `NAME` of 8-bit quants becomes an `i8` tensor of its shape; one of 4-bit quants becomes
//! `u8` with half as many columns, the even element in the low four bits. `NAME.scales` holds one
//! scale per block (per row for `i8_row`), and `NAME.mins` what is added, where the type has that.
//! `scales.json` says for each tensor how its values come back.

use apr_core::{
    CheckpointReader, Companion, Container, DType, Error, Result, Shape, Stored, TensorInfo,
    pass_on,
};
use serde_json::{Map, Value, json};

use crate::base::Base;
use crate::companions::Companions;

/// Name of the file that describes the quantized tensors.
pub const SCALES_FILE: &str = "scales.json";

/// Elements of a block of all types here that have blocks.
const BLOCK: u64 = 32;

/// Bytes of blocks to read at a time.
const WINDOW: u64 = 1 << 20;

/// Part of a base tensor that a tensor shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UnpackedPart {
    /// The whole tensor.
    Whole,
    /// Quants, `per_byte` of them per byte, at `at` bytes after the start of each block; `flip` has
    /// the bits to invert.
    Quants { per_byte: u64, at: u64, flip: u8 },
    /// Numbers of `len` bytes, `at` bytes after the start of each block.
    Field { at: u64, len: u64 },
}

/// A checkpoint whose quantized tensors are taken apart.
pub struct Unpacked<'a> {
    base: Base<'a>,
    tensors: Vec<TensorInfo>,
    parts: Vec<(usize, UnpackedPart)>,
    companions: Companions,
}

impl<'a> Unpacked<'a> {
    /// Returns `true` if there are quantized tensors.
    #[must_use]
    pub fn is_needed(base: &dyn CheckpointReader) -> bool {
        base.tensors().iter().any(|info| info.dtype.is_quantized())
    }

    /// Separates the quantized tensors into their parts.
    ///
    /// # Errors
    /// E001 for a dtype whose scales are quantized themselves, such as `q4_k`: it must be
    /// dequantized.
    pub fn new(base: Base<'a>) -> Result<Self> {
        let (mut tensors, mut parts, mut described) = (Vec::new(), Vec::new(), Map::new());
        for (position, info) in base.tensors().iter().enumerate() {
            if !info.dtype.is_quantized() {
                tensors.push(info.clone());
                parts.push((position, UnpackedPart::Whole));
                continue;
            }
            let fields = Fields::of(info)?;
            described.insert(info.name.clone(), fields.description(info));
            for (info, part) in fields.tensors(info) {
                tensors.push(info);
                parts.push((position, part));
            }
        }

        let description = apr_core::json::to_vec_pretty(&described).unwrap_or_default();
        let mut companions = Companions::of(&*base);
        companions.put(SCALES_FILE, description);
        Ok(Self { base, tensors, parts, companions })
    }
}

/// Positions of the parts of a quantized tensor, in a checkpoint that [`Unpacked::beside`] made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Parts {
    /// Quants: signed if they have 8 bits, unsigned if they have 4, packed as described above.
    pub quants: usize,
    /// Quants with their highest bit inverted: unsigned if they have 8 bits, signed if they have 4.
    pub turned: usize,
    /// Quants in a byte: 1 or 2.
    pub per_byte: u64,
    /// Position of the scales.
    pub scales: usize,
    /// Offsets to add, if the type has them.
    pub mins: Option<usize>,
}

impl<'a> Unpacked<'a> {
    /// Returns the tensors of the base, followed by the parts of those with integers and scales.
    #[must_use]
    pub fn beside(base: Base<'a>) -> (Self, Vec<Option<Parts>>) {
        let mut tensors = base.tensors().to_vec();
        let mut parts: Vec<_> =
            (0..tensors.len()).map(|position| (position, UnpackedPart::Whole)).collect();
        let mut found = Vec::with_capacity(tensors.len());
        for (position, info) in base.tensors().iter().enumerate() {
            let fields = Fields::of(info)
                .ok()
                .filter(|_| info.dtype.is_quantized() && info.byte_len().is_ok());
            let Some(fields) = fields else {
                found.push(None);
                continue;
            };
            let first = tensors.len();
            for (info, part) in fields.tensors(info) {
                tensors.push(info);
                parts.push((position, part));
            }

            let mins = fields.has_min.then_some(first + 2);
            let turned = tensors.len();
            let flip = if fields.per_byte == 1 { 0x80 } else { 0x88 };
            tensors.push(TensorInfo { dtype: DType::U8, ..tensors[first].clone() });
            parts.push((
                position,
                UnpackedPart::Quants { per_byte: fields.per_byte, at: fields.quants_at, flip },
            ));
            let scales = first + 1;
            found.push(Some(Parts {
                quants: first,
                turned,
                per_byte: fields.per_byte,
                scales,
                mins,
            }));
        }

        (Self { companions: Companions::of(&*base), base, tensors, parts }, found)
    }
}

/// Offsets of the fields of a block.
#[derive(Debug, Clone, Copy)]
struct Fields {
    /// Quants in a byte.
    per_byte: u64,
    /// Bytes before the quants.
    quants_at: u64,
    scale: DType,
    has_min: bool,
}

impl Fields {
    fn of(info: &TensorInfo) -> Result<Self> {
        let (per_byte, quants_at, scale, has_min) = match info.dtype {
            DType::Q8_0 => (1, 2, DType::F16, false),
            DType::Q4_0 | DType::I4_ROW => (2, 2, DType::F16, false),
            DType::Q4_1 => (2, 4, DType::F16, true),
            DType::I8_ROW => (1, 4, DType::F32, false),
            dtype => {
                let message = format!(
                    "integers and scales can't represent {dtype}; `dequantize` f16 makes it floats"
                );
                return Err(Error::format(message).for_tensor(&info.name));
            }
        };

        Ok(Self { per_byte, quants_at, scale, has_min })
    }

    fn tensors(self, info: &TensorInfo) -> Vec<(TensorInfo, UnpackedPart)> {
        let mut dims = info.shape.dims().to_vec();
        let (outer, columns) = match dims.split_last() {
            Some((columns, outer)) => (outer.to_vec(), *columns),
            None => (Vec::new(), 1),
        };
        if let Some(last) = dims.last_mut() {
            *last = columns / self.per_byte;
        }

        let quants = if self.per_byte == 1 { DType::I8 } else { DType::U8 };
        let part = |suffix: &str, dtype: DType, shape: Shape| TensorInfo {
            name: format!("{}{suffix}", info.name),
            dtype,
            shape,
        };
        let mut of_blocks = outer.clone();
        if info.dtype != DType::I8_ROW {
            of_blocks.push(columns / BLOCK);
        }

        let len = self.scale.block_bytes();
        let mut tensors = vec![
            (
                part("", quants, dims.into()),
                UnpackedPart::Quants { per_byte: self.per_byte, at: self.quants_at, flip: 0 },
            ),
            (
                part(".scales", self.scale, of_blocks.clone().into()),
                UnpackedPart::Field { at: 0, len },
            ),
        ];
        if self.has_min {
            tensors.push((
                part(".mins", self.scale, of_blocks.into()),
                UnpackedPart::Field { at: len, len },
            ));
        }

        tensors
    }

    fn description(self, info: &TensorInfo) -> Value {
        let block = if info.dtype == DType::I8_ROW { info.shape.row_len() } else { BLOCK };
        let mut entry = json!({
            "type": info.dtype,
            "bits": 8 / self.per_byte,
            "shape": info.shape,
            "block_size": block,
            "scales": format!("{}.scales", info.name),
        });

        let Some(fields) = entry.as_object_mut() else { return entry };
        if self.per_byte == 2 {
            fields.insert(
                "packing".to_owned(),
                "two a byte, the even element in the low four bits".into(),
            );
        }

        if self.has_min {
            fields.insert("mins".to_owned(), format!("{}.mins", info.name).into());
        } else {
            fields.insert("zero_point".to_owned(), if self.per_byte == 2 { 8 } else { 0 }.into());
        }

        let formula =
            if self.has_min { "scale * quant + min" } else { "scale * (quant - zero_point)" };
        fields.insert("value".to_owned(), formula.into());
        entry
    }
}

impl Unpacked<'_> {
    /// Returns the bytes and elements of a base tensor's block, or of a row if rows are the blocks.
    fn block_of(&self, tensor: usize) -> (u64, u64) {
        let info = &self.base.tensors()[tensor];
        if info.dtype == DType::I8_ROW {
            (info.shape.row_len() + 4, info.shape.row_len())
        } else {
            (info.dtype.block_bytes(), info.dtype.block_len())
        }
    }

    /// Fills `buf` with the data that `copy` extracts from the blocks, `len` bytes of each, from
    /// byte `offset` on.
    ///
    /// `copy` gets a block, the start in its `len` bytes, and the target. Many blocks are read at a
    /// time, because a compressed source decodes a mebibyte for every read.
    fn read_blocks(
        &self,
        tensor: usize,
        len: u64,
        offset: u64,
        buf: &mut [u8],
        copy: impl Fn(&[u8], usize, &mut [u8]),
    ) -> Result<()> {
        let (block_bytes, _) = self.block_of(tensor);
        let block_len = usize::try_from(block_bytes)
            .map_err(|_| Error::memory("a block does not fit in memory"))?;
        let end = (offset + buf.len() as u64).div_ceil(len);
        let (mut window, mut filled) = (Vec::new(), 0);
        while filled < buf.len() {
            let first = (offset + filled as u64) / len;
            let count = (WINDOW / block_bytes).clamp(1, end - first);
            window.resize(usize::try_from(count).unwrap_or(1) * block_len, 0);
            self.base.read_tensor(tensor, first * block_bytes, &mut window)?;

            for block in window.chunks_exact(block_len) {
                let within = (offset + filled as u64) % len;
                let part =
                    usize::try_from(len - within).unwrap_or(usize::MAX).min(buf.len() - filled);
                copy(
                    block,
                    usize::try_from(within).unwrap_or_default(),
                    &mut buf[filled..filled + part],
                );
                filled += part;
            }
        }

        Ok(())
    }

    /// Copies `buf.len()` bytes of every block's field from the `offset`-th byte of all these
    /// fields on.
    fn read_fields(
        &self,
        tensor: usize,
        (at, len): (u64, u64),
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        let (block_bytes, _) = self.block_of(tensor);
        if block_bytes > WINDOW {
            return self.read_long_fields(tensor, (at, len), offset, buf);
        }
        let at = usize::try_from(at).unwrap_or_default();
        self.read_blocks(tensor, len, offset, buf, |block, within, out| {
            out.copy_from_slice(&block[at + within..][..out.len()]);
        })
    }

    /// Same as `read_blocks`, for a block that is a row too long to be read as a whole.
    fn read_long_fields(
        &self,
        tensor: usize,
        (at, len): (u64, u64),
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        let (block_bytes, _) = self.block_of(tensor);
        let mut filled = 0;
        while filled < buf.len() {
            let position = offset + filled as u64;
            let (block, within) = (position / len, position % len);
            let count = usize::try_from(len - within).unwrap_or(usize::MAX).min(buf.len() - filled);
            self.base.read_tensor(
                tensor,
                block * block_bytes + at + within,
                &mut buf[filled..filled + count],
            )?;
            filled += count;
        }

        Ok(())
    }

    /// Reads pairs of nibbles: ggml has element `i` and element `i + 16` of a block in a byte.
    fn read_nibbles(&self, tensor: usize, at: u64, offset: u64, buf: &mut [u8]) -> Result<()> {
        const BYTES: usize = 16;
        let at = usize::try_from(at).unwrap_or_default();
        self.read_blocks(tensor, BYTES as u64, offset, buf, |block, within, out| {
            let packed = &block[at..at + BYTES];
            let element = |index: usize| {
                if index < BYTES { packed[index] & 15 } else { packed[index - BYTES] >> 4 }
            };
            for (byte, pair) in out.iter_mut().zip(within..) {
                *byte = element(2 * pair) | element(2 * pair + 1) << 4;
            }
        })
    }
}

impl CheckpointReader for Unpacked<'_> {
    pass_on!(base: format, metadata, files, left_out, warnings);

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        let (base, part) = self.parts[tensor];
        if matches!(part, UnpackedPart::Whole) {
            self.base.stored(base)
        } else {
            let counts = matches!(part, UnpackedPart::Quants { .. });
            Stored::derived_from(&*self.base, &[base]).converted_from(&*self.base, base, counts)
        }
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let (base, part) = self.parts[tensor];
        match part {
            UnpackedPart::Whole => self.base.read_tensor(base, offset, buf),
            UnpackedPart::Field { at, len } => self.read_fields(base, (at, len), offset, buf),
            UnpackedPart::Quants { per_byte, at, flip } => {
                if per_byte == 1 {
                    self.read_fields(base, (at, self.block_of(base).1), offset, buf)?;
                } else {
                    self.read_nibbles(base, at, offset, buf)?;
                }
                if flip != 0 {
                    buf.iter_mut().for_each(|byte| *byte ^= flip);
                }
                Ok(())
            }
        }
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        let (base, part) = self.parts[tensor];
        if matches!(part, UnpackedPart::Whole) { self.base.tensor_slice(base) } else { None }
    }

    fn container(&self) -> Container<'_> {
        self.base.container().altered()
    }

    fn companions(&self) -> &[Companion] {
        self.companions.list()
    }

    fn read_companion(&self, companion: usize) -> Result<Vec<u8>> {
        self.companions.read(&*self.base, companion)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use apr_registry::Limits;
    use apr_tensor::block;

    use super::*;
    use crate::View;

    /// A model without tensors.
    fn empty() -> Box<dyn CheckpointReader> {
        apr_registry::open(
            b"\x02\0\0\0\0\0\0\0{}".to_vec(),
            "model.safetensors",
            &Limits::default(),
        )
        .unwrap()
    }

    /// A model of one tensor in `dtype`.
    fn quantized<'a>(
        empty: &'a dyn CheckpointReader,
        dtype: DType,
        values: &[f32],
        columns: usize,
    ) -> View<'a> {
        let mut bytes = Vec::new();
        block::quantize(dtype, values, columns, None, &mut bytes);
        let shape = Shape::from([(values.len() / columns) as u64, columns as u64]);
        let mut model = View::new(empty);
        model.add(TensorInfo { name: "w".to_owned(), dtype, shape }, bytes);
        model
    }

    fn read(reader: &dyn CheckpointReader) -> HashMap<String, Vec<u8>> {
        let tensors = reader.tensors().iter().enumerate();
        let bytes = |(at, info): (usize, &TensorInfo)| {
            let mut bytes = vec![0; usize::try_from(info.byte_len().unwrap()).unwrap()];
            // In two reads, neither of which ends with a block.
            let third = bytes.len() / 3;
            let (front, back) = bytes.split_at_mut(third);
            reader.read_tensor(at, 0, front).unwrap();
            reader.read_tensor(at, front.len() as u64, back).unwrap();
            (info.name.clone(), bytes)
        };
        tensors.map(bytes).collect()
    }

    #[test]
    fn integers_and_scales_give_the_values_back() {
        let values: Vec<f32> =
            (0..192_u16).map(|i| (f32::from(i * 37 % 101) - 50.0) / 7.0).collect();
        for dtype in [DType::Q8_0, DType::Q4_0, DType::Q4_1, DType::I8_ROW, DType::I4_ROW] {
            let empty = empty();
            let model = quantized(&*empty, dtype, &values, 96);
            let mut expected = Vec::new();
            block::dequantize(dtype, &read(&model)["w"], 96, &mut expected);

            let unpacked = Unpacked::new(Base::Borrowed(&model)).unwrap();
            let (tensors, description) = (
                read(&unpacked),
                unpacked.read_companion(unpacked.companions().len() - 1).unwrap(),
            );
            let description: Value = serde_json::from_slice(&description).unwrap();
            let entry = &description["w"];
            let quants: Vec<f32> = match entry["bits"].as_u64() {
                Some(8) => {
                    tensors["w"].iter().map(|&byte| f32::from(i8::from_le_bytes([byte]))).collect()
                }
                _ => tensors["w"]
                    .iter()
                    .flat_map(|&byte| [f32::from(byte & 15), f32::from(byte >> 4)])
                    .collect(),
            };
            let floats = |name: &str| -> Vec<f32> {
                match &tensors[name] {
                    bytes if dtype == DType::I8_ROW => {
                        bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
                    }
                    bytes => {
                        let mut out = Vec::new();
                        apr_tensor::element::widen_f32(DType::F16, bytes, &mut out);
                        out
                    }
                }
            };
            let scales = floats(entry["scales"].as_str().unwrap());
            let mins = entry["mins"].as_str().map(floats);
            let zero = entry["zero_point"].as_u64().unwrap_or_default() as f32;
            let block = usize::try_from(entry["block_size"].as_u64().unwrap()).unwrap();
            let value = |(i, quant): (usize, &f32)| match &mins {
                Some(mins) => scales[i / block] * quant + mins[i / block],
                None => scales[i / block] * (quant - zero),
            };
            assert_eq!(
                quants.iter().enumerate().map(value).collect::<Vec<_>>(),
                expected,
                "{dtype}"
            );
        }
    }

    #[test]
    fn types_with_quantized_scales_must_be_dequantized() {
        let empty = empty();
        let model = quantized(&*empty, DType::Q4_K, &[0.5; 256], 256);
        let error = Unpacked::new(Base::Borrowed(&model)).map(drop).unwrap_err();
        assert_eq!((error.code(), error.tensor()), (apr_registry::Code::Format, Some("w")));
    }
}
