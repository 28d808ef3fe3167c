//! Functions of floats that no library has under one name for both widths.
//!
//! They, and those of the operators beside them, are `libm`'s: the standard library takes those of
//! the system, and the sine of glibc, of musl and of Windows differ in the last bit.

use crate::convert::Number;

/// A float that is computed with.
pub(crate) trait Real:
    Number
    + std::ops::Add<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Div<Output = Self>
    + std::ops::Neg<Output = Self>
    + std::ops::AddAssign
{
    const ZERO: Self;
    const ONE: Self;
    const INFINITE: Self;

    fn exp(self) -> Self;
    /// Returns `e^x - 1`, accurate also near 0.
    fn exp_m1(self) -> Self;
    fn ln(self) -> Self;
    fn tanh(self) -> Self;
    fn abs(self) -> Self;

    fn sigmoid(self) -> Self {
        if self < Self::ZERO {
            let e = self.exp();
            return e / (Self::ONE + e);
        }
        Self::ONE / (Self::ONE + (-self).exp())
    }

    /// `ln(1 + e^x)` without overflow.
    fn softplus(self) -> Self {
        let larger = if self > Self::ZERO { self } else { Self::ZERO };
        larger + (Self::ONE + (-self.abs()).exp()).ln()
    }
}

macro_rules! real {
    ($rust:ident, $exp:ident, $exp_m1:ident, $ln:ident, $tanh:ident) => {
        impl Real for $rust {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const INFINITE: Self = $rust::INFINITY;

            fn exp(self) -> Self {
                libm::$exp(self)
            }

            fn exp_m1(self) -> Self {
                libm::$exp_m1(self)
            }

            fn ln(self) -> Self {
                libm::$ln(self)
            }

            fn tanh(self) -> Self {
                libm::$tanh(self)
            }

            fn abs(self) -> Self {
                $rust::abs(self)
            }
        }
    };
}

real!(f32, expf, expm1f, logf, tanhf);
real!(f64, exp, expm1, log, tanh);
