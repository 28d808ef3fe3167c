//! Where tensors lie: alignment, ranges, ties.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use apr_core::{Error, Escaped, Metadata, Result, keys};
use serde_json::Value;

use super::header::Header;
use super::index::IndexEntry;

/// Length of the footer in bytes.
pub const FOOTER_LEN: u32 = 16;

/// Trailer blocks start at multiples of this, in bytes.
pub(super) const BLOCK_ALIGNMENT: u64 = 64;

/// The next multiple of `alignment`, or `None` past `u64`.
pub(super) fn align(offset: u64, alignment: u64) -> Option<u64> {
    offset.checked_next_multiple_of(alignment)
}

/// Range of the bytes of an index entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct EntryRange {
    /// Offset from the start of the file, in bytes.
    pub(super) offset: u64,
    /// Bytes there.
    pub(super) len: u64,
    /// Position in the index.
    pub(super) index: usize,
    /// Position of the entry whose bytes they are: of a tied one, its target's.
    pub(super) owner: usize,
    /// `true` if the bytes belong to another tensor.
    pub(super) tied: bool,
}

impl EntryRange {
    /// End of the bytes in the file; [`place_entries`] made sure that it is inside.
    pub(super) fn end(self) -> u64 {
        self.offset + self.len
    }
}

/// Places of the entries in index order; a tied entry gets the place of its target.
///
/// # Errors
/// E002 when a range ends past the room before the footer, or a tie leads nowhere.
pub(super) fn place_entries(
    entries: &[IndexEntry],
    metadata: &Metadata,
    header: &Header,
    file_len: u64,
) -> Result<Vec<EntryRange>> {
    let own = entries.iter().enumerate().map(|(index, entry)| {
        let start = u64::from(header.data_offset).checked_add(entry.offset);
        let end = start.and_then(|start| start.checked_add(entry.size));
        let last = file_len.saturating_sub(FOOTER_LEN.into());
        let (Some(offset), true) = (start, end.is_some_and(|end| end <= last)) else {
            return Err(Error::corrupt(format!(
                "its {} bytes at offset {} of the data section end past the file, which has \
                 {file_len} bytes",
                entry.size, entry.offset
            ))
            .for_tensor(&entry.info.name));
        };
        Ok(EntryRange { offset, len: entry.size, index, owner: index, tied: entry.is_tied() })
    });

    let mut places = own.collect::<Result<Vec<_>>>()?;
    for (index, entry) in entries.iter().enumerate().filter(|(_, entry)| entry.is_tied()) {
        let target = tie_target(entry, entries, metadata)
            .map_err(|error| error.for_tensor(&entry.info.name))?;
        places[index] = EntryRange { index, tied: true, ..places[target] };
    }

    Ok(places)
}

fn tie_target(entry: &IndexEntry, entries: &[IndexEntry], metadata: &Metadata) -> Result<usize> {
    let name = metadata
        .object(keys::TIED)
        .and_then(|tied| tied.get(&entry.info.name))
        .and_then(Value::as_str);
    let name = name.ok_or_else(|| {
        Error::corrupt("it is tied, but the metadata does not state to which tensor")
    })?;
    let found = entries.binary_search_by(|other| other.info.name.as_str().cmp(name));
    let target = found.ok().filter(|&target| {
        let other = &entries[target];
        !other.is_tied()
            && other.info.dtype == entry.info.dtype
            && other.info.shape == entry.info.shape
    });

    target.ok_or_else(|| {
        Error::corrupt(format!(
            "it is tied to '{}', which is not a tensor like it",
            Escaped::short(name)
        ))
    })
}

/// Returns positions in the index, sorted by offset. A tied entry is sorted by its own offset,
/// although its bytes are elsewhere.
pub(super) fn sort_by_place(entries: &[IndexEntry]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by_key(|&index| (entries[index].offset, entries[index].size, index));
    order
}

/// Returns the offset at which the last tensor ends in the file.
///
/// Empty and tied tensors have no bytes of their own, but the trailer starts after their offsets.
/// [`place_entries`] must be called before; it ensures that no addition overflows.
pub(super) fn data_end(entries: &[IndexEntry], header: &Header) -> u64 {
    let last = entries.iter().map(|entry| entry.offset + entry.size).max();
    u64::from(header.data_offset) + last.unwrap_or(0)
}

/// Checks that no two tensors share bytes.
///
/// # Errors
/// E002, naming both.
pub(super) fn check_overlaps(
    entries: &[IndexEntry],
    places: &[EntryRange],
    stored: &[usize],
) -> Result<()> {
    let mut end = 0;
    let mut previous = None;
    for &index in stored {
        let place = places[index];
        if place.tied || place.len == 0 {
            continue;
        }

        if let Some(previous) = previous.filter(|_| place.offset < end) {
            let previous: &IndexEntry = &entries[previous];
            return Err(Error::corrupt(format!(
                "it shares bytes with '{}'",
                Escaped::short(&previous.info.name)
            ))
            .for_tensor(&entries[index].info.name)
            .at(place.offset));
        }

        end = place.end();
        previous = Some(index);
    }

    Ok(())
}

/// Returns a warning about tensors that are not aligned. A reader accepts any offset; a mapped
/// tensor is just slower to use.
pub(super) fn alignment_warning(places: &[EntryRange], header: &Header) -> Option<String> {
    let alignment = header.flags.alignment();
    let unaligned = places.iter().filter(|place| !place.offset.is_multiple_of(alignment)).count();
    (unaligned > 0).then(|| {
        format!(
            "{unaligned} of {} tensors do not start at a multiple of {alignment} bytes",
            places.len()
        )
    })
}
