//! Tensors in memory: elements of one type, in rows without gaps.

use std::sync::Arc;

use apr_core::{Error, Result};
use apr_graph::ElementType;

use crate::pool;

macro_rules! storages {
    ($($variant:ident($rust:ty) = $element:ident;)*) => {
        /// The elements of a tensor, one after the other, the innermost dimension first.
        ///
        /// Types without a Rust type of their own are kept as integers: `f16` and `bf16` as the
        /// bits in a `u16`; truth values as 0 or 1, 8-bit floats, and what is smaller than a byte,
        /// as one `u8` each; `i4` and `i2` as `i8`.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Data {
            $(#[doc = concat!("Elements of `", stringify!($rust), "`.")] $variant(Vec<$rust>),)*
        }

        $(impl Element for $rust {
            const TYPE: ElementType = ElementType::$element;

            fn of(data: &Data) -> Option<&[Self]> {
                match data {
                    Data::$variant(values) => Some(values),
                    _ => None,
                }
            }

            fn of_mut(data: &mut Data) -> Option<&mut Vec<Self>> {
                match data {
                    Data::$variant(values) => Some(values),
                    _ => None,
                }
            }

            fn into_data(values: Vec<Self>) -> Data {
                Data::$variant(values)
            }
        })*

        impl Data {
            /// Number of elements.
            #[must_use]
            pub fn len(&self) -> usize {
                match self { $(Self::$variant(values) => values.len(),)* }
            }
        }
    };
}

/// A Rust type that elements are kept in.
pub trait Element: Clone + Default + PartialEq + Send + Sync + 'static {
    /// Element type whose elements are stored as exactly this Rust type.
    const TYPE: ElementType;
    /// Returns the elements, or `None` if they are stored as another type.
    fn of(data: &Data) -> Option<&[Self]>;
    /// The elements, to be changed.
    fn of_mut(data: &mut Data) -> Option<&mut Vec<Self>>;
    /// Elements as data.
    fn into_data(values: Vec<Self>) -> Data;
}

storages! {
    F32(f32) = F32;
    F64(f64) = F64;
    I8(i8) = I8;
    I16(i16) = I16;
    I32(i32) = I32;
    I64(i64) = I64;
    U8(u8) = U8;
    U16(u16) = U16;
    U32(u32) = U32;
    U64(u64) = U64;
    Text(String) = Text;
}

impl Data {
    /// Returns `true` if there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that it takes in memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let width = match self {
            Self::I8(_) | Self::U8(_) => 1,
            Self::I16(_) | Self::U16(_) => 2,
            Self::F32(_) | Self::I32(_) | Self::U32(_) => 4,
            Self::F64(_) | Self::I64(_) | Self::U64(_) => 8,
            Self::Text(texts) => {
                return texts.iter().map(|text| (size_of::<String>() + text.len()) as u64).sum();
            }
        };
        self.len() as u64 * width
    }
}

/// Runs an expression with `$values` bound to the vector of any type of elements.
macro_rules! with_storage {
    ($data:expr, $values:ident => $body:expr) => {
        match $data {
            $crate::tensor::Data::F32($values) => $body,
            $crate::tensor::Data::F64($values) => $body,
            $crate::tensor::Data::I8($values) => $body,
            $crate::tensor::Data::I16($values) => $body,
            $crate::tensor::Data::I32($values) => $body,
            $crate::tensor::Data::I64($values) => $body,
            $crate::tensor::Data::U8($values) => $body,
            $crate::tensor::Data::U16($values) => $body,
            $crate::tensor::Data::U32($values) => $body,
            $crate::tensor::Data::U64($values) => $body,
            $crate::tensor::Data::Text($values) => $body,
        }
    };
}

/// Same as `with_storage`, for numbers only; `$none` is the result for texts.
macro_rules! with_numbers {
    ($data:expr, $values:ident => $body:expr, $none:expr) => {
        match $data {
            $crate::tensor::Data::F32($values) => $body,
            $crate::tensor::Data::F64($values) => $body,
            $crate::tensor::Data::I8($values) => $body,
            $crate::tensor::Data::I16($values) => $body,
            $crate::tensor::Data::I32($values) => $body,
            $crate::tensor::Data::I64($values) => $body,
            $crate::tensor::Data::U8($values) => $body,
            $crate::tensor::Data::U16($values) => $body,
            $crate::tensor::Data::U32($values) => $body,
            $crate::tensor::Data::U64($values) => $body,
            $crate::tensor::Data::Text(_) => $none,
        }
    };
}

