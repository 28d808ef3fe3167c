//! A model as a checkpoint.

use std::sync::Arc;

use apr_core::{
    ByteSource, Error, Limits, Result, Shape, SharedSource, StoredRange, Table, TensorBytes,
    TensorDecoder, TensorInfo, counted, keys,
};

use crate::associated::Associated;
use crate::description::Description;
use crate::flatbuffer::Flatbuffer;
use crate::model::{Weight, Weights};
use crate::{FORMAT, METADATA};

/// Opens a model. Tables are read, no weights.
///
/// # Errors
/// E001 for what is no model, E002 for a damaged file, E003 for one whose weights no format here
/// holds, E007 when reading fails, E008 over a limit.
pub fn open<S: ByteSource + 'static>(source: S, name: &str, limits: &Limits) -> Result<Table> {
    open_shared(&(Arc::new(source) as SharedSource), name, limits)
        .map_err(|error| error.in_file(name))
}

fn open_shared(source: &SharedSource, name: &str, limits: &Limits) -> Result<Table> {
    let mut head = [0; 8];
    let is_model = source.read_at(0, &mut head).is_ok() && (FORMAT.recognises)(&head);
    if !is_model {
        return Err(Error::format("not a TensorFlow Lite model"));
    }

    let (weights, description) = {
        let flatbuffer = Flatbuffer::new(source, limits);
        let model = flatbuffer.root()?;
        (Weights::of(&model, source.len())?, Description::of(&model)?)
    };
    let Weights { list, quantized, refused, buffers, .. } = weights;
    let mut table = Table::of_file(&FORMAT, name, Arc::clone(source));
    for Weight { name, dtype, dims, range, is_packed } in list {
        let bytes = match is_packed {
            true => TensorBytes::decoded(Nibbles(range)),
            false => TensorBytes::Plain(range),
        };
        table.add(TensorInfo { name, dtype, shape: Shape::from(dims) }, bytes)?;
    }
    table.leave_out(refused)?;
    let unread = description.buffers.iter().map(|name| format!("metadata '{name}'"));
    table.left_out.extend(unread);
    let associated = match Associated::find(source, limits) {
        Ok(found) => found,
        Err(error) => {
            let warning = format!("the associated files can't be read: {}", error.message());
            table.warnings.push(warning);
            None
        }
    };
    table.left_out.extend(associated.iter().flat_map(|files| files.left_out.iter().cloned()));

    let len = source.len();
    let archive = associated.iter().map(|files| (files.start, len.saturating_sub(files.start)));
    let data = buffers.iter().map(|range| (range.offset, range.len)).chain(archive);
    if apr_skeleton::offer(&mut table, data, limits).is_err() {
        let count = counted(description.operators, "operator");
        table.left_out.push(format!("the graph of {count}"));
    }
    if let Some(associated) = associated {
        associated.offer(&mut table);
    }
    table.metadata.set(METADATA, description.fields.clone());
    if !quantized.is_empty() {
        table.metadata.set(keys::AFFINE, quantized);
    }
    table.show("container", FORMAT.id);
    table.fields.extend(description.fields);
    Ok(table)
}

/// Integers of four bits.
struct Nibbles(StoredRange);

impl TensorDecoder for Nibbles {
    fn range(&self) -> StoredRange {
        self.0
    }

    fn read(&self, sources: &[SharedSource], first: u64, buf: &mut [u8]) -> Result<()> {
        // As many bytes as two for each element, at most.
        let start = first / 2;
        let end = (first + buf.len() as u64).div_ceil(2);
        let mut packed = vec![0; usize::try_from(end - start).unwrap_or_default()];
        sources[0].read_at(self.0.offset + start, &mut packed)?;
        for (at, out) in (first..).zip(buf) {
            let byte = packed[usize::try_from(at / 2 - start).unwrap_or_default()];
            let nibble = if at.is_multiple_of(2) { byte << 4 } else { byte };
            *out = (nibble.cast_signed() >> 4).cast_unsigned();
        }
        Ok(())
    }
}
