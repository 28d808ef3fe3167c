//! Writing a model as shards and a manifest, each shard an APR2 file of its own.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use apr_core::digest::ChunkSums;
use apr_core::{
    CheckpointWriter, ChunkEncoder, Companion, Due, Error, FileInfo, Layout, Metadata, Notes,
    PlannedTensor, Result, Sink, TensorInfo, check_file_name, keys, shard_units,
};
use serde_json::{Map, Value};

use super::companion::CompanionFile;
use super::layout::FOOTER_LEN;
use super::manifest::{Contents, Manifest, ShardEntry};
use super::options::WriteOptions;
use super::plan::ties;
use super::signing::SigningKey;
use super::writer::{Apr2Writer, plan};

/// Plans shards of at most `shard_size` bytes of tensors and companions, and their manifest.
///
/// The manifest is last and has the name of [`WriteOptions::file_name`]. A model that fits into one
/// shard becomes a plain file.
///
/// Shards are filled in the given order, and the parts of a weight in codes and scales stay in one
/// shard if they fit into one. A tensor that exceeds the size alone gets a shard of its own, and a
/// tied tensor is stored with its target. The first shard has all the metadata and companions, the
/// others only the metadata that identify the model. Facts learnt during the pass are noted in the
/// manifest. Signers sign each shard and the manifest.
///
/// ```
/// use apr_core::{CheckpointWriter, DType, MemoryFolder, Metadata, Notes, Shape, TensorInfo};
/// use apr_format::apr2;
///
/// let tensor =
///     |name: &str| TensorInfo { name: name.into(), dtype: DType::U8, shape: Shape::from([4]) };
/// let options = apr2::WriteOptions::default();
/// let mut writer =
///     apr2::plan_shards(&[tensor("a"), tensor("b")], &Metadata::new(), Vec::new(), &options, 4)?;
///
/// let mut folder = MemoryFolder::default();
/// writer.begin(&mut folder)?;
/// writer.write_chunk(&mut folder, b"aaaa", None)?;
/// writer.write_chunk(&mut folder, b"bbbb", None)?;
/// writer.finish(&mut folder, &Notes::default())?;
/// let names: Vec<_> = folder.files().keys().collect();
/// assert_eq!(names, ["model-00001-of-00002.apr", "model-00002-of-00002.apr", "model.apr"]);
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// # Errors
/// As [`plan`] for each shard; E001 for a `shard_size` of 0 and a file name that is not plain or
/// does not end in `.apr`.
pub fn plan_shards(
    tensors: &[TensorInfo],
    metadata: &Metadata,
    companions: Vec<CompanionFile>,
    options: &WriteOptions,
    shard_size: u64,
) -> Result<Box<dyn CheckpointWriter>> {
    let cut = Cut::plan(tensors, metadata, &companions, options, shard_size)?;
    if cut.shards.len() <= 1 {
        return Ok(Box::new(plan(tensors, metadata, companions, options)?));
    }
    Ok(Box::new(ShardWriter::plan(&cut, companions, options)?))
}

/// Returns the number of shards that [`plan_shards`] makes of these tensors and `carried` bytes of
/// companions; 0 if there are no tensors.
///
/// # Errors
/// E001 for a `shard_size` of 0, and when dtype and shape of a tensor do not go together.
pub fn shard_count(
    tensors: &[TensorInfo],
    metadata: &Metadata,
    carried: u64,
    shard_size: u64,
) -> Result<usize> {
    if shard_size == 0 {
        return Err(Error::format("the shard size must be 1 byte or more"));
    }
    split(tensors, &targets(tensors, metadata), carried, shard_size).map(|shards| shards.len())
}

/// Assignment of tensors to shards.
pub(super) struct Cut<'a> {
    tensors: &'a [TensorInfo],
    /// Metadata of the whole.
    whole: Metadata,
    /// Positions of the tensors of each shard.
    pub(super) shards: Vec<Vec<usize>>,
}

