//! A model file made of arrays in memory.

use std::path::{Path, PathBuf};

use apr_core::{
    CheckpointWriter, DType, Entries, Error, Format, KeyValue, Loss, Metadata, Notes, Result, Sink,
    TensorInfo, keys,
};
use apr_format::apr2::CompanionFile;
use apr_io::{AtomicOutput, Target};
use apr_registry::{PlanOptions, plan, target_by_extension};
use serde_json::{Map, Value, json};

/// Bytes of a tensor that are converted at a time.
const PIECE: usize = 1 << 20;

/// Begins a model file at `path`, in the format that its extension names.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.safetensors");
/// apr::write(&path)
///     .tensor("weight", [2, 3], &[0.0_f32, 1.0, 2.0, 3.0, 4.0, 5.0])
///     .tensor("ids", [2], &[7_i64, 8])
///     .metadata("license", "mit")
///     .finish()?;
/// assert_eq!(apr::Model::open(&path)?.tensor("ids")?.to_vec::<i64>()?, [7, 8]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn write<'a>(path: impl AsRef<Path>) -> ModelWriter<'a> {
    ModelWriter {
        path: path.as_ref().to_path_buf(),
        format: None,
        replace: false,
        tensors: Vec::new(),
        metadata: Vec::new(),
        adds_metadata: true,
        companions: Vec::new(),
    }
}

/// A model file that is being described; [`finish`](Self::finish) writes it.
///
/// Elements are borrowed until then, and converted a piece at a time.
#[must_use = "nothing is written until `finish`"]
pub struct ModelWriter<'a> {
    path: PathBuf,
    format: Option<&'static Format>,
    replace: bool,
    tensors: Vec<(TensorInfo, Box<dyn Elements + 'a>)>,
    metadata: Vec<(String, String)>,
    adds_metadata: bool,
    companions: Vec<CompanionFile>,
}

/// Report on a written file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteReport {
    /// Length of the file in bytes.
    pub bytes: u64,
    /// Content that the format can't hold.
    pub losses: Vec<Loss>,
    /// Problems after the file was put in place, such as a folder that could not be synced.
    pub warnings: Vec<String>,
}

impl<'a> ModelWriter<'a> {
    /// Sets the format. Default: the format of the extension.
    pub fn format(mut self, format: &'static Format) -> Self {
        self.format = Some(format);
        self
    }

    /// Replaces what is at the path.
    pub fn replace(mut self) -> Self {
        self.replace = true;
        self
    }

    /// Adds a tensor: `shape` in elements, outermost first, and its elements row by row.
    pub fn tensor<T: WriteElement>(
        self,
        name: impl Into<String>,
        shape: impl Into<Vec<u64>>,
        elements: &'a [T],
    ) -> Self {
        self.add(name.into(), T::DTYPE, shape.into(), Box::new(elements))
    }

    /// Adds a tensor of any dtype by its stored bytes: little-endian elements or blocks, row by
    /// row.
    pub fn tensor_bytes(
        self,
        name: impl Into<String>,
        dtype: DType,
        shape: impl Into<Vec<u64>>,
        bytes: &'a [u8],
    ) -> Self {
        self.add(name.into(), dtype, shape.into(), Box::new(bytes))
    }

