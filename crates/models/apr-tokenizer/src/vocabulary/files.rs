//! Which of a tokenizer's files are read, and how.

use std::borrow::Cow;

use apr_core::{Escaped, Result, grouped};

use super::hugging_face::{self, AddedToken, ParseAdded};
use super::tokenizer::{Tokenizer, check_count, check_id};
use super::{sentencepiece, tiktoken};

/// Maximum size in bytes of a tokenizer file: the limit for all companion files of a folder.
const MAX_FILE: usize = 64 << 20;

type Parse = fn(&[u8]) -> std::result::Result<Tokenizer, String>;

/// Files by preference: the first one there that yields tokens wins.
///
/// `sentencepiece.bpe.model` is not among them: the models that ship it (XLM-R, mBART, NLLB) number
/// its pieces anew in their code.
const FILES: [(&str, Parse); 7] = [
    ("tokenizer.json", hugging_face::from_tokenizer_json),
    ("vocab.json", hugging_face::from_vocab_json),
    ("vocab.txt", hugging_face::from_vocab_txt),
    ("tokenizer.model", pieces_or_ranks),
    ("spiece.model", pieces_or_ranks),
    ("spm.model", pieces_or_ranks),
    ("tiktoken.model", pieces_or_ranks),
];

/// Reads pieces or a list of ranks, which some models also name `tokenizer.model`.
fn pieces_or_ranks(bytes: &[u8]) -> std::result::Result<Tokenizer, String> {
    if tiktoken::is_ranks(bytes) {
        tiktoken::from_ranks(bytes)
    } else {
        sentencepiece::from_model(bytes)
    }
}

/// Returns the tokenizer among companions of these names, and warnings about unreadable files.
///
/// # Errors
/// The errors of `read`.
pub fn read_tokenizer<'a>(
    names: &[&str],
    read: &mut dyn FnMut(usize) -> Result<Cow<'a, [u8]>>,
) -> Result<(Option<Tokenizer>, Vec<String>)> {
    let mut warnings = Vec::new();
    for (position, parse) in candidates(names, &mut warnings) {
        let (name, bytes) = (names[position], read(position)?);
        match check_size(&bytes).and_then(|()| parse(&bytes)).and_then(Tokenizer::check) {
            Ok(mut tokenizer) => {
                name.clone_into(&mut tokenizer.file);
                complete(&mut tokenizer, names, read, &mut warnings)?;
                return Ok((Some(tokenizer), warnings));
            }
            Err(why) => warnings.push(warning(name, &why)),
        }
    }
    Ok((None, warnings))
}

fn candidates(names: &[&str], warnings: &mut Vec<String>) -> Vec<(usize, Parse)> {
    let by_name = |&(name, parse): &(&str, Parse)| {
        Some((names.iter().position(|there| *there == name)?, parse))
    };
    let mut found: Vec<_> = FILES.iter().filter_map(by_name).collect();
    let ranks: Vec<_> =
        (0..names.len()).filter(|&file| names[file].ends_with(".tiktoken")).collect();
    match *ranks {
        [only] => found.push((only, tiktoken::from_ranks)),
        [first, ..] if found.is_empty() => {
            warnings.push(warning(
                names[first],
                "there are several lists of ranks, and the model's is not stated",
            ));
        }
        _ => {}
    }

    found
}

/// Adds what `tokenizer.json` holds itself, and other formats leave to files beside them.
fn complete<'a>(
    tokenizer: &mut Tokenizer,
    names: &[&str],
    read: &mut dyn FnMut(usize) -> Result<Cow<'a, [u8]>>,
    warnings: &mut Vec<String>,
) -> Result<()> {
    if tokenizer.file == "tokenizer.json" {
        return Ok(());
    }
    if tokenizer.file == "vocab.json" && names.contains(&"merges.txt") {
        tokenizer.model_type = Some("BPE".to_owned());
    }

    let beside: [(&str, ParseAdded); 2] = [
        ("added_tokens.json", hugging_face::from_added_tokens),
        ("tokenizer_config.json", hugging_face::from_added_tokens_decoder),
    ];
    for (name, parse) in beside {
        let Some(position) = names.iter().position(|there| *there == name) else { continue };
        let bytes = read(position)?;
        let known = tokenizer.tokens.len();
        let added = check_size(&bytes)
            .and_then(|()| parse(&bytes))
            .and_then(|added| check_added(added, known));
        match added {
            Ok(added) => {
                for token in added {
                    token.add_to(tokenizer);
                }
            }
            Err(why) => warnings.push(warning(name, &why)),
        }
    }

    Ok(())
}

fn check_size(bytes: &[u8]) -> std::result::Result<(), String> {
    if bytes.len() > MAX_FILE {
        return Err(format!(
            "it has {} bytes, too many for a tokenizer",
            grouped(bytes.len() as u64)
        ));
    }
    Ok(())
}

/// Returns a warning about a file in one line.
///
/// It escapes `why`, which may repeat content of the file.
#[must_use]
pub fn warning(name: &str, why: &str) -> String {
    format!("{}: {}", Escaped::short(name), Escaped::short(why))
}

fn check_added(
    added: Vec<AddedToken>,
    known: usize,
) -> std::result::Result<Vec<AddedToken>, String> {
    let tokens = known + added.len();
    check_count(tokens)?;
    added.iter().try_for_each(|token| check_id(token.id, tokens))?;
    Ok(added)
}
