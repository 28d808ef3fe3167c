//! Integers of 8 bits of EETQ, transposed.
//!
//! ```text
//! X.weight         i8 [in, out]
//! X.weight_scales  f16 [out]
//! ```
//!
//! Files written on a GPU have the same names, dtypes and shapes, but the order of that GPU's
//! matrix product, and 128 is added to each integer. The file does not say which it is; the
//! values do. Most integers of a row of weights are small, because the largest is 127 or 128; with
//! 128 added, most are far from 0. So a few thousand of them are counted before the first is used.

use std::ops::Range;
use std::sync::OnceLock;

use apr_core::{CheckpointReader, DType, Error, Result, TensorInfo};
use apr_tensor::grouped::{Code, Decoding, Rule};

use super::find::{Kind, Tensors, Weight};
use super::grouped::{Form, Grouped, Numbers};
use super::read::{Tile, bytes_of, scales_of, usize_of};
use super::stated::Stated;
use super::zero::Scaling;

pub(super) const KIND: Kind = Kind { id: "eetq", find };

/// Number of positions at which integers are counted, and of integers at each position.
const PLACES: u64 = 16;
const COUNTED: u64 = 1024;

/// Bound below which the magnitude of an integer is small; evenly distributed integers are small
/// half of the time.
const SMALL: u8 = 64;

fn find(tensors: &Tensors<'_>, _: &Stated, codes: usize) -> Option<Result<Weight>> {
    let info = tensors.info(codes);
    let stem = tensors.stem(codes, ".weight").filter(|_| info.dtype == DType::I8)?;
    let scale = tensors.beside(stem, &[".weight_scales"])?;
    Some(weight(tensors, stem, codes, scale))
}

fn weight(tensors: &Tensors<'_>, stem: &str, codes: usize, scale: usize) -> Result<Weight> {
    let name = format!("{stem}.weight");
    let [columns, rows] = tensors.matrix(codes, &name)?;
    tensors.check(scale, &name, &[DType::F16, DType::BF16, DType::F32], &[rows])?;
    Ok(Weight {
        description: "EETQ, int8, a scale for each row".to_owned(),
        info: TensorInfo { name, dtype: DType::F32, shape: [rows, columns].into() },
        parts: [codes, scale].into_iter().chain(tensors.of_activations(stem)).collect(),
        decode: Box::new(Eetq { codes, scale, rows, columns, is_plain: OnceLock::new() }),
    })
}

struct Eetq {
    codes: usize,
    scale: usize,
    rows: u64,
    columns: u64,
    /// `true` if the integers are in the order of the matrix; set once they have been counted.
    is_plain: OnceLock<bool>,
}

impl Eetq {
    /// # Errors
    /// E003 where the integers are those of a GPU, E007 when reading fails.
    fn check_order(&self, base: &dyn CheckpointReader) -> Result<()> {
        let is_plain = match self.is_plain.get() {
            Some(is_plain) => *is_plain,
            None => *self.is_plain.get_or_init({
                let is_plain = self.are_mostly_small(base)?;
                move || is_plain
            }),
        };
        if is_plain {
            return Ok(());
        }
        Err(Error::version(format!(
            "the integers of '{}' are in EETQ's order for one GPU architecture, which can't be \
             decoded here",
            base.tensors()[self.codes].name
        )))
    }

    /// Returns `true` if more than two of three integers are small.
    fn are_mostly_small(&self, base: &dyn CheckpointReader) -> Result<bool> {
        let len = base.tensors()[self.codes].shape.elements().unwrap_or_default();
        let step = (len / PLACES).max(COUNTED);
        let (mut small, mut all) = (0, 0);
        for place in 0..PLACES {
            let start = len.min(place * step);
            let count = COUNTED.min(len - start);
            let bytes = bytes_of(base, self.codes, start, usize_of(count)?)?;
            let is_small = |byte: &&u8| byte.cast_signed().unsigned_abs() < SMALL;
            small += bytes.iter().filter(is_small).count();
            all += bytes.len();
        }
        Ok(3 * small > 2 * all)
    }
}

