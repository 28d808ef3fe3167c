//! Arithmetic, comparisons and logic of two or more tensors.

use apr_core::{Error, Result};
use apr_graph::ElementType;

use super::elementwise::{repeats_within, zip, zip_in_place};
use crate::call::Call;
use crate::operator::{Operator, computes, moves};
use crate::tensor::{Data, Element};
use crate::{Tensor, Value};

pub(super) const TABLE: &[Operator] = &[
    computes("Add", |call| arithmetic(call, Sum)),
    computes("Sub", |call| arithmetic(call, Difference)),
    computes("Mul", |call| arithmetic(call, Product)),
    computes("Div", div),
    computes("Mod", modulo),
    computes("Pow", pow),
    computes("Max", |call| several(call, Largest)),
    computes("Min", |call| several(call, Smallest)),
    computes("Sum", |call| several(call, Sum)),
    computes("Mean", mean),
    computes("Equal", |call| compare(call, |a, b| a == b, |a, b| a == b, |a, b| a == b)),
    computes("Greater", |call| compare(call, |a, b| a > b, |a, b| a > b, |a, b| a > b)),
    computes("GreaterOrEqual", |call| compare(call, |a, b| a >= b, |a, b| a >= b, |a, b| a >= b)),
    computes("Less", |call| compare(call, |a, b| a < b, |a, b| a < b, |a, b| a < b)),
    computes("LessOrEqual", |call| compare(call, |a, b| a <= b, |a, b| a <= b, |a, b| a <= b)),
    moves("And", |call| logic(call, |a, b| a & b)),
    moves("Or", |call| logic(call, |a, b| a | b)),
    moves("Xor", |call| logic(call, |a, b| a ^ b)),
    moves("BitwiseAnd", |call| bits(call, |a, b| a & b)),
    moves("BitwiseOr", |call| bits(call, |a, b| a | b)),
    moves("BitwiseXor", |call| bits(call, |a, b| a ^ b)),
    moves("BitShift", shift),
    moves("Where", choose),
];

/// Operation on two numbers of one type.
pub(crate) trait Join: Copy {
    fn floats(self, a: f64, b: f64) -> f64;
    fn singles(self, a: f32, b: f32) -> f32;
    fn signed(self, a: i64, b: i64) -> i64;
    fn unsigned(self, a: u64, b: u64) -> u64;
}

macro_rules! join {
    ($name:ident, $float:expr, $signed:expr, $unsigned:expr) => {
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        impl Join for $name {
            #[inline(always)]
            fn floats(self, a: f64, b: f64) -> f64 {
                $float(a, b)
            }

            #[inline(always)]
            fn singles(self, a: f32, b: f32) -> f32 {
                $float(a, b)
            }

            #[inline(always)]
            fn signed(self, a: i64, b: i64) -> i64 {
                $signed(a, b)
            }

            #[inline(always)]
            fn unsigned(self, a: u64, b: u64) -> u64 {
                $unsigned(a, b)
            }
        }
    };
}

join!(Sum, std::ops::Add::add, i64::wrapping_add, u64::wrapping_add);
join!(Difference, std::ops::Sub::sub, i64::wrapping_sub, u64::wrapping_sub);
join!(Product, std::ops::Mul::mul, i64::wrapping_mul, u64::wrapping_mul);
join!(Quotient, std::ops::Div::div, |a: i64, b| a.checked_div(b).unwrap_or(a), |a: u64, b| a
    .checked_div(b)
    .unwrap_or(0));
join!(Largest, larger, i64::max, u64::max);
join!(Smallest, smaller, i64::min, u64::min);

/// Returns the larger number, or NaN if either is NaN.
fn larger<T: PartialOrd + Copy>(a: T, b: T) -> T {
    #[expect(clippy::eq_op, reason = "only NaN differs from itself")]
    if a > b || a != a { a } else { b }
}

fn smaller<T: PartialOrd + Copy>(a: T, b: T) -> T {
    #[expect(clippy::eq_op, reason = "only NaN differs from itself")]
    if a < b || a != a { a } else { b }
}

