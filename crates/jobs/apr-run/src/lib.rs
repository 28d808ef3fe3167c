//! Running models on text, audio, images and arrays.
//!
//! [`with_runner`] prepares a model and hands out a [`Runner`]; a [`Prepared`] part of it does the
//! work:
//!
//! | input | task | entry |
//! |---|---|---|
//! | text | completion, text to text, chat | [`Generator`] |
//! | messages, one after the other | a chat whose history is kept | [`Conversation`] |
//! | text | embeddings, classification, token labels, fill-mask | [`TextEncoder`] |
//! | a query and texts | reranking: scores of pairs | [`Reranker`] |
//! | a question and a text | extractive question answering | [`QuestionAnswering`] |
//! | audio | transcription by Whisper | [`Transcriber`] |
//! | audio | transcription by CTC, classification, embeddings, voice activity | [`AudioEncoder`] |
//! | images | classification, embeddings, scores of candidate texts | [`ImageEncoder`] |
//! | arrays | whatever the graph computes | [`Prepared::run`] |
//!
//! Nothing here opens files, starts threads or reads a clock: a [`Host`] lends them. Values are
//! those of transformers, whose pipelines these tasks are.
//!
//! ```no_run
//! use apr_run::{Facts, NoHost, RunOptions, with_runner};
//!
//! # fn run(source: &apr_source::Source<'_>) -> apr_run::RunResult<()> {
//! let facts = Facts::of_source(source)?;
//! with_runner(source, &facts, &RunOptions::default(), &NoHost, |runner| {
//!     let part = runner.prepare()?;
//!     let outcome = part.run(part.token_inputs(&[1, 2, 3])?, &["logits"])?;
//!     println!("{:?}", outcome.outputs[0].tensor()?.shape());
//!     Ok(())
//! })
//! # }
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod arrays;
mod assumed;
mod audio;
mod beam_search;
mod bench;
mod completion;
mod context;
mod conversation;
mod encoder_decoder;
mod error;
mod facts;
mod features;
mod files;
mod generation;
mod given;
mod grammar;
mod growing;
mod host;
mod images;
mod late_interaction;
mod memory;
mod next;
mod prompt_cache;
mod protobuf;
mod question_answering;
mod recognised;
mod reranking;
mod runner;
mod scores;
mod sentence;
mod speech;
mod text_encoder;
mod text_input;
mod timing;
mod tokens;
mod transcription;
mod typed;
mod whisper;

pub use apr_infer::{Arithmetic, CacheType};
pub use apr_inputs::answer::{Answer as ChatAnswer, AnswerFormat, ToolCall};
pub use apr_inputs::chat::{ChatFile, Data, Message, TemplateOptions};
pub use apr_inputs::is_guarded;
pub use apr_ops::graph::Runnable;
pub use apr_source::sentence::{PoolingMode as Pooling, Sentence};
pub use arrays::{ArrayReport, RunReport, arrays_of, report};
pub use assumed::{AssumedInput, assumed};
pub use audio::{AudioEncoder, AudioFile, AudioResult, AudioTask};
pub use beam_search::Hypothesis;
pub use bench::{BenchOptions, BenchResult, bench};
pub use completion::{
    Completion, GenerateOptions, Generator, Prompt, chat_text, has_chat_template,
};
pub use conversation::Conversation;
pub use error::{Remedy, RunError, RunResult};
pub use facts::Facts;
pub use features::{AudioFeatures, AudioInput, ImageFeatures};
pub use files::ArrayFile;
pub use generation::{
    Beams, Breakers, Chooser, DryPenalty, EarlyStopping, Generation, GenerationOptions,
    LogProbability, MOST_BEAMS, Mirostat, TokenLogProbabilities, TokenName, Xtc,
};
pub use given::{Given, GivenArray, array_inputs, inputs_of};
pub use grammar::{Grammar, GrammarKind, KeptGrammar};
pub use host::{Host, NoHost};
pub use images::{ImageEncoder, ImageResult, ImageTask, TextScore};
pub use memory::{ContextOrigin, MemoryEstimate, MemoryOptions, PartMemory, estimate_memory};
pub use question_answering::{Answer, Answers, QuestionAnswering};
pub use reranking::{Ranked, Ranking, Reranker};
pub use runner::{
    InputKind, Prepared, RunOptions, Runner, known_inputs, token_inputs, with_runner,
};
pub use scores::{largest, mean, normalize, sigmoid, softmax};
pub use sentence::SentenceHead;
pub use speech::Spoken;
pub use text_encoder::{Label, MaskToken, TextEncoder, TextTask, TokenLabel, WordWeight};
pub use timing::{Timing, Timings};
pub use tokens::Tokenizer;
pub use transcription::{Segment, Transcriber, Transcription, TranscriptionOptions, Word};
