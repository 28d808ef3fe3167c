//! Times of words: how the attention of some heads of the decoder moves over the audio, as in
//! OpenAI's `whisper/timing.py`.

mod alignment;

use apr_core::counted;
use apr_infer::{Tensor, Value};
use serde::Serialize;
use serde_json::Value as Json;

use self::alignment::{Attention, jumps};
use super::{Segment, Transcriber};
use crate::error::RunResult;
use crate::facts::Facts;
use crate::scores::softmax;

/// Punctuation that belongs to the next word, and to the word before it.
const BEFORE_A_WORD: &str = "\"'“¿([{-";
const AFTER_A_WORD: &str = "\"'.。,，!！?？:：”)]}、";
/// Punctuation that ends a sentence.
const ENDS: &str = ".。!！?？";
/// ASCII punctuation in the order of Python's `string.punctuation`, of which a piece of text may be
/// a part.
const PUNCTUATION: &str = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
/// Languages without spaces between words: each character is one.
const WITHOUT_SPACES: [&str; 6] = ["zh", "ja", "th", "lo", "my", "yue"];
/// Longest that the usual word is taken to be, in seconds.
const LONGEST_MEDIAN: f64 = 0.7;

/// Word of a segment with its times.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Word {
    /// Text, with the space before it.
    pub word: String,
    /// Seconds from the beginning.
    pub start: f64,
    /// Seconds from the beginning.
    pub end: f64,
    /// Mean probability of its tokens among the tokens of text.
    pub probability: f64,
}

/// A word, or punctuation that is not yet part of one, with times from the beginning of a window.
#[derive(Debug, Clone, PartialEq)]
struct Aligned {
    text: String,
    tokens: usize,
    start: f64,
    end: f64,
    probability: f64,
}

/// Heads whose attention follows the speech: layer and head.
pub(super) fn alignment_heads(facts: &Facts) -> Vec<(usize, usize)> {
    let stated = facts.file("generation_config.json").and_then(|file| file.get("alignment_heads"));
    let head = |pair: &Json| {
        let at = |place: usize| usize::try_from(pair.get(place)?.as_u64()?).ok();
        Some((at(0)?, at(1)?))
    };
    if let Some(heads) = stated.and_then(Json::as_array) {
        return heads.iter().filter_map(head).collect();
    }

    // Like OpenAI's, where nothing is stated: all heads of the upper half.
    let count = |key: &str| {
        let count = facts.config(key).and_then(Json::as_u64).unwrap_or_default();
        usize::try_from(count).unwrap_or(usize::MAX)
    };
    let (layers, heads) = (count("decoder_layers"), count("decoder_attention_heads"));
    (layers / 2..layers).flat_map(|layer| (0..heads).map(move |head| (layer, head))).collect()
}

/// A window whose words get times.
pub(super) struct Window<'w> {
    /// The encoder's states.
    pub(super) states: &'w Value,
    /// The tokens with which its text begins.
    pub(super) begin: &'w [i64],
    /// Frames of the audio in it.
    pub(super) frames: usize,
    /// Seconds before it.
    pub(super) offset: f64,
    /// Seconds of a step of the encoder.
    pub(super) step: f64,
    /// `true` for a language without spaces.
    pub(super) is_unspaced: bool,
}

impl Window<'_> {
    pub(super) fn is_unspaced(language: Option<&str>) -> bool {
        language.is_some_and(|language| WITHOUT_SPACES.contains(&language))
    }
}

