//! What a pickle imports beyond the limits of the machine.
//!
//! Python has no such limits: a payload behind 300 MB of numbers, or behind ten thousand open
//! containers, runs. So a scan reads on, opcode by opcode, without a stack and in the memory that
//! short texts take. Texts are followed far enough to name what `STACK_GLOBAL` imports; a name that
//! comes from elsewhere counts as dangerous.

use std::collections::HashMap;
use std::rc::Rc;

use apr_core::{Error, Result};

use super::by_call::is_judged;
use super::globals::verdict;
use super::opcode as op;
use super::uses::{Action, Finding, Uses, Verdict};
use crate::input::Input;

/// Longest module or name that is imported, in bytes.
const MAX_NAME: u64 = 512;

/// Bytes of all texts that are remembered; later ones are not.
const MAX_TEXTS: usize = 64 << 20;

/// Bytes that an entry of the memo takes beside its text, about.
const ENTRY: usize = 64;

/// Reads opcodes from the input's position to the pickle's `STOP`, and records what they import
/// from byte `from` on.
///
/// # Errors
/// E001 and E002 where Python's unpickler would stop, too: at bytes that are no opcode, at the end
/// of the file.
pub(super) fn sweep(input: &mut Input<'_>, from: u64, uses: &mut Uses) -> Result<()> {
    let (top, memo) = ([None, None], HashMap::new());
    let mut sweep = Sweep { input, uses, from, top, memo, memoized: 0, texts: 0 };
    while sweep.step()? {}
    Ok(())
}

struct Sweep<'i, 's, 'u> {
    input: &'i mut Input<'s>,
    uses: &'u mut Uses,
    from: u64,
    /// The two top values of the stack, if they are short texts. The top one is last.
    top: [Option<Rc<str>>; 2],
    /// The stored values that are short texts.
    memo: HashMap<u64, Rc<str>>,
    /// Values that were stored, of any kind.
    memoized: u64,
    /// Bytes that the memo takes.
    texts: usize,
}

