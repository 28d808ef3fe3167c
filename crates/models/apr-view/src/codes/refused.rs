//! Methods of quantization that are recognised and not decoded.
//!
//! Some need a transform of a layer's inputs, some store weights in the order of one kind of GPU,
//! and of some there was no file to check a decoder against. Their weights are refused by name:
//! codes that are read as numbers would be wrong without a word.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use apr_core::json::entries;
use apr_core::{DType, Error, Escaped, Result, counted};
use serde_json::Value;

use super::find::{Found, Tensors, Weight};
use super::stated::Stated;

/// Quantization method that cannot be decoded here.
struct Method {
    /// Name for users.
    name: &'static str,
    /// Names in configurations, in lower case.
    ids: &'static [&'static str],
    /// Suffixes of part names, a combination that no other method has.
    marks: &'static [&'static str],
    /// Program that reads the method.
    reader: &'static str,
}

const fn method(
    name: &'static str,
    ids: &'static [&'static str],
    marks: &'static [&'static str],
    reader: &'static str,
) -> Method {
    Method { name, ids, marks, reader }
}

/// Programs that read several of them.
const TRANSFORMERS: &str = "transformers";
const GPTQMODEL: &str = "GPTQModel";
const EXLLAMA: &str = "ExLlama";

const METHODS: [Method; 19] = [
    method("AQLM", &["aqlm"], &["codes", "codebooks"], "transformers with the package aqlm"),
    method(
        "VPTQ",
        &["vptq"],
        &["indices", "centroids.weight"],
        "transformers with the package vptq",
    ),
    method("QuIP#", &["quip", "quip#", "quip_sharp"], &["Qidxs", "SU", "SV"], "quip-sharp"),
    method("SpQR", &["spqr"], &["dense_weights", "col_vals"], "transformers with spqr_quant"),
    method("HIGGS", &["higgs"], &["tables", "tables2"], "transformers with flute"),
    method("EXL2", &["exl2"], &["q_weight", "q_scale"], EXLLAMA),
    method("EXL3", &["exl3"], &["trellis", "suh"], EXLLAMA),
    method("QQQ", &["qqq"], &["B", "s_channel"], GPTQMODEL),
    method("GPTQ in Marlin's order", &["marlin"], &["B", "s"], "vLLM"),
    method("2:4 in Marlin's order", &["marlin-24"], &["scale_packed", "meta"], "vLLM"),
    method("BitBLAS", &["bitblas"], &["qweight", "zeros", "scales"], GPTQMODEL),
    method("MLX under transformers", &["metal"], &["qbiases"], TRANSFORMERS),
    method("FP-Quant", &["fp_quant"], &["forward_hadamard_matrix"], TRANSFORMERS),
    method("Quark", &["quark"], &[], "Quark"),
    method("SINQ", &["sinq"], &[], TRANSFORMERS),
    method("GGUF blocks", &["gguf"], &[], GPTQMODEL),
    method("Four over Six", &["fouroversix"], &[], TRANSFORMERS),
    method("ParoQuant", &["paroquant"], &[], GPTQMODEL),
    method("NVFP4 of transformers", &["nvfp4"], &[], TRANSFORMERS),
];

/// Names in configurations of the methods that are decoded.
///
/// In the remaining tensors of their files, being integers is not enough to count as codes.
const DECODED: [&str; 15] = [
    "auto-round",
    "auto_round",
    "awq",
    "bitnet",
    "bitsandbytes",
    "compressed-tensors",
    "eetq",
    "fbgemm_fp8",
    "fp8",
    "gptq",
    "hqq",
    "mxfp4",
    "mxfp8",
    "quanto",
    "torchao",
];

