//! The operators, one file for each kind.

mod activation;
mod attention;
mod binary;
mod cast;
mod control;
mod conv;
mod cumulative;
mod einsum;
mod elementwise;
mod gather;
mod generate;
mod layout;
mod learning;
mod loss;
mod matmul;
mod microsoft;
mod norm;
mod pad;
mod pool;
mod quantize;
mod real;
mod recurrent;
mod reduce;
mod resize;
mod rotary;
mod scatter;
mod sequence;
mod signal;
mod softmax;
mod sort;
pub(crate) mod spelled_attention;
mod text;
mod unary;
mod vector;
mod window;

use crate::operator::Operator;

/// All operators.
pub(crate) const TABLES: &[&[Operator]] = &[
    activation::TABLE,
    attention::TABLE,
    binary::TABLE,
    cast::TABLE,
    control::TABLE,
    conv::TABLE,
    cumulative::TABLE,
    einsum::TABLE,
    gather::TABLE,
    generate::TABLE,
    layout::TABLE,
    learning::TABLE,
    loss::TABLE,
    matmul::TABLE,
    microsoft::TABLE,
    norm::TABLE,
    pad::TABLE,
    pool::TABLE,
    quantize::TABLE,
    recurrent::TABLE,
    reduce::TABLE,
    resize::TABLE,
    rotary::TABLE,
    scatter::TABLE,
    sequence::TABLE,
    signal::TABLE,
    softmax::TABLE,
    sort::TABLE,
    text::TABLE,
    unary::TABLE,
];
