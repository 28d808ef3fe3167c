//! Special tokens: their ids, which are put around a text, and the chat template that uses them.
//!
//! They come from `tokenizer_config.json` and the post-processor of `tokenizer.json`, then
//! `config.json`, in the order and with the precedence of llama.cpp's converter; what these leave
//! open, from what is known otherwise.

use apr_core::{Error, Escaped, Result};
use apr_gguf::{Array, Value};
use serde_json::{Map, Value as Json};

use super::context::Context;
use super::hugging_face::TokenizerJson;
use super::tokens::Tokens;

/// Roles by the name of their settings, `bos_token`, with GGUF's key.
const ROLES: [(&str, &str); 7] = [
    ("bos", "bos_token_id"),
    ("eos", "eos_token_id"),
    ("unk", "unknown_token_id"),
    // So spelled in GGUF.
    ("sep", "seperator_token_id"),
    ("pad", "padding_token_id"),
    ("mask", "mask_token_id"),
    ("eot", "eot_token_id"),
];

/// Roles whose settings are read. `cls` no longer has a key of its own, but replaces `bos`.
const READ: [&str; 7] = ["bos", "eos", "unk", "sep", "pad", "cls", "mask"];

/// Chat templates by name; models have up to three.
const MAX_TEMPLATES: usize = 64;

/// The special tokens of a tokenizer.
#[derive(Debug, Default)]
pub(super) struct Special {
    ids: Vec<(&'static str, u64)>,
    /// Roles with whether their token is put before or behind a text.
    adds: Vec<(&'static str, bool)>,
    template: Option<Json>,
    lowercase: Option<bool>,
    strip_accents: Option<bool>,
}

impl Context<'_> {
    /// Writes ids of special tokens, which of them are put around a text, the chat template and
    /// what a normalizer does.
    pub(super) fn write_special(
        &mut self,
        json: Option<&TokenizerJson>,
        tokens: &Tokens,
    ) -> Result<Special> {
        let special = Special::read(self, json, tokens)?;
        special.write(self);
        Ok(special)
    }
}

impl Special {
    pub(super) fn read(
        context: &mut Context<'_>,
        json: Option<&TokenizerJson>,
        tokens: &Tokens,
    ) -> Result<Self> {
        let mut special = Self::default();
        let mut settings = Settings::new(&context.settings);
        if let Some(json) = json {
            special.read_normalizer(&json.normalizer);
            settings.complete();
            special.read_post_processor(&json.post_processor, &mut settings, context);
        }

        special.template = chat_template(context)?;
        let count = tokens.len() as u64;
        for role in settings.roles() {
            if let Some(&adds) =
                context.settings.get(&format!("add_{role}_token")).and_then(Json::as_bool).as_ref()
            {
                special.adds_by_default(role, adds);
                if special.adds.contains(&(role, !adds)) {
                    let (says, does) =
                        if adds { ("states", "does not") } else { ("denies", "does") };
                    context.warn(format!(
                        "tokenizer_config.json {says} that a {role} token is added, but the \
                         post-processor {does} add it: the post-processor counts"
                    ));
                }
            }
            let (Some(text), Some(json)) = (settings.text(role), json) else { continue };
            let token = json.added_tokens.iter().find(|token| token.content == text);
            special.set(role, token.map(|token| token.id).filter(|&id| id < count));
        }

        special.read_config(&settings, context, count);
        special.complete(&settings, context, tokens)?;
        Ok(special)
    }

    /// The first statement about a role counts.
    fn set(&mut self, role: &'static str, id: Option<u64>) {
        if self.id(role).is_none() {
            self.ids.extend(id.map(|id| (role, id)));
        }
    }

    pub(super) fn id(&self, role: &str) -> Option<u64> {
        self.ids.iter().find(|(there, _)| *there == role).map(|&(_, id)| id)
    }

    fn adds(&mut self, role: &'static str, adds: bool) {
        match self.adds.iter_mut().find(|(there, _)| *there == role) {
            Some(there) => there.1 = adds,
            None => self.adds.push((role, adds)),
        }
    }

    fn adds_by_default(&mut self, role: &'static str, adds: bool) {
        if self.adds.iter().all(|(there, _)| *there != role) {
            self.adds.push((role, adds));
        }
    }

