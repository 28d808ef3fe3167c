//! Sums of products by Einstein's notation.

use apr_core::{Error, Result};
use apr_graph::ElementType;

use super::matmul::multiplied;
use crate::call::Call;
use crate::cast::from_doubles;
use crate::moving::transposed;
use crate::operator::{Operator, computes};
use crate::shape::{count, strides, walk};
use crate::{Tensor, Value};

pub(super) const TABLE: &[Operator] = &[computes("Einsum", einsum)];

/// Labels of each operand's dimensions and of the result's dimensions. The dimensions of `...` have
/// the labels from 256 on, the last one 256.
struct Equation {
    operands: Vec<Vec<u32>>,
    result: Vec<u32>,
    /// Size of each label.
    sizes: Vec<(u32, usize)>,
}

const DOTS: u32 = 256;

impl Equation {
    fn parse(text: &str, tensors: &[&Tensor]) -> Result<Self> {
        let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let wrong =
            || Error::format(format!("'{text}' is not an equation of {} tensors", tensors.len()));
        let (left, right) = text
            .split_once("->")
            .map_or((text.as_str(), None), |(left, right)| (left, Some(right)));
        let terms: Vec<_> = left.split(',').collect();
        if terms.len() != tensors.len() {
            return Err(wrong());
        }

        let mut equation = Self { operands: Vec::new(), result: Vec::new(), sizes: Vec::new() };
        let mut dots = 0;
        for (term, tensor) in terms.iter().zip(tensors) {
            let named = term.replace("...", "").chars().count();
            let stretched = tensor.rank().checked_sub(named).ok_or_else(wrong)?;
            if !term.contains("...") && stretched > 0 {
                return Err(wrong());
            }

            // An ellipsis may stand for fewer dimensions than another: they are stretched.
            dots = dots.max(stretched);
            let labels = labels(term, stretched).ok_or_else(wrong)?;
            for (&label, &size) in labels.iter().zip(tensor.shape()) {
                equation.note(label, size).ok_or_else(wrong)?;
            }
            equation.operands.push(labels);
        }

        equation.result = match right {
            Some(right) => labels(right, dots).ok_or_else(wrong)?,
            None => equation.implied(dots),
        };
        let known = |label: &u32| equation.sizes.iter().any(|(other, _)| other == label);
        let ok = equation.result.iter().all(known) && !repeats(&equation.result);
        if ok { Ok(equation) } else { Err(wrong()) }
    }

    /// Records the size of a label. A size of 1 is stretched to the other size. Returns `None` if
    /// the sizes do not fit.
    fn note(&mut self, label: u32, size: usize) -> Option<()> {
        match self.sizes.iter_mut().find(|(other, _)| *other == label) {
            None => self.sizes.push((label, size)),
            Some((_, known)) if *known == size => {}
            Some((_, known)) if *known == 1 => *known = size,
            Some(_) if size == 1 => {}
            Some(_) => return None,
        }
        Some(())
    }

    /// Without a right side: the stretched dimensions, then the labels that are there once, in the
    /// order of the alphabet.
    fn implied(&self, dots: usize) -> Vec<u32> {
        let times =
            |label: u32| self.operands.iter().flatten().filter(|other| **other == label).count();
        let mut once: Vec<_> = self
            .sizes
            .iter()
            .map(|(label, _)| *label)
            .filter(|l| *l < DOTS && times(*l) == 1)
            .collect();
        once.sort_unstable();
        (0..dots as u32).rev().map(|at| DOTS + at).chain(once).collect()
    }

    /// Returns `true` if an operand has each label once and at its size, and shares it with the
    /// other operand or the result.
    fn is_plain(&self, tensor: &Tensor, own: &[u32], other: &[u32]) -> bool {
        let fits = own.iter().zip(tensor.shape()).all(|(&label, &size)| size == self.size(label));
        fits && !repeats(own)
            && own.iter().all(|label| other.contains(label) || self.result.contains(label))
    }

    fn size(&self, label: u32) -> usize {
        self.sizes.iter().find(|(other, _)| *other == label).map_or(1, |(_, size)| *size)
    }
}

/// Returns `true` if a label occurs more than once.
fn repeats(labels: &[u32]) -> bool {
    labels.iter().enumerate().any(|(at, label)| labels[..at].contains(label))
}

/// Returns the labels of a term, in which `...` stands for `dots` dimensions.
fn labels(term: &str, dots: usize) -> Option<Vec<u32>> {
    let (before, after) =
        term.split_once("...").map_or((term, None), |(before, after)| (before, Some(after)));
    let plain = |text: &str| {
        text.chars()
            .map(|c| c.is_ascii_alphabetic().then_some(c as u32))
            .collect::<Option<Vec<_>>>()
    };
    let mut found = plain(before)?;
    if let Some(after) = after {
        // Numbered from the right: a shorter ellipsis lacks the first dimensions, as in NumPy.
        found.extend((0..dots as u32).rev().map(|at| DOTS + at));
        found.extend(plain(after)?);
    }
    Some(found)
}

