//! The layouts whose parts are called `qweight`, `qzeros` and `scales`: which of them a weight has
//! is told by its shapes, and by the configuration where those fit more than one.

use apr_core::{DType, Error, Escaped, Result, TensorInfo};

use super::find::Tensors;
use super::stated::Stated;

/// Layout of codes, zero points and scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// Codes along the inputs, `[in * bits / 32, out]`.
    Gptq,
    /// AWQ, codes along the outputs in an order of its own, `[in, out / 8]`.
    Gemm,
    /// AWQ, codes along the inputs, `[out, in / 8]`.
    Gemv,
    /// AWQ, codes in words of 16 bits, `[out / 4, in]`.
    GemvFast,
}

/// The parts of such a weight.
pub(super) struct Parts<'a> {
    pub(super) layout: Layout,
    pub(super) stem: &'a str,
    /// Name of the weight.
    pub(super) weight: String,
    pub(super) codes: usize,
    pub(super) zeros: usize,
    pub(super) scales: usize,
    /// The group of each input.
    pub(super) g_idx: Option<usize>,
    pub(super) shapes: Shapes,
}

/// Lengths of the three parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shapes {
    pub(super) codes: [u64; 2],
    pub(super) zeros: [u64; 2],
    pub(super) scales: [u64; 2],
}

/// Returns the parts of the weight with these codes, or `None` if the codes are not of such a
/// weight.
pub(super) fn parts<'a>(
    tensors: &Tensors<'a>,
    stated: &Stated,
    codes: usize,
) -> Option<Result<Parts<'a>>> {
    let stem = tensors.stem(codes, ".qweight")?;
    let is_of_words = matches!(tensors.info(codes).dtype, DType::I32 | DType::U32 | DType::I16);
    let ends = [".qzeros", ".scales", ".g_idx"];
    (is_of_words && tensors.beside(stem, &ends).is_some())
        .then(|| checked(tensors, stated, stem, codes))
}

fn checked<'a>(
    tensors: &Tensors<'a>,
    stated: &Stated,
    stem: &'a str,
    codes: usize,
) -> Result<Parts<'a>> {
    let weight = format!("{stem}.weight");
    let zeros = tensors.required(stem, ".qzeros")?;
    let scales = tensors.required(stem, ".scales")?;
    let g_idx = tensors.beside(stem, &[".g_idx"]);
    let [codes_info, zeros_info, scales_info] = [codes, zeros, scales].map(|at| tensors.info(at));
    if !matches!(scales_info.dtype, DType::F16 | DType::BF16 | DType::F32) {
        return Err(tensors.unfit(scales, &weight, "f16, bf16 or f32"));
    }
    let shapes = Shapes {
        codes: tensors.matrix(codes, &weight)?,
        zeros: tensors.matrix(zeros, &weight)?,
        scales: tensors.matrix(scales, &weight)?,
    };
    let is_fast = codes_info.dtype == DType::I16;
    let words_of = |info: &TensorInfo| match info.dtype {
        DType::I32 | DType::U32 => !is_fast,
        dtype => is_fast && dtype == scales_info.dtype,
    };
    if !words_of(zeros_info) {
        let needed = if is_fast { scales_info.dtype.name() } else { "i32" };
        return Err(tensors.unfit(zeros, &weight, needed));
    }

    let layout = shapes.layout(stated, is_fast, g_idx.is_some()).map_err(|why| match why {
        Unclear::None => Error::format(format!(
            "its parts '{}' {}, '{}' {} and '{}' {} do not match, as GPTQ or as AWQ",
            codes_info.name,
            codes_info.shape,
            zeros_info.name,
            zeros_info.shape,
            scales_info.name,
            scales_info.shape
        )),
        Unclear::Many => Error::version(format!(
            "the shapes of its parts fit both GPTQ and AWQ, and {}: a configuration with \
             'quant_method' is required next to the weights",
            match stated.method() {
                Some(method) => format!("the method '{}' is neither", Escaped::short(&method)),
                None => "no configuration states which".to_owned(),
            }
        )),
    });
    let layout = layout.map_err(|error| error.for_tensor(&weight))?;
    Ok(Parts { layout, stem, weight, codes, zeros, scales, g_idx, shapes })
}

/// Reason for which the layout is not determined.
enum Unclear {
    None,
    Many,
}

impl Shapes {
    fn layout(
        self,
        stated: &Stated,
        is_fast: bool,
        has_groups: bool,
    ) -> std::result::Result<Layout, Unclear> {
        if is_fast {
            return Ok(Layout::GemvFast);
        }
        let is_awq = !has_groups;
        let fits = [
            (Layout::Gptq, self.gptq_bits().is_some()),
            (Layout::Gemm, is_awq && self.is_gemm()),
            (Layout::Gemv, is_awq && self.gemv_group(stated).is_some()),
        ];
        let fitting = fits.into_iter().filter_map(|(layout, fits)| fits.then_some(layout));
        match *fitting.collect::<Vec<_>>() {
            [] => Err(Unclear::None),
            [layout] => Ok(layout),
            ref several => {
                let version = stated.text("version").or_else(|| stated.text("format"));
                let packing = stated.text("packing_format").unwrap_or_default();
                let said = match stated.method().as_deref() {
                    Some("awq") if version.is_some_and(|version| version == "gemv") => Layout::Gemv,
                    Some("awq") => Layout::Gemm,
                    Some("auto-round" | "auto_round") if packing.ends_with("awq") => Layout::Gemm,
                    Some("gptq" | "auto-round" | "auto_round") => Layout::Gptq,
                    _ => return Err(Unclear::Many),
                };
                several.contains(&said).then_some(said).ok_or(Unclear::Many)
            }
        }
    }

