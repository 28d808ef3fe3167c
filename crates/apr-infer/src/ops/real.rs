//! Functions of floats that no library has under one name for both widths.

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
    const LOWEST: Self;
    const INFINITE: Self;

    fn real(value: f64) -> Self;
    fn exp(self) -> Self;
    fn ln(self) -> Self;
    fn sqrt(self) -> Self;
    fn tanh(self) -> Self;
    fn erf(self) -> Self;
    fn abs(self) -> Self;
    fn powf(self, power: Self) -> Self;
    fn is_nan(self) -> bool;

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
    ($rust:ident, $erf:path) => {
        impl Real for $rust {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const LOWEST: Self = $rust::MIN;
            const INFINITE: Self = $rust::INFINITY;

            fn real(value: f64) -> Self {
                value as Self
            }

            fn exp(self) -> Self {
                $rust::exp(self)
            }

            fn ln(self) -> Self {
                $rust::ln(self)
            }

            fn sqrt(self) -> Self {
                $rust::sqrt(self)
            }

            fn tanh(self) -> Self {
                $rust::tanh(self)
            }

            fn erf(self) -> Self {
                $erf(self)
            }

            fn abs(self) -> Self {
                $rust::abs(self)
            }

            fn powf(self, power: Self) -> Self {
                $rust::powf(self, power)
            }

            fn is_nan(self) -> bool {
                $rust::is_nan(self)
            }
        }
    };
}

real!(f32, libm::erff);
real!(f64, libm::erf);