impl Transcriber<'_> {
    /// Gives the segments of a window their words, and the times of these. `spoken` is the end of
    /// what was said before, in seconds; returns that of the window.
    pub(super) fn add_words(
        &self,
        window: &Window<'_>,
        segments: &mut [Segment],
        spoken: f64,
    ) -> RunResult<f64> {
        let of_text = |segment: &Segment| self.special.text_of(&segment.tokens);
        let texts: Vec<Vec<i64>> = segments.iter().map(of_text).collect();
        let mut aligned = self.aligned(window, &texts.concat())?;
        let usual = usual_length(&aligned);
        shorten_around_sentences(&mut aligned, usual * 2.0);
        merge_punctuation(&mut aligned);
        let lens: Vec<usize> = texts.iter().map(Vec::len).collect();
        Ok(distribute(&aligned, segments, &lens, window.offset, usual, spoken))
    }

    /// Returns the words of a text with their times from the beginning of the window.
    fn aligned(&self, window: &Window<'_>, text: &[i64]) -> RunResult<Vec<Aligned>> {
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let mut tokens = window.begin.to_vec();
        tokens.extend(self.special.no_times);
        let first = tokens.len();
        // The token before the text and the end are read beside it.
        let room = self.positions.saturating_sub(first + 1);
        if text.len() > room {
            let lost = counted((text.len() - room) as u64, "token");
            self.runner.warn(&format!("the times of the last {lost} of a window are unknown"));
        }
        let text = &text[..room.min(text.len())];
        tokens.extend(text);
        tokens.push(self.special.end);

        let mut layers: Vec<usize> = self.heads.iter().map(|(layer, _)| *layer).collect();
        layers.sort_unstable();
        layers.dedup();
        let mut decoder = self.parts.decoder(window.states.clone())?;
        let (logits, attention) = decoder.attention(&tokens, &layers)?;
        let mut path = Attention::new(tokens.len(), window.frames / super::FRAMES_A_STEP);
        for (layer, shares) in layers.iter().zip(&attention) {
            let heads = self.heads.iter().filter(|(of, _)| of == layer);
            for (_, head) in heads {
                path.add(shares, *head)?;
            }
        }

        // The token before the text decides on its first token.
        let starts = jumps(&path.mean(), first - 1..tokens.len() - 1);
        let probabilities = self.probabilities(&logits, first - 1, text)?;
        let mut at = 0;
        let pieces = self.pieces(text, window.is_unspaced)?;
        let word = |(piece, tokens): (String, usize)| {
            let (from, to) = (at, at + tokens);
            at = to;
            let time =
                |place: usize| starts.get(place).copied().unwrap_or_default() as f64 * window.step;
            let sum: f64 = probabilities[from..to].iter().sum();
            Aligned {
                text: piece,
                tokens,
                start: time(from),
                end: time(to),
                probability: sum / tokens.max(1) as f64,
            }
        };
        Ok(pieces.into_iter().map(word).collect())
    }

    /// Returns the probability of each token of a text, among the tokens of text. The logits of the
    /// first one are those after the token at `before`.
    fn probabilities(&self, logits: &Tensor, before: usize, text: &[i64]) -> RunResult<Vec<f64>> {
        let width = logits.shape().last().copied().unwrap_or(1).max(1);
        let logits = logits.floats()?;
        let most = usize::try_from(self.special.end).unwrap_or(width).min(width);
        let rows = logits.chunks_exact(width).skip(before);
        let of = |(row, id): (&[f32], &i64)| {
            let shares = softmax(&row[..most]);
            usize::try_from(*id).ok().and_then(|id| shares.get(id).copied()).unwrap_or_default()
        };
        Ok(rows.zip(text).map(of).collect())
    }

    /// Splits a text into words, with the number of tokens of each.
    fn pieces(&self, text: &[i64], is_unspaced: bool) -> RunResult<Vec<(String, usize)>> {
        let decode = |ids: &[i64]| self.tokenizer.vocabulary().decode(ids);
        let whole = whole_characters(text, decode)?;
        Ok(if is_unspaced { whole } else { words(whole) })
    }
}

/// Splits tokens where characters are whole.
fn whole_characters<E>(
    tokens: &[i64],
    decode: impl Fn(&[i64]) -> Result<String, E>,
) -> Result<Vec<(String, usize)>, E> {
    let all: Vec<char> = decode(tokens)?.chars().collect();
    let (mut pieces, mut start, mut characters) = (Vec::new(), 0, 0);
    for end in 1..=tokens.len() {
        let piece = decode(&tokens[start..end])?;
        // A character that stands for bytes may also be in the text.
        let broken = piece.chars().position(|character| character == char::REPLACEMENT_CHARACTER);
        let is_whole = broken.is_none_or(|at| {
            all.get(characters + at).is_some_and(|it| *it == char::REPLACEMENT_CHARACTER)
        });
        if is_whole || end == tokens.len() {
            characters += piece.chars().count();
            pieces.push((piece, end - start));
            start = end;
        }
    }
    Ok(pieces)
}

/// Joins pieces to words, which begin with a space. Punctuation is by itself.
fn words(pieces: Vec<(String, usize)>) -> Vec<(String, usize)> {
    let mut words: Vec<(String, usize)> = Vec::new();
    for (piece, tokens) in pieces {
        let begins = piece.starts_with(' ') || PUNCTUATION.contains(piece.trim());
        match words.last_mut().filter(|_| !begins) {
            Some((word, count)) => {
                word.push_str(&piece);
                *count += tokens;
            }
            None => words.push((piece, tokens)),
        }
    }
    words
}

/// Returns the median length of words in seconds, 0 if there are none.
fn usual_length(words: &[Aligned]) -> f64 {
    let mut lengths: Vec<f64> =
        words.iter().map(|word| word.end - word.start).filter(|length| *length != 0.0).collect();
    lengths.sort_by(f64::total_cmp);
    let middle = lengths.len() / 2;
    let median = match lengths.len() {
        0 => 0.0,
        count if count % 2 == 0 => f64::midpoint(lengths[middle - 1], lengths[middle]),
        _ => lengths[middle],
    };
    median.min(LONGEST_MEDIAN)
}

