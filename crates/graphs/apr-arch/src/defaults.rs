//! What a configuration that omits a key means.

use std::sync::OnceLock;

use serde_json::Value as Json;

use crate::dimensions::Config;
use crate::family::Family;
use crate::text_part::text_part;

/// Defaults by `model_type`, as transformers' configuration classes have them; made by
/// `fixtures/families/defaults.py`.
const TEXT: &str = include_str!("../families/defaults.json");

/// The defaults of a `model_type`, else of the first that the family has by itself. Of a class for
/// several parts, those of the language model, unless the family has the parts itself.
pub(crate) fn of(family: &Family, model_type: Option<&str>) -> Option<&'static Config> {
    static ALL: OnceLock<Config> = OnceLock::new();

    // A test reads the table, so that one which is malformed does not leave this repository.
    let all = ALL.get_or_init(|| serde_json::from_str(TEXT).unwrap_or_default());
    let mut names = model_type.into_iter().chain(family.names());
    let defaults = names.find_map(|name| all.get(name).and_then(Json::as_object))?;
    let text = text_part(defaults).filter(|_| !family.has_parts());
    Some(text.unwrap_or(defaults))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::Families;

    /// Model types whose configuration classes are not part of transformers.
    const NOT_OF_TRANSFORMERS: [&str; 1] = ["minicpm"];

    #[test]
    fn every_family_has_the_defaults_of_its_configuration_class() {
        for family in Families::builtin().iter() {
            let is_there = of(family, None).is_some_and(|defaults| !defaults.is_empty());
            let expected = !NOT_OF_TRANSFORMERS.contains(&family.name());
            assert_eq!(is_there, expected, "{}: run fixtures/families/defaults.py", family.name());
        }
    }

    #[test]
    fn defaults_of_a_model_type_override_the_defaults_of_its_family() {
        let families = Families::builtin();
        let family = families.find("olmo2").expect("built in");
        let theta = |model_type| of(family, model_type).and_then(|all| all["rope_theta"].as_f64());
        assert_eq!(theta(Some("olmo3")), Some(500_000.0));
        assert_eq!(theta(Some("olmo2")), Some(10_000.0));
        assert_eq!(theta(Some("a name of its own")), Some(10_000.0));
    }
}
