//! The model card and the licence.

use serde_json::{Map, Value};

use super::files::Files;
use super::learnt::Learnt;
use super::license::NO_LICENSE;
use super::{front_matter, license};

const CARD: &str = "README.md";

pub(super) fn learn(files: &Files<'_>, learnt: &mut Learnt) {
    let card = files.bytes(CARD).map(|bytes| read(bytes, learnt)).unwrap_or_default();
    let license = match stated(&card) {
        // The card says that there is one, and the text may say which.
        Some(other) if other == "other" => Some(recognised(files).unwrap_or(other)),
        stated => stated.or_else(|| recognised(files)),
    };
    if let Some(license) = license {
        learnt.set("license", license);
    } else if !files.list.is_empty() {
        // Whoever passes the container on has to know the terms, and the folder is not there to
        // look at any more.
        learnt.warnings.push(NO_LICENSE.to_owned());
    }

    if !card.is_empty() {
        learnt.set("model_card", card);
    }
}

fn read(bytes: &[u8], learnt: &mut Learnt) -> Map<String, Value> {
    let text = std::str::from_utf8(bytes).map_err(|error| format!("not UTF-8: {error}"));
    match text.and_then(front_matter::read) {
        Ok(found) => {
            let found = found.unwrap_or_default();
            found.warnings.iter().for_each(|why| learnt.warn(CARD, why));
            found.fields
        }
        Err(why) => {
            learnt.warn(CARD, &why);
            Map::new()
        }
    }
}

/// Returns the licence that the card states. A licence without an identifier is `other`, with its
/// name in `license_name`.
fn stated(card: &Map<String, Value>) -> Option<String> {
    let listed = match card.get("license")? {
        Value::Array(several) => {
            several.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
        }
        one => one.as_str()?.to_owned(),
    };

    let license = listed.trim().to_lowercase();
    let name =
        || card.get("license_name").and_then(Value::as_str).map(|name| name.trim().to_lowercase());
    let license = if license == "other" {
        name().filter(|name| !name.is_empty()).unwrap_or(license)
    } else {
        license
    };
    (!license.is_empty()).then_some(license)
}

/// Returns the licence whose text is in the model's folder.
fn recognised(files: &Files<'_>) -> Option<String> {
    let is_text = |name: &str| {
        let name = name.to_ascii_uppercase();
        ["LICENSE", "LICENCE", "COPYING"].iter().any(|prefix| name.starts_with(prefix))
    };
    let texts = files.list.iter().filter(|(name, _)| is_text(name));
    let mut known =
        texts.filter_map(|(_, bytes)| license::recognise(&String::from_utf8_lossy(bytes)));
    let first = known.next()?;
    // Two licences side by side: for what each of them holds, no file says.
    known.all(|other| other == first).then(|| first.to_owned())
}
