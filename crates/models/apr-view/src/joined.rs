//! Several checkpoints as one.

use apr_core::{
    CheckpointReader, Companion, Error, FileInfo, Metadata, Result, Stored, TensorInfo, pass_on,
};

use crate::base::Base;
use crate::companions::Companions;

/// A checkpoint with the tensors and files of a first one, followed by those of further ones.
///
/// Format, container, metadata and companion files are the first one's.
///
/// ```
/// use apr_core::{CheckpointReader, Limits};
/// use apr_view::{Base, Joined, View};
///
/// let header = br#"{"gamma":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#;
/// let mut file = (header.len() as u64).to_le_bytes().to_vec();
/// file.extend_from_slice(header);
/// file.extend_from_slice(&[0, 1]);
/// let model = apr_registry::open(file, "model.safetensors", &Limits::default())?;
///
/// let mut other = View::new(&*model);
/// other.rename(|_, _| Some("beta".to_owned()));
/// let joined = Joined::new(&*model, vec![Base::owning(other)])?;
/// let names: Vec<&str> = joined.tensors().iter().map(|info| info.name.as_str()).collect();
/// assert_eq!(names, ["gamma", "beta"]);
/// # Ok::<(), apr_core::Error>(())
/// ```
pub struct Joined<'a> {
    first: Base<'a>,
    others: Vec<Base<'a>>,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    /// The part of each tensor, and its position there.
    places: Vec<(usize, usize)>,
    files: Vec<FileInfo>,
    /// The number of files of the parts before each one.
    files_before: Vec<usize>,
    companions: Companions,
    left_out: Vec<String>,
    warnings: Vec<String>,
}

impl<'a> Joined<'a> {
    /// Joins checkpoints.
    ///
    /// # Errors
    /// E001 if two of them have a tensor of the same name.
    pub fn new(first: impl Into<Base<'a>>, others: Vec<Base<'a>>) -> Result<Self> {
        let first = first.into();
        let mut joined = Self {
            metadata: first.metadata().clone(),
            companions: Companions::of(&*first),
            tensors: Vec::new(),
            places: Vec::new(),
            files: Vec::new(),
            files_before: Vec::new(),
            left_out: Vec::new(),
            warnings: Vec::new(),
            first,
            others,
        };
        for part in 0..=joined.others.len() {
            let reader = joined.part(part);
            let tensors = reader.tensors().to_vec();
            let files = reader.files().to_vec();
            let (left_out, warnings) = (reader.left_out().to_vec(), reader.warnings().to_vec());
            joined.places.extend((0..tensors.len()).map(|position| (part, position)));
            joined.tensors.extend(tensors);
            joined.files_before.push(joined.files.len());
            joined.files.extend(files);
            joined.left_out.extend(left_out);
            joined.warnings.extend(warnings);
        }
        let mut names: Vec<&str> = joined.tensors.iter().map(|info| info.name.as_str()).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            None => Ok(joined),
            Some(pair) => {
                Err(Error::format("two of the joined models have it").for_tensor(pair[0]))
            }
        }
    }

    /// Returns the metadata, to be changed.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// Returns the companion files, to be changed.
    pub fn companions_mut(&mut self) -> &mut Companions {
        &mut self.companions
    }

    fn part(&self, part: usize) -> &dyn CheckpointReader {
        match part.checked_sub(1) {
            None => &*self.first,
            Some(other) => &*self.others[other],
        }
    }

    /// Returns the part with a tensor, and the tensor's position there.
    fn locate(&self, tensor: usize) -> (&dyn CheckpointReader, usize) {
        let (part, position) = self.places[tensor];
        (self.part(part), position)
    }
}

impl CheckpointReader for Joined<'_> {
    pass_on!(first: format, container);

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        let (reader, position) = self.locate(tensor);
        reader.stored(position).behind_files(self.files_before[self.places[tensor].0])
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let (reader, position) = self.locate(tensor);
        reader.read_tensor(position, offset, buf)
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        let (reader, position) = self.locate(tensor);
        reader.tensor_slice(position)
    }

    fn files(&self) -> &[FileInfo] {
        &self.files
    }

    fn companions(&self) -> &[Companion] {
        self.companions.list()
    }

    fn read_companion(&self, companion: usize) -> Result<Vec<u8>> {
        self.companions.read(&*self.first, companion)
    }

    fn left_out(&self) -> &[String] {
        &self.left_out
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

#[cfg(test)]
mod tests {
    use apr_core::Limits;

    use super::*;
    use crate::View;

    fn model(name: &str, bytes: &[u8]) -> Box<dyn CheckpointReader> {
        let len = bytes.len();
        let header =
            format!(r#"{{"{name}":{{"dtype":"U8","shape":[{len}],"data_offsets":[0,{len}]}}}}"#);
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(header.as_bytes());
        file.extend_from_slice(bytes);
        apr_registry::open(file, &format!("{name}.safetensors"), &Limits::default()).expect("valid")
    }

    #[test]
    fn tensors_come_from_the_model_that_has_them_and_lie_in_its_file() {
        let (one, two) = (model("a", &[1, 2]), model("b", &[3, 4, 5]));
        let joined = Joined::new(&*one, vec![Base::from(&*two)]).expect("different names");
        let mut bytes = [0; 2];
        joined.read_tensor(1, 1, &mut bytes).expect("within");
        assert_eq!(bytes, [4, 5]);
        let place = joined.stored(1).range;
        assert_eq!(joined.files()[place.file].name, "b.safetensors");
        assert_eq!(joined.stored(0).range.file, 0);
    }

    #[test]
    fn two_tensors_of_one_name_are_an_error() {
        let one = model("a", &[1, 2]);
        let error = Joined::new(&*one, vec![Base::owning(View::new(&*one))]).err().expect("twice");
        assert!(error.to_string().contains('a'), "{error}");
    }
}
