//! What a model can be quantized or cast to, by the names that users know.

use std::fmt;

use apr_core::{DType, DTypeKind};

use apr_tensor::block::can_quantize;

use apr_view::{meant, nearest};

/// Method by which a scheme chooses the dtype of each tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SchemeKind {
    /// Every tensor of floats becomes this float type.
    Cast,
    /// Weights become rows or groups of integers of APR2's own.
    Rows,
    /// Weights become ggml's blocks by llama.cpp's rules, which give some tensors another type.
    Blocks,
    /// Weights become codes and scales that other libraries load: a
    /// [`Layout`](crate::Layout) of safetensors folders.
    Layout,
}

macro_rules! schemes {
    ($(
        $(#[$doc:meta])* $variant:ident =
            $name:literal, $dtype:ident, $kind:ident, $file_type:expr;
    )*) => {
        /// A way to store the weights of a whole model.
        ///
        /// The names are those of llama-quantize where it has one, in lower case. As there, `q2_k`
        /// and the names with `_s`, `_m` and `_l` are mixes of several types, `q3_k`, `q4_k` and
        /// `q5_k` are other names of their `_m` mixes, and even `q4_0` stores the output matrix
        /// with more bits; with
        /// [`pure`](super::Choices::pure) each of them means the bare type.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(non_camel_case_types, reason = "the field writes Q4_K_M and F8_E4M3")]
        #[non_exhaustive]
        pub enum Scheme { $($(#[$doc])* $variant,)* }

        impl Scheme {
            /// All schemes.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Lower-case name: `q4_k_m`, `fp16`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The type of most of the weights.
            #[must_use]
            pub const fn dtype(self) -> DType {
                match self { $(Self::$variant => DType::$dtype,)* }
            }

            /// Returns the method that chooses the dtypes of tensors.
            #[must_use]
            pub const fn kind(self) -> SchemeKind {
                match self { $(Self::$variant => SchemeKind::$kind,)* }
            }

            /// Returns llama.cpp's number, which a GGUF file states under `general.file_type`, or
            /// `None`.
            #[must_use]
            pub const fn file_type(self) -> Option<u32> {
                match self { $(Self::$variant => $file_type,)* }
            }
        }
    };
}

schemes! {
    /// Single precision.
    Fp32 = "fp32", F32, Cast, Some(0);
    /// Half precision.
    Fp16 = "fp16", F16, Cast, Some(1);
    /// The upper half of single precision.
    Bf16 = "bf16", BF16, Cast, Some(32);
    /// OCP 8-bit floats with 4 exponent bits.
    F8_E4M3 = "f8_e4m3", F8_E4M3, Cast, None;
    /// OCP 8-bit floats with 5 exponent bits.
    F8_E5M2 = "f8_e5m2", F8_E5M2, Cast, None;
    /// Rows of 8-bit integers with one scale a row.
    Int8 = "int8", I8_ROW, Rows, None;
    /// Groups of 32 4-bit integers with one scale a group.
    Int4 = "int4", I4_ROW, Rows, None;
    /// 8-bit floats with a scale a row, as compressed-tensors has them.
    Fp8 = "fp8", F8_E4M3, Layout, None;
    /// 8-bit integers with a scale a row, as compressed-tensors has them.
    W8A8 = "w8a8", I8_ROW, Layout, None;
    /// 4-bit integers in groups of 128, as compressed-tensors has them.
    W4A16 = "w4a16", I4_ROW, Layout, None;
    /// 4-bit integers in groups of 128, as GPTQ has them.
    Gptq4 = "gptq-4", I4_ROW, Layout, None;
    /// 4-bit integers with a scale and a zero point for each group of 128, as compressed-tensors.
    W4A16Asym = "w4a16-asym", I4_ROW, Layout, None;
    /// 4-bit integers in groups of 64, as MLX has them.
    Mlx4 = "mlx-4", I4_ROW, Layout, None;
    /// 6-bit integers in groups of 64, as MLX has them.
    Mlx6 = "mlx-6", I8_ROW, Layout, None;
    /// 8-bit integers in groups of 64, as MLX has them.
    Mlx8 = "mlx-8", I8_ROW, Layout, None;
    /// 8.5 bits a weight.
    Q8_0 = "q8_0", Q8_0, Blocks, Some(7);
    /// 4.5 bits a weight.
    Q4_0 = "q4_0", Q4_0, Blocks, Some(2);
    /// 5 bits a weight.
    Q4_1 = "q4_1", Q4_1, Blocks, Some(3);
    /// 5.5 bits a weight.
    Q5_0 = "q5_0", Q5_0, Blocks, Some(8);
    /// 6 bits a weight.
    Q5_1 = "q5_1", Q5_1, Blocks, Some(9);
    /// Q2_K, with Q3_K and Q4_K for important tensors.
    Q2_K = "q2_k", Q2_K, Blocks, Some(10);
    /// Q2_K, with Q4_K in the first layers; needs importance.
    Q2_K_S = "q2_k_s", Q2_K, Blocks, Some(21);
    /// Q3_K, the small mix.
    Q3_K_S = "q3_k_s", Q3_K, Blocks, Some(11);
    /// Q3_K, with Q4_K and Q5_K for important tensors.
    Q3_K_M = "q3_k_m", Q3_K, Blocks, Some(12);
    /// Q3_K, with Q5_K for important tensors.
    Q3_K_L = "q3_k_l", Q3_K, Blocks, Some(13);
    /// Q4_K, with Q5_K in the first layers.
    Q4_K_S = "q4_k_s", Q4_K, Blocks, Some(14);
    /// Q4_K, with Q6_K for important tensors.
    Q4_K_M = "q4_k_m", Q4_K, Blocks, Some(15);
    /// Q5_K, the small mix.
    Q5_K_S = "q5_k_s", Q5_K, Blocks, Some(16);
    /// Q5_K, with Q6_K for important tensors.
    Q5_K_M = "q5_k_m", Q5_K, Blocks, Some(17);
    /// 6.6 bits a weight.
    Q6_K = "q6_k", Q6_K, Blocks, Some(18);
    /// 1.6 bits per weight, with Q2_K and IQ2_XXS for important tensors; requires importance.
    IQ1_S = "iq1_s", IQ1_S, Blocks, Some(24);
    /// 1.8 bits per weight, with Q2_K and IQ2_XXS for important tensors; requires importance.
    IQ1_M = "iq1_m", IQ1_M, Blocks, Some(31);
    /// 2.1 bits per weight, with Q2_K for important tensors; requires importance.
    IQ2_XXS = "iq2_xxs", IQ2_XXS, Blocks, Some(19);
    /// 2.3 bits per weight, with Q2_K for important tensors; requires importance.
    IQ2_XS = "iq2_xs", IQ2_XS, Blocks, Some(20);
    /// IQ2_XS, with IQ3_S for important tensors; requires importance.
    IQ2_S = "iq2_s", IQ2_XS, Blocks, Some(28);
    /// IQ2_S with 2.6 bits per weight, with IQ3_S for important tensors; requires importance.
    IQ2_M = "iq2_m", IQ2_S, Blocks, Some(29);
    /// 3.1 bits per weight, with IQ2_S and IQ3_S depending on the tensor; requires importance.
    IQ3_XXS = "iq3_xxs", IQ3_XXS, Blocks, Some(23);
    /// IQ3_S, with IQ3_XXS for less important tensors; requires importance.
    IQ3_XS = "iq3_xs", IQ3_S, Blocks, Some(22);
    /// 3.4 bits a weight.
    IQ3_S = "iq3_s", IQ3_S, Blocks, Some(26);
    /// IQ3_S, with Q4_K for important tensors.
    IQ3_M = "iq3_m", IQ3_S, Blocks, Some(27);
    /// 4.5 bits a weight, unevenly spaced values.
    IQ4_NL = "iq4_nl", IQ4_NL, Blocks, Some(25);
    /// 4.25 bits a weight, unevenly spaced values.
    IQ4_XS = "iq4_xs", IQ4_XS, Blocks, Some(30);
    /// 1.1 bits a weight: -1 and 1.
    Q1_0 = "q1_0", Q1_0, Blocks, Some(40);
    /// 2.3 bits a weight: -1, 0, 1 and 2.
    Q2_0 = "q2_0", Q2_0, Blocks, Some(41);
    /// 1.7 bits a weight: -1, 0 and 1.
    TQ1_0 = "tq1_0", TQ1_0, Blocks, Some(36);
    /// 2.1 bits a weight: -1, 0 and 1.
    TQ2_0 = "tq2_0", TQ2_0, Blocks, Some(37);
    /// OCP microscaling floats of 4 bits.
    ///
    /// llama.cpp uses them only for experts, but does not have another number for them.
    MXFP4 = "mxfp4", MXFP4, Blocks, Some(38);
    /// OCP microscaling floats of 4 bits for experts, Q8_0 for the rest.
    MXFP4_MOE = "mxfp4_moe", MXFP4, Blocks, Some(38);
    /// Floats of 4 bits with 8-bit float scales.
    NVFP4 = "nvfp4", NVFP4, Blocks, Some(39);
}

impl Scheme {
    /// Returns `true` if weights that are zero stay exactly zero.
    ///
    /// Types with a minimum for each group, and those with values from a table, have no code for
    /// zero. Some tensors of a mix may have another type.
    #[must_use]
    pub const fn keeps_zeros(self) -> bool {
        use DType::{
            IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, IQ4_NL, IQ4_XS, Q1_0, Q2_K, Q4_1,
            Q4_K, Q5_1, Q5_K,
        };
        !matches!(self, Self::Mlx4 | Self::Mlx6 | Self::Mlx8)
            && !matches!(
                self.dtype(),
                Q4_1 | Q5_1
                    | Q2_K
                    | Q4_K
                    | Q5_K
                    | IQ1_S
                    | IQ1_M
                    | IQ2_XXS
                    | IQ2_XS
                    | IQ2_S
                    | IQ3_XXS
                    | IQ3_S
                    | IQ4_NL
                    | IQ4_XS
                    | Q1_0
            )
    }
}

/// Further names of schemes. The first three are from llama-quantize.
const ALIASES: &[(&str, Scheme)] = &[
    ("q3_k", Scheme::Q3_K_M),
    ("q4_k", Scheme::Q4_K_M),
    ("q5_k", Scheme::Q5_K_M),
    ("f32", Scheme::Fp32),
    ("float32", Scheme::Fp32),
    ("f16", Scheme::Fp16),
    ("float16", Scheme::Fp16),
    ("bfloat16", Scheme::Bf16),
];

/// Names of single types that differ from [`DType::name`].
const DTYPE_ALIASES: &[(&str, DType)] = &[
    ("fp32", DType::F32),
    ("float32", DType::F32),
    ("fp16", DType::F16),
    ("float16", DType::F16),
    ("bfloat16", DType::BF16),
    ("int8", DType::I8_ROW),
    ("int4", DType::I4_ROW),
];

/// A name that no scheme or type has.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnknownType {
    /// Name that the user passed.
    pub name: String,
    /// Names like it, best first; empty if there is none.
    pub nearest: Vec<&'static str>,
    /// All names.
    known: Vec<&'static str>,
}

impl UnknownType {
    fn new(name: &str, known: impl Iterator<Item = &'static str>) -> Self {
        let known: Vec<&str> = known.collect();
        Self { name: name.to_owned(), nearest: nearest(name, known.iter().copied(), 3), known }
    }
}

impl fmt::Display for UnknownType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown quantization type '{}'; {}", self.name, meant(&self.name, &self.known))
    }
}

impl std::error::Error for UnknownType {}

impl Scheme {
    /// The scheme of a name, in upper or lower case.
    ///
    /// ```
    /// use apr_quantize::Scheme;
    ///
    /// assert_eq!(Scheme::parse("Q4_K"), Ok(Scheme::Q4_K_M));
    /// assert_eq!(Scheme::parse("q4km").unwrap_err().nearest[0], "q4_k_m");
    /// ```
    ///
    /// # Errors
    /// With the names like it, for an unknown name.
    pub fn parse(name: &str) -> Result<Self, UnknownType> {
        Self::names()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, scheme)| scheme)
            .ok_or_else(|| UnknownType::new(name, Self::names().map(|(known, _)| known)))
    }

    /// Every name that [`parse`](Self::parse) takes.
    pub fn names() -> impl Iterator<Item = (&'static str, Self)> {
        Self::ALL.iter().map(|&scheme| (scheme.name(), scheme)).chain(ALIASES.iter().copied())
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Returns `true` if weights can be stored as this dtype: floats, and block types with a quantizer.
const fn is_target(dtype: DType) -> bool {
    match dtype {
        DType::F64 => false,
        DType::F8_E4M3 | DType::F8_E5M2 => true,
        _ => matches!(dtype.kind(), DTypeKind::Float) || can_quantize(dtype),
    }
}

/// The type of one tensor by name, in upper or lower case, for `--embedding-type`, `--output-type`
/// and `--tensor-type`.
///
/// Unlike with [`Scheme::parse`], `q4_k` is the bare type here.
///
/// # Errors
/// With the names like it, for an unknown name.
pub fn parse_dtype(name: &str) -> Result<DType, UnknownType> {
    let known = || {
        let types = DType::ALL.iter().copied().filter(|&dtype| is_target(dtype));
        types.map(|dtype| (dtype.name(), dtype)).chain(DTYPE_ALIASES.iter().copied())
    };
    known()
        .find(|(known, _)| known.eq_ignore_ascii_case(name))
        .map(|(_, dtype)| dtype)
        .ok_or_else(|| UnknownType::new(name, known().map(|(known, _)| known)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scheme_is_found_by_its_name_in_any_case() {
        for &scheme in Scheme::ALL {
            assert_eq!(Scheme::parse(scheme.name()), Ok(scheme));
            assert_eq!(Scheme::parse(&scheme.name().to_uppercase()), Ok(scheme));
        }
    }

    #[test]
    fn k_without_a_letter_is_the_middle_mix_as_in_llama_quantize() {
        assert_eq!(Scheme::parse("q3_k"), Ok(Scheme::Q3_K_M));
        assert_eq!(Scheme::parse("q5_K"), Ok(Scheme::Q5_K_M));
        assert_eq!(Scheme::parse("Q2_K"), Ok(Scheme::Q2_K));
        assert_eq!(parse_dtype("Q4_K"), Ok(DType::Q4_K));
    }

    #[test]
    fn a_type_that_no_weight_is_stored_in_is_unknown() {
        for name in ["q8_k", "q8_1", "iq2_m", "f64", "i8", "bool", "q4_k_m", ""] {
            assert!(parse_dtype(name).is_err(), "{name}");
        }
        assert_eq!(parse_dtype("int8"), Ok(DType::I8_ROW));
        assert_eq!(parse_dtype("fp16"), Ok(DType::F16));
    }
}
