//! The machine: a stack, a memo and the opcodes.
//!
//! Strict, it stops at the first name that is not allowed and at whatever does not fit. Lenient,
//! for a scan, it goes on with an opaque value instead, so that a payload can't hide behind a small
//! mistake. It runs nothing either way.

use std::collections::HashMap;

use apr_core::{Error, Escaped, Limits, Result};

use super::blobs::Blobs;
use super::globals::{Meaning, allowed, verdict};
use super::opcode as op;
use super::text;
use super::uses::{Action, Finding, Uses, Verdict};
use super::value::{
    EMPTY_TUPLE, FALSE, Global, Heap, Id, NONE, Node, OPAQUE, Storage, TRUE, Tensor,
};
use crate::input::Input;

/// Containers open at a time. Python's own pickler stops at a thousand.
const MAX_MARKS: usize = 10_000;

/// Longest module or name that is imported, in bytes.
const MAX_NAME: usize = 512;

/// Arrays of objects within each other in one stream.
const MAX_STREAMS: usize = 16;

/// What a persistent id stands for.
#[derive(Debug)]
pub(crate) enum Persistent {
    /// Nothing: this pickle has none.
    None,
    /// `('storage', class, key, device, length)`, and in pre-ZIP files `('module', class, ...)`
    /// too.
    Storage,
    /// In TAR files, the number of a tensor or storage of another member.
    Numbered(HashMap<String, Numbered>),
}

/// What a number of a TAR file stands for.
#[derive(Debug)]
pub(crate) enum Numbered {
    /// A storage.
    Storage(Storage),
    /// A tensor over the storage.
    Tensor(Storage, Tensor),
}

/// How a pickle is read.
#[derive(Debug)]
pub(crate) struct Policy<'a> {
    pub(crate) lenient: bool,
    /// Whether the bytes of joblib's arrays are gone past, as joblib does.
    pub(crate) joblib: bool,
    /// Full names of classes that are read for their state although the list lacks them.
    pub(crate) classes: &'a [String],
    pub(crate) persistent: Persistent,
}

/// What a pickle came to.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) heap: Heap,
    pub(crate) uses: Uses,
    /// Values that may hold a pickle themselves; only a scan looks for them.
    pub(crate) blobs: Blobs,
    /// Whether it places arrays as joblib does.
    pub(crate) has_file_arrays: bool,
    /// Where the stream went on after the pickle.
    pub(crate) end: u64,
    pub(crate) root: Result<Id>,
}

/// Runs the machine from the input's position to the pickle's `STOP`.
pub(crate) fn run(input: Input<'_>, policy: &Policy<'_>, limits: &Limits) -> Outcome {
    let len = input.remaining().min(limits.max_metadata);
    let mut vm = Vm {
        input,
        policy,
        heap: Heap::new(len),
        uses: Uses::default(),
        blobs: Blobs::default(),
        has_file_arrays: false,
        depth: 0,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
        at: 0,
        opcode: 0,
    };
    let root = vm.run();
    let (end, blobs) = (vm.input.position(), vm.blobs);
    Outcome { end, heap: vm.heap, uses: vm.uses, blobs, has_file_arrays: vm.has_file_arrays, root }
}

pub(super) struct Vm<'a> {
    pub(super) input: Input<'a>,
    pub(super) policy: &'a Policy<'a>,
    pub(super) heap: Heap,
    uses: Uses,
    blobs: Blobs,
    has_file_arrays: bool,
    /// Streams of objects that this one is within.
    depth: usize,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
    /// Offset of the opcode at work.
    at: u64,
    opcode: u8,
}

