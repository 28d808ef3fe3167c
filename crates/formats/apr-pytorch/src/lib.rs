//! PyTorch checkpoints: three containers around one pickle, which is read without running any of
//! it.
//!
//! ```text
//! ZIP (torch.save since 1.6, TorchScript)      pre-ZIP (before 1.6)
//! ├─ model/data.pkl   the pickle               ├─ pickle: 0x1950a86a20f9469cfc6c
//! ├─ model/byteorder  "little"                 ├─ pickle: 1001
//! ├─ model/data/0     bytes of a storage       ├─ pickle: {"little_endian": True}
//! ├─ model/data/1     ...                      ├─ pickle: the checkpoint
//! ├─ model/version    "3"                      ├─ pickle: [key of a storage, …]
//! ├─ directory        CRC-32, size, place      └─ for each key:
//! └─ end record       place of the directory      u64 count, the elements
//!
//! TAR (0.1)
//! ├─ sys_info  pickle
//! ├─ storages  n, then n times: (key, device, class) as pickle, u64 count, the elements
//! ├─ tensors   n, then n times: (key, storage, class), dims, sizes, …
//! └─ pickle    the checkpoint
//! ```
//!
//! A pickle that is a dictionary of NumPy arrays, as Paddle saves, is read where they lie in it.
//!
//! The pickle is a program for a stack machine. A tensor in it is a call of a function, with a
//! storage named by key:
//!
//! ```text
//! torch._utils._rebuild_tensor_v2(
//!     ("storage", torch.FloatStorage, "0", "cpu", 6),   a persistent id: class, key, device,
//!                                                       number of elements
//!     0, (2, 3), (3, 1),                                offset, shape, strides, in elements
//!     False, OrderedDict())                             requires_grad, hooks
//! ```
//!
//! Elements are little-endian. Several tensors may be views of one storage, transposed or sliced or
//! expanded; those that lie flat are read where they are, others gathered a window at a time.
//! Numbers of all kinds are u64 on the way in and checked against the file before they become a
//! length.
//!
//! # Why reading is safe
//!
//! Python's pickle imports whatever the file names and calls it, which is how a checkpoint takes
//! over the machine that loads it. This crate's machine has values and no functions: a "call" looks
//! the name up in a closed list and builds a tensor descriptor, a container, or nothing. A name
//! that is not on the list refuses the file with the name and the offset of the opcode, before any
//! later byte is looked at. [`PickleSurvey`] goes on instead and lists every name; `apr-scan` looks
//! into whatever a pickle may be packed in.
//!
//! Allowed are the functions that rebuild tensors and parameters, storages, dtypes, plain
//! containers, and classes of `torch.nn` and TorchScript, of which only the state is read: a module
//! pickled whole gives its parameters and buffers under the names of its `state_dict()`. Other
//! classes must be named in [`OpenOptions::classes`].
//!
//! A ZIP entry is described twice, in the directory and in front of its bytes; both must agree, and
//! entries must not overlap. The pickle's checksum is verified. An entry that was compressed with
//! DEFLATE, as tools that pack folders do, is decoded a page at a time where a range of it is asked
//! for ([`apr_archive`]).
//!
//! NumPy's numbers become plain values; its arrays, which training checkpoints keep beside the
//! weights, are left out with a warning. A dtype that might hold objects refuses the file.
//!
//! # What is computed
//!
//! Quantized tensors, with one scale or one for each channel, are read as the floats that
//! `dequantize()` gives, sparse ones (COO without duplicate indices, and CSR) as the dense tensor
//! they stand for. Either way any range is computed when it is asked for; of a sparse tensor the
//! sorted indices are held in memory, of a quantized one the scales.
//!
//! Quantized tensors of torchao (`AffineQuantizedTensor` in its plain layout, `Int8Tensor`,
//! `Float8Tensor`) are listed as the
//! parts that they are stored in, under the names that torchao gives them in safetensors files.
//!
//! # Trainers' checkpoints
//!
//! Lightning keeps the weights under `state_dict`, DeepSpeed under `module`, training scripts under
//! `state_dict`, `model_state_dict`, `model_state` or `model`. They are read under the names that
//! the model has; the keys of other tensors beside them are listed as left out. Of several sets of
//! weights the first in this order is read, with a warning. A dictionary with tensors under a key
//! that is none of these and holds no state of a training is read as it is.
//! DeepSpeed's optimizer states are flat partitions of all parameters: they are listed as they are.
//!
//! A program of `torch.export` (`.pt2`) is read for its weights; the program itself is left out,
//! and named.
//!
//! # What is refused, by name
//!
//! Quantized tensors of other schemes and of packed elements, sparse ones with several values for
//! one element or of other layouts, nested and meta tensors, conjugated views, complex128,
//! big-endian files, entries compressed by other methods than DEFLATE (E003).
//!
//! # What is written
//!
//! [`plan`] gives the archive that `torch.save` makes of an `OrderedDict` of tensors, byte for byte
//! except for the entries that differ between its versions; `torch.load` takes it with
//! `weights_only=True`. The checksum of an entry follows its bytes, so a pipe will do. Tied tensors
//! share a storage.
//!
//! [`open_distributed`] puts tensors together whose pieces several processes wrote; [`open_index`]
//! reads the shards of a `pytorch_model.bin.index.json`.
//!
//! # Limits
//!
//! | what | most | |
//! |---|---|---|
//! | a pickle, the index of shards | [`Limits::max_metadata`](apr_core::Limits) | E008 |
//! | the ZIP directory, the tensors' names, the decoded indices and scales of the tensors above | [`Limits::max_index`](apr_core::Limits) each | E008 |
//! | values of a pickle | 524,288 and one for every three bytes | E008 |
//! | containers in each other | 128 | E001 |
//! | dimensions | 64 | E001 |
//! | tensor name | 65,535 bytes | E001 |
//! | a sparse tensor, as a dense one | 64 MiB or 64 times its stored bytes, whichever is more | E008 |
//! | bytes of all tensors | 1 GiB and 16 times the file, which bounds what expanded views claim | E008 |
//!
//! The pickle protocols are documented in the Python library's `pickletools`; the containers in
//! PyTorch's `torch/serialization.py`, `caffe2/serialize` and
//! `docs/source/notes/serialization.rst`; ZIP in PKWARE's APPNOTE.
//!
//! ```
//! use apr_core::{Code, Limits};
//!
//! let error =
//!     apr_pytorch::open(b"\x80\x02cos\nsystem\n.".to_vec(), "model.pt", &Limits::default())
//!         .unwrap_err();
//! assert_eq!(error.code(), Code::Format);
//! assert_eq!(error.offset(), Some(2));
//! assert!(error.message().contains("os.system"));
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
mod archive;
mod content;
mod contents;
mod distributed;
mod flatten;
mod format;
mod input;
mod latin1;
mod legacy;
mod options;
mod overlaps;
mod paddle;
mod pickle;
mod plan;
mod program;
mod quantized;
mod reader;
mod record;
mod rest;
mod script;
mod shards;
mod sparse;
mod state_dict;
mod tar_checkpoint;
mod trainer;
mod view;
mod writer;

pub use distributed::{METADATA, open_distributed};
pub use format::{FORMAT, PICKLE, TAR, ZIP};
pub use options::OpenOptions;
pub use pickle::blobs::{Blob, BlobBytes};
pub use pickle::globals::verdict as verdict_on;
pub use pickle::survey::PickleSurvey;
pub use pickle::uses::{Action, Finding, Verdict};
pub use plan::{WriteOptions, plan, plan_script};
pub use reader::{open, open_with};
pub use script::ScriptModule;
pub use shards::{open_index, open_index_with};
pub use writer::PytorchWriter;
