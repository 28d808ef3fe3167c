//! Matrix products.

use apr_core::{Error, Result};
use apr_graph::ElementType;

use super::binary::{Product, Sum, join};
use super::elementwise::expanded;
use crate::call::Call;
use crate::convert::Number;
use crate::matrix::{HeadRows, Left, Right, Rows, product};
use crate::operator::{Operator, computes, moves};
use crate::shape::{broadcast, count, stretched, walk};
use crate::tensor::Data;
use crate::workers::{Alone, try_in_pieces};
use crate::{Tensor, Value};

pub(super) const TABLE: &[Operator] = &[
    computes("MatMul", matmul).decodes().reads_cache(),
    computes("Gemm", gemm).decodes(),
    moves("MatMulInteger", matmul_integer),
    computes("com.microsoft::FusedMatMul", fused),
];

/// Rows whose products take as long as reading the other matrix.
const PASSES: usize = 16;

/// Layout of the products of two stacks of matrices.
pub(super) struct Stacks {
    /// Shape of the result.
    pub(super) shape: Vec<usize>,
    pub(super) rows: usize,
    pub(super) depth: usize,
    pub(super) columns: usize,
    /// First element of the left and the right matrix of each product.
    pub(super) starts: Vec<[usize; 2]>,
}

impl Stacks {
    /// Returns the shapes of a product by NumPy's rules: vectors become matrices of one row or
    /// column, and other dimensions are stretched. The result may be larger than the memory.
    ///
    /// # Errors
    /// E001 if the shapes do not fit each other.
    pub(super) fn of(call: &Call<'_>, a: &[usize], b: &[usize]) -> Result<Self> {
        let wrong =
            || Error::format(format!("matrices of shapes {a:?} and {b:?} can't be multiplied"));
        if a.is_empty() || b.is_empty() {
            return Err(wrong());
        }

        let left = if a.len() == 1 { vec![1, a[0]] } else { a.to_vec() };
        let right = if b.len() == 1 { vec![b[0], 1] } else { b.to_vec() };
        let (outer_a, [rows, depth]) = left.split_last_chunk::<2>().ok_or_else(wrong)?;
        let (outer_b, [depth_b, columns]) = right.split_last_chunk::<2>().ok_or_else(wrong)?;
        if depth != depth_b {
            return Err(wrong());
        }

        let outer = broadcast(&[outer_a, outer_b]).map_err(|_| wrong())?;
        let mut shape = outer.clone();
        shape.extend((a.len() > 1).then_some(*rows));
        shape.extend((b.len() > 1).then_some(*columns));

        // Even matrices without elements have a start each, and shapes may claim any number of
        // them.
        let mut starts = Vec::with_capacity(call.room_for(&outer, size_of::<[usize; 2]>() as u64)?);
        walk(&outer, [&stretched(outer_a, &outer), &stretched(outer_b, &outer)], |[a, b]| {
            starts.push([a * rows * depth, b * depth * columns]);
        });
        Ok(Self { shape, rows: *rows, depth: *depth, columns: *columns, starts })
    }

    /// Counts the products.
    ///
    /// # Errors
    /// E008 over the budget of work.
    pub(super) fn count(&self, call: &Call<'_>) -> Result<()> {
        call.multiplications(&[self.starts.len(), self.rows, self.depth, self.columns])
    }
}

/// Returns the shapes of a product like [`Stacks::of`], if the result fits the memory.
///
/// # Errors
/// E001 if the shapes do not fit each other, E008 if the result does not fit the memory.
pub(super) fn stacks(call: &Call<'_>, a: &[usize], b: &[usize]) -> Result<Stacks> {
    let stacks = Stacks::of(call, a, b)?;
    call.room_for(&stacks.shape, size_of::<f64>() as u64)?;
    stacks.count(call)?;
    Ok(stacks)
}

