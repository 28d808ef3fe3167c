//! Formats that are told apart and not read: an error says what a file is, and what to use instead.

use std::collections::BTreeSet;

use apr_core::{Escaped, Format, counted};

/// HDF5, in builds without its reader.
#[cfg(not(feature = "keras"))]
pub(crate) static HDF5: Format = Format {
    id: "hdf5",
    name: "HDF5 (Keras)",
    recognises: |head| head.starts_with(b"\x89HDF"),
    ..Format::READ_ONLY
};

/// TensorFlow Lite, in builds without its reader.
#[cfg(not(feature = "tflite"))]
pub(crate) static TFLITE: Format = Format {
    id: "tflite",
    name: "TensorFlow Lite",
    recognises: |head| head.get(4..8) == Some(b"TFL3"),
    ..Format::READ_ONLY
};

/// onnxruntime's own format, in builds without its reader.
#[cfg(not(feature = "ort"))]
pub(crate) static ORT: Format = Format {
    id: "ort",
    name: "onnxruntime's own format (.ort)",
    recognises: |head| head.get(4..8) == Some(b"ORTM"),
    extensions: &["ort"],
    ..Format::READ_ONLY
};

/// An engine of TensorRT.
pub(crate) static TENSORRT: Format = Format {
    id: "tensorrt",
    name: "TensorRT engine",
    recognises: |head| head.starts_with(b"ptrt"),
    extensions: &["engine", "plan", "trt"],
    ..Format::READ_ONLY
};

/// A program of ExecuTorch.
pub(crate) static EXECUTORCH: Format = Format {
    id: "executorch",
    name: "ExecuTorch program (.pte)",
    recognises: |head| executorch_version(head).is_some(),
    extensions: &["pte"],
    ..Format::READ_ONLY
};

/// A model of OpenVINO, in builds without its reader.
#[cfg(not(feature = "openvino"))]
pub(crate) static OPENVINO: Format = Format {
    id: "openvino",
    name: "OpenVINO IR",
    recognises: |head| {
        let head = String::from_utf8_lossy(head);
        head.starts_with('<') && head.contains("<net ")
    },
    ..Format::READ_ONLY
};

/// A model for processors of Rockchip.
pub(crate) static RKNN: Format = Format {
    id: "rknn",
    name: "RKNN model",
    recognises: |head| head.starts_with(b"RKNN"),
    extensions: &["rknn"],
    ..Format::READ_ONLY
};

/// A model of ncnn: its graph as text.
pub(crate) static NCNN: Format = Format {
    id: "ncnn",
    name: "ncnn graph (.param)",
    recognises: |head| head.starts_with(b"7767517\n") || head.starts_with(b"7767517\r"),
    ..Format::READ_ONLY
};

/// A Core ML model with a description, in builds without its reader.
#[cfg(not(feature = "coreml"))]
pub(crate) static COREML: Format = Format {
    id: "coreml",
    name: "Core ML model",
    recognises: |head| matches!(head, [0x08, 1..=99, 0x12, _, 0x0a, _, 0x0a, ..]),
    extensions: &["mlmodel"],
    ..Format::READ_ONLY
};

/// Formats that are detected but not read in every build.
pub(crate) static NAMED: [&Format; 4] = [&TENSORRT, &EXECUTORCH, &RKNN, &NCNN];

/// The version of the schema of an ExecuTorch program: a flatbuffer with the mark `ET12`.
fn executorch_version(head: &[u8]) -> Option<&str> {
    let mark = std::str::from_utf8(head.get(4..8)?).ok()?;
    let version = mark.strip_prefix("ET")?;
    version.bytes().all(|byte| byte.is_ascii_digit()).then_some(version)
}

/// Returns the error message for a file that starts with these bytes: its format, version, and what
/// to do.
pub(crate) fn refusal(format: &Format, head: &[u8]) -> String {
    let (version, advice) = match format.id {
        "tensorrt" => (
            None,
            "it is compiled for one GPU and one version of TensorRT, without tensors; use the \
             ONNX file that it was built from",
        ),
        "executorch" => (
            executorch_version(head).map(|version| format!("schema {version}")),
            "its weights are stored for one device; use the .pt2 program or the checkpoint that \
             it was exported from",
        ),
        "rknn" => (
            None,
            "it is compiled for a processor of Rockchip; use the ONNX or TensorFlow Lite model \
             that it was converted from",
        ),
        "ncnn" => (
            None,
            "its weights are in the .bin next to it, in an order that the graph gives; use the \
             ONNX or PyTorch model that it was converted from",
        ),
        "ort" => (None, "use the .onnx model that it was made from"),
        _ => return format!("{} is recognized, not supported", format.name),
    };
    let version = version.map(|version| format!(", {version}")).unwrap_or_default();
    format!("{}{version} is recognized, not supported: {advice}", format.name)
}

