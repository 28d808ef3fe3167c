//! Models where they are: Hugging Face, URLs and object stores.
//!
//! [`Hub::place`] looks a [`Location`] up, and [`ResolvedLocation::open`] opens a file of it: one
//! that is in the cache by its path, others as a [`RemoteSource`], which reads ranges of it over
//! the network. Nothing is downloaded to look at a model.
//!
//! Requests are made by `ureq` over `rustls`, with a cryptography provider without C. Redirects are
//! followed here, not there: a token goes to no other server, `https` never becomes `http`, and a
//! public server leads to no private address.
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
pub use url_cache::Cached;
