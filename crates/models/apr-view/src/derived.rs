//! A checkpoint of which some tensors are computed when they are read.

use apr_core::{
    CheckpointReader, Companion, Container, Encoded, Error, Metadata, ReadEncoded, Result, Stored,
    StoredForm, StoredRange, TensorInfo, pass_on,
};

use crate::base::Base;
use crate::companions::Companions;

/// How one tensor of a [`Derived`] checkpoint is computed.
///
/// Implementations read the tensor at the same position of the base, or what they hold themselves.
/// They are called with ranges inside the tensor, and need not name it in their errors.
pub trait Computation: Send + Sync {
    /// Fills `buf` with bytes of the computed tensor, from byte `offset` on.
    ///
    /// # Errors
    /// E002, E004 and E007 when the source can't be read; E001 for values that it can't compute
    /// with.
    fn read(&self, target: &Target<'_>, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Returns the form in which the native container stores the tensor, if it has one of its own.
    fn form(&self) -> Option<StoredForm> {
        None
    }

    /// Fills `buf` with bytes of the stored [form](Self::form), from byte `offset` on.
    ///
    /// # Errors
    /// Those of [`read`](Self::read), and E001 for a tensor without such a form.
    fn read_form(&self, _target: &Target<'_>, _offset: u64, _buf: &mut [u8]) -> Result<()> {
        Err(Error::format("the tensor has no other form than its own"))
    }
}

/// A tensor that is to be computed.
pub struct Target<'t> {
    /// The checkpoint below.
    pub base: &'t dyn CheckpointReader,
    /// Position of the tensor, in the base and in the result.
    pub tensor: usize,
    /// Description of the computed tensor; its dtype and shape may differ from the base's.
    pub info: &'t TensorInfo,
}

impl<'t> Target<'t> {
    /// Returns the description of the tensor in the base.
    #[must_use]
    pub fn source(&self) -> &'t TensorInfo {
        &self.base.tensors()[self.tensor]
    }

    /// Fills `buf` with bytes of the tensor in the base, from byte `offset` on.
    ///
    /// # Errors
    /// Those of the base's [`read_tensor`](CheckpointReader::read_tensor).
    pub fn read_source(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.base.read_tensor(self.tensor, offset, buf)
    }
}

/// A checkpoint with the tensors of a base, of which some are computed when they are read.
///
/// ```
/// use apr_core::{CheckpointReader, Limits, Result};
/// use apr_view::{Computation, Derived, Target};
///
/// /// All bits of a tensor, inverted.
/// struct Inverted;
///
/// impl Computation for Inverted {
///     fn read(&self, target: &Target<'_>, offset: u64, buf: &mut [u8]) -> Result<()> {
///         target.read_source(offset, buf)?;
///         buf.iter_mut().for_each(|byte| *byte = !*byte);
///         Ok(())
///     }
/// }
///
/// let header = br#"{"gamma":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#;
/// let mut file = (header.len() as u64).to_le_bytes().to_vec();
/// file.extend_from_slice(header);
/// file.extend_from_slice(&[0, 1]);
/// let model = apr_registry::open(file, "model.safetensors", &Limits::default())?;
///
/// let mut derived = Derived::new(model);
/// derived.compute(0, Inverted);
/// let mut bytes = [0; 2];
/// derived.read_tensor(0, 0, &mut bytes)?;
/// assert_eq!(bytes, [0xff, 0xfe]);
/// # Ok::<(), apr_core::Error>(())
/// ```
pub struct Derived<'a, C> {
    base: Base<'a>,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    computations: Vec<Option<C>>,
    companions: Companions,
    /// `true` if computed tensors are counted with the bytes that they have in the base.
    is_conversion: bool,
}

impl<'a, C> Derived<'a, C> {
    /// Creates a checkpoint that equals its base.
    #[must_use]
    pub fn new(base: impl Into<Base<'a>>) -> Self {
        let base = base.into();
        let tensors = base.tensors().to_vec();
        Self {
            metadata: base.metadata().clone(),
            computations: tensors.iter().map(|_| None).collect(),
            companions: Companions::of(&*base),
            tensors,
            base,
            is_conversion: false,
        }
    }

