//! Distributed checkpoints: a folder of `.distcp` files, each with the pieces that one process had,
//! and `.metadata`, a pickle that says which piece of which tensor lies where.
//!
//! ```text
//! .metadata       state_dict_metadata   name -> dtype, size, pieces: offsets and sizes along each
//!                                       dimension
//!                 storage_data          name and offsets of a piece -> file, offset, length
//! __0_0.distcp    one after the other, for each piece what `torch.save` writes of a tensor: a ZIP
//!                 archive
//! __1_0.distcp    ...
//! ```

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use apr_archive::Section;
use apr_core::{
    ByteSource, CheckpointReader, Error, Escaped, FileInfo, Limits, Result, Shape, SharedSource,
    SourceSet, Stored, StoredPart, StoredRange, Sum, Table, TensorBytes, TensorDecoder, TensorInfo,
    check_file_name, counted,
};

use crate::input::Input;
use crate::options::OpenOptions;
use crate::pickle::build::MAX_DIMS;
use crate::pickle::{Heap, Id, Node, Persistent, Policy, run};
use crate::reader::open_boxed;

/// Name of the file that describes the others.
pub const METADATA: &str = ".metadata";

/// Pieces of one tensor: all are compared with each other.
const MAX_PIECES: usize = 4096;

/// Attributes that are looked at to find others, at most: objects of the metadata may share one
/// state with as many as there are objects.
const MAX_WORK: u64 = 100_000_000;

/// Total tensor bytes allowed for any files, in addition to [`MAX_GROWTH`] times the files' bytes.
///
/// Each piece can repeat stored bytes, as in a single file.
const FREE_BYTES: u64 = 1 << 30;
const MAX_GROWTH: u64 = 16;

/// Longest name of a file.
const MAX_FILE_NAME: usize = 255;

/// Opens a distributed checkpoint: its tensors as they were before they were cut, whatever
/// processes had their pieces.
///
/// # Errors
/// E001 for metadata that is malformed or names what is not allowed, E002 where pieces and files
/// disagree, E003 for kinds that are not read, E007 for an absent file, E008 over a limit.
pub fn open_distributed(
    metadata: &dyn ByteSource,
    set: &dyn SourceSet,
    limits: &Limits,
    options: &OpenOptions,
) -> Result<Table> {
    let in_metadata = |error: Error| error.in_file(METADATA);
    let policy = Policy {
        lenient: false,
        joblib: false,
        arrays: false,
        classes: &options.classes,
        persistent: Persistent::None,
    };

    let outcome = run(Input::new(metadata, 0, metadata.len(), limits), &policy, limits);
    let root = outcome.root.map_err(in_metadata)?;
    let (items, values) =
        Index { heap: &outcome.heap, work: Cell::new(0) }.read(root).map_err(in_metadata)?;
    let mut files = Files { set, limits, options, by_name: BTreeMap::new() };
    let (mut tensors, mut names) = (Vec::new(), HashSet::new());
    for item in items {
        let name = item.name.clone();
        let tensor = files.assemble(item).map_err(|error| error.for_tensor(&name))?;
        if !names.insert(name.clone()) {
            return Err(
                Error::format("the checkpoint has two tensors of this name").for_tensor(name)
            );
        }
        tensors.push(tensor);
    }

    let mut table = finish(files, metadata.len(), tensors)?;
    if let [first, ..] = &values[..] {
        let shown = Escaped::short(first);
        let count = counted(values.len() as u64, "value");
        table.left_out.push(format!("{count} that are not tensors, the first is '{shown}'"));
    }
    Ok(table)
}

