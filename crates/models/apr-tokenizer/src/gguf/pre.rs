//! How a text is split before its bytes are merged: `tokenizer.ggml.pre` names one of the ways that
//! llama.cpp knows.
//!
//! llama.cpp's converter recognizes a tokenizer by the ids of a test text; here it is recognized by
//! the definition of the splitting in `tokenizer.json`. The table pairs each name with the
//! definition of the models that llama.cpp has it for: its patterns are facts about those models'
//! files, and those that llama.cpp's `llama-vocab.cpp` (MIT) splits by. Spellings that split alike
//! are brought to one: see [`canonical`].

use std::borrow::Cow;

use serde_json::{Value, json};

use super::special::{kind, list};

/// Splitting pattern of GPT-2, and the default of `ByteLevel`.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
pub(crate) const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
);
pub(crate) const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const QWEN35: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}",
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const GPT4O: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const DEEPSEEK_V3: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
    r##"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
);
/// Unicode's cased letters, as DeepSeek LLM lists them.
const CASED: &str = concat!(
    r"\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}",
    r"\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}",
    r"\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}",
    r"\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}",
    r"\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}",
    r"\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}",
    r"\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}",
    r"\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}",
    r"\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}",
    r"\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}",
    r"\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}",
    r"\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}",
    r"\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}",
    r"\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}",
    r"\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+",
);
const HAN: &str = "[一-龥ࠀ-一가-\u{d7ff}]+";
const BLOOM: &str = r" ?[^(\s|[.,!?…。，、।۔،])]+";

/// A step of splitting.
#[derive(Debug, Clone, PartialEq)]
enum Step<'a> {
    /// Matches and the texts between them are pieces.
    Split(Cow<'a, str>),
    /// Digits are pieces, each alone or as many as follow each other.
    Digits { each: bool },
    /// Punctuation characters that follow each other are pieces.
    Punctuation,
    /// Bytes become letters.
    Bytes,
}

const fn split(pattern: &'static str) -> Step<'static> {
    Step::Split(Cow::Borrowed(pattern))
}

const DIGIT: Step<'static> = Step::Digits { each: true };
const NUMBER: Step<'static> = Step::Digits { each: false };

/// A pre-tokenizer that llama.cpp supports.
pub(super) struct Pre {
    /// All names of the pre-tokenizer. The first is used unless the files indicate another one.
    names: &'static [&'static str],
    /// Architectures, by GGUF's name, with theirs.
    architectures: &'static [(&'static str, &'static str)],
    steps: &'static [Step<'static>],
    /// `true` if a piece that is a token is not merged from its bytes.
    pub(super) ignore_merges: bool,
    /// `true` if llama.cpp adds a BOS token to a text unless a key states otherwise.
    pub(super) adds_bos: bool,
    /// `true` if the models' tokenizers normalize text to NFC, which llama.cpp does not.
    nfc: bool,
    /// `true` if llama.cpp's pattern, unlike the models', ends a word at a combining mark.
    pub(super) splits_marks: bool,
}

const PLAIN: Pre = Pre {
    names: &[],
    architectures: &[],
    steps: &[],
    ignore_merges: false,
    adds_bos: false,
    nfc: false,
    splits_marks: false,
};