    /// Bits of a code of GPTQ, of which the zero points for each output have a whole number; `None`
    /// where the parts are not GPTQ's.
    pub(super) fn gptq_bits(self) -> Option<u64> {
        let ([words, out], [_, zero_words], [groups, _]) = (self.codes, self.zeros, self.scales);
        let bits = exact(zero_words.checked_mul(32)?, out)?;
        let inputs = exact(words.checked_mul(32)?, bits)?;
        let goes = self.zeros[0] == groups && self.scales[1] == out && groups <= inputs;
        (goes && groups > 0 && (2..=8).contains(&bits)).then_some(bits)
    }

    fn is_gemm(self) -> bool {
        let ([inputs, words], [groups, out]) = (self.codes, self.scales);
        self.zeros == [groups, words]
            && words.checked_mul(8) == Some(out)
            && exact(inputs, groups).is_some()
    }

    /// Inputs of a group, by the number of words that their zero points are padded to.
    pub(super) fn gemv_group(self, stated: &Stated) -> Option<u64> {
        let ([out, words], [_, zero_words]) = (self.codes, self.zeros);
        let inputs = words.checked_mul(8)?;
        if self.zeros[0] != out || self.scales != [out, zero_words.checked_mul(8)?] {
            return None;
        }
        let fits = |group: &u64| {
            exact(inputs, *group).is_some_and(|groups| padded(groups, *group) == zero_words)
        };
        match stated_group(stated).filter(|group| fits(group)) {
            Some(group) => Some(group),
            None => the_only([32, 64, 128].into_iter().filter(fits)),
        }
    }
}

/// Words of eight zero points of AWQ's padded layouts.
pub(super) fn padded(groups: u64, group: u64) -> u64 {
    let multiple = match group {
        128.. => 1,
        64.. => 2,
        _ => 4,
    };
    groups.div_ceil(8).next_multiple_of(multiple)
}

/// The size of a group that the configuration states; `None` for whole rows.
pub(super) fn stated_group(stated: &Stated) -> Option<u64> {
    let group = stated.number("group_size").or_else(|| stated.number("q_group_size"));
    group.filter(|&group| group > 0)
}

/// Checks a weight's bits, and the number of its groups, against the configuration, unless that
/// states other numbers for some modules.
///
/// # Errors
/// E001 with the names of the weight and of its part.
pub(super) fn check_stated(
    tensors: &Tensors<'_>,
    stated: &Stated,
    weight: &str,
    (codes, bits): (usize, u64),
    (scales, columns, count): (usize, u64, u64),
) -> Result<()> {
    let has_others = ["dynamic", "extra_config"].iter().any(|key| {
        stated.get(key).and_then(|others| others.as_object()).is_some_and(|all| !all.is_empty())
    });
    if has_others {
        return Ok(());
    }
    let said = stated.number("bits").or_else(|| stated.number("w_bit"));
    if let Some(said) = said.filter(|said| *said != bits) {
        let needed = format!("codes of {said} bits, which the configuration states,");
        return Err(tensors.unfit(codes, weight, &needed));
    }
    let whole = ["group_size", "q_group_size"].iter().find_map(|key| stated.get(key)?.as_i64());
    let said = stated_group(stated).or_else(|| whole.filter(|&size| size == -1).map(|_| columns));
    match said {
        Some(group) if columns.div_ceil(group) != count => {
            let needed = format!(
                "a scale for each group of {group} of {columns} inputs, which the configuration \
                 states,"
            );
            Err(tensors.unfit(scales, weight, &needed))
        }
        _ => Ok(()),
    }
}

/// A quotient without a rest.
pub(super) fn exact(number: u64, divisor: u64) -> Option<u64> {
    (divisor > 0 && number > 0 && number.is_multiple_of(divisor)).then(|| number / divisor)
}

/// The element of an iterator that has one.
pub(super) fn the_only<T>(mut items: impl Iterator<Item = T>) -> Option<T> {
    let first = items.next()?;
    items.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{error, first, folder, u16s, u32s};

    #[test]
    fn shapes_of_two_layouts_need_a_configuration() {
        // 256 inputs in groups of 8 as GPTQ, in groups of 32 as AWQ's gemv.
        let [codes, zeros] = [u32s(&[0x1111_1111; 1024]), u32s(&[0; 128])];
        let scales = u16s(&[0x3c00; 1024]);
        let parts = [
            ("up.qweight", "I32", &[32, 32][..], &codes[..]),
            ("up.qzeros", "I32", &[32, 4], &zeros),
            ("up.scales", "F16", &[32, 32], &scales),
        ];
        for config in ["", r#"{"quantization_config":{"quant_method":"new"}}"#] {
            let error = error(&parts, config);
            assert!(error.contains("E003") && error.contains("both GPTQ and AWQ"), "{error}");
        }
        for (config, kind, value) in [
            (r#"{"quantization_config":{"quant_method":"awq","version":"gemv"}}"#, "awq", 1.0),
            (r#"{"quantization_config":{"quant_method":"gptq","bits":4}}"#, "gptq", 0.0),
        ] {
            let model = folder(&parts, config);
            assert_eq!(model.stored(0).coding().map(|coding| coding.kind), Some(kind));
            let read = first(&parts, config).expect("values");
            assert_eq!((&read.shape[..], read.values[0]), (&[32, 256][..], value));
        }
    }
}
