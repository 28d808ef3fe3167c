//! HDF5, as far as files of weights need it.

mod attribute;
mod bytes;
mod checksum;
mod chunks;
mod dataset;
mod datatype;
mod file;
mod group;
mod heap;
mod object;
mod tree;

pub(crate) use attribute::{Attribute, attributes};
pub(crate) use chunks::{ChunkReader, fill};
pub(crate) use dataset::{Dataset, Place};
pub(crate) use datatype::Datatype;
pub(crate) use file::{File, Followed, SIGNATURE, Shared, find_signature};
pub(crate) use group::{Target, links};
pub(crate) use object::{Object, kind};
