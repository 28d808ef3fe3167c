//! Products of matrices.

use std::collections::BTreeMap;

use super::call::{Call, Rule, broadcast, same, show};
use crate::Dim;

pub(super) const RULES: &[(&str, Rule)] = &[
    ("Det", det),
    ("Einsum", einsum),
    ("Gemm", gemm),
    ("MatMul", mat_mul),
    ("MatMulInteger", mat_mul),
    ("QLinearMatMul", q_linear_mat_mul),
];

/// The shape of the product of two stacks of matrices, as NumPy's `matmul` has it.
pub(super) fn product_shape(a: &[Dim], b: &[Dim]) -> Result<Vec<Dim>, String> {
    let ([.., inner], true) = (a, !b.is_empty()) else {
        return Err("a scalar is not a matrix".to_owned());
    };

    // A vector counts as a row or a column, a dimension that the product does not keep.
    let (rows, stack_a) = match a {
        [stack @ .., rows, _] => (Some(rows), stack),
        _ => (None, &[][..]),
    };
    let (columns, stack_b, inner_b) = match b {
        [stack @ .., inner, columns] => (Some(columns), stack, inner),
        [inner] => (None, &[][..], inner),
        [] => return Err("a scalar is not a matrix".to_owned()),
    };
    let problem = |error: String| format!("shapes {} and {}: {error}", show(a), show(b));
    same(inner, inner_b).map_err(problem)?;
    let mut shape = broadcast(stack_a, stack_b).map_err(problem)?;
    shape.extend(rows.into_iter().chain(columns).cloned());
    Ok(shape)
}

fn mat_mul(call: &mut Call<'_>) -> Result<(), String> {
    multiply(call, 0, 1)
}

fn q_linear_mat_mul(call: &mut Call<'_>) -> Result<(), String> {
    multiply(call, 0, 3)
}

fn multiply(call: &mut Call<'_>, a: usize, b: usize) -> Result<(), String> {
    if let (Some(a), Some(b)) = (call.shape(a), call.shape(b)) {
        call.set_shape(0, product_shape(a, b)?);
    }
    Ok(())
}

/// `[rows, columns]` of a matrix that may be looked at transposed.
fn matrix(shape: &[Dim], transposed: bool) -> Option<(&Dim, &Dim)> {
    match shape {
        [a, b] if transposed => Some((b, a)),
        [a, b] => Some((a, b)),
        _ => None,
    }
}

pub(super) fn gemm(call: &mut Call<'_>) -> Result<(), String> {
    call.expect_rank(0, 2)?;
    call.expect_rank(1, 2)?;
    let a = call.shape(0).and_then(|shape| matrix(shape, call.is_set("transA")));
    let b = call.shape(1).and_then(|shape| matrix(shape, call.is_set("transB")));
    if let (Some((rows, inner)), Some((inner_b, columns))) = (a, b) {
        same(inner, inner_b)?;
        call.set_shape(0, vec![rows.clone(), columns.clone()]);
    }
    Ok(())
}

fn det(call: &mut Call<'_>) -> Result<(), String> {
    match call.shape(0) {
        None => {}
        Some([stack @ .., rows, columns]) => {
            same(rows, columns)?;
            call.set_shape(0, stack.to_vec());
        }
        Some(_) => return Err("the input is not a matrix".to_owned()),
    }
    Ok(())
}

/// The sizes of letters, and of the dimensions that `...` stands for.
#[derive(Default)]
struct Letters {
    sizes: BTreeMap<char, Dim>,
    ellipsis: Vec<Dim>,
}

impl Letters {
    /// Learns from an input's term: `b...ij`.
    fn learn(&mut self, term: &str, shape: &[Dim]) -> Result<(), String> {
        let (before, after) =
            term.split_once("...").map_or((term, None), |(before, after)| (before, Some(after)));
        let named = before.chars().count() + after.map_or(0, |after| after.chars().count());
        let fits = if after.is_some() { shape.len() >= named } else { shape.len() == named };
        if !fits {
            return Err(format!("'{term}' does not fit the shape {}", show(shape)));
        }

        let wide = shape.len() - named;
        let first = before.chars().count();
        let sizes = shape[..first].iter().chain(&shape[first + wide..]);
        for (letter, size) in before.chars().chain(after.unwrap_or("").chars()).zip(sizes) {
            let known = self.sizes.entry(letter).or_insert_with(|| size.clone());
            *known = match known.as_integer() {
                // A size of 1 is widened.
                Some(1) => size.clone(),
                _ if size.as_integer() == Some(1) => known.clone(),
                _ => same(known, size).map_err(|error| format!("letter '{letter}': {error}"))?,
            };
        }

        self.ellipsis = broadcast(&self.ellipsis, &shape[first..first + wide])?;
        Ok(())
    }

    fn shape(&self, term: &str) -> Result<Vec<Dim>, String> {
        let letter = |letter: char| {
            let size = self.sizes.get(&letter).cloned();
            size.ok_or_else(|| format!("letter '{letter}' of the output is in no input"))
        };
        match term.split_once("...") {
            None => term.chars().map(letter).collect(),
            Some((before, after)) => {
                let mut shape: Vec<Dim> = before.chars().map(letter).collect::<Result<_, _>>()?;
                shape.extend(self.ellipsis.iter().cloned());
                for after in after.chars() {
                    shape.push(letter(after)?);
                }
                Ok(shape)
            }
        }
    }
}

fn einsum(call: &mut Call<'_>) -> Result<(), String> {
    let Some(equation) = call.text("equation") else { return Ok(()) };
    let equation: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let (left, right) =
        equation.split_once("->").map_or((equation.as_str(), None), |(l, r)| (l, Some(r)));
    let terms: Vec<_> = left.split(',').collect();
    if terms.len() != call.inputs.len() {
        return Err(format!(
            "'{equation}' is for {} inputs, and there are {}",
            terms.len(),
            call.inputs.len()
        ));
    }

    let mut letters = Letters::default();
    for (position, term) in terms.iter().enumerate() {
        let Some(shape) = call.shape(position) else { return Ok(()) };
        letters.learn(term, shape)?;
    }

    let output = right.map_or_else(|| implicit_output(left), str::to_owned);
    let shape = letters.shape(&output)?;
    call.set_shape(0, shape);
    Ok(())
}

/// Without `->`: what `...` stands for, then the letters that occur once, in the order of the
/// alphabet.
fn implicit_output(left: &str) -> String {
    let mut times: BTreeMap<char, u32> = BTreeMap::new();
    for letter in left.chars().filter(|letter| letter.is_alphabetic()) {
        *times.entry(letter).or_default() += 1;
    }
    let once = times.into_iter().filter(|(_, times)| *times == 1).map(|(letter, _)| letter);
    let wide = if left.contains("...") { "..." } else { "" };
    wide.chars().chain(once).collect()
}