/// Adds the remaining codes and the tensors that belong to them, to a rejected weight or as a new
/// one.
pub(super) fn add_left_over(
    tensors: &Tensors<'_>,
    stated: &Stated,
    taken: &BTreeSet<usize>,
    found: &mut Vec<Found>,
) {
    let stem_of = |position: usize| tensors.info(position).name.rsplit_once('.');
    let mut refused: HashMap<&str, usize> = HashMap::new();
    for (number, found) in found.iter().enumerate() {
        if let Found::Refused(parts, _) = found {
            let stem = parts.first().and_then(|&part| stem_of(part));
            refused.extend(stem.map(|(stem, _)| (stem, number)));
        }
    }
    let mut stems: BTreeMap<&str, Vec<Part<'_>>> = BTreeMap::new();
    for (position, info) in tensors.all().iter().enumerate() {
        let stem = stem_of(position).filter(|_| !taken.contains(&position));
        if let Some((stem, last)) = stem.filter(|(_, last)| *last != "bias") {
            let is_number = info.shape.dims().is_empty();
            let part = Part { position, last, dtype: info.dtype, is_number };
            stems.entry(stem).or_default().push(part);
        }
    }

    let is_undecoded = is_undecoded(stated);
    let marker = tensors.marker();
    for (stem, mut parts) in stems {
        parts.retain(|part| Some(part.position) != marker);
        if let Some(Found::Refused(all, _)) = refused.get(stem).map(|&number| &mut found[number]) {
            let belonging = parts.iter().filter(|part| part.is_of_codes() || part.is_scale());
            all.extend(belonging.map(|part| part.position));
            continue;
        }
        if !parts.iter().any(Part::is_integer) {
            continue;
        }
        let marked = marked(tensors, stem);
        let bare_codes = parts.iter().find(|part| part.is_bare());
        // Scales of activations do not decode codes that lack their own.
        let of_activations: Vec<usize> = tensors.of_activations(stem).collect();
        let is_of_activations = |part: &&Part<'_>| of_activations.contains(&part.position);
        let has_scale = parts
            .iter()
            .any(|part| part.is_scale() && (bare_codes.is_none() || !is_of_activations(&part)));
        let are_codes = |part: &Part<'_>| {
            let needs_no_scale = has_scale || is_undecoded || CODES.contains(&part.last);
            part.is_of_codes() && !part.is_scale() && needs_no_scale
        };
        if marked.is_some() || parts.iter().any(are_codes) {
            let method = marked.or_else(|| stated_method(stated));
            let names: Vec<&str> =
                parts.iter().map(|part| &*tensors.info(part.position).name).collect();
            let error = error(method, stated, &names).for_tensor(stem);
            let positions = parts.iter().map(|part| part.position).collect();
            found.push(Found::Refused(positions, error));
        } else if let Some(codes) = bare_codes {
            let is_scaled = || says_scaled(tensors, marker, (stem, &parts));
            let has_activations = || {
                let name = &tensors.info(parts.iter().find(is_of_activations)?.position).name;
                Some(format!("'{name}' belongs to a quantized weight"))
            };
            let who = match stated.is_any() {
                true => Some("the configuration states that weights are quantized".to_owned()),
                false => is_scaled().filter(|_| codes.is_float()).or_else(has_activations),
            };
            found.extend(
                who.map(|who| Found::Refused(vec![codes.position], bare(tensors, codes, &who))),
            );
        }
    }
}