impl<'a> Cut<'a> {
    pub(super) fn plan(
        tensors: &'a [TensorInfo],
        metadata: &Metadata,
        companions: &[CompanionFile],
        options: &WriteOptions,
        shard_size: u64,
    ) -> Result<Self> {
        if shard_size == 0 {
            return Err(Error::format("the shard size must be 1 byte or more"));
        }
        if let Some(name) = duplicate(tensors) {
            return Err(Error::format("two tensors have this name").for_tensor(name));
        }

        let mut whole = metadata.clone();
        whole.set(keys::APR_VERSION, "2.0.0");
        whole.set_default(keys::MODEL_TYPE, "unknown");
        whole.set_default(keys::ARCHITECTURE, Map::new());
        let carried =
            companions.iter().map(|file| file.bytes.len() as u64).fold(0, u64::saturating_add);
        let shards = split(tensors, &targets(tensors, &whole), carried, shard_size)?;
        if shards.len() > 1 {
            check_several(options)?;
        }

        Ok(Self { tensors, whole, shards })
    }

    /// The writer of a shard, and the name of its file. The first one has the companions.
    pub(super) fn writer(
        &self,
        number: usize,
        companions: Vec<CompanionFile>,
        options: &WriteOptions,
    ) -> Result<(Apr2Writer, String)> {
        let members = &self.shards[number];
        let stem = options.file_name.strip_suffix(".apr").unwrap_or(&options.file_name);
        let file_name = format!("{stem}-{:05}-of-{:05}.apr", number + 1, self.shards.len());
        let infos: Vec<TensorInfo> =
            members.iter().map(|&member| self.tensors[member].clone()).collect();
        let metadata =
            if number == 0 { self.whole.clone() } else { part_metadata(&self.whole, &infos) };
        let companions = if number == 0 { companions } else { Vec::new() };
        let forms =
            members.iter().map(|&member| options.forms.get(member).copied().flatten()).collect();
        let options =
            WriteOptions { sharded: true, file_name: file_name.clone(), forms, ..options.clone() };
        Ok((plan(&infos, &metadata, companions, &options)?, file_name))
    }
}

/// Rejects options that several files can't have.
fn check_several(options: &WriteOptions) -> Result<()> {
    check_file_name(&options.file_name)?;
    if options.hides_metadata() {
        // The manifest describes the model to whoever reads it, and one key must not encrypt two
        // tensors of one name.
        return Err(Error::format(
            "the metadata of shards can't be encrypted, since the manifest repeats them",
        ));
    }

    if !options.file_name.ends_with(".apr") {
        // Readers know a manifest by its content and this ending.
        let message = "the name of a manifest ends in .apr; an export with `shard_size` writes \
                       shards of other formats";
        return Err(Error::format(message).in_file(&options.file_name));
    }

    Ok(())
}

fn duplicate(tensors: &[TensorInfo]) -> Option<&str> {
    let mut names = BTreeSet::new();
    tensors.iter().map(|info| info.name.as_str()).find(|name| !names.insert(*name))
}

/// Returns for each tensor the position of the one whose bytes it shares.
fn targets(tensors: &[TensorInfo], metadata: &Metadata) -> Vec<Option<usize>> {
    let tied = ties(tensors, metadata);
    let by_name: BTreeMap<&str, usize> =
        tensors.iter().enumerate().map(|(at, info)| (info.name.as_str(), at)).collect();
    let target = |info: &TensorInfo| {
        let target = metadata.object(keys::TIED)?.get(&info.name)?.as_str()?;
        by_name.get(target).copied().filter(|_| tied.contains(info.name.as_str()))
    };
    tensors.iter().map(target).collect()
}

