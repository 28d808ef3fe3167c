//! Running models on text, audio, images and arrays.
//!
//! [`Model::run_with`](crate::Model::run_with) hands out a [`Runner`], of which each task is made:
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

pub use apr_run::{
    Answer, Answers, Arithmetic, ArrayFile, AudioEncoder, AudioFile, AudioResult, AudioTask, Beams,
    Breakers, CacheType, ChatAnswer, ChatFile, Completion, Conversation, Data, DryPenalty,
    EarlyStopping, Facts, GenerateOptions, Generation, GenerationOptions, Generator, Given,
    Grammar, GrammarKind, Host, Hypothesis, ImageEncoder, ImageResult, ImageTask, InputKind,
    KeptGrammar, Label, LogProbability, MaskToken, Message, Mirostat, Pooling, Prepared, Prompt,
    QuestionAnswering, Ranked, Ranking, Remedy, Reranker, RunError, RunOptions, RunResult, Runner,
    Segment, TemplateOptions, TextEncoder, TextScore, TextTask, Timing, Timings, TokenLabel,
    TokenLogProbabilities, TokenName, Tokenizer, ToolCall, Transcriber, Transcription,
    TranscriptionOptions, WordWeight, Xtc,
};