/// Two tensors of one type of numbers; integers are computed with 64 bits and cut off, as if they
/// had wrapped.
pub(crate) fn join(call: &Call<'_>, a: &Tensor, b: &Tensor, join: impl Join) -> Result<Tensor> {
    let (left, right) = (a.shape(), b.shape());
    macro_rules! by {
        (signed $($signed:ident)*; unsigned $($unsigned:ident)*) => {
            match (a.data(), b.data()) {
                (Data::F32(x), Data::F32(y)) => {
                    let of = |x, y| join.singles(x, y);
                    let (shape, values) = zip(call, (left, x), (right, y), of)?;
                    (shape, Data::F32(values))
                }
                (Data::F64(x), Data::F64(y)) => {
                    let of = |x, y| join.floats(x, y);
                    let (shape, values) = zip(call, (left, x), (right, y), of)?;
                    (shape, Data::F64(values))
                }
                $((Data::$signed(x), Data::$signed(y)) => {
                    let of = |x: _, y: _| join.signed(i64::from(x), i64::from(y)) as _;
                    let (shape, values) = zip(call, (left, x), (right, y), of)?;
                    (shape, Data::$signed(values))
                })*
                $((Data::$unsigned(x), Data::$unsigned(y)) => {
                    let of = |x: _, y: _| join.unsigned(u64::from(x), u64::from(y)) as _;
                    let (shape, values) = zip(call, (left, x), (right, y), of)?;
                    (shape, Data::$unsigned(values))
                })*
                _ => return Err(mismatch(a, b)),
            }
        };
    }
    let (shape, data) = by!(signed I8 I16 I32 I64; unsigned U8 U16 U32 U64);
    a.like(shape, data)
}

fn mismatch(a: &Tensor, b: &Tensor) -> Error {
    Error::format(format!("element types {} and {} do not match", a.element(), b.element()))
}

fn arithmetic(call: &mut Call<'_>, by: impl Join + Sync) -> Result<Vec<Value>> {
    for position in [0, 1] {
        let (own, other) = (call.tensor(position)?, call.tensor(1 - position)?);
        let singles = own.element() == ElementType::F32 && other.element() == ElementType::F32;

        // Nothing else looks at it, so that the result can take its memory.
        if singles && own.is_alone() && repeats_within(other.shape(), own.shape()) {
            let own = call.take(position)?;
            let other = call.tensor(1 - position)?;
            let result = match position {
                0 => zip_in_place(call, own, other.values()?, |a, b| by.singles(a, b))?,
                _ => zip_in_place(call, own, other.values()?, |b, a| by.singles(a, b))?,
            };
            return Ok(vec![result.into()]);
        }
    }

    Ok(vec![join(call, call.tensor(0)?, call.tensor(1)?, by)?.into()])
}

fn div(call: &mut Call<'_>) -> Result<Vec<Value>> {
    no_zero(call.tensor(1)?)?;
    arithmetic(call, Quotient)
}

/// Refuses integers among which is a zero.
fn no_zero(divisor: &Tensor) -> Result<()> {
    if !divisor.element().is_float() && divisor.integers()?.contains(&0) {
        return Err(Error::format("an integer is divided by zero"));
    }
    Ok(())
}

fn several(call: &mut Call<'_>, by: impl Join) -> Result<Vec<Value>> {
    let mut result = call.tensor(0)?.clone();
    for position in 1..call.inputs.len() {
        result = join(call, &result, call.tensor(position)?, by)?;
    }
    Ok(vec![result.into()])
}

fn mean(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let count = call.inputs.len() as f64;
    let sum = several(call, Sum)?.remove(0);
    let sum = sum.tensor()?;
    let values = sum.doubles()?.into_iter().map(|value| value / count).collect();
    Ok(vec![crate::cast::from_doubles(values, sum.shape().to_vec(), sum.element())?.into()])
}

