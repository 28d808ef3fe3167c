//! What a configuration says of the layouts.

use serde_json::{Map, Value, json};

use super::Layout;

/// Statement of a configuration about how the weights of a model are read.
#[derive(Debug)]
pub(super) struct Statement<'s> {
    /// Layout of most weights.
    layout: Layout,
    /// Modules whose weights have another layout.
    others: Vec<(String, Layout)>,
    /// Modules whose weights have this layout.
    own: Vec<String>,
    /// Modules that stay in floats.
    ignored: &'s [String],
}

impl<'s> Statement<'s> {
    /// Creates the statement for modules with the layouts of their weights.
    pub(super) fn new(
        layout: Layout,
        modules: impl Iterator<Item = (String, Layout)>,
        ignored: &'s [String],
    ) -> Self {
        let (own, others): (Vec<_>, Vec<_>) = modules.partition(|(_, of)| *of == layout);
        let own = own.into_iter().map(|(module, _)| module).collect();
        Self { layout, others, own, ignored }
    }

    /// Puts the statement into a configuration.
    pub(super) fn put(&self, config: &mut Map<String, Value>) {
        let stated = match self.layout {
            Layout::Mlx(bits) => {
                let mut stated = affine(bits);
                for (module, layout) in &self.others {
                    let Layout::Mlx(bits) = layout else { continue };
                    stated.insert(module.clone(), affine(*bits).into());
                }
                config.insert("quantization".to_owned(), stated.clone().into());
                stated.into()
            }
            Layout::Gptq4 => json!({
                "quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": false,
                "sym": true, "lm_head": false, "checkpoint_format": "gptq", "pack_dtype": "int32",
                "damp_percent": 0.01, "true_sequential": true, "dynamic": dynamic(self.ignored),
            }),
            _ => self.compressed_tensors(),
        };
        config.insert("quantization_config".to_owned(), stated);
    }

    /// Returns the statement in the form of compressed-tensors: a group for each layout.
    fn compressed_tensors(&self) -> Value {
        let mut ignored = self.ignored.to_vec();
        if !ignored.iter().any(|module| module == "lm_head") {
            ignored.push("lm_head".to_owned());
        }
        let mut layouts = vec![self.layout];
        for (_, layout) in &self.others {
            if !layouts.contains(layout) {
                layouts.push(*layout);
            }
        }
        let is_mixed = layouts.len() > 1;
        let format = if is_mixed { "mixed-precision" } else { group_of(self.layout).0 };
        let targets = |layout: Layout| -> Vec<String> {
            let others = self.others.iter().filter(|(_, of)| *of == layout);
            match (is_mixed, layout == self.layout) {
                (false, _) => vec!["Linear".to_owned()],
                // vLLM finds joined modules by their class before it looks for the names of their
                // parts: of several groups, none has the class.
                (true, true) => self.own.clone(),
                (true, false) => others.map(|(module, _)| module.clone()).collect(),
            }
        };
        let groups = layouts.iter().enumerate().map(|(number, layout)| {
            let (format, weights, activations) = group_of(*layout);
            // Without a format of its own, a group's is guessed, and wrongly for integers of 8
            // bits.
            let group = json!({
                "targets": targets(*layout), "weights": weights, "input_activations": activations,
                "output_activations": null, "format": format,
            });
            (format!("group_{number}"), group)
        });
        let groups: Map<String, Value> = groups.collect();
        json!({
            "quant_method": "compressed-tensors", "format": format,
            "quantization_status": "compressed", "ignore": ignored, "config_groups": groups,
        })
    }
}

/// Returns MLX's statement about weights of this many bits.
fn affine(bits: u32) -> Map<String, Value> {
    let stated = json!({ "group_size": 64, "bits": bits, "mode": "affine" });
    stated.as_object().cloned().unwrap_or_default()
}

/// Returns the name of a format of compressed-tensors, and what it says of weights and activations.
fn group_of(layout: Layout) -> (&'static str, Value, Value) {
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
    match layout {
        Layout::Fp8 => ("float-quantized", per_row("float"), per_token("float")),
        Layout::W8A8 => ("int-quantized", per_row("int"), per_token("int")),
        Layout::NvFp4 => {
            let weights = json!({
                "num_bits": 4, "type": "float", "symmetric": true, "strategy": "tensor_group",
                "group_size": 16, "dynamic": false, "scale_dtype": "torch.float8_e4m3fn",
            });
            ("nvfp4-pack-quantized", weights, Value::Null)
        }
        Layout::MxFp4 => {
            let weights = json!({
                "num_bits": 4, "type": "float", "symmetric": true, "strategy": "group",
                "group_size": 32, "dynamic": false, "scale_dtype": "torch.uint8",
                "zp_dtype": "torch.uint8",
            });
            ("mxfp4-pack-quantized", weights, Value::Null)
        }
        Layout::W4A16 | Layout::W4A16Asym | Layout::Gptq4 | Layout::Mlx(_) => {
            let is_symmetric = layout != Layout::W4A16Asym;
            let weights = json!({
                "num_bits": 4, "type": "int", "symmetric": is_symmetric, "strategy": "group",
                "group_size": 128, "dynamic": false,
            });
            ("pack-quantized", weights, Value::Null)
        }
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
