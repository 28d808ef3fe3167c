//! A job in parts that need nothing of each other: for several machines, or to go on where a job
//! was ended.
//!
//! A [`PartsPlan`] says what the job is, what it reads and what each part makes. Whoever has the
//! plan can do any part, and leaves a [`PartResult`] behind; whoever has all results can finish the
//! job. Parts of a job that writes are the shards of the model, and the files have the bytes that
//! they have where one process writes all of them.
//!
//! # How a job is done in parts
//!
//! `apr_ops::parts` has the plan and the results as data, without files. A part that writes is the
//! ordinary job with `PlanOptions::shard`. `apr2::plan_shard` plans one shard whose layout has
//! only its tensors, so that a conversion reads and writes only these. Notes at the end of a
//! conversion (losses, violations, quantization errors per tensor) are stored in the part's
//! result. `finish` adds them to the manifest in the order of the parts, which is the order of one
//! process. `Pinned` gives the tensors of an input the digests of the plan, and any pass compares
//! them while it reads.
//!
//! `validate` is cut between the pieces of the file: findings are joined and the CRC of the file
//! is combined. `diff` is cut between pairs, whose sums are kept to the bit.

pub(crate) mod exact;
mod inputs;
mod plan;
mod result;
mod written;

pub use inputs::{Pinned, bytes_digest, front_digest, pinned_files, tensor_digests};
pub use plan::{
    CompanionInput, FORMAT_VERSION, FileInput, Input, JobWords, MAX_PARTS, OutputPlan, PartsPlan,
    PlannedPart, Read, Sealing, SettingsFile, TensorInput, check_relative,
};
pub use result::{PartResult, WrittenFile, WrittenReport};
pub use written::{Finished, finish, smallest_size};
