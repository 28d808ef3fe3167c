//! Preprocessing of model inputs: tokenization, chat templates, audio features, image pixels.
//!
//! | from | by | to |
//! |---|---|---|
//! | a text | [`text::TextTokens`], the model's own tokenizer | token ids |
//! | messages of a chat | [`chat`], the model's own template | a text |
//! | what a model wrote in a chat | [`answer`] | thinking, text and tool calls |
//! | a sound file | [`sound`] | samples at the model's rate, or a log-mel spectrogram |
//! | a picture file | [`picture`] | pixels, resized and normalised as the model's preprocessor says |
//!
//! All of these come from strangers, and so do the tokenizers, templates and settings beside a
//! model: each has limits of size, and what exceeds them ends with E008. Values are those of
//! transformers, the library that most models come from.
//!
//! ```
//! use apr_inputs::sound::Sound;
//!
//! let second = Sound { rate: 48_000, channels: 1, samples: vec![0.5; 48_000] };
//! let sound = second.at_rate(16_000)?;
//! assert_eq!((sound.samples.len(), sound.seconds()), (16_000, 1.0));
//! # Ok::<(), apr_core::Error>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod answer;
#[cfg(feature = "chat")]
pub mod chat;
#[cfg(not(feature = "chat"))]
#[path = "chat_off.rs"]
pub mod chat;
mod guard;
mod messages;
pub mod picture;
pub mod sound;
pub mod text;

pub use guard::is_guarded;