/// Shortens words at the ends of sentences: a pause counts as part of them.
fn shorten_around_sentences(words: &mut [Aligned], most: f64) {
    for at in 1..words.len() {
        if words[at].end - words[at].start <= most || most == 0.0 {
            continue;
        }
        if ENDS.contains(&words[at].text) {
            words[at].end = words[at].start + most;
        } else if ENDS.contains(&words[at - 1].text) {
            words[at].start = words[at].end - most;
        }
    }
}

/// Moves punctuation into the word that it belongs to.
fn merge_punctuation(words: &mut [Aligned]) {
    let mut following = words.len().saturating_sub(1);
    for at in (0..following).rev() {
        let text = words[at].text.clone();
        if text.starts_with(' ') && BEFORE_A_WORD.contains(text.trim()) {
            words[following].text.insert_str(0, &text);
            words[following].tokens += std::mem::take(&mut words[at].tokens);
            words[at].text.clear();
        } else {
            following = at;
        }
    }

    let mut previous = 0;
    for at in 1..words.len() {
        let text = words[at].text.clone();
        if !words[previous].text.ends_with(' ') && AFTER_A_WORD.contains(&text) {
            words[previous].text.push_str(&text);
            words[previous].tokens += std::mem::take(&mut words[at].tokens);
            words[at].text.clear();
        } else {
            previous = at;
        }
    }
}

/// Gives each segment its words. The segments begin and end with them, unless a word has taken in a
/// pause. Returns the end of the last one.
fn distribute(
    aligned: &[Aligned],
    segments: &mut [Segment],
    lens: &[usize],
    offset: f64,
    usual: f64,
    mut spoken: f64,
) -> f64 {
    let mut rest = aligned.iter();
    for (segment, len) in segments.iter_mut().zip(lens) {
        let (mut words, mut taken) = (Vec::new(), 0);
        while taken < *len {
            let Some(word) = rest.next() else { break };
            taken += word.tokens;
            if !word.text.is_empty() {
                words.push(Word {
                    word: word.text.clone(),
                    start: hundredths(offset + word.start),
                    end: hundredths(offset + word.end),
                    probability: word.probability,
                });
            }
        }
        if !words.is_empty() {
            shorten_after_pause(&mut words, usual, spoken);
            fit(segment, &mut words, usual);
            spoken = segment.end;
        }
        segment.words = Some(words);
    }
    spoken
}

/// Shortens the first two words after a pause to twice the usual length.
fn shorten_after_pause(words: &mut [Word], usual: f64, spoken: f64) {
    let most = usual * 2.0;
    let length = |word: &Word| word.end - word.start;
    let both = words.get(1).map(|second| second.end - words[0].start);
    let is_long = length(&words[0]) > most || both.is_some_and(|both| both > most * 2.0);
    if words[0].end - spoken <= usual * 4.0 || !is_long {
        return;
    }
    if words.get(1).is_some_and(|second| length(second) > most) {
        let boundary = (words[1].end / 2.0).max(words[1].end - most);
        words[0].end = boundary;
        words[1].start = boundary;
    }
    words[0].start = (words[0].end - most).max(0.0);
}

/// Makes a segment and its words agree on where it begins and ends.
fn fit(segment: &mut Segment, words: &mut [Word], usual: f64) {
    let first = &mut words[0];
    if segment.start < first.end && segment.start - 0.5 > first.start {
        first.start = (first.end - usual).min(segment.start).max(0.0);
    } else {
        segment.start = first.start;
    }
    let last = words.len() - 1;
    let last = &mut words[last];
    if segment.end > last.start && segment.end + 0.5 < last.end {
        last.end = (last.start + usual).max(segment.end);
    } else {
        segment.end = last.end;
    }
}

