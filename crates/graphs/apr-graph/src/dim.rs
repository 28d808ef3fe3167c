//! Sizes that are known, named, or computed from names.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};

/// A size of a tensor along one dimension.
///
/// ```
/// use apr_graph::Dim;
///
/// let past = Dim::symbol("past_sequence_length");
/// let all = past.plus(&Dim::symbol("sequence_length"));
/// assert_eq!(all.to_string(), "past_sequence_length + sequence_length");
/// assert_eq!(Dim::parse("past_sequence_length + sequence_length"), all);
/// assert_eq!(
///     Dim::symbol("heads").times(&Dim::fixed(64)).exact_quotient(&Dim::fixed(32)),
///     Some(Dim::parse("2*heads"))
/// );
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dim {
    /// Size that cannot be expressed, or contradicts the graph.
    Unknown,
    /// A sum of products of symbols. A number is one without symbols.
    Known(Sum),
}

/// A sum of products, ordered, without products that are zero times taken.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Sum(Vec<(Product, i64)>);

/// Factors in order; none is the number 1.
type Product = Vec<Factor>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Factor {
    Symbol(Arc<str>),
    /// The quotient of two sums, rounded down.
    Quotient(Box<(Sum, Sum)>),
}

/// Maximum number of products in a sum; a larger sum is unknown.
const MAX_PRODUCTS: usize = 16;
/// Maximum number of factors in a product; a larger product is unknown.
const MAX_FACTORS: usize = 8;
/// Maximum length of a symbol's name in bytes; a longer symbol is unknown.
///
/// Every size that is computed from a symbol contains its name.
const MAX_SYMBOL: usize = 1024;
/// Maximum number of symbols and numbers in a size, including quotients; a larger size is unknown.
///
/// The limit prevents a chain of nodes from making a long or deeply nested size.
const MAX_WEIGHT: usize = 64;

impl Dim {
    /// Creates a known size; it is unknown if it exceeds `i64`.
    #[must_use]
    pub fn fixed(size: u64) -> Self {
        i64::try_from(size).map_or(Self::Unknown, Self::integer)
    }

    /// A number that may be below zero on the way to a size.
    #[must_use]
    pub fn integer(value: i64) -> Self {
        Self::Known(Sum(if value == 0 { Vec::new() } else { vec![(Vec::new(), value)] }))
    }

    /// A size that is known when the model runs: `batch`. One with a name of over 1 KiB is unknown.
    #[must_use]
    pub fn symbol(name: &str) -> Self {
        if name.len() > MAX_SYMBOL {
            return Self::Unknown;
        }
        Self::Known(Sum(vec![(vec![Factor::Symbol(name.into())], 1)]))
    }

