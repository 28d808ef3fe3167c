//! What a Whisper writes, and what the marks of time in it mean (Radford et al. 2022,
//! <https://arxiv.org/abs/2212.04356>).

use serde::Serialize;
use serde_json::Value as Json;

use super::Facts;

/// Tokens of a Whisper model that do not represent text, with the rules for where they may occur.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct WhisperTokens {
    /// Begins every text.
    pub start: i64,
    /// Ends every text.
    pub end: i64,
    /// Languages by their codes, as `en`.
    pub languages: Vec<(String, i64)>,
    /// Writes in the language that is spoken.
    pub transcribe: Option<i64>,
    /// Writes in English.
    pub translate: Option<i64>,
    /// Token after which no timestamps are written. The ids of timestamps follow its id.
    pub no_times: Option<i64>,
    /// Last timestamp that may be the first one of a text.
    first_time: Option<i64>,
}

impl WhisperTokens {
    /// Returns the tokens of a model, or `None` if its configuration does not name them.
    #[must_use]
    pub(crate) fn of(facts: &Facts) -> Option<Self> {
        let both = [facts.file("generation_config.json"), facts.file("config.json")];
        let entry = |key: &str| {
            both.iter().flatten().find_map(|file| file.get(key).filter(|value| !value.is_null()))
        };
        let number = |key: &str| entry(key).and_then(Json::as_i64);
        let map = |key: &str| entry(key).and_then(Json::as_object).into_iter().flatten();
        let task = |name: &str| {
            map("task_to_id").find(|(key, _)| *key == name).and_then(|(_, id)| id.as_i64())
        };
        let code = |name: &str| name.trim_start_matches("<|").trim_end_matches("|>").to_owned();
        let languages = map("lang_to_id").filter_map(|(name, id)| Some((code(name), id.as_i64()?)));
        Some(Self {
            start: number("decoder_start_token_id")?,
            end: facts.ends().first().copied()?,
            languages: languages.collect(),
            transcribe: task("transcribe"),
            translate: task("translate"),
            no_times: number("no_timestamps_token_id"),
            first_time: number("max_initial_timestamp_index"),
        })
    }

    /// The first mark of time.
    #[must_use]
    pub(crate) fn first_mark(&self) -> i64 {
        self.no_times.map_or(i64::MAX, |id| id + 1)
    }

    /// The tokens of a text, without marks of time.
    #[must_use]
    pub(crate) fn text_of(&self, written: &[i64]) -> Vec<i64> {
        let mark = self.first_mark();
        written.iter().copied().filter(|id| *id < mark).collect()
    }

    /// Returns `true` if a text ends with one mark of time: nothing is said after it.
    #[must_use]
    pub(crate) fn ends_once(&self, written: &[i64]) -> bool {
        let mark = self.first_mark();
        matches!(written, [.., before, last] if *before < mark && *last >= mark)
    }

    /// Rules out the logits of tokens that may not follow `written` if timestamps are requested.
    /// Timestamps occur in pairs and never decrease.
    pub(crate) fn rule_out(&self, logits: &mut [f32], written: &[i64]) {
        let (mark, all) = (self.first_mark(), logits.len() as i64);
        self.no_times.into_iter().for_each(|id| silence(logits, id, id.saturating_add(1)));
        let is_mark = |id: &i64| *id >= mark;
        let last = written.last().is_some_and(is_mark);
        let one_before = written.len() < 2 || is_mark(&written[written.len() - 2]);
        match (last, one_before) {
            // Behind a mark that begins a text comes the text; behind one that ends it, a second
            // mark or the end.
            (true, true) => silence(logits, mark, all),
            (true, false) => silence(logits, 0, self.end),
            (false, _) => {}
        }

        if let Some(time) = written.iter().rev().find(|id| is_mark(id)) {
            // The mark that ends a part may come again, to begin the next one; otherwise time moves
            // on.
            silence(logits, mark, if last && !one_before { *time } else { time + 1 });
        }

        if written.is_empty() {
            silence(logits, 0, mark);
            if let Some(latest) = self.first_time {
                silence(logits, mark.saturating_add(latest).saturating_add(1), all);
            }
        }

        self.prefer_times(logits);
    }

