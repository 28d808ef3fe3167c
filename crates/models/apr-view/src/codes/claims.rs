//! What a configuration says of weights by name and by number, against the tensors that are there.

use apr_core::json::entries;
use apr_core::{Error, Escaped, Result};
use serde_json::{Map, Value};

use super::find::{Tensors, Weight};
use super::stated::Stated;
use crate::renaming::compile;

/// Keys whose value is a number of bits or of columns.
const NUMBERS: [&str; 5] = ["bits", "w_bit", "num_bits", "group_size", "q_group_size"];

/// The largest number of bits: modules that stay in floats may have an entry too.
const MOST_BITS: u64 = 32;

/// Those of them whose value is a number of columns; -1 means all.
const GROUPS: [&str; 2] = ["group_size", "q_group_size"];

/// Levels of a configuration, and targets of its groups, that are looked at.
const LEVELS: usize = 6;
const TARGETS: usize = 64;

/// What is wrong with a configuration; nothing for most.
pub(super) struct Claims(Option<String>);

impl Claims {
    /// Compares a configuration with the tensors.
    pub(super) fn of(tensors: &Tensors<'_>, stated: &Stated) -> Self {
        // Its bits are the name of a type.
        let is_gguf = stated.method().as_deref() == Some("gguf");
        // Its groups of 0 columns are whole tensors.
        let has_zero = stated.method().is_some_and(|method| method.contains("round"));
        let number = || wrong_number(stated.entries(), has_zero, LEVELS).filter(|_| !is_gguf);
        let found = stated.contradiction().map(str::to_owned).or_else(number);
        Self(found.or_else(|| no_target(tensors, stated)).or_else(|| no_module(tensors, stated)))
    }

    /// What was found, unless the configuration that says how it is decoded is wrong.
    ///
    /// # Errors
    /// E001 with the entry of the configuration.
    pub(super) fn check(&self, found: Result<Weight>) -> Result<Weight> {
        let Some(wrong) = &self.0 else { return found };
        let name = match &found {
            Ok(weight) => &weight.info.name,
            Err(error) => error.tensor().unwrap_or_default(),
        };
        Err(Error::format(wrong.clone()).for_tensor(name))
    }
}

/// Returns the message for an entry that must be a number or a size and is something else.
fn wrong_number(config: &Map<String, Value>, has_zero: bool, levels: usize) -> Option<String> {
    entries(config).find_map(|(key, value)| {
        if value.is_null() {
            return None;
        }
        let is_size = |value: &Value| value.as_i64().is_none_or(|size| size > 0);
        let is_wrong = match &**key {
            key if NUMBERS.contains(&key) && !value.is_number() => Some("a number"),
            "bits" | "w_bit" | "num_bits" => {
                let bits = value.as_u64().filter(|bits| (1..=MOST_BITS).contains(bits));
                bits.is_none().then_some("a number of bits")
            }
            "quant_method" if !value.is_string() => Some("the name of a method"),
            key if GROUPS.contains(&key) => {
                let fits = is_size(value) || value == -1 || value == 0 && has_zero;
                (!fits).then_some("a number of columns")
            }
            "weight_block_size" => {
                let sides = value.as_array().filter(|sides| sides.len() == 2);
                let fits = sides.is_some_and(|sides| {
                    sides.iter().all(|side| side.is_number() && is_size(side))
                });
                (!fits).then_some("the rows and columns of a block")
            }
            _ => None,
        };
        if let Some(needed) = is_wrong {
            let value = value.to_string();
            let value = Escaped::short(&value);
            return Some(format!("the configuration's '{key}' is {value}, not {needed}"));
        }
        wrong_number(value.as_object()?, has_zero, levels.checked_sub(1)?)
    })
}

/// Returns the message for groups of compressed-tensors of which no target names a module that is
/// there.
fn no_target(tensors: &Tensors<'_>, stated: &Stated) -> Option<String> {
    let groups = stated.get("config_groups")?.as_object()?;
    let targets = groups.values().filter_map(|group| group.get("targets")?.as_array()).flatten();
    let targets: Vec<&str> = targets.filter_map(Value::as_str).collect();
    let first = *targets.first()?;
    if targets.len() > TARGETS || tensors.is_shard_alone() {
        return None;
    }
    if targets.iter().any(|target| is_there(tensors, target)) {
        return None;
    }
    Some(format!(
        "the configuration's groups match no module; the first target is '{}'",
        Escaped::short(first)
    ))
}

/// Returns `true` if a module has this name, matches this expression, or may be of this class.
fn is_there(tensors: &Tensors<'_>, target: &str) -> bool {
    let Some(expression) = target.strip_prefix("re:") else {
        // A class has no dots, and its instances have other names.
        return !target.contains('.') || has_module(tensors, target);
    };
    // What only Python's expressions have is not decided here.
    let Ok(automaton) = compile(&format!("^(?:{expression})")) else { return true };
    let mut cache = automaton.create_cache();
    modules(tensors).any(|module| {
        // transformers may give a model's modules a longer or a shorter prefix.
        let dots = module.match_indices('.').map(|(at, _)| &module[at + 1..]);
        [module].into_iter().chain(dots).any(|name| automaton.is_match(&mut cache, name))
    })
}

