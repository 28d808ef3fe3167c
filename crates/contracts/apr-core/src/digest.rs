//! Checksums that can be computed piece by piece, on any thread, and put together in order.
//!
//! A file's CRC-32 is the combination of its parts' (`crc32fast`). A tensor's BLAKE3 digest is the
//! root of a tree over its chunks, so that one large tensor keeps all cores busy: BLAKE3 splits its
//! input into subtrees of a power of two, and chunks of [`CHUNK_LEN`] bytes are such subtrees
//! (BLAKE3 paper, section 2.1).

#[cfg(all(feature = "std", target_arch = "x86_64"))]
mod wide;

use alloc::vec::Vec;

use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};

/// A BLAKE3-256 digest.
pub type Digest = [u8; 32];

/// Length of the pieces that [`ChunkSums`] are taken of, in bytes: all of a tensor's chunks but the
/// last have it, or all have the same smaller power of two, at least 1024.
pub const CHUNK_LEN: usize = 1 << 20;

/// Checksums of one chunk of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkSums {
    len: u64,
    crc32: u32,
    blake3: Digest,
}

impl ChunkSums {
    /// Sums of `bytes`, which start `offset` bytes into a tensor of `tensor_len` bytes.
    ///
    /// `offset` must be a multiple of the chunk length that the tensor is cut by.
    #[must_use]
    pub fn of(bytes: &[u8], offset: u64, tensor_len: u64) -> Self {
        let len = bytes.len() as u64;
        let blake3 = if len == tensor_len {
            *blake3::hash(bytes).as_bytes()
        } else {
            subtree(bytes, offset)
        };
        Self { len, crc32: crc32fast::hash(bytes), blake3 }
    }
}

/// The chaining value of bytes that are not all of the tensor.
fn subtree(bytes: &[u8], offset: u64) -> Digest {
    #[cfg(all(feature = "std", target_arch = "x86_64"))]
    if let Some(digest) = wide::subtree(bytes, offset) {
        return digest;
    }
    blake3::Hasher::new().set_input_offset(offset).update(bytes).finalize_non_root()
}

/// CRC-32 (IEEE) of bytes that arrive in order, as bytes or as [`ChunkSums`].
#[derive(Debug, Clone, Default)]
pub struct Crc32(crc32fast::Hasher);

impl Crc32 {
    /// Creates the CRC-32 of no bytes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes to the checksum.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Appends a chunk by its sums.
    pub fn append(&mut self, sums: ChunkSums) {
        self.0.combine(&crc32fast::Hasher::new_with_initial_len(sums.crc32, sums.len));
    }

    /// Creates a CRC-32 from a value that was computed elsewhere over `len` bytes.
    #[must_use]
    pub fn of_known(value: u32, len: u64) -> Self {
        Self(crc32fast::Hasher::new_with_initial_len(value, len))
    }

    /// Appends what another one has seen.
    pub fn append_crc(&mut self, other: &Self) {
        self.0.combine(&other.0);
    }

    /// The checksum so far.
    #[must_use]
    pub fn value(&self) -> u32 {
        self.0.clone().finalize()
    }
}

/// Returns the CRC-32 of a file with other ends: `new[0]`, `middle` and `new[1]`.
///
/// It is computed from the CRC-32 of `old[0]`, `middle` and `old[1]`. Only the length in bytes of
/// `middle` is needed.
///
/// CRC-32 is linear: it is the sum (xor) of the contributions of the parts, each moved on by the
/// length of what follows. Moving on by 2^32 - 1 bytes changes nothing, so that moving back by `n`
/// is moving on by 2^32 - 1 - `n`.
#[must_use]
pub fn crc32_with_other_ends(old_crc32: u32, middle: u64, old: [&[u8]; 2], new: [&[u8]; 2]) -> u32 {
    const PERIOD: u64 = (1 << 32) - 1;
    let moved_on = |crc32: u32, len: u64| {
        let mut hasher = crc32fast::Hasher::new_with_initial_len(crc32, 0);
        hasher.combine(&crc32fast::Hasher::new_with_initial_len(0, len));
        hasher.finalize()
    };
    let ends = |[front, tail]: [&[u8]; 2]| {
        moved_on(crc32fast::hash(front), middle + tail.len() as u64) ^ crc32fast::hash(tail)
    };
    let (old_len, new_len) = (old[1].len() as u64, new[1].len() as u64);
    let by = (new_len + PERIOD - old_len % PERIOD) % PERIOD;
    moved_on(old_crc32 ^ ends(old), by) ^ ends(new)
}