pub(crate) use {with_numbers, with_storage};

/// A tensor. Copies share their elements until one of them is changed.
///
/// ```
/// use apr_infer::Tensor;
///
/// let tensor = Tensor::new(vec![2, 2], vec![1.0_f32, 2.0, 3.0, 4.0]).unwrap();
/// assert_eq!(tensor.shape(), [2, 2]);
/// assert_eq!(tensor.values::<f32>().unwrap()[3], 4.0);
/// assert!(tensor.values::<i64>().is_err());
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    element: ElementType,
    shape: Vec<usize>,
    data: Shared,
}

/// Elements that copies of a tensor share. The last one gives the memory back.
#[derive(Debug, Clone, PartialEq)]
struct Shared(Arc<Data>);

impl Shared {
    fn new(data: Data) -> Self {
        Self(Arc::new(data))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(Data::F32(values)) = Arc::get_mut(&mut self.0) {
            pool::give(std::mem::take(values));
        }
    }
}

impl Tensor {
    /// A tensor of elements that are a Rust type.
    ///
    /// # Errors
    /// E001 when there are more or fewer elements than the shape says.
    pub fn new<T: Element>(shape: Vec<usize>, values: Vec<T>) -> Result<Self> {
        Self::with_type(T::TYPE, shape, T::into_data(values))
    }

    /// Creates a tensor of any type. `data` must be stored as [`Data`] defines it for that type.
    ///
    /// # Errors
    /// E001 if the number of elements does not fit the shape, or the data is of another kind.
    pub fn with_type(element: ElementType, shape: Vec<usize>, data: Data) -> Result<Self> {
        if elements(&shape) != Some(data.len()) {
            return Err(Error::format(format!(
                "{} elements do not fill the shape {shape:?}",
                data.len()
            )));
        }
        if !is_storage_of(element, &data) {
            return Err(Error::format(format!(
                "elements of type {element} are kept in another way"
            )));
        }
        Ok(Self { element, shape, data: Shared::new(data) })
    }

    /// A tensor without dimensions.
    #[must_use]
    pub fn scalar<T: Element>(value: T) -> Self {
        Self { element: T::TYPE, shape: Vec::new(), data: Shared::new(T::into_data(vec![value])) }
    }

    /// Elements in a row.
    #[must_use]
    pub fn row<T: Element>(values: Vec<T>) -> Self {
        Self {
            element: T::TYPE,
            shape: vec![values.len()],
            data: Shared::new(T::into_data(values)),
        }
    }

    /// Creates a tensor of booleans.
    ///
    /// # Errors
    /// E001 when there are more or fewer than the shape says.
    pub fn truths(shape: Vec<usize>, values: Vec<u8>) -> Result<Self> {
        Self::with_type(ElementType::Bool, shape, Data::U8(values))
    }