    fn read_normalizer(&mut self, normalizer: &Json) {
        let flag = |name: &str| normalizer.get(name).and_then(Json::as_bool);
        match kind(normalizer) {
            "Lowercase" => self.lowercase = Some(true),
            "StripAccents" => self.strip_accents = Some(true),
            "BertNormalizer" => {
                self.lowercase = flag("lowercase").or(self.lowercase);
                self.strip_accents = flag("strip_accents").or(self.strip_accents);
            }
            "Sequence" => {
                list(normalizer, "normalizers").iter().for_each(|step| self.read_normalizer(step));
            }
            _ => {}
        }
    }

    fn read_post_processor(
        &mut self,
        processor: &Json,
        settings: &mut Settings,
        context: &mut Context<'_>,
    ) {
        match kind(processor) {
            "Sequence" => {
                list(processor, "processors")
                    .iter()
                    .for_each(|step| self.read_post_processor(step, settings, context));
            }
            "ByteLevel" => {
                self.adds_by_default("bos", false);
                self.adds_by_default("eos", false);
            }
            "RobertaProcessing" | "BertProcessing" => {
                let text = |name: &str| processor.get(name)?.get(0)?.as_str().map(str::to_owned);
                settings.default("cls", text("cls"));
                settings.default("sep", text("sep"));
                for role in ["bos", "eos", "sep"] {
                    self.adds(role, true);
                }
            }
            "TemplateProcessing" => self.read_template(processor, settings, context),
            _ => {}
        }
    }

    fn read_template(
        &mut self,
        processor: &Json,
        settings: &mut Settings,
        context: &mut Context<'_>,
    ) {
        let single = list(processor, "single");
        let several = single.len() > 1;
        let first = single.first().and_then(special_token).filter(|_| several);
        let last = single.last().and_then(special_token).filter(|_| several);
        if let Some(first) = first {
            settings.default("bos", Some(first.to_owned()));
            settings.default("cls", Some(first.to_owned()));
            let known = settings.is("bos", first) || settings.is("cls", first);
            if !known {
                let first = Escaped::short(first);
                context.warn(format!(
                    "the post-processor puts '{first}' before a text, which is not a bos token"
                ));
            }
            self.adds("bos", known);
        }

        if let Some(last) = last {
            settings.end_with(last);
            self.adds("eos", true);
        }

        if let Some(adds) = separator(list(processor, "pair"), first, last, settings) {
            self.adds("sep", adds);
            let eos = settings.text("eos").map(str::to_owned).filter(|_| adds);
            settings.default("sep", eos);
        }
    }

    fn read_config(&mut self, settings: &Settings, context: &mut Context<'_>, count: u64) {
        for role in settings.roles() {
            let key = format!("{role}_token_id");
            let nested = || context.config.get("text_config")?.get(&key);
            let Some(value) =
                context.config.get(&key).filter(|value| !value.is_null()).or_else(nested)
            else {
                continue;
            };
            let id = value.as_u64().filter(|&id| id < count);
            if id.is_none() && value.is_i64() && self.id(role).is_none() {
                let message =
                    format!("config.json: {key} is {value}, no id of {count} tokens: left out");
                context.warn(message);
            }

            self.set(role, id);
        }
    }

    /// Adds roles from `special_tokens_map.json`, `generation_config.json` and known tokens.
    fn complete(
        &mut self,
        settings: &Settings,
        context: &mut Context<'_>,
        tokens: &Tokens,
    ) -> Result<()> {
        let map = context.files.object("special_tokens_map.json")?.unwrap_or_default();
        let generation = context.files.object("generation_config.json")?.unwrap_or_default();
        for role in READ {
            if role == "cls" || self.id(role).is_some() {
                continue;
            }
            let text = settings.text(role).or_else(|| content(map.get(&format!("{role}_token"))?));
            let named = text.and_then(|text| tokens.find(text));
            let listed = || {
                generation
                    .get(&format!("{role}_token_id"))?
                    .as_u64()
                    .filter(|&id| id < tokens.len() as u64)
            };
            self.set(role, named.or_else(listed));
        }

        Ok(())
    }

