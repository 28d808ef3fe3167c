//! GPTQ, and what auto-round writes in its layout.
//!
//! ```text
//! X.qweight  i32 [in * bits / 32, out]      codes of 2 to 8 bits, a stream along the inputs
//! X.qzeros   i32 [groups, out * bits / 32]  a stream along the outputs
//! X.scales   f16 [groups, out]
//! X.g_idx    i32 [in]                       the group of each input; where absent, in / group
//! ```
//!
//! A weight is `(code - zero) * scale`, rounded to the scale's dtype. Zero points of version 1 are
//! stored less one; nothing but the configuration says which version a file has.

use std::ops::Range;

use apr_core::{CheckpointReader, DType, Error, Escaped, Result, TensorInfo};
use apr_tensor::grouped::{Code, Decoding, Rule};

use super::find::{Kind, Tensors, Weight};
use super::grouped::{Form, Grouped, Numbers};
use super::qweight::{Layout, Parts, check_stated, exact, parts, stated_group};
use super::read::{
    Tile, code_at, codes_from, columns_of_words, scales_in, turned, usize_of, words_for, words_in,
    words_of,
};
use super::stated::Stated;
use super::zero::Scaling;

pub(super) const KIND: Kind = Kind { id: "gptq", find };

fn find(tensors: &Tensors<'_>, stated: &Stated, codes: usize) -> Option<Result<Weight>> {
    match parts(tensors, stated, codes)? {
        Ok(parts) if parts.layout != Layout::Gptq => None,
        found => Some(found.and_then(|parts| weight(tensors, stated, parts))),
    }
}

fn weight(tensors: &Tensors<'_>, stated: &Stated, parts: Parts<'_>) -> Result<Weight> {
    let Parts { stem, weight: name, codes, zeros, scales, g_idx, shapes, .. } = parts;
    let unfit = || tensors.unfit(zeros, &name, "zero points of 2 to 8 bits for each output");
    let bits = shapes.gptq_bits().ok_or_else(unfit)?;
    let [words, rows] = shapes.codes;
    let columns = exact(words.saturating_mul(32), bits).ok_or_else(unfit)?;
    let count = shapes.scales[0];
    let zeros_less_one = zeros_less_one(stated, bits).map_err(|error| error.for_tensor(&name))?;
    check_stated(tensors, stated, &name, (codes, bits), (scales, columns, count))?;
    if let Some(g_idx) = g_idx {
        tensors.check(g_idx, &name, &[DType::I32, DType::U32], &[columns])?;
    }
    let is_any_order = stated.get("desc_act").and_then(serde_json::Value::as_bool) == Some(true);
    if is_any_order && count > 1 && g_idx.is_none() {
        // Groups in turn would be those of other inputs.
        tensors.required(stem, ".g_idx")?;
    }
    let group = stated_group(stated)
        .filter(|group| columns.div_ceil(*group) == count)
        .or_else(|| exact(columns, count));
    let group = match (group, g_idx) {
        (Some(group), _) => group,
        (None, Some(_)) => columns.div_ceil(count),
        (None, None) => {
            let needed = format!("a row of scales for each group of {columns} inputs");
            return Err(tensors.unfit(scales, &name, &needed));
        }
    };

    let version = if zeros_less_one { "" } else { " v2" };
    let sizes = match count {
        1 => "a scale for each row".to_owned(),
        _ => format!("groups of {group}"),
    };
    let order = if g_idx.is_some() { ", with the group of each input" } else { "" };
    let all = [codes, zeros, scales].into_iter().chain(g_idx);
    let dtype = tensors.info(scales).dtype;
    Ok(Weight {
        description: format!("GPTQ{version}, {bits} bits, {sizes}{order}"),
        info: TensorInfo { name, dtype, shape: vec![rows, columns].into() },
        parts: all.chain(tensors.of_activations(stem)).collect(),
        decode: Box::new(Gptq { codes, zeros, scales, g_idx, bits, group, count, zeros_less_one }),
    })
}