fn hundredths(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use apr_testkit::locate;

    use super::*;

    fn segment(json: &Json) -> Segment {
        Segment {
            id: 0,
            seek: 500,
            start: json["start"].as_f64().unwrap(),
            end: json["end"].as_f64().unwrap(),
            text: String::new(),
            tokens: Vec::new(),
            words: None,
            avg_logprob: 0.0,
            compression_ratio: 1.0,
            no_speech_prob: None,
            temperature: 0.0,
        }
    }

    /// `fixtures/run/words.py` computes them with `add_word_timestamps` of openai-whisper.
    #[test]
    fn segments_get_the_words_that_whisper_gives_them() {
        let expected = std::fs::read_to_string(locate::fixture("run/words.json")).unwrap();
        let expected: Json = serde_json::from_str(&expected).unwrap();
        let list = |json: &Json| json.as_array().unwrap().clone();
        let number = |json: &Json| json.as_f64().unwrap();
        let count = |json: &Json| usize::try_from(json.as_u64().unwrap()).unwrap();
        let cases = list(&expected["shared"]);
        for case in &cases {
            let word = |json: &Json| Aligned {
                tokens: count(&json["tokens"]),
                ..aligned(
                    json["text"].as_str().unwrap(),
                    number(&json["start"]),
                    number(&json["end"]),
                )
            };
            let mut words: Vec<_> = list(&case["aligned"]).iter().map(word).collect();
            let mut segments: Vec<_> = list(&case["segments"]).iter().map(segment).collect();
            let lens: Vec<_> =
                list(&case["segments"]).iter().map(|part| count(&part["tokens"])).collect();
            let usual = usual_length(&words);
            shorten_around_sentences(&mut words, usual * 2.0);
            merge_punctuation(&mut words);
            let (offset, spoken) = (number(&case["offset"]), number(&case["spoken"]));
            let end = distribute(&words, &mut segments, &lens, offset, usual, spoken);
            let has_words = |part: &&Segment| part.words.as_ref().is_some_and(|it| !it.is_empty());
            let last = segments.iter().rfind(has_words).unwrap();
            assert!((end - last.end).abs() < 1e-9);
            for (segment, expected) in segments.iter().zip(list(&case["expected"])) {
                assert!((segment.start - number(&expected["start"])).abs() < 0.006, "{segment:?}");
                assert!((segment.end - number(&expected["end"])).abs() < 0.006, "{segment:?}");
                let words = segment.words.as_ref().unwrap();
                assert_eq!(words.len(), list(&expected["words"]).len());
                for (word, expected) in words.iter().zip(list(&expected["words"])) {
                    assert_eq!(word.word, expected[0].as_str().unwrap());
                    assert!((word.start - number(&expected[1])).abs() < 0.006, "{word:?}");
                    assert!((word.end - number(&expected[2])).abs() < 0.006, "{word:?}");
                }
            }
        }
        assert_eq!(cases.len(), 12);
    }

    fn aligned(text: &str, start: f64, end: f64) -> Aligned {
        Aligned { text: text.to_owned(), tokens: 1, start, end, probability: 0.5 }
    }

    #[test]
    fn words_begin_with_a_space_and_punctuation_is_by_itself() {
        let pieces = [" Hel", "lo", ",", " wor", "ld", "...", " "].map(|it| (it.to_owned(), 1));
        let made = words(pieces.to_vec());
        let made: Vec<_> = made.iter().map(|(word, count)| (word.as_str(), *count)).collect();
        // "..." is no part of Python's `string.punctuation`, "." is.
        assert_eq!(made, [(" Hello", 2), (",", 1), (" world...", 3), (" ", 1)]);
    }

    #[test]
    fn tokens_are_split_where_characters_are_whole() {
        let bytes = "é🙂a".as_bytes();
        let decode = |ids: &[i64]| {
            let bytes: Vec<u8> =
                ids.iter().map(|id| bytes[usize::try_from(*id).unwrap()]).collect();
            Ok::<_, ()>(String::from_utf8_lossy(&bytes).into_owned())
        };
        let ids: Vec<i64> = (0..7).collect();
        let made = whole_characters(&ids, decode).unwrap();
        assert_eq!(made, [("é".to_owned(), 2), ("🙂".to_owned(), 4), ("a".to_owned(), 1)]);
        // No token of half a character at the end is lost.
        let counts = whole_characters(&ids[..4], decode).unwrap().into_iter().map(|(_, it)| it);
        assert_eq!(counts.sum::<usize>(), 4);
        assert_eq!(whole_characters(&[], decode).unwrap(), []);
    }

    #[test]
    fn punctuation_joins_its_word() {
        let mut words =
            [" \"", " Yes", ",", "\"", " (", " no", ")."].map(|it| aligned(it, 0.0, 1.0));
        merge_punctuation(&mut words);
        let texts: Vec<_> = words.iter().map(|word| (word.text.as_str(), word.tokens)).collect();
        let expected =
            [("", 0), (" \" Yes,\"", 4), ("", 0), ("", 0), ("", 0), (" ( no", 2), (").", 1)];
        assert_eq!(texts, expected);
    }

    #[test]
    fn a_word_after_a_sentence_does_not_take_in_the_pause() {
        let mut words = [aligned(" a", 0.0, 0.2), aligned(".", 0.2, 3.0), aligned(" b", 3.0, 9.0)];
        shorten_around_sentences(&mut words, 0.5);
        assert_eq!((words[1].end, words[2].start), (0.7, 8.5));
        assert_eq!(usual_length(&[aligned("a", 0.0, 0.2), aligned("b", 0.2, 0.8)]), 0.4);
        assert_eq!(usual_length(&[]), 0.0);
    }
}
