//! Low-rank factorization: weights that become the product of two small matrices, and LoRA adapters
//! of what a tuned model has more than its base.
//!
//! Each takes checkpoints and gives one, which is converted or written like any other.
//!
//! ```
//! use apr::job::Source;
//! use apr::lowrank::{Factorization, InMemory, plan};
//! use apr::{Families, Limits, Serial};
//!
//! // Each row is a multiple of the first.
//! let header = br#"{"a.weight":{"dtype":"F32","shape":[4,6],"data_offsets":[0,96]}}"#;
//! let mut file = (header.len() as u64).to_le_bytes().to_vec();
//! file.extend_from_slice(header);
//! let values = (1..=4_u8).flat_map(|row| (1..=6_u8).map(move |column| f32::from(row * column)));
//! file.extend(values.flat_map(f32::to_le_bytes));
//! let model = apr::open(file, "model.safetensors", &Limits::default())?;
//!
//! let families = Families::builtin();
//! let planned = plan(&Source::new(&*model, &families), Factorization::to_rank(1))?;
//! let (_model, report) = planned.apply(model, Box::new(InMemory::default()), &Serial, &())?;
//! assert_eq!((report.tensors[0].bytes_before, report.tensors[0].bytes), (96, 48));
//! # Ok::<(), apr::Error>(())
//! ```

pub use apr_lowrank::{
    Adapter, AdapterBytes, Amount, Extent, ExtractReport, ExtractedTensor, Extraction, FactorPlan,
    FactorReport, FactorStore, FactorTotal, Factorization, FactorizedTensor, InMemory, Left,
    Method, Svd, extract, memory, plan, product_svd, truncated_svd,
};