/// Returns the table of the tensors, whose pieces are in these files.
fn finish(files: Files<'_>, metadata_len: u64, tensors: Vec<Tensor>) -> Result<Table> {
    let mut table = Table::new(&crate::FORMAT);
    let mut numbered: Vec<_> = files.by_name.into_iter().collect();
    numbered.sort_by_key(|(_, (number, _))| *number);
    for (name, (_, source)) in numbered {
        table.add_file(FileInfo { name, len: source.len() }, source);
    }
    // It was read.
    let described = FileInfo { name: METADATA.into(), len: metadata_len };
    table.add_file(described, Arc::new(Vec::new()));
    let total = |sum: u64, len: u64| sum.saturating_add(len);
    let stored = table.files().iter().map(|file| file.len).fold(0, total);
    let allowed = FREE_BYTES.saturating_add(stored.saturating_mul(MAX_GROWTH));
    let needed = tensors.iter().map(|tensor| tensor.len).fold(0, total);
    if needed > allowed {
        let message =
            format!("its tensors have {needed} bytes; {allowed} are allowed for its files");
        return Err(Error::memory(message));
    }

    table.show("container", "distributed");
    table.show("kind", "distributed checkpoint of PyTorch");
    table.show("pieces", tensors.iter().map(|tensor| tensor.pieces.len()).sum::<usize>());
    for tensor in tensors {
        table.add(tensor.info.clone(), TensorBytes::decoded(tensor))?;
    }
    Ok(table)
}

/// A tensor as the metadata describe it.
struct Item {
    name: String,
    size: Vec<u64>,
    pieces: Vec<Described>,
}

struct Described {
    offsets: Vec<u64>,
    sizes: Vec<u64>,
    file: String,
    offset: u64,
    len: u64,
}

/// The metadata's values.
struct Index<'a> {
    heap: &'a Heap,
    /// Attributes that were looked at.
    work: Cell<u64>,
}