/// The BLAKE3 digest of a tensor whose bytes arrive in order, as bytes or as [`ChunkSums`].
///
/// ```
/// use apr_core::digest::{CHUNK_LEN, ChunkSums, TensorDigest};
///
/// let tensor = vec![7; 3 * CHUNK_LEN + 5];
/// let mut digest = TensorDigest::new();
/// for (i, chunk) in tensor.chunks(CHUNK_LEN).enumerate() {
///     digest.append(ChunkSums::of(chunk, (i * CHUNK_LEN) as u64, tensor.len() as u64));
/// }
/// let mut whole = TensorDigest::new();
/// whole.update(&tensor);
/// assert_eq!(digest.value(), whole.value());
/// ```
#[derive(Debug, Clone, Default)]
pub struct TensorDigest {
    tree: Tree,
    /// The last chunk. It is held back, because only the end determines the root.
    last: Option<Digest>,
    /// The last bytes, which are also held back: at least one, and at most a [`GRANULE`].
    waiting: Vec<u8>,
}

/// Length in bytes of the subtrees that bytes are cut into, the shortest that the widest kernel
/// takes. Where more bytes come at a time, several of them are one larger subtree.
const GRANULE: usize = 32 << 10;

/// Contribution of a part of a tensor to its digest, at any boundaries.
///
/// Unlike [`ChunkSums`] it keeps the bytes before the first subtree and after the last one, up to
/// 32 KiB each.
#[derive(Debug, Clone, Default)]
pub struct PartSums {
    head: Vec<u8>,
    /// Subtrees with their numbers of leaves.
    subtrees: Vec<(Digest, u64)>,
    tail: Vec<u8>,
}

impl PartSums {
    /// Replaces the part by `bytes`, which start `offset` bytes into a tensor.
    pub fn take(&mut self, bytes: &[u8], offset: u64) {
        let start = offset.next_multiple_of(GRANULE as u64);
        let before =
            usize::try_from(start - offset).map_or(bytes.len(), |before| before.min(bytes.len()));
        let (head, rest) = bytes.split_at(before);
        self.subtrees.clear();
        let tail = subtrees(rest, start / GRANULE as u64, |subtree, leaves| {
            self.subtrees.push((subtree, leaves));
        });
        self.head.clear();
        self.head.extend_from_slice(head);
        self.tail.clear();
        self.tail.extend_from_slice(tail);
    }
}

/// Splits bytes into the longest subtrees possible and passes them to `take`.
///
/// The position of a subtree limits its length.
///
/// `leaf` is the number of the first leaf. Each subtree is followed by at least one byte. Returns
/// the remaining bytes: at most a granule, and none only if `bytes` is empty.
fn subtrees(mut bytes: &[u8], mut leaf: u64, mut take: impl FnMut(Digest, u64)) -> &[u8] {
    while bytes.len() > GRANULE {
        let most = CHUNK_LEN.min(bytes.len() - 1) / GRANULE;
        let granules = 1_usize << most.ilog2().min(leaf.trailing_zeros());
        let (now, later) = bytes.split_at(granules * GRANULE);
        take(subtree(now, leaf * GRANULE as u64), granules as u64);
        leaf += granules as u64;
        bytes = later;
    }
    bytes
}

/// Subtrees merged as far as their number allows; the last one of the tensor is not among them.
#[derive(Debug, Clone, Default)]
struct Tree {
    stack: Vec<Digest>,
    /// Number of subtrees of the shortest length, merged or not.
    leaves: u64,
}

impl Tree {
    /// Appends a subtree of a power of two of leaves, at a multiple of that.
    fn push(&mut self, mut subtree: Digest, leaves: u64) {
        self.leaves += leaves;
        for _ in leaves.trailing_zeros()..self.leaves.trailing_zeros() {
            let left =
                self.stack.pop().unwrap_or_else(|| unreachable!("a carry has a left sibling"));
            subtree = merge_subtrees_non_root(&left, &subtree, Mode::Hash);
        }
        self.stack.push(subtree);
    }

    /// Returns the root, given the tensor's last subtree; `None` if this is the whole tensor.
    fn root(&self, mut last: Digest) -> Option<Digest> {
        let (root_left, lefts) = self.stack.split_first()?;
        for left in lefts.iter().rev() {
            last = merge_subtrees_non_root(left, &last, Mode::Hash);
        }
        Some(*merge_subtrees_root(root_left, &last, Mode::Hash).as_bytes())
    }
}