impl Vm<'_> {
    fn run(&mut self) -> Result<Id> {
        loop {
            self.at = self.input.position();
            self.opcode = self.input.byte()?;
            if self.opcode == op::STOP {
                return self.pop().map_err(|error| error.at(self.at));
            }
            self.step().map_err(|error| error.at(self.at))?;
        }
    }

    /// The pickle of an array of objects, which lies in the stream where its bytes would.
    pub(super) fn nested_stream(&mut self) -> Result<()> {
        if self.depth == MAX_STREAMS {
            return Err(self.bad("nests arrays of objects too deep"));
        }
        self.depth += 1;
        let outer = (
            std::mem::take(&mut self.stack),
            std::mem::take(&mut self.marks),
            std::mem::take(&mut self.memo),
        );
        let (at, opcode) = (self.at, self.opcode);
        let result = self.run();
        (self.stack, self.marks, self.memo) = outer;
        (self.at, self.opcode) = (at, opcode);
        self.depth -= 1;
        result.map(drop)
    }

    /// In a scan, keeps what may be a pickle in a value: `bytes`, which end where the input is now.
    pub(super) fn look_inside(&mut self, bytes: &[u8], verbatim: bool) {
        if self.policy.lenient {
            let start = verbatim.then(|| self.input.position() - bytes.len() as u64);
            self.blobs.offer(bytes, self.at, start);
        }
    }

    pub(super) fn bad(&self, what: &str) -> Error {
        Error::format(format!("the pickle's {} {what}", op::name(self.opcode)))
    }

    /// In a scan, goes on with an opaque value where strict reading fails.
    fn tolerate(&self, result: Result<Id>) -> Result<Id> {
        if self.policy.lenient { Ok(result.unwrap_or(OPAQUE)) } else { result }
    }

    fn refuse(&self, what: &str) -> Result<()> {
        if self.policy.lenient { Ok(()) } else { Err(self.bad(what)) }
    }

    fn step(&mut self) -> Result<()> {
        match self.opcode {
            op::PROTO => self.protocol(),
            op::FRAME => self.frame(),
            op::MARK => self.mark(),
            op::POP => self.pop_or_unmark(),
            op::POP_MARK => self.pop_mark().map(drop),
            op::DUP => {
                let top = self.top()?;
                self.push(top)
            }
            op::NONE => self.push(NONE),
            op::NEWTRUE => self.push(TRUE),
            op::NEWFALSE => self.push(FALSE),
            op::EMPTY_TUPLE => self.push(EMPTY_TUPLE),
            op::EMPTY_LIST => self.push_node(Node::List(Vec::new())),
            op::EMPTY_DICT => self.push_node(Node::Dict(Vec::new())),
            op::EMPTY_SET => self.push_node(Node::Set(Vec::new())),
            op::INT | op::LONG | op::BININT | op::BININT1 | op::BININT2 | op::LONG1 | op::LONG4 => {
                self.number()
            }
            op::FLOAT | op::BINFLOAT => self.float(),
            op::STRING | op::BINSTRING | op::SHORT_BINSTRING => self.byte_string(),
            op::UNICODE | op::BINUNICODE | op::SHORT_BINUNICODE | op::BINUNICODE8 => self.string(),
            op::BINBYTES | op::SHORT_BINBYTES | op::BINBYTES8 | op::BYTEARRAY8 => self.bytes(),
            op::GET | op::BINGET | op::LONG_BINGET => self.recall(),
            op::PUT | op::BINPUT | op::LONG_BINPUT | op::MEMOIZE => self.memoize(),
            op::TUPLE | op::LIST | op::DICT | op::FROZENSET => self.collect(),
            op::TUPLE1 | op::TUPLE2 | op::TUPLE3 => self.short_tuple(),
            op::APPEND | op::APPENDS | op::ADDITEMS | op::SETITEM | op::SETITEMS => self.extend(),
            op::GLOBAL | op::STACK_GLOBAL => self.global(),
            op::REDUCE | op::NEWOBJ | op::NEWOBJ_EX | op::OBJ | op::INST => self.call(),
            op::BUILD => self.build(),
            op::PERSID | op::BINPERSID => self.persistent(),
            op::EXT1 | op::EXT2 | op::EXT4 => self.extension(),
            op::NEXT_BUFFER | op::READONLY_BUFFER => {
                Err(self.bad("asks for a buffer from outside the file"))
            }
            code => Err(Error::format(format!("byte 0x{code:02x} is not a pickle opcode"))),
        }
    }

    fn protocol(&mut self) -> Result<()> {
        match self.input.byte()? {
            0..=5 => Ok(()),
            other => {
                Err(Error::version(format!("this is pickle protocol {other}; 0 to 5 are known")))
            }
        }
    }

    fn frame(&mut self) -> Result<()> {
        let len = u64::from_le_bytes(self.input.array()?);
        if len > self.input.remaining() {
            self.refuse("reaches past the end of the file")
        } else {
            Ok(())
        }
    }

    fn mark(&mut self) -> Result<()> {
        if self.marks.len() == MAX_MARKS {
            return Err(Error::format(format!(
                "the pickle opens more than {MAX_MARKS} containers at a time"
            )));
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    /// `POP` takes away a mark if that is what lies on top, as in Python.
    fn pop_or_unmark(&mut self) -> Result<()> {
        if self.marks.last() == Some(&self.stack.len()) {
            self.marks.pop();
            return Ok(());
        }
        self.pop().map(drop)
    }

    pub(super) fn push(&mut self, id: Id) -> Result<()> {
        if self.stack.len() >= self.heap.max_nodes() {
            return Err(Error::memory("the pickle stacks more values than its length justifies"));
        }
        self.stack.push(id);
        Ok(())
    }

    fn push_node(&mut self, node: Node) -> Result<()> {
        let id = self.heap.add(node)?;
        self.push(id)
    }

    /// Values above the last mark.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or_default()
    }

    fn pop(&mut self) -> Result<Id> {
        if self.stack.len() > self.floor() {
            return Ok(self.stack.pop().unwrap_or(OPAQUE));
        }
        self.tolerate(Err(self.bad("needs a value, but the stack is empty")))
    }

    fn top(&self) -> Result<Id> {
        let top = self.stack.last().filter(|_| self.stack.len() > self.floor()).copied();
        self.tolerate(top.ok_or_else(|| self.bad("needs a value, but the stack is empty")))
    }

    fn pop_mark(&mut self) -> Result<Vec<Id>> {
        match self.marks.pop() {
            Some(mark) => Ok(self.stack.split_off(mark)),
            None => self.refuse("needs a mark, but there is none").map(|()| Vec::new()),
        }
    }

    fn number(&mut self) -> Result<()> {
        let node = match self.opcode {
            op::BININT => Node::Int(i32::from_le_bytes(self.input.array()?).into()),
            op::BININT1 => Node::Int(self.input.byte()?.into()),
            op::BININT2 => Node::Int(u16::from_le_bytes(self.input.array()?).into()),
            op::LONG1 | op::LONG4 => {
                let len = if self.opcode == op::LONG1 {
                    self.input.byte()?.into()
                } else {
                    self.len32()?
                };
                text::long(&self.input.take(len)?)
            }
            _ => text::integer(&self.input.line()?)?,
        };
        self.push_node(node)
    }

    fn float(&mut self) -> Result<()> {
        let node = match self.opcode {
            op::BINFLOAT => Node::Float(f64::from_be_bytes(self.input.array()?)),
            _ => text::float(&self.input.line()?)?,
        };
        self.push_node(node)
    }

    /// A four-byte length. Python reads some of them as signed and refuses a negative one; so does
    /// the end of the file.
    fn len32(&mut self) -> Result<u64> {
        Ok(u32::from_le_bytes(self.input.array()?).into())
    }

    fn len64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.input.array()?))
    }

    /// Python 2's strings, which are text in every checkpoint.
    fn byte_string(&mut self) -> Result<()> {
        let bytes = match self.opcode {
            op::STRING => text::quoted(&self.input.line()?)?,
            op::SHORT_BINSTRING => {
                let len = self.input.byte()?.into();
                self.input.take(len)?
            }
            _ => {
                let len = self.len32()?;
                self.input.take(len)?
            }
        };
        self.look_inside(&bytes, self.opcode != op::STRING);
        let node = match String::from_utf8(bytes) {
            Ok(text) => Node::Str(text.into()),
            Err(error) => Node::Bytes(error.as_bytes().into()),
        };
        self.push_node(node)
    }

    fn string(&mut self) -> Result<()> {
        let len = match self.opcode {
            op::UNICODE => {
                let text = text::raw_unicode(&self.input.line()?)?;
                self.look_inside(text.as_bytes(), false);
                return self.push_node(Node::Str(text.into()));
            }
            op::SHORT_BINUNICODE => self.input.byte()?.into(),
            op::BINUNICODE => self.len32()?,
            _ => self.len64()?,
        };
        // Python lets lone surrogates through; no name has them.
        let bytes = self.input.take(len)?;
        self.look_inside(&bytes, true);
        let text = String::from_utf8(bytes);
        let text = text.map_err(|_| self.bad("holds text that is not UTF-8"))?;
        self.push_node(Node::Str(text.into()))
    }

    fn bytes(&mut self) -> Result<()> {
        let len = match self.opcode {
            op::SHORT_BINBYTES => self.input.byte()?.into(),
            op::BINBYTES => self.len32()?,
            _ => self.len64()?,
        };
        let bytes = self.input.take(len)?;
        self.look_inside(&bytes, true);
        self.push_node(Node::Bytes(bytes[..].into()))
    }

    fn memo_key(&mut self) -> Result<u32> {
        match self.opcode {
            op::GET | op::PUT => {
                let line = self.input.line()?;
                let key = std::str::from_utf8(&line).ok().and_then(|text| text.trim().parse().ok());
                key.ok_or_else(|| self.bad("has an invalid number"))
            }
            op::BINGET | op::BINPUT => Ok(self.input.byte()?.into()),
            _ => Ok(u32::from_le_bytes(self.input.array()?)),
        }
    }

    fn recall(&mut self) -> Result<()> {
        let key = self.memo_key()?;
        let id = self
            .memo
            .get(&key)
            .copied()
            .ok_or_else(|| self.bad(&format!("recalls {key}, which was never stored")));
        let id = self.tolerate(id)?;
        self.push(id)
    }

    fn memoize(&mut self) -> Result<()> {
        let key = match self.opcode {
            op::MEMOIZE => u32::try_from(self.memo.len()).unwrap_or(u32::MAX),
            _ => self.memo_key()?,
        };
        if self.memo.len() >= self.heap.max_nodes() {
            return Err(Error::memory("the pickle stores more values than its length justifies"));
        }
        let top = self.top()?;
        self.memo.insert(key, top);
        Ok(())
    }

    fn collect(&mut self) -> Result<()> {
        let items = self.pop_mark()?;
        let node = match self.opcode {
            op::TUPLE => Node::Tuple(items.into()),
            op::LIST => Node::List(items),
            op::FROZENSET => Node::Set(items),
            _ => Node::Dict(self.pairs(&items)?),
        };
        self.push_node(node)
    }

    fn pairs(&self, items: &[Id]) -> Result<Vec<(Id, Id)>> {
        if !items.len().is_multiple_of(2) {
            self.refuse("has a key without a value")?;
        }
        Ok(items.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
    }

    fn short_tuple(&mut self) -> Result<()> {
        let len = usize::from(self.opcode - op::TUPLE1) + 1;
        let mut items = (0..len).map(|_| self.pop()).collect::<Result<Vec<_>>>()?;
        items.reverse();
        self.push_node(Node::Tuple(items.into()))
    }

    fn extend(&mut self) -> Result<()> {
        let items = match self.opcode {
            op::APPEND => vec![self.pop()?],
            op::SETITEM => {
                let value = self.pop()?;
                vec![self.pop()?, value]
            }
            _ => self.pop_mark()?,
        };
        let target = self.top()?;
        let keyed = matches!(self.opcode, op::SETITEM | op::SETITEMS);
        let pairs = if keyed { self.pairs(&items)? } else { Vec::new() };
        match (self.heap.get_mut(target), keyed) {
            (Node::Dict(dict), true) => dict.extend(pairs),
            (Node::List(list), false) if self.opcode != op::ADDITEMS => list.extend(items),
            (Node::Set(set), false) => set.extend(items),
            _ => self.refuse("adds to a value that is not a container for it")?,
        }
        Ok(())
    }

    pub(super) fn record(&mut self, module: &str, name: &str, action: Action, verdict: Verdict) {
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

    /// A call, with what it is called with where that is worth knowing.
    fn record_call(&mut self, module: &str, name: &str, args: &[Id]) {
        let verdict = verdict(module, name);
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

    fn global(&mut self) -> Result<()> {
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
                    self.record("?", "?", Action::Import, Verdict::Dangerous);
                    self.refuse("names something to import by values that are not short text")?;
                    return self.push(OPAQUE);
                }
            }
        };
        let id = self.import(module, name)?;
        self.push(id)
    }

    fn name_line(&mut self) -> Result<String> {
        let name = String::from_utf8(self.input.line()?).ok().filter(|name| name.len() <= MAX_NAME);
        name.ok_or_else(|| self.bad("has a name that is not short UTF-8 text"))
    }

    fn import(&mut self, module: String, name: String) -> Result<Id> {
        let opted_in =
            || self.policy.classes.iter().any(|class| *class == format!("{module}.{name}"));
        let mut verdict = verdict(&module, &name);
        let meaning = match allowed(&module, &name) {
            Some(meaning) => meaning,
            None if verdict == Verdict::Unknown && opted_in() => {
                verdict = Verdict::Allowed;
                Meaning::Class
            }
            None => Meaning::Forbidden,
        };
        self.record(&module, &name, Action::Import, verdict);
        if meaning == Meaning::Forbidden && !self.policy.lenient {
            let danger = if verdict == Verdict::Dangerous {
                "could run code"
            } else {
                "is not known to be harmless"
            };
            return Err(Error::format(format!(
                "the pickle wants to import {}.{}, which {danger}; nothing of it was run",
                Escaped::short(&module),
                Escaped::short(&name)
            )));
        }
        self.heap.add(Node::Global(Box::new(Global { module, name, meaning })))
    }

    fn call(&mut self) -> Result<()> {
        let (function, args) = match self.opcode {
            op::INST => {
                let (module, name) = (self.name_line()?, self.name_line()?);
                let function = self.import(module, name)?;
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
        if let Some(Global { module, name, .. }) = self.heap.global(function) {
            let (module, name) = (module.clone(), name.clone());
            self.record_call(&module, &name, &args);
        }
        let result = self.construct(function, &args);
        let result = self.tolerate(result)?;
        self.push(result)
    }

    fn build(&mut self) -> Result<()> {
        let state = self.pop()?;
        let target = self.top()?;
        self.heap.charge(self.heap.size(state))?;
        self.has_file_arrays |= matches!(self.heap.get(target), Node::FileArray);
        let result = self.set_state(target, state);
        // Where an array ends must be known, or what follows is not opcodes.
        if self.policy.lenient
            && !(self.policy.joblib && matches!(self.heap.get(target), Node::FileArray))
        {
            return Ok(());
        }
        result
    }

    fn persistent(&mut self) -> Result<()> {
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

    fn extension(&mut self) -> Result<()> {
        let code = match self.opcode {
            op::EXT1 => self.input.byte()?.into(),
            op::EXT2 => u16::from_le_bytes(self.input.array()?).into(),
            _ => u32::from_le_bytes(self.input.array()?),
        };
        // What the number means is decided by the program that loads the file.
        self.record("copyreg", &format!("extension {code}"), Action::Import, Verdict::Dangerous);
        self.refuse("names a class by a number that only the loading program knows")?;
        self.push(OPAQUE)
    }
}
