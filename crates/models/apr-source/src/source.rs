//! A model, and what is found out about it once.

use std::cell::OnceCell;
use std::sync::{Arc, OnceLock};

use apr_arch::{Families, FamilyModel};
use apr_core::{CheckpointReader, Result};
use apr_view::{Checked, Verified};

use crate::companions::{Learnt, learn_from};
use crate::{Architecture, family_of};

/// A model that was opened. Its family and the facts in its companions are determined on first use,
/// and kept.
///
/// ```
/// use apr_arch::Families;
/// use apr_source::Source;
///
/// let header = br#"{"model.layers.0.self_attn.q_proj.weight":
///     {"dtype":"F32","shape":[1,1],"data_offsets":[0,4]}}"#;
/// let mut file = (header.len() as u64).to_le_bytes().to_vec();
/// file.extend_from_slice(header);
/// file.extend_from_slice(&[0; 4]);
/// let model = apr_registry::open(file, "model.safetensors", &apr_core::Limits::default())?;
///
/// let families = Families::builtin();
/// let source = Source::new(&*model, &families);
/// assert!(source.family()?.is_none(), "one tensor speaks for no family");
/// assert!(source.learnt()?.metadata.is_empty(), "there are no companions");
/// # Ok::<(), apr_core::Error>(())
/// ```
pub struct Source<'a> {
    reader: &'a dyn CheckpointReader,
    name: &'a str,
    families: &'a Families,
    architecture: Architecture,
    family: OnceCell<Option<FamilyModel<'a>>>,
    own: Knowledge,
    shared: Option<&'a Knowledge>,
    verifies: bool,
}

/// Facts determined about a model, shared by all the [`Source`]s made of it.
#[derive(Default)]
pub struct Knowledge {
    /// The name of the family that was detected.
    family: OnceLock<Option<String>>,
    learnt: OnceLock<Learnt>,
    /// Parts of its files that were compared with their checksums.
    checked: Arc<Checked>,
}

impl<'a> Source<'a> {
    /// Creates a source whose family is detected, without a name.
    #[must_use]
    pub fn new(reader: &'a dyn CheckpointReader, families: &'a Families) -> Self {
        Self {
            reader,
            name: "",
            families,
            architecture: Architecture::Auto,
            family: OnceCell::new(),
            own: Knowledge::default(),
            shared: None,
            verifies: true,
        }
    }

    /// Shares the determined facts with other sources of the same reader, families and
    /// architecture.
    #[must_use]
    pub fn sharing(self, knowledge: &'a Knowledge) -> Self {
        Self { shared: Some(knowledge), ..self }
    }

    /// Sets the name used in error messages.
    #[must_use]
    pub fn named(self, name: &'a str) -> Self {
        Self { name, ..self }
    }

    /// Sets the architecture that the model is opened as.
    #[must_use]
    pub fn taken_for(self, architecture: &Architecture) -> Self {
        Self { architecture: architecture.clone(), family: OnceCell::new(), ..self }
    }

    /// Sets whether checksums are verified before the weights are used in a computation. Default:
    /// yes.
    #[must_use]
    pub fn verifying(self, verifies: bool) -> Self {
        Self { verifies, ..self }
    }