/// Returns the error message for a folder with these files, if it is a model that is not supported.
pub(crate) fn folder(names: &[String]) -> Option<String> {
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    if has("coremldata.bin") || has("model.espresso.net") {
        let what = "compiled Core ML models (.mlmodelc) are not supported; use the .mlmodel or \
                    .mlpackage that it was compiled from";
        return Some(what.to_owned());
    }
    if has("model_index.json") {
        return Some(several("a pipeline of diffusers, which has several models", names));
    }
    if has("router_config.json") {
        let what = "a Router of sentence-transformers, which has a model for each route and is not \
            supported";
        return Some(several(what, names));
    }
    deepspeed(names)
}

/// Returns the error message for a folder in which each of several models has its own folder.
fn several(what: &str, names: &[String]) -> String {
    let is_weights =
        |file: &str| [".safetensors", ".bin", ".onnx"].iter().any(|end| file.ends_with(end));
    let folders: BTreeSet<&str> = names
        .iter()
        .filter_map(|name| name.split_once('/'))
        .filter(|(_, file)| is_weights(file))
        .map(|(folder, _)| folder)
        .collect();
    let folders: Vec<String> =
        folders.into_iter().map(|folder| Escaped::short(folder).to_string()).collect();
    let found = match &folders[..] {
        [] => "none of its folders is here".to_owned(),
        _ => format!("name one of its folders: {}", folders.join(", ")),
    };
    format!("this is {what}: {found}")
}

/// Returns the error message for a DeepSpeed checkpoint whose weights are partitions of flat
/// buffers.
///
/// Their order is specific to DeepSpeed and differs between its versions.
pub(crate) fn deepspeed(names: &[String]) -> Option<String> {
    let plain = |name: &str| name.rsplit('/').next().unwrap_or(name).to_owned();
    let is_of = |name: &str, kind: &str| plain(name).ends_with(kind);
    let is_of_zero =
        |name: &&String| is_of(name, "_optim_states.pt") && plain(name).contains("zero_pp_rank_");
    let partitions = names.iter().filter(is_of_zero).count() as u64;
    if partitions == 0 {
        return None;
    }

    let states: Vec<&String> =
        names.iter().filter(|name| is_of(name, "_model_states.pt")).collect();
    let whole = match states[..] {
        // ZeRO 3 has a file for each process, without weights.
        [only] if plain(only).starts_with("mp_rank_") => {
            format!("; '{}' alone has them in the precision of training", Escaped::short(only))
        }
        _ => String::new(),
    };
    Some(format!(
        "this is a DeepSpeed checkpoint (ZeRO) with its 32-bit weights in {}: join them with \
         `python zero_to_fp32.py . OUTPUT` in the folder of the file 'latest', where DeepSpeed \
         saves that script{whole}",
        counted(partitions, "partition")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_formats_are_detected_with_an_alternative() {
        for (head, format, says) in [
            (&b"ptrt\0\0\0\0"[..], &TENSORRT, "use the ONNX file"),
            (b"\x30\0\0\0ET12\0\0", &EXECUTORCH, "schema 12"),
            (b"RKNN\x01\0", &RKNN, "Rockchip"),
            (b"7767517\n75 83\n", &NCNN, "ncnn"),
        ] {
            let found = NAMED.iter().find(|format| (format.recognises)(head));
            assert_eq!(found, Some(&format));
            let said = refusal(format, head);
            assert!(said.contains(says) && said.contains("recognized, not supported"), "{said}");
        }
        for other in [&b"<html><net>"[..], b"\0\0\0\0ETxx", b"", b"7767518\n"] {
            assert!(NAMED.iter().all(|format| !(format.recognises)(other)), "{other:?}");
        }
        let names =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert!(folder(&names(&["coremldata.bin", "weights"])).is_some());
        assert!(folder(&names(&["a"])).is_none());
        let pipeline = ["model_index.json", "vae/config.json", "unet/model.safetensors", "b/x.bin"];
        let said = folder(&names(&pipeline)).expect("a pipeline");
        assert!(said.ends_with("name one of its folders: b, unet"), "{said}");
    }

    #[test]
    fn deepspeed_partitions_are_rejected_with_the_script_that_joins_them() {
        let states = |model: &str| {
            let optimizer = |rank| format!("s/bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt");
            folder(&["latest".to_owned(), optimizer(0), optimizer(1), format!("s/{model}")])
        };
        let said = states("mp_rank_00_model_states.pt").expect("it is ZeRO's");
        assert!(said.contains("zero_to_fp32.py") && said.contains("2 partitions"), "{said}");
        assert!(said.contains("'s/mp_rank_00_model_states.pt' alone"), "{said}");
        let said = states("zero_pp_rank_0_mp_rank_00_model_states.pt").expect("it is ZeRO's");
        assert!(!said.contains("alone"), "{said}");
        assert!(folder(&["mp_rank_00_model_states.pt".to_owned()]).is_none(), "it is read");
    }
}
