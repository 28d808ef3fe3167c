//! What texts have in common, whatever a model makes of them: prompts, tokens and labels.

use apr_core::Escaped;
use apr_gguf::{has_own_scores, is_regression};
use apr_source::sentence::Sentence;

use crate::error::{Remedy, RunError, RunResult};
use crate::runner::Runner;
use crate::scores::{largest, sigmoid, softmax};
use crate::text_encoder::Label;
use crate::tokens::Tokenizer;

impl Runner<'_> {
    /// The prompt of modules that [`RunOptions::prompt_name`](crate::RunOptions::prompt_name)
    /// names, or their default one.
    pub(crate) fn prompt_of<'m>(&self, modules: Option<&'m Sentence>) -> RunResult<&'m str> {
        let name = self.options.prompt_name.as_deref();
        let Some(modules) = modules else {
            return match name {
                Some(_) => Err(RunError::request("the model has no prompts")),
                None => Ok(""),
            };
        };
        modules.prompt(name).map_err(|names| {
            let wanted = Escaped::short(name.unwrap_or_default());
            let names: Vec<String> = names.iter().map(|name| Escaped(name).to_string()).collect();
            RunError::request(match names.as_slice() {
                [] => "the model has no prompts".to_owned(),
                names => format!("unknown prompt '{wanted}'; the model has {}", names.join(", ")),
            })
        })
    }

    /// Returns `true` if each of `logits` logits is scored by itself.
    ///
    /// Otherwise, they become several probabilities that add up to 1. A score is the logit for a
    /// regression. It is the sigmoid of the logit if a model may give several labels, has only one
    /// label, or compares images with texts as SigLIP does.
    #[must_use]
    pub fn scores_each(&self, logits: usize) -> bool {
        let own = self.facts.network("problem_type").is_some_and(has_own_scores);
        own || logits == 1 || self.is_siglip()
    }

    /// Returns `true` if the scores of labels are predicted values, not probabilities.
    #[must_use]
    pub fn predicts_values(&self) -> bool {
        self.facts.network("problem_type").is_some_and(is_regression)
    }

    /// The labels with the largest scores.
    pub(crate) fn labels(&self, logits: &[f32]) -> Vec<Label> {
        let scores = if self.predicts_values() {
            logits.iter().copied().map(f64::from).collect()
        } else if self.scores_each(logits.len()) {
            sigmoid(logits)
        } else {
            softmax(logits)
        };
        let label = |at: usize| Label { label: self.facts.label(at), score: scores[at] };
        largest(&scores, self.options.top).into_iter().map(label).collect()
    }

    /// Tokenizes a text, up to the model's maximum length.
    ///
    /// # Errors
    /// [`RunError::Request`] if the text is longer, unless `truncate` is set.
    pub fn text_ids(&self, tokenizer: &Tokenizer<'_>, text: &str) -> RunResult<Vec<i64>> {
        let most = self.facts.context().unwrap_or(usize::MAX);
        // A table of vectors has none for what begins and ends a text.
        let is_table = self.facts.sentence().is_some_and(Sentence::is_table);
        let (ids, left_out) = match is_table {
            true => (tokenizer.encode(text, false)?, 0),
            false => tokenizer.encode_at_most(text, most)?,
        };

        // Sentence encoders are meant to be given the beginning of longer texts.
        let expected = self.options.truncate || self.facts.makes_embeddings();
        match left_out {
            0 => Ok(ids),
            _ if expected => {
                self.warn(&format!("truncated to {most} tokens: the last {left_out} of the text"));
                Ok(ids)
            }
            _ => Err(RunError::with_remedy(
                format!("the text is {} tokens long, beyond the model's {most}", most + left_out),
                Remedy::Truncate,
            )),
        }
    }

    /// Tokens that the caller gave, as many as the model takes.
    ///
    /// # Errors
    /// [`RunError::Request`] for more, unless they are to be left out.
    pub fn token_ids(&self, mut ids: Vec<i64>) -> RunResult<Vec<i64>> {
        let count = ids.len();
        let Some(most) = self.facts.context().filter(|most| count > *most) else {
            return Ok(ids);
        };
        if !self.options.truncate {
            return Err(RunError::with_remedy(
                format!("{count} tokens given, beyond the model's {most}"),
                Remedy::Truncate,
            ));
        }
        self.warn(&format!("truncated to {most} tokens: the last {}", count - most));
        ids.truncate(most);
        Ok(ids)
    }
}
