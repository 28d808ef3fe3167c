//! A job in parts that need nothing of each other: for several machines, or to go on where a job
//! was ended.
//!
//! A [`PartsPlan`] says what the job is, what it reads and what each part makes. Whoever has the
//! plan can do any part, and leaves a [`PartResult`] behind; whoever has all results can finish the
//! job. Parts of a job that writes are the shards of the model, and the files have the bytes that
//! they have where one process writes all of them.

pub(crate) mod exact;
mod inputs;
mod plan;
mod result;
mod written;

pub use inputs::{Pinned, bytes_digest, front_digest, tensor_digests};
pub use plan::{
    CompanionInput, FORMAT_VERSION, FileInput, Input, JobWords, MAX_PARTS, OutputPlan, PartsPlan,
    PlannedPart, Read, Sealing, SettingsFile, TensorInput, check_relative,
};
pub use result::{PartResult, WrittenFile, WrittenReport};
pub use written::{Finished, finish, smallest_size};