fn modulo(call: &mut Call<'_>) -> Result<Vec<Value>> {
    #[derive(Clone, Copy)]
    struct Rest {
        /// The sign is the dividend's, not the divisor's.
        of_dividend: bool,
    }
    impl Join for Rest {
        fn floats(self, a: f64, b: f64) -> f64 {
            let rest = a % b;
            if !self.of_dividend && rest != 0.0 && (rest < 0.0) != (b < 0.0) {
                rest + b
            } else {
                rest
            }
        }

        fn singles(self, a: f32, b: f32) -> f32 {
            let rest = a % b;
            if !self.of_dividend && rest != 0.0 && (rest < 0.0) != (b < 0.0) {
                rest + b
            } else {
                rest
            }
        }

        fn signed(self, a: i64, b: i64) -> i64 {
            // Only the lowest integer over -1 overflows, and nothing is left of it.
            let rest = a.checked_rem(b).unwrap_or(0);
            if !self.of_dividend && rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }
        }

        fn unsigned(self, a: u64, b: u64) -> u64 {
            a.checked_rem(b).unwrap_or(0)
        }
    }
    no_zero(call.tensor(1)?)?;
    let of_dividend = call.flag("fmod", false);
    arithmetic(call, Rest { of_dividend })
}

fn pow(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (base, power) = (call.tensor(0)?, call.tensor(1)?);
    if let (Data::F32(a), Data::F32(b)) = (base.data(), power.data()) {
        let of = |a: f32, b: f32| match b {
            2.0 => a * a,
            3.0 => a * a * a,
            _ => libm::powf(a, b),
        };
        let (shape, values) = zip(call, (base.shape(), a), (power.shape(), b), of)?;
        return Ok(vec![Tensor::new(shape, values)?.into()]);
    }

    if !base.element().is_float() && !power.element().is_float() {
        let (a, b) = (base.integers()?, power.integers()?);
        let of = |a: i64, b: i64| match u32::try_from(b) {
            Ok(b) => a.wrapping_pow(b),
            Err(_) => libm::pow(a as f64, b as f64) as i64,
        };
        let (shape, values) = zip(call, (base.shape(), &a[..]), (power.shape(), &b[..]), of)?;
        return Ok(vec![crate::cast::from_integers(values, shape, base.element())?.into()]);
    }

    let (a, b) = (base.doubles()?, power.doubles()?);
    let (shape, values) = zip(call, (base.shape(), &a[..]), (power.shape(), &b[..]), libm::pow)?;
    Ok(vec![crate::cast::from_doubles(values, shape, base.element())?.into()])
}

fn compare(
    call: &mut Call<'_>,
    singles: fn(f32, f32) -> bool,
    doubles: fn(f64, f64) -> bool,
    integers: fn(i128, i128) -> bool,
) -> Result<Vec<Value>> {
    let (a, b) = (call.tensor(0)?, call.tensor(1)?);
    let (left, right) = (a.shape(), b.shape());
    macro_rules! by {
        ($($variant:ident)*) => {
            match (a.data(), b.data()) {
                (Data::F32(x), Data::F32(y)) => {
                    zip(call, (left, x), (right, y), |x, y| u8::from(singles(x, y)))?
                }
                (Data::F64(x), Data::F64(y)) => {
                    zip(call, (left, x), (right, y), |x, y| u8::from(doubles(x, y)))?
                }
                $((Data::$variant(x), Data::$variant(y)) => {
                    let of = |x, y| u8::from(integers(i128::from(x), i128::from(y)));
                    zip(call, (left, x), (right, y), of)?
                })*
                (Data::Text(x), Data::Text(y)) => {
                    // Only equality is defined on texts: then any two numbers serve that differ as
                    // they do.
                    let x: Vec<_> = x.iter().collect();
                    let y: Vec<_> = y.iter().collect();
                    let of = |x: &String, y: &String| u8::from(integers(0, i128::from(x != y)));
                    zip(call, (left, &x[..]), (right, &y[..]), of)?
                }
                _ => return Err(mismatch(a, b)),
            }
        };
    }
    let (shape, values) = by!(I8 I16 I32 I64 U8 U16 U32 U64);
    Ok(vec![Tensor::truths(shape, values)?.into()])
}

fn logic(call: &mut Call<'_>, by: fn(u8, u8) -> u8) -> Result<Vec<Value>> {
    let (a, b) = (call.tensor(0)?, call.tensor(1)?);
    let (shape, values) =
        zip(call, (a.shape(), a.values::<u8>()?), (b.shape(), b.values::<u8>()?), by)?;
    Ok(vec![Tensor::truths(shape, values)?.into()])
}