fn einsum(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let tensors = (0..call.inputs.len()).map(|at| call.tensor(at)).collect::<Result<Vec<_>>>()?;
    let equation = Equation::parse(&call.text("equation", ""), &tensors)?;
    let shape: Vec<_> = equation.result.iter().map(|&label| equation.size(label)).collect();
    let total = call.room(&shape, ElementType::F64)?;

    // What follows keeps all products in memory; a product of matrices adds them up at once.
    if let [a, b] = tensors[..]
        && let Some(result) = by_product(call, &equation, a, b)?
    {
        return Ok(vec![result.into()]);
    }
    let summed: Vec<_> = equation
        .sizes
        .iter()
        .map(|(label, _)| *label)
        .filter(|label| !equation.result.contains(label))
        .collect();
    let order: Vec<_> = equation.result.iter().chain(&summed).copied().collect();
    let sizes: Vec<_> = order.iter().map(|&label| equation.size(label)).collect();
    let values = tensors.iter().map(|tensor| tensor.doubles()).collect::<Result<Vec<_>>>()?;
    let steps: Vec<_> = tensors
        .iter()
        .zip(&equation.operands)
        .map(|(tensor, labels)| steps(tensor.shape(), labels, &order))
        .collect();
    let inner = count(&sizes[shape.len()..]);
    call.work(&[total, inner, tensors.len()])?;
    let mut products = vec![1.0_f64; call.room(&[total, inner], ElementType::F64)?];
    for (values, steps) in values.iter().zip(&steps) {
        let mut at = 0;
        walk(&sizes, [steps], |[offset]| {
            products[at] *= values[offset];
            at += 1;
        });
    }

    let sums = if inner == 0 {
        vec![0.0; total]
    } else {
        products.chunks(inner).map(|row| row.iter().sum()).collect()
    };
    Ok(vec![from_doubles(sums, shape, tensors[0].element())?.into()])
}

/// Returns the step of a tensor along each label. A label that occurs twice steps along the
/// diagonal.
fn steps(shape: &[usize], labels: &[u32], order: &[u32]) -> Vec<usize> {
    let own = strides(shape);
    let along = |label: &u32| {
        let dims = (0..shape.len()).filter(|&dim| labels[dim] == *label && shape[dim] > 1);
        dims.map(|dim| own[dim]).sum()
    };
    order.iter().map(along).collect()
}

/// Computes two operands as a stack of matrix products, if every label is of one kind. Returns
/// `None` if that is not possible.
fn by_product(
    call: &Call<'_>,
    equation: &Equation,
    a: &Tensor,
    b: &Tensor,
) -> Result<Option<Tensor>> {
    let [left, right] = &equation.operands[..] else { return Ok(None) };
    if !equation.is_plain(a, left, right) || !equation.is_plain(b, right, left) {
        return Ok(None);
    }

    let result = &equation.result;
    let pick = |from: &[u32], test: &dyn Fn(&u32) -> bool| {
        from.iter().copied().filter(|label| test(label)).collect::<Vec<_>>()
    };
    let batch = pick(left, &|label| right.contains(label) && result.contains(label));
    let rows = pick(left, &|label| !right.contains(label));
    let depth = pick(left, &|label| right.contains(label) && !result.contains(label));
    let columns = pick(right, &|label| !left.contains(label));
    let arranged = |tensor: &Tensor, labels: &[u32], groups: [&Vec<u32>; 3]| -> Result<Tensor> {
        let order = groups.iter().flat_map(|group| group.iter());
        let order: Vec<_> =
            order.filter_map(|label| labels.iter().position(|other| other == label)).collect();
        let sizes = groups.map(|group| group.iter().map(|&label| equation.size(label)).product());
        transposed(tensor, &order)?.reshaped(sizes.to_vec())
    };

    let x = arranged(a, left, [&batch, &rows, &depth])?;
    let y = arranged(b, right, [&batch, &depth, &columns])?;
    let product = multiplied(call, &x, &y)?;
    let made: Vec<_> = batch.iter().chain(&rows).chain(&columns).copied().collect();
    let product = product.reshaped(made.iter().map(|&label| equation.size(label)).collect())?;
    let order: Vec<_> =
        result.iter().filter_map(|label| made.iter().position(|other| other == label)).collect();
    transposed(&product, &order).map(Some)
}