impl Index<'_> {
    /// Reads the tensors, and the names of the values that are not tensors.
    fn read(&self, root: Id) -> Result<(Vec<Item>, Vec<String>)> {
        let bad =
            |what: &str| Error::format(format!("the metadata of a distributed checkpoint {what}"));
        let tensors = self.field(root, "state_dict_metadata").and_then(|id| self.pairs(id));
        let places = self.field(root, "storage_data").and_then(|id| self.pairs(id));
        let (tensors, places) =
            tensors.zip(places).ok_or_else(|| bad("list no tensors, or no places of them"))?;
        let mut by_piece = HashMap::new();
        for &(key, place) in places {
            self.check_work()?;
            let name = self.field(key, "fqn").and_then(|name| self.heap.text(name));
            let name = name.ok_or_else(|| bad("give a place to something without a name"))?;
            let offsets = self
                .field(key, "offset")
                .and_then(|offset| self.numbers(offset))
                .unwrap_or_default();
            if by_piece.insert((name, offsets), place).is_some() {
                return Err(bad("give two places to one piece").for_tensor(name));
            }
        }

        let (mut items, mut values) = (Vec::new(), Vec::new());
        for &(name, described) in tensors {
            self.check_work()?;
            let name = self.heap.text(name).ok_or_else(|| bad("have a tensor without a name"))?;

            // `BytesStorageMetadata` has none: it describes a pickled value.
            let Some(size) = self.field(described, "size") else {
                values.push(name.to_owned());
                continue;
            };
            let place = |offsets: &[u64]| by_piece.get(&(name, offsets.to_vec())).copied();
            let item = self.item(name, size, described, place);
            items.push(
                item.ok_or_else(|| bad("describe it in a way that is not known").for_tensor(name))?,
            );
        }

        Ok((items, values))
    }

    fn item(
        &self,
        name: &str,
        size: Id,
        described: Id,
        place: impl Fn(&[u64]) -> Option<Id>,
    ) -> Option<Item> {
        let chunks = self.field(described, "chunks").and_then(|chunks| self.heap.items(chunks))?;
        let chunks = if chunks.len() > MAX_PIECES { return None } else { chunks };
        let piece = |&chunk: &Id| {
            let offsets = self.numbers(self.field(chunk, "offsets")?)?;
            let sizes = self.numbers(self.field(chunk, "sizes")?)?;
            let place = place(&offsets)?;
            // What was compressed on its way to the file needs more than its place.
            let plain =
                self.field(place, "transform_descriptors").is_none_or(|how| self.is_empty(how));
            let file = self.heap.text(self.field(place, "relative_path")?)?;
            let file = Some(file).filter(|file| file.len() <= MAX_FILE_NAME)?.to_owned();
            let offset = self.heap.unsigned(self.field(place, "offset")?)?;
            let len = self.heap.unsigned(self.field(place, "length")?)?;
            plain.then_some(Described { offsets, sizes, file, offset, len })
        };

        let pieces = chunks.iter().map(piece).collect::<Option<Vec<_>>>()?;

        // A piece has a place of its own, but a list may have one piece a thousand times.
        let mut starts = HashSet::new();
        if !pieces.iter().all(|piece| starts.insert(&piece.offsets)) {
            return None;
        }
        Some(Item { name: name.to_owned(), size: self.numbers(size)?, pieces })
    }

    fn check_work(&self) -> Result<()> {
        if self.work.get() <= MAX_WORK {
            return Ok(());
        }
        Err(Error::memory("the metadata of a distributed checkpoint repeat themselves too often"))
    }

    fn is_empty(&self, id: Id) -> bool {
        matches!(self.heap.get(id), Node::None) || self.heap.items(id).is_some_and(<[Id]>::is_empty)
    }

    /// An attribute of an instance.
    fn field(&self, id: Id, name: &str) -> Option<Id> {
        match self.heap.get(id) {
            Node::Object(Some(state)) => {
                self.work.set(self.work.get().saturating_add(self.heap.size(*state) as u64));
                self.heap.entry(*state, name)
            }
            _ => None,
        }
    }

    fn pairs(&self, id: Id) -> Option<&[(Id, Id)]> {
        match self.heap.get(id) {
            Node::Dict(pairs) => Some(pairs),
            _ => None,
        }
    }

    fn numbers(&self, id: Id) -> Option<Vec<u64>> {
        let items = self.heap.items(id).filter(|items| items.len() <= MAX_DIMS)?;
        items.iter().map(|&item| self.heap.unsigned(item)).collect()
    }
}

/// The files of the folder that were opened so far, with their numbers.
struct Files<'a> {
    set: &'a dyn SourceSet,
    limits: &'a Limits,
    options: &'a OpenOptions,
    by_name: BTreeMap<String, (usize, SharedSource)>,
}

impl Files<'_> {
    fn open(&mut self, name: &str) -> Result<(usize, SharedSource)> {
        if let Some((number, source)) = self.by_name.get(name) {
            return Ok((*number, Arc::clone(source)));
        }
        // The name comes from the metadata, and must not lead out of the folder.
        check_file_name(name)?;
        let source: SharedSource =
            Arc::from(self.set.open(name).map_err(|error| error.in_file(name))?);
        let number = self.by_name.len();
        self.by_name.insert(name.to_owned(), (number, Arc::clone(&source)));
        Ok((number, source))
    }

    fn assemble(&mut self, item: Item) -> Result<Tensor> {
        let mut dtype = None;
        let mut pieces = Vec::with_capacity(item.pieces.len());
        for described in item.pieces {
            let piece = self.piece(&described)?;
            let own = piece.reader.tensors()[0].dtype;
            if *dtype.get_or_insert(own) != own {
                return Err(
                    Error::corrupt("its pieces have different dtypes").in_file(&described.file)
                );
            }
            pieces.push(piece);
        }

        let dtype = dtype.ok_or_else(|| Error::corrupt("it has no pieces"))?;
        let info = TensorInfo { name: item.name, dtype, shape: Shape::from(item.size) };
        let len = info.byte_len()?;
        check_tiling(info.shape.dims(), &pieces)?;
        Ok(Tensor { info, len, pieces })
    }

    fn piece(&mut self, described: &Described) -> Result<Piece> {
        let Described { offsets, sizes, file, offset, len } = described;
        let (number, source) = self.open(file)?;

        // A piece is what `torch.save` writes of one tensor.
        let section = Section::new(Arc::clone(&source), *offset, *len)
            .map_err(|error| error.in_file(file))?;
        let options = OpenOptions { prefix: None, classes: self.options.classes.clone() };
        let reader = open_boxed(Box::new(section), file, self.limits, &options)?.table()?;
        match reader.tensors() {
            [tensor] if tensor.shape.dims() == sizes => {}
            _ => {
                let message =
                    format!("the piece at byte {offset} is not one tensor of shape {sizes:?}");
                return Err(Error::corrupt(message).at(*offset).in_file(file));
            }
        }

        let (offsets, sizes) = (offsets.clone(), sizes.clone());
        Ok(Piece { offsets, sizes, file: number, start: *offset, source, reader })
    }
}