fn bits(call: &mut Call<'_>, by: fn(u64, u64) -> u64) -> Result<Vec<Value>> {
    #[derive(Clone, Copy)]
    struct Bits(fn(u64, u64) -> u64);
    impl Join for Bits {
        fn floats(self, _: f64, _: f64) -> f64 {
            // Never asked for: floats are refused before.
            f64::NAN
        }

        fn singles(self, _: f32, _: f32) -> f32 {
            f32::NAN
        }

        fn signed(self, a: i64, b: i64) -> i64 {
            (self.0)(a.cast_unsigned(), b.cast_unsigned()).cast_signed()
        }

        fn unsigned(self, a: u64, b: u64) -> u64 {
            (self.0)(a, b)
        }
    }
    if call.tensor(0)?.element().is_float() {
        return Err(Error::format("integers are expected, not floats"));
    }

    arithmetic(call, Bits(by))
}

fn shift(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (a, b) = (call.tensor(0)?, call.tensor(1)?);
    let left = match call.text("direction", "").as_str() {
        "LEFT" => true,
        "RIGHT" => false,
        other => {
            return Err(Error::format(format!("the direction is '{other}', not LEFT or RIGHT")));
        }
    };

    let (x, y) = (a.integers()?, b.integers()?);
    let by = |x: i64, y: i64| {
        let by = u32::try_from(y).unwrap_or(u32::MAX);
        let shifted = if left {
            x.cast_unsigned().checked_shl(by)
        } else {
            x.cast_unsigned().checked_shr(by)
        };
        shifted.unwrap_or(0).cast_signed()
    };

    // A negative count is as good as a large one.
    let signed_right = |x: i64, y: i64| x >> if (0..64).contains(&y) { y } else { 63 };
    let is_signed = matches!(
        a.element(),
        ElementType::I8 | ElementType::I16 | ElementType::I32 | ElementType::I64
    );
    let (shape, values) = if is_signed && !left {
        zip(call, (a.shape(), &x[..]), (b.shape(), &y[..]), signed_right)?
    } else {
        zip(call, (a.shape(), &x[..]), (b.shape(), &y[..]), by)?
    };
    Ok(vec![crate::cast::from_integers(values, shape, a.element())?.into()])
}

fn choose(call: &mut Call<'_>) -> Result<Vec<Value>> {
    fn of<T: Element>(
        which: &[u8],
        a: &[T],
        b: &[T],
        steps: [&[usize]; 3],
        shape: &[usize],
    ) -> Data {
        let mut out = Vec::with_capacity(crate::shape::count(shape));
        crate::shape::walk(shape, steps, |[which_at, a_at, b_at]| {
            out.push(if which[which_at] != 0 { a[a_at].clone() } else { b[b_at].clone() });
        });
        T::into_data(out)
    }

    let (which, a, b) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
    if a.element() != b.element() {
        return Err(mismatch(a, b));
    }

    let shape = crate::shape::broadcast(&[which.shape(), a.shape(), b.shape()])?;

    // Both, since the texts of one may be longer than those of the other.
    call.room_like(&shape, a)?;
    call.room_like(&shape, b)?;
    let all = [which, a, b].map(|tensor| crate::shape::stretched(tensor.shape(), &shape));
    let (sizes, steps) = crate::shape::joined(&shape, &all);
    let steps = [&steps[0][..], &steps[1][..], &steps[2][..]];
    let truths = which.values::<u8>()?;
    let data = crate::tensor::with_storage!(
        a.data(),
        values => of(truths, values, b.values()?, steps, &sizes)
    );
    Ok(vec![a.like(shape, data)?.into()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::Number;

    #[test]
    fn integers_wrap_and_floats_keep_nan() {
        assert_eq!(Sum.signed(i64::MAX, 1), i64::MIN);
        assert!(
            Largest.singles(f32::NAN, 1.0).is_nan() && Smallest.singles(1.0, f32::NAN).is_nan()
        );
        assert_eq!(u8::from_i64(256 + 7), 7);
    }
}