fn matmul(call: &mut Call<'_>) -> Result<Vec<Value>> {
    if let Value::Weight(_) = call.value(0)? {
        call.inputs[0] = Some(call.decoded(0)?.widened()?.into());
    }

    if let Value::Weight(handle) = call.value(1)? {
        let a = call.tensor(0)?;
        if let Some(matrix) =
            call.matrix(handle).filter(|_| a.element() == ElementType::F32 && a.rank() > 1)
        {
            let (&depth, outer) = a.shape().split_last().unwrap_or((&1, &[]));
            if depth != matrix.depth() {
                let shape = [matrix.depth(), matrix.width()];
                return Err(Error::format(format!(
                    "{:?} and {shape:?} can't be multiplied",
                    a.shape()
                )));
            }
            let shape = [outer, &[matrix.width()]].concat();
            let mut out = crate::pool::any(call.room(&shape, ElementType::F32)?);
            call.multiplications(&[count(outer).max(PASSES), depth, matrix.width()])?;
            let left = Left::in_rows(a.values()?, count(outer), depth);
            product(left, Right::Stored(&matrix), &mut out, call.workers())?;
            return Ok(vec![Tensor::new(shape, out)?.into()]);
        }
        call.inputs[1] = Some(call.decoded(1)?.widened()?.into());
    }

    call.uncache(0)?;
    if let (a, Value::Cached(heads)) = (call.tensor(0)?, call.value(1)?) {
        if a.element() != ElementType::F32 {
            return Err(Error::format(format!("{} and f32 can't be multiplied", a.element())));
        }
        let stacks = stacks(call, a.shape(), &heads.shape())?;
        let mut out = crate::pool::any(count(&stacks.shape));
        singles(call, &stacks, a.values()?, &RightStacks::Heads(heads.matrices()), &mut out)?;
        return Ok(vec![Tensor::new(stacks.shape, out)?.into()]);
    }
    Ok(vec![multiplied(call, call.tensor(0)?, call.tensor(1)?)?.into()])
}

/// The right matrices of stacks of products.
pub(super) enum RightStacks<'a> {
    /// Elements in rows, one matrix after the other.
    Floats(&'a [f32]),
    /// Keys or values of earlier tokens, a matrix for each head.
    Heads(Vec<HeadRows<'a>>),
}

impl RightStacks<'_> {
    /// The matrix that begins with an element, counted as if all were in rows.
    pub(super) fn at(&self, start: usize, depth: usize, columns: usize) -> Right<'_> {
        match self {
            Self::Floats(values) => Right::Rows(&values[start..][..depth * columns], columns),
            Self::Heads(heads) => heads[start.checked_div(depth * columns).unwrap_or(0)].right(),
        }
    }
}

/// The product of two tensors in memory.
pub(super) fn multiplied(call: &Call<'_>, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let stacks = stacks(call, a.shape(), b.shape())?;
    let total = count(&stacks.shape);
    match (a.data(), b.data()) {
        (Data::F32(x), Data::F32(y)) => {
            let mut out = crate::pool::any(total);
            singles(call, &stacks, x, &RightStacks::Floats(y), &mut out)?;
            Tensor::new(stacks.shape, out)
        }
        (Data::F64(x), Data::F64(y)) => {
            let out = plain(&stacks, x, y, total, |sum, a, b| sum + a * b);
            Tensor::new(stacks.shape, out)
        }
        (Data::F32(_) | Data::F64(_), _) | (_, Data::F32(_) | Data::F64(_)) => {
            Err(Error::format(format!("{} and {} can't be multiplied", a.element(), b.element())))
        }
        _ => {
            let out = plain(&stacks, &a.integers()?, &b.integers()?, total, |sum: i64, a, b| {
                sum.wrapping_add(a.wrapping_mul(b))
            });
            crate::cast::from_integers(out, stacks.shape, a.element())
        }
    }
}