    /// Returns the same model seen through another reader. All facts are determined again, except
    /// those about the bytes in its files.
    #[must_use]
    pub fn through<'b>(&self, reader: &'b dyn CheckpointReader) -> Source<'b>
    where
        'a: 'b,
    {
        let checked = Arc::clone(&self.knowledge().checked);
        Source {
            own: Knowledge { checked, ..Knowledge::default() },
            verifies: self.verifies,
            ..Source::new(reader, self.families).named(self.name).taken_for(&self.architecture)
        }
    }

    /// Returns the same model, read by `verified`, which [`verified`](Self::verified) returned.
    #[must_use]
    pub fn read_by<'b>(&'b self, verified: &'b dyn CheckpointReader) -> Source<'b> {
        self.through(verified).sharing(self.knowledge())
    }

    /// Returns the reader, wrapped so that every tensor is compared with its file's checksums
    /// before its first byte is returned. Returns `None` if verification is off.
    #[must_use]
    pub fn verified(&self) -> Option<Verified<'_>> {
        self.verifies.then(|| Verified::new(self.reader, &self.knowledge().checked))
    }

    /// Returns the reader.
    #[must_use]
    pub fn reader(&self) -> &'a dyn CheckpointReader {
        self.reader
    }

    /// Returns the name used in error messages.
    #[must_use]
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// Returns the known families.
    #[must_use]
    pub fn families(&self) -> &'a Families {
        self.families
    }

    /// Returns the architecture that the model is opened as.
    #[must_use]
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// Returns the family, as [`family_of`] determines it.
    ///
    /// # Errors
    /// E001 when the requested family is not known.
    pub fn family(&self) -> Result<Option<&FamilyModel<'a>>> {
        if let Some(family) = self.family.get() {
            return Ok(family.as_ref());
        }
        let known = self.knowledge().family.get().cloned();
        let found = match known {
            Some(None) => None,
            // Detection looks at every family; one that is known is applied at once.
            Some(Some(name)) => family_of(self.reader, self.families, &Architecture::Named(name))?,
            None => family_of(self.reader, self.families, &self.architecture)?,
        };
        let name = found.as_ref().map(|model| model.family().name().to_owned());
        self.knowledge().family.get_or_init(|| name);
        Ok(self.family.get_or_init(|| found).as_ref())
    }

    /// Returns the family in a view of the model, which may have other names and another layout.
    ///
    /// # Errors
    /// The errors of [`family`](Self::family).
    pub fn family_in<'b>(
        &'b self,
        view: &'b dyn CheckpointReader,
    ) -> Result<Option<FamilyModel<'b>>> {
        match self.family()? {
            Some(model) => self
                .families
                .apply(model.family().name(), view.tensors(), view.metadata())
                .map(Some),
            None => family_of(view, self.families, &self.architecture),
        }
    }

    /// Returns the facts in the companions.
    ///
    /// # Errors
    /// E007 and E008 when a companion can't be read.
    pub fn learnt(&self) -> Result<&Learnt> {
        let learnt = &self.knowledge().learnt;
        if let Some(learnt) = learnt.get() {
            return Ok(learnt);
        }
        let found = learn_from(self.reader)?;
        Ok(learnt.get_or_init(|| found))
    }

    fn knowledge(&self) -> &Knowledge {
        self.shared.unwrap_or(&self.own)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use apr_core::{Limits, TensorInfo, pass_on};
    use apr_testkit::{FolderInMemory, locate};

    use super::*;

    /// Counts reads of the tensors' names and of companions.
    struct Counted<'a> {
        base: &'a dyn CheckpointReader,
        looks: AtomicUsize,
        reads: AtomicUsize,
    }

    impl Counted<'_> {
        fn counts(&self) -> (usize, usize) {
            (self.looks.load(Ordering::Relaxed), self.reads.load(Ordering::Relaxed))
        }
    }

    impl CheckpointReader for Counted<'_> {
        pass_on!(base: format, metadata, stored, read_tensor, tensor_slice, container, files);
        pass_on!(base: companions, left_out, warnings);

        fn tensors(&self) -> &[TensorInfo] {
            self.looks.fetch_add(1, Ordering::Relaxed);
            self.base.tensors()
        }

        fn read_companion(&self, companion: usize) -> Result<Vec<u8>> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            self.base.read_companion(companion)
        }
    }

    #[test]
    fn family_and_companions_are_looked_at_once() {
        let file = |name: &str| {
            let bytes = fs::read(locate::fixture("tiny-llama").join(name));
            (name.to_owned(), bytes.expect("the fixture is there"))
        };
        let names = ["config.json", "model.safetensors", "tokenizer.json"];
        let folder = FolderInMemory(names.map(file).into());
        let model = apr_registry::open_folder(&folder, &Limits::default()).expect("a model");
        let (looks, reads) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let reader = Counted { base: &model, looks, reads };

        let families = Families::builtin();
        let source = Source::new(&reader, &families);
        let family = |source: &Source<'_>| {
            let family = source.family().expect("no family was asked for");
            family.expect("a LLaMA").family().name().to_owned()
        };
        assert_eq!((family(&source).as_str(), reader.counts()), ("llama", (1, 0)));
        source.learnt().expect("sound companions");
        assert_eq!(reader.counts(), (1, 2), "configuration and tokenizer");

        family(&source);
        source.learnt().expect("sound companions");
        assert_eq!(reader.counts(), (1, 2), "what was found is kept");

        let knowledge = Knowledge::default();
        let shared = || Source::new(&reader, &families).sharing(&knowledge);
        assert_eq!(family(&shared()), "llama");
        shared().learnt().expect("sound companions");
        let after_one = reader.counts();
        assert_eq!(family(&shared()), "llama");
        shared().learnt().expect("sound companions");
        let (looks, reads) = reader.counts();
        assert_eq!((looks, reads), (after_one.0 + 1, after_one.1), "applied, not detected again");
    }
}
