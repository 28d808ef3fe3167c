//! TAR files of PyTorch 0.1: a member of storages, one of tensors, one with the pickle that refers
//! to them.

use std::collections::HashMap;

use apr_core::{ByteSource, Error, Escaped, Limits, Result, Strided};
use serde_json::Map;

use crate::contents::Contents;
use crate::input::Input;
use crate::legacy::{PLAIN, check_byte_order, sized};
use crate::options::OpenOptions;
use crate::pickle::build::storage_class;
use crate::pickle::vm::Numbered;
use crate::pickle::{Heap, Id, Node, Persistent, Policy, Storage, Tensor, run};
use crate::view::Range;
use apr_archive::tar::{BLOCK, Member, all_members};

const MAX_DIMS: u64 = 64;

/// The members, of which no two have one name.
fn members(source: &dyn ByteSource) -> Result<Vec<Member>> {
    let members = all_members(source)?;
    let twice = |(at, member): &(usize, &Member)| {
        members[..*at].iter().any(|other| other.name == member.name)
    };
    if let Some((_, member)) = members.iter().enumerate().find(twice) {
        let message =
            format!("the archive has two members named '{}'", Escaped::short(&member.name));
        return Err(Error::format(message).at(member.offset - BLOCK));
    }
    Ok(members)
}

/// Opens such a file.
pub(crate) fn read(
    source: &dyn ByteSource,
    options: &OpenOptions,
    limits: &Limits,
) -> Result<Contents> {
    let members = members(source)?;
    let find = |name: &str| members.iter().find(|member| member.plain_name() == name);
    let (Some(pickle), Some(storages)) = (find("pickle"), find("storages")) else {
        return Err(Error::format(
            "this TAR archive is not PyTorch's: it lacks 'pickle' or 'storages'",
        )
        .at(0));
    };

    if let Some(system) = find("sys_info") {
        let mut part =
            TarMember { source, limits, position: system.offset, end: system.offset + system.len };
        let (heap, root) = part.pickle()?;
        check_byte_order(&heap, root).map_err(|error| error.at(system.offset))?;
    }

    let mut part = TarMember {
        source,
        limits,
        position: storages.offset,
        end: storages.offset + storages.len,
    };
    let (mut numbered, ranges) = part.storages()?;
    if let Some(tensors) = find("tensors") {
        TarMember { source, limits, position: tensors.offset, end: tensors.offset + tensors.len }
            .tensors(&mut numbered)?;
    }

    let policy = Policy {
        lenient: false,
        joblib: false,
        arrays: false,
        classes: &options.classes,
        persistent: Persistent::Numbered(numbered),
    };

    let input = Input::new(source, pickle.offset, pickle.offset + pickle.len, limits);
    let outcome = run(input, &policy, limits);
    let root = outcome.root?;
    let warnings =
        crate::rest::check_rest(source, outcome.end, pickle.offset + pickle.len, limits)?;
    let header_fields = Map::from_iter([("container".to_owned(), "TAR".into())]);
    Ok(Contents {
        checksums: HashMap::new(),
        heap: outcome.heap,
        root,
        storages: ranges,
        header_fields,
        warnings,
        left_out: Vec::new(),
        code: Vec::new(),
        origin: None,
        constants: None,
    })
}

/// A member, read from front to back.
struct TarMember<'a> {
    source: &'a dyn ByteSource,
    limits: &'a Limits,
    position: u64,
    end: u64,
}