fn singles(
    call: &Call<'_>,
    stacks: &Stacks,
    x: &[f32],
    right: &RightStacks<'_>,
    out: &mut [f32],
) -> Result<()> {
    let Stacks { rows, depth, columns, starts, .. } = stacks;
    let (rows, depth, columns) = (*rows, *depth, *columns);
    let one_right = starts.iter().all(|[_, b]| *b == 0);
    let in_a_row = starts.iter().enumerate().all(|(at, [a, _])| *a == at * rows * depth);

    // All left matrices are one tall one then, and the right one is packed once.
    if one_right && in_a_row {
        let left = Left::in_rows(x, starts.len() * rows, depth);
        return product(left, right.at(0, depth, columns), out, call.workers());
    }

    if rows * columns == 0 {
        return Ok(());
    }

    try_in_pieces(call.workers(), out, rows * columns, |number, out| {
        let [a, b] = starts[number];
        let left = Left::in_rows(&x[a..][..rows * depth], rows, depth);
        product(left, right.at(b, depth, columns), out, &Alone)
    })
}

/// Products of any numbers, one multiplication after the other.
pub(super) fn plain<T: Number>(
    stacks: &Stacks,
    x: &[T],
    y: &[T],
    total: usize,
    add: impl Fn(T, T, T) -> T,
) -> Vec<T> {
    let mut out = vec![T::default(); total];
    let size = stacks.rows * stacks.columns;
    for ([a, b], out) in stacks.starts.iter().zip(out.chunks_mut(size.max(1))) {
        for row in 0..stacks.rows {
            let out = &mut out[row * stacks.columns..][..stacks.columns];
            for at in 0..stacks.depth {
                let left = x[a + row * stacks.depth + at];
                let right = &y[b + at * stacks.columns..][..stacks.columns];
                out.iter_mut().zip(right).for_each(|(out, right)| *out = add(*out, left, *right));
            }
        }
    }
    out
}

fn gemm(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (alpha, beta) = (call.float("alpha", 1.0), call.float("beta", 1.0));
    let (turn_a, turn_b) = (call.flag("transA", false), call.flag("transB", false));
    call.decode_inputs(&[0, 2])?;
    let a = call.tensor(0)?;
    let singles = a.element() == ElementType::F32 && a.rank() == 2;
    let mut result = match call.value(1)? {
        Value::Weight(handle) => match call.matrix(handle).filter(|_| singles) {
            Some(matrix) => {
                let matrix = if turn_b { matrix.transposed() } else { matrix };
                single_gemm(call, a, turn_a, Right::Stored(&matrix), matrix.depth())?
            }
            None => any_gemm(call, a, turn_a, &call.decoded(1)?.widened()?, turn_b)?,
        },
        b => any_gemm(call, a, turn_a, b.tensor()?, turn_b)?,
    };

    if alpha != 1.0 {
        result = join(call, &result, &number_like(&result, alpha)?, Product)?;
    }

    if let Some(c) = call.optional(2)?.filter(|_| beta != 0.0) {
        let scaled =
            if beta == 1.0 { c.clone() } else { join(call, c, &number_like(c, beta)?, Product)? };
        result = join(call, &result, &expanded(&scaled, result.shape())?, Sum)?;
    }

    Ok(vec![result.into()])
}

/// A number as a tensor of the type of another.
fn number_like(of: &Tensor, value: f32) -> Result<Tensor> {
    crate::cast::from_doubles(vec![f64::from(value)], Vec::new(), of.element())
}

fn single_gemm(
    call: &Call<'_>,
    a: &Tensor,
    turn_a: bool,
    right: Right<'_>,
    depth_b: usize,
) -> Result<Tensor> {
    let &[first, second] = a.shape() else { return Err(Error::format("matrices are expected")) };
    let (rows, depth) = if turn_a { (second, first) } else { (first, second) };
    if depth != depth_b {
        return Err(Error::format(format!(
            "rows of {depth} and columns of {depth_b} can't be multiplied"
        )));
    }

    let (row_step, depth_step) = if turn_a { (1, second) } else { (second, 1) };
    let shape = vec![rows, right.width()];
    call.multiplications(&[rows.max(PASSES), depth, right.width()])?;
    let mut out = crate::pool::any(call.room(&shape, ElementType::F32)?);
    product(
        Left { values: a.values()?, rows, depth, row_step, depth_step },
        right,
        &mut out,
        call.workers(),
    )?;
    Tensor::new(shape, out)
}

