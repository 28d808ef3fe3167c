//! Other looks at a checkpoint, without a copy of its weights, and what every pass over one needs.
//!
//! A [`View`] has other names, another order, other metadata, tensors more or fewer; a [`Change`]
//! makes a tensor of others as it is read (rows in another order, parts stacked); a [`Derived`]
//! checkpoint computes tensors by any [`Computation`] (pruned, factored, quantized); [`Unpacked`]
//! shows quantized tensors as integers and scales, [`Verified`] compares what is read with what the
//! file states of it, and a [`Joined`] one has the tensors of several. All are checkpoints
//! themselves, so that they go wherever one goes. [`chunks`] cuts tensors into the pieces that
//! passes work on, [`values`] reads elements as numbers, and [`parse_filter`] and
//! [`nearest`](nearest()) choose tensors by what a user typed.
//!
//! ```
//! use apr_core::{CheckpointReader, Limits};
//! use apr_view::{View, parse_filter};
//!
//! let header = br#"{"encoder.gamma":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
//!     "decoder.gamma":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}"#;
//! let mut file = (header.len() as u64).to_le_bytes().to_vec();
//! file.extend_from_slice(header);
//! file.extend_from_slice(&[0; 16]);
//! let model = apr_registry::open(file, "model.safetensors", &Limits::default())?;
//!
//! let unwanted = parse_filter("decoder.*")?;
//! let mut view = View::new(&*model);
//! view.drop_tensors(|name| unwanted.is_match(name));
//! view.rename(|_, name| name.strip_prefix("encoder.").map(str::to_owned));
//! assert_eq!(view.tensors().iter().map(|info| info.name.as_str()).collect::<Vec<_>>(), ["gamma"]);
//! # Ok::<(), apr_core::Error>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod affine;
mod arranged;
mod base;
pub mod chunks;
mod codes;
mod companions;
mod cut;
mod decoded;
mod derived;
mod filter;
mod first_use;
mod four_bits;
pub mod integrity;
mod joined;
mod mapped;
mod nearest;
mod renaming;
mod rows;
mod strided;
mod transform;
mod turned;
mod unpacked;
pub mod values;
mod verified;
mod view;
mod windows;

pub use affine::{AffineQuantization, AffineUnit};
pub use arranged::Deal;
pub use base::Base;
pub use codes::{
    Apart, Blocks, Coded, Factors, MLX_CODES, MXFP4_EXPERTS, NVFP4_BLOCKS, PartOrigin, UNDECODABLE,
    check_decodable, drop_statement, is_of_activations, module_of_mlx, stacked_for_mlx,
    stated_method, states_quantization,
};
pub use companions::Companions;
pub use derived::{Computation, Derived, Target};
pub use filter::{
    NameChoice, NamePattern, named, parse_expression, parse_filter, parse_search, parse_selection,
};
pub use first_use::sort_by_first_use;
pub use joined::Joined;
pub use mapped::Formula;
pub use nearest::{meant, nearest, nearest_files, nearest_or_first, slips};
pub use renaming::Renamings;
pub use rows::{Cut, Turned};
pub use transform::Change;
pub use unpacked::{Parts, SCALES_FILE, Unpacked};
pub use verified::{Checked, Verified};
pub use view::{Mapping, TensorOrigin, View};
