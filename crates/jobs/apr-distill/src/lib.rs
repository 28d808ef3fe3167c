//! Distillation: a student, a smaller model, is trained to compute what its teacher does.
//!
//! ```text
//! rows of text ─▶ Row (tokens) ─▶ Batch ─┬─▶ teacher ─▶ Targets (on disk)
//!                                        └─▶ TrainingGraph ─▶ gradients ─▶ AdamW ─▶ Trained
//! ```
//!
//! The student is a checkpoint with fewer layers, heads or neurons (`apr-prune`), whose graph gets
//! a loss and its gradients ([`apr_graph::gradient`]). It runs in the engine that runs any model.
//! The loss is that of Hinton et al. 2015 (arXiv:1503.02531): the Kullback-Leibler divergence of
//! softened predictions, times the square of the temperature, beside the cross-entropy of labels.
//! Encoders without a head are trained on the cosines of their states and of the mean of these. Of
//! an encoder and a decoder, the decoder is trained: the encoder stays the teacher's, and its
//! states are computed once ([`Encoded`]; Gandhi et al. 2023, arXiv:2311.00430).
//!
//! The same gradients say how much weights matter ([`importance`]).
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod adamw;
mod batch;
mod encoded;
mod evaluate;
mod graph;
mod importance;
mod options;
mod pairs;
mod parameters;
mod report;
mod rows;
mod state;
mod student;
mod targets;
mod train;
mod trained;

pub use encoded::Encoded;
pub use importance::{LayerUnits, TensorImportance, WeightImportance, importance, mean_gradients};
pub use options::DistillOptions;
pub use pairs::{DECODER, ENCODER, Pairs, read_pairs};
pub use report::{DistillReport, Scores};
pub use rows::{Row, RowsRead, Tokenize, read_rows};
pub use student::{Cuts, Size, cuts, kept_layers};
pub use train::{Events, Progress, Student, distill};
pub use trained::{DISTILLATION, Trained};

#[cfg(test)]
mod resumed;
#[cfg(test)]
mod torch_gradients;