    /// Writes the keys that the files do not set, if the tokenizer's behaviour requires them.
    ///
    /// This is the case if it differs from llama.cpp's defaults.
    pub(super) fn settle(
        &self,
        context: &mut Context<'_>,
        json: &TokenizerJson,
        bos: bool,
        eos: bool,
    ) {
        let (first, last) = ends(&json.post_processor);
        for (key, role, does, by_default) in
            [("add_bos_token", "bos", first, bos), ("add_eos_token", "eos", last, eos)]
        {
            if !context.has(key) && does != by_default && (self.id(role).is_some() || !does) {
                context.set(key, does);
            }
        }
    }

    /// Writes the id of a role that is not in the settings, unless it is llama.cpp's default.
    pub(super) fn write_missing(
        &self,
        context: &mut Context<'_>,
        role: &'static str,
        id: Option<u64>,
        defaults: &[(&str, u64)],
    ) {
        let Some(id) = id.filter(|&id| self.id(role).is_none() && !defaults.contains(&(role, id)))
        else {
            return;
        };
        let key = ROLES.iter().find(|(there, _)| *there == role).map(|&(_, key)| key);
        if let (Some(key), Ok(id)) = (key, u32::try_from(id)) {
            context.set(key, id);
        }
    }

    pub(super) fn write(&self, context: &mut Context<'_>) {
        for &(role, id) in &self.ids {
            let key = ROLES.iter().find(|(there, _)| *there == role).map(|&(_, key)| key);
            if let (Some(key), Ok(id)) = (key, u32::try_from(id)) {
                context.set(key, id);
            }
        }

        for &(role, adds) in &self.adds {
            if matches!(role, "bos" | "eos" | "sep") {
                context.set(&format!("add_{role}_token"), adds);
            }
        }

        self.write_chat_template(context);
        for (name, value) in [("lowercase", self.lowercase), ("strip_accents", self.strip_accents)]
        {
            if let Some(value) = value {
                context.set(&format!("normalizer.{name}"), value);
            }
        }
    }

    fn write_chat_template(&self, context: &mut Context<'_>) {
        const KEY: &str = "tokenizer.chat_template";

        let named = match &self.template {
            Some(Json::String(template)) => {
                return context.set_key(KEY.to_owned(), Value::from(template.as_str()));
            }
            Some(Json::Array(named)) => named,
            _ => return,
        };

        let mut default = None;
        let mut names = Vec::new();
        if named.len() > MAX_TEMPLATES {
            context.warn(format!("only the first {MAX_TEMPLATES} chat templates are kept"));
        }

        for entry in named.iter().take(MAX_TEMPLATES) {
            let Some((name, template)) = named_template(entry) else { continue };
            if name == "default" {
                default = Some(template);
            } else if !name.is_empty() {
                context.set_key(format!("{KEY}.{name}"), Value::from(template));
                names.push(name);
            }
        }

        if !names.is_empty() {
            context
                .set_key("tokenizer.chat_templates".to_owned(), Value::Array(Array::String(names)));
        }

        if let Some(default) = default {
            context.set_key(KEY.to_owned(), Value::from(default));
        }
    }
}

/// Name and text of one of several chat templates; the name as a key may have it.
fn named_template(entry: &Json) -> Option<(String, String)> {
    let text = |key: &str| entry.get(key).and_then(Json::as_str);
    let name =
        text("name")?.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    Some((name, text("template")?.to_owned()))
}

/// Texts by role, as `tokenizer_config.json` has them and the post-processor completes them.
struct Settings {
    texts: Vec<(&'static str, String)>,
    /// Roles beside the usual ones.
    more: Vec<&'static str>,
}

impl Settings {
    fn new(settings: &Map<String, Json>) -> Self {
        let text = |role: &'static str| {
            Some((role, content(settings.get(&format!("{role}_token"))?)?.to_owned()))
        };
        Self { texts: READ.into_iter().filter_map(text).collect(), more: Vec::new() }
    }

    fn roles(&self) -> Vec<&'static str> {
        READ.into_iter().chain(self.more.iter().copied()).collect()
    }

    fn text(&self, role: &str) -> Option<&str> {
        self.texts.iter().find(|(there, _)| *there == role).map(|(_, text)| text.as_str())
    }

