//! The modules of a TorchScript program.

/// A module: tensors and modules by name, in the order of their first appearance.
#[derive(Debug, Clone, Default)]
pub struct ScriptModule {
    /// Class, without `__torch__.`.
    pub class: String,
    /// Names, and positions among the tensors that are written.
    pub tensors: Vec<(String, usize)>,
    /// Names, and the modules within this one.
    pub modules: Vec<(String, ScriptModule)>,
}
