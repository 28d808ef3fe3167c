//! Conversations: a chat whose history is kept, and with it what the model has read of it.

use apr_infer::Memory;
use apr_inputs::chat::Message;
use apr_registry::Result;

use crate::completion::{Completion, Generator};
use crate::error::{RunError, RunResult};

/// A chat of several turns.
///
/// The model's chat template writes the history before each answer. Keys and values are kept from
/// turn to turn: of the text that the template writes, only what differs from what was read before
/// is read, to its end. Models with states instead of keys and values read all of it again, unless
/// it begins with all that was read.
///
/// The history has texts, not tokens: special tokens that a model generates are no part of it.
pub struct Conversation<'g> {
    generator: Generator<'g>,
    system: Option<String>,
    /// Texts with their roles, which are `user` and `assistant` in turn.
    messages: Vec<(String, String)>,
    memory: Memory,
}

impl<'g> Conversation<'g> {
    /// A conversation that begins, with a system message or without.
    ///
    /// # Errors
    /// E003 for an encoder with a decoder, and where the model has no chat template or no
    /// tokenizer; those of [`Tokenizer::of`](crate::Tokenizer::of).
    pub fn new(mut generator: Generator<'g>, system: Option<String>) -> RunResult<Self> {
        generator.check_chat()?;
        generator.read_tokenizer()?;
        Ok(Self { generator, system, messages: Vec::new(), memory: Memory::default() })
    }

    /// Continues a conversation from its history and its memory.
    ///
    /// `messages` is the history, the oldest first. `memory` is the result of
    /// [`into_memory`](Self::into_memory) for an earlier part of it. From a memory of another
    /// history, the common beginning is used. A memory of another model gives wrong answers.
    ///
    /// # Errors
    /// Returns the errors of [`new`](Self::new).
    pub fn resumed(
        generator: Generator<'g>,
        system: Option<String>,
        messages: Vec<(String, String)>,
        memory: Memory,
    ) -> RunResult<Self> {
        Ok(Self { messages, memory, ..Self::new(generator, system)? })
    }

    /// Returns the keys and values of the tokens read, for a program that keeps no generator
    /// between turns.
    #[must_use]
    pub fn into_memory(self) -> Memory {
        self.memory
    }

    /// Returns the generator of the answers.
    #[must_use]
    pub fn generator(&self) -> &Generator<'g> {
        &self.generator
    }

    /// The history: roles and texts, the oldest first, without the system message.
    #[must_use]
    pub fn messages(&self) -> &[(String, String)] {
        &self.messages
    }

    /// The system message.
    #[must_use]
    pub fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    /// Replaces the system message from the next turn on, and keeps the history.
    pub fn set_system(&mut self, system: Option<String>) {
        self.system = system;
    }

    /// Forgets the history, and keeps the system message.
    pub fn reset(&mut self) {
        self.messages.clear();
        self.memory = Memory::default();
    }

    /// The answer to a message, which `sink` receives as it grows, whole characters at a time.
    ///
    /// Where [`Host::is_cancelled`](crate::Host::is_cancelled), the answer ends with the token
    /// under way (`interrupted`), and what there is of it stays in the history. Where the context
    /// is full, the oldest messages are left out, in pairs, until a quarter of it is free, or what
    /// the answer may take; a warning and [`Completion::dropped`] say so.
    ///
    /// # Errors
    /// Those of [`Generator::generate`]; [`RunError::Request`] for a message that fits no context;
    /// E007 where the host cancels the reading of the prompt. The history is then as it was before.
    pub fn turn(
        &mut self,
        message: &str,
        sink: &mut dyn FnMut(&str) -> Result<()>,
    ) -> RunResult<Completion> {
        let mut messages = self.messages.clone();
        messages.push(("user".to_owned(), message.to_owned()));
        let (prompt, dropped) = self.fitting(&mut messages)?;
        let mut made = self.generator.answer(prompt, &mut self.memory, sink)?;
        made.dropped = dropped;
        let text = made.text.clone().unwrap_or_default();
        if !(made.ended == "interrupted" && text.is_empty()) {
            messages.push(("assistant".to_owned(), text));
            self.messages = messages;
        }
        Ok(made)
    }

    /// Returns the text and the tokens of a chat, and the number of omitted messages. The oldest
    /// messages are omitted if all of them are too long.
    fn fitting(
        &mut self,
        messages: &mut Vec<(String, String)>,
    ) -> RunResult<((String, Vec<i64>), usize)> {
        let runner = self.generator.runner;
        let mut dropped = 0;
        let prompt = loop {
            let system = self.system.iter().map(|system| Message::new("system", system));
            let rest = messages.iter().map(|(role, content)| Message::new(role, content));
            let all: Vec<_> = system.chain(rest).collect();
            self.generator.read_tokenizer()?;
            let (text, ids) = self.generator.of_chat(&all)?;
            if ids.is_empty() {
                return Err(RunError::request("the prompt is empty"));
            }
            let Some(context) = runner.facts.context() else { break (text, ids) };
            let most = self.generator.settings().most(ids.len()).unwrap_or(usize::MAX);
            let reserve = most.min(context / 4).max(1);
            if ids.len() + reserve <= context {
                break (text, ids);
            }
            if messages.len() < 3 {
                if ids.len() < context {
                    break (text, ids);
                }
                return Err(RunError::request(format!(
                    "the message is {} tokens long in the chat template, beyond the model's \
                     context of {context}",
                    ids.len()
                )));
            }
            messages.drain(..2);
            dropped += 2;
        };
        if dropped > 0 {
            let context = runner.facts.context().unwrap_or_default();
            runner.warn(&format!(
                "the model's context of {context} tokens is full: the {dropped} oldest messages \
                 were dropped"
            ));
        }
        Ok((prompt, dropped))
    }
}
