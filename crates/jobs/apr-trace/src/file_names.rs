//! What the files call tensors that graphs call by canonical names.

use std::collections::HashMap;

use apr_arch::FamilyModel;
use apr_run::RunResult;
use apr_source::Source;

pub(crate) struct FileNames<'m> {
    model: Option<&'m FamilyModel<'m>>,
    /// File names by canonical name.
    names: HashMap<&'m str, &'m str>,
}

impl<'m> FileNames<'m> {
    pub(crate) fn of(source: &'m Source<'_>) -> RunResult<Self> {
        let model = source.family()?;
        let tensors = source.reader().tensors().iter().enumerate();
        let named = |(position, info)| Some((model?.canonical(position)?, info));
        let names =
            tensors.filter_map(|(position, info)| named((position, info.name.as_str()))).collect();
        Ok(Self { model, names })
    }

    /// Returns the tensor's name in the file, or the family's name if the file stores it within
    /// another tensor.
    pub(crate) fn name(&self, canonical: &str) -> String {
        let in_file = self.names.get(canonical).map(|name| (*name).to_owned());
        let of_family =
            || self.model.and_then(|it| it.family().source_name(canonical, it.naming()));
        in_file.or_else(of_family).unwrap_or_else(|| canonical.to_owned())
    }
}