/// The modules that tensors belong to, some of them several times.
fn modules<'a>(tensors: &Tensors<'a>) -> impl Iterator<Item = &'a str> {
    tensors.all().iter().filter_map(|info| Some(info.name.rsplit_once('.')?.0))
}

/// Returns `true` if there is a module of this name, with a longer or a shorter prefix.
fn has_module(tensors: &Tensors<'_>, name: &str) -> bool {
    let ends = |long: &str, short: &str| {
        long.strip_suffix(short).is_some_and(|front| front.is_empty() || front.ends_with('.'))
    };
    modules(tensors).any(|module| ends(module, name) || ends(name, module))
}

/// Returns the message for an entry about one module, by its name, that does not exist.
fn no_module(tensors: &Tensors<'_>, stated: &Stated) -> Option<String> {
    if tensors.is_shard_alone() {
        return None;
    }
    let others = stated.get("extra_config").and_then(Value::as_object);
    let named = entries(stated.entries()).chain(others.into_iter().flat_map(entries));
    let is_name = |name: &str| {
        let is_plain = |c: char| c.is_alphanumeric() || "._-".contains(c);
        name.contains('.') && name.chars().all(is_plain)
    };
    let mut named = named.filter(|(name, entry)| {
        let bits = entry.get("bits").and_then(Value::as_u64);
        is_name(name) && bits.is_some_and(|bits| bits < 16)
    });
    let first = named.find(|(name, _)| !has_module(tensors, name)).map(|(name, _)| name.as_str());
    let missing = first.or_else(|| {
        let mut listed = listed_modules(stated);
        listed.find(|name| is_name(name) && !has_module(tensors, name))
    });
    let name = Escaped::short(missing?).to_string();
    Some(format!("the configuration names '{name}', which the model lacks"))
}

/// Modules that a configuration lists as quantized: those of GPTQ's blocks, and modelopt's layers.
fn listed_modules(stated: &Stated) -> impl Iterator<Item = &str> {
    let blocks = stated.get("modules_in_block_to_quantize").and_then(Value::as_array);
    let blocks = blocks.into_iter().flatten().filter_map(Value::as_array).flatten();
    let layers = stated.get("quantized_layers").and_then(Value::as_object);
    let layers = layers.into_iter().flat_map(entries).map(|(name, _)| name.as_str());
    blocks.filter_map(Value::as_str).chain(layers)
}