    /// Type of the elements.
    #[must_use]
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// Dimensions, outermost first.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of dimensions.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.data.0.len()
    }

    /// Returns `true` if the tensor has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.data.0.is_empty()
    }

    /// Returns the elements of the tensor.
    #[must_use]
    pub fn data(&self) -> &Data {
        &self.data.0
    }

    /// Returns an id that differs for tensors that do not share elements.
    pub(crate) fn identity(&self) -> usize {
        Arc::as_ptr(&self.data.0) as usize
    }

    /// Returns the elements as this Rust type.
    ///
    /// # Errors
    /// E001 if they are of another type.
    pub fn values<T: Element>(&self) -> Result<&[T]> {
        T::of(&self.data.0)
            .ok_or_else(|| Error::format(format!("{} expected, not {}", T::TYPE, self.element)))
    }

    /// Returns the elements as a vector, without a copy if they are not shared.
    ///
    /// # Errors
    /// E001 if they are of another type.
    pub fn into_values<T: Element>(self) -> Result<Vec<T>> {
        let element = self.element;
        let wrong = || Error::format(format!("{} expected, not {element}", T::TYPE));
        let mut shared = self.data;
        match Arc::get_mut(&mut shared.0) {
            Some(data) => T::of_mut(data).map(std::mem::take).ok_or_else(wrong),
            None => {
                let values = T::of(&shared.0).ok_or_else(wrong)?;
                let mut copy = pool::with_capacity(values.len());
                copy.extend_from_slice(values);
                Ok(copy)
            }
        }
    }

    /// Returns `true` if the elements are not shared, so that they can be changed in place.
    pub(crate) fn is_alone(&self) -> bool {
        Arc::strong_count(&self.data.0) == 1
    }

    /// Returns the elements in the same order with other dimensions.
    ///
    /// # Errors
    /// E001 when the numbers of elements differ.
    pub fn reshaped(mut self, shape: Vec<usize>) -> Result<Self> {
        if elements(&shape) != Some(self.len()) {
            return Err(Error::format(format!(
                "the shape {:?} can't become {shape:?}",
                self.shape
            )));
        }
        self.shape = shape;
        Ok(self)
    }

    /// Returns the same bits as elements of another type with the same storage.
    pub(crate) fn retyped(mut self, element: ElementType) -> Self {
        self.element = element;
        self
    }

    /// A tensor of the same type with other elements, kept in the same way.
    pub(crate) fn like(&self, shape: Vec<usize>, data: Data) -> Result<Self> {
        Self::with_type(self.element, shape, data)
    }

    /// Bytes that the elements take in memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.data.0.bytes()
    }
}

/// Maximum number of rows of a tensor without elements. Loops over its rows take time although they
/// are empty.
const MAX_EMPTY_ROWS: usize = 1 << 24;

/// Returns the product of sizes, or `None` if memory can't hold that many elements. Tensors without
/// elements also return `None` if the product of their other sizes exceeds [`MAX_EMPTY_ROWS`].
pub(crate) fn elements(shape: &[usize]) -> Option<usize> {
    let mut others = shape.iter().filter(|&&size| size != 0);
    let product = others.try_fold(1_usize, |product, &size| product.checked_mul(size))?;
    match shape.contains(&0) {
        true => (product <= MAX_EMPTY_ROWS).then_some(0),
        false => Some(product),
    }
}

/// Returns `true` if elements of a type are stored in this form.
fn is_storage_of(element: ElementType, data: &Data) -> bool {
    match data {
        Data::F32(_) => element == ElementType::F32,
        Data::F64(_) => element == ElementType::F64,
        Data::I8(_) => matches!(element, ElementType::I8 | ElementType::I4 | ElementType::I2),
        Data::I16(_) => element == ElementType::I16,
        Data::I32(_) => element == ElementType::I32,
        Data::I64(_) => element == ElementType::I64,
        Data::U16(_) => matches!(element, ElementType::U16 | ElementType::F16 | ElementType::BF16),
        Data::U32(_) => element == ElementType::U32,
        Data::U64(_) => element == ElementType::U64,
        Data::Text(_) => element == ElementType::Text,
        Data::U8(_) => matches!(
            element,
            ElementType::U8
                | ElementType::Bool
                | ElementType::U4
                | ElementType::U2
                | ElementType::F4E2M1
                | ElementType::F8E4M3
                | ElementType::F8E4M3Fnuz
                | ElementType::F8E5M2
                | ElementType::F8E5M2Fnuz
                | ElementType::F8E8M0
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_elements_must_match_the_shape() {
        assert!(Tensor::new(vec![2, 3], vec![0.0_f32; 5]).is_err());
        assert!(Tensor::new(vec![usize::MAX, 2], vec![0.0_f32; 5]).is_err());
    }

    #[test]
    fn tensors_without_elements_have_a_limited_number_of_rows() {
        assert_eq!(Tensor::new(vec![0, 3, 1024, 1024], Vec::<i64>::new()).unwrap().len(), 0);
        assert!(Tensor::new(vec![0, usize::MAX, 2], Vec::<i64>::new()).is_err());
        assert!(Tensor::new(vec![1 << 40, 0], Vec::<i64>::new()).is_err());
    }

    #[test]
    fn halves_are_not_integers() {
        assert!(Tensor::with_type(ElementType::F16, vec![1], Data::U16(vec![0x3c00])).is_ok());
        assert!(Tensor::with_type(ElementType::F16, vec![1], Data::U8(vec![0])).is_err());
    }
}