/// Returns the positions of the tensors of each shard, ascending within it. The first shard already
/// holds `carried` bytes.
fn split(
    tensors: &[TensorInfo],
    targets: &[Option<usize>],
    carried: u64,
    limit: u64,
) -> Result<Vec<Vec<usize>>> {
    let mut shard_of = alloc::vec![0; tensors.len()];
    let (mut shard, mut size) = (0, carried);
    let mut is_empty = carried == 0;
    let mut lens = alloc::vec![0; tensors.len()];
    for (len, (info, target)) in lens.iter_mut().zip(tensors.iter().zip(targets)) {
        if target.is_none() {
            *len = info.byte_len()?;
        }
    }
    let named = tensors.iter().map(|info| info.name.as_str()).zip(lens.iter().copied());
    for mut unit in shard_units(named, limit) {
        unit.retain(|&position| targets[position].is_none());
        if unit.is_empty() {
            continue;
        }
        let len = unit.iter().fold(0, |len: u64, &position| len.saturating_add(lens[position]));
        if !is_empty && len > limit.saturating_sub(size) {
            (shard, size) = (shard + 1, 0);
        }
        is_empty = false;
        size = size.saturating_add(len);
        unit.into_iter().for_each(|position| shard_of[position] = shard);
    }
    let mut shards = alloc::vec![Vec::new(); shard + 1];
    for (position, target) in targets.iter().enumerate() {
        // The target of a tie is not tied itself.
        shards[shard_of[target.unwrap_or(position)]].push(position);
    }

    Ok(shards)
}

/// A sharded model being written; see [`plan_shards`].
struct ShardWriter {
    shards: Vec<Apr2Writer>,
    /// The shard being written.
    current: usize,
    layout: Layout,
    /// The layout's tensors with their decoded lengths, since their bytes arrive decoded.
    due_layout: Layout,
    due: Due,
    /// Names of the layout's tensors.
    names: Vec<String>,
    /// Shard of each of them, and position in the shard's layout.
    members_of: Vec<(usize, usize)>,
    /// Sizes and checksums become right as shards are finished.
    manifest: Manifest,
    signers: Vec<SigningKey>,
}

impl ShardWriter {
    fn plan(cut: &Cut<'_>, companions: Vec<CompanionFile>, options: &WriteOptions) -> Result<Self> {
        let tensors = cut.tensors;
        let mut contents = Contents {
            metadata: cut.whole.clone(),
            companions: companions.iter().map(listed).collect(),
            tensors: tensors.to_vec(),
        };
        contents.metadata.remove(keys::FILES);
        contents.companions.sort_by(|a, b| a.name.cmp(&b.name));
        let signatures_len = usize::try_from(options.signatures_len()).unwrap_or_default();
        let is_signed = signatures_len > 0;
        let mut manifest = Manifest {
            shards: Vec::new(),
            tensor_shard_map: Vec::new(),
            contents: Some(contents),
            // As long as they will be.
            signatures: is_signed.then(|| alloc::vec![0; signatures_len]),
        };

        let (mut layout, mut due_layout, mut names) =
            (Layout::default(), Layout::default(), Vec::new());
        let mut members_of = Vec::new();
        let mut writers = Vec::new();
        let mut companions = Some(companions);
        for (number, members) in cut.shards.iter().enumerate() {
            let (writer, file_name) =
                cut.writer(number, companions.take().unwrap_or_default(), options)?;
            for (at, planned) in writer.layout().tensors.iter().enumerate() {
                let source = members[planned.source];
                let placed = PlannedTensor { source, file: number, ..*planned };
                layout.tensors.push(placed);
                let form = options.forms.get(source).copied().flatten();
                let len = form.map_or_else(|| tensors[source].byte_len(), |form| Ok(form.len))?;
                due_layout.tensors.push(PlannedTensor { len, ..placed });
                members_of.push((number, at));
                names.push(tensors[source].name.clone());
            }

            layout.files.extend_from_slice(&writer.layout().files);
            if number == 0 {
                layout.losses.extend_from_slice(&writer.layout().losses);
            }

            let size = writer.layout().total_len();
            let signed_digest = is_signed.then_some([0; 32]);
            manifest.shards.push(ShardEntry { file: file_name, size, crc32: 0, signed_digest });
            manifest
                .tensor_shard_map
                .extend(members.iter().map(|&member| (tensors[member].name.clone(), number)));
            writers.push(writer);
        }

        manifest.tensor_shard_map.sort_unstable();
        layout.files.push(FileInfo {
            name: options.file_name.clone(),
            len: manifest.encode().len() as u64,
        });
        Ok(Self {
            shards: writers,
            current: 0,
            layout,
            due_layout,
            due: Due::default(),
            names,
            members_of,
            manifest,
            signers: options.signers.clone(),
        })
    }

