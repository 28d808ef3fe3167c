//! BPE on bytes: merges by rank, on the pieces that `pre` splits a text into.

use apr_core::{Error, Escaped, Result};
use apr_gguf::{Array, Value};
use serde_json::Value as Json;

use super::context::Context;
use super::hugging_face::{AddedToken, Merge, TokenizerJson, Vocab};
use super::pre;
use super::special::{kind, list};
use super::tokens::{ADDED_SCORE, NORMAL, Tokens};

pub(super) fn from_tokenizer_json(context: &mut Context<'_>, json: &TokenizerJson) -> Result<()> {
    check_model(context, json)?;
    let pre = find_pre(context, json)?;
    let known = pre::named(&pre);
    if let Some(known) = known.filter(|known| known.ignore_merges != json.model.ignore_merges) {
        let (takes, merges) =
            ("takes a piece that is a token whole", "merges every piece from its bytes");
        let (here, there) = if known.ignore_merges { (merges, takes) } else { (takes, merges) };
        context.warn(format!(
            "the tokenizer {here}, llama.cpp with '{pre}' {there}: a token that merges don't form \
             differs"
        ));
    }

    if known.is_some_and(|known| known.splits_marks) {
        context.warn(
            "llama.cpp ends words at combining marks, as of Thai and Hindi: such texts \
            get other ids",
        );
    }

    let mut tokens = read_tokens(context, json)?;
    context.write_tokens("gpt2", &pre, &mut tokens, false);
    write_merges(context, &json.model.merges);
    let special = context.write_special(Some(json), &tokens)?;
    special.settle(context, json, known.is_some_and(|known| known.adds_bos), false);
    write_for_architecture(context, &tokens);
    Ok(())
}

/// The two files of models from before `tokenizer.json`.
pub(super) fn from_vocab_json(context: &mut Context<'_>) -> Result<()> {
    let class = context.settings.get("tokenizer_class").and_then(Json::as_str).unwrap_or_default();
    let by_class = match class.trim_end_matches("Fast") {
        "Qwen2Tokenizer" => "qwen2",
        "GPT2Tokenizer" | "CodeGenTokenizer" if context.architecture == "phi2" => "phi-2",
        "GPT2Tokenizer" | "CodeGenTokenizer" => "gpt-2",
        "RobertaTokenizer" | "LongformerTokenizer" => "roberta-bpe",
        _ if context.architecture == "gpt2" => "gpt-2",
        _ => {
            let Some(pre) = context.pre else {
                let message = "missing tokenizer.json, which states how a text is split";
                return Err(Error::format(message).in_file("vocab.json"));
            };
            pre
        }
    };

    let pre = context.pre.unwrap_or(by_class);
    let Some(Vocab::Ids(vocab)) = context.files.json("vocab.json")? else {
        return Err(Error::format("it is not a map of tokens to ids").in_file("vocab.json"));
    };
    let added = added_beside(context)?;
    let mut tokens = context
        .padding("vocab.json", vocab.iter().map(|(_, id)| *id).chain(added.iter().map(|t| t.id)))?;
    fill(context, "vocab.json", &mut tokens, vocab)?;
    let dropped = added.iter().filter(|token| !tokens.set_added(token, ADDED_SCORE)).count();
    context.check_added(&added, dropped);
    let merges = read_merges_txt(context)?;
    context.write_tokens("gpt2", pre, &mut tokens, false);
    write_merges(context, &merges);
    context.write_special(None, &tokens)?;
    write_for_architecture(context, &tokens);
    Ok(())
}

/// Writes the keys that llama.cpp's converter adds for some models.
fn write_for_architecture(context: &mut Context<'_>, tokens: &Tokens) {
    match context.architecture {
        // Granite's small models.
        "llama" if tokens.len() == 49152 => context.set("add_bos_token", false),
        "bert" => {
            let types = context
                .config
                .get("type_vocab_size")
                .and_then(Json::as_u64)
                .and_then(|n| u32::try_from(n).ok());
            context.set("token_type_count", types.unwrap_or(1));
        }
        _ => {}
    }
}

fn check_model(context: &mut Context<'_>, json: &TokenizerJson) -> Result<()> {
    let has = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    if has(&json.model.continuing_subword_prefix) || has(&json.model.end_of_word_suffix) {
        let message =
            "llama.cpp's BPE does not support characters that mark where a word continues or ends";
        return Err(Error::format(message).in_file("tokenizer.json"));
    }
    check_normalizer(context, &json.normalizer)?;
    if adds_prefix(&json.pre_tokenizer) {
        context.warn("llama.cpp does not put a space before a text: its first word gets other ids");
    }
    Ok(())
}

/// Normalizers that change little are warned of, others refused.
pub(super) fn check_normalizer(context: &mut Context<'_>, normalizer: &Json) -> Result<()> {
    match kind(normalizer) {
        "" => Ok(()),
        "Sequence" => list(normalizer, "normalizers")
            .iter()
            .try_for_each(|step| check_normalizer(context, step)),
        form @ ("NFC" | "NFD" | "NFKC" | "NFKD") => {
            context.warn(format!(
                "llama.cpp does not bring text to {form}: one that is in another \
                    form gets other ids"
            ));
            Ok(())
        }
        other => context.refuse(format!(
            "llama.cpp's BPE does not support the normalizer {}",
            Escaped::short(other)
        )),
    }
}

fn adds_prefix(pre_tokenizer: &Json) -> bool {
    match kind(pre_tokenizer) {
        "Sequence" => list(pre_tokenizer, "pretokenizers").iter().any(adds_prefix),
        // The library's default is true.
        "ByteLevel" => {
            pre_tokenizer.get("add_prefix_space").and_then(Json::as_bool).unwrap_or(true)
        }
        _ => false,
    }
}

