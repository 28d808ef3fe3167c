//! A keyed spread-spectrum mark in the weights, which tells whose copy of a model this is
//! (`docs/watermark.md`).
//!
//! Every weight of the larger matrices is moved by the same small part of its tensor's standard
//! deviation, up or down as a stream of chips says that only the key's owner can make. To find the
//! mark, the chips are correlated with the weights: each says next to nothing, millions of them
//! spell an id of up to 60 bytes. Nothing but the key is needed for that, neither the original nor
//! the id, and names may have changed as conversions change them.
//!
//! | part | is |
//! |---|---|
//! | chips | bits of the BLAKE3 stream keyed with the secret, one stream for each canonical tensor name |
//! | frame | 4 bytes of a keyed hash over the id and its padding, then both, masked: 16, 32 or 64 bytes |
//! | slot | element `e` of a tensor carries byte `slot % frame` of the frame, `slot = (e / 256 + keyed offset) % 64` |
//! | symbol | a byte `b` turns the chip of element `e` by Walsh function `b`: by the parity of `b & (e % 256)` |
//!
//! The 256 Walsh functions are orthogonal, so a byte is read as a whole from all weights of its
//! slots, with 4 dB less power than its bits would take one by one. What the mark withstands is
//! measured by `examples/watermark_survival.rs` and described in `docs/watermark.md`.
//!
//! A chance hit is bounded without assumptions about the weights: under a key that has nothing to
//! do with a model, the chips are independent fair signs, and by Hoeffding's inequality (1963,
//! theorem 2) their correlation with *any* fixed weights exceeds `z` standard deviations with a
//! probability of at most `exp(-z²/2)`. Where the id is not known, the bound is multiplied by the
//! number of frames that there are.
//!
//! ```
//! use apr_core::{Limits, Serial};
//! use apr_watermark::{Carriers, MarkKey, Marked, detect};
//!
//! let weights: Vec<u8> = (0..1_u32 << 16)
//!     .flat_map(|at| ((at.wrapping_mul(2_654_435_761) >> 8) as f32).to_le_bytes())
//!     .collect();
//! let header = r#"{"weight":{"dtype":"F32","shape":[256,256],"data_offsets":[0,262144]}}"#;
//! let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &weights].concat();
//! let model = apr_registry::open(file, "model.safetensors", &Limits::default())?;
//!
//! let key = MarkKey::from_secret(b"at least sixteen bytes")?;
//! let carriers = Carriers::survey(&*model, None, &Serial, &())?;
//! let marked = Marked::new(&*model, &carriers, &key, "buyer-17", Some(0.2))?;
//!
//! let found =
//!     detect(&marked, &Carriers::survey(&marked, None, &Serial, &())?, &key, None, &Serial, &())?;
//! assert_eq!(found.id.as_deref(), Some("buyer-17"));
//! # Ok::<(), apr_core::Error>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod carrier;
mod chips;
mod correlation;
mod detect;
mod embed;
mod frame;
mod key;
#[cfg(test)]
mod tests;

pub use carrier::{Carrier, Carriers};
pub use chips::Chips;
pub use correlation::{Correlation, Reading, SymbolScore};
pub use detect::{DetectReport, MAX_CHANCE, detect};
pub use embed::{EmbedReport, Marked};
pub use frame::{Frame, MAX_ID, check_id};
pub use key::MarkKey;