    /// Adds a tensor of any dtype whose `byte_len` stored bytes are read when they are written, a
    /// piece at a time and in order: `read` fills a buffer from an offset within them.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("model.safetensors");
    /// let zeros = |_offset, piece: &mut [u8]| Ok(piece.fill(0));
    /// apr::write(&path)
    ///     .tensor_read("zeros", apr::DType::BF16, [1000, 1000], 2_000_000, zeros)
    ///     .finish()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tensor_read(
        self,
        name: impl Into<String>,
        dtype: DType,
        shape: impl Into<Vec<u64>>,
        byte_len: u64,
        read: impl Fn(u64, &mut [u8]) -> Result<()> + 'a,
    ) -> Self {
        self.add(name.into(), dtype, shape.into(), Box::new(Read(byte_len, read)))
    }

    fn add(
        mut self,
        name: String,
        dtype: DType,
        shape: Vec<u64>,
        elements: Box<dyn Elements + 'a>,
    ) -> Self {
        self.tensors.push((TensorInfo { name, dtype, shape: shape.into() }, elements));
        self
    }

    /// Adds an entry of metadata: of `__metadata__` in safetensors, a string under its key in GGUF,
    /// an entry of the metadata in `.apr`.
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.push((key.into(), value.into()));
        self
    }

    /// Writes only the given metadata.
    ///
    /// Without this call, a safetensors file without metadata gets `{"format": "pt"}`, which
    /// transformers requires.
    pub fn only_metadata(mut self) -> Self {
        self.adds_metadata = false;
        self
    }

    /// Adds a companion file such as `config.json`, if the format can store it.
    pub fn companion(mut self, name: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Self {
        self.companions.push(CompanionFile { name: name.into(), bytes: bytes.into() });
        self
    }

    /// Writes the file, which appears when it is complete.
    ///
    /// # Errors
    /// E001 for an extension that names no format that is written, and for what the format can't
    /// hold as a whole: dtypes, names that come twice, a tensor with more or fewer
    /// elements than its shape says; E007 where something is at the path, or writing fails.
    pub fn finish(mut self) -> Result<WriteReport> {
        let mut writer = self.plan()?;
        let layout = writer.layout().clone();
        let names = layout.files.iter().map(|file| file.name.as_str());
        let mut output =
            AtomicOutput::create(Target::Model(self.path.clone()), self.replace, names)?;
        self.write_to(&mut *writer, &mut output)?;
        Ok(WriteReport {
            bytes: writer.layout().total_len(),
            losses: layout.losses,
            warnings: output.commit()?.warnings().collect(),
        })
    }

    /// Returns the file in memory. The path determines only the format; nothing is written to it.
    ///
    /// ```
    /// let file = apr::write("bias.safetensors").tensor("bias", [2], &[0.5_f32, -0.5]);
    /// let model = apr::Model::from_source(file.into_bytes()?, "bias", &Default::default())?;
    /// assert_eq!(model.tensor("bias")?.to_vec::<f32>()?, [0.5, -0.5]);
    /// # Ok::<(), apr::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`finish`](Self::finish), except for errors of files.
    pub fn into_bytes(mut self) -> Result<Vec<u8>> {
        let mut writer = self.plan()?;
        let mut bytes = Vec::new();
        self.write_to(&mut *writer, &mut bytes)?;
        Ok(bytes)
    }

    /// Creates the writer of the format, which plans the layout of the file.
    fn plan(&mut self) -> Result<Box<dyn CheckpointWriter>> {
        let format = self.target()?;
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for (info, elements) in &self.tensors {
            let (expected, given) = (info.byte_len()?, elements.byte_len());
            if expected != given {
                let message = format!(
                    "{given} bytes of elements were given, and the shape {} takes {expected}",
                    info.shape
                );
                return Err(Error::format(message).for_tensor(&info.name).in_file(&name));
            }
        }

        let infos: Vec<TensorInfo> = self.tensors.iter().map(|(info, _)| info.clone()).collect();
        let metadata = metadata_of(format, &self.metadata, self.adds_metadata)?;
        let options = PlanOptions::new(format, name);
        plan(&infos, &metadata, std::mem::take(&mut self.companions), &options)
    }

    fn write_to(&self, writer: &mut dyn CheckpointWriter, sink: &mut dyn Sink) -> Result<()> {
        writer.begin(sink)?;
        let mut piece = Vec::with_capacity(PIECE);
        for planned in &writer.layout().tensors.clone() {
            let elements = &self.tensors[planned.source].1;
            let mut from = 0;
            while elements.take(&mut from, &mut piece)? {
                writer.write_chunk(sink, &piece, None)?;
            }
        }
        writer.finish(sink, &Notes::default())
    }

    fn target(&self) -> Result<&'static Format> {
        let extension = self.path.extension().and_then(|extension| extension.to_str());
        let by_extension = || extension.and_then(target_by_extension);
        self.format.or_else(by_extension).ok_or_else(|| {
            Error::format("the extension names no format that is written")
                .in_file(self.path.display().to_string())
        })
    }
}

