//! What a configuration says of weights by name and by number, against the tensors that are there.

use apr_core::json::entries;
use apr_core::{Error, Escaped, Result};
use serde_json::{Map, Value};

use super::find::{Tensors, Weight};
use super::stated::Stated;
use crate::renaming::compile;

/// Keys whose value is a number of bits or of columns.
const NUMBERS: [&str; 5] = ["bits", "w_bit", "num_bits", "group_size", "q_group_size"];

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
        Self(number().or_else(|| no_target(tensors, stated)).or_else(|| no_module(tensors, stated)))
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
    let (name, _) = named.find(|(name, _)| !has_module(tensors, name))?;
    Some(format!("the configuration names '{}', which the model lacks", Escaped::short(name)))
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
