//! A conversation on a terminal.

mod lines;

use std::io::Write;
use std::sync::atomic::Ordering;

use apr_registry::Escaped;
use apr_run::{Completion, Conversation, Generator, RunResult};

use self::lines::{Lines, Typed};
use super::answers::Answers;
use super::job::Job;
use super::{completion, generation, timing};
use crate::documents::FailureDocument;
use crate::failure::{Failure, Outcome};
use crate::printer::DIM;
use crate::signals;

/// Commands and keys of a conversation, with descriptions.
const COMMANDS: [(&str, &str); 6] = [
    ("/reset", "forget the history"),
    ("/system TEXT", "set the system prompt; without TEXT, remove it"),
    ("/help", "list these commands"),
    ("/quit", "end the conversation; so do Ctrl-D and Ctrl-C in an empty line"),
    ("Ctrl-C", "end the answer under way, or drop the line"),
    ("a space", "in front of a message that begins with /"),
];

/// Meaning of a line.
#[derive(Debug, PartialEq, Eq)]
enum Said<'l> {
    Nothing,
    Message(&'l str),
    Reset,
    System(&'l str),
    Help,
    Quit,
    Unknown(&'l str),
}

impl<'l> Said<'l> {
    fn of(line: &'l str) -> Self {
        if line.trim().is_empty() {
            return Self::Nothing;
        }
        if !line.starts_with('/') {
            return Self::Message(line.strip_prefix(' ').unwrap_or(line));
        }
        let (command, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match (command, rest.trim()) {
            ("/system", text) => Self::System(text),
            ("/reset", "") => Self::Reset,
            ("/help", "") => Self::Help,
            ("/quit", "") => Self::Quit,
            _ => Self::Unknown(command),
        }
    }
}

/// Answers the typed lines until the input ends.
pub(super) fn run(job: &Job<'_>) -> Outcome {
    check(job)?;
    let generator = Generator::of(job.runner, completion::options(job))?;
    generation::warn_idle(job, generator.settings());
    let mut chat = Conversation::new(generator, job.args.system.clone())?;
    signals::note_interrupts(&job.context.interrupt)?;
    let loaded = timing::Loaded::of(job);
    let mut lines = Lines::new()?;
    note(job, &format!("{}: /help lists commands, Ctrl-D ends the conversation", job.name))?;
    loop {
        let line = match lines.read()? {
            Typed::Line(line) => line,
            Typed::Dropped => continue,
            Typed::End => return Ok(()),
        };
        match Said::of(&line) {
            Said::Nothing => {}
            Said::Message(message) => answer(job, &mut chat, message, &loaded)?,
            Said::Reset => {
                chat.reset();
                note(job, "the history is empty")?;
            }
            Said::System("") => {
                chat.set_system(None);
                note(job, "no system prompt")?;
            }
            Said::System(text) => {
                chat.set_system(Some(text.to_owned()));
                note(job, "the system prompt counts from the next message on")?;
            }
            Said::Help => {
                for (command, purpose) in COMMANDS {
                    note(job, &format!("{command:14}{purpose}"))?;
                }
            }
            Said::Quit => return Ok(()),
            Said::Unknown(command) => {
                job.warn(&format!("no command '{}': /help lists them", Escaped::short(command)));
            }
        }
    }
}

/// Rejects options that would have no effect.
fn check(job: &Job<'_>) -> Outcome {
    let args = job.args;
    let idle = [
        ("--output", args.output.is_some()),
        ("--want", !args.want.is_empty()),
        ("--prompt-cache", args.prompt_cache.is_some()),
        ("--separator", args.separator.is_some()),
        ("--truncate", args.truncate),
    ];
    let idle: Vec<&str> = idle.iter().filter(|(_, given)| *given).map(|(name, _)| *name).collect();
    if !idle.is_empty() {
        let message = format!(
            "{} can't be used in a conversation; pass --prompt for a single answer",
            idle.join(", ")
        );
        return Err(Failure::Usage(message));
    }
    super::check_options(args, false, true)
}

/// Answers one message. An error in the message is reported, and the conversation continues.
fn answer(
    job: &Job<'_>,
    chat: &mut Conversation<'_>,
    message: &str,
    loaded: &timing::Loaded,
) -> Outcome {
    // Ctrl-C may have come while nothing ran.
    let interrupt = &job.context.interrupt.0;
    interrupt.store(false, Ordering::Relaxed);
    let answers = Answers::of(job);
    let (mut written, mut is_closed) = (String::new(), false);
    let made = chat.turn(message, &mut |piece| {
        written.push_str(piece);
        answers.write(piece.as_bytes()).inspect_err(|_| is_closed = true)
    });
    interrupt.store(false, Ordering::Relaxed);
    if is_closed {
        return made.map(drop).map_err(Failure::from);
    }
    if !written.is_empty() && !written.ends_with('\n') {
        answers.write(b"\n")?;
    }
    finish(job, made, loaded)
}

/// Prints the notes after an answer.
fn finish(job: &Job<'_>, made: RunResult<Completion>, loaded: &timing::Loaded) -> Outcome {
    let made = match made.map_err(Failure::from) {
        Ok(made) => made,
        Err(failure) if failure.is_interruption() => {
            return note(job, "interrupted: the message was not answered");
        }
        Err(failure) => {
            failure.told();
            let document = FailureDocument::of(&failure, None);
            return job.context.printer.report_each(&document, |_, _| Ok(()));
        }
    };
    generation::show_logprobs(job, made.logprobs.as_deref())?;
    match (made.ended, made.added.is_empty()) {
        ("interrupted", true) => note(job, "interrupted: the message was not answered")?,
        ("interrupted", false) => note(job, "interrupted: the answer so far is kept")?,
        ("max_tokens", _) => note(job, "ended: max_tokens")?,
        (_, true) => note(job, "the answer is empty")?,
        _ => {}
    }
    let report = loaded.report(job, &timing::Given::default(), made);
    job.context.printer.report_each(&report, |_, _| Ok(()))
}

/// A remark of the conversation's own, beside what the model writes.
fn note(job: &Job<'_>, text: &str) -> Outcome {
    if job.context.printer.shows_progress() {
        writeln!(anstream::stderr().lock(), "{DIM}{}{DIM:#}", Escaped(text))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_messages_or_commands() {
        let cases = [
            ("", Said::Nothing),
            ("  \t", Said::Nothing),
            ("hello", Said::Message("hello")),
            (" /etc is a folder", Said::Message("/etc is a folder")),
            ("/reset", Said::Reset),
            ("/reset now", Said::Unknown("/reset")),
            ("/system", Said::System("")),
            ("/system Be brief.", Said::System("Be brief.")),
            ("/help ", Said::Help),
            ("/quit", Said::Quit),
            ("/etc is a folder", Said::Unknown("/etc")),
        ];
        for (line, said) in cases {
            assert_eq!(Said::of(line), said, "{line}");
        }
    }
}