const KNOWN: &[Pre] = &[
    Pre {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        architectures: &[("falcon-h1", "falcon-h1"), ("lfm2", "lfm2"), ("lfm2moe", "lfm2")],
        steps: &[split(LLAMA3), Step::Bytes],
        ignore_merges: true,
        adds_bos: true,
        ..PLAIN
    },
    Pre {
        names: &["glm4", "glm5"],
        architectures: &[("chatglm", "glm4")],
        steps: &[split(LLAMA3), Step::Bytes],
        ignore_merges: true,
        ..PLAIN
    },
    Pre {
        names: &["dbrx", "smaug-bpe", "chatglm-bpe"],
        architectures: &[("llama", "smaug-bpe"), ("chatglm", "chatglm-bpe")],
        steps: &[split(LLAMA3), Step::Bytes],
        ..PLAIN
    },
    Pre {
        names: &["qwen2"],
        architectures: &[
            ("llama", "qwen2"),
            ("qwen2moe", "qwen2"),
            ("qwen3", "qwen2"),
            ("qwen3moe", "qwen2"),
        ],
        steps: &[split(QWEN2), Step::Bytes],
        nfc: true,
        ..PLAIN
    },
    Pre {
        names: &[
            "stablelm2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "hunyuan",
            "solar-open",
            "megrez",
            "grok-2",
            "bailingmoe",
            "bailingmoe2",
            "llada-moe",
        ],
        architectures: &[
            ("stablelm", "stablelm2"),
            ("hunyuan-moe", "hunyuan"),
            ("grok", "grok-2"),
            ("bailingmoe", "bailingmoe"),
            ("bailingmoe2", "bailingmoe2"),
            ("llada-moe", "llada-moe"),
        ],
        steps: &[split(QWEN2), Step::Bytes],
        ..PLAIN
    },
    Pre { names: &["qwen35"], steps: &[split(QWEN35), Step::Bytes], nfc: true, ..PLAIN },
    Pre {
        names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        architectures: &[("llama4", "llama4"), ("minimax-m2", "minimax-m2")],
        steps: &[split(GPT4O), Step::Bytes],
        splits_marks: true,
        ..PLAIN
    },
    Pre {
        names: &["tekken"],
        steps: &[split(TEKKEN), Step::Bytes],
        ignore_merges: true,
        adds_bos: true,
        splits_marks: true,
        ..PLAIN
    },
    Pre {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        architectures: &[("hunyuan-dense", "hunyuan-dense")],
        steps: &[split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK_V3), Step::Bytes],
        ..PLAIN
    },
    Pre {
        names: &["deepseek-coder"],
        steps: &[
            split(r"[\r\n]"),
            split(r"\s?\p{L}+"),
            split(r"\s?\p{P}+"),
            split(HAN),
            DIGIT,
            Step::Bytes,
        ],
        ..PLAIN
    },
    Pre {
        names: &["deepseek-llm"],
        steps: &[
            split(r"[\r\n]"),
            split(CASED),
            split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
            split(r"\s+$"),
            split(HAN),
            DIGIT,
            Step::Bytes,
        ],
        ..PLAIN
    },
    Pre {
        names: &["falcon"],
        steps: &[Step::Punctuation, split(GPT2), Step::Bytes, NUMBER, split("[0-9][0-9][0-9]")],
        ..PLAIN
    },
    Pre { names: &["command-r"], steps: &[DIGIT, split(GPT2), Step::Bytes], nfc: true, ..PLAIN },
    Pre {
        names: &["starcoder", "refact", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"],
        architectures: &[
            ("llama", "smollm"),
            ("refact", "refact"),
            ("granite", "refact"),
            ("codeshell", "codeshell"),
            ("exaone", "exaone"),
        ],
        steps: &[DIGIT, split(GPT2), Step::Bytes],
        ..PLAIN
    },
    Pre { names: &["mpt", "olmo"], steps: &[split(GPT2), Step::Bytes], nfc: true, ..PLAIN },
    Pre {
        names: &[
            "gpt-2",
            "phi-2",
            "roberta-bpe",
            "modern-bert",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v1-en",
            "jina-v2-code",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
        ],
        architectures: &[
            ("gpt2", "gpt-2"),
            ("phi2", "phi-2"),
            ("bert", "roberta-bpe"),
            ("modern-bert", "modern-bert"),
            ("jais", "jais"),
            ("exaone4", "exaone4"),
        ],
        steps: &[split(GPT2), Step::Bytes],
        ..PLAIN
    },
    Pre {
        names: &["bloom", "poro-chat", "gpt3-finnish"],
        steps: &[split(BLOOM), Step::Bytes],
        ..PLAIN
    },
    Pre { names: &["viking"], steps: &[split(BLOOM), DIGIT, Step::Bytes], ..PLAIN },
    Pre {
        names: &["seed-coder"],
        steps: &[
            split(concat!(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
                r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
            )),
            Step::Bytes,
        ],
        ..PLAIN
    },
    Pre {
        names: &["jais-2"],
        steps: &[
            split(concat!(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
                r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)",
                r"|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)",
                r"|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
            )),
            Step::Bytes,
        ],
        ..PLAIN
    },
    Pre {
        names: &["exaone-moe"],
        steps: &[
            split(concat!(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
                r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}",
                r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]+|\s+(?!\S)|\s+",
            )),
            Step::Bytes,
        ],
        ..PLAIN
    },
    Pre {
        names: &["minicpm5"],
        steps: &[
            split(r"\p{N}{1,3}"),
            split(concat!(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+",
                r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            )),
            Step::Bytes,
        ],
        ignore_merges: true,
        ..PLAIN
    },
    Pre {
        names: &["tiny_aya", "cohere2moe"],
        steps: &[split(r"\d{1,3}(?=(?:\d{3})*\b)"), split(GPT4O), Step::Bytes],
        ..PLAIN
    },
    // What llama.cpp splits by where a file names nothing.
    Pre {
        names: &["default"],
        steps: &[
            split(r"[\p{P}\$\+<=>\^~\|]+"),
            split(GPT2),
            NUMBER,
            split("[0-9][0-9][0-9]"),
            Step::Bytes,
        ],
        ..PLAIN
    },
];

