//! The superblock, and bytes at addresses.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use apr_core::{ByteSource, Error, Limits, Result, Work, read_vec};

use super::bytes::Bytes;
use super::checksum;

/// A source that readers share.
pub(crate) type Shared<'a> = Arc<dyn ByteSource + 'a>;

/// First bytes of an HDF5 file. They are at offset 0, at 512, or at a doubling of 512.
pub(crate) const SIGNATURE: &[u8; 8] = b"\x89HDF\r\n\x1a\n";

/// Doubles of 512 at which the signature may be.
const DOUBLES: u32 = 24;

/// Memory charged for a structure in bytes, besides its content.
const STRUCTURE: u64 = 32;

/// Opened HDF5 file.
pub(crate) struct File<'a> {
    pub(crate) source: Shared<'a>,
    /// Offset in the file that addresses are relative to.
    base: u64,
    /// Bytes of an address and of a length.
    sizes: (u8, u8),
    /// Address of the root group's header.
    pub(crate) root: u64,
    /// Bytes of structures that may be read: they may refer to each other without end.
    work: Work,
    /// The collection of texts that was read last: texts are usually read in sequence.
    texts: Mutex<Option<(u64, Arc<[u8]>)>>,
}

/// Returns the offset of the signature, or `None` if there is none.
///
/// # Errors
/// E007 when reading fails.
pub(crate) fn find_signature(source: &dyn ByteSource) -> Result<Option<u64>> {
    let mut signature = [0; SIGNATURE.len()];
    let places = std::iter::once(0).chain((0..DOUBLES).map(|power| 512_u64 << power));
    for place in places.take_while(|place| place + SIGNATURE.len() as u64 <= source.len()) {
        source.read_at(place, &mut signature)?;
        if signature == *SIGNATURE {
            return Ok(Some(place));
        }
    }
    Ok(None)
}

impl<'a> File<'a> {
    /// Reads the superblock.
    ///
    /// # Errors
    /// E001 for what is no HDF5 file, E002 for a damaged one, E003 for a version that is not known.
    pub(crate) fn open(source: Shared<'a>, limits: &Limits) -> Result<Self> {
        let at = find_signature(&source)?.ok_or_else(|| Error::format("not an HDF5 file").at(0))?;
        let start = at;
        let len = (source.len() - at).min(128);
        let block = read_vec(&source, at, len)?;
        let mut bytes = Bytes::new(&block, at, (0, 0));
        bytes.skip(SIGNATURE.len())?;
        let version = bytes.u8()?;
        let sizes = match version {
            0 | 1 => {
                bytes.skip(4)?;
                let sizes = (bytes.u8()?, bytes.u8()?);
                bytes.skip(if version == 0 { 9 } else { 13 })?;
                sizes
            }
            2 | 3 => {
                let sizes = (bytes.u8()?, bytes.u8()?);
                bytes.skip(1)?;
                sizes
            }
            _ => {
                let message = format!("version {version} of the HDF5 superblock is not supported");
                return Err(Error::version(message).at(at));
            }
        };
        if ![sizes.0, sizes.1].iter().all(|size| [2, 4, 8].contains(size)) {
            let message = format!("addresses of {} and lengths of {} bytes", sizes.0, sizes.1);
            return Err(Error::corrupt(message).at(at));
        }

        let at = bytes.at();
        let mut bytes = Bytes::new(bytes.take(bytes.len())?, at, sizes);
        let base = bytes.address()?.unwrap_or_default();
        bytes.address()?;
        bytes.address()?;
        if version < 2 {
            bytes.address()?;
            // The name of the root group's own entry.
            bytes.address()?;
        }
        let root = bytes.address()?;
        if version >= 2 {
            let len = block.len() - bytes.len();
            checksum::compare(&block[..len], bytes.take(checksum::LEN)?, start)?;
        }
        let root = root.ok_or_else(|| Error::corrupt("missing root group").at(at))?;
        let work = Work::of_file(limits.max_index.min(source.len().saturating_mul(64) + (1 << 20)));
        Ok(Self { source, base, sizes, root, work, texts: Mutex::default() })
    }

