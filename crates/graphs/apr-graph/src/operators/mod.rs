//! The operators: their versions, inputs, outputs, attributes, and what they make of types and
//! shapes.
//!
//! What an operator takes is data ([`table`]); which rule gives the shapes of its outputs is a list
//! in the file of its kind, and most rules serve many operators.

mod attention;
mod call;
mod convolution;
mod creation;
pub(crate) mod elements;
mod elementwise;
mod image;
mod indexing;
pub(crate) mod known;
mod learning;
mod matrix;
mod microsoft;
mod movement;
mod normalisation;
mod operator;
mod quantization;
mod recurrent;
mod reduce;
mod rules;
pub(crate) mod sequence;
mod signal;
mod table;
mod text;

pub(crate) use call::{Call, Input, Known, axis, same};
pub(crate) use creation::type_of;
pub use operator::{AttributeKind, Occurs, Operator, Parameter, Setting, TypeSet, first_cast};
pub(crate) use rules::{gradient_rule, rule};

#[cfg(test)]
mod tests;
