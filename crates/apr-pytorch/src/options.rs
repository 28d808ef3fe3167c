//! What a caller may ask for.

/// How a checkpoint is opened.
///
/// ```
/// use apr_pytorch::OpenOptions;
///
/// let options = OpenOptions { prefix: Some("state_dict.module.".into()), ..OpenOptions::default() };
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Only tensors whose names start with this are there, and it is taken off their names.
    pub prefix: Option<String>,
    /// Full names of classes, as `__main__.Net`, whose pickled instances are read for their parameters. The class is
    /// not needed and nothing of it runs; names known to be dangerous stay refused.
    pub classes: Vec<String>,
}
