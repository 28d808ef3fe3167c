//! Typed models of APRN files, as plain data (seed 004, appendix A).

use apr_format::aprn::{Andon, LoadOptions, ModelType, load_from_bytes_with};
use serde_json::Value;
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;

use crate::error::{Thrown, json};

/// The payload of an APRN file of the type that is expected, as JSON.
///
/// # Errors
/// E001 for another type and for what is no such file, E004 where it is damaged, E005 without the
/// right password.
#[wasm_bindgen]
pub fn load_typed(
    bytes: &[u8],
    expected: &str,
    password: Option<String>,
) -> Result<String, JsValue> {
    let known = ModelType::ALL.iter().find(|known| known.name() == expected);
    let unknown = || Thrown::request(format!("no type of models is called '{expected}'"));
    let options =
        LoadOptions { password: password.as_deref().map(Into::into), ..LoadOptions::default() };
    let loaded = load_from_bytes_with::<Value>(bytes, *known.ok_or_else(unknown)?, &options);
    json(&loaded.map_err(|stopped: Andon| Thrown::from(stopped.into_error()))?)
}
