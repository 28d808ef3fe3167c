//! The machine: a stack, a memo and the opcodes.
//!
//! Strict, it stops at the first name that is not allowed and at whatever does not fit. Lenient,
//! for a scan, it goes on with an opaque value instead, so that a payload can't hide behind a small
//! mistake. It runs nothing either way.

mod calls;
mod containers;
mod literals;

use std::collections::HashMap;

use apr_core::{Code, Error, Limits, Result};

use super::blobs::Blobs;
use super::by_call::Loose;
use super::opcode as op;
use super::sweep::sweep;
use super::text;
use super::uses::Uses;
use super::value::{
    EMPTY_TUPLE, FALSE, Heap, Id, Lying, NONE, Node, OPAQUE, Storage, TRUE, Tensor,
};
use crate::input::Input;

/// Containers open at a time. Python's own pickler stops at a thousand.
const MAX_MARKS: usize = 10_000;

/// Arrays of objects within each other in one stream.
const MAX_STREAMS: usize = 16;

/// Interpretation of persistent ids.
#[derive(Debug)]
pub(crate) enum Persistent {
    /// Persistent ids are not allowed in this pickle.
    None,
    /// `('storage', class, key, device, length)`, and in pre-ZIP files `('module', class, ...)`
    /// too.
    Storage,
    /// Number of a tensor or storage in another member of a TAR file.
    Numbered(HashMap<String, Numbered>),
}

/// Tensor or storage behind a number in a TAR file.
#[derive(Debug)]
pub(crate) enum Numbered {
    /// Storage without a tensor.
    Storage(Storage),
    /// A tensor over the storage.
    Tensor(Storage, Tensor),
}

/// Options for reading a pickle.
#[derive(Debug)]
pub(crate) struct Policy<'a> {
    pub(crate) lenient: bool,
    /// `true` to skip the bytes of joblib's arrays, as joblib does.
    pub(crate) joblib: bool,
    /// `true` to read NumPy arrays as tensors.
    pub(crate) arrays: bool,
    /// Full names of classes that are read for their state although the list lacks them.
    pub(crate) classes: &'a [String],
    pub(crate) persistent: Persistent,
}

/// Result of reading a pickle.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) heap: Heap,
    pub(crate) uses: Uses,
    /// Values that may hold a pickle themselves; only a scan looks for them.
    pub(crate) blobs: Blobs,
    /// `true` if the pickle places arrays between its opcodes, as joblib does.
    pub(crate) has_file_arrays: bool,
    /// Reason for examining only the names of the rest, if the pickle exceeds the limit.
    pub(crate) swept: Option<Error>,
    /// Offset at which Python's unpickler certainly fails, so that nothing after it is run.
    pub(crate) stuck: Option<u64>,
    /// Offset at which the stream continues after the pickle.
    pub(crate) end: u64,
    pub(crate) root: Result<Id>,
}

