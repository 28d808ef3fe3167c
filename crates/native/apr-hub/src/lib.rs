//! Models where they are: Hugging Face, URLs and object stores.
//!
//! [`Hub::place`] looks a [`Location`] up, and [`ResolvedLocation::open`] opens a file of it: one
//! that is in the cache by its path, others as a [`RemoteSource`], which reads ranges of it over
//! the network. Nothing is downloaded to look at a model.
//!
//! Requests are made by `ureq` over `rustls`, with a cryptography provider without C. Redirects are
//! followed here, not there: a token goes to no other server, `https` never becomes `http`, and a
//! public server leads to no private address.
//!
//! # How a remote model is read
//!
//! `apr_hub::Hub::place` resolves a location; one request to a hub lists its files with sizes and
//! digests. `ResolvedLocation::open` gives a cached path or a `RemoteSource`, which is a
//! `ByteSource` over ranges. While the model is opened, small reads become longer ones. Afterwards
//! only requested bytes are fetched, so that one tensor costs its own bytes.
//!
//! A pass over the whole model calls `Sources::read_whole`. Eight threads then fetch windows of 8
//! MiB ahead. A pass that writes calls `keep_whole`: each file becomes a `Download`. Several
//! threads fetch its pieces, awaited pieces first, and reads are served from the partial file. It
//! gets its name when its digest matches. `Sources::finish`, which runs before an output appears,
//! waits for that.
//!
//! A command that reads some tensors as a whole calls `Sources::expect_tensors`, so that each
//! takes few requests. A server without ranges is read in order, by one answer (`whole.rs`), which
//! a `Download` takes over. If the cache fails, reads bypass it (`RemoteSource::leave_cache`) and
//! the digest continues from its state.
//!
//! # How files are uploaded
//!
//! [`Hub::plan_upload`] compares files of this machine with those of a repository, and
//! [`UploadPlan::send`] sends what differs and makes one commit of it.
//!
//! Only `client.rs` sends requests. It follows redirects hop by hop, because each must be checked.
//! The network is the feature `hub` of `apr-io`, `apr` and `apr-cli`; without it, `remote_off.rs`
//! returns an error.
#![forbid(unsafe_code)]

mod address;
mod answer;
#[doc(hidden)]
pub mod answers;
mod aws;
mod choose;
mod client;
mod contents;
mod digest;
mod download;
mod fetched;
mod headers;
mod hub;
mod hub_cache;
mod ini;
mod journal;
mod location;
mod lock;
mod lookup;
mod notes;
mod place;
mod proxy;
mod resource;
mod retry;
mod s3;
mod settings;
mod source;
mod tls;
mod upload;
mod url_cache;
mod whole;

pub use choose::{Choice, Chosen};
pub use contents::{Caches, Damage, Holding};
pub use hub::{RemoteFile, Repository};
pub use location::{HubLocation, Location, S3Location};
pub use lookup::Hub;
pub use notes::Notes;
pub use place::{Downloaded, OpenedFile, ResolvedLocation};
pub use settings::{Settings, Token, default_cache};
pub use source::RemoteSource;
pub use upload::{
    LocalFile, PlannedFile, UploadOptions, UploadPlan, UploadState, Uploaded, Visibility,
};
pub use url_cache::Cached;
