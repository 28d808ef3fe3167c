//! What a pickle imports, calls and builds; each is written down.

use apr_core::{Error, Escaped, Result};

use super::Vm;
use crate::pickle::by_call;
use crate::pickle::globals::{Meaning, allowed, verdict};
use crate::pickle::opcode as op;
use crate::pickle::uses::{Action, Finding, Verdict};
use crate::pickle::value::{Global, Id, Node, OPAQUE};

/// Longest module or name that is imported, in bytes.
const MAX_NAME: usize = 512;

/// Placeholder for a name that is computed or too long.
const UNTOLD: &str = "?";

impl Vm<'_> {
    pub(in crate::pickle) fn record(
        &mut self,
        module: &str,
        name: &str,
        action: Action,
        verdict: Verdict,
    ) {
        let (opcode, offset) = (op::name(self.opcode), self.at);
        let (module, name) = (module.to_owned(), name.to_owned());
        self.uses.record(Finding {
            module,
            name,
            action,
            argument: None,
            opcode,
            offset,
            count: 1,
            verdict,
        });
    }

    /// Records a call, with its arguments if the call is dangerous.
    fn record_call(&mut self, module: &str, name: &str, args: &[Id]) {
        let of_name = verdict(module, name);
        let verdict = by_call::verdict(&self.heap, (module, name), args, self.opcode, of_name);
        let argument = (verdict == Verdict::Dangerous).then(|| self.heap.shown(args));
        let (opcode, offset, action) = (op::name(self.opcode), self.at, Action::Call);
        let (module, name) = (module.to_owned(), name.to_owned());
        self.uses.record(Finding {
            module,
            name,
            action,
            argument,
            opcode,
            offset,
            count: 1,
            verdict,
        });
    }

    /// Records the names that are judged by their calls and were handed on as values.
    pub(super) fn record_loose(&mut self) {
        let handed_on = self.loose.handed_on(&self.heap);
        let names: Vec<_> = handed_on
            .into_iter()
            .map(|(global, verdict)| (global.module.clone(), global.name.clone(), verdict))
            .collect();
        for (module, name, verdict) in names {
            self.record(&module, &name, Action::Import, verdict);
        }
    }

    pub(super) fn global(&mut self) -> Result<()> {
        let (module, name) = if self.opcode == op::GLOBAL {
            (self.name_line()?, self.name_line()?)
        } else {
            let (name, module) = (self.pop()?, self.pop()?);
            match (self.heap.text(module), self.heap.text(name)) {
                (Some(module), Some(name)) if module.len().max(name.len()) <= MAX_NAME => {
                    (module.to_owned(), name.to_owned())
                }
                _ => {
                    // Nobody but an attacker computes the name of what he imports.
                    self.record(UNTOLD, UNTOLD, Action::Import, Verdict::Dangerous);
                    self.refuse("names something to import by values that are not short text")?;
                    return self.push(OPAQUE);
                }
            }
        };

        let id = self.import(module, name)?;
        self.push(id)
    }

    fn name_line(&mut self) -> Result<String> {
        let line = self.input.line()?;
        let untold = || self.bad("has a name that is not short UTF-8 text");
        let name = String::from_utf8(line).map_err(|_| untold())?;
        if name.len() <= MAX_NAME {
            return Ok(name);
        }
        // Python takes it: a path of attributes may be as long.
        if self.policy.lenient { Ok(UNTOLD.to_owned()) } else { Err(untold()) }
    }

    fn import(&mut self, module: String, name: String) -> Result<Id> {
        let opted_in =
            || self.policy.classes.iter().any(|class| *class == format!("{module}.{name}"));
        let mut verdict = if [&*module, &*name].contains(&UNTOLD) {
            Verdict::Dangerous
        } else {
            verdict(&module, &name)
        };
        let meaning = match allowed(&module, &name) {
            Some(meaning) => meaning,
            // What is known to be dangerous can't be opted in.
            None if verdict == Verdict::Unknown && opted_in() => {
                verdict = Verdict::Allowed;
                Meaning::Class
            }
            None => Meaning::Forbidden,
        };

        self.record(&module, &name, Action::Import, verdict);
        if meaning == Meaning::Forbidden && !self.policy.lenient {
            let danger = match verdict {
                Verdict::Dangerous => "could run code",
                Verdict::Unknown => "is not known to be harmless",
                Verdict::Allowed => "is not a part of how tensors are pickled",
            };
            return Err(Error::format(format!(
                "the pickle imports {}.{}, which {danger}; nothing was executed",
                Escaped::short(&module),
                Escaped::short(&name)
            )));
        }

        // Its texts may be those of an earlier opcode, and are copied for each.
        self.heap.charge((module.len() + name.len()) / 16)?;
        let is_judged = by_call::is_judged(&module, &name);
        let id = self.heap.add(Node::Global(Box::new(Global { module, name, meaning })))?;
        if is_judged {
            self.loose.add(id);
        }
        Ok(id)
    }

    pub(super) fn call(&mut self) -> Result<()> {
        let (function, args) = match self.opcode {
            op::INST => {
                let (module, name) = (self.name_line()?, self.name_line()?);
                let function = self.import(module, name)?;
                self.loose.push(function);
                (function, self.pop_mark()?)
            }
            op::OBJ => {
                let mut items = self.pop_mark()?;
                if items.is_empty() {
                    self.refuse("has no class")?;
                    items.push(OPAQUE);
                }
                (items.remove(0), items)
            }
            _ => {
                // Arguments by keyword, which nothing here looks at.
                if self.opcode == op::NEWOBJ_EX {
                    self.pop()?;
                }
                let (args, function) = (self.pop()?, self.pop()?);
                self.heap.charge(self.heap.size(args))?;
                match self.heap.get(args) {
                    Node::Tuple(items) => (function, items.to_vec()),
                    _ => {
                        self.refuse("has arguments that are not a tuple")?;
                        (function, Vec::new())
                    }
                }
            }
        };

        if let Some(Global { module, name, meaning }) = self.heap.global(function) {
            let (module, name, meaning) = (module.clone(), name.clone(), *meaning);
            self.record_call(&module, &name, &args);
            self.loose.call(function);
            if meaning == Meaning::Reconstructor
                && let Some(class) = args.first()
            {
                self.loose.call(*class);
            }
        }

        let result = self.construct(function, &args);
        let result = self.tolerate(result)?;
        self.push(result)
    }

    pub(super) fn build(&mut self) -> Result<()> {
        let state = self.pop()?;
        let target = self.top()?;
        self.heap.charge(self.heap.size(state))?;
        self.has_file_arrays |= matches!(self.heap.get(target), Node::FileArray);
        if let Some(Global { module, name, .. }) = self.heap.global(target) {
            // No checkpoint does that: states are for instances.
            let (module, name) = (module.clone(), name.clone());
            self.record(&module, &name, Action::Change, Verdict::Dangerous);
        }

        let result = self.set_state(target, state);
        // Where an array ends must be known, or what follows is not opcodes.
        if self.policy.lenient
            && !(self.policy.joblib && matches!(self.heap.get(target), Node::FileArray))
        {
            return Ok(());
        }
        result
    }

    pub(super) fn persistent(&mut self) -> Result<()> {
        let id = if self.opcode == op::PERSID {
            let line = self.input.line()?;
            let text =
                String::from_utf8(line).map_err(|_| self.bad("has an id that is not text"))?;
            self.heap.add(Node::Str(text.into()))?
        } else {
            self.pop()?
        };
        self.heap.charge(self.heap.size(id))?;
        let value = self.resolve(id);
        let value = self.tolerate(value)?;
        self.push(value)
    }

    pub(super) fn extension(&mut self) -> Result<()> {
        let code = match self.opcode {
            op::EXT1 => self.input.byte()?.into(),
            op::EXT2 => u16::from_le_bytes(self.input.array()?).into(),
            _ => u32::from_le_bytes(self.input.array()?),
        };
        // What the number means is decided by the program that loads the file.
        self.record("copyreg", &format!("extension {code}"), Action::Import, Verdict::Dangerous);
        self.refuse("refers to a class by a number that only the loading program defines")?;
        self.push(OPAQUE)
    }
}