fn any_gemm(call: &Call<'_>, a: &Tensor, turn_a: bool, b: &Tensor, turn_b: bool) -> Result<Tensor> {
    let &[first, second] = b.shape() else { return Err(Error::format("matrices are expected")) };
    if let (Data::F32(values), ElementType::F32) = (b.data(), a.element()) {
        let (right, depth) = if turn_b {
            (Right::Columns(values, first), second)
        } else {
            (Right::Rows(values, second), first)
        };
        return single_gemm(call, a, turn_a, right, depth);
    }
    let turned = |tensor: &Tensor, turn: bool| {
        if turn { crate::moving::transposed(tensor, &[1, 0]) } else { Ok(tensor.clone()) }
    };
    multiplied(call, &turned(a, turn_a)?, &turned(b, turn_b)?)
}

fn matmul_integer(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (a, b) = (call.tensor(0)?, call.tensor(1)?);
    let x = without_zero(a, call.optional(2)?, true)?;
    let y = without_zero(b, call.optional(3)?, false)?;
    let stacks = stacks(call, a.shape(), b.shape())?;
    let total = count(&stacks.shape);
    // Sums may overflow 32 bits (ONNX's `MatMulInteger`): they wrap.
    let out = plain(&stacks, &x, &y, total, |sum: i32, a, b| sum.wrapping_add(a.wrapping_mul(b)));
    Ok(vec![Tensor::new(stacks.shape, out)?.into()])
}

/// Integers minus their zero point, which is one number, or one for each row (`by_row`) or column.
pub(super) fn without_zero(
    tensor: &Tensor,
    zero: Option<&Tensor>,
    by_row: bool,
) -> Result<Vec<i32>> {
    let mut values: Vec<i32> = tensor.integers()?.into_iter().map(|value| value as i32).collect();
    let Some(zero) = zero else { return Ok(values) };
    let points = zero.integers()?;
    if points.len() == 1 {
        values.iter_mut().for_each(|value| *value = value.wrapping_sub(points[0] as i32));
        return Ok(values);
    }

    let mut shape = zero.shape().to_vec();

    // A zero point for each row is a column.
    if by_row && shape.len() == 1 {
        shape.push(1);
    }

    if broadcast(&[&shape, tensor.shape()])? != tensor.shape() {
        return Err(Error::format(format!(
            "zero points of {shape:?} do not fit {:?}",
            tensor.shape()
        )));
    }

    let steps = stretched(&shape, tensor.shape());
    let mut offsets = Vec::with_capacity(values.len());
    walk(tensor.shape(), [&steps], |[at]| offsets.push(at));
    values
        .iter_mut()
        .zip(offsets)
        .for_each(|(value, at)| *value = value.wrapping_sub(points[at] as i32));
    Ok(values)
}

/// A product of matrices that may be turned, times a number.
fn fused(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let turned = |tensor: &Tensor, turn: bool| -> Result<Tensor> {
        if !turn || tensor.rank() < 2 {
            return Ok(tensor.clone());
        }
        let mut order: Vec<_> = (0..tensor.rank()).collect();
        order.swap(tensor.rank() - 1, tensor.rank() - 2);
        crate::moving::transposed(tensor, &order)
    };

    if call.flag("transBatchA", false) || call.flag("transBatchB", false) {
        return Err(Error::version("turned batches are not computed here"));
    }

    let a = turned(call.tensor(0)?, call.flag("transA", false))?;
    let b = turned(call.tensor(1)?, call.flag("transB", false))?;
    let result = multiplied(call, &a, &b)?;
    Ok(vec![join(call, &result, &number_like(&result, call.float("alpha", 1.0))?, Product)?.into()])
}