/// Returns `true` if zero points are stored reduced by one.
///
/// # Errors
/// E003 where the configuration names another layout, or there is none to say it.
fn zeros_less_one(stated: &Stated, bits: u64) -> Result<bool> {
    let unknown = |what: &str, value: &str| {
        let value = Escaped::short(value);
        let message = format!("GPTQ's {what} '{value}' can't be decoded, and no value was read");
        Err(Error::version(message))
    };
    let is_auto_round = stated.get("autoround_version").is_some();
    match stated.method().as_deref() {
        Some("auto-round" | "auto_round") => {
            return match stated.text("packing_format").unwrap_or("auto") {
                "auto" | "auto_round:auto_gptq" | "auto_round:gptq" => Ok(true),
                "auto_round" | "auto_round:gptqmodel" => Ok(false),
                other => unknown("packing_format", other),
            };
        }
        Some("gptq") => {}
        None if stated.number("bits").is_some() => {}
        Some(method) => {
            let message = format!(
                "its parts are GPTQ's, but the configuration states '{}': the version of its zero \
                 points is unknown",
                Escaped::short(method)
            );
            return Err(Error::version(message));
        }
        None => {
            let message = "GPTQ weights without a configuration: config.json or \
                           quantize_config.json must state the version of the zero points, 1 or 2";
            return Err(Error::version(message));
        }
    }
    let format = stated.text("checkpoint_format").unwrap_or("gptq");
    match format {
        // What GPTQModel writes in these widths is planes of bits.
        "gptq" | "gptq_v2" if matches!(bits, 5..=7) && !is_auto_round => {
            unknown("planes of bits, in checkpoint_format", format)
        }
        "gptq" => Ok(true),
        "gptq_v2" => Ok(false),
        other => unknown("checkpoint_format", other),
    }
}

struct Gptq {
    codes: usize,
    zeros: usize,
    scales: usize,
    g_idx: Option<usize>,
    bits: u64,
    /// Inputs per group, if no part stores the group of each input.
    group: u64,
    /// Number of groups.
    count: u64,
    zeros_less_one: bool,
}

impl Gptq {
    /// The zero points of some groups and outputs, group by group.
    fn zeros(
        &self,
        base: &dyn CheckpointReader,
        groups: Range<u64>,
        outputs: Range<u64>,
    ) -> Result<Vec<f32>> {
        let words = words_for(outputs.clone(), self.bits);
        let width = usize_of(words.end - words.start)?.max(1);
        let packed = words_in(base, self.zeros, groups, words.clone())?;
        let more = u32::from(self.zeros_less_one);
        let zeros = packed.chunks_exact(width).flat_map(|packed| {
            let zero = |output| code_at(packed, words.start, self.bits, output) + more;
            outputs.clone().map(zero)
        });
        #[expect(clippy::cast_precision_loss, reason = "a zero point is 256 at most")]
        Ok(zeros.map(|zero| zero as f32).collect())
    }
}

impl Grouped for Gptq {
    fn scaling(&self) -> Vec<Scaling> {
        vec![Scaling { scales: self.scales, codes: self.codes }]
    }

    fn form(&self) -> Form {
        Form { bits: self.bits, group: self.group, count: self.count }
    }

    fn decoding(&self, base: &dyn CheckpointReader) -> Result<Decoding> {
        Ok(Decoding {
            code: Code::Number(DType::U8),
            rule: Rule::Difference(1.0),
            dtype: base.tensors()[self.scales].dtype,
        })
    }

    fn codes(&self, base: &dyn CheckpointReader, tile: Tile, out: &mut [u8]) -> Result<()> {
        let outputs = tile.row..tile.row + tile.rows as u64;
        let inputs = tile.column..tile.column + tile.columns as u64;
        let words = words_for(inputs, self.bits);
        let width = usize_of(words.end - words.start)?.max(1);
        let codes = columns_of_words(base, self.codes, words.clone(), outputs)?;
        for (codes, out) in codes.chunks_exact(width).zip(out.chunks_exact_mut(tile.columns)) {
            codes_from(codes, words.start, self.bits, tile.column, out);
        }
        Ok(())
    }

    fn numbers(
        &self,
        base: &dyn CheckpointReader,
        outputs: Range<u64>,
        groups: Range<u64>,
    ) -> Result<Numbers> {
        let len = usize_of(outputs.end - outputs.start)?;
        let scales = scales_in(base, self.scales, groups.clone(), outputs.clone())?;
        let zeros = self.zeros(base, groups, outputs)?;
        Ok(Numbers { scales: turned(&scales, len), zeros: turned(&zeros, len) })
    }