/// Checks that the pieces are inside the tensor, do not overlap and cover it completely.
fn check_tiling(size: &[u64], pieces: &[Piece]) -> Result<()> {
    let volume =
        |sizes: &[u64]| sizes.iter().try_fold(1_u64, |volume, &size| volume.checked_mul(size));
    let within = |piece: &Piece| {
        let ends =
            piece.offsets.iter().zip(&piece.sizes).map(|(offset, size)| offset.checked_add(*size));
        piece.offsets.len() == size.len()
            && ends.zip(size).all(|(end, size)| end.is_some_and(|end| end <= *size))
    };

    let filled: Vec<&Piece> = pieces.iter().filter(|piece| !piece.sizes.contains(&0)).collect();
    let apart = |one: &Piece, other: &Piece| {
        let one = one.offsets.iter().zip(&one.sizes);
        let other = other.offsets.iter().zip(&other.sizes);

        // `within` is asked before, so that these sums can't overflow.
        one.zip(other).any(|((a, len), (b, other_len))| a + len <= *b || b + other_len <= *a)
    };

    // Pieces of the same volume as the whole, none over another, leave no gap.
    let sum = pieces.iter().try_fold(0_u64, |sum, piece| sum.checked_add(volume(&piece.sizes)?));
    let problem = if !pieces.iter().all(within) {
        "a piece reaches past its end"
    } else if sum.is_none() || sum != volume(size) {
        "its pieces do not cover it exactly"
    } else if filled
        .iter()
        .enumerate()
        .any(|(at, one)| filled[..at].iter().any(|other| !apart(one, other)))
    {
        "two of its pieces overlap"
    } else {
        return Ok(());
    };
    Err(Error::corrupt(problem))
}

/// A piece of a tensor, in a file of its own.
struct Piece {
    offsets: Vec<u64>,
    sizes: Vec<u64>,
    file: usize,
    /// Offset of the piece's archive in the file.
    start: u64,
    source: SharedSource,
    reader: Table,
}

impl Piece {
    /// Returns the stored checksums of the piece's bytes, with their ranges in the file.
    fn parts(&self) -> Vec<StoredPart<'_>> {
        let in_file = |range: StoredRange| StoredRange {
            file: self.file,
            offset: self.start + range.offset,
            ..range
        };
        let stored = self.reader.stored(0);
        let own = stored.crc32().map(|crc32| (stored.range, Sum::Crc32(crc32)));

        // Decoded bytes have no place in the file that they could be read from.
        let parts = stored
            .parts()
            .iter()
            .filter(|part| part.place == part.range)
            .map(|part| (part.range, part.sum));
        let all = own.into_iter().chain(parts);
        all.map(|(range, sum)| StoredPart::of_file(&*self.source, in_file(range), sum)).collect()
    }
}

/// A tensor put together from its pieces.
struct Tensor {
    info: TensorInfo,
    len: u64,
    pieces: Vec<Piece>,
}

