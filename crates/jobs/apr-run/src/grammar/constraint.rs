//! Texts that grow as their grammar says.

use std::fmt;
use std::sync::Arc;

use apr_core::json;
use apr_registry::{Error, Escaped, Result};
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Map, Value};

use super::errors::{self, unfit};
use super::vocabulary::Words;
use super::{Grammar, GrammarKind, KeptGrammar, gbnf};
use crate::error::RunResult;
use crate::tokens::Tokenizer;

/// Tokens of a prompt that the text of the next one may depend on, as a growing text has it.
const CONTEXT: usize = 6;

/// A grammar over the tokens of a vocabulary.
#[derive(Clone)]
pub(crate) struct Compiled(Arc<Shared>);

struct Shared {
    grammar: Grammar,
    ends: Vec<i64>,
    words: Words,
    tree: TokTrie,
    begin: Matcher,
}

/// Constraint on the tokens of a text that must match a grammar.
#[derive(Clone)]
pub(crate) struct Constraint {
    shared: Arc<Shared>,
    matcher: Matcher,
    /// Matcher of the first token, if that token writes other bytes than later ones.
    first: Option<(Matcher, Arc<Words>)>,
}

/// Tokens that are allowed next.
pub(crate) struct Allowed(SimpleVob);

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Compiled").field(&self.0.grammar).finish()
    }
}

impl Compiled {
    /// A grammar over a tokenizer's tokens, of which these end a text.
    ///
    /// # Errors
    /// E001 for a grammar that can't be understood, with its line; E003 for what of it is not
    /// supported, E008 for one that is too large.
    pub(crate) fn of(
        grammar: &Grammar,
        tokenizer: &Tokenizer<'_>,
        ends: &[i64],
    ) -> RunResult<Self> {
        let (grammar, ends) = (grammar.clone(), ends.to_vec());
        let (shared, warnings) = tokenizer.isolated_as("the grammar", move |tokens| {
            let top = top_level(&grammar).map_err(|error| grammar.located(error))?;
            let words = Words::within(tokens)?;
            let tree = words.tree(&ends);
            let mut begin = matcher(&grammar, top, tree.clone())?;
            let warnings = begin.grammar_warnings();
            Ok((Shared { grammar, ends, words, tree, begin }, warnings))
        })?;
        for warning in warnings {
            tokenizer.warn(&format!("the grammar: {}", Escaped::short(&warning)));
        }
        Ok(Self(Arc::new(shared)))
    }

    /// A text that begins behind these tokens.
    ///
    /// # Errors
    /// Those of the tokenizer.
    pub(crate) fn begin(&self, tokenizer: &Tokenizer<'_>, given: &[i64]) -> RunResult<Constraint> {
        let shared = Arc::clone(&self.0);
        let given = given[given.len().saturating_sub(CONTEXT)..].to_vec();
        let first = tokenizer.isolated_as("the grammar", move |tokens| {
            // Where a text begins, tokenizers leave out the space before its first word.
            if !tokens.decode_bytes(&given)?.is_empty() {
                return Ok(None);
            }
            let words = Words::behind(tokens, &given)?;
            if words == shared.words {
                return Ok(None);
            }
            let tree = words.tree(&shared.ends);
            let top = top_level(&shared.grammar)?;
            Ok(Some((matcher(&shared.grammar, top, tree)?, Arc::new(words))))
        })?;
        Ok(Constraint { shared: Arc::clone(&self.0), matcher: self.0.begin.deep_clone(), first })
    }
}

/// The grammar as the library has it.
fn top_level(grammar: &Grammar) -> Result<TopLevelGrammar> {
    Ok(match grammar.kind {
        GrammarKind::JsonSchema => {
            let schema: Value = serde_json::from_str(&grammar.text)
                .map_err(|error| errors::of_json(&error, &grammar.text))?;
            if !schema.is_object() && !schema.is_boolean() {
                let found = Escaped::short(&json::text(&schema)).to_string();
                let message = format!("a JSON schema is an object, true or false, not {found}");
                return Err(Error::format(message));
            }
            TopLevelGrammar::from_json_schema(with_whitespace(schema))
        }
        GrammarKind::Regex => TopLevelGrammar::from_regex(&grammar.text),
        GrammarKind::Lark => TopLevelGrammar::from_lark(grammar.text.clone()),
        GrammarKind::Gbnf => TopLevelGrammar::from_lark(gbnf::to_lark(&grammar.text)?),
    })
}