    fn start_shard(&mut self, sink: &mut dyn Sink, shard: usize) -> Result<()> {
        sink.next_file(&self.manifest.shards[shard].file)?;
        self.shards[shard].begin(sink)
    }

    fn finish_shard(&mut self, sink: &mut dyn Sink) -> Result<()> {
        let mut tail = Tail { sink, last: [0; FOOTER_LEN as usize] };
        self.shards[self.current].finish(&mut tail, &Notes::default())?;
        let [c0, c1, c2, c3, ..] = tail.last;
        let entry = &mut self.manifest.shards[self.current];
        entry.crc32 = u32::from_le_bytes([c0, c1, c2, c3]);
        entry.size = sink.position();
        if !self.signers.is_empty() {
            entry.signed_digest = self.shards[self.current].signed_digest();
        }
        Ok(())
    }

    /// Finishes shards until this one is current.
    fn go_to(&mut self, sink: &mut dyn Sink, shard: usize) -> Result<()> {
        while self.current < shard {
            self.finish_shard(sink)?;
            self.current += 1;
            self.start_shard(sink, self.current)?;
        }
        Ok(())
    }

    /// Updates the layout to the files as they were written.
    fn measure(&mut self, manifest_len: u64) {
        let lens = self.shards.iter().map(|shard| shard.layout().total_len()).chain([manifest_len]);
        self.layout.files.iter_mut().zip(lens).for_each(|(file, len)| file.len = len);
        for (planned, &(shard, at)) in self.layout.tensors.iter_mut().zip(&self.members_of) {
            let PlannedTensor { offset, len, .. } = self.shards[shard].layout().tensors[at];
            (planned.offset, planned.len) = (offset, len);
        }
    }

    /// Moves on to the next tensor while the current one is complete. Empty tensors are complete
    /// from the start.
    fn advance(&mut self, sink: &mut dyn Sink) -> Result<()> {
        while self.due.complete(&self.due_layout).is_some() {
            if let Some(next) = self.due.tensor(&self.due_layout).map(|next| next.file) {
                self.go_to(sink, next)?;
            }
        }
        Ok(())
    }
}

impl CheckpointWriter for ShardWriter {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn wants_sums(&self) -> bool {
        self.shards.iter().any(Apr2Writer::wants_sums)
    }

    fn mismatches(&self) -> u64 {
        self.shards.iter().map(Apr2Writer::mismatches).sum()
    }

    fn manifest(&self) -> Option<Vec<u8>> {
        Some(self.manifest.encode())
    }

    fn begin(&mut self, sink: &mut dyn Sink) -> Result<()> {
        self.start_shard(sink, 0)?;
        if let Some(first) = self.due.tensor(&self.due_layout).map(|first| first.file) {
            self.go_to(sink, first)?;
        }
        self.advance(sink)
    }

    fn write_chunk(
        &mut self,
        sink: &mut dyn Sink,
        bytes: &[u8],
        sums: Option<ChunkSums>,
    ) -> Result<()> {
        self.due.take(&self.due_layout, &self.names, bytes.len() as u64)?;
        self.shards[self.current].write_chunk(sink, bytes, sums)?;
        self.advance(sink)
    }

    fn encoder(&self) -> Option<Arc<dyn ChunkEncoder>> {
        let encoders: Vec<_> = self.shards.iter().map(Apr2Writer::encoder).collect();
        if encoders.iter().all(Option::is_none) {
            return None;
        }
        Some(Arc::new(ShardEncoder { encoders, members_of: self.members_of.clone() }))
    }