/// Location of a byte of a tensor: its piece, the offset there, and the run length.
struct Run<'a> {
    piece: &'a Piece,
    /// Index of the piece.
    position: usize,
    offset: u64,
    len: u64,
}

impl Tensor {
    /// The run from a byte on, in the piece `near` or the next one that holds it: the rows of
    /// pieces side by side come in turns. The innermost dimension is counted in bytes.
    fn run(&self, byte: u64, near: usize) -> Option<Run<'_>> {
        let width = self.info.dtype.block_bytes();
        let dims = self.info.shape.dims();
        let Some(last) = dims.len().checked_sub(1) else {
            let (piece, len) = (self.pieces.first()?, self.len - byte);
            return Some(Run { piece, position: 0, offset: byte, len });
        };
        let mut index = vec![0; dims.len()];
        let mut rest = byte / width;
        for (slot, &dim) in index.iter_mut().zip(dims).rev() {
            // No size is 0: a tensor without elements has no byte that is read.
            *slot = rest % dim;
            rest /= dim;
        }

        let holds = |piece: &Piece| {
            let ranges = piece.offsets.iter().zip(&piece.sizes);
            index
                .iter()
                .zip(ranges)
                .all(|(at, (offset, size))| (*offset..offset + size).contains(at))
        };

        let in_turn = (near..self.pieces.len()).chain(0..near.min(self.pieces.len()));
        let position = in_turn.into_iter().find(|&at| holds(&self.pieces[at]))?;
        let piece = &self.pieces[position];
        let local: Vec<u64> =
            index.iter().zip(&piece.offsets).map(|(at, offset)| at - offset).collect();
        let element =
            local.iter().zip(&piece.sizes).fold(0, |element, (at, size)| element * size + at);

        // As long as the piece is as wide as the tensor, the next row of one follows where that of
        // the other does.
        let (mut left, mut row, mut dim) =
            (piece.sizes[last] - local[last], piece.sizes[last], last);
        while dim > 0 && piece.sizes[dim] == dims[dim] {
            dim -= 1;
            left += (piece.sizes[dim] - local[dim] - 1) * row;
            row *= piece.sizes[dim];
        }

        let within = byte % width;
        let (offset, len) = (element * width + within, left * width - within);
        Some(Run { piece, position, offset, len })
    }
}

impl TensorDecoder for Tensor {
    /// For a tensor of several pieces, the range of the first.
    fn range(&self) -> StoredRange {
        self.pieces.first().map_or(StoredRange { file: 0, offset: 0, len: 0 }, |piece| {
            let range = piece.reader.stored(0).range;
            StoredRange { file: piece.file, offset: piece.start + range.offset, ..range }
        })
    }

    fn read(&self, _: &[SharedSource], offset: u64, buf: &mut [u8]) -> Result<()> {
        let (mut position, mut rest, mut near) = (offset, buf, 0);
        while !rest.is_empty() {
            let run = self
                .run(position, near)
                .ok_or_else(|| Error::corrupt("no piece holds this part of it"))?;
            let len = usize::try_from(run.len).map_or(rest.len(), |len| len.min(rest.len()));
            let (head, tail) = rest.split_at_mut(len);
            run.piece.reader.read_tensor(0, run.offset, head)?;
            position += len as u64;
            (rest, near) = (tail, run.position);
        }
        Ok(())
    }

    fn stored<'a>(&'a self, _: &'a [SharedSource]) -> Stored<'a> {
        let parts = self.pieces.iter().flat_map(Piece::parts).collect();
        Stored::derived(self.range()).with_parts(parts)
    }

    fn slice<'a>(&'a self, _: &'a [SharedSource]) -> Option<&'a [u8]> {
        match &self.pieces[..] {
            [piece] => piece.reader.tensor_slice(0),
            _ => None,
        }
    }
}
