//! Object headers: the messages that describe a group or a dataset.

use std::collections::VecDeque;

use apr_core::{Error, Result};

use super::bytes::Bytes;
use super::file::{File, Followed};

/// Kinds of messages.
pub(crate) mod kind {
    pub(crate) const DATASPACE: u16 = 0x1;
    pub(crate) const LINK_INFO: u16 = 0x2;
    pub(crate) const DATATYPE: u16 = 0x3;
    pub(crate) const FILL_OLD: u16 = 0x4;
    pub(crate) const FILL: u16 = 0x5;
    pub(crate) const LINK: u16 = 0x6;
    pub(crate) const EXTERNAL: u16 = 0x7;
    pub(crate) const LAYOUT: u16 = 0x8;
    pub(crate) const FILTERS: u16 = 0xb;
    pub(crate) const ATTRIBUTE: u16 = 0xc;
    pub(crate) const CONTINUATION: u16 = 0x10;
    pub(crate) const SYMBOL_TABLE: u16 = 0x11;
    pub(crate) const ATTRIBUTE_INFO: u16 = 0x15;
}

/// The flag of a message whose content is elsewhere.
const SHARED: u8 = 2;

/// Message of an object's header.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) kind: u16,
    /// `true` if the data are a reference to the content.
    is_shared: bool,
    pub(crate) data: Vec<u8>,
    /// Address of the data.
    pub(crate) address: u64,
}

/// The messages of one object.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) messages: Vec<Message>,
}

impl Object {
    /// Reads the header at an address, with its continuations.
    ///
    /// # Errors
    /// E002 for a damaged one, E003 for what is not supported, E007 when reading fails, E008 over
    /// the budget.
    pub(crate) fn read(file: &File<'_>, address: u64) -> Result<Self> {
        let mut object = Self { messages: read_messages(file, address)? };
        for message in &mut object.messages {
            if message.is_shared {
                let mut bytes = file.bytes(&message.data, message.address);
                *message = shared(file, &mut bytes, message.kind)?;
            }
        }
        Ok(object)
    }

    /// The first message of a kind.
    pub(crate) fn find(&self, kind: u16) -> Option<&Message> {
        self.all(kind).next()
    }

    /// The messages of a kind.
    pub(crate) fn all(&self, kind: u16) -> impl Iterator<Item = &Message> {
        self.messages.iter().filter(move |message| message.kind == kind)
    }

    /// Returns `true` if the object has values. Other objects are groups and types.
    pub(crate) fn is_dataset(&self) -> bool {
        self.find(kind::LAYOUT).is_some() && self.find(kind::DATASPACE).is_some()
    }
}

/// The message that a reference in place of a message's content leads to.
///
/// # Errors
/// E002 where there is none, E003 for a heap of shared messages.
pub(crate) fn shared(file: &File<'_>, bytes: &mut Bytes<'_>, kind: u16) -> Result<Message> {
    let (at, version, place) = (bytes.at(), bytes.u8()?, bytes.u8()?);
    if version == 1 {
        bytes.skip(6)?;
    }
    if version >= 3 && place == 1 {
        return Err(Error::version("messages in a shared heap are not supported").at(at));
    }
    let damaged = || Error::corrupt("a shared message is not at its stated place").at(at);
    let target = bytes.address()?.ok_or_else(damaged)?;
    let mut others = read_messages(file, target)?.into_iter();
    others.find(|other| other.kind == kind && !other.is_shared).ok_or_else(damaged)
}

/// Reads the messages of a header unchanged.
fn read_messages(file: &File<'_>, address: u64) -> Result<Vec<Message>> {
    let head = file.read_up_to(address, 48)?;
    let mut bytes = file.bytes(&head, address);
    let is_new = head.starts_with(b"OHDR");
    bytes.skip(if is_new { 4 } else { 0 })?;
    let (at, version) = (bytes.at(), bytes.u8()?);
    if version != if is_new { 2 } else { 1 } {
        return Err(Error::corrupt("this is not an object header").at(at));
    }
    let mut flags = 0;
    let len = if is_new {
        flags = bytes.u8()?;
        bytes.skip(if flags & 0x20 == 0 { 0 } else { 16 })?;
        bytes.skip(if flags & 0x10 == 0 { 0 } else { 4 })?;
        bytes.integer(1 << (flags & 3))?
    } else {
        bytes.skip(7)?;
        let len = u64::from(bytes.u32()?);
        bytes.skip(4)?;
        len
    };

    let before = (head.len() - bytes.len()) as u64;
    let start = address.saturating_add(before);
    // The checksum after the first block is of the whole header.
    let mut first = match is_new {
        true => Some(file.read_summed(address, before.saturating_add(len))?),
        false => None,
    };
    let (mut messages, mut followed) = (Vec::new(), Followed::default());
    let mut blocks = VecDeque::from([(start, len, 0)]);
    while let Some((at, len, frame)) = blocks.pop_front() {
        followed.follow(at)?;
        let block = match (first.take(), frame.min(len)) {
            (Some(mut header), _) => {
                header.drain(..usize::try_from(before).unwrap_or_default());
                header
            }
            (None, 0) => file.read(at, len)?,
            (None, frame) => file.read_summed(at, len.saturating_sub(frame / 2))?,
        };
        let mut bytes = file.bytes(&block, at);
        if frame > 0 {
            bytes.signature(b"OCHK")?;
        }
        // What is too short for a message is a gap.
        let smallest = if is_new { 4 } else { 8 };
        while bytes.len() >= smallest {
            let message = read_message(&mut bytes, is_new, flags, at + len - frame / 2)?;
            if message.kind != kind::CONTINUATION {
                messages.push(message);
                continue;
            }
            let mut target = file.bytes(&message.data, message.address);
            let (to, len) = (target.address()?, target.length()?);
            let to = to.ok_or_else(|| {
                Error::corrupt("the continuation block of a header has no address").at(at)
            })?;
            blocks.push_back((to, len, if is_new { 8 } else { 0 }));
        }
    }
    Ok(messages)
}

/// One message of a block that ends at an address.
fn read_message(bytes: &mut Bytes<'_>, is_new: bool, flags: u8, end: u64) -> Result<Message> {
    let (kind, len, own) = if is_new {
        let (kind, len, own) = (u16::from(bytes.u8()?), bytes.u16()?, bytes.u8()?);
        bytes.skip(if flags & 4 == 0 { 0 } else { 2 })?;
        (kind, len, own)
    } else {
        let message = (bytes.u16()?, bytes.u16()?, bytes.u8()?);
        bytes.skip(3)?;
        message
    };
    let address = end.saturating_sub(bytes.len() as u64);
    let data = bytes.take(len.into())?.to_vec();
    Ok(Message { kind, is_shared: own & SHARED != 0, data, address })
}
