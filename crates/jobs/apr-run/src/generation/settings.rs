//! `generation_config.json`, key by key.

use apr_core::json;
use serde_json::{Map, Value as Json};

use super::super::Facts;
use super::processors::Processor;
use super::{Beams, DryPenalty, EarlyStopping, Generation, GenerationOptions, Xtc};

/// Keys that do not change the generated text. They are about how transformers stores, caches or
/// returns data, or about special tokens that the tokenizer has.
const NEUTRAL: [&str; 30] = [
    "_from_model_config",
    "assistant_confidence_threshold",
    "assistant_early_exit",
    "assistant_ensemble_weight",
    "assistant_lookbehind",
    "bos_token_id",
    "cache_config",
    "cache_implementation",
    "compile_config",
    "decoder_start_token_id",
    "disable_compile",
    "is_assistant",
    "low_memory",
    "max_cache_len",
    "max_matching_ngram_size",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "output_attentions",
    "output_hidden_states",
    "output_logits",
    "output_scores",
    "pad_token_id",
    "prefill_chunk_size",
    "prompt_lookup_num_tokens",
    "renormalize_logits",
    "return_dict_in_generate",
    "target_lookbehind",
    "transformers_version",
    "use_cache",
    "_name_or_path",
];

/// Keys of generation that are not supported, with the values that have no effect.
const NOT_DONE: [(&str, &[f64]); 15] = [
    ("constraints", &[]),
    ("diversity_penalty", &[0.0]),
    ("dola_layers", &[]),
    ("force_words_ids", &[]),
    ("forced_decoder_ids", &[]),
    ("guidance_scale", &[1.0]),
    ("max_time", &[]),
    ("num_beam_groups", &[1.0]),
    ("num_return_sequences", &[1.0]),
    ("penalty_alpha", &[0.0]),
    ("speculation_type", &[]),
    ("token_healing", &[0.0]),
    ("top_h", &[]),
    ("use_mtp", &[0.0]),
    ("watermarking_config", &[]),
];

/// Keys of Whisper's, which its transcription reads.
const OF_WHISPER: [&str; 10] = [
    "alignment_heads",
    "is_multilingual",
    "lang_to_id",
    "language",
    "max_initial_timestamp_index",
    "no_timestamps_token_id",
    "prev_sot_token_id",
    "return_timestamps",
    "task",
    "task_to_id",
];

/// Number of tokens that transformers samples from if a file requests sampling without a number.
const USUAL_TOP_K: usize = 50;

/// Maximum number of beams of a search. Each beam keeps the keys and values of its text.
pub const MOST_BEAMS: usize = 64;

/// The entries of a file, and which of them have been looked at.
struct Entries<'f> {
    file: Option<&'f Map<String, Json>>,
    used: Vec<&'static str>,
    ignored: Vec<String>,
}

impl<'f> Entries<'f> {
    /// An entry that is not null, as `read` understands it; one that it does not is ignored, and
    /// named.
    fn get<T>(&mut self, key: &'static str, read: impl Fn(&'f Json) -> Option<T>) -> Option<T> {
        self.used.push(key);
        let value = self.file?.get(key).filter(|value| !value.is_null())?;
        let found = read(value);
        if found.is_none() {
            self.ignored.push(named(key, value));
        }
        found
    }

    fn float(&mut self, key: &'static str) -> Option<f64> {
        self.get(key, Json::as_f64)
    }

    fn count(&mut self, key: &'static str) -> Option<usize> {
        self.get(key, count)
    }

    fn flag(&mut self, key: &'static str) -> bool {
        self.get(key, Json::as_bool).unwrap_or(false)
    }

    /// One token, or a list of them.
    fn tokens(&mut self, key: &'static str) -> Option<Vec<i64>> {
        self.get(key, |value| match value {
            Json::Array(_) => ids(value),
            one => one.as_i64().map(|id| vec![id]),
        })
    }
}

fn count(value: &Json) -> Option<usize> {
    usize::try_from(value.as_u64()?).ok()
}