    /// Forces a timestamp if all timestamps together are likelier than each token of text.
    fn prefer_times(&self, logits: &mut [f32]) {
        let Some(mark) =
            usize::try_from(self.first_mark()).ok().filter(|mark| *mark < logits.len())
        else {
            return;
        };
        // With the highest taken off, no `exp` overflows.
        let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let times: f64 = logits[mark..].iter().map(|logit| f64::from(logit - highest).exp()).sum();
        let text = logits[..mark].iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if times.ln() > f64::from(text - highest) {
            logits[..mark].fill(f32::NEG_INFINITY);
        }
    }

    /// Returns the segments written for a window, split at its timestamps, and the number of steps
    /// to move the window. `None` moves it by its whole length, which is `steps`.
    #[must_use]
    pub(crate) fn segments(&self, written: &[i64], steps: i64) -> (Vec<TokenSegment>, Option<i64>) {
        let mark = self.first_mark();
        let marks: Vec<bool> = written.iter().map(|id| *id >= mark).collect();
        let step = |at: usize| written.get(at).map_or(0, |id| id - mark);
        let ends_once = self.ends_once(written);
        let mut cuts: Vec<usize> =
            (1..marks.len()).filter(|&at| marks[at - 1] && marks[at]).collect();
        if cuts.is_empty() {
            let last = marks.iter().rposition(|mark| *mark).map(step).filter(|step| *step > 0);
            return (
                vec![TokenSegment {
                    start: 0,
                    end: last.unwrap_or(steps),
                    tokens: written.to_vec(),
                }],
                None,
            );
        }

        // A single mark at the end says that nothing is said after it.
        if ends_once {
            cuts.push(written.len());
        } else if let Some(last) = cuts.last_mut() {
            // The mark that begins what is cut off says that it is.
            *last += 1;
        }

        let mut segments = Vec::with_capacity(cuts.len());
        let mut start = 0;
        for (number, &cut) in cuts.iter().enumerate() {
            let is_open = number + 1 == cuts.len() && !ends_once;
            let end = if is_open { cut - 2 } else { cut - 1 };
            segments.push(TokenSegment {
                start: step(start),
                end: step(end),
                tokens: written[start..cut].to_vec(),
            });
            start = cut;
        }

        (segments, (!ends_once).then(|| step(start - 2)))
    }
}

fn silence(logits: &mut [f32], from: i64, to: i64) {
    let place = |id: i64| usize::try_from(id).unwrap_or(0).min(logits.len());
    let (from, to) = (place(from), place(to));
    if from < to {
        logits[from..to].fill(f32::NEG_INFINITY);
    }
}

/// Segment of a text with its time, in steps from the beginning of its window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct TokenSegment {
    /// Start of the segment.
    pub start: i64,
    /// End of the segment.
    pub end: i64,
    /// Tokens of the segment, with the timestamps around them.
    pub tokens: Vec<i64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> WhisperTokens {
        WhisperTokens {
            start: 3,
            end: 2,
            no_times: Some(9),
            first_time: Some(2),
            ..WhisperTokens::default()
        }
    }

    #[test]
    fn marks_of_time_cut_a_text() {
        let tokens = tokens();
        let cut = |written: &[i64]| {
            let (segments, moved) = tokens.segments(written, 50);
            (
                segments
                    .into_iter()
                    .map(|part| (part.start, part.end, tokens.text_of(&part.tokens)))
                    .collect::<Vec<_>>(),
                moved,
            )
        };
        assert_eq!(cut(&[4, 5]), (vec![(0, 50, vec![4, 5])], None));
        assert_eq!(cut(&[10, 4, 15]), (vec![(0, 5, vec![4])], None));
        assert_eq!(cut(&[10, 4, 15, 15, 5, 20]), (vec![(0, 5, vec![4]), (5, 10, vec![5])], None));
        assert_eq!(cut(&[10, 4, 15, 15, 5]), (vec![(0, 5, vec![4])], Some(5)));
    }

    #[test]
    fn marks_of_time_come_first_and_never_go_back() {
        let tokens = tokens();
        let allowed = |written: &[i64]| -> Vec<usize> {
            let mut logits = vec![0.0_f32; 16];
            logits[4] = 9.0;
            tokens.rule_out(&mut logits, written);
            (0..16).filter(|&id| logits[id] > f32::NEG_INFINITY).collect()
        };
        assert_eq!(allowed(&[]), [10, 11, 12]);
        assert_eq!(allowed(&[11]), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(allowed(&[11, 4, 12]), [2, 3, 4, 5, 6, 7, 8, 12, 13, 14, 15]);
        assert_eq!(allowed(&[11, 4]), [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 14, 15]);
    }
}
