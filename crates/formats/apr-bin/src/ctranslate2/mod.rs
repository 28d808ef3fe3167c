//! Models of CTranslate2, such as faster-whisper's: `model.bin`, and `config.json` beside it.
//!
//! ```text
//! model.bin
//! ├─ u32 version of the format, 4 to 6
//! ├─ text: name of the specification, such as WhisperSpec
//! ├─ u32 revision of the specification
//! ├─ u32 number of variables, and for each
//! │  ├─ text: name, such as encoder/layer_0/ffn/linear_0/weight
//! │  ├─ u8 rank, u32 for each dimension
//! │  ├─ u8 type: 0 f32, 1 i8, 2 i16, 3 i32, 4 f16, 5 bf16
//! │  └─ u32 number of bytes, and the bytes
//! └─ u32 number of aliases, and for each: text: name, text: variable that it equals
//! ```
//!
//! A text is a u16 length, and bytes that end with NUL. All numbers are little-endian. Of several
//! equal variables, the converter of CTranslate2 writes one, and the others as aliases.
//!
//! Variables without dimensions are settings (`decoder/num_heads`), which the metadata have under
//! `ctranslate2`.
//!
//! # Whisper
//!
//! A Whisper model has the tensors of `transformers` under their names: joined projections
//! (`self_attention/linear_0`) are queries, keys and values, a range of rows each. The biases of
//! keys, which Whisper does not have, are zeros there, and are left out. `config.json`,
//! `generation_config.json` and `preprocessor_config.json` are made of the settings, the shapes,
//! and the configuration and tokenizer beside the file ([`open_in`]).
//!
//! Models of other specifications keep the names of their variables. Weights of 8 and 16 bits keep
//! their scales (`weight_scale`), and nothing computes with them.
//!
//! Written from CTranslate2's `model_spec.py` and `model.cc`.
//!
//! ```
//! use apr_core::{CheckpointReader, Limits};
//!
//! let text = |text: &str| {
//!     [&(text.len() as u16 + 1).to_le_bytes()[..], text.as_bytes(), b"\0"].concat()
//! };
//! let mut file = 6_u32.to_le_bytes().to_vec();
//! file.extend(text("TransformerSpec"));
//! file.extend([1_u32, 1].iter().flat_map(|number| number.to_le_bytes()));
//! file.extend(text("bias"));
//! file.extend([1, 2, 0, 0, 0, 1, 2, 0, 0, 0, 7, 9]); // rank 1, two bytes
//! file.extend(0_u32.to_le_bytes());
//! let model = apr_bin::ctranslate2::open(file, "model.bin", &Limits::default())?;
//! assert_eq!(model.tensors()[0].name, "bias");
//! # Ok::<(), apr_core::Error>(())
//! ```

mod reader;
mod variables;
mod whisper;

use apr_core::Format;

pub use reader::{open, open_in};

/// A model of CTranslate2.
pub static FORMAT: Format = Format {
    id: "ctranslate2",
    name: "CTranslate2 (model.bin)",
    recognises: variables::recognises,
    ..Format::READ_ONLY
};

/// Name of the file with the weights.
pub const MODEL: &str = "model.bin";