fn find_pre(context: &Context<'_>, json: &TokenizerJson) -> Result<String> {
    if let Some(pre) = context.pre {
        return Ok(pre.to_owned());
    }

    let nfc = has_nfc(&json.normalizer);
    let found =
        pre::recognize(&json.pre_tokenizer, context.architecture, json.model.ignore_merges, nfc);
    found.map(str::to_owned).map_err(|what| {
        if what.is_empty() {
            let message = "it has no pre-tokenizer: a text is not split into words, for which \
                llama.cpp has no name";
            return Error::format(message).in_file("tokenizer.json");
        }
        let what = Escaped(&what).to_string();
        let message = format!("it splits a text by {what}, for which llama.cpp has no known name");
        Error::format(message).in_file("tokenizer.json")
    })
}

fn has_nfc(normalizer: &Json) -> bool {
    kind(normalizer) == "NFC" || list(normalizer, "normalizers").iter().any(has_nfc)
}

/// Tokens of the vocabulary and those beside it, which win.
pub(super) fn read_tokens(context: &mut Context<'_>, json: &TokenizerJson) -> Result<Tokens> {
    const FILE: &str = "tokenizer.json";
    let Vocab::Ids(vocab) = &json.model.vocab else {
        return Err(Error::format("its vocabulary is not a map of tokens to ids").in_file(FILE));
    };
    let added = json.added_tokens.iter().map(|token| token.id);
    let mut tokens = context.padding(FILE, vocab.iter().map(|(_, id)| *id).chain(added))?;
    fill(context, FILE, &mut tokens, vocab.iter().cloned())?;
    let dropped =
        json.added_tokens.iter().filter(|token| !tokens.set_added(token, ADDED_SCORE)).count();
    context.check_added(&json.added_tokens, dropped);
    Ok(tokens)
}

/// Fills slots with tokens of a vocabulary.
pub(super) fn fill(
    context: &Context<'_>,
    file: &str,
    tokens: &mut Tokens,
    vocab: impl IntoIterator<Item = (String, u64)>,
) -> Result<()> {
    for (text, id) in vocab {
        let slot = usize::try_from(id).ok().and_then(|id| tokens.types.get(id));
        if slot.is_some_and(|&token_type| token_type == NORMAL) {
            let message =
                format!("two tokens have the id {id}, one is '{}'", Escaped::short(&text));
            return Err(Error::format(message).in_file(file));
        }
        if !tokens.set(id, text, 0.0, NORMAL) {
            let rows = apr_core::counted(context.rows.unwrap_or_default(), "row");
            return Err(Error::format(format!(
                "its id {id} is beyond the {rows} of the embedding"
            ))
            .in_file(file));
        }
    }

    Ok(())
}

/// Tokens that other files than the vocabulary list.
pub(super) fn added_beside(context: &Context<'_>) -> Result<Vec<AddedToken>> {
    let plain = |(content, id)| AddedToken {
        id,
        content,
        special: false,
        lstrip: false,
        rstrip: false,
        single_word: false,
    };

    let mut added = match context.files.json("added_tokens.json")? {
        Some(Vocab::Ids(tokens)) => tokens.into_iter().map(plain).collect(),
        _ => Vec::new(),
    };
    added.extend(decoder_tokens(context)?);
    Ok(added)
}

/// `added_tokens_decoder` of `tokenizer_config.json`, by id.
pub(super) fn decoder_tokens(context: &Context<'_>) -> Result<Vec<AddedToken>> {
    const FILE: &str = "tokenizer_config.json";

    let Some(decoder) = context.settings.get("added_tokens_decoder").and_then(Json::as_object)
    else {
        return Ok(Vec::new());
    };
    let token = |(id, token): (&String, &Json)| {
        let (id, content) = (id.parse().ok()?, token.get("content")?.as_str()?.to_owned());
        let flag = |name: &str| token.get(name).and_then(Json::as_bool).unwrap_or_default();
        let (lstrip, rstrip, single_word) = (flag("lstrip"), flag("rstrip"), flag("single_word"));
        Some(AddedToken { id, content, special: flag("special"), lstrip, rstrip, single_word })
    };

    let mut tokens: Vec<AddedToken> = decoder
        .iter()
        .map(|entry| {
            token(entry).ok_or_else(|| {
                Error::format("its added_tokens_decoder holds no tokens by id").in_file(FILE)
            })
        })
        .collect::<Result<_>>()?;
    tokens.sort_by_key(|token| token.id);
    Ok(tokens)
}

fn read_merges_txt(context: &Context<'_>) -> Result<Vec<Merge>> {
    const FILE: &str = "merges.txt";

    let Some(text) = context.files.text(FILE)? else {
        return Err(Error::format("missing, and vocab.json requires it").in_file(FILE));
    };
    let lines = text.lines().enumerate().filter(|(number, line)| {
        // Only the first line may be the version; elsewhere a `#` begins a token.
        let heading = *number == 0 && line.starts_with('#');
        !heading && !line.trim().is_empty()
    });
    let merge = |(number, line): (usize, &str)| {
        let malformed =
            || Error::format(format!("line {} is not two tokens", number + 1)).in_file(FILE);
        Merge::parse(line.trim_end()).ok_or_else(malformed)
    };
    lines.map(merge).collect()
}

/// llama.cpp needs the list, even an empty one.
fn write_merges(context: &mut Context<'_>, merges: &[Merge]) {
    // A space is the letter of one, as bytes are letters.
    let letters = |token: &str| token.replace(' ', "\u{120}");
    let merges =
        merges.iter().map(|Merge(left, right)| format!("{} {}", letters(left), letters(right)));
    context.set("merges", Value::Array(Array::String(merges.collect())));
}
