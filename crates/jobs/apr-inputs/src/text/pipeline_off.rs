//! Tokenizers of a build without the feature `text`: byte-level BPE without merges.

pub(super) use super::byte_vocabulary::ByteVocabulary as Pipeline;
