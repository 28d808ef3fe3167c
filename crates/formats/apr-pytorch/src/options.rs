//! What a caller may ask for.

/// Options for opening a checkpoint.
///
/// ```
/// use apr_pytorch::OpenOptions;
///
/// // Lightning keeps the weights in `state_dict`, data-parallel training puts `module` before
/// // every name.
/// let options =
///     OpenOptions { prefix: Some("state_dict.module.".into()), ..OpenOptions::default() };
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Prefix of the tensors to read, which is removed from their names.
    ///
    /// A name is the tensor's path: keys of dictionaries, positions in lists and attributes from
    /// the outermost to the innermost, joined by dots, whether the dots stand for nesting or are
    /// part of a key. A prefix usually ends in a dot. Outside it, tensors may be of kinds that are
    /// not read.
    pub prefix: Option<String>,
    /// Full names of classes, as `__main__.Net`, whose pickled instances are read for their
    /// parameters. The class is not needed and nothing of it runs; names known to be dangerous stay
    /// refused.
    pub classes: Vec<String>,
}