fn ids(value: &Json) -> Option<Vec<i64>> {
    value.as_array()?.iter().map(Json::as_i64).collect()
}

/// Returns a key, with its value if the value is short.
fn named(key: &str, value: &Json) -> String {
    let value = json::text(value);
    if value.len() <= 40 { format!("{key} ({value})") } else { key.to_owned() }
}

/// Reads the settings of a model. The options take precedence.
pub(super) fn read(facts: &Facts, options: &GenerationOptions) -> Generation {
    let object = |name: &str| facts.file(name).and_then(Json::as_object);
    let own = object("generation_config.json");

    // A model without the one file has its settings in the other, as older ones do.
    let mut entries = Entries {
        file: own.or_else(|| object("config.json")),
        used: Vec::new(),
        ignored: Vec::new(),
    };
    entries.tokens("eos_token_id");
    let mut made = Generation { ends: facts.ends().to_vec(), ..Generation::default() };
    made.stops = entries
        .get("stop_strings", |value| match value {
            Json::Array(list) => list.iter().map(|text| text.as_str().map(str::to_owned)).collect(),
            one => Some(vec![one.as_str()?.to_owned()]),
        })
        .unwrap_or_default();
    lengths(&mut made, &mut entries, options);
    penalties(&mut made, &mut entries, options);
    bounds(&mut made, &mut entries, options);
    sampling(&mut made, &mut entries, options);
    beams(&mut made, &mut entries, options);
    name_ignored(&mut made, entries, own.is_some());
    made
}

fn lengths(made: &mut Generation, entries: &mut Entries<'_>, options: &GenerationOptions) {
    let new = entries.count("max_new_tokens");
    let all = entries.count("max_length");
    made.max_new = options.max_tokens.or(new);
    made.max_length = all.filter(|_| made.max_new.is_none());
}

/// Adds the processors that depend on the tokens so far, in the order of transformers.
fn penalties(made: &mut Generation, entries: &mut Entries<'_>, options: &GenerationOptions) {
    made.window = options.repeat_last_n;
    if !options.logit_bias.is_empty() {
        made.processors.push(Processor::LogitBias(options.logit_bias.clone()));
    }
    let biases = entries.get("sequence_bias", |value| {
        let pair = |pair: &Json| {
            let bias = pair.get(1)?.as_f64()?;
            Some((ids(pair.get(0)?)?, single(bias)))
        };
        value.as_array()?.iter().map(pair).collect::<Option<Vec<_>>>()
    });
    made.processors.extend(biases.map(Processor::SequenceBias));
    let of_encoder = entries.float("encoder_repetition_penalty").filter(|it| *it > 0.0);
    let of_encoder = of_encoder.map(single).filter(|it| *it != 1.0);
    made.processors.extend(of_encoder.map(Processor::EncoderRepetitionPenalty));
    let repetition = entries.float("repetition_penalty").filter(|it| *it > 0.0).map(single);
    let repetition = options.repeat_penalty.or(repetition).filter(|it| *it != 1.0);
    made.processors.extend(repetition.map(Processor::RepetitionPenalty));
    let presence = options.presence_penalty.filter(|it| *it != 0.0);
    made.processors.extend(presence.map(Processor::PresencePenalty));
    let frequency = options.frequency_penalty.filter(|it| *it != 0.0);
    made.processors.extend(frequency.map(Processor::FrequencyPenalty));
    let dry = options.dry.clone().filter(DryPenalty::is_on);
    made.processors.extend(dry.map(Processor::Dry));
    let sizes = [
        ("no_repeat_ngram_size", Processor::NoRepeatNgram as fn(usize) -> Processor),
        ("encoder_no_repeat_ngram_size", Processor::EncoderNoRepeatNgram),
    ];
    for (key, processor) in sizes {
        made.processors.extend(entries.count(key).filter(|size| *size > 0).map(processor));
    }

    let ends = &made.ends;
    let words = entries.get("bad_words_ids", |value| {
        value.as_array()?.iter().map(ids).collect::<Option<Vec<_>>>()
    });
    let words = words.into_iter().flatten().filter(|word| match word[..] {
        // An end of a text can't be ruled out so.
        [one] => !ends.contains(&one),
        _ => !word.is_empty(),
    });
    let words: Vec<_> = words.map(|word| (word, f32::NEG_INFINITY)).collect();
    if !words.is_empty() {
        made.processors.push(Processor::SequenceBias(words));
    }
}

