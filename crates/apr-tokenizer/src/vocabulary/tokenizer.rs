//! A tokenizer's tokens, whichever of its files they were read from.

use std::borrow::Cow;
use std::collections::BTreeMap;

use apr_core::{Escaped, Result, counted, grouped};

use super::hugging_face::{self, AddedToken, ParseAdded};
use super::{sentencepiece, tiktoken};

/// Bytes of a tokenizer file; what a folder may carry of companions altogether.
const MAX_FILE: usize = 64 << 20;

/// Tokens of a vocabulary; the largest in use have a million.
pub(crate) const MAX_TOKENS: usize = 2 << 20;

/// Tokens by id, and what their file says of them.
#[derive(Debug, Default)]
pub struct Tokenizer {
    /// The companion that holds the tokens.
    pub file: String,
    /// Texts by id.
    pub tokens: BTreeMap<u64, String>,
    /// `BPE`, `WordPiece`, `SentencePiece Unigram`, where the file tells.
    pub model_type: Option<String>,
    /// Tokens that stand for no text: id by token.
    pub special: BTreeMap<String, u64>,
    /// Ids that the file gives a role: `("unk", 0)`.
    pub roles: Vec<(&'static str, u64)>,
    /// The first id that two texts claim, with both; it keeps the earlier one.
    pub clash: Option<(u64, String, String)>,
}

impl Tokenizer {
    /// Adds a token. An id that is taken keeps its text and is noted as a clash.
    pub(super) fn add(&mut self, id: u64, text: String) {
        match self.tokens.get(&id) {
            None => drop(self.tokens.insert(id, text)),
            Some(there) if *there != text && self.clash.is_none() => self.clash = Some((id, there.clone(), text)),
            Some(_) => {}
        }
    }

    pub(super) fn add_special(&mut self, id: u64, text: &str) {
        self.add(id, text.to_owned());
        self.special.insert(text.to_owned(), id);
    }

    /// Refuses what is not a vocabulary: no tokens, too many, or ids far beyond their number, which
    /// one number in a file could otherwise turn into an array of terabytes.
    fn check(self) -> std::result::Result<Self, String> {
        let count = self.tokens.len();
        let Some((&last, _)) = self.tokens.last_key_value() else { return Err("it holds no tokens".to_owned()) };
        check_count(count)?;
        check_id(last, count)?;
        Ok(self)
    }
}

fn check_id(id: u64, tokens: usize) -> std::result::Result<(), String> {
    let tokens = tokens as u64;
    if id > 4 * tokens + 1024 {
        return Err(format!("the token id {} is out of range for {}", grouped(id), counted(tokens, "token")));
    }
    Ok(())
}

fn check_added(added: Vec<AddedToken>, known: usize) -> std::result::Result<Vec<AddedToken>, String> {
    let tokens = known + added.len();
    check_count(tokens)?;
    added.iter().try_for_each(|token| check_id(token.id, tokens))?;
    Ok(added)
}

pub(super) fn check_count(tokens: usize) -> std::result::Result<(), String> {
    if tokens > MAX_TOKENS {
        return Err(format!("it holds over {} tokens", grouped(MAX_TOKENS as u64)));
    }
    Ok(())
}

type Parse = fn(&[u8]) -> std::result::Result<Tokenizer, String>;

/// Files by preference: the first one there that yields tokens wins.
///
/// `sentencepiece.bpe.model` is not among them: the models that ship it (XLM-R, mBART, NLLB) number its pieces anew in
/// their code.
const FILES: [(&str, Parse); 7] = [
    ("tokenizer.json", hugging_face::from_tokenizer_json),
    ("vocab.json", hugging_face::from_vocab_json),
    ("vocab.txt", hugging_face::from_vocab_txt),
    ("tokenizer.model", pieces_or_ranks),
    ("spiece.model", pieces_or_ranks),
    ("spm.model", pieces_or_ranks),
    ("tiktoken.model", pieces_or_ranks),
];

/// Some models call a list of ranks `tokenizer.model` too.
fn pieces_or_ranks(bytes: &[u8]) -> std::result::Result<Tokenizer, String> {
    if tiktoken::is_ranks(bytes) { tiktoken::from_ranks(bytes) } else { sentencepiece::from_model(bytes) }
}

/// The tokenizer among companions of these names, and what could not be understood on the way to it.
///
/// # Errors
/// What `read` fails with.
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
    let by_name = |&(name, parse): &(&str, Parse)| Some((names.iter().position(|there| *there == name)?, parse));
    let mut found: Vec<_> = FILES.iter().filter_map(by_name).collect();
    let ranks: Vec<_> = (0..names.len()).filter(|&file| names[file].ends_with(".tiktoken")).collect();
    match *ranks {
        [only] => found.push((only, tiktoken::from_ranks)),
        [first, ..] if found.is_empty() => {
            warnings
                .push(warning(names[first], "there are several lists of ranks, and nothing says which is the model's"));
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
        let added = check_size(&bytes).and_then(|()| parse(&bytes)).and_then(|added| check_added(added, known));
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
        return Err(format!("it has {} bytes, too many for a tokenizer", grouped(bytes.len() as u64)));
    }
    Ok(())
}

/// What is wrong with a file, in one line that is safe to show: `why` may repeat what the file holds.
#[must_use]
pub fn warning(name: &str, why: &str) -> String {
    format!("{}: {}", Escaped::short(name), Escaped::short(why))
}
