//! What the files that travel with a model say about it, as metadata of the container.
//!
//! | key | value | from |
//! |---|---|---|
//! | `tokenizer.vocabulary` | token texts by id, null for an id without one; `{"file": NAME}` of the companion that holds them where they take over 1 MiB | `tokenizer.json`; else `vocab.json`, `vocab.txt`, `tokenizer.model`, `spiece.model`, `spm.model`, `tiktoken.model`, `*.tiktoken`, with `added_tokens.json` and `added_tokens_decoder` |
//! | `tokenizer.vocab_size` | number of tokens, added ones included | the same |
//! | `tokenizer.model_type` | `BPE`, `WordPiece`, `Unigram`, `WordLevel`, `SentencePiece BPE`, `SentencePiece Unigram`, ... | the same |
//! | `tokenizer.special_tokens` | added special tokens, and those with a role: token to id | the same |
//! | `tokenizer.ROLE_token` | text of the token with that role: `bos`, `eos`, `unk`, `pad`, `sep`, `cls`, `mask` | `tokenizer_config.json`, `special_tokens_map.json`, the tokenizer |
//! | `tokenizer.ROLE_token_id` | id of the same token | the tokenizer; where it names none, `generation_config.json`, then `config.json` |
//! | `tokenizer.eos_token_ids` | all ids that end a text, where there are several | `generation_config.json`, `config.json` |
//! | `tokenizer.chat_template` | a template, or a list of `{"name", "template"}`; `{"file": NAME}` over 1 MiB | `chat_template.jinja`, `chat_template.json`, `tokenizer_config.json` |
//! | `labels` | class names by index: `{"0": "cat"}`, as written, `LABEL_0` included; `{"file": NAME}` over 1 MiB | `config.json` |
//! | `num_labels` | number of `labels` | the same |
//! | `image_config` | `image_size` in pixels, a number or `[height, width]`; `mean` and `std` by channel, of values scaled to 0..1; steps and sizes under their own names | `preprocessor_config.json`, `processor_config.json`, timm's `config.json` |
//! | `audio_config` | `sample_rate` in Hz, `n_mels`, `n_fft` and `hop_length` in samples, `chunk_length` in seconds | `preprocessor_config.json`, `processor_config.json` |
//! | `mel_filterbank` | `{"tensor": "audio.mel_filterbank"}`, F32, `[n_mels, n_freqs]` | the same, as stored or as the feature extractor computes it |
//! | `mel_filterbank_shape` | `[n_mels, n_freqs]` | the same |
//! | `model_card` | fields of the front matter that are scalars or lists of scalars | `README.md` |
//! | `license` | identifier in lower case: `apache-2.0`; several with commas between | `README.md`, else recognised in `LICENSE` |
//!
//! All of them are optional, and none is invented: a key is there when a file says so. Large data
//! has no place in JSON, and the files themselves travel along, so what is large points there.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod audio;
mod card;
mod files;
mod front_matter;
mod image;
mod labels;
mod learnt;
mod license;
mod mel;
mod template;
mod tokens;

#[cfg(test)]
mod tests;

use apr_core::{CheckpointReader, DType, Result, TensorInfo, keys};

pub use learnt::{Learnt, LearntTensor};
pub use license::{NO_LICENSE, license_warning};
pub use tokens::leaves_rows_unused;

/// Reads the companions of a model, given as names and bytes.
///
/// It never fails: a file that can't be understood is named in a warning, and the others are used.
///
/// ```
/// let config = br#"{"id2label": {"0": "cat", "1": "dog"}}"#.to_vec();
/// let learnt = apr_source::companions::learn(&[("config.json".to_owned(), config)]);
/// assert!(learnt.metadata.contains(&("num_labels".to_owned(), 2.into())));
/// ```
#[must_use]
pub fn learn(companions: &[(String, Vec<u8>)]) -> Learnt {
    let mut learnt = Learnt::default();
    let files = files::Files::parse(companions, &mut learnt);
    tokens::learn(&files, &mut learnt);
    template::learn(&files, &mut learnt);
    labels::learn(&files, &mut learnt);
    image::learn(&files, &mut learnt);
    audio::learn(&files, &mut learnt);
    card::learn(&files, &mut learnt);
    learnt
}

/// Returns the facts in the companions of a checkpoint: [`learn`] over all of them. The filterbank
/// that its metadata have as numbers takes precedence.
///
/// # Errors
/// E007 and E008 when a companion can't be read.
pub fn learn_from(reader: &dyn CheckpointReader) -> Result<Learnt> {
    let companions = reader.companions().iter().enumerate();
    let companions = companions
        .map(|(position, companion)| Ok((companion.name.clone(), reader.read_companion(position)?)))
        .collect::<Result<Vec<_>>>()?;
    let mut learnt = learn(&companions);
    if let Some((shape, bytes)) = reader.metadata().inline_filterbank() {
        let name = keys::MEL_FILTERBANK_TENSOR.to_owned();
        let info = TensorInfo { name, dtype: DType::F32, shape };
        learnt.tensors.retain(|tensor| tensor.info.name != info.name);
        learnt.tensors.push(LearntTensor { info, bytes });
    }
    Ok(learnt)
}
