//! What a test hub's files are made of.

use std::ops::{Deref, Range};
use std::sync::Arc;

use sha2::Digest as _;

/// The bytes of a file, which need not be in memory.
#[derive(Debug, Clone)]
pub struct Content {
    head: Arc<[u8]>,
    /// Zeros follow up to here.
    pub len: u64,
    /// SHA-256 of content in the store, otherwise the SHA-1 of the git blob.
    pub etag: String,
    /// Stored elsewhere.
    pub large: bool,
}

impl Content {
    pub(super) fn of(name: &str, bytes: &[u8]) -> Self {
        if is_large(name) { Self::large(bytes) } else { Self::small(bytes) }
    }

    pub(super) fn small(bytes: &[u8]) -> Self {
        let (len, etag) = (bytes.len() as u64, git_sha1(bytes));
        Self { head: bytes.into(), len, etag, large: false }
    }

    pub(super) fn large(bytes: &[u8]) -> Self {
        let (len, etag) = (bytes.len() as u64, sha256(bytes));
        Self { head: bytes.into(), len, etag, large: true }
    }

    pub(super) fn sparse(name: &str, head: &[u8], len: u64) -> Self {
        // Nobody computes the digest of so many zeros: it is only the name of the file's state.
        Self { len, large: true, etag: sha256(name.as_bytes()), head: head.into() }
    }

    pub(super) fn bytes(&self, range: Range<u64>) -> Body {
        let at =
            |offset: u64| usize::try_from(offset.min(self.head.len() as u64)).expect("it fits");
        let inside = at(range.start)..at(range.end);
        if range.end <= self.head.len() as u64 {
            return Body::Part(Arc::clone(&self.head), inside);
        }
        let mut bytes = self.head[inside].to_vec();
        bytes.resize(usize::try_from(range.end - range.start).expect("it fits"), 0);
        Body::Own(bytes)
    }
}

/// Body of an answer: bytes of its own, or a range of a file, which is not copied.
pub(super) enum Body {
    Own(Vec<u8>),
    Part(Arc<[u8]>, Range<usize>),
}

impl Deref for Body {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Part(file, range) => &file[range.clone()],
        }
    }
}

impl Body {
    /// The bytes, to be changed.
    pub(super) fn to_mut(&mut self) -> &mut Vec<u8> {
        if let Self::Part(..) = self {
            *self = Self::Own(self.to_vec());
        }
        match self {
            Self::Own(bytes) => bytes,
            Self::Part(..) => unreachable!("it was copied"),
        }
    }
}

impl<T: Into<Vec<u8>>> From<T> for Body {
    fn from(bytes: T) -> Self {
        Self::Own(bytes.into())
    }
}

/// Returns `true` for files in Git LFS, which are all files except text.
pub(super) fn is_large(name: &str) -> bool {
    ![".json", ".txt", ".md", ".jinja", ".yaml", "LICENSE", ".gitattributes"]
        .iter()
        .any(|end| name.ends_with(end))
}

/// SHA-256 in hexadecimal digits.
#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    hex(&sha2::Sha256::digest(bytes))
}

/// Returns the SHA-1 by which git identifies a file's content.
#[must_use]
pub fn git_sha1(bytes: &[u8]) -> String {
    let mut hasher = sha1::Sha1::new();
    hasher.update(format!("blob {}\0", bytes.len()));
    hasher.update(bytes);
    hex(&hasher.finalize())
}

pub(super) fn commit_id(number: u64) -> String {
    git_sha1(format!("commit {number}").as_bytes())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
