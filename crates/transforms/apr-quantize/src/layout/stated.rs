//! What a configuration says of a layout.

use serde_json::{Map, Value, json};

use super::Layout;

impl Layout {
    /// States the layout in a configuration; `ignored` are modules that it does not apply to.
    pub(super) fn state(self, config: &mut Map<String, Value>, ignored: &[String]) {
        if let Self::Mlx(bits) = self {
            let stated = json!({ "group_size": 64, "bits": bits, "mode": "affine" });
            config.insert("quantization".to_owned(), stated.clone());
            config.insert("quantization_config".to_owned(), stated);
            return;
        }
        if self == Self::Gptq4 {
            let stated = json!({
                "quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": false,
                "sym": true, "lm_head": false, "checkpoint_format": "gptq", "pack_dtype": "int32",
                "damp_percent": 0.01, "true_sequential": true, "dynamic": dynamic(ignored),
            });
            config.insert("quantization_config".to_owned(), stated);
            return;
        }
        let per_token = |kind: &str| {
            json!({
                "num_bits": 8, "type": kind, "symmetric": true, "strategy": "token",
                "dynamic": true,
            })
        };
        let per_row = |kind: &str| {
            json!({
                "num_bits": 8, "type": kind, "symmetric": true, "strategy": "channel",
                "dynamic": false,
            })
        };
        let (format, weights, activations) = match self {
            Self::Fp8 => ("float-quantized", per_row("float"), per_token("float")),
            Self::W8A8 => ("int-quantized", per_row("int"), per_token("int")),
            Self::NvFp4 => {
                let weights = json!({
                    "num_bits": 4, "type": "float", "symmetric": true, "strategy": "tensor_group",
                    "group_size": 16, "dynamic": false, "scale_dtype": "torch.float8_e4m3fn",
                });
                ("nvfp4-pack-quantized", weights, Value::Null)
            }
            Self::MxFp4 => {
                let weights = json!({
                    "num_bits": 4, "type": "float", "symmetric": true, "strategy": "group",
                    "group_size": 32, "dynamic": false, "scale_dtype": "torch.uint8",
                    "zp_dtype": "torch.uint8",
                });
                ("mxfp4-pack-quantized", weights, Value::Null)
            }
            Self::W4A16 | Self::W4A16Asym | Self::Gptq4 | Self::Mlx(_) => {
                let is_symmetric = self != Self::W4A16Asym;
                let weights = json!({
                    "num_bits": 4, "type": "int", "symmetric": is_symmetric, "strategy": "group",
                    "group_size": 128, "dynamic": false,
                });
                ("pack-quantized", weights, Value::Null)
            }
        };
        // Without a format of its own, a group's is guessed, and wrongly for integers of 8 bits.
        let group = json!({
            "targets": ["Linear"], "weights": weights, "input_activations": activations,
            "output_activations": null, "format": format,
        });
        let mut ignored = ignored.to_vec();
        if !ignored.iter().any(|module| module == "lm_head") {
            ignored.push("lm_head".to_owned());
        }
        let stated = json!({
            "quant_method": "compressed-tensors", "format": format,
            "quantization_status": "compressed", "ignore": ignored,
            "config_groups": { "group_0": group },
        });
        config.insert("quantization_config".to_owned(), stated);
    }
}

/// Returns the list of modules that stay in floats, in the form of GPTQ configurations: a pattern
/// for each module.
fn dynamic(ignored: &[String]) -> Value {
    let modules = ignored.iter().filter(|module| *module != "lm_head");
    let pattern = |module: &String| (format!("-:^{}$", module.replace('.', "\\.")), json!({}));
    let patterns: Map<String, Value> = modules.map(pattern).collect();
    if patterns.is_empty() { Value::Null } else { Value::Object(patterns) }
}