/// Returns a schema that bounds the whitespace between two tokens of JSON, unless it states its own
/// rule.
///
/// The bound is that of the grammars that llama.cpp makes of schemas. Without one, a model that
/// prefers line breaks would write nothing else.
fn with_whitespace(schema: Value) -> Value {
    const OPTIONS: &str = "x-guidance";
    const RULES: [&str; 2] = ["whitespace_pattern", "whitespace_flexible"];
    const WHITESPACE: &str = r"\x20|\x0A{1,2}[\x20\x09]{0,20}";

    let mut fields = match schema {
        Value::Object(fields) => fields,
        // Any value.
        Value::Bool(true) => Map::new(),
        other => return other,
    };
    let options = fields.entry(OPTIONS).or_insert_with(|| Map::new().into());
    if let Some(options) = options.as_object_mut()
        && !RULES.iter().any(|rule| options.contains_key(*rule))
    {
        options.insert(RULES[0].to_owned(), WHITESPACE.into());
    }
    Value::Object(fields)
}

/// Creates a matcher at the beginning of a grammar.
fn matcher(grammar: &Grammar, top: TopLevelGrammar, tree: TokTrie) -> Result<Matcher> {
    let tokens: TokEnv = Arc::new(ApproximateTokEnv::new(tree));
    let wrong =
        |error: &dyn fmt::Display| grammar.located(errors::of_library(&error.to_string(), grammar));
    let mut factory = ParserFactory::new_simple(&tokens).map_err(|error| wrong(&error))?;
    factory.quiet();
    // Warnings are kept, to be handed on.
    factory.set_buffer_log_level(1);
    factory.limits_mut().verbose_errors = false;
    let parser = factory.create_parser(top).map_err(|error| wrong(&error))?;
    let mut matcher = Matcher::new(Ok(parser));
    // A grammar of the empty text alone is complete at once.
    matcher.consume_tokens(&[]).map_err(|error| wrong(&error))?;
    Ok(matcher)
}

impl Constraint {
    /// Returns the tokens that are allowed next, including those that end the text if it may end.
    ///
    /// # Errors
    /// E001 if no token continues the text by the grammar, E008 if the computation takes too much.
    pub(crate) fn allowed(&mut self) -> Result<Allowed> {
        let Self { shared, matcher, first } = self;
        let matcher = first.as_mut().map_or(matcher, |(matcher, _)| matcher);
        let mask = matcher.compute_mask_or_eos();
        let mask = mask.map_err(|error| shared.grammar.located(unfit(&error.to_string())))?;
        Ok(Allowed(mask))
    }

    /// Adds a token that does not end the text.
    ///
    /// # Errors
    /// E001 for a token that is not allowed.
    pub(crate) fn take(&mut self, token: i64) -> Result<()> {
        let id = u32::try_from(token).unwrap_or(u32::MAX);
        let Self { shared, matcher, first } = self;
        let taken = match first.take() {
            // Later tokens are those of another tree: the same bytes, by its tokens.
            Some((_, words)) if !words.text(token).is_empty() => {
                matcher.consume_tokens(&shared.tree.greedy_tokenize(words.text(token)))
            }
            _ => matcher.consume_token(id),
        };
        taken.map_err(|error| shared.grammar.located(unfit(&error.to_string())))
    }

    /// Returns the constraint after further tokens, of which the last may end the text.
    ///
    /// # Errors
    /// Those of [`take`](Self::take).
    pub(crate) fn behind(&self, tokens: &[i64]) -> Result<Self> {
        let mut made = self.clone();
        made.matcher = made.matcher.deep_clone();
        tokens.iter().try_for_each(|token| made.take(*token))?;
        Ok(made)
    }

    /// Compares the bytes that the next token wrote with the bytes that the grammar expects for it.
    ///
    /// # Errors
    /// E003 for a tokenizer whose tokens write bytes that depend on the tokens before them.
    pub(crate) fn check(&self, token: i64, written: &[u8]) -> Result<()> {
        let words = self.first.as_ref().map_or(&self.shared.words, |(_, words)| words);
        let known = words.text(token);
        if known == written {
            return Ok(());
        }
        let shown = |bytes: &[u8]| Escaped::short(&String::from_utf8_lossy(bytes)).to_string();
        Err(Error::version(format!(
            "the token {token} writes '{}' here and '{}' elsewhere: a grammar can't be applied \
             with this tokenizer",
            shown(written),
            shown(known)
        )))
    }

    /// Returns `true` if no token may follow.
    pub(crate) fn is_complete(&self) -> bool {
        self.matcher.is_stopped() && !self.matcher.is_error()
    }

    /// Returns the report on a text that ended for this reason.
    pub(crate) fn kept(&mut self, ended: &str) -> KeptGrammar {
        let complete = match ended {
            "end" => true,
            // The text is without its stop text.
            "stop" => false,
            _ => self.is_complete() || self.matcher.is_accepting().unwrap_or(false),
        };
        KeptGrammar { kind: self.shared.grammar.kind.name(), complete }
    }
}

impl Allowed {
    /// Rules out all others.
    pub(crate) fn keep(&self, logits: &mut [f32]) {
        let size = self.0.len();
        for (id, logit) in logits.iter_mut().enumerate() {
            let is_allowed = id < size && u32::try_from(id).is_ok_and(|id| self.0.is_allowed(id));
            if !is_allowed {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}
