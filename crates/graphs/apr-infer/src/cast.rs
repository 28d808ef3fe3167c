//! Elements as those of other types.

use apr_core::{Error, Result};
use apr_graph::ElementType;
use apr_tensor::half_float::{f32_to_bf16, f32_to_f16};

use crate::Tensor;
use crate::convert::{Number, is_half};
use crate::mini_float::{MiniFloat, PowerRounding, decode_e8m0, encode_e8m0};
use crate::tensor::{Data, with_numbers};

/// Treatment of values that the type can't hold.
#[derive(Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) saturate: bool,
    pub(crate) powers: PowerRounding,
}

impl Rules {
    pub(crate) const SATURATE: Self = Self { saturate: true, powers: PowerRounding::Up };
}

impl Tensor {
    /// The tensor with elements of another type, by the rules of ONNX's `Cast`.
    ///
    /// # Errors
    /// E001 for texts that are no numbers, E003 where there is no such cast.
    pub fn cast(&self, to: ElementType) -> Result<Self> {
        cast(self, to, Rules::SATURATE)
    }
}

/// A tensor with elements of another type.
pub(crate) fn cast(tensor: &Tensor, to: ElementType, rules: Rules) -> Result<Tensor> {
    let shape = tensor.shape().to_vec();
    match (tensor.data(), to) {
        (_, same) if tensor.element() == same => Ok(tensor.clone()),
        (Data::Text(texts), _) => parsed(texts, shape, to),
        (_, ElementType::Text) => Tensor::new(shape, texts(tensor)?),
        (Data::F32(_), ElementType::F16 | ElementType::BF16) => tensor.clone().narrowed(to),
        (Data::U16(_), ElementType::F32) if is_half(tensor.element()) => tensor.widened(),
        // Through doubles, large integers would be rounded twice.
        (Data::I64(values), ElementType::F32) => {
            Tensor::new(shape, values.iter().map(|&value| value as f32).collect())
        }
        _ => of_numbers(tensor, shape, to, rules),
    }
}

/// Numbers as others, whatever their types.
fn of_numbers(tensor: &Tensor, shape: Vec<usize>, to: ElementType, rules: Rules) -> Result<Tensor> {
    match tensor.element().is_float() || to.is_float() {
        false => from_integers(tensor.integers()?, shape, to),
        true => by_rules(values(tensor)?, shape, to, rules),
    }
}

/// The elements as doubles, whatever they are but texts.
fn values(tensor: &Tensor) -> Result<Vec<f64>> {
    let codes = |decode: &dyn Fn(u8) -> f32| -> Result<Vec<f64>> {
        Ok(tensor.values::<u8>()?.iter().map(|&code| f64::from(decode(code))).collect())
    };
    if tensor.element() == ElementType::F8E8M0 {
        return codes(&decode_e8m0);
    }
    match MiniFloat::of(tensor.element()) {
        Some(mini) => codes(&|code| mini.decode(code)),
        None => tensor.doubles(),
    }
}

/// Returns the elements of floats of any width, including 8 and 4 bits, as `f32`.
pub(crate) fn singles(tensor: &Tensor) -> Result<Vec<f32>> {
    match tensor.data() {
        Data::F32(values) => Ok(values.clone()),
        _ => Ok(values(tensor)?.into_iter().map(|value| value as f32).collect()),
    }
}

/// A tensor of floats of single precision as another type.
pub(crate) fn from_floats(values: Vec<f32>, shape: Vec<usize>, to: ElementType) -> Result<Tensor> {
    if to == ElementType::F32 {
        return Tensor::new(shape, values);
    }
    cast(&Tensor::new(shape, values)?, to, Rules::SATURATE)
}

/// Doubles as elements of a type.
pub(crate) fn from_doubles(values: Vec<f64>, shape: Vec<usize>, to: ElementType) -> Result<Tensor> {
    by_rules(values, shape, to, Rules::SATURATE)
}

fn by_rules(values: Vec<f64>, shape: Vec<usize>, to: ElementType, rules: Rules) -> Result<Tensor> {
    fn all<T: Number>(values: &[f64]) -> Data {
        T::into_data(values.iter().map(|&value| T::from_f64(value)).collect())
    }

    // Through f32, but for the bit that decides ties: rounded twice to nearest, some halves would
    // be off by one.
    let bits = |narrow: fn(f32) -> u16| {
        Data::U16(values.iter().map(|&value| narrow(odd(value))).collect())
    };
    let mini = |mini: MiniFloat| {
        Data::U8(values.iter().map(|&value| mini.encode(odd(value), rules.saturate)).collect())
    };
    let data = match to {
        ElementType::F64 => Data::F64(values),
        ElementType::F32 => all::<f32>(&values),
        ElementType::F16 => bits(f32_to_f16),
        ElementType::BF16 => bits(f32_to_bf16),
        ElementType::I8 => Data::I8(values.iter().map(|&value| value as i64 as i8).collect()),
        ElementType::I16 => Data::I16(values.iter().map(|&value| value as i64 as i16).collect()),
        ElementType::I32 => all::<i32>(&values),
        ElementType::I64 => all::<i64>(&values),
        ElementType::U8 => Data::U8(values.iter().map(|&value| value as i64 as u8).collect()),
        ElementType::U16 => Data::U16(values.iter().map(|&value| value as i64 as u16).collect()),
        ElementType::U32 => all::<u32>(&values),
        ElementType::U64 => all::<u64>(&values),
        ElementType::Bool => Data::U8(values.iter().map(|&value| u8::from(value != 0.0)).collect()),
        ElementType::I4 | ElementType::I2 | ElementType::U4 | ElementType::U2 => {
            return from_integers(values.iter().map(|&value| value as i64).collect(), shape, to);
        }
        ElementType::F8E8M0 => {
            let code = |value: &f64| encode_e8m0(*value as f32, rules.saturate, rules.powers);
            Data::U8(values.iter().map(code).collect())
        }
        _ => match MiniFloat::of(to) {
            Some(format) => mini(format),
            None => return Err(Error::version(format!("no cast to {to}"))),
        },
    };

    Tensor::with_type(to, shape, data)
}

