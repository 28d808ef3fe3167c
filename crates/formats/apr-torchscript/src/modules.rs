//! The modules that a state dict's names stand for: a class for each kind, an object for each.

use std::collections::HashMap;

use apr_core::{DType, Error, Result, TensorInfo};
use apr_pytorch::ScriptModule;

use crate::text::{is_identifier, quoted};

/// Deepest nesting of modules.
const MAX_DEPTH: usize = 64;

/// A module: tensors and modules by name, in the order of their first appearance.
#[derive(Debug, Default)]
pub(crate) struct Module {
    /// Class, without `__torch__.`.
    pub(crate) class: String,
    /// Names, and positions of the tensors.
    tensors: Vec<(String, usize)>,
    modules: Vec<(String, Module)>,
    /// Module position for each name, or `None` for a tensor.
    names: HashMap<String, Option<usize>>,
}

impl Module {
    /// The modules of these tensors.
    ///
    /// # Errors
    /// E001 for names that can't be those of modules and their tensors.
    pub(crate) fn of(tensors: &[TensorInfo]) -> Result<Self> {
        let mut root = Self::default();
        for (position, info) in tensors.iter().enumerate() {
            root.add(&info.name, position, &info.name)?;
        }
        Ok(root)
    }

    /// Returns the module for pickling.
    pub(crate) fn into_script(self) -> ScriptModule {
        let modules = self.modules.into_iter();
        let modules = modules.map(|(name, module)| (name, module.into_script())).collect();
        ScriptModule { class: self.class, tensors: self.tensors, modules }
    }

    /// Returns `true` if the outermost module has a tensor or module of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    fn add(&mut self, rest: &str, position: usize, name: &str) -> Result<()> {
        let mut module = self;
        let mut parts: Vec<&str> = rest.split('.').collect();
        let own = parts.pop().unwrap_or_default();
        if parts.len() > MAX_DEPTH {
            return Err(
                Error::memory(format!("its name has more than {MAX_DEPTH} parts")).for_tensor(name)
            );
        }

        let clash = || Error::format("a module and a tensor have the same name").for_tensor(name);
        for part in parts {
            let at = match module.names.get(part) {
                Some(Some(at)) => *at,
                Some(None) => return Err(clash()),
                None => {
                    module.names.insert(part.to_owned(), Some(module.modules.len()));
                    module.modules.push((part.to_owned(), Self::default()));
                    module.modules.len() - 1
                }
            };
            module = &mut module.modules[at].1;
        }

        // Every module has a field `training`.
        let is_module = matches!(module.names.get(own), Some(Some(_)));
        if own.is_empty() || own == "training" || is_module {
            return Err(clash());
        }
        module.names.insert(own.to_owned(), None);
        module.tensors.push((own.to_owned(), position));
        Ok(())
    }

    /// Names the classes and writes them.
    ///
    /// The inner modules are first, and `forward` is in the outermost.
    ///
    /// # Errors
    /// E001 for names that no source can have.
    pub(crate) fn classes(&mut self, tensors: &[TensorInfo], forward: &str) -> Result<String> {
        let mut source = String::new();
        let mut known = HashMap::new();
        self.class(tensors, &mut known, &mut source)?;
        // The outermost one comes last, and is the only one that computes.
        source.push_str(forward);
        Ok(source)
    }

    fn class(
        &mut self,
        tensors: &[TensorInfo],
        known: &mut HashMap<String, String>,
        source: &mut String,
    ) -> Result<()> {
        for (_, module) in &mut self.modules {
            module.class(tensors, known, source)?;
        }

        let is_parameter = |position: usize| DType::is_float(tensors[position].dtype);
        let names = |wanted: bool| {
            let names =
                self.tensors.iter().filter(|(_, position)| is_parameter(*position) == wanted);
            names.map(|(name, _)| Ok(format!("{}, ", quoted(name)?))).collect::<Result<String>>()
        };
        let mut body =
            format!("  __parameters__ = [{}]\n  __buffers__ = [{}]\n", names(true)?, names(false)?);
        for (name, _) in &self.tensors {
            body.push_str(&field(name, "Tensor")?);
        }

        body.push_str("  training : bool\n");
        for (name, module) in &self.modules {
            body.push_str(&field(name, &format!("__torch__.{}", module.class))?);
        }

        // Modules with the same fields share a class: layers are many, and their kinds few.
        if let Some(class) = known.get(&body) {
            self.class.clone_from(class);
            return Ok(());
        }

        self.class = format!("Module{}", known.len());
        source.push_str(&format!("class {}(Module):\n{body}", self.class));
        known.insert(body, self.class.clone());
        Ok(())
    }
}

fn field(name: &str, kind: &str) -> Result<String> {
    Ok(if is_identifier(name) {
        format!("  {name} : {kind}\n")
    } else {
        format!("  __annotations__[{}] = {kind}\n", quoted(name)?)
    })
}

/// The expression for a tensor of the model.
pub(crate) fn access(name: &str) -> Result<String> {
    name.split('.').try_fold("self".to_owned(), |module, part| {
        Ok(if is_identifier(part) {
            format!("{module}.{part}")
        } else {
            format!("getattr({module}, {})", quoted(part)?)
        })
    })
}
