//! Integers of onnxruntime's quantizers, in a file that has no graph beside them.
//!
//! ```text
//! X_quantized   u8 or i8, or floats of 8 bits  ┐
//! X_scale       f32 or f16 [] or [n]           ├─▶ X, of the codes' shape
//! X_zero_point  as X_quantized [] or [n]       ┘
//! ```
//!
//! A value is `(code - zero point) * scale`. The axis that scales go along is in the graph alone.
//! Without one, it is the only axis of their length; the scales of an LSTM may have two, of the
//! directions and of the outputs. A bias of 32-bit integers is `X_quantized`, and its scales are
//! `X_quantized_scale`.

use apr_core::{CheckpointReader, DType, Error, Result, TensorInfo};
use apr_tensor::element::widen_f64;

use super::find::{Decode, Kind, Tensors, Weight};
use super::read::{Tile, bytes_of, scales_of, usize_of};
use super::stated::Stated;
use super::zero::Scaling;

pub(super) const KIND: Kind = Kind { id: "onnx-int8", find };

/// Suffixes of the parts' names.
const CODES: &str = "_quantized";
const SCALE: &str = "_scale";
const ZERO: &str = "_zero_point";

fn find(tensors: &Tensors<'_>, _: &Stated, codes: usize) -> Option<Result<Weight>> {
    use DType::{F8_E4M3, F8_E5M2, I8, I16, I32, U8, U16};
    let info = tensors.info(codes);
    let stem = tensors.stem(codes, CODES).filter(|stem| !stem.is_empty())?;
    if ![I8, U8, I16, U16, I32, F8_E4M3, F8_E5M2].contains(&info.dtype) {
        return None;
    }
    // Those of a bias have the name of the codes.
    let of_codes = &info.name;
    let part = |end| tensors.beside(stem, &[end]).or_else(|| tensors.beside(of_codes, &[end]));
    match (part(SCALE), part(ZERO)) {
        (None, None) => None,
        (None, Some(_)) => tensors.required_of(stem, stem, SCALE).err().map(Err),
        (Some(scale), zero) => Some(weight(tensors, stem, [codes, scale], zero)),
    }
}

fn weight(
    tensors: &Tensors<'_>,
    name: &str,
    [codes, scale]: [usize; 2],
    zero: Option<usize>,
) -> Result<Weight> {
    let (info, of_scale) = (tensors.info(codes), tensors.info(scale));
    tensors.check(scale, name, &[DType::F32, DType::F16, DType::BF16], of_scale.shape.dims())?;
    if let Some(zero) = zero {
        tensors.check(zero, name, &[info.dtype], of_scale.shape.dims())?;
    }
    let axes = axes(tensors, name, codes, scale)?;
    let scales = match axes.len() {
        0 => "one scale".to_owned(),
        _ => format!("a scale for each index of {}", listed(&axes)),
    };
    Ok(Weight {
        description: format!("onnxruntime, {}, {scales}", info.dtype),
        info: TensorInfo {
            name: name.to_owned(),
            dtype: of_scale.dtype,
            shape: info.shape.clone(),
        },
        parts: [codes, scale].into_iter().chain(zero).collect(),
        decode: Box::new(Affine { codes, scale, zero, axes }),
    })
}

/// `axis 1`, `axes 0 and 2`.
fn listed(axes: &[usize]) -> String {
    let numbers: Vec<String> = axes.iter().map(ToString::to_string).collect();
    format!("{} {}", if axes.len() == 1 { "axis" } else { "axes" }, numbers.join(" and "))
}