    fn is(&self, role: &str, text: &str) -> bool {
        self.text(role) == Some(text)
    }

    fn default(&mut self, role: &'static str, text: Option<String>) {
        if self.text(role).is_none() {
            self.texts.extend(text.map(|text| (role, text)));
        }
    }

    /// BERT begins with its `cls` and ends with its `sep`.
    fn complete(&mut self) {
        for (role, stand_in) in [("bos", "cls"), ("eos", "sep")] {
            let text = self.text(stand_in).map(str::to_owned);
            self.default(role, text);
        }
    }

    /// Sets the last token of a text as `eos`.
    ///
    /// Another `eos` in the settings becomes the end of a turn.
    fn end_with(&mut self, last: &str) {
        if self.is("eos", last) {
            return;
        }
        if let Some(eos) = self.text("eos").map(str::to_owned) {
            self.more.push("eot");
            self.default("eot", Some(eos));
        }
        self.texts.retain(|(role, _)| *role != "eos");
        self.texts.push(("eos", last.to_owned()));
    }
}

/// Returns `true` if a separator is put between the texts of a pair.
///
/// `None` if there is no template for pairs.
fn separator(
    pair: &[Json],
    first: Option<&str>,
    last: Option<&str>,
    settings: &Settings,
) -> Option<bool> {
    let is = |step: Option<&Json>, text: Option<&str>| {
        text.is_some() && step.and_then(special_token) == text
    };
    let start = usize::from(is(pair.first(), first));
    let end = pair.len() - usize::from(is(pair.last(), last));
    let [a, between @ .., b] = pair.get(start..end)? else { return None };
    let sequence = |step: &Json| step.get("Sequence")?.get("id")?.as_str().map(str::to_owned);
    if sequence(a).as_deref() != Some("A")
        || sequence(b).as_deref() != Some("B")
        || between.is_empty()
    {
        return None;
    }
    let known = |step: Option<&Json>| {
        step.and_then(special_token)
            .is_some_and(|text| settings.is("sep", text) || settings.is("eos", text))
    };
    Some(
        (known(between.first()) && last.is_none()) || (between.len() == 2 && known(between.get(1))),
    )
}

/// Returns `true` for special tokens before and after a text.
pub(super) fn ends(processor: &Json) -> (bool, bool) {
    match kind(processor) {
        "Sequence" => list(processor, "processors")
            .iter()
            .map(ends)
            .fold((false, false), |(first, last), step| (first || step.0, last || step.1)),
        "RobertaProcessing" | "BertProcessing" => (true, true),
        "TemplateProcessing" => {
            let single = list(processor, "single");
            let special = |step: Option<&Json>| step.and_then(special_token).is_some();
            (special(single.first()), special(single.last()))
        }
        _ => (false, false),
    }
}

/// A chat template, or several by name.
fn chat_template(context: &Context<'_>) -> Result<Option<Json>> {
    if let Some(template @ (Json::String(_) | Json::Array(_))) =
        context.settings.get("chat_template")
    {
        return Ok(Some(template.clone()));
    }
    if let Some(template) = context.files.text("chat_template.jinja")? {
        return Ok(Some(Json::from(template)));
    }
    let template = context
        .files
        .object("chat_template.json")?
        .and_then(|mut file| file.remove("chat_template"));
    Ok(template.filter(|template| template.is_string() || template.is_array()))
}

/// Text of a token, written plainly or with its settings.
fn content(token: &Json) -> Option<&str> {
    token.as_str().or_else(|| token.get("content")?.as_str()).filter(|text| !text.is_empty())
}

fn special_token(step: &Json) -> Option<&str> {
    step.get("SpecialToken")?.get("id")?.as_str()
}

/// The `type` of a step of a pipeline; empty for none.
pub(super) fn kind(step: &Json) -> &str {
    step.get("type").and_then(Json::as_str).unwrap_or_default()
}

/// The steps that a step consists of.
pub(super) fn list<'a>(step: &'a Json, key: &str) -> &'a [Json] {
    step.get(key).and_then(Json::as_array).map_or(&[], Vec::as_slice)
}

/// An E001 of a file's contents.
pub(super) fn unreadable(file: &str, why: &str) -> Error {
    Error::format(Escaped::short(why).to_string()).in_file(file)
}
