//! What a page calls, by numbers alone: no glue code is generated.
#![cfg(target_arch = "wasm32")]
#![allow(
    unsafe_code,
    reason = "exported names are unsafe attributes, and the page writes into this module's memory"
)]

use std::sync::Mutex;

/// Room for a text, UTF-8.
static TEXT: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Makes room for `len` bytes of text and says where; the page writes them there.
// SAFETY: no other symbol of this crate has the name.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn text(len: usize) -> *mut u8 {
    let Ok(mut text) = TEXT.lock() else { return std::ptr::null_mut() };
    text.clear();
    text.resize(len, 0);
    text.as_mut_ptr()
}

/// The language of the text: both letters of its code as a number, the first in the higher byte; 0
/// where there is none.
// SAFETY: no other symbol of this crate has the name.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn predict() -> u32 {
    let (Ok(text), Ok(model)) = (TEXT.lock(), crate::embedded()) else { return 0 };
    let code = model.predict(&String::from_utf8_lossy(&text)).language.as_bytes().to_vec();
    code.iter().fold(0, |number, &letter| number << 8 | u32::from(letter))
}