/// Cut off to single precision, with the last bit set if anything was lost.
fn odd(value: f64) -> f32 {
    // Rounded to odd, a value can be rounded once more and is still right (Boldo, Melquiond 2008).
    let nearest = value as f32;
    let back = f64::from(nearest);
    if back == value || value.is_nan() {
        return nearest;
    }
    let truncated =
        if back.abs() > value.abs() { nearest.to_bits() - 1 } else { nearest.to_bits() };
    f32::from_bits(truncated | 1)
}

/// Converts integers to elements of a type. Integers that do not fit are truncated.
pub(crate) fn from_integers(
    values: Vec<i64>,
    shape: Vec<usize>,
    to: ElementType,
) -> Result<Tensor> {
    fn all<T: Number>(values: &[i64]) -> Data {
        T::into_data(values.iter().map(|&value| T::from_i64(value)).collect())
    }

    let data = match to {
        ElementType::I8 => all::<i8>(&values),
        ElementType::I16 => all::<i16>(&values),
        ElementType::I32 => all::<i32>(&values),
        ElementType::I64 => Data::I64(values),
        ElementType::U8 => all::<u8>(&values),
        ElementType::U16 => all::<u16>(&values),
        ElementType::U32 => all::<u32>(&values),
        ElementType::U64 => all::<u64>(&values),
        ElementType::Bool => Data::U8(values.iter().map(|&value| u8::from(value != 0)).collect()),
        ElementType::U4 => Data::U8(values.iter().map(|&value| value as u8 & 15).collect()),
        ElementType::U2 => Data::U8(values.iter().map(|&value| value as u8 & 3).collect()),
        // The shifts carry the sign of the low bits into all eight.
        ElementType::I4 => Data::I8(values.iter().map(|&value| (value as i8) << 4 >> 4).collect()),
        ElementType::I2 => Data::I8(values.iter().map(|&value| (value as i8) << 6 >> 6).collect()),
        _ => return from_doubles(values.iter().map(|&value| value as f64).collect(), shape, to),
    };

    Tensor::with_type(to, shape, data)
}

fn parsed(texts: &[String], shape: Vec<usize>, to: ElementType) -> Result<Tensor> {
    let wrong = |text: &String| Error::format(format!("'{text}' is not a number"));
    if to.is_float() {
        let parse = |text: &String| text.trim().parse::<f64>().map_err(|_| wrong(text));
        return from_doubles(texts.iter().map(parse).collect::<Result<_>>()?, shape, to);
    }

    // A text of a fraction is cut off as the fraction is.
    let cut = |text: &str| {
        text.parse::<f64>().ok().filter(|value| value.is_finite()).map(|value| value as i64)
    };
    let parse = |text: &String| {
        // Numbers beyond i64, up to u64's, keep their lowest 64 bits.
        let whole = text.trim().parse::<i128>().ok().map(|value| value as i64);
        whole.or_else(|| cut(text.trim())).ok_or_else(|| wrong(text))
    };
    from_integers(texts.iter().map(parse).collect::<Result<_>>()?, shape, to)
}

/// Numbers as texts: the shortest digits that give the number back, and the words of the
/// specification for what has none.
fn texts(tensor: &Tensor) -> Result<Vec<String>> {
    fn text(value: &impl ToString) -> String {
        let digits = value.to_string();
        if digits.ends_with("inf") { digits.to_uppercase() } else { digits }
    }

    if tensor.element() == ElementType::Bool {
        let text = |value: &u8| if *value != 0 { "True" } else { "False" }.to_owned();
        return Ok(tensor.values::<u8>()?.iter().map(text).collect());
    }

    if tensor.element().is_float()
        && tensor.element() != ElementType::F32
        && tensor.element() != ElementType::F64
    {
        return Ok(singles(tensor)?.iter().map(text).collect());
    }
    let none = || Ok(Vec::new());
    with_numbers!(tensor.data(), values => Ok(values.iter().map(text).collect()), none())
}
