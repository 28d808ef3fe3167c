//! Inputs of a trace, from the arguments of the command line.

use apr_run::Facts;
use apr_trace::Payload;

use crate::args::TraceArgs;
use crate::commands::run::check_vocabulary;
use crate::commands::run::given::{Asked, Given, read_media};
use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// Returns the input for a model.
pub(super) fn of(args: &TraceArgs, facts: &Facts, context: &Context) -> Outcome<Payload> {
    let prompts: Vec<String> = args.prompt.iter().cloned().collect();
    let asked = Asked {
        files: &args.input,
        prompts: &prompts,
        tokens: &args.tokens,
        by_lines: false,
        is_stdin_taken: [Some(&args.model), args.other.as_ref()]
            .into_iter()
            .flatten()
            .any(|model| model.as_os_str() == "-"),
    };
    let mut payload = of_asked(&asked, facts, context)?;
    if let Payload::Text { chat, context, .. } = &mut payload {
        *chat = args.chat.then(|| args.system.clone());
        context.clone_from(&args.context);
    }
    Ok(payload)
}

/// Returns the one requested input.
pub(in crate::commands) fn of_asked(
    asked: &Asked<'_>,
    facts: &Facts,
    context: &Context,
) -> Outcome<Payload> {
    check_vocabulary("--tokens", asked.tokens, facts)?;
    let given = Given::of(asked, context)?;
    if given.texts.len() + given.sounds.len() > 1 || given.pictures.len() > 1 {
        let message = "a trace has one input: pass one text, audio file or image";
        return Err(Failure::Usage(message.to_owned()));
    }

    let file = |path: &std::path::Path| -> Outcome<_> {
        Ok((path.display().to_string(), read_media(path, context)?))
    };
    if let Some(path) = given.sounds.first() {
        let (name, bytes) = file(path)?;
        return Ok(Payload::Audio { name, bytes });
    }
    if let Some(path) = given.pictures.first() {
        let (name, bytes) = file(path)?;
        return Ok(Payload::Image { name, bytes, text: given.texts.first().cloned() });
    }
    if !given.arrays.is_empty() {
        let is_only_file = asked.files.len() == 1;
        return Ok(Payload::Arrays { arrays: given.arrays, is_only_file });
    }
    if !asked.tokens.is_empty() {
        return Ok(Payload::Tokens(asked.tokens.to_vec()));
    }
    let Some(prompt) = given.texts.first() else {
        let message = "nothing to trace: pass --prompt TEXT, --tokens IDS or --input FILE";
        return Err(Failure::Usage(message.to_owned()));
    };
    Ok(Payload::Text { prompt: prompt.clone(), chat: None, context: None })
}
