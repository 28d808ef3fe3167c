//! Products of matrices.

use std::collections::BTreeMap;

use super::call::{Call, Rule, broadcast, same, show};
use crate::gradient::{Rule as Gradient, Step, index};
use crate::{Dim, ValueId};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("Det", det),
    ("Einsum", einsum),
    ("Gemm", gemm),
    ("MatMul", mat_mul),
    ("MatMulInteger", mat_mul),
    ("QLinearMatMul", q_linear_mat_mul),
];

/// Gradient rules of the operators.
pub(super) const GRADIENTS: &[(&str, Gradient)] =
    &[("Gemm", gemm_gradient), ("MatMul", mat_mul_gradient)];

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

/// Sizes of the letters, and of the dimensions that `...` represents.
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

/// Returns the output of an equation without `->`: `...`, then the letters that occur once, in
/// alphabetical order.
fn implicit_output(left: &str) -> String {
    let mut times: BTreeMap<char, u32> = BTreeMap::new();
    for letter in left.chars().filter(|letter| letter.is_alphabetic()) {
        *times.entry(letter).or_default() += 1;
    }
    let once = times.into_iter().filter(|(_, times)| *times == 1).map(|(letter, _)| letter);
    let wide = if left.contains("...") { "..." } else { "" };
    wide.chars().chain(once).collect()
}

/// Writes the gradients of `a * b`: `g * b^T` and `a^T * g`, summed over broadcast dimensions.
fn mat_mul_gradient(step: &mut Step<'_>) -> Result<(), String> {
    let (gradient, a, b) = (step.gradient()?, step.input(0)?, step.input(1)?);
    let (shape_a, shape_b) = (step.shape(a)?, step.shape(b)?);
    if shape_a.len() < 2 || shape_b.len() < 2 {
        return Err("one of its operands is a vector".to_owned());
    }

    // All rows of a stack times one matrix, as with the weights of a linear layer.
    if shape_b.len() == 2 {
        let (inner, columns) = (&shape_b[0], &shape_b[1]);
        let flat_gradient = rows_of(step, gradient, shape_a.len(), columns)?;
        if step.wants(0) {
            let flat = product_with(step, flat_gradient, b, "transB");
            let whole = if shape_a.len() == 2 { flat } else { step.reshaped(flat, a)? };
            step.give(0, whole);
        }
        if step.wants(1) {
            let flat = rows_of(step, a, shape_a.len(), inner)?;
            let product = product_with(step, flat, flat_gradient, "transA");
            step.give(1, product);
        }
        return Ok(());
    }

    let wide = product_shape(&shape_a, &shape_b)?;
    let stack = &wide[..wide.len() - 2];
    if step.wants(0) {
        let turned = turned(step, b, shape_b.len());
        let product = step.op("MatMul", &[gradient, turned]);
        let of = [stack, &shape_a[shape_a.len() - 2..]].concat();
        let narrow = step.narrowed_from(product, &of, a, &shape_a)?;
        step.give(0, narrow);
    }
    if step.wants(1) {
        let turned = turned(step, a, shape_a.len());
        let product = step.op("MatMul", &[turned, gradient]);
        let of = [stack, &shape_b[shape_b.len() - 2..]].concat();
        let narrow = step.narrowed_from(product, &of, b, &shape_b)?;
        step.give(1, narrow);
    }
    Ok(())
}

/// All rows of a stack of matrices as one matrix.
fn rows_of(
    step: &mut Step<'_>,
    stack: ValueId,
    rank: usize,
    columns: &Dim,
) -> Result<ValueId, String> {
    if rank == 2 {
        return Ok(stack);
    }
    let columns = columns.as_integer().ok_or("the width of a matrix is not known")?;
    let shape = step.ints(&[-1, columns]);
    Ok(step.op("Reshape", &[stack, shape]))
}

/// A product with one of its operands transposed.
fn product_with(step: &mut Step<'_>, a: ValueId, b: ValueId, transposed: &str) -> ValueId {
    step.with("Gemm", &[a, b], &[(transposed, 1.into())])
}

/// The matrices of a stack, each transposed.
fn turned(step: &mut Step<'_>, stack: ValueId, rank: usize) -> ValueId {
    let mut order: Vec<i64> = (0..rank).map(index).collect();
    order.swap(rank - 1, rank - 2);
    step.with("Transpose", &[stack], &[("perm", order.into())])
}

/// Writes the gradients of `alpha * a * b + beta * c`, with optional transposition of `a` and `b`.
fn gemm_gradient(step: &mut Step<'_>) -> Result<(), String> {
    let (mut gradient, a, b) = (step.gradient()?, step.input(0)?, step.input(1)?);
    let output = step.output(0)?;
    let turns = |step: &Step<'_>, name| Ok::<_, String>(step.int(name)?.unwrap_or(0) != 0);
    let (turn_a, turn_b) = (turns(step, "transA")?, turns(step, "transB")?);
    if step.wants(2) {
        let c = step.input(2)?;
        let scaled = scaled(step, gradient, "beta")?;
        let narrow = step.narrowed(scaled, output, c)?;
        step.give(2, narrow);
    }

    gradient = scaled(step, gradient, "alpha")?;
    let product = |step: &mut Step<'_>, x, turn_x: bool, y, turn_y: bool| {
        let turn = [("transA", i64::from(turn_x).into()), ("transB", i64::from(turn_y).into())];
        step.with("Gemm", &[x, y], &turn)
    };
    if step.wants(0) {
        let of_a = if turn_a {
            product(step, b, turn_b, gradient, true)
        } else {
            product(step, gradient, false, b, !turn_b)
        };
        step.give(0, of_a);
    }
    if step.wants(1) {
        let of_b = if turn_b {
            product(step, gradient, true, a, turn_a)
        } else {
            product(step, a, !turn_a, gradient, false)
        };
        step.give(1, of_b);
    }
    Ok(())
}

fn scaled(step: &mut Step<'_>, gradient: ValueId, name: &str) -> Result<ValueId, String> {
    match step.float(name)? {
        Some(scale) if scale.to_bits() != 1.0_f32.to_bits() => {
            let scale = step.number(scale);
            Ok(step.times(gradient, scale))
        }
        _ => Ok(gradient),
    }
}