/// The way of splitting that has this name.
pub(super) fn named(name: &str) -> Option<&'static Pre> {
    KNOWN.iter().find(|pre| pre.names.contains(&name))
}

/// Name of the way in which a `pre_tokenizer` splits, for a model of this architecture.
///
/// # Errors
/// What there is of it that llama.cpp has under no name.
pub(super) fn recognize(
    pre_tokenizer: &Value,
    architecture: &str,
    ignore_merges: bool,
    nfc: bool,
) -> Result<&'static str, String> {
    let mut steps = Vec::new();
    read_steps(pre_tokenizer, &mut steps)?;

    // `default` is what llama.cpp does for lack of a name, and no model's own way.
    let alike: Vec<_> =
        KNOWN.iter().filter(|pre| pre.steps == steps && pre.names != ["default"]).collect();
    let own = |pre: &Pre| {
        let listed = pre.architectures.iter().any(|(there, _)| *there == architecture);
        listed || pre.names.iter().any(|name| architecture.starts_with(name))
    };
    let mut ordered = alike;
    ordered.sort_by_key(|pre| (pre.ignore_merges != ignore_merges, !own(pre), pre.nfc != nfc));
    let Some(pre) = ordered.first() else { return Err(describe(&steps)) };
    let own =
        pre.architectures.iter().find(|(there, _)| *there == architecture).map(|&(_, name)| name);
    let same = pre.names.iter().find(|name| **name == architecture).copied();
    Ok(own.or(same).unwrap_or(pre.names[0]))
}

fn describe(steps: &[Step<'_>]) -> String {
    let step = |step: &Step<'_>| match step {
        Step::Split(pattern) => format!("the pattern {pattern}"),
        Step::Digits { each: true } => "single digits".to_owned(),
        Step::Digits { each: false } => "numbers".to_owned(),
        Step::Punctuation => "punctuation".to_owned(),
        Step::Bytes => "bytes".to_owned(),
    };
    steps.iter().map(step).collect::<Vec<_>>().join(", then ")
}

/// Flattens sequences.
fn read_steps(step: &Value, steps: &mut Vec<Step<'_>>) -> Result<(), String> {
    let flag =
        |name: &str, default: bool| step.get(name).and_then(Value::as_bool).unwrap_or(default);
    match kind(step) {
        // The JSON was parsed, so that it is no more than 128 levels deep (serde_json's limit).
        "Sequence" => {
            list(step, "pretokenizers").iter().try_for_each(|step| read_steps(step, steps))?;
        }
        "ByteLevel" => {
            if flag("use_regex", true) {
                steps.push(Step::Split(Cow::Borrowed(GPT2)));
            }
            steps.push(Step::Bytes);
        }
        "Digits" => steps.push(Step::Digits { each: flag("individual_digits", false) }),
        "Punctuation" if step.get("behavior").and_then(Value::as_str) == Some("Contiguous") => {
            steps.push(Step::Punctuation);
        }
        "Split" => steps.push(read_split(step)?),
        // There is none.
        "" => {}
        other => return Err(format!("the step {other}")),
    }

    Ok(())
}