/// Returns an error if the configuration states codes of other bits or of another type for all
/// weights.
///
/// # Errors
/// E001 with the names of the weight and of its codes.
pub(super) fn check_codes(
    tensors: &Tensors<'_>,
    stated: &Stated,
    (weight, codes): (&str, usize),
    (bits, kind): (u64, &str),
) -> Result<()> {
    let differs = |key: &str, is: &dyn Fn(&Value) -> bool| {
        let all = stated.of_groups(key);
        !all.is_empty() && !all.iter().any(|value| is(value))
    };
    let algorithm = stated.text("quant_algo").map(str::to_ascii_uppercase);
    let is_other = |algorithm: &String| {
        let name = if bits == 4 { "FP4" } else { "FP8" };
        kind == "float" && !["MIXED", name].iter().any(|part| algorithm.contains(part))
    };
    let needed = if differs("num_bits", &|value| value.as_u64() == Some(bits)) {
        "codes of the bits that the configuration states"
    } else if differs("type", &|value| value.as_str() == Some(kind)) {
        "codes of the type that the configuration states"
    } else if algorithm.as_ref().is_some_and(is_other) {
        "codes of the algorithm that the configuration states"
    } else {
        return Ok(());
    };
    Err(tensors.unfit(codes, weight, needed))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::testing::{Part, error, first, u16s, u32s};

    /// Reads a weight of MLX under a configuration.
    fn mlx(config: &Value) -> Result<(), String> {
        let (codes, scale) = (u32s(&[0x7654_3210; 4]), u16s(&[0x3f80]));
        let parts: [Part<'_>; 3] = [
            ("model.up.weight", "U32", &[1, 4], &codes),
            ("model.up.scales", "BF16", &[1, 1], &scale),
            ("model.up.biases", "BF16", &[1, 1], &scale),
        ];
        first(&parts, &config.to_string()).map(drop).map_err(|_| error(&parts, &config.to_string()))
    }

    #[test]
    fn entries_about_modules_name_some_that_are_there() {
        let one = json!({"bits": 4, "group_size": 32});
        let with = |name: &str| json!({"quantization": {"bits": 4, "group_size": 32, name: one}});
        for name in ["model.up", "language_model.model.up", "ghost"] {
            assert_eq!(mlx(&with(name)), Ok(()), "{name}");
        }
        let error = mlx(&with("model.ghost")).expect_err("a name");
        assert!(error.contains("E001") && error.contains("'model.ghost'"), "{error}");
        assert!(error.contains("model.up.weight"), "{error}");
        let kept = json!({"quantization": {"bits": 4, "group_size": 32, "model.ghost": false}});
        assert_eq!(mlx(&kept), Ok(()));
    }

    #[test]
    fn bits_and_sizes_are_numbers() {
        let one = json!({"bits": "four"});
        for config in [
            json!({"quantization": {"bits": "four", "group_size": 32}}),
            json!({"quantization": {"bits": 4, "group_size": [32]}}),
            json!({"quantization": {"bits": 4, "group_size": 32, "model.up": one}}),
        ] {
            let error = mlx(&config).expect_err("no number");
            assert!(error.contains("E001") && error.contains("not a number"), "{error}");
        }
        assert_eq!(
            mlx(&json!({"quantization": {"bits": 4, "group_size": 32, "w_bit": null}})),
            Ok(())
        );
    }

    #[test]
    fn bits_are_a_small_number_and_methods_have_a_name() {
        for (key, value) in [
            ("bits", json!(0)),
            ("bits", json!(-3)),
            ("bits", json!(1.5)),
            ("num_bits", json!(64)),
            ("quant_method", json!(7)),
        ] {
            let mut one = json!({"bits": 4, "group_size": 32});
            one[key] = value;
            let error = mlx(&json!({ "quantization": one })).expect_err("wrong");
            let is_named = error.contains(&format!("'{key}'"));
            assert!(error.contains("E001") && is_named, "{error}");
        }
    }

    #[test]
    fn a_configuration_does_not_state_two_quantizations() {
        let one = json!({"bits": 4, "group_size": 32});
        let both = |other: Value| json!({"quantization": one, "quantization_config": other});
        assert_eq!(mlx(&both(one.clone())), Ok(()));
        let error = mlx(&both(json!({"bits": 8, "group_size": 32}))).expect_err("two");
        assert!(error.contains("E001") && error.contains("differ"), "{error}");
    }

    #[test]
    fn listed_modules_are_there() {
        let listed = |key: &str, value: Value| {
            let mut one = json!({"bits": 4, "group_size": 32});
            one[key] = value;
            mlx(&json!({ "quantization": one }))
        };
        const BLOCKS: &str = "modules_in_block_to_quantize";
        assert_eq!(listed(BLOCKS, json!([["model.up"], ["up"]])), Ok(()));
        assert_eq!(listed("quantized_layers", json!({"model.up": {}})), Ok(()));
        for error in [
            listed(BLOCKS, json!([["model.up"], ["mlp.ghost"]])).expect_err("a name"),
            listed("quantized_layers", json!({"mlp.ghost": {}})).expect_err("a name"),
        ] {
            assert!(error.contains("E001") && error.contains("'mlp.ghost'"), "{error}");
        }
    }

    #[test]
    fn groups_and_blocks_have_a_size() {
        let group = |size: Value| json!({"quantization": {"bits": 4, "group_size": size}});
        let block = |size: Value| {
            let group = json!({"bits": 4, "group_size": 32, "weight_block_size": size});
            json!({ "quantization": group })
        };
        for (config, needed) in [
            (group(json!(0)), "is 0, not a number of columns"),
            (group(json!(-2)), "is -2, not a number of columns"),
            (block(json!([0, 0])), "not the rows and columns of a block"),
            (block(json!([128])), "not the rows and columns of a block"),
            (block(json!(["a", 1])), "not the rows and columns of a block"),
        ] {
            let error = mlx(&config).expect_err("no size");
            assert!(error.contains("E001") && error.contains(needed), "{error}");
        }
        for config in [block(json!(null)), block(json!([128, 128]))] {
            assert_eq!(mlx(&config), Ok(()));
        }
    }

    #[test]
    fn groups_have_a_target_that_is_there() {
        let (codes, scale) = ([1, 2], [0, 0, 0x80, 0x3f]);
        let parts: [Part<'_>; 2] = [
            ("model.up.weight", "I8", &[1, 2], &codes),
            ("model.up.weight_scale", "F32", &[1, 1], &scale),
        ];
        let config = |targets: &[&str]| {
            let groups = json!({"group_0": {"targets": targets}});
            let quantized = json!({"quant_method": "compressed-tensors", "config_groups": groups});
            json!({ "quantization_config": quantized }).to_string()
        };
        for targets in [
            &["Linear"][..],
            &["re:.*up$"],
            &["re:model[.]u"],
            &["re:up"],
            &["re:(?!ghost).*"],
            &["model.up"],
            &["language_model.model.up"],
            &["re:.*ghost.*", "Linear"],
            &[],
        ] {
            first(&parts, &config(targets)).unwrap_or_else(|error| panic!("{targets:?}: {error}"));
        }
        for targets in [&["re:.*ghost.*"][..], &["model.ghost"], &["re:p"]] {
            let error = error(&parts, &config(targets));
            let is_named = error.contains(&format!("'{}'", targets[0]));
            assert!(error.contains("E001") && is_named, "{error}");
        }
    }
}