/// Returns the metadata with the entries in the form of the format.
fn metadata_of(
    format: &'static Format,
    entries: &[(String, String)],
    adds: bool,
) -> Result<Metadata> {
    let mut metadata = Metadata::new();
    match format.target.map_or(Entries::Values, |target| target.entries) {
        Entries::HeaderTexts => {
            let entries: Map<String, Value> =
                entries.iter().map(|(key, value)| (key.clone(), value.as_str().into())).collect();
            if !entries.is_empty() {
                metadata.set(keys::SAFETENSORS, json!({ "metadata": entries }));
            } else if !adds {
                metadata.set(keys::SAFETENSORS, json!({}));
            }
        }
        Entries::KeyValues => {
            if !entries.is_empty() {
                let pair = |(key, value): &(String, String)| KeyValue::new(key, value.as_str());
                metadata.set_key_values(entries.iter().map(pair).collect());
            }
        }
        _ => {
            for (key, value) in entries {
                if metadata.get(key).is_some() {
                    return Err(Error::format(format!("the metadata have '{key}' twice")));
                }
                metadata.set(key, value.as_str());
            }
        }
    }
    Ok(metadata)
}

/// Elements that are borrowed until they are written.
trait Elements {
    fn byte_len(&self) -> u64;

    /// Replaces the contents of `piece` by the next bytes from `from` on, and moves it; false after
    /// the last.
    fn take(&self, from: &mut usize, piece: &mut Vec<u8>) -> Result<bool>;
}

impl<T: WriteElement> Elements for &[T] {
    fn byte_len(&self) -> u64 {
        size_of_val(*self) as u64
    }

    fn take(&self, from: &mut usize, piece: &mut Vec<u8>) -> Result<bool> {
        piece.clear();
        let left = &self[*from..];
        let count = left.len().min(PIECE / size_of::<T>());
        T::append(&left[..count], piece);
        *from += count;
        Ok(count > 0)
    }
}

/// Bytes that a closure gives.
struct Read<F>(u64, F);

impl<F: Fn(u64, &mut [u8]) -> Result<()>> Elements for Read<F> {
    fn byte_len(&self) -> u64 {
        self.0
    }

    fn take(&self, from: &mut usize, piece: &mut Vec<u8>) -> Result<bool> {
        let at = *from as u64;
        let count = usize::try_from(self.0 - at).map_or(PIECE, |left| left.min(PIECE));
        piece.resize(count, 0);
        *from += count;
        if count > 0 {
            (self.1)(at, piece)?;
        }
        Ok(count > 0)
    }
}

/// A number that tensors are written of: floats of 32 and 64 bits, integers of 8 to 64.
pub trait WriteElement: sealed::WriteElement {}

impl<T: sealed::WriteElement> WriteElement for T {}

mod sealed {
    use apr_core::DType;

    pub trait WriteElement: Copy {
        const DTYPE: DType;
        /// Appends the elements, little-endian.
        fn append(elements: &[Self], out: &mut Vec<u8>);
    }
}

macro_rules! write_elements {
    ($($element:ty => $dtype:ident,)*) => {$(
        impl sealed::WriteElement for $element {
            const DTYPE: DType = DType::$dtype;

            fn append(elements: &[Self], out: &mut Vec<u8>) {
                elements.iter().for_each(|element| out.extend_from_slice(&element.to_le_bytes()));
            }
        }
    )*};
}

write_elements! {
    f32 => F32, f64 => F64,
    i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    u8 => U8, u16 => U16, u32 => U32, u64 => U64,
}