    /// Marks computed tensors as tensors of the base in another dtype or layout.
    ///
    /// Reports then state their dtype and bytes [before](Stored::before).
    #[must_use]
    pub fn as_conversion(self) -> Self {
        Self { is_conversion: true, ..self }
    }

    /// Computes the tensor at this position from now on.
    pub fn compute(&mut self, tensor: usize, computation: C) {
        self.computations[tensor] = Some(computation);
    }

    /// Returns the computation of a tensor, or `None` if its bytes are the base's.
    #[must_use]
    pub fn computation(&self, tensor: usize) -> Option<&C> {
        self.computations[tensor].as_ref()
    }

    /// Returns the tensor at this position as its computation sees it.
    #[must_use]
    pub fn target(&self, tensor: usize) -> Target<'_> {
        Target { base: &*self.base, tensor, info: &self.tensors[tensor] }
    }

    /// Returns the checkpoint below.
    #[must_use]
    pub fn base(&self) -> &dyn CheckpointReader {
        &*self.base
    }

    /// Returns the description of a tensor, to change its dtype or shape.
    pub fn info_mut(&mut self, tensor: usize) -> &mut TensorInfo {
        &mut self.tensors[tensor]
    }

    /// Returns the metadata, to be changed.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// Returns the companion files, to be changed.
    pub fn companions_mut(&mut self) -> &mut Companions {
        &mut self.companions
    }
}

impl<C: Computation> Derived<'_, C> {
    /// Checks that a range is within a tensor of `len` bytes, and calls `read`; its errors name the
    /// tensor.
    fn within(
        &self,
        tensor: usize,
        len: Option<u64>,
        (offset, buf): (u64, &mut [u8]),
        read: impl FnOnce(&Target<'_>, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let target = self.target(tensor);
        let end = offset.checked_add(buf.len() as u64);
        let result = match end.zip(len).is_some_and(|(end, len)| end <= len) {
            true => read(&target, buf),
            false => Err(Error::corrupt("the read ends past the tensor").at(offset)),
        };
        result.map_err(|error| error.for_tensor(&target.info.name))
    }
}

impl<C: Computation> ReadEncoded for Derived<'_, C> {
    fn read_form(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let computation = self.computation(tensor);
        let len = computation.and_then(Computation::form).map(|form| form.len);
        self.within(tensor, len, (offset, buf), |target, buf| match computation {
            Some(computation) => computation.read_form(target, offset, buf),
            None => Err(Error::format("the tensor has no other form than its own")),
        })
    }

    fn read_verbatim(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_form(tensor, offset, buf)
    }

    fn piece_len(&self, _tensor: usize) -> Option<u64> {
        None
    }

    fn read_both(
        &self,
        tensor: usize,
        _offset: u64,
        _buf: &mut [u8],
        _verbatim: &mut Vec<u8>,
    ) -> Result<u64> {
        let name = &self.tensors[tensor].name;
        Err(Error::format("it has no pieces of its own").for_tensor(name))
    }
}

impl<C: Computation> CheckpointReader for Derived<'_, C> {
    pass_on!(base: format, files, left_out, warnings);

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        let Some(computation) = self.computation(tensor) else { return self.base.stored(tensor) };
        let derived = Stored::derived_from(&*self.base, &[tensor]);
        match computation.form() {
            None if self.is_conversion => derived.converted_from(&*self.base, tensor, true),
            None => derived,
            Some(form) => {
                let range = StoredRange { len: form.len, ..derived.range };
                let encoded = Encoded::new(self, tensor, Some(form));
                Stored::encoded_as(range, encoded).with_parts(derived.parts().to_vec())
            }
        }
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let Some(computation) = self.computation(tensor) else {
            return self.base.read_tensor(tensor, offset, buf);
        };
        let len = self.tensors[tensor].byte_len().ok();
        self.within(tensor, len, (offset, buf), |target, buf| computation.read(target, offset, buf))
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        self.computation(tensor).is_none().then(|| self.base.tensor_slice(tensor))?
    }

    fn container(&self) -> Container<'_> {
        self.base.container().altered()
    }

    fn companions(&self) -> &[Companion] {
        self.companions.list()
    }

    fn read_companion(&self, companion: usize) -> Result<Vec<u8>> {
        self.companions.read(&*self.base, companion)
    }
}