/// Runs the machine from the input's position to the pickle's `STOP`.
pub(crate) fn run(input: Input<'_>, policy: &Policy<'_>, limits: &Limits) -> Outcome {
    let (start, len) = (input.position(), input.remaining().min(limits.max_metadata));
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
        strings: HashMap::new(),
        at: 0,
        opcode: 0,
        stuck: None,
        has_odd_keys: false,
        loose: Loose::default(),
    };

    let mut root = vm.run();
    vm.record_loose();
    let swept = match &root {
        // What the machine has no room for, Python has. Arrays within the stream are no opcodes.
        Err(error) if policy.lenient && error.code() == Code::Memory && !vm.has_file_arrays => {
            let error = error.clone();
            let mut rest = vm.input.again_from(start);
            root = sweep(&mut rest, vm.at, &mut vm.uses).map(|()| OPAQUE);
            vm.input = rest;
            Some(error)
        }
        _ => None,
    };

    let (end, blobs, has_file_arrays) = (vm.input.position(), vm.blobs, vm.has_file_arrays);
    let stuck = vm.stuck;
    Outcome { end, heap: vm.heap, uses: vm.uses, blobs, has_file_arrays, swept, stuck, root }
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
    memo: HashMap<u64, Id>,
    /// Locations of texts in the source, if arrays are read: some texts are the bytes of an array.
    pub(super) strings: HashMap<Id, Lying>,
    /// Offset of the opcode at work.
    at: u64,
    opcode: u8,
    stuck: Option<u64>,
    /// `true` if a memo number could not be read here, although Python may read it.
    has_odd_keys: bool,
    loose: Loose,
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

    /// Reads the pickle of an object array, which is in the stream in place of the array's bytes.
    pub(super) fn nested_stream(&mut self) -> Result<()> {
        if self.depth == MAX_STREAMS {
            return Err(self.bad("nests arrays of objects too deep"));
        }

        self.depth += 1;

        // Another unpickler of joblib loads it, which shares neither stack nor memo.
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

    /// Keeps `bytes` in a scan if they may be a pickle.
    ///
    /// They end at the current position of the input.
    pub(super) fn look_inside(&mut self, bytes: &[u8], verbatim: bool) {
        if self.policy.lenient {
            let start = verbatim.then(|| self.input.position() - bytes.len() as u64);
            self.blobs.offer(bytes, self.at, start);
        }
    }

    pub(super) fn bad(&self, what: &str) -> Error {
        Error::format(format!("the pickle's {} {what}", op::name(self.opcode)))
    }

    /// Replaces an error with an opaque value in a scan. Strict reading returns the error.
    fn tolerate(&self, result: Result<Id>) -> Result<Id> {
        if self.policy.lenient { Ok(result.unwrap_or(OPAQUE)) } else { result }
    }

    /// Notes that Python's unpickler raises an error at this opcode.
    fn stop(&mut self) {
        self.stuck.get_or_insert(self.at);
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
            // Protocol 5 hands these over beside the pickle (PEP 574), and a file has nothing
            // beside it.
            op::NEXT_BUFFER => {
                self.refuse("requires a buffer from outside the file")?;
                self.push(OPAQUE)
            }
            // Python does nothing where the value is one of the file's.
            op::READONLY_BUFFER => self.refuse("requires a buffer from outside the file"),
            code => Err(Error::format(format!("byte 0x{code:02x} is not a pickle opcode"))),
        }
    }

    fn protocol(&mut self) -> Result<()> {
        match self.input.byte()? {
            0..=5 => Ok(()),
            other => Err(Error::version(format!(
                "unsupported pickle protocol {other}; 0 to 5 are supported"
            ))),
        }
    }

    fn frame(&mut self) -> Result<()> {
        let len = u64::from_le_bytes(self.input.array()?);
        // A frame only says how much can be read ahead (PEP 3154).
        if len > self.input.remaining() {
            self.refuse("reaches past the end of the file")
        } else {
            Ok(())
        }
    }

    fn mark(&mut self) -> Result<()> {
        if self.marks.len() == MAX_MARKS {
            return Err(Error::memory(format!(
                "the pickle opens more than {MAX_MARKS} containers at a time"
            )));
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    /// Handles `POP`, which removes a mark if the mark is on top, as in Python.
    fn pop_or_unmark(&mut self) -> Result<()> {
        if self.marks.last() == Some(&self.stack.len()) {
            self.marks.pop();
            return Ok(());
        }
        self.pop().map(drop)
    }

    pub(super) fn push(&mut self, id: Id) -> Result<()> {
        // `DUP` and recalls stack the same value again, which the bound on nodes does not see.
        if self.stack.len() >= self.heap.max_nodes() {
            return Err(Error::memory("the pickle stacks more values than its length justifies"));
        }
        self.loose.push(id);
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
        self.stop();
        self.tolerate(Err(self.bad("needs a value, but the stack is empty")))
    }

    fn top(&mut self) -> Result<Id> {
        let top = self.stack.last().filter(|_| self.stack.len() > self.floor()).copied();
        if top.is_none() {
            self.stop();
        }
        self.tolerate(top.ok_or_else(|| self.bad("needs a value, but the stack is empty")))
    }

    fn pop_mark(&mut self) -> Result<Vec<Id>> {
        match self.marks.pop() {
            Some(mark) => Ok(self.stack.split_off(mark)),
            None => {
                self.stop();
                self.refuse("needs a mark, but there is none").map(|()| Vec::new())
            }
        }
    }

    /// Reads the number of a stored value. In a scan, returns `None` for an invalid number.
    fn memo_key(&mut self) -> Result<Option<u64>> {
        Ok(Some(match self.opcode {
            op::GET | op::PUT => {
                let key = text::memo_key(&self.input.line()?);
                if key.is_none() {
                    self.has_odd_keys = true;
                    self.refuse("has an invalid number")?;
                }
                return Ok(key);
            }
            op::BINGET | op::BINPUT => self.input.byte()?.into(),
            _ => u32::from_le_bytes(self.input.array()?).into(),
        }))
    }

    fn recall(&mut self) -> Result<()> {
        let key = self.memo_key()?;
        let known = key.and_then(|key| self.memo.get(&key).copied());
        if known.is_none() && !self.has_odd_keys {
            self.stop();
        }
        let id = known.ok_or_else(|| {
            let key = key.unwrap_or_default();
            self.bad(&format!("recalls {key}, which was never stored"))
        });
        let id = self.tolerate(id)?;
        self.push(id)
    }

    fn memoize(&mut self) -> Result<()> {
        let key = match self.opcode {
            op::MEMOIZE => Some(self.memo.len() as u64),
            _ => self.memo_key()?,
        };
        if self.memo.len() >= self.heap.max_nodes() {
            return Err(Error::memory("the pickle stores more values than its length justifies"));
        }
        let top = self.top()?;
        if let Some(key) = key {
            self.memo.insert(key, top);
        }
        Ok(())
    }
}
