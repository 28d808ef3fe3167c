//! Data outside the model's file.

use std::collections::HashMap;
use std::sync::Arc;

use apr_core::protobuf::Walker;
use apr_core::{
    Error, Escaped, FileInfo, IoCause, Result, SharedSource, SourceSet, StoredRange, relative_path,
};

use crate::proto::Tensor;

/// The model's file and the data files that it refers to.
pub(crate) struct Files<'a> {
    set: Option<&'a dyn SourceSet>,
    pub(crate) sources: Vec<SharedSource>,
    pub(crate) infos: Vec<FileInfo>,
    /// Ranges of tensor data in files other than the model's own.
    pub(crate) found: Vec<StoredRange>,
    by_name: HashMap<String, usize>,
}

/// Declared location of a tensor's data.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ExternalLocation {
    pub(crate) location: String,
    pub(crate) offset: u64,
    pub(crate) len: Option<u64>,
}

impl<'a> Files<'a> {
    pub(crate) fn new(source: SharedSource, name: &str, set: Option<&'a dyn SourceSet>) -> Self {
        let infos = vec![FileInfo { name: name.to_owned(), len: source.len() }];
        Self { set, sources: vec![source], infos, found: Vec::new(), by_name: HashMap::new() }
    }

    /// Files that were opened before.
    pub(crate) fn opened(sources: &[SharedSource], infos: &[FileInfo]) -> Self {
        let by_name = infos
            .iter()
            .enumerate()
            .skip(1)
            .map(|(file, info)| (info.name.clone(), file))
            .collect();
        let (sources, infos) = (sources.to_vec(), infos.to_vec());
        Self { set: None, sources, infos, found: Vec::new(), by_name }
    }

    /// The `expected` bytes of a tensor in another file.
    pub(crate) fn find(&mut self, place: &ExternalLocation, expected: u64) -> Result<StoredRange> {
        let file = self.open(&place.location)?;
        let file_len = self.infos[file].len;
        // ONNX lets the length be left out.
        let len = place.len.unwrap_or(expected);
        let location = Escaped::short(&place.location);
        if len != expected {
            let message = format!(
                "its type and shape require {expected} bytes, but it has {len} of '{location}'"
            );
            return Err(Error::corrupt(message));
        }

        if place.offset.checked_add(len).is_none_or(|end| end > file_len) {
            let message =
                format!("its {len} bytes reach past the end of '{location}', which has {file_len}");
            return Err(Error::corrupt(message).at(place.offset).in_file(&place.location));
        }

        let range = StoredRange { file, offset: place.offset, len };
        self.found.push(range);
        Ok(range)
    }

    fn open(&mut self, location: &str) -> Result<usize> {
        let location = checked_location(location)?;
        if let Some(&file) = self.by_name.get(location) {
            return Ok(file);
        }

        let Some(set) = self.set else {
            let message = format!(
                "its data are in the file '{}' of the same folder",
                Escaped::short(location)
            );
            return Err(Error::io(IoCause::NotFound, message));
        };

        let source: SharedSource =
            Arc::from(set.open(location).map_err(|error| error.in_file(location))?);
        let file = self.sources.len();
        self.infos.push(FileInfo { name: location.to_owned(), len: source.len() });
        self.sources.push(source);
        self.by_name.insert(location.to_owned(), file);
        Ok(file)
    }
}

/// Checks that a location is a relative path inside the folder of the model, and returns it.
///
/// # Errors
/// E001 for a path that is absolute or leads out of the folder, and for the markers of programs
/// that hold the data in memory.
pub(crate) fn checked_location(location: &str) -> Result<&str> {
    let path = relative_path(location).ok().filter(|path| !path.contains('*'));
    path.ok_or_else(|| {
        let shown = Escaped::short(location);
        Error::format(format!(
            "its external data location '{shown}' is not a path inside the model's folder"
        ))
    })
}

impl ExternalLocation {
    /// Reads the location of a tensor's data. `None` if the data are in the model's file.
    pub(crate) fn of(tensor: &Tensor, walker: &mut Walker<'_>) -> Result<Option<Self>> {
        if !tensor.is_outside() {
            return Ok(None);
        }

        let mut place = Self::default();
        for property in &tensor.external {
            let text = property.text(walker)?;
            let number = || {
                let message = format!(
                    "its {} '{}' is not a number of bytes",
                    property.key,
                    Escaped::short(&text)
                );
                text.trim()
                    .parse::<u64>()
                    .map_err(|_| Error::format(message).at(property.value.offset))
            };

            match property.key.as_str() {
                "offset" => place.offset = number()?,
                "length" => place.len = Some(number()?),
                "location" => place.location = text,
                _ => {}
            }
        }

        Ok(Some(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_stay_in_the_folder() {
        for location in ["weights.bin", "model.onnx_data", "data/w.bin", "./w", "a..b"] {
            assert!(checked_location(location).is_ok(), "{location}");
        }
        for location in
            ["", "/etc/passwd", "../w", "a/../../w", "a//b", "C:\\w", "a\\b", "*/_ORT_MEM:1", "w\0"]
        {
            assert!(checked_location(location).is_err(), "{location:?}");
        }
    }
}
