//! Changing a file's header, with its tensors left where they are.

use apr_core::{CheckpointReader, Error, Metadata, Result, Table, TensorInfo, keys};

use crate::plan::{WriteOptions, plan};
use crate::text::Text;

/// Returns a checkpoint's metadata with other texts in `__metadata__`. A key that is there keeps
/// its place, and a new one comes last.
///
/// ```
/// use apr_core::Metadata;
///
/// let set = [("format".to_owned(), "pt".to_owned())];
/// let metadata = apr_safetensors::with_texts(&Metadata::new(), &[], &set)?;
/// assert_eq!(metadata.object("safetensors").unwrap()["metadata"]["format"], "pt");
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// # Errors
/// E001 for a key to remove that does not exist.
pub fn with_texts(
    metadata: &Metadata,
    unset: &[String],
    set: &[(String, String)],
) -> Result<Metadata> {
    let mut text = match metadata.get(keys::SAFETENSORS) {
        Some(_) => Text::from_metadata(metadata)?,
        None => None,
    };
    for key in unset {
        let pairs = text.as_mut().map(|text| &mut text.0);
        let before = pairs.as_ref().map_or(0, |pairs| pairs.len());
        let left = pairs.map_or(0, |pairs| {
            pairs.retain(|(other, _)| other != key);
            pairs.len()
        });
        if left == before {
            return Err(Error::format(format!("no key '{key}' in __metadata__")));
        }
    }
    for (key, value) in set {
        let pairs = &mut text.get_or_insert_default().0;
        match pairs.iter_mut().find(|(other, _)| other == key) {
            Some((_, old)) => old.clone_from(value),
            None => pairs.push((key.clone(), value.clone())),
        }
    }
    let mut changed = metadata.clone();
    changed.set(keys::SAFETENSORS, Text::to_value(text.as_ref()));
    Ok(changed)
}

/// Returns the bytes before a file's data with these names and metadata, if the header does not get
/// longer. Writing them at the start of the file changes it in place. Returns `None` if the
/// tensors would have to move.
///
/// `tensors` are those of the table except for their names.
///
/// # Errors
/// The errors of [`plan`](crate::plan()), and E007 when reading fails.
pub fn front_in_place(
    table: &Table,
    tensors: &[TensorInfo],
    metadata: &Metadata,
) -> Result<Option<Vec<u8>>> {
    let writer = plan(tensors, metadata, &WriteOptions::default())?;
    let [source] = table.sources() else { return Ok(None) };
    let mut len = [0; size_of::<u64>()];
    source.read_at(0, &mut len)?;
    let front = writer.front_of(u64::from_le_bytes(len));
    let (Some(front), Some(offsets)) = (front, writer.offsets_in_data()) else {
        return Ok(None);
    };
    let shift = front.len() as u64;
    let mut ranges = (0..table.tensors().len()).map(|at| table.stored(at).range);
    let stays = offsets.len() == table.tensors().len()
        && offsets.iter().all(|offset| {
            let range = ranges.next();
            range.map(|range| range.offset) == offset.checked_add(shift)
        });
    Ok(stays.then_some(front))
}

#[cfg(test)]
mod tests {
    use apr_core::Limits;

    use super::*;
    use crate::open;

    /// Returns a file of two tensors of a byte each, with `room` spaces in its header.
    fn file(room: usize) -> Vec<u8> {
        let header = r#"{"__metadata__":{"b":"1","a":"2"},"x":{"dtype":"U8","shape":[1],"#
            .to_owned()
            + r#""data_offsets":[0,1]},"y":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#;
        let header = header + &" ".repeat(room);
        let len = (header.len() as u64).to_le_bytes();
        [&len[..], header.as_bytes(), b"xy"].concat()
    }

    fn renamed(room: usize, name: &str) -> (Vec<u8>, Option<Vec<u8>>) {
        let file = file(room);
        let reader = open(file.clone(), "m.safetensors", &Limits::default()).expect("a model");
        let mut tensors = reader.tensors().to_vec();
        tensors[0].name = name.to_owned();
        let front = front_in_place(&reader, &tensors, reader.metadata()).expect("a plan");
        (file, front)
    }

    #[test]
    fn a_header_that_fits_is_padded_to_the_length_that_it_had() {
        let (file, front) = renamed(4, "long");
        let front = front.expect("it fits");
        assert_eq!(front.len(), file.len() - 2);
        let changed = [&front[..], b"xy"].concat();
        let reader = open(changed, "m.safetensors", &Limits::default()).expect("a model");
        let names: Vec<&str> = reader.tensors().iter().map(|info| info.name.as_str()).collect();
        assert_eq!(names, ["long", "y"]);
        // Without a change, the file is what it was.
        assert_eq!(renamed(4, "x").1.expect("it fits"), file[..file.len() - 2]);
    }

    #[test]
    fn a_header_that_does_not_fit_moves_the_tensors() {
        assert!(renamed(2, "longer").1.is_none());
    }

    #[test]
    fn texts_keep_their_places() {
        let reader = open(file(0), "m.safetensors", &Limits::default()).expect("a model");
        let set = [("b".to_owned(), "3".to_owned()), ("c".to_owned(), "4".to_owned())];
        let changed = with_texts(reader.metadata(), &["a".to_owned()], &set).expect("texts");
        let text = Text::from_metadata(&changed).expect("texts").expect("some");
        assert_eq!(text.0, [("b".into(), "3".into()), ("c".into(), "4".into())]);
        let missing = with_texts(reader.metadata(), &["x".to_owned()], &[]);
        assert!(missing.expect_err("a refusal").message().contains("'x'"));
    }
}