impl TarMember<'_> {
    fn pickle(&mut self) -> Result<(Heap, Id)> {
        let outcome =
            run(Input::new(self.source, self.position, self.end, self.limits), &PLAIN, self.limits);
        self.position = outcome.end;
        Ok((outcome.heap, outcome.root?))
    }

    fn count(&mut self) -> Result<u64> {
        let at = self.position;
        let (heap, root) = self.pickle()?;
        heap.unsigned(root).ok_or_else(|| Error::format("a count is not a number").at(at))
    }

    /// A pickled tuple of three: a key, a key or device, a class.
    fn triple(&mut self) -> Result<(Heap, [Id; 3])> {
        let at = self.position;
        let (heap, root) = self.pickle()?;
        let triple = heap.items(root).and_then(|items| items.try_into().ok());
        let triple =
            triple.ok_or_else(|| Error::format("an entry is not a tuple of three").at(at))?;
        Ok((heap, triple))
    }

    /// A count, then for each storage `(key, device, class)` as a pickle, its length and its
    /// elements; then views.
    fn storages(&mut self) -> Result<(HashMap<String, Numbered>, HashMap<String, Range>)> {
        let (mut numbered, mut ranges) = (HashMap::new(), HashMap::new());
        for _ in 0..self.count()? {
            let at = self.position;
            let (heap, [key, _, class]) = self.triple()?;
            let element = storage_class(&heap, class).zip(key_text(&heap, key));
            let (element, key) =
                element.ok_or_else(|| Error::format("a storage has no key or class").at(at))?;
            let range = sized(self.source, self.position, element.width)?;
            self.position = range.offset + range.len;
            if self.position > self.end {
                return Err(Error::corrupt("a storage reaches past its member's end").at(at));
            }

            let storage =
                Storage { key: key.clone(), element, len: range.len / element.width, view: None };
            numbered.insert(key.clone(), Numbered::Storage(storage));
            if ranges.insert(key, range).is_some() {
                return Err(Error::corrupt("two storages have the same key").at(at));
            }
        }

        if self.position < self.end {
            self.views(&mut numbered)?;
        }

        Ok((numbered, ranges))
    }

    /// `[(key, key of the whole, first element, length), ...]`
    fn views(&mut self, numbered: &mut HashMap<String, Numbered>) -> Result<()> {
        let at = self.position;
        let (heap, root) = self.pickle()?;
        let bad = || Error::format("a view of a storage is not (key, key, first, length)").at(at);
        for &view in heap.items(root).ok_or_else(bad)? {
            let Some([key, whole, first, len]) = heap.items(view) else { return Err(bad()) };
            let (key, whole) =
                key_text(&heap, *key).zip(key_text(&heap, *whole)).ok_or_else(bad)?;
            let view = heap.unsigned(*first).zip(heap.unsigned(*len)).ok_or_else(bad)?;
            let Some(Numbered::Storage(storage)) = numbered.get(&whole) else { return Err(bad()) };
            let storage = Storage { view: Some(view), ..storage.clone() };
            numbered.insert(key, Numbered::Storage(storage));
        }
        Ok(())
    }

    /// A count, then for each tensor `(key, storage, class)` as a pickle, and numbers of eight
    /// bytes: dimensions, sizes, strides, offset.
    fn tensors(&mut self, numbered: &mut HashMap<String, Numbered>) -> Result<()> {
        for _ in 0..self.count()? {
            let at = self.position;
            let (heap, [key, storage, _]) = self.triple()?;
            let bad = || Error::format("a tensor has no key or storage").at(at);
            let (key, storage) =
                key_text(&heap, key).zip(key_text(&heap, storage)).ok_or_else(bad)?;
            let Some(Numbered::Storage(storage)) = numbered.get(&storage) else {
                return Err(bad());
            };
            let storage = storage.clone();

            // Written as eight bytes, of which PyTorch reads four.
            let dims = self.number()? & u64::from(u32::MAX);
            if dims > MAX_DIMS {
                return Err(Error::format(format!("a tensor of {dims} dimensions")).at(at));
            }

            let shape = (0..dims).map(|_| self.number()).collect::<Result<_>>()?;
            let strides = (0..dims).map(|_| self.number()).collect::<Result<_>>()?;
            let elements = Strided::new(self.number()?, shape, strides)?;
            let dtype = storage.element.dtype.ok_or_else(|| {
                Error::version(format!(
                    "a tensor whose dtype no format here holds ({})",
                    storage.element.name
                ))
                .at(at)
            })?;
            let tensor = Tensor { storage: 0, dtype, elements };
            numbered.insert(key, Numbered::Tensor(storage, tensor));
        }

        Ok(())
    }

    fn number(&mut self) -> Result<u64> {
        let mut bytes = [0; 8];
        if self.end.saturating_sub(self.position) < bytes.len() as u64 {
            return Err(Error::corrupt("a number is cut off").at(self.position));
        }
        self.source.read_at(self.position, &mut bytes)?;
        self.position += 8;
        Ok(u64::from_le_bytes(bytes))
    }
}

fn key_text(heap: &Heap, id: Id) -> Option<String> {
    match heap.get(id) {
        Node::Int(number) => Some(number.to_string()),
        _ => heap.text(id).map(str::to_owned),
    }
}