/// Adds the processors that rule out or force tokens by the number of tokens.
fn bounds(made: &mut Generation, entries: &mut Entries<'_>, options: &GenerationOptions) {
    let ends = made.ends.clone();
    let least = entries.count("min_length").filter(|least| *least > 0);
    let least_new = entries.count("min_new_tokens");
    let least = least.filter(|_| options.min_tokens.is_none());
    let least_new = options.min_tokens.or(least_new).filter(|least| *least > 0);
    if options.ignore_eos {
        made.processors.push(Processor::Suppress(ends.clone()));
    } else if !ends.is_empty() {
        // Of the two, the one about new tokens counts.
        let least = least.filter(|_| least_new.is_none());
        made.processors.extend(least.map(|least| Processor::MinLength(least, ends.clone())));
        made.processors.extend(least_new.map(|it| Processor::MinNewTokens(it, ends.clone())));
    }

    let forced = entries.get("forced_bos_token_id", Json::as_i64);
    made.processors.extend(forced.map(Processor::ForcedBos));
    let forced_end = entries.tokens("forced_eos_token_id");
    made.forced_end = forced_end.filter(|_| !options.ignore_eos);
    made.processors.extend(made.forced_end.clone().map(|ends| Processor::ForcedEos(0, ends)));
    if entries.flag("remove_invalid_values") {
        made.processors.push(Processor::RemoveInvalid);
    }
    let decay = entries.get("exponential_decay_length_penalty", |value| {
        Some((count(value.get(0)?)?, value.get(1)?.as_f64()?))
    });
    made.processors.extend(decay.map(|(start, factor)| Processor::ExponentialDecay {
        start,
        factor,
        ends,
    }));
    made.processors.extend(entries.tokens("suppress_tokens").map(Processor::Suppress));
    let first = entries.tokens("begin_suppress_tokens");
    made.processors.extend(first.map(|first| Processor::SuppressFirst(first, forced.is_some())));
}

fn sampling(made: &mut Generation, entries: &mut Entries<'_>, options: &GenerationOptions) {
    let asks = entries.flag("do_sample");
    let positive = |value: &f64| *value > 0.0;
    let temperature = entries.float("temperature").filter(positive).map(single);
    let top_k = entries.count("top_k");
    let top_p = entries.float("top_p").filter(positive);
    let min_p = entries.float("min_p").filter(positive);
    let typical = entries.float("typical_p").filter(|it| *it > 0.0 && *it < 1.0);
    let epsilon = entries.float("epsilon_cutoff").filter(|it| *it > 0.0 && *it < 1.0);
    let eta = entries.float("eta_cutoff").filter(|it| *it > 0.0 && *it < 1.0);
    // Who asks for beams wants the likeliest text.
    let asks_for_beams = options.beams.is_some_and(|beams| beams > 1);
    let asks = asks && !asks_for_beams;
    let wanted = options.temperature.map_or(asks, |temperature| temperature > 0.0);
    made.samples = wanted;
    made.seed = options.seed;
    if !wanted {
        return;
    }

    let temperature = options.temperature.or(temperature).filter(|it| *it != 1.0);
    let temperature = temperature.map(Processor::Temperature);
    if let Some(mirostat) = options.mirostat {
        made.mirostat = Some(mirostat);
        made.processors.extend(temperature);
        let second = mirostat.version != 1;
        made.processors.push(if second { Processor::Mirostat2 } else { Processor::Mirostat1 });
        return;
    }
    let usual = if asks { USUAL_TOP_K } else { 0 };
    let top_k = Some(options.top_k.or(top_k).unwrap_or(usual)).filter(|count| *count > 0);
    let top_k = top_k.map(Processor::TopK);
    let top_p = options.top_p.map(f64::from).or(top_p).filter(|share| *share < 1.0);
    let top_p = top_p.map(Processor::TopP);
    let min_p = options.min_p.map(f64::from).or(min_p).filter(positive);
    let min_p = min_p.map(Processor::MinP);
    let asked = options.typical_p.filter(|share| *share < 1.0);
    let typical = if options.typical_p.is_some() { asked.map(f64::from) } else { typical };
    let typical = typical.map(Processor::TypicalP);
    let (epsilon, eta) = (epsilon.map(Processor::EpsilonCutoff), eta.map(Processor::EtaCutoff));
    let xtc = options.xtc.filter(Xtc::is_on).map(|Xtc { probability, threshold }| Processor::Xtc {
        probability: probability.into(),
        threshold: threshold.into(),
    });
    // Who asks for a sampler of llama.cpp's means its order, others that of transformers.
    let chain = match asked.is_some() || xtc.is_some() {
        true => [top_k, typical, top_p, min_p, epsilon, eta, xtc, temperature],
        false => [temperature, top_k, top_p, min_p, typical, epsilon, eta, None],
    };
    made.processors.extend(chain.into_iter().flatten());
}