/// Returns ComfyUI's evidence that a layer's 8-bit floats have a scale.
///
/// This is the tensor that marks the file, the part that describes the layer, or the description in
/// the header.
fn says_scaled(
    tensors: &Tensors<'_>,
    marker: Option<usize>,
    (stem, parts): (&str, &[Part<'_>]),
) -> Option<String> {
    const HEADER: &str = "_quantization_metadata";
    if let Some(marker) = marker {
        let name = &tensors.info(marker).name;
        return Some(format!("'{name}' states that weights are scaled"));
    }
    if let Some(part) = parts.iter().find(|part| part.last == "comfy_quant") {
        let name = &tensors.info(part.position).name;
        return Some(format!("'{name}' states that the weight is quantized"));
    }
    let described: Value = serde_json::from_str(tensors.header_text(HEADER)?).ok()?;
    described.get("layers")?.get(stem)?;
    Some(format!("'{HEADER}' of the header states that the weight is quantized"))
}

/// Returns the error for codes without scales in a checkpoint that states that its weights are
/// quantized.
fn bare(tensors: &Tensors<'_>, codes: &Part<'_>, who: &str) -> Error {
    let info = tensors.info(codes.position);
    let message = format!(
        "{who}, but these codes, {} {}, have no scales: they can't be decoded without scales",
        info.dtype, info.shape
    );
    Error::format(message).for_tensor(&info.name)
}

/// Suffixes of names that only codes have.
const CODES: [&str; 6] = ["qweight", "q_weight", "weight_packed", "W_q", "trellis", "qzeros"];

/// Suffixes of names that quantizers give to scales, zero points and tables.
const SCALES: [&str; 13] = [
    "scales",
    "qzeros",
    "absmax",
    "SCB",
    "codebooks",
    "centroids",
    "SU",
    "SV",
    "suh",
    "svh",
    "Qidxs",
    "zero",
    "qbiases",
];

/// A tensor that no kind took.
struct Part<'a> {
    position: usize,
    /// The end of its name.
    last: &'a str,
    dtype: DType,
    /// `true` for a scalar, such as a zero point of activations or a count.
    is_number: bool,
}

impl Part<'_> {
    fn is_of_codes(&self) -> bool {
        use DType::{F8_E4M3, F8_E5M2, I8, I16, I32, U8, U32};
        !self.is_number && [F8_E4M3, F8_E5M2, I8, I16, I32, U8, U32].contains(&self.dtype)
    }

    /// Returns `true` if these would be codes of a decoded method, but lack their scales.
    fn is_bare(&self) -> bool {
        const NAMES: [&str; 4] = ["weight", "_data", "_weight_qdata", "compressed"];
        let is_named = NAMES.contains(&self.last) || self.last.ends_with("_blocks");
        self.is_float() || is_named && matches!(self.dtype, DType::I8 | DType::U8 | DType::U32)
    }

    fn is_float(&self) -> bool {
        matches!(self.dtype, DType::F8_E4M3 | DType::F8_E5M2)
    }

    fn is_integer(&self) -> bool {
        self.is_of_codes() || matches!(self.dtype, DType::I64 | DType::U64 | DType::U16)
    }

    fn is_scale(&self) -> bool {
        let last = self.last;
        SCALES.contains(&last) || last.contains("_scale") || last.starts_with("scale_")
    }
}

/// Returns the method that the other parts of a layer identify.
fn marked(tensors: &Tensors<'_>, stem: &str) -> Option<&'static Method> {
    let has = |mark: &&str| tensors.beside(stem, &[&format!(".{mark}")]).is_some();
    METHODS.iter().find(|method| !method.marks.is_empty() && method.marks.iter().all(has))
}

/// The method that the configuration states, if it is one of these.
fn stated_method(stated: &Stated) -> Option<&'static Method> {
    let format = stated.text("checkpoint_format").map(str::to_ascii_lowercase);
    let named = [format, stated.method()].into_iter().flatten();
    named.filter_map(|id| METHODS.iter().find(|method| method.ids.contains(&&*id))).next()
}

/// Returns `true` if the configuration states a method that is not decoded.
fn is_undecoded(stated: &Stated) -> bool {
    let is_decoded = |method: &str| DECODED.contains(&method) || method.starts_with("modelopt");
    stated_method(stated).is_some() || stated.method().is_some_and(|method| !is_decoded(&method))
}

/// Returns the error for a layer whose weight has an undecoded method, as this part shows.
pub(super) fn of_part(tensors: &Tensors<'_>, stated: &Stated, stem: &str, part: usize) -> Error {
    let method = marked(tensors, stem).or_else(|| stated_method(stated));
    error(method, stated, &[&tensors.info(part).name]).for_tensor(format!("{stem}.weight"))
}

/// Returns the error for a weight quantized by an undecoded method, with the names of its parts.
fn error(method: Option<&Method>, stated: &Stated, parts: &[&str]) -> Error {
    let id = stated.method();
    let by = match (method, id.as_deref().map(Escaped::short)) {
        (Some(method), Some(id)) => format!("by {} ('{id}')", method.name),
        (Some(method), None) => format!("by {}", method.name),
        (None, Some(id)) => format!("by the method '{id}'"),
        (None, None) => "by a method that no configuration names".to_owned(),
    };
    let reader = method.map_or("the program that made the file", |method| method.reader);
    let named: Vec<String> = parts.iter().take(3).map(|part| format!("'{part}'")).collect();
    let more = parts.len().saturating_sub(named.len()) as u64;
    let and = if more > 0 { format!(" and {}", counted(more, "more part")) } else { "".into() };
    let message = format!(
        "the weight is quantized {by}, in {}{and}: this can't be decoded here; {reader} \
         dequantizes it. The file can still be listed, inspected and copied, and its bytes can \
         be checked",
        named.join(", ")
    );
    Error::version(message)
}

