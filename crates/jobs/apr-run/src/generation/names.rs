//! Tokens that settings name by their text.

use apr_inputs::text::TextTokens;
use apr_registry::Result;

use super::processors::Processor;
use crate::error::{Remedy, RunError, RunResult};
use crate::tokens::Tokenizer;

/// llama.cpp's sequence breakers.
const USUAL_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// Longest rest of a breaker behind its first token.
const LONGEST_REST: usize = 20;

/// A token, by its number or its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenName {
    /// Id of the token.
    Id(i64),
    /// Text of the token, or the name of a special token.
    Text(String),
}

/// Texts that end the search of [`DryPenalty`](super::DryPenalty): a repetition can't cross them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breakers {
    texts: Vec<String>,
    /// `true` if the caller chose the texts; `false` for the default texts.
    asked: bool,
    /// First tokens of the breakers, each with the tokens that must follow.
    sequences: Vec<(i64, Vec<i64>)>,
}

impl Default for Breakers {
    /// llama.cpp's: a line break, a colon, a quotation mark and an asterisk.
    fn default() -> Self {
        let texts = USUAL_BREAKERS.map(str::to_owned).into();
        Self { texts, asked: false, sequences: Vec::new() }
    }
}

impl Breakers {
    /// These texts.
    #[must_use]
    pub fn new(texts: Vec<String>) -> Self {
        Self { texts, asked: true, sequences: Vec::new() }
    }

    /// The tokens behind the last breaker.
    pub(super) fn distance_from_end(&self, tokens: &[i64]) -> Option<usize> {
        if self.sequences.is_empty() {
            return None;
        }
        (0..tokens.len()).find_map(|back| {
            let (head, behind) = tokens[tokens.len() - 1 - back..].split_first()?;
            let is_here =
                |(first, rest): &&(i64, Vec<i64>)| first == head && behind.starts_with(rest);
            let rests = self.sequences.iter().filter(is_here).map(|(_, rest)| rest.len());
            rests.max().map(|rest| back - rest)
        })
    }

    /// Returns `true` if a token is a breaker by itself.
    pub(super) fn has_alone(&self, token: i64) -> bool {
        self.sequences.iter().any(|(first, rest)| *first == token && rest.is_empty())
    }

    /// Finds the tokens that a breaker may begin in, as llama.cpp does.
    fn find(&mut self, tokens: &TextTokens) -> Result<()> {
        for id in 0..i64::try_from(tokens.len()).unwrap_or(i64::MAX) {
            if tokens.token(id).is_none() {
                continue;
            }
            let mut word = tokens.decode_bytes(&[id])?;
            if word.is_empty() {
                word = tokens.decode_all(&[id])?.into_bytes();
            }
            for text in self.texts.iter().filter(|text| !text.is_empty()) {
                if word.windows(text.len()).any(|part| part == text.as_bytes()) {
                    self.sequences.push((id, Vec::new()));
                    continue;
                }
                // The end of the word is the beginning of the breaker.
                let begins = |count: &usize| word.ends_with(&text.as_bytes()[..*count]);
                let shorter = (1..text.len().min(word.len() + 1)).rev();
                for rest in shorter.filter(begins).filter_map(|count| text.get(count..)) {
                    let mut rest = tokens.encode(rest, false)?;
                    rest.truncate(LONGEST_REST);
                    let sequence = (id, rest);
                    if !self.sequences.contains(&sequence) {
                        self.sequences.push(sequence);
                    }
                }
            }
        }
        self.sequences.sort();
        Ok(())
    }
}

/// Returns `true` if these processors require a tokenizer.
pub(super) fn has_names(processors: &[Processor]) -> bool {
    processors.iter().any(|processor| match processor {
        Processor::LogitBias(biases) => {
            biases.iter().any(|(token, _)| matches!(token, TokenName::Text(_)))
        }
        Processor::Dry(dry) => !dry.breakers.texts.is_empty(),
        _ => false,
    })
}

/// Finds the tokens that the processors name by texts.
pub(super) fn find_names(
    processors: &mut [Processor],
    tokenizer: Option<&Tokenizer<'_>>,
) -> RunResult<()> {
    for processor in processors {
        match processor {
            Processor::LogitBias(biases) => {
                for (token, _) in biases {
                    if let TokenName::Text(text) = token {
                        *token = TokenName::Id(one_token(text, tokenizer)?);
                    }
                }
            }
            Processor::Dry(dry) if !dry.breakers.texts.is_empty() => match tokenizer {
                Some(tokenizer) => {
                    let mut breakers = dry.breakers.clone();
                    dry.breakers = tokenizer.isolated_as("the tokenizer", move |tokens| {
                        breakers.find(tokens).map(|()| breakers)
                    })?;
                }
                None if dry.breakers.asked => return Err(no_tokenizer("sequence breakers")),
                None => {}
            },
            _ => {}
        }
    }
    Ok(())
}

fn one_token(text: &str, tokenizer: Option<&Tokenizer<'_>>) -> RunResult<i64> {
    let tokenizer = tokenizer.ok_or_else(|| no_tokenizer("a bias for a text"))?;
    if let Some(id) = tokenizer.vocabulary().id(text) {
        return Ok(id);
    }
    match tokenizer.encode(text, false)?[..] {
        [id] => Ok(id),
        ref ids => {
            let message = format!("a bias is for one token, and {text:?} is {} of them", ids.len());
            Err(RunError::with_remedy(message, Remedy::BiasedIds))
        }
    }
}

fn no_tokenizer(what: &str) -> RunError {
    RunError::request(format!("missing tokenizer, which {what} needs"))
}
