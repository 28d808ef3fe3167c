//! Merging models.
//!
//! A merge is a [`Merged`] checkpoint over open ones: it has the tensors of the first of them, or
//! of the base, and computes their elements as they are read, a block at a time. The ordinary
//! passes convert, check and write it like any other. What a method has to know of a whole tensor
//! (norms, angles, the magnitude below which differences are left out) is found in passes over its
//! blocks when the tensor is first read; nothing but these scalars is kept, whatever the tensor's
//! size.
//!
//! [`Recipe`] says what is merged how, for the plain cases in code and for the others in mergekit's
//! YAML ([`parse`]). Methods, parameters and arithmetic are those of mergekit 0.1.5, as they were
//! observed from outside.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod beside;
pub mod card;
mod chat;
mod compatible;
mod elements;
mod grid;
mod layers;
mod merged;
mod method;
pub mod moe;
mod parameters;
mod plan;
mod random;
mod recipe;
mod report;
mod rules;
mod select;
mod vocabulary;

pub use merged::{MergeOptions, Merged};
pub use method::{Method, UnknownMethod};
pub use plan::Model;
pub use random::Draws;
pub use recipe::{
    ChatTemplate, Choice, Parts, Recipe, Setting, Settings, Slice, Source, TokenChoice, TokenRow,
    Tokenizer, parse,
};
pub use report::{Change, Measured, MergeReport, MergedModel, Meter, Sums, TensorChange, changes};