/// Reads the settings of a beam search, which returns the likeliest texts. Only one text grows if
/// tokens are sampled, or if the user requests the likeliest token (temperature 0).
fn beams(made: &mut Generation, entries: &mut Entries<'_>, options: &GenerationOptions) {
    let own = entries.get("num_beams", |value| count(value).filter(|count| *count <= MOST_BEAMS));
    let penalty = entries.float("length_penalty").filter(|penalty| penalty.is_finite());
    let early_stopping = entries.get("early_stopping", |value| match value {
        Json::Bool(true) => Some(EarlyStopping::Full),
        Json::Bool(false) => Some(EarlyStopping::Likely),
        other => (other.as_str() == Some("never")).then_some(EarlyStopping::Never),
    });
    let asked = options.beams.or(own.filter(|_| options.temperature.is_none()));
    let Some(count) = asked.filter(|count| *count > 1) else { return };
    if made.samples {
        made.ignored.push(format!("num_beams ({count}), since tokens are drawn (do_sample)"));
        return;
    }
    made.beams = Some(Beams {
        count: count.min(MOST_BEAMS),
        length_penalty: options.length_penalty.map(f64::from).or(penalty).unwrap_or(1.0),
        early_stopping: early_stopping.unwrap_or(EarlyStopping::Likely),
    });
}

/// Lists the settings in the file that are not supported. `config.json` also has many keys of other
/// kinds.
fn name_ignored(made: &mut Generation, entries: Entries<'_>, is_own: bool) {
    made.ignored.extend(entries.ignored);
    for (key, value) in entries.file.into_iter().flat_map(json::entries) {
        let neutral_at = NOT_DONE.iter().find(|(name, _)| name == key).map(|(_, at)| *at);
        let number =
            value.as_f64().or_else(|| value.as_bool().map(|flag| f64::from(u8::from(flag))));
        let is_off = value.is_null()
            || value.as_array().is_some_and(Vec::is_empty)
            || number.zip(neutral_at).is_some_and(|(number, at)| at.contains(&number));
        // Whisper's language and task are said by options.
        let is_whispers = key == "forced_decoder_ids" && is_of_whisper(entries.file);
        let is_off = is_off || is_whispers;
        let is_known = entries.used.contains(&key.as_str())
            || NEUTRAL.contains(&key.as_str())
            || OF_WHISPER.contains(&key.as_str());
        if !is_off && (neutral_at.is_some() || is_own && !is_known) {
            made.ignored.push(named(key, value));
        }
    }
}

fn is_of_whisper(file: Option<&Map<String, Json>>) -> bool {
    let has = |key: &str| file.is_some_and(|file| file.contains_key(key));
    has("no_timestamps_token_id") || has("max_target_positions")
}

#[expect(clippy::cast_possible_truncation, reason = "settings have single precision")]
fn single(value: f64) -> f32 {
    value as f32
}