    fn write_piece(&mut self, sink: &mut dyn Sink, piece: &[u8], encoded: &[u8]) -> Result<()> {
        self.due.take(&self.due_layout, &self.names, piece.len() as u64)?;
        self.shards[self.current].write_piece(sink, piece, encoded)?;
        self.advance(sink)
    }

    fn finish(&mut self, sink: &mut dyn Sink, notes: &Notes) -> Result<()> {
        self.due.finish(&self.due_layout, &self.names)?;
        self.go_to(sink, self.shards.len() - 1)?;
        self.finish_shard(sink)?;
        self.manifest.note(notes);
        if !self.signers.is_empty() {
            self.manifest.signatures = None;
            self.manifest.sign(&self.signers)?;
        }

        let manifest = self.manifest.encode();
        self.measure(manifest.len() as u64);
        if let Some(file) = self.layout.files.last() {
            sink.next_file(&file.name)?;
        }

        sink.write_all(&manifest)
    }
}

/// The encoders of all shards.
struct ShardEncoder {
    encoders: Vec<Option<Arc<dyn ChunkEncoder>>>,
    /// Shard of each tensor, and position in the shard's layout.
    members_of: Vec<(usize, usize)>,
}

impl ShardEncoder {
    fn of(&self, planned: usize) -> Option<(&dyn ChunkEncoder, usize)> {
        let (shard, at) = self.members_of[planned];
        Some((self.encoders[shard].as_deref()?, at))
    }
}

impl ChunkEncoder for ShardEncoder {
    fn piece_len(&self, planned: usize) -> Option<usize> {
        let (encoder, at) = self.of(planned)?;
        encoder.piece_len(at)
    }

    fn wants_samples(&self, planned: usize) -> bool {
        self.of(planned).is_some_and(|(encoder, at)| encoder.wants_samples(at))
    }

    fn learn(&self, planned: usize, samples: &[&[u8]]) {
        if let Some((encoder, at)) = self.of(planned) {
            encoder.learn(at, samples);
        }
    }

    fn encode(
        &self,
        planned: usize,
        offset: u64,
        tensor_len: u64,
        piece: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<u64> {
        match self.of(planned) {
            Some((encoder, at)) => encoder.encode(at, offset, tensor_len, piece, out),
            None => Ok(0),
        }
    }

    fn help(&self) {
        self.encoders.iter().flatten().for_each(|encoder| encoder.help());
    }
}

fn listed(file: &CompanionFile) -> Companion {
    Companion { name: file.name.clone(), len: file.bytes.len() as u64 }
}

/// Returns the metadata of a shard after the first: the identity of the model, and the ties within
/// the shard.
fn part_metadata(whole: &Metadata, infos: &[TensorInfo]) -> Metadata {
    let mut metadata = whole.clone();
    metadata.retain(|key| [keys::APR_VERSION, keys::MODEL_TYPE, keys::ARCHITECTURE].contains(&key));
    if let Some(tied) = whole.object(keys::TIED) {
        let own = infos
            .iter()
            .filter_map(|info| Some((info.name.clone(), tied.get(&info.name)?.clone())));
        let own: Map<String, Value> = own.collect();
        if !own.is_empty() {
            metadata.set(keys::TIED, own);
        }
    }
    metadata
}

/// Passes bytes on and remembers the last ones.
struct Tail<'a> {
    sink: &'a mut dyn Sink,
    last: [u8; FOOTER_LEN as usize],
}

impl Sink for Tail<'_> {
    fn next_file(&mut self, name: &str) -> Result<()> {
        self.sink.next_file(name)
    }

    fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        let kept = bytes.len().min(self.last.len());
        self.last.rotate_left(kept);
        let start = self.last.len() - kept;
        self.last[start..].copy_from_slice(&bytes[bytes.len() - kept..]);
        self.sink.write_all(bytes)
    }

    fn position(&self) -> u64 {
        self.sink.position()
    }

    fn can_patch(&self) -> bool {
        self.sink.can_patch()
    }

    fn patch(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.sink.patch(offset, bytes)
    }
}