    /// Parses the `dim_param` of an ONNX file: a sum of products of names and numbers.
    ///
    /// Any other text is taken as one name.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        if text.len() > MAX_SYMBOL {
            return Self::Unknown;
        }
        parse_sum(text).unwrap_or_else(|| Self::symbol(text))
    }

    /// Returns the number, if the size has no symbols and is not negative.
    #[must_use]
    pub fn size(&self) -> Option<u64> {
        self.as_integer().and_then(|value| u64::try_from(value).ok())
    }

    /// Returns the number, if the size has no symbols.
    #[must_use]
    pub fn as_integer(&self) -> Option<i64> {
        let Self::Known(Sum(products)) = self else { return None };
        match products.as_slice() {
            [] => Some(0),
            [(factors, value)] if factors.is_empty() => Some(*value),
            _ => None,
        }
    }

    /// The sum of two.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let (Self::Known(a), Self::Known(b)) = (self, other) else { return Self::Unknown };
        // The sum of two fits an i128, so only the result has to be checked.
        let products = a.0.iter().chain(&b.0).cloned();
        collect(products.map(|(factors, times)| (factors, i128::from(times))))
    }

    /// The difference.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        self.plus(&other.times(&Self::integer(-1)))
    }

    /// Returns the product of two sizes.
    #[must_use]
    pub fn times(&self, other: &Self) -> Self {
        let (Self::Known(a), Self::Known(b)) = (self, other) else { return Self::Unknown };
        if a.0.len() * b.0.len() > MAX_PRODUCTS * MAX_PRODUCTS {
            return Self::Unknown;
        }
        let mut products = Vec::with_capacity(a.0.len() * b.0.len());
        for (left, times_left) in &a.0 {
            for (right, times_right) in &b.0 {
                let mut factors = [left.as_slice(), right].concat();
                factors.sort();
                products.push((factors, i128::from(*times_left) * i128::from(*times_right)));
            }
        }
        collect(products)
    }

    /// Returns the quotient, if it is exact for all values of the symbols and the divisor is one
    /// product.
    #[must_use]
    pub fn exact_quotient(&self, divisor: &Self) -> Option<Self> {
        let (Self::Known(sum), Self::Known(Sum(divisor))) = (self, divisor) else { return None };
        let [(factors, times)] = divisor.as_slice() else {
            // A divisor of several products surely divides only itself.
            return (sum.0 == *divisor && !divisor.is_empty()).then(|| Self::fixed(1));
        };
        let mut products = Vec::with_capacity(sum.0.len());
        for (dividend, count) in &sum.0 {
            let (count, times) = (i128::from(*count), i128::from(*times));
            // Sums have no product that is taken zero times, so this never divides by 0.
            if count % times != 0 {
                return None;
            }
            products.push((without(dividend, factors)?, count / times));
        }
        Some(collect(products))
    }

    /// The quotient, rounded down.
    #[must_use]
    pub fn quotient(&self, divisor: &Self) -> Self {
        if let Some(exact) = self.exact_quotient(divisor) {
            return exact;
        }

        match (self, divisor) {
            (Self::Known(_), Self::Known(sum)) if sum.0.is_empty() => Self::Unknown,
            (Self::Known(a), Self::Known(b)) => match (self.as_integer(), divisor.as_integer()) {
                (Some(a), Some(b)) => a.checked_div_euclid(b).map_or(Self::Unknown, Self::integer),
                _ if a.weight() + b.weight() >= MAX_WEIGHT => Self::Unknown,
                _ => Self::Known(Sum(vec![(
                    vec![Factor::Quotient(Box::new((a.clone(), b.clone())))],
                    1,
                )])),
            },
            _ => Self::Unknown,
        }
    }

    /// Returns the number that results from replacing each symbol by the value that `size` returns.
    #[must_use]
    pub fn value(&self, size: &dyn Fn(&str) -> Option<u64>) -> Option<u64> {
        let Self::Known(sum) = self else { return None };
        sum.value(size).and_then(|value| u64::try_from(value).ok())
    }

    /// Returns `true` if the size is at least `least` for all values of the symbols.
    ///
    /// Symbols represent sizes of 1 and more.
    #[must_use]
    pub fn is_at_least(&self, least: i64) -> bool {
        matches!(self, Self::Known(sum) if sum.is_at_least(least))
    }

    /// Returns the memory that the size takes, in symbols and numbers.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Unknown => 1,
            Self::Known(sum) => 1 + sum.weight(),
        }
    }

    /// The symbols in it.
    #[must_use]
    pub fn symbols(&self) -> Vec<Arc<str>> {
        let mut symbols = Vec::new();
        if let Self::Known(sum) = self {
            sum.symbols(&mut symbols);
        }
        symbols.sort();
        symbols.dedup();
        symbols
    }
}

impl Factor {
    fn weight(&self) -> usize {
        match self {
            // A long name counts as several.
            Self::Symbol(name) => 1 + name.len() / 64,
            Self::Quotient(parts) => parts.0.weight() + parts.1.weight(),
        }
    }
}

impl Sum {
    fn is_at_least(&self, least: i64) -> bool {
        // A quotient may be 0, and is never less where it is one of sizes.
        let may_be_zero = |factor: &Factor| matches!(factor, Factor::Quotient(_));
        let is_size = |factor: &Factor| match factor {
            Factor::Symbol(_) => true,
            Factor::Quotient(parts) => parts.0.is_at_least(0) && parts.1.is_at_least(1),
        };
        let smallest = self.0.iter().try_fold(0_i64, |sum, (factors, times)| {
            match (factors.is_empty(), *times >= 0 && factors.iter().all(is_size)) {
                (true, _) => sum.checked_add(*times),
                (false, true) if factors.iter().any(may_be_zero) => Some(sum),
                (false, true) => sum.checked_add(*times),
                // What is taken off has no upper bound.
                (false, false) => None,
            }
        });
        smallest.is_some_and(|smallest| smallest >= least)
    }

    /// Returns the number of symbols and numbers in the sum.
    fn weight(&self) -> usize {
        self.0
            .iter()
            .map(|(factors, _)| 1 + factors.iter().map(Factor::weight).sum::<usize>())
            .sum()
    }

    fn value(&self, size: &dyn Fn(&str) -> Option<u64>) -> Option<i128> {
        self.0.iter().try_fold(0_i128, |sum, (factors, times)| {
            let product = factors.iter().try_fold(i128::from(*times), |product, factor| {
                let factor = match factor {
                    Factor::Symbol(name) => i128::from(size(name)?),
                    Factor::Quotient(parts) => {
                        parts.0.value(size)?.checked_div_euclid(parts.1.value(size)?)?
                    }
                };
                product.checked_mul(factor)
            })?;
            sum.checked_add(product)
        })
    }