/// The weight, unless its layer computes with something else, or its codes are of a method that is
/// not decoded, whatever other method's they look like.
///
/// # Errors
/// E003 with the transform, or with the method and the names of the parts.
pub(super) fn checked(tensors: &Tensors<'_>, stated: &Stated, weight: Weight) -> Result<Weight> {
    if let Some(message) = online_transform(stated) {
        return Err(Error::version(message).for_tensor(&weight.info.name));
    }
    // Its blocks are decoded, if they are of the one type that is.
    if is_undecoded(stated) && stated.method().as_deref() != Some("gguf") {
        let names: Vec<&str> = weight.parts.iter().map(|&part| &*tensors.info(part).name).collect();
        return Err(error(stated_method(stated), stated, &names).for_tensor(&weight.info.name));
    }
    Ok(weight)
}

/// Returns the error for a weight whose layer's inputs are multiplied by a tensor of their own.
pub(super) fn factors(name: &str) -> Error {
    Error::version(format!(
        "the inputs of its layer are multiplied by '{name}', which is not supported: the layer's \
         outputs would be wrong"
    ))
}

/// Returns the transform that the configuration states to be made while the model runs, with what
/// follows: a weight alone is not what its layer computes with.
pub(super) fn online_transform(stated: &Stated) -> Option<String> {
    /// Places whose transforms are in the weights already.
    const IN_WEIGHTS: [&str; 2] = ["weight_input", "weight_output"];
    const AND_SO: &str = "which can't be done here: without it the weights compute something else";
    if stated.method().as_deref() == Some("fp_quant") {
        return Some(format!(
            "the configuration states a Hadamard transform of inputs that is made while the model \
             runs (FP-Quant), {AND_SO}"
        ));
    }
    let groups = stated.get("transform_config").and_then(|config| config.get("config_groups"));
    let groups = groups.and_then(|groups| groups.as_object()).into_iter().flat_map(entries);
    let places = groups.flat_map(|(name, group)| {
        let applied = group.get("apply").and_then(|apply| apply.as_array()).into_iter().flatten();
        applied.filter_map(move |apply| Some((name, group, apply.get("location")?.as_str()?)))
    });
    let mut online = places.filter(|(_, _, place)| !IN_WEIGHTS.contains(place));
    let (name, group, place) = online.next()?;
    let kind = group.get("type").and_then(|kind| kind.as_str()).unwrap_or("transform");
    Some(format!(
        "the configuration states a transform that is made while the model runs ('{}' of group \
         '{}', at '{}'), {AND_SO}",
        Escaped::short(kind),
        Escaped::short(name),
        Escaped::short(place)
    ))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Part, folder};

    /// Returns the error of reading each tensor of a folder, prefixed with its code; empty if there
    /// is no error.
    fn errors(parts: &[Part<'_>], config: &str) -> Vec<(String, String)> {
        let model = folder(parts, config);
        let read = |(tensor, info): (usize, &apr_core::TensorInfo)| {
            let mut bytes =
                vec![0; usize::try_from(info.byte_len().expect("a length")).expect("small")];
            let error = model.read_tensor(tensor, 0, &mut bytes).err();
            let error = error.map(|error| format!("{:?} {error}", error.code()));
            (info.name.clone(), error.unwrap_or_default())
        };
        model.tensors().iter().enumerate().map(read).collect()
    }

    #[test]
    fn floats_that_comfyui_scales_are_refused_without_any_scale() {
        let weight: Part<'_> = ("up.weight", "F8_E4M3", &[1, 2], &[0x38, 0x38]);
        let other: Part<'_> = ("down.weight", "F8_E4M3", &[1, 2], &[0x38, 0x38]);
        let scale: Part<'_> = ("down.scale_weight", "F32", &[1], &[0, 0, 0x80, 0x3f]);
        let marker: Part<'_> = ("model.scaled_fp8", "F8_E4M3", &[2], &[0, 0]);
        let described: Part<'_> = ("up.comfy_quant", "U8", &[2], b"{}");
        let error = |parts: &[Part<'_>]| {
            let errors = errors(parts, "");
            errors.into_iter().find(|(name, _)| name == "up.weight").expect("the weight").1
        };
        assert_eq!(error(&[weight]), "");
        for parts in [[weight, marker], [weight, described]] {
            let found = error(&parts);
            assert!(found.contains(parts[1].0) && found.contains("have no scales"), "{found}");
        }
        // Others have theirs.
        let found = error(&[weight, other, scale, marker]);
        assert!(found.contains("E001") && found.contains("'model.scaled_fp8'"), "{found}");
        assert!(found.contains("up.weight") && found.contains("have no scales"), "{found}");
        let parts = [other, scale, marker];
        assert_eq!(folder(&parts, "").warnings(), &[] as &[String]);
    }

    #[test]
    fn methods_are_identified_by_their_parts() {
        for (name, parts) in [
            ("AQLM", &[("codes", "I16"), ("codebooks", "F16"), ("scales", "F16")][..]),
            ("VPTQ", &[("indices", "I32"), ("centroids.weight", "F16")]),
            ("QuIP#", &[("Qidxs", "I64"), ("SU", "F16"), ("SV", "F16")]),
            ("SpQR", &[("dense_weights", "I64"), ("col_vals", "I32"), ("row_offsets", "I32")]),
            (
                "HIGGS",
                &[("weight", "I16"), ("scales", "F16"), ("tables", "F16"), ("tables2", "F16")],
            ),
            ("EXL2", &[("q_weight", "I32"), ("q_scale", "I32"), ("q_groups", "I16")]),
            ("EXL3", &[("trellis", "I16"), ("suh", "F16"), ("svh", "F16")]),
            ("QQQ", &[("B", "I32"), ("s_channel", "F32"), ("s_group", "F16")]),
            ("GPTQ in Marlin's order", &[("B", "I32"), ("s", "F16")]),
            ("MLX under transformers", &[("weight", "U32"), ("scales", "F16"), ("qbiases", "F16")]),
        ] {
            let named: Vec<String> = parts.iter().map(|(end, _)| format!("a.up.{end}")).collect();
            let mut tensors: Vec<Part<'_>> = named
                .iter()
                .zip(parts)
                .map(|(named, (_, dtype))| {
                    let bytes: &[u8] = match &dtype[1..] {
                        "64" => &[1; 8],
                        "32" => &[1; 4],
                        _ => &[1; 2],
                    };
                    (&**named, *dtype, &[1, 1][..], bytes)
                })
                .collect();
            tensors.push(("a.up.bias", "F16", &[1], &[0; 2]));
            tensors.push(("a.norm.weight", "F16", &[1], &[0; 2]));
            let errors = errors(&tensors, "");
            let first = &errors[0].1;
            assert!(first.contains("E003") && first.contains(&format!("by {name},")), "{first}");
            assert!(first.contains("'a.up."), "{first}");
            let plain =
                errors.iter().filter(|(_, error)| error.is_empty()).map(|(name, _)| &**name);
            let plain: Vec<&str> = plain.filter(|name| !name.contains("centroids")).collect();
            assert_eq!(plain, ["a.up.bias", "a.norm.weight"], "{name}");
        }
    }

    #[test]
    fn unknown_methods_are_rejected_with_their_names() {
        let codes: &[Part<'_>] = &[("up.weight", "I32", &[1, 1], &[0; 4])];
        assert_eq!(errors(codes, "")[0].1, "");
        for (method, needed) in [
            ("quark", "by Quark ('quark'), in 'up.weight'"),
            ("Brand-New", "by the method 'brand-new', in 'up.weight'"),
            ("gptq", ""),
        ] {
            let config = serde_json::json!({"quantization_config": {"quant_method": method}});
            let error = &errors(codes, &config.to_string())[0].1;
            assert!(error.contains(needed) && error.is_empty() == needed.is_empty(), "{error}");
        }
    }

    #[test]
    fn scales_of_activations_are_not_those_of_codes() {
        let parts: [Part<'_>; 2] = [
            ("up.weight", "F8_E4M3", &[1, 2], &[0x38; 2]),
            ("up.input_scale", "F32", &[], &[0, 0, 0, 0x3f]),
        ];
        let modelopt = r#"{"quantization_config":{"quant_method":"modelopt"}}"#;
        for (config, who) in [(modelopt, "the configuration"), ("", "'up.input_scale'")] {
            let error = &errors(&parts, config)[0].1;
            assert!(error.contains("E001") && error.contains("'up.weight'"), "{error}");
            assert!(error.contains(who) && error.contains("have no scales"), "{error}");
        }
    }

    #[test]
    fn codes_without_scales_are_rejected_if_the_configuration_states_quantization() {
        let config = |method: &str| format!(r#"{{"quantization_config":{{{method}}}}}"#);
        for (name, dtype, stated) in [
            ("up.weight", "F8_E4M3", r#""quant_method":"fp8""#),
            ("up.weight", "I8", r#""quant_method":"compressed-tensors""#),
            ("up.weight", "U32", r#""bits":4,"group_size":64"#),
            ("up.weight._data", "I8", r#""quant_method":"quanto""#),
            ("up_blocks", "U8", r#""quant_method":"mxfp4""#),
        ] {
            let bytes = [1; 4];
            let len = if dtype == "U32" { 4 } else { 1 };
            let name = format!("a.{name}");
            let codes: &[Part<'_>] = &[(&name, dtype, &[1, 1], &bytes[..len])];
            assert_eq!(errors(codes, "")[0].1, "", "a model may have such numbers");
            let error = &errors(codes, &config(stated))[0].1;
            assert!(error.contains("E001") && error.contains(&name), "{error}");
        }
    }

    #[test]
    fn a_weight_that_is_refused_takes_its_parts_with_it() {
        let parts: &[Part<'_>] = &[
            ("up.qweight", "I32", &[1, 8], &[0; 32]),
            ("up.qzeros", "I32", &[1, 1], &[0; 4]),
            ("up.g_idx", "I32", &[8], &[0; 32]),
            ("up.bias", "F16", &[1], &[0; 2]),
        ];
        let model = folder(parts, r#"{"quantization_config":{"quant_method":"gptq"}}"#);
        let [warning] = model.warnings() else { panic!("{:?}", model.warnings()) };
        assert!(warning.starts_with("1 weight in codes") && warning.contains("'up.scales'"));
        let mut bytes = [0; 4];
        let error = model.read_tensor(1, 0, &mut bytes).expect_err("a part");
        assert!(error.to_string().contains("'up.scales'"), "{error}");
        model.read_tensor(3, 0, &mut bytes[..2]).expect("no part");
    }

    #[test]
    fn transforms_that_are_made_while_a_model_runs_are_refused() {
        let config = |place: &str| {
            let apply = serde_json::json!([{"targets": ["Linear"], "location": place}]);
            serde_json::json!({"quantization_config": {
                "quant_method": "compressed-tensors",
                "transform_config": {"config_groups": {"u": {"type": "hadamard", "apply": apply}}},
            }})
        };
        let parts: &[Part<'_>] = &[
            ("up.weight", "I8", &[1, 2], &[1, 2]),
            ("up.weight_scale", "F32", &[1, 1], &[0, 0, 0x80, 0x3f]),
        ];
        assert_eq!(errors(parts, &config("weight_input").to_string())[0].1, "");
        for place in ["input", "output", "q_attn", "k_cache"] {
            let error = &errors(parts, &config(place).to_string())[0].1;
            assert!(error.contains("E003") && error.contains(&format!("at '{place}'")), "{error}");
        }
    }

    #[test]
    fn weights_of_unknown_methods_are_not_decoded_as_those_that_they_look_like() {
        let parts: &[Part<'_>] = &[
            ("up.weight", "I8", &[1, 2], &[1, 2]),
            ("up.weight_scale", "F32", &[1, 1], &[0, 0, 0x80, 0x3f]),
        ];
        let methods =
            ["zork", "Quark", "fp_quant", "aqlm", "vptq", "quip", "sinq", "fouroversix", "nvfp4"];
        for method in methods {
            let config = serde_json::json!({"quantization_config": {"quant_method": method}});
            let errors = errors(parts, &config.to_string());
            assert_eq!(errors.len(), 2, "parts are shown");
            assert!(errors.iter().all(|(_, error)| error.contains("E003")), "{method}: {errors:?}");
        }
        for method in ["fp8", "compressed-tensors", "modelopt_fp4", "quanto", "fbgemm_fp8"] {
            let config = serde_json::json!({"quantization_config": {"quant_method": method}});
            assert_eq!(errors(parts, &config.to_string())[0].1, "", "{method}");
        }
    }
}