/// Returns the axes along which there are scales; none for a single scale.
///
/// # Errors
/// E001 where no axis has their length, E003 where several have.
fn axes(tensors: &Tensors<'_>, name: &str, codes: usize, scale: usize) -> Result<Vec<usize>> {
    let (dims, of_scale) = (tensors.info(codes).shape.dims(), tensors.info(scale).shape.dims());
    match (of_scale, dims) {
        ([] | [1], _) => Ok(Vec::new()),
        ([directions, outputs], [first, _, last]) if (directions, outputs) == (first, last) => {
            Ok(vec![0, 2])
        }
        ([len], _) => {
            let axes: Vec<usize> = (0..dims.len()).filter(|axis| dims[*axis] == *len).collect();
            if axes.len() < 2 {
                let needed = || "scales of the length of an axis of its codes";
                return axes
                    .first()
                    .map(|axis| vec![*axis])
                    .ok_or_else(|| tensors.unfit(scale, name, needed()));
            }
            let message = format!(
                "its {len} scales may be along {} of its codes, which only the graph of the ONNX \
                 model states; convert the model into a folder, which keeps the graph",
                listed(&axes).replace(" and ", " or ")
            );
            Err(Error::version(message).for_tensor(name))
        }
        _ => Err(tensors.unfit(scale, name, "one scale, or a list of them")),
    }
}

/// Integers with scales and zero points along some axes.
struct Affine {
    codes: usize,
    scale: usize,
    zero: Option<usize>,
    axes: Vec<usize>,
}

impl Decode for Affine {
    fn scaling(&self) -> Vec<Scaling> {
        vec![Scaling { scales: self.scale, codes: self.codes }]
    }

    fn decode(&self, base: &dyn CheckpointReader, tile: Tile, out: &mut [f32]) -> Result<()> {
        let info = |part: usize| &base.tensors()[part];
        let dims = info(self.codes).shape.dims();
        let first = tile.row * info(self.codes).shape.row_len() + tile.column;
        let codes = elements_of(base, self.codes, first, out.len())?;

        // A tile needs few of the numbers: not all are read for each.
        let strides = strides(dims);
        let number = |element: u64| {
            self.axes.iter().fold(0, |number, axis| {
                number * dims[*axis] + element / strides[*axis] % dims[*axis]
            })
        };
        let numbers: Vec<u64> = (first..).take(out.len()).map(number).collect();
        let Some((least, most)) = numbers.iter().min().zip(numbers.iter().max()) else {
            return Ok(());
        };
        let scales = scales_of(base, self.scale, info(self.scale).dtype, *least..most + 1)?;
        let zeros = match self.zero {
            Some(zero) => elements_of(base, zero, *least, scales.len())?,
            None => vec![0.0; scales.len()],
        };
        for ((code, number), out) in codes.iter().zip(&numbers).zip(out) {
            let number = usize_of(number - least)?;
            #[expect(clippy::cast_possible_truncation, reason = "as onnxruntime rounds it")]
            let difference = (code - zeros[number]) as f32;
            *out = difference * scales[number];
        }
        Ok(())
    }
}

/// Elements between neighbours along each axis.
fn strides(dims: &[u64]) -> Vec<u64> {
    let mut strides = vec![1; dims.len()];
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis] * dims[axis];
    }
    strides
}