    fn symbols(&self, into: &mut Vec<Arc<str>>) {
        for factor in self.0.iter().flat_map(|(factors, _)| factors) {
            match factor {
                Factor::Symbol(name) => into.push(name.clone()),
                Factor::Quotient(parts) => {
                    parts.0.symbols(into);
                    parts.1.symbols(into);
                }
            }
        }
    }
}

/// The sum of products, with equal ones added up.
fn collect(products: impl IntoIterator<Item = (Product, i128)>) -> Dim {
    let mut sum: BTreeMap<Product, i128> = BTreeMap::new();
    for (factors, times) in products {
        if factors.len() > MAX_FACTORS {
            return Dim::Unknown;
        }
        *sum.entry(factors).or_default() += times;
    }

    sum.retain(|_, times| *times != 0);
    if sum.len() > MAX_PRODUCTS {
        return Dim::Unknown;
    }

    let products: Result<Vec<_>, _> = sum
        .into_iter()
        .map(|(factors, times)| i64::try_from(times).map(|times| (factors, times)))
        .collect();
    let sum = products.map(Sum).ok().filter(|sum| sum.weight() <= MAX_WEIGHT);
    sum.map_or(Dim::Unknown, Dim::Known)
}

/// The factors that are left when these are taken out, each once.
fn without(from: &[Factor], factors: &[Factor]) -> Option<Product> {
    let mut left = from.to_vec();
    for factor in factors {
        left.remove(left.iter().position(|other| other == factor)?);
    }
    Some(left)
}

/// `2*heads + 1`: products of names and numbers between `+` and `-`.
fn parse_sum(text: &str) -> Option<Dim> {
    let mut sum = Dim::integer(0);
    let mut rest = text.trim();
    let mut sign = 1;
    loop {
        let end = rest.find(['+', '-']).unwrap_or(rest.len());
        sum = sum.plus(&parse_product(&rest[..end])?.times(&Dim::integer(sign)));
        let Some(operator) = rest[end..].chars().next() else { return Some(sum) };
        sign = if operator == '-' { -1 } else { 1 };
        rest = &rest[end + 1..];
    }
}

fn parse_product(text: &str) -> Option<Dim> {
    text.split('*').try_fold(Dim::integer(1), |product, factor| {
        let factor = factor.trim();
        if let Ok(number) = factor.parse::<u32>() {
            return Some(product.times(&Dim::fixed(u64::from(number))));
        }
        let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '?');
        (!factor.is_empty() && factor.chars().all(plain))
            .then(|| product.times(&Dim::symbol(factor)))
    })
}

impl From<u64> for Dim {
    fn from(size: u64) -> Self {
        Self::fixed(size)
    }
}

impl From<&str> for Dim {
    fn from(text: &str) -> Self {
        Self::parse(text)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("?"),
            Self::Known(sum) => write!(f, "{sum}"),
        }
    }
}

impl fmt::Display for Sum {
    /// Symbols first, then the number: `past + sequence - 1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("0");
        }

        let (numbers, named): (Vec<_>, Vec<_>) =
            self.0.iter().partition(|(factors, _)| factors.is_empty());
        for (position, (factors, times)) in named.into_iter().chain(numbers).enumerate() {
            match (position, *times < 0) {
                (0, true) => f.write_str("-")?,
                (0, false) => {}
                (_, true) => f.write_str(" - ")?,
                (_, false) => f.write_str(" + ")?,
            }

            let times = times.unsigned_abs();
            let mut first = times == 1 && !factors.is_empty();
            if !first {
                write!(f, "{times}")?;
            }

            for factor in factors {
                write!(f, "{}{factor}", if first { "" } else { "*" })?;
                first = false;
            }
        }

        Ok(())
    }
}

impl fmt::Display for Factor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Symbol(name) => f.write_str(name),
            Self::Quotient(parts) => write!(f, "floor(({})/({}))", parts.0, parts.1),
        }
    }
}