impl Grouped for Eetq {
    fn scaling(&self) -> Vec<Scaling> {
        vec![Scaling { scales: self.scale, codes: self.codes }]
    }

    fn form(&self) -> Form {
        Form { bits: 8, group: self.columns.max(1), count: 1 }
    }

    fn decoding(&self, _: &dyn CheckpointReader) -> Result<Decoding> {
        let code = Code::Number(DType::I8);
        Ok(Decoding { code, rule: Rule::Difference(1.0), dtype: DType::F32 })
    }

    fn codes(&self, base: &dyn CheckpointReader, tile: Tile, out: &mut [u8]) -> Result<()> {
        self.check_order(base)?;
        for (column, stored) in (tile.column..).take(tile.columns).enumerate() {
            let bytes = bytes_of(base, self.codes, stored * self.rows + tile.row, tile.rows)?;
            let codes = out[column..].iter_mut().step_by(tile.columns);
            codes.zip(bytes).for_each(|(code, byte)| *code = byte);
        }
        Ok(())
    }

    fn numbers(
        &self,
        base: &dyn CheckpointReader,
        rows: Range<u64>,
        _: Range<u64>,
    ) -> Result<Numbers> {
        let scales = scales_of(base, self.scale, base.tensors()[self.scale].dtype, rows)?;
        Ok(Numbers { scales, zeros: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Part, error, first};
    use super::*;

    #[test]
    fn integers_are_transposed_and_multiplied_by_the_scale_of_their_row() {
        // 1.0 and 0.5 in half precision.
        let parts: [Part<'_>; 2] = [
            ("up.weight", "I8", &[3, 2], &[1, 0xfe, 3, 4, 0x81, 6]),
            ("up.weight_scales", "F16", &[2], &[0x00, 0x3c, 0x00, 0x38]),
        ];
        let read = first(&parts, "").expect("values");
        assert_eq!((&*read.name, read.dtype), ("up.weight", DType::F32));
        assert_eq!(
            (read.shape, &*read.values),
            (vec![2, 3], &[1.0, 3.0, -127.0, -1.0, 2.0, 3.0][..])
        );

        let scales: Part<'_> = ("up.weight_scales", "F16", &[3], &[0x00, 0x3c, 0, 0, 0, 0]);
        let found = error(&[parts[0], scales], "");
        assert!(found.contains("E001") && found.contains("'up.weight_scales' is f16"), "{found}");
        let scales: Part<'_> = ("up.weight_scales", "F16", &[2], &[0x00, 0x7e, 0x00, 0x38]);
        let found = error(&[parts[0], scales], "");
        assert!(found.contains("E002") && found.contains("'up.weight_scales' is NaN"), "{found}");
    }

    #[test]
    fn integers_of_a_gpu_are_refused() {
        // A sum of eight numbers that are spread evenly is small more often than large.
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            i32::from(state.to_be_bytes()[0]) - 128
        };
        let bell = |_| ((0..8).map(|_| next()).sum::<i32>() / 5).clamp(-128, 127);
        let plain: Vec<i32> = (0..64 * 64).map(bell).collect();
        let bytes = |added: i32| -> Vec<u8> {
            plain.iter().map(|value| (value + added).to_le_bytes()[0]).collect()
        };
        let scales = [0x00, 0x3c].repeat(64);
        let read = |bytes: &[u8]| {
            let parts: [Part<'_>; 2] = [
                ("up.weight", "I8", &[64, 64], bytes),
                ("up.weight_scales", "F16", &[64], &scales),
            ];
            first(&parts, "")
        };
        assert!(read(&bytes(0)).is_ok());
        let found = read(&bytes(128)).expect_err("a GPU's").to_string();
        assert!(found.contains("E003") && found.contains("one GPU architecture"), "{found}");
    }
}