impl Sweep<'_, '_, '_> {
    /// Processes an opcode. Returns `false` after the last one.
    fn step(&mut self) -> Result<bool> {
        let at = self.input.position();
        let code = self.input.byte()?;
        match code {
            op::STOP => return Ok(false),
            // Nothing of the stack changes.
            op::PROTO => self.skip(1)?,
            op::FRAME => self.skip(8)?,
            op::PUT => {
                if let Some(key) = self.line_number()? {
                    self.memoize(key);
                }
            }
            op::BINPUT => {
                let key = self.number::<1>()?;
                self.memoize(key);
            }
            op::LONG_BINPUT => {
                let key = self.number::<4>()?;
                self.memoize(key);
            }
            op::MEMOIZE => self.memoize(self.memoized),
            _ => self.change(code, at)?,
        }
        Ok(true)
    }

    /// Processes an opcode that changes the top of the stack.
    fn change(&mut self, code: u8, at: u64) -> Result<()> {
        let pushed = match code {
            op::STRING | op::UNICODE => self.quoted(code)?,
            op::SHORT_BINSTRING | op::SHORT_BINUNICODE => self.text::<1>()?,
            op::BINSTRING | op::BINUNICODE => self.text::<4>()?,
            op::BINUNICODE8 => self.text::<8>()?,
            op::GET => self.line_number().map(|key| self.recall(key?))?,
            op::BINGET => self.number::<1>().map(|key| self.recall(key))?,
            op::LONG_BINGET => self.number::<4>().map(|key| self.recall(key))?,
            _ => {
                self.import(code, at)?;
                self.top = [None, None];
                return self.arguments(code);
            }
        };
        self.top.swap(0, 1);
        self.top[1] = pushed;
        Ok(())
    }

    fn import(&mut self, code: u8, at: u64) -> Result<()> {
        let unknown = || Some((Rc::from("?"), Rc::from("?")));
        let named = match code {
            op::GLOBAL | op::INST => Some((self.name()?, self.name()?)),
            op::STACK_GLOBAL => match std::mem::take(&mut self.top) {
                [Some(module), Some(name)] => Some((module, name)),
                _ => unknown(),
            },
            // The program that loads the file decides what the number means.
            op::EXT1 | op::EXT2 | op::EXT4 => unknown(),
            _ => None,
        };
        let Some((module, name)) = named.filter(|_| at >= self.from) else { return Ok(()) };

        let verdict = match &*module {
            "?" => Verdict::Dangerous,
            // Their calls are not followed here.
            _ if is_judged(&module, &name) => verdict(&module, &name).max(Verdict::Unknown),
            _ => verdict(&module, &name),
        };
        self.uses.record(Finding {
            module: module.to_string(),
            name: name.to_string(),
            action: Action::Import,
            argument: None,
            opcode: op::name(code),
            offset: at,
            count: 1,
            verdict,
        });
        Ok(())
    }

    /// Skips the arguments of an opcode without text.
    fn arguments(&mut self, code: u8) -> Result<()> {
        match code {
            op::INT | op::LONG | op::FLOAT | op::PERSID => self.input.line().map(drop),
            op::BININT1 | op::EXT1 => self.skip(1),
            op::BININT2 | op::EXT2 => self.skip(2),
            op::BININT | op::EXT4 => self.skip(4),
            op::BINFLOAT => self.skip(8),
            op::LONG1 | op::SHORT_BINBYTES => self.number::<1>().and_then(|len| self.skip(len)),
            op::LONG4 | op::BINBYTES => self.number::<4>().and_then(|len| self.skip(len)),
            op::BINBYTES8 | op::BYTEARRAY8 => self.number::<8>().and_then(|len| self.skip(len)),
            _ if op::name(code) == op::UNKNOWN => {
                Err(Error::format(format!("byte 0x{code:02x} is not a pickle opcode"))
                    .at(self.input.position()))
            }
            _ => Ok(()),
        }
    }

    fn number<const N: usize>(&mut self) -> Result<u64> {
        let bytes = self.input.array::<N>()?;
        Ok(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    fn line_number(&mut self) -> Result<Option<u64>> {
        self.input.line().map(|line| super::text::memo_key(&line))
    }

    fn name(&mut self) -> Result<Rc<str>> {
        let line = self.input.line()?;
        let name = String::from_utf8(line).ok().filter(|name| name.len() as u64 <= MAX_NAME);
        Ok(name.map_or_else(|| "?".into(), Into::into))
    }

    fn quoted(&mut self, code: u8) -> Result<Option<Rc<str>>> {
        let mut line = Vec::new();
        if code == op::STRING {
            // Python refuses any other text; its line may be as long as the file.
            let first = self.input.byte()?;
            if !b"'\" \t".contains(&first) {
                let message = "a string without its quotes";
                return Err(Error::format(message).at(self.input.position()));
            }
            line.push(first);
        }
        line.extend(self.input.line()?);
        let text = if code == op::STRING {
            super::text::quoted(&line).ok().and_then(|bytes| String::from_utf8(bytes).ok())
        } else {
            super::text::raw_unicode(&line).ok()
        };
        Ok(text.filter(|text| text.len() as u64 <= MAX_NAME).map(Into::into))
    }

    fn text<const N: usize>(&mut self) -> Result<Option<Rc<str>>> {
        let len = self.number::<N>()?;
        if len > MAX_NAME {
            return self.skip(len).map(|()| None);
        }
        let bytes = self.input.take(len)?;
        Ok(String::from_utf8(bytes).ok().map(Into::into))
    }

    fn skip(&mut self, len: u64) -> Result<()> {
        self.input.skip(len)
    }

    fn memoize(&mut self, key: u64) {
        self.memoized += 1;
        let cost = |text: &Rc<str>| text.len() + ENTRY;
        match self.top[1].clone().filter(|text| self.texts + cost(text) <= MAX_TEXTS) {
            Some(text) => {
                self.texts += cost(&text);
                self.memo.insert(key, text);
            }
            None => drop(self.memo.remove(&key)),
        }
    }

    fn recall(&self, key: u64) -> Option<Rc<str>> {
        self.memo.get(&key).cloned()
    }
}