fn read_split(step: &Value) -> Result<Step<'static>, String> {
    let pattern = step.get("pattern").and_then(|pattern| pattern.get("Regex")?.as_str());
    let behaviour = step.get("behavior").and_then(Value::as_str).unwrap_or_default();
    let invert = step.get("invert").and_then(Value::as_bool).unwrap_or_default();

    // All of a text is matched by those patterns that models remove the rest of.
    let isolated = matches!((behaviour, invert), ("Isolated", _) | ("Removed", true));
    match pattern.map(canonical) {
        Some(pattern) if isolated => Ok(match pattern.as_str() {
            r"\p{N}" | r"\d" => DIGIT,
            r"\p{N}+" | r"\d+" => NUMBER,
            _ => Step::Split(Cow::Owned(pattern)),
        }),
        Some(pattern) => Err(format!("the pattern {pattern} with the behavior {behaviour}")),
        None => Err("a split by a text".to_owned()),
    }
}

/// One spelling of patterns that split alike.
///
/// Possessive quantifiers match the same where what follows them begins with nothing they match, as
/// in all these patterns; `\s*` takes all line breaks there are, so that one or several behind it
/// are the same.
fn canonical(pattern: &str) -> String {
    const SPELLINGS: [(&str, &str); 10] = [
        ("\r", r"\r"),
        ("\n", r"\n"),
        (
            "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])",
            "(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        ),
        ("'(?i:[sdmt]|ll|ve|re)", "(?i:'s|'t|'re|'ve|'m|'ll|'d)"),
        ("'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])", "(?i:'s|'t|'re|'ve|'m|'ll|'d)"),
        ("]?+", "]?"),
        ("]++", "]+"),
        ("]*+", "]*"),
        (r"|\s*[\r\n]|", r"|\s*[\r\n]+|"),
        (r"\p{N}{1}", r"\p{N}"),
    ];

    // Too long a list of letters to be spelled in one way by all.
    if pattern.starts_with(r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯ") {
        return CASED.to_owned();
    }

    SPELLINGS.iter().fold(pattern.to_owned(), |pattern, (from, to)| pattern.replace(from, to))
}

impl Pre {
    /// The `pre_tokenizer` of `tokenizer.json`.
    pub(super) fn pre_tokenizer(&self) -> Value {
        let bytes = |regex: bool| {
            json!({
                "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                "use_regex": regex,
            })
        };

        let mut steps = Vec::new();
        let mut rest = self.steps;
        while let [step, after @ ..] = rest {
            rest = after;
            steps.push(match (step, after) {
                // `ByteLevel` splits by GPT-2's pattern itself.
                (Step::Split(pattern), [Step::Bytes, after @ ..]) if pattern == GPT2 => {
                    rest = after;
                    bytes(true)
                }
                (Step::Split(pattern), _) => {
                    json!({
                        "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated",
                        "invert": false,
                    })
                }
                (Step::Digits { each }, _) => json!({
                    "type": "Digits", "individual_digits": each,
                }),
                (Step::Punctuation, _) => json!({
                    "type": "Punctuation", "behavior": "Contiguous",
                }),
                (Step::Bytes, _) => bytes(false),
            });
        }

        match steps.len() {
            1 => steps.remove(0),
            _ => json!({ "type": "Sequence", "pretokenizers": steps }),
        }
    }

    /// The `normalizer` of `tokenizer.json`.
    pub(super) fn normalizer(&self) -> Value {
        if self.nfc { json!({ "type": "NFC" }) } else { Value::Null }
    }
}

#[cfg(test)]
mod tests;