    fn groups_of(
        &self,
        base: &dyn CheckpointReader,
        inputs: Range<u64>,
    ) -> Result<Option<Vec<u64>>> {
        let Some(g_idx) = self.g_idx else { return Ok(None) };
        let groups = words_of(base, g_idx, inputs.clone())?;
        let over = groups.iter().find(|&&group| u64::from(group) >= self.count);
        if let Some(&over) = over {
            let message = format!(
                "'{}' refers to group {} of {}",
                base.tensors()[g_idx].name,
                over.cast_signed(),
                self.count
            );
            return Err(Error::corrupt(message));
        }
        let groups: Vec<u64> = groups.into_iter().map(u64::from).collect();
        let is_even = inputs.zip(&groups).all(|(input, group)| input / self.group == *group);
        Ok((!is_even).then_some(groups))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Part, error, first, u16s, u32s};
    use super::*;

    const V1: &str = r#"{"quantization_config":{"quant_method":"gptq","bits":4}}"#;
    const V2: &str = r#"{"quantization_config":{"quant_method":"gptq","bits":4,
        "checkpoint_format":"gptq_v2"}}"#;

    /// Eight outputs with the codes 0 to 15, zero points of 7 and scales of a half.
    struct Layer {
        codes: Vec<u8>,
        zeros: Vec<u8>,
        scales: Vec<u8>,
    }

    impl Layer {
        fn new() -> Self {
            let codes = [[0x7654_3210; 8], [0xfedc_ba98; 8]].concat();
            let (codes, zeros) = (u32s(&codes), u32s(&[0x7777_7777]));
            Self { codes, zeros, scales: u16s(&[0x3800; 8]) }
        }

        fn parts(&self) -> [Part<'_>; 3] {
            [
                ("up.qweight", "I32", &[2, 8], &self.codes),
                ("up.qzeros", "I32", &[1, 1], &self.zeros),
                ("up.scales", "F16", &[1, 8], &self.scales),
            ]
        }
    }

    /// Halves from one on, eight times.
    fn halves_from(start: f32) -> Vec<f32> {
        let row: Vec<f32> = (0..16_u8).map(|step| start + f32::from(step) / 2.0).collect();
        row.repeat(8)
    }

    #[test]
    fn zero_points_of_version_1_are_stored_less_one() {
        let layer = Layer::new();
        let read = first(&layer.parts(), V1).expect("values");
        assert_eq!((&*read.name, read.dtype), ("up.weight", DType::F16));
        assert_eq!(read.shape, [8, 16]);
        assert_eq!(read.values, halves_from(-4.0));
        let read = first(&layer.parts(), V2).expect("values");
        assert_eq!(read.values, halves_from(-3.5));
        // A file of AutoGPTQ's beside the weights has no method in it.
        let auto_round = |packing: &str| {
            let config = serde_json::json!({"quantization_config":
                {"quant_method": "auto-round", "packing_format": packing}});
            first(&layer.parts(), &config.to_string())
        };
        let [v1, v2] = ["auto_round:auto_gptq", "auto_round:gptqmodel"].map(auto_round);
        assert_eq!(v1.expect("values").values, halves_from(-4.0));
        assert_eq!(v2.expect("values").values, halves_from(-3.5));
        let exllama = auto_round("auto_round:exllamav2").expect_err("unknown").to_string();
        assert!(exllama.contains("packing_format 'auto_round:exllamav2'"), "{exllama}");
    }

    #[test]
    fn the_group_of_each_input_may_be_any() {
        let mut layer = Layer::new();
        layer.zeros = u32s(&[0, 0]);
        layer.scales = u16s(&[[0x3c00; 8], [0x4000; 8]].concat());
        let groups = u32s(&[1, 0, 0, 0, 0, 0, 0, 1, 0, 1, 1, 1, 1, 1, 1, 1]);
        let mut parts = layer.parts().to_vec();
        parts[1].2 = &[2, 1];
        parts[2].2 = &[2, 8];
        let even = first(&parts, V2).expect("values");
        let known = [0_u8, 1, 2, 3, 4, 5, 6, 7, 16, 18, 20, 22, 24, 26, 28, 30].map(f32::from);
        assert_eq!(even.values, known.repeat(8));
        let any_order = V2.replace("bits", r#"desc_act":true,"bits"#);
        let missing = error(&parts, &any_order);
        assert!(missing.contains("E001") && missing.contains("'up.g_idx' is missing"), "{missing}");
        parts.push(("up.g_idx", "I32", &[16], &groups));
        let read = first(&parts, V2).expect("values");
        let known = [0_u8, 1, 2, 3, 4, 5, 6, 14, 8, 18, 20, 22, 24, 26, 28, 30].map(f32::from);
        assert_eq!(read.values, known.repeat(8));

        for over in [2, u32::MAX] {
            let groups = u32s(&[&[over][..], &[0; 15]].concat());
            let mut parts = parts.clone();
            parts[3].3 = &groups;
            let error = error(&parts, V2);
            assert!(error.contains("E002") && error.contains("'up.g_idx'"), "{error}");
        }
        parts[3] = ("up.g_idx", "I32", &[15], &groups[..60]);
        let error = error(&parts, V2);
        assert!(error.contains("E001") && error.contains("'up.g_idx'"), "{error}");
    }

    #[test]
    fn three_bits_cross_words_and_the_last_group_may_be_short() {
        let words: [u32; 3] = [0x88fa_c688, 0xc688_fac6, 0xfac6_88fa];
        let codes = u32s(&words.map(|word| [word; 32]).concat());
        // Threes, one for each output: zero points of 4 in version 1.
        let zeros = u32s(&[0xdb6d_b6db, 0xb6db_6db6, 0x6db6_db6d].repeat(2));
        let scales = u16s(&[[0x3c00; 32], [0x4000; 32]].concat());
        let config = r#"{"quantization_config":{"quant_method":"gptq","bits":3,"group_size":24}}"#;
        let parts = [
            ("up.qweight", "I32", &[3, 32][..], &codes[..]),
            ("up.qzeros", "I32", &[2, 3], &zeros),
            ("up.scales", "F16", &[2, 32], &scales),
        ];
        let read = first(&parts, config).expect("values");
        let eight: [f32; 8] = [-4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0];
        let known = [eight, eight, eight, eight.map(|value| 2.0 * value)].concat();
        assert_eq!(read.values, known.repeat(32));
    }

    #[test]
    fn what_does_not_go_together_is_refused_by_name() {
        let layer = Layer::new();
        let parts = layer.parts();
        for (missing, name) in [(1, "'up.qzeros'"), (2, "'up.scales'")] {
            let mut rest = parts.to_vec();
            rest.remove(missing);
            let error = error(&rest, V1);
            assert!(error.contains("E001") && error.contains(name), "{error}");
        }
        let changed = |at: usize, part: Part<'_>| {
            let mut parts = parts.to_vec();
            parts[at] = part;
            error(&parts, V1)
        };
        let scales = u16s(&[0x3800; 16]);
        let error_of_shape = changed(2, ("up.scales", "F16", &[2, 8], &scales));
        assert!(error_of_shape.contains("E001"), "{error_of_shape}");
        assert!(error_of_shape.contains("do not match"), "{error_of_shape}");
        let of_dtype = changed(2, ("up.scales", "I16", &[1, 8], &layer.scales));
        assert!(of_dtype.contains("E001") && of_dtype.contains("'up.scales'"), "{of_dtype}");
        for nan in [0x7e00, 0x7c00] {
            let scales = u16s(&[0x3800, 0x3800, 0x3800, nan, 0x3800, 0x3800, 0x3800, 0x3800]);
            let of_nan = changed(2, ("up.scales", "F16", &[1, 8], &scales));
            assert!(of_nan.contains("E002") && of_nan.contains("number 3 of"), "{of_nan}");
        }
    }

    #[test]
    fn zero_points_are_not_guessed_if_the_configuration_does_not_state_them() {
        let layer = Layer::new();
        for (config, needed) in [
            ("", "without a configuration"),
            (r#"{"quantization_config":{"quant_method":"awq"}}"#, "'awq'"),
            (r#"{"quantization_config":{"bits":4,"checkpoint_format":"marlin"}}"#, "'marlin'"),
            (r#"{"quantization_config":{"bits":4,"checkpoint_format":"gptq_p"}}"#, "'gptq_p'"),
        ] {
            let error = error(&layer.parts(), config);
            assert!(error.contains("E003") && error.contains(needed), "{error}");
        }
    }
}
