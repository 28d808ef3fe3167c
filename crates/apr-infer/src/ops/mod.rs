//! The operators, one file for each kind.

mod activation;
mod binary;
pub(crate) mod cast;
mod control;
mod elementwise;
mod gather;
mod layout;
mod matmul;
mod mini_float;
pub(crate) mod moving;
mod norm;
mod real;
mod reduce;
mod scatter;
mod sequence;
mod softmax;
mod unary;

use crate::registry::Operator;

/// All operators.
pub(crate) const TABLES: &[&[Operator]] = &[
    activation::TABLE,
    binary::TABLE,
    cast::TABLE,
    control::TABLE,
    gather::TABLE,
    layout::TABLE,
    matmul::TABLE,
    norm::TABLE,
    reduce::TABLE,
    scatter::TABLE,
    sequence::TABLE,
    softmax::TABLE,
    unary::TABLE,
];
