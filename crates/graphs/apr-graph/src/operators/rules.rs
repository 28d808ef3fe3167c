//! The rules of all operators, from the lists of the files.

use std::collections::HashMap;
use std::sync::OnceLock;

use super::call::Rule;
use super::operator::Operator;
use super::{
    attention, convolution, creation, elementwise, image, indexing, learning, matrix, microsoft,
    movement, normalisation, quantization, recurrent, reduce, sequence, signal, text,
};
use crate::gradient;

/// The domains whose operators have rules.
pub(super) const DOMAINS: [&str; 4] =
    ["", "ai.onnx.ml", "ai.onnx.preview.training", "com.microsoft"];

/// The rule of an operator, in any of its versions.
pub(crate) fn rule(operator: &Operator) -> Option<Rule> {
    static RULES: OnceLock<HashMap<(&str, &str), Rule>> = OnceLock::new();
    let rules = RULES.get_or_init(|| {
        let all = DOMAINS.into_iter().flat_map(|domain| {
            lists(domain)
                .iter()
                .copied()
                .flatten()
                .map(move |(name, rule)| ((domain, *name), *rule))
        });
        all.collect()
    });
    rules.get(&(operator.domain, operator.name)).copied()
}

/// Returns the gradient rule of an operator, for all its versions, or `None` if there is none.
pub(crate) fn gradient_rule(operator: &Operator) -> Option<gradient::Rule> {
    const LISTS: [&[(&str, gradient::Rule)]; 6] = [
        convolution::GRADIENTS,
        elementwise::GRADIENTS,
        indexing::GRADIENTS,
        matrix::GRADIENTS,
        movement::GRADIENTS,
        normalisation::GRADIENTS,
    ];
    let all = LISTS.into_iter().flatten().chain(reduce::GRADIENTS);
    let found = { all }.find(|(name, _)| *name == operator.name);
    found.filter(|_| operator.domain.is_empty()).map(|(_, rule)| *rule)
}

/// The lists of a domain: operators and their rules.
pub(super) fn lists(domain: &str) -> &'static [&'static [(&'static str, Rule)]] {
    match domain {
        "" => &[
            attention::RULES,
            convolution::RULES,
            creation::RULES,
            elementwise::RULES,
            image::RULES,
            indexing::RULES,
            matrix::RULES,
            movement::RULES,
            normalisation::RULES,
            quantization::RULES,
            recurrent::RULES,
            reduce::RULES,
            sequence::RULES,
            signal::RULES,
            text::RULES,
        ],
        "ai.onnx.ml" => &[learning::RULES],
        "ai.onnx.preview.training" => &[learning::TRAINING],
        "com.microsoft" => &[microsoft::RULES],
        _ => &[],
    }
}
