//! Trees of XGBoost (`.json`, `.ubj`) and LightGBM (`.txt`), read as tensors and as graphs.
//!
//! ```text
//! XGBoost    {"learner": {"gradient_booster": {"model": {"trees": [{"split_indices": [...], ...},
//!            ...], "tree_info": [...]}}, "learner_model_param": {...}, "objective": {...}},
//!            "version": [3, 2, 0]}, as JSON or as UBJSON
//! LightGBM   tree
//!            version=v4
//!            num_class=1               the model: lines of a key and a value
//!            ...
//!            Tree=0                    each tree: such lines, lists with blanks between
//!            split_feature=3 1 0
//!            ...
//!            end of trees
//! ```
//!
//! The lists of all trees lie one behind the other: `trees/threshold` has the thresholds of the
//! first tree, then those of the second. `trees/nodes` (`trees/leaves` for LightGBM) has the number
//! of each tree. What the files say besides is metadata, under `xgboost` or `lightgbm`.
//!
//! # Graphs
//!
//! [`graphs_of`] makes a graph of tensors and metadata: `TreeEnsembleRegressor` of `ai.onnx.ml`,
//! and what the objective does to its sums. A row may lack values (NaN). Thresholds of LightGBM, in
//! double precision, become the largest single ones that are not above, which decide alike for
//! values in single precision.
//!
//! These have no operator of ONNX, and are named instead: splits by categories, linear boosters and
//! leaves, trees with several targets at a leaf, zeros that stand for missing values, and
//! objectives that are not known.
//!
//! # Limits
//!
//! | what | most | |
//! |---|---|---|
//! | a file | [`Limits::max_metadata`](apr_core::Limits) | E008 |
//! | lists and objects in each other | 64 | E001 |
//!
//! ```
//! use apr_core::{CheckpointReader, Limits};
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/trees/binary.ubj");
//! # let file = std::fs::read(path).expect("the fixture");
//! let limits = Limits::default();
//! let reader = apr_runtimes::trees::xgboost::open(file, "binary.ubj", &limits)?;
//! let (_, graph) = &apr_runtimes::trees::graphs_of(&reader, &limits)?.expect("it has trees")[0];
//! assert_eq!(graph.body.nodes[0].op.to_string(), "ai.onnx.ml::TreeEnsembleRegressor");
//! # Ok::<(), apr_core::Error>(())
//! ```

mod columns;
mod document;
mod graph;
pub mod lightgbm;
mod numbers;
mod objective;
mod reader;
mod ubjson;
pub mod xgboost;

pub use graph::{graphs_of, is_in_graph};
