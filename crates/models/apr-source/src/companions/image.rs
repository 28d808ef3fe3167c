//! How images become a vision model's input.

use serde_json::{Map, Value, json};

use super::files::Files;
use super::learnt::Learnt;

/// Steps that are reported under their own names.
const STEPS: [&str; 22] = [
    "crop_pct",
    "do_image_splitting",
    "do_resize",
    "do_rescale",
    "do_normalize",
    "do_center_crop",
    "do_convert_rgb",
    "do_pad",
    "rescale_factor",
    "resample",
    "size",
    "crop_size",
    "max_image_size",
    "min_pixels",
    "max_pixels",
    "min_patches",
    "max_patches",
    "merge_size",
    "patch_size",
    "max_soft_tokens",
    "pooling_kernel_size",
    "image_processor_type",
];

/// Keys of image processors only. Audio processors also have `size` and `patch_size`.
const SIGNS: [&str; 5] =
    ["image_mean", "image_std", "image_processor_type", "do_resize", "do_center_crop"];

pub(super) fn learn(files: &Files<'_>, learnt: &mut Learnt) {
    let nested = || files.value("processor_config.json", "image_processor")?.as_object();
    let is_image = |object: &&Map<String, Value>| SIGNS.iter().any(|key| object.contains_key(*key));
    let found = match files.object("preprocessor_config.json").filter(is_image) {
        Some(processor) => Some(("preprocessor_config.json", processor)),
        None => nested().map(|processor| ("processor_config.json", processor)),
    };
    if let Some((file, processor)) = found {
        let config = from_processor(file, processor, learnt);
        learnt.set("image_config", config);
    } else if let Some(pretrained) =
        files.value("config.json", "pretrained_cfg").and_then(Value::as_object)
    {
        from_timm(pretrained, learnt);
    }
}

fn from_processor(
    file: &str,
    processor: &Map<String, Value>,
    learnt: &mut Learnt,
) -> Map<String, Value> {
    let mut config = Map::new();

    // The network sees what the crop leaves.
    let cropped = processor.get("do_center_crop") != Some(&Value::Bool(false));
    let crop = processor.get("crop_size").filter(|_| cropped);
    // Qwen2-VL's processor has numbers of pixels as edges.
    let size = processor.get("size").filter(|_| !processor.contains_key("merge_size"));
    if let Some(size) = crop.and_then(pixels).or_else(|| size.and_then(pixels)) {
        config.insert("image_size".to_owned(), size);
    }

    for (key, name) in [("image_mean", "mean"), ("image_std", "std")] {
        channels(file, key, processor, name, &mut config, learnt);
    }

    for key in STEPS {
        // A size is a number or has its sides by name; what is nested deeper is not one.
        let plain = |value: &&Value| match value {
            Value::Object(sides) => sides.values().all(Value::is_number),
            Value::Null | Value::Array(_) => false,
            _ => true,
        };
        if let Some(value) = processor.get(key).filter(plain) {
            config.insert(key.to_owned(), value.clone());
        }
    }

    let pinpoints = processor.get("image_grid_pinpoints").filter(|sizes| sizes.is_array());
    config.extend(pinpoints.map(|sizes| ("image_grid_pinpoints".to_owned(), sizes.clone())));

    // What transformers' class takes where the file does not say.
    let is_convnext = ["image_processor_type", "feature_extractor_type"]
        .iter()
        .filter_map(|key| processor.get(*key)?.as_str())
        .any(|class| class.starts_with("ConvNext"));
    if is_convnext {
        config.entry("crop_pct").or_insert(json!(0.875));
    }

    config
}

/// Learns from timm's entry in the model's configuration: `input_size` is channels, height, width.
fn from_timm(pretrained: &Map<String, Value>, learnt: &mut Learnt) {
    let mut config = Map::new();
    if let Some([_, height, width]) =
        pretrained.get("input_size").and_then(Value::as_array).map(Vec::as_slice)
    {
        config.extend(sides(height, width).map(|size| ("image_size".to_owned(), size)));
    }
    for key in ["mean", "std"] {
        channels("config.json", key, pretrained, key, &mut config, learnt);
    }

    for key in ["interpolation", "crop_pct", "crop_mode"] {
        if let Some(value) =
            pretrained.get(key).filter(|value| value.is_number() || value.is_string())
        {
            config.insert(key.to_owned(), value.clone());
        }
    }

    if !config.is_empty() {
        learnt.set("image_config", config);
    }
}

/// Returns one number for squares and the shortest edge, `[height, width]` otherwise.
fn pixels(size: &Value) -> Option<Value> {
    match size {
        Value::Number(_) => size.as_u64().map(Value::from),
        Value::Array(sides_written) => match sides_written.as_slice() {
            [height, width] => sides(height, width),
            _ => None,
        },
        Value::Object(by_name) => match (by_name.get("height"), by_name.get("width")) {
            (Some(height), Some(width)) => sides(height, width),
            _ => by_name.get("shortest_edge")?.as_u64().map(Value::from),
        },
        _ => None,
    }
}

fn sides(height: &Value, width: &Value) -> Option<Value> {
    let (height, width) = (height.as_u64()?, width.as_u64()?);
    Some(if height == width { height.into() } else { json!([height, width]) })
}

/// Reads one value per channel: a list, or one number for all.
fn channels(
    file: &str,
    key: &str,
    from: &Map<String, Value>,
    name: &str,
    config: &mut Map<String, Value>,
    learnt: &mut Learnt,
) {
    let Some(value) = from.get(key).filter(|value| !value.is_null()) else { return };
    let listed = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    if listed.is_empty() || listed.len() > 1024 || !listed.iter().all(Value::is_number) {
        return learnt.warn(file, &format!("its {key} is not a list of numbers, one a channel"));
    }
    if name == "std" && listed.iter().any(|std| std.as_f64() == Some(0.0)) {
        learnt.warn(file, &format!("its {key} has a zero, which inputs would be divided by"));
    }
    config.insert(name.to_owned(), value.clone());
}
