//! What llama.cpp holds of the modules of sentence-transformers: one way to pool.

use apr_gguf::KeyValue;
use apr_registry::{Escaped, Loss};
use apr_source::sentence::{MODULES, Module, SETTINGS, Sentence};

/// Returns llama.cpp's number of the pooling, or `None` if it has no such pooling.
pub(super) fn pooling_type(sentence: &Sentence) -> Option<u32> {
    let modes = sentence.modules.iter().find_map(|module| match module {
        Module::Pooling { modes, .. } => Some(modes.as_slice()),
        _ => None,
    });
    match modes? {
        [mode] => mode.gguf(),
        _ => None,
    }
}

/// Returns the contents that the keys of a GGUF file do not store. Without them, the vectors of
/// texts differ.
pub(super) fn not_held(sentence: &Sentence, keys: &[KeyValue]) -> Vec<Loss> {
    let key = |end: &str| keys.iter().find(|pair| pair.key.ends_with(end));
    let context = key(".context_length").and_then(|pair| pair.value.as_u64());
    let pools = key(".pooling_type").is_some();
    let mut losses = Vec::new();
    let mut lose = |name: String, why: &str| {
        losses.push(Loss { name, what: "left out".to_owned(), why: why.to_owned() });
    };
    for module in &sentence.modules {
        match module {
            Module::Pooling { include_prompt, .. } => {
                if !pools {
                    let name = sentence.pooling_name().unwrap_or_default();
                    let why = match pooling_type(sentence) {
                        Some(_) => "this architecture has no key for it",
                        None => "llama.cpp pools by mean, cls or last only",
                    };
                    lose(format!("pooling {name}"), why);
                }
                if !include_prompt {
                    lose("include_prompt".to_owned(), "llama.cpp also pools the tokens of prompts");
                }
            }
            // A matrix of the model's own file is listed with its other tensors.
            Module::Dense { folder, .. } if folder.is_empty() => {}
            Module::Dense { folder, .. } => {
                lose(folder.clone(), "GGUF can't store a dense module in this architecture");
            }
            Module::Splade { .. } => {
                lose("SpladePooling".to_owned(), "llama.cpp has no head for words of BERT");
            }
            Module::TokenMask { .. } => {
                lose("MultiVectorMask".to_owned(), "llama.cpp compares one vector of each text");
            }
            Module::LayerNorm { folder } => {
                lose(folder.clone(), "GGUF can't store a module after the pooling");
            }
            Module::Unsupported(what) => lose(MODULES.to_owned(), what),
            _ => {}
        }
    }
    for (name, text) in &sentence.prompts {
        if !text.is_empty() {
            let why = match sentence.default_prompt.as_ref() == Some(name) {
                true => "GGUF has no prompts: put this one, the default, before each text",
                false => "GGUF has no prompts: put it before the texts that it is for",
            };
            lose(format!("prompt '{}' of {SETTINGS}", Escaped::short(name)), why);
        }
    }
    if let Some(most) = sentence.max_tokens
        && context.is_none_or(|context| most < context)
    {
        lose(format!("max_seq_length {most}"), "llama.cpp takes texts as long as the context");
    }
    if let Some(dimensions) = sentence.dimensions {
        lose(format!("truncate_dim {dimensions}"), "llama.cpp returns whole vectors");
    }
    if sentence.lowercases {
        lose("do_lower_case".to_owned(), "llama.cpp does not change texts");
    }
    if !sentence.normalizes() {
        lose(
            "lengths of vectors".to_owned(),
            "llama.cpp normalizes vectors to length 1 by default",
        );
    }
    losses
}