impl Serialize for Dim {
    /// A number, or a text with symbols.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.size() {
            Some(size) => serializer.serialize_u64(size),
            None => serializer.collect_str(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_products_are_added_up() {
        let batch = Dim::symbol("batch");
        assert_eq!(batch.plus(&batch).to_string(), "2*batch");
        assert_eq!(batch.minus(&batch), Dim::fixed(0));
        assert_eq!(
            batch.times(&Dim::fixed(320)).exact_quotient(&Dim::fixed(64)).unwrap().to_string(),
            "5*batch"
        );
    }

    #[test]
    fn a_quotient_that_is_not_exact_is_rounded_down_when_the_model_runs() {
        let frames = Dim::symbol("frames");
        let half = frames.minus(&Dim::fixed(1)).quotient(&Dim::fixed(2)).plus(&Dim::fixed(1));
        assert_eq!(half.to_string(), "floor((frames - 1)/(2)) + 1");
        assert_eq!(half.value(&|_| Some(3000)), Some(1500));
        assert_eq!(half.value(&|_| None), None);
    }

    #[test]
    fn parsing_a_formatted_size_returns_the_size() {
        for text in ["batch", "past + sequence", "2*a*b - 3", "7"] {
            assert_eq!(Dim::parse(text).to_string(), text);
        }
        assert_eq!(Dim::parse("what (ever)").to_string(), "what (ever)");
        assert_eq!(Dim::parse("").to_string(), "");
    }

    #[test]
    fn names_too_long_for_a_size_are_unknown() {
        assert_eq!(Dim::parse(&"n".repeat(MAX_SYMBOL + 1)), Dim::Unknown);
        assert_eq!(Dim::symbol(&"n".repeat(MAX_SYMBOL + 1)), Dim::Unknown);
        assert_ne!(Dim::parse(&"n".repeat(MAX_SYMBOL)), Dim::Unknown);
    }

    #[test]
    fn a_size_that_overflows_is_unknown() {
        let huge = Dim::fixed(i64::MAX as u64);
        assert_eq!(huge.times(&huge), Dim::Unknown);
        assert_eq!(Dim::fixed(u64::MAX), Dim::Unknown);
        assert_eq!(Dim::symbol("a").quotient(&Dim::fixed(0)), Dim::Unknown);
        assert_eq!(Dim::symbol("a").quotient(&Dim::symbol("b")).value(&|_| Some(0)), None);
    }

    #[test]
    fn quotients_of_quotients_are_unknown_in_the_end() {
        let mut size = Dim::symbol("frames");
        for _ in 0..100_000 {
            size = size.minus(&Dim::fixed(1)).quotient(&Dim::fixed(2)).plus(&Dim::fixed(1));
        }
        assert_eq!(size, Dim::Unknown);
    }

    #[test]
    fn the_smallest_number_divides_without_overflow() {
        let least = Dim::integer(i64::MIN);
        assert_eq!(least.quotient(&Dim::integer(-1)), Dim::Unknown);
        assert_eq!(
            least.times(&Dim::symbol("a")).exact_quotient(&Dim::integer(-1)),
            Some(Dim::Unknown)
        );
    }

    #[test]
    fn a_sum_that_grows_is_unknown_in_the_end() {
        let mut sum = Dim::fixed(0);
        for symbol in 0..100 {
            sum = sum.plus(&Dim::symbol(&format!("s{symbol}")));
        }
        assert_eq!(sum, Dim::Unknown);
    }
    #[test]
    fn comparisons_hold_whatever_the_symbols_stand_for() {
        let (a, half) = (Dim::symbol("a"), Dim::symbol("a").quotient(&Dim::fixed(2)));
        assert!(a.is_at_least(1) && !a.is_at_least(2));
        assert!(half.is_at_least(0) && !half.is_at_least(1), "half of one is nothing");
        let below = a.minus(&Dim::fixed(5)).quotient(&Dim::fixed(2));
        assert!(!below.is_at_least(0) && !below.times(&a).is_at_least(0), "it is -2 of one");
        assert!(!a.quotient(&a.minus(&Dim::fixed(5))).is_at_least(0), "it is -1 of four");
        assert!(!a.minus(&Dim::symbol("b")).is_at_least(-100), "b may be anything");
        assert!(a.plus(&Dim::fixed(3)).is_at_least(4) && !Dim::Unknown.is_at_least(i64::MIN));
    }

    #[test]
    fn a_size_is_a_number_or_a_text_in_json() {
        let shown =
            |dim: Dim| crate::TensorType { element: None, shape: Some(vec![dim]) }.to_string();
        assert_eq!(shown(Dim::from(7)), "?[7]");
        assert_eq!(shown(Dim::from("2*a*b - 3")), "?[2*a*b - 3]");
        assert_eq!(shown(Dim::integer(-2)), "?[-2]");
        assert_eq!(shown(Dim::symbol("a").times(&Dim::integer(-1))), "?[-a]");
    }

    #[test]
    fn products_of_many_factors_are_unknown() {
        let mut product = Dim::fixed(1);
        for symbol in 0..20 {
            product = product.times(&Dim::symbol(&format!("s{symbol}")));
        }
        assert_eq!(product, Dim::Unknown);
        assert_eq!(Dim::Unknown.quotient(&Dim::fixed(2)), Dim::Unknown);
        assert_eq!(Dim::symbol("a").exact_quotient(&Dim::symbol("b")), None);
    }
}
