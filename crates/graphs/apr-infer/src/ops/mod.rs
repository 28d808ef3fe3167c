//! The operators, one file for each kind.

mod activation;
mod attention;
mod bert;
mod binary;
mod cast;
mod control;
mod conv;
mod cumulative;
mod deform;
mod einsum;
mod elementwise;
mod flex;
mod gather;
mod generate;
mod layout;
mod learning;
mod loss;
mod matmul;
mod microsoft;
mod ngrams;
mod norm;
mod pad;
mod pool;
mod quantize;
pub(crate) mod random;
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
mod states;
mod text;
mod training;
mod unary;
pub(crate) mod vector;
mod window;

use crate::operator::Operator;

/// Tables of all operators.
pub(crate) const TABLES: &[&[Operator]] = &[
    activation::TABLE,
    attention::TABLE,
    bert::TABLE,
    binary::TABLE,
    cast::TABLE,
    control::TABLE,
    conv::TABLE,
    cumulative::TABLE,
    deform::TABLE,
    einsum::TABLE,
    flex::TABLE,
    gather::TABLE,
    generate::TABLE,
    layout::TABLE,
    learning::TABLE,
    loss::TABLE,
    matmul::TABLE,
    microsoft::TABLE,
    ngrams::TABLE,
    norm::TABLE,
    pad::TABLE,
    pool::TABLE,
    quantize::TABLE,
    random::TABLE,
    recurrent::TABLE,
    reduce::TABLE,
    resize::TABLE,
    rotary::TABLE,
    scatter::TABLE,
    sequence::TABLE,
    signal::TABLE,
    softmax::TABLE,
    sort::TABLE,
    states::TABLE,
    text::TABLE,
    training::TABLE,
    unary::TABLE,
];
