//! Chats of files, and what their template gets besides messages.

use std::path::Path;

use apr_registry::Escaped;
use apr_run::{ChatFile, Data, Grammar, Message, TemplateOptions};

use crate::args::RunArgs;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::text_file::read_text;

/// Values for the chat template.
#[derive(Default)]
pub(super) struct Chat {
    /// The messages of `--messages`.
    pub(super) messages: Option<Vec<Message>>,
    pub(super) options: TemplateOptions,
}

impl Chat {
    /// Reads the files of `--messages` and `--tools`, and the values of `--template-arg`.
    pub(super) fn of(args: &RunArgs, context: &Context) -> Outcome<Self> {
        let has_options = args.tools.is_some() || !args.template_arg.is_empty();
        if has_options && args.messages.is_none() && !args.chat {
            let message = "--tools and --template-arg apply to chats: pass --chat or --messages";
            return Err(Failure::Usage(message.to_owned()));
        }
        let mut chat = Self::default();
        if let Some(path) = &args.messages {
            let file = of_file(path, ChatFile::from_json)?;
            if !file.ignored.is_empty() {
                let keys: Vec<_> =
                    file.ignored.iter().map(|key| Escaped::short(key).to_string()).collect();
                let name = path.display();
                context.printer.warn(&format!("{name}: not used: {}", keys.join(", ")));
            }
            chat.messages = Some(file.messages);
            chat.options.tools = file.tools;
            chat.options.documents = file.documents;
        }
        if let Some(path) = &args.tools {
            if chat.options.tools.is_some() {
                let message = "the file of --messages has tools of its own: remove --tools";
                return Err(Failure::Usage(message.to_owned()));
            }
            chat.options.tools = Some(of_file(path, ChatFile::tools_from_json)?);
        }
        for (name, value) in &args.template_arg {
            if matches!(name.as_str(), "messages" | "tools" | "documents") {
                let message = format!("--template-arg {name}: {name} are read from --messages");
                return Err(Failure::Usage(message));
            }
            if chat.options.arguments.iter().any(|(other, _)| other == name) {
                let name = Escaped::short(name);
                return Err(Failure::Usage(format!("--template-arg {name} is given twice")));
            }
            chat.options.arguments.push((name.clone(), argument(name, value)?));
        }
        Ok(chat)
    }
}

/// Returns the grammar that constrains the generated text.
pub(super) fn grammar(args: &RunArgs) -> Outcome<Option<Grammar>> {
    let of_file = |path: &Path, of: fn(String) -> Grammar| {
        Ok(Some(of(read_text(path)?).in_file(path.display().to_string())))
    };
    match (&args.json_schema, &args.regex, &args.grammar) {
        (Some(path), ..) => of_file(path, Grammar::json_schema),
        (_, _, Some(path)) => of_file(path, Grammar::rules),
        (_, pattern, _) => Ok(pattern.as_ref().map(Grammar::regex)),
    }
}

/// A value: JSON, or else a text.
fn argument(name: &str, value: &str) -> Outcome<Data> {
    if matches!(value, "True" | "False" | "None") {
        let json = if value == "None" { "null" } else { &value.to_lowercase() };
        let message = format!("--template-arg {name}: values are JSON: write {json}");
        return Err(Failure::Usage(message));
    }
    Ok(Data::from_json(value).unwrap_or_else(|_| Data::Text(value.to_owned())))
}

fn of_file<T>(path: &Path, read: impl Fn(&str) -> apr_registry::Result<T>) -> Outcome<T> {
    Ok(read(&read_text(path)?).map_err(|error| error.in_file(path.display()))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_json_or_texts() {
        assert_eq!(argument("a", "false").unwrap(), Data::Bool(false));
        assert_eq!(argument("a", "\"2\"").unwrap(), Data::Text("2".to_owned()));
        assert_eq!(argument("a", "high").unwrap(), Data::Text("high".to_owned()));
        for (python, json) in [("True", "true"), ("None", "null")] {
            let Err(Failure::Usage(message)) = argument("a", python) else { panic!("{python}") };
            assert!(message.ends_with(json), "{message}");
        }
    }
}
