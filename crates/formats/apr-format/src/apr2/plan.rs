//! Where the parts of a file will be: from names, dtypes and shapes, before any byte comes.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;

use apr_core::{
    Error, FileInfo, Layout, Loss, Metadata, PlannedTensor, Result, StoredForm, TensorInfo, keys,
};
use serde_json::Value;

use super::header::Header;
use super::index::{ENCRYPTED, INDEX_HEADER_LEN, IndexEntry, TIED, check_info};
use super::layout::{BLOCK_ALIGNMENT, FOOTER_LEN, align};
use crate::crypto::sealed_len;

/// Space left in the front, so that a loss note or a small edit patches it instead of moving the
/// data.
pub(super) const FRONT_SLACK: u64 = 1024;

/// Returns the loss for a STREAMING flag that was requested but is not set.
pub(super) fn no_streaming(data_offset: u32) -> Loss {
    Loss {
        name: "STREAMING".into(),
        what: "header flag".into(),
        why: format!(
            "metadata and index end at byte {data_offset}; the flag is for files where they end \
             within 8 MiB"
        ),
    }
}

/// Returns the names of tied tensors, whose bytes belong to another tensor. The metadata must list
/// the tie, and both tensors must have the same dtype and shape.
pub(super) fn ties<'a>(tensors: &'a [TensorInfo], metadata: &Metadata) -> BTreeSet<&'a str> {
    let Some(tied) = metadata.object(keys::TIED) else { return BTreeSet::new() };
    let by_name: BTreeMap<&str, &TensorInfo> =
        tensors.iter().map(|info| (info.name.as_str(), info)).collect();
    let is_tied = |info: &TensorInfo| {
        let target = tied
            .get(&info.name)
            .and_then(Value::as_str)
            .filter(|target| !tied.contains_key(*target));
        let target = target.and_then(|target| by_name.get(target));
        target.is_some_and(|target| target.dtype == info.dtype && target.shape == info.shape)
    };
    tensors.iter().filter(|info| is_tied(info)).map(|info| info.name.as_str()).collect()
}

/// Gives every tensor its place after the ENCR block, which only encrypted files have, and the size
/// it has before it is compressed.
pub(super) fn place_tensors<'a>(
    infos: impl Iterator<Item = &'a TensorInfo>,
    ties: &BTreeSet<&str>,
    forms: &[Option<StoredForm>],
    alignment: u64,
    encr_block_len: u64,
) -> Result<Vec<IndexEntry>> {
    let encrypts = encr_block_len > 0;
    let mut next = align(encr_block_len, alignment).unwrap_or(0);
    infos
        .enumerate()
        .map(|(position, info)| {
            let too_long =
                || Error::format("the tensors together exceed 2^64 bytes").for_tensor(&info.name);
            let len = check_info(info)?;
            let tied = ties.contains(info.name.as_str());
            let form = forms.get(position).copied().flatten().filter(|_| !tied);
            let plain = form.map_or(if tied { 0 } else { len }, |form| form.len);
            let size = if encrypts { sealed_len(plain).ok_or_else(too_long)? } else { plain };
            let flags = if tied { TIED } else { form.map_or(0, |form| form.flags) };
            let flags = if encrypts { flags | ENCRYPTED } else { flags };
            let raw_size = form.map_or(0, |form| form.raw_len);
            let offset = next;
            // A tensor without bytes takes a place too: offsets that differ keep the order readable
            // from the index.
            let end = offset.checked_add(size.max(1)).and_then(|end| align(end, alignment));
            next = end.ok_or_else(too_long)?;
            Ok(IndexEntry { info: info.clone(), offset, size, raw_size, flags })
        })
        .collect()
}

pub(super) fn check_unique(entries: &[IndexEntry], by_name: &[usize]) -> Result<()> {
    let twice =
        by_name.windows(2).find(|pair| entries[pair[0]].info.name == entries[pair[1]].info.name);
    match twice {
        Some(pair) => {
            Err(Error::format("two tensors have this name").for_tensor(&entries[pair[0]].info.name))
        }
        None => Ok(()),
    }
}

/// Length of the metadata as JSON, in bytes.
pub(super) fn json_len(metadata: &Metadata) -> u64 {
    let mut len = 0;
    let counted = metadata.write_json(&mut |json| {
        len += json.len() as u64;
        Ok(())
    });
    counted.unwrap_or_else(|_| unreachable!("counting does not fail"));
    len
}

pub(super) fn front_len<'a>(
    metadata: &Metadata,
    infos: impl Iterator<Item = &'a TensorInfo>,
) -> u64 {
    let index_len = INDEX_HEADER_LEN + infos.map(IndexEntry::encoded_len).sum::<usize>();
    u64::from(Header::LEN) + json_len(metadata) + index_len as u64
}

pub(super) fn plan_layout(
    entries: &[IndexEntry],
    visible: usize,
    (data_offset, block_len): (u32, u64),
    tail: u64,
    file_name: &str,
) -> Result<Layout> {
    let data_offset = u64::from(data_offset);
    let tensors: Vec<_> = entries[..visible]
        .iter()
        .enumerate()
        .filter(|(_, entry)| !entry.is_tied())
        .map(|(source, entry)| PlannedTensor {
            source,
            file: 0,
            offset: data_offset.saturating_add(entry.offset),
            len: entry.size,
        })
        .collect();
    let data_end =
        entries.last().map_or(Some(block_len), |last| last.offset.checked_add(last.size));
    let len = data_end
        .and_then(|end| align(data_offset.checked_add(end)?, BLOCK_ALIGNMENT))
        .and_then(|end| end.checked_add(tail + u64::from(FOOTER_LEN)))
        .ok_or_else(|| Error::format("the file would exceed 2^64 bytes"))?;
    Ok(Layout {
        files: vec![FileInfo { name: file_name.to_string(), len }],
        tensors,
        losses: Vec::new(),
    })
}