impl TensorDigest {
    /// Creates the digest of no bytes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends bytes. A tensor must be appended either as bytes or as chunks.
    pub fn update(&mut self, mut bytes: &[u8]) {
        if !self.waiting.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(GRANULE - self.waiting.len()));
            self.waiting.extend_from_slice(now);
            if later.is_empty() {
                return;
            }
            self.tree.push(subtree(&self.waiting, self.position()), 1);
            self.waiting.clear();
            bytes = later;
        }
        let tree = &mut self.tree;
        let bytes = subtrees(bytes, tree.leaves, |subtree, leaves| tree.push(subtree, leaves));
        self.waiting.extend_from_slice(bytes);
    }

    /// Appends the bytes of which a part was taken.
    pub fn append_part(&mut self, part: &PartSums) {
        self.update(&part.head);
        if part.subtrees.is_empty() {
            return self.update(&part.tail);
        }
        // Nothing or a whole granule waits here, since subtrees begin at a multiple of it.
        if !self.waiting.is_empty() {
            self.tree.push(subtree(&self.waiting, self.position()), 1);
            self.waiting.clear();
        }
        part.subtrees.iter().for_each(|&(subtree, leaves)| self.tree.push(subtree, leaves));
        self.waiting.extend_from_slice(&part.tail);
    }

    /// Returns the offset in the tensor of the bytes held back.
    fn position(&self) -> u64 {
        self.tree.leaves * GRANULE as u64
    }

    /// Appends a chunk by its sums.
    pub fn append(&mut self, sums: ChunkSums) {
        if let Some(subtree) = self.last.replace(sums.blake3) {
            self.tree.push(subtree, 1);
        }
    }

    /// The digest of everything appended.
    #[must_use]
    pub fn value(&self) -> Digest {
        if let Some(last) = self.last {
            return self.tree.root(last).unwrap_or(last);
        }
        if self.tree.leaves == 0 {
            return *blake3::hash(&self.waiting).as_bytes();
        }
        let last = subtree(&self.waiting, self.position());
        self.tree.root(last).unwrap_or(last)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn the_crc_of_a_file_with_other_ends_matches_its_bytes() {
        let bytes: Vec<u8> = (0..5000_u32).map(|i| ((i * i) >> 5).to_le_bytes()[0]).collect();
        let middle = &bytes[100..4000];
        for (old, new) in [(0, 0), (0, 64), (64, 0), (640, 128), (128, 640)] {
            let (old, new) =
                ([&bytes[..70], &bytes[..old]], [&bytes[5..75], &bytes[4200..4200 + new]]);
            let joined = |ends: [&[u8]; 2]| crc32fast::hash(&[ends[0], middle, ends[1]].concat());
            let found = crc32_with_other_ends(joined(old), middle.len() as u64, old, new);
            assert_eq!(found, joined(new), "{} {}", old[1].len(), new[1].len());
        }
    }

    #[test]
    fn the_digest_does_not_depend_on_how_the_bytes_come() {
        let bytes: Vec<u8> =
            (0..3_000_000_u32).map(|i| (i.wrapping_mul(i) >> 7).to_le_bytes()[0]).collect();
        let lens = [
            0,
            1,
            GRANULE - 1,
            GRANULE,
            GRANULE + 1,
            2 * GRANULE,
            3 * GRANULE,
            CHUNK_LEN,
            CHUNK_LEN + 1,
            2 * CHUNK_LEN,
        ];
        for len in lens.into_iter().chain([5 * GRANULE + 77, 2 * CHUNK_LEN + GRANULE, bytes.len()])
        {
            let tensor = &bytes[..len];
            let whole = *blake3::hash(tensor).as_bytes();
            for piece in [
                1000,
                GRANULE,
                3 * GRANULE + 5,
                CHUNK_LEN,
                CHUNK_LEN + 256,
                2 * CHUNK_LEN,
                len.max(1),
            ] {
                let mut digest = TensorDigest::new();
                for part in tensor.chunks(piece) {
                    digest.update(part);
                    digest.update(&[]);
                }
                assert_eq!(digest.value(), whole, "{len} bytes by {piece}");

                let (mut digest, mut part, mut offset) =
                    (TensorDigest::new(), PartSums::default(), 0);
                for bytes in tensor.chunks(piece) {
                    part.take(bytes, offset);
                    digest.append_part(&part);
                    offset += bytes.len() as u64;
                }
                assert_eq!(digest.value(), whole, "parts of {len} bytes by {piece}");
            }
        }
    }

    #[test]
    fn chunked_sums_match_the_whole_tensor() {
        let bytes: Vec<u8> =
            (0..40_u32 * 1024 + 77).map(|i| ((i * i) >> 7).to_le_bytes()[0]).collect();
        for chunk in [1024, 2048, 8192, 65536] {
            for len in
                [0, 1, 1024, 1025, 2048, 4096, 5000, 8192, 16384, 24_577, 33_000, bytes.len()]
            {
                let tensor = &bytes[..len];
                let (mut digest, mut crc) = (TensorDigest::new(), Crc32::new());
                for (i, part) in tensor.chunks(chunk).enumerate() {
                    let sums = ChunkSums::of(part, (i * chunk) as u64, len as u64);
                    digest.append(sums);
                    crc.append(sums);
                }
                assert_eq!(
                    digest.value(),
                    *blake3::hash(tensor).as_bytes(),
                    "{len} bytes by {chunk}"
                );
                assert_eq!(crc.value(), crc32fast::hash(tensor), "{len} bytes by {chunk}");
            }
        }
    }
}