    /// Returns the offset of an address in the file.
    pub(crate) fn place(&self, address: u64) -> Result<u64> {
        let place = self.base.checked_add(address).filter(|&place| place < self.source.len());
        place.ok_or_else(|| {
            Error::corrupt(format!(
                "an address leads to byte {} of a file of {} bytes",
                u128::from(self.base) + u128::from(address),
                self.source.len()
            ))
        })
    }

    /// Counts bytes that are about to be read or kept.
    ///
    /// # Errors
    /// E008 for more than the file's size, and the limit of an index, justify.
    pub(crate) fn spend(&self, bytes: u64) -> Result<()> {
        self.work.spend(bytes.saturating_add(STRUCTURE))
    }

    /// The bytes at an address.
    ///
    /// # Errors
    /// E002 past the file's end, E007 when reading fails, E008 over the budget.
    pub(crate) fn read(&self, address: u64, len: u64) -> Result<Vec<u8>> {
        let place = self.place(address)?;
        // Checked first, so that a length that was made up is no matter of memory.
        if len > self.source.len() - place {
            return Err(Error::corrupt(format!(
                "{len} bytes are expected here, and the file ends at byte {}",
                self.source.len()
            ))
            .at(place));
        }
        self.spend(len)?;
        read_vec(&self.source, place, len)
    }

    /// Reads a structure of `len` bytes at an address and the checksum after it.
    ///
    /// # Errors
    /// Those of [`read`](Self::read), and E004 where the structure is not the one that was summed.
    pub(crate) fn read_summed(&self, address: u64, len: u64) -> Result<Vec<u8>> {
        let structure = self.read(address, len.saturating_add(checksum::LEN as u64))?;
        checksum::checked(structure, self.place(address)?)
    }

    /// Reads up to `len` bytes at an address: fewer if the file ends before.
    pub(crate) fn read_up_to(&self, address: u64, len: u64) -> Result<Vec<u8>> {
        let left = self.source.len() - self.place(address)?;
        self.read(address, len.min(left))
    }

    /// Reads the collection of texts at an address, or returns it from the cache.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub(crate) fn read_texts(&self, address: u64, len: u64) -> Result<Arc<[u8]>> {
        let mut kept = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        match &*kept {
            Some((at, texts)) if *at == address && texts.len() == len => {
                self.spend(0)?;
                Ok(Arc::clone(texts))
            }
            _ => {
                let texts: Arc<[u8]> = self.read(address, len)?.into();
                *kept = Some((address, Arc::clone(&texts)));
                Ok(texts)
            }
        }
    }

    /// A structure that was read from an address.
    pub(crate) fn bytes<'b>(&self, bytes: &'b [u8], address: u64) -> Bytes<'b> {
        Bytes::new(bytes, self.base.saturating_add(address), self.sizes)
    }

    /// Bytes of an address.
    pub(crate) fn offset_size(&self) -> u8 {
        self.sizes.0
    }

    /// Bytes of a length.
    pub(crate) fn length_size(&self) -> u8 {
        self.sizes.1
    }
}

/// Addresses that were followed, each of which may lead to one structure once.
#[derive(Default)]
pub(crate) struct Followed(HashSet<u64>);

impl Followed {
    /// Notes an address.
    ///
    /// # Errors
    /// E002 where it was followed already: nodes of a tree do not lead back to it.
    pub(crate) fn follow(&mut self, address: u64) -> Result<()> {
        if !self.0.insert(address) {
            let message = format!("structures refer to each other in a cycle at address {address}");
            return Err(Error::corrupt(message));
        }
        Ok(())
    }

    /// Adds an address. Returns `true` if it is new.
    pub(crate) fn is_new(&mut self, address: u64) -> bool {
        self.0.insert(address)
    }
}