/// Elements of integers or small floats, exactly.
///
/// # Errors
/// Those of [`bytes_of`].
fn elements_of(
    base: &dyn CheckpointReader,
    tensor: usize,
    first: u64,
    count: usize,
) -> Result<Vec<f64>> {
    let dtype = base.tensors()[tensor].dtype;
    let width = dtype.block_bytes();
    let bytes = bytes_of(base, tensor, first * width, usize_of(count as u64 * width)?)?;
    let mut elements = Vec::new();
    widen_f64(dtype, &bytes, &mut elements);
    Ok(elements)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Part, error, first, folder};
    use super::*;

    const HALF: [u8; 4] = 0.5_f32.to_le_bytes();
    const TWO: [u8; 4] = 2.0_f32.to_le_bytes();

    #[test]
    fn one_scale_applies_to_all_codes() {
        let codes: Part<'_> = ("a.weight_quantized", "U8", &[2, 3], &[0, 128, 129, 130, 255, 7]);
        let scale: Part<'_> = ("a.weight_scale", "F32", &[], &HALF);
        let zero: Part<'_> = ("a.weight_zero_point", "U8", &[], &[128]);
        let read = first(&[codes, scale, zero], "").expect("values");
        assert_eq!((&*read.name, read.dtype, &*read.shape), ("a.weight", DType::F32, &[2, 3][..]));
        assert_eq!(read.values, [-64.0, 0.0, 0.5, 1.0, 63.5, -60.5]);
        // Without zero points they are 0.
        let read = first(&[codes, scale], "").expect("values");
        assert_eq!(read.values, [0.0, 64.0, 64.5, 65.0, 127.5, 3.5]);
    }

    #[test]
    fn several_scales_go_along_the_axis_of_their_length() {
        let scales = [HALF, TWO].concat();
        let scale: Part<'_> = ("X_scale", "F32", &[2], &scales);
        let zero: Part<'_> = ("X_zero_point", "I8", &[2], &[0, 1]);
        let codes: Part<'_> = ("X_quantized", "I8", &[2, 3], &[1, 2, 3, 4, 5, 0xfe]);
        let read = first(&[codes, scale, zero], "").expect("values");
        assert_eq!(read.values, [0.5, 1.0, 1.5, 6.0, 8.0, -6.0]);
        let codes: Part<'_> = ("X_quantized", "I8", &[3, 2], &[1, 2, 3, 4, 5, 0xfe]);
        let read = first(&[codes, scale, zero], "").expect("values");
        assert_eq!(read.values, [0.5, 2.0, 1.5, 6.0, 2.5, -6.0]);

        // Scales of an LSTM: of directions and outputs.
        let scales = [HALF, TWO, TWO, HALF].concat();
        let scale: Part<'_> = ("X_scale", "F32", &[2, 2], &scales);
        let codes: Part<'_> = ("X_quantized", "I8", &[2, 1, 2], &[1, 2, 3, 4]);
        let read = first(&[codes, scale], "").expect("values");
        assert_eq!(read.values, [0.5, 4.0, 6.0, 2.0]);

        let codes: Part<'_> = ("X_quantized", "I8", &[2, 2], &[1, 2, 3, 4]);
        let scale: Part<'_> = ("X_scale", "F32", &[2], &scales[..8]);
        let found = error(&[codes, scale, zero], "");
        assert!(found.contains("E003") && found.contains("axes 0 or 1"), "{found}");
        let scale: Part<'_> = ("X_scale", "F32", &[3], &scales[..12]);
        let found = error(&[codes, scale], "");
        assert!(found.contains("E001") && found.contains("'X_scale' is f32 [3]"), "{found}");
    }

    #[test]
    fn scales_of_a_bias_have_the_name_of_its_codes() {
        let bytes = [16_777_217_i32.to_le_bytes(), (-3_i32).to_le_bytes()].concat();
        let codes: Part<'_> = ("a.bias_quantized", "I32", &[2], &bytes);
        let scale: Part<'_> = ("a.bias_quantized_scale", "F32", &[1], &TWO);
        let zero: Part<'_> = ("a.bias_quantized_zero_point", "I32", &[1], &[0; 4]);
        let read = first(&[codes, scale, zero], "").expect("values");
        assert_eq!((&*read.name, &*read.values), ("a.bias", &[33_554_432.0, -6.0][..]));
    }

    #[test]
    fn codes_without_a_scale_are_refused_where_a_zero_point_is_beside_them() {
        let codes: Part<'_> = ("X_quantized", "I8", &[1, 2], &[1, 2]);
        let zero: Part<'_> = ("X_zero_point", "I8", &[], &[0]);
        let found = error(&[codes, zero], "");
        assert!(found.contains("E001") && found.contains("'X_scale' is missing"), "{found}");
        // A tensor may be called so.
        assert_eq!(folder(&[codes], "").tensors()[0].name, "X_quantized");
        let (nan, len) = (f32::NAN.to_le_bytes(), [3]);
        let found = error(&[codes, ("X_scale", "F32", &[], &nan)], "");
        assert!(found.contains("E002") && found.contains("'X_scale' is NaN"), "{found}");
        let zeros: Part<'_> = ("X_zero_point", "I8", &len, &[0; 3]);
        let found = error(&[codes, ("X_scale", "F32", &[], &HALF), zeros], "");
        assert!(found.contains("E001") && found.contains("'X_zero_point' is i8 [3]"), "{found}");
    }
}
