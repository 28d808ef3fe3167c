//! Model families: how their tensors are called, shaped and distributed, and what they are for
//! (`docs/families.md`).
//!
//! A family is a table in `families/NAME.toml`: one entry per tensor, with its canonical name, its
//! names in other conventions, its shape as expressions over the configuration, what it is, and its
//! role in a sentence. Related families extend one another. [`Families::identify`] finds the family
//! of a checkpoint, and the [`FamilyModel`] it returns answers what an import, a linter or an
//! explanation asks.
//!
//! Users add families of their own in the same form ([`Families::add`]), or implement
//! [`TensorNameMapper`].
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod builtin;
mod defaults;
mod dimensions;
mod draft;
mod expression;
mod families;
mod family;
mod file;
mod gguf;
mod graph;
mod kind;
mod layer_stack;
mod mapper;
mod missing;
mod model;
mod name_list;
mod names;
mod pattern;
mod quantile;
mod resemblance;
mod text_part;

pub use dimensions::Config;
pub use families::{Contradiction, Families, IMAGES, is_path_of_module};
pub use family::{CANONICAL, Family, GGUF, HUGGING_FACE, Naming, ONNX};
pub use gguf::{GgufArrangement, GgufCut, GgufFactors, GgufLayout, GgufTurned, GgufValue};
pub use graph::{GraphSettings, OptionChange, OptionSource, OptionValues, are_alike};
pub use kind::{Range, TensorExpectation, TensorKind};
pub use layer_stack::LayerStack;
pub use mapper::TensorNameMapper;
pub use model::{Description, FamilyModel, ImageText, Mismatch};
pub use names::without_numbers;
pub use quantile::normal_quantile;
pub use resemblance::Resemblance;
pub use text_part::{is_of_others, text_part, text_task};
