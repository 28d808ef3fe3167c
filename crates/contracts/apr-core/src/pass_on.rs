//! The one way in which a reader over another one delegates, and a reader of a file says what it
//! has and lacks.

/// Methods of [`CheckpointReader`](crate::CheckpointReader) that a field does:
/// `pass_on!(base: format, files)`. Those that are neither listed nor written do not compile, since
/// the trait has no defaults. `pass_on!(base)` is all of them.
///
/// ```
/// use apr_core::{CheckpointReader, Metadata, pass_on};
///
/// /// A checkpoint with other metadata.
/// struct Renamed {
///     base: Box<dyn CheckpointReader>,
///     metadata: Metadata,
/// }
///
/// impl CheckpointReader for Renamed {
///     pass_on!(base: format, tensors, stored, read_tensor, tensor_slice, container, files);
///     pass_on!(base: companions, read_companion, left_out, warnings);
///
///     fn metadata(&self) -> &Metadata {
///         &self.metadata
///     }
/// }
/// ```
#[macro_export]
macro_rules! pass_on {
    ($base:ident) => {
        $crate::pass_on!($base: format, metadata, tensors, stored, read_tensor, tensor_slice);
        $crate::pass_on!($base: container, files, companions, read_companion, left_out, warnings);
    };
    ($base:ident: $($method:ident),+ $(,)?) => { $($crate::pass_on!(@$method $base);)+ };
    (@format $base:ident) => {
        fn format(&self) -> &'static $crate::Format {
            self.$base.format()
        }
    };
    (@metadata $base:ident) => {
        fn metadata(&self) -> &$crate::Metadata {
            self.$base.metadata()
        }
    };
    (@tensors $base:ident) => {
        fn tensors(&self) -> &[$crate::TensorInfo] {
            self.$base.tensors()
        }
    };
    (@stored $base:ident) => {
        fn stored(&self, tensor: usize) -> $crate::Stored<'_> {
            self.$base.stored(tensor)
        }
    };
    (@read_tensor $base:ident) => {
        fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> $crate::Result<()> {
            self.$base.read_tensor(tensor, offset, buf)
        }
    };
    (@tensor_slice $base:ident) => {
        fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
            self.$base.tensor_slice(tensor)
        }
    };
    (@container $base:ident) => {
        fn container(&self) -> $crate::Container<'_> {
            self.$base.container()
        }
    };
    (@files $base:ident) => {
        fn files(&self) -> &[$crate::FileInfo] {
            self.$base.files()
        }
    };
    (@companions $base:ident) => {
        fn companions(&self) -> &[$crate::Companion] {
            self.$base.companions()
        }
    };
    (@read_companion $base:ident) => {
        fn read_companion(&self, companion: usize) -> $crate::Result<Vec<u8>> {
            self.$base.read_companion(companion)
        }
    };
    (@left_out $base:ident) => {
        fn left_out(&self) -> &[String] {
            self.$base.left_out()
        }
    };
    (@warnings $base:ident) => {
        fn warnings(&self) -> &[String] {
            self.$base.warnings()
        }
    };
}

/// Implements methods of [`CheckpointReader`](crate::CheckpointReader) for missing features.
///
/// Example: `has_no!(companions)`. `companions` stands for both methods about them.
#[macro_export]
macro_rules! has_no {
    ($($what:ident),+ $(,)?) => { $($crate::has_no!(@$what);)+ };
    (@companions) => {
        fn companions(&self) -> &[$crate::Companion] {
            &[]
        }

        fn read_companion(&self, companion: usize) -> $crate::Result<Vec<u8>> {
            Err($crate::Companion::absent(companion))
        }
    };
    (@left_out) => {
        fn left_out(&self) -> &[String] {
            &[]
        }
    };
    (@warnings) => {
        fn warnings(&self) -> &[String] {
            &[]
        }
    };
    (@slices) => {
        fn tensor_slice(&self, _tensor: usize) -> Option<&[u8]> {
            None
        }
    };
}

/// Methods of [`CheckpointReader`](crate::CheckpointReader) that give the field of their name:
/// `has_own!(metadata, tensors, files)`. `container` is the reader itself, by its
/// [`ContainerFacts`](crate::ContainerFacts).
#[macro_export]
macro_rules! has_own {
    ($($what:ident),+ $(,)?) => { $($crate::has_own!(@$what);)+ };
    (@metadata) => {
        fn metadata(&self) -> &$crate::Metadata {
            &self.metadata
        }
    };
    (@tensors) => {
        fn tensors(&self) -> &[$crate::TensorInfo] {
            &self.tensors
        }
    };
    (@container) => {
        fn container(&self) -> $crate::Container<'_> {
            $crate::Container::of(self)
        }
    };
    (@files) => {
        fn files(&self) -> &[$crate::FileInfo] {
            &self.files
        }
    };
    (@left_out) => {
        fn left_out(&self) -> &[String] {
            &self.left_out
        }
    };
    (@warnings) => {
        fn warnings(&self) -> &[String] {
            &self.warnings
        }
    };
}
