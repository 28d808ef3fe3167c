//! What a merge is described by: options, or a configuration.

use std::path::{Component, Path, PathBuf};

use apr_io::is_remote;
use apr_merge::{Method, Recipe, Setting, Settings, Source, Tokenizer, moe, parse};
use apr_registry::{ByteSource, DType, Error, Escaped, read_vec};

use crate::args::MergeArgs;
use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// Bytes of a configuration that are read.
const MAX_CONFIG: u64 = 4 << 20;

/// Description of the requested merge.
pub(super) enum Description {
    /// A merge that options describe.
    Options(Box<Recipe>),
    /// Merges that a configuration describes, one after the other.
    Merges(Vec<Recipe>),
    /// A mixture of experts that a configuration describes.
    Moe(Box<moe::Recipe>),
}

/// Reads what is to be merged.
pub(super) fn describe(args: &MergeArgs, context: &Context) -> Outcome<Description> {
    let Some(path) = config(args, context)? else {
        return Ok(Description::Options(Box::new(of_options(args)?)));
    };
    check_alone(args)?;
    let text = read(&path, context)?;
    let in_file = |error: Error| error.in_file(path.display());
    if let Some(mut recipe) = moe::parse(&text).map_err(in_file)? {
        recipe.seed = args.seed.unwrap_or_default();
        return Ok(Description::Moe(Box::new(recipe)));
    }
    let mut recipes = parse(&text).map_err(in_file)?;
    recipes.iter_mut().for_each(|recipe| recipe.seed = args.seed.unwrap_or_default());
    Ok(Description::Merges(recipes))
}

/// Returns the configuration file: the file of `--config`, or the only model if it is a YAML file.
fn config(args: &MergeArgs, context: &Context) -> Outcome<Option<PathBuf>> {
    let is_yaml = |path: &Path| path.extension().is_some_and(|end| end == "yml" || end == "yaml");
    match (&context.model_config, &args.models[..]) {
        (Some(path), []) => Ok(Some(path.clone())),
        (Some(_), _) => {
            let message = "--config names its models: give it without others";
            Err(Failure::Usage(message.to_owned()))
        }
        (None, [only]) if is_yaml(only) => Ok(Some(only.clone())),
        (None, []) => {
            let message = "no models: name two or more, or a configuration with --config FILE";
            Err(Failure::Usage(message.to_owned()))
        }
        (None, _) => Ok(None),
    }
}

/// Rejects options that would contradict a configuration, because a configuration is complete.
fn check_alone(args: &MergeArgs) -> Outcome {
    refuse(&of_methods(args), "a configuration")
}

/// Options about a method, and whether they are given.
pub(super) fn of_methods(args: &MergeArgs) -> [(&'static str, bool); 9] {
    [
        ("--strategy", args.strategy.is_some()),
        ("--base", args.base.is_some()),
        ("--weights", !args.weights.is_empty()),
        ("--density", !args.density.is_empty()),
        ("--t", args.t.is_some()),
        ("--lambda", args.lambda.is_some()),
        ("--normalize", args.normalize.is_some()),
        ("--tokenizer", args.tokenizer.is_some()),
        ("--parameter", !args.parameter.is_empty()),
    ]
}

/// Rejects options that cannot be combined with something.
pub(super) fn refuse(given: &[(&str, bool)], beside: &str) -> Outcome {
    match given.iter().find(|(_, given)| *given) {
        Some((option, _)) => {
            Err(Failure::Usage(format!("{option} and {beside} exclude each other")))
        }
        None => Ok(()),
    }
}

fn read(path: &Path, context: &Context) -> Outcome<String> {
    let in_file = |error: Error| error.in_file(path.display());
    let file = context.sources.open_file(path)?;
    if file.len() > MAX_CONFIG {
        let message = format!("{} bytes are too many for a configuration", file.len());
        return Err(in_file(Error::memory(message)).into());
    }
    let bytes = read_vec(&file, 0, file.len()).map_err(in_file)?;
    let wrong = |_| in_file(Error::format("the configuration is not UTF-8"));
    Ok(String::from_utf8(bytes).map_err(wrong)?)
}

/// Returns the merge that the options describe.
fn of_options(args: &MergeArgs) -> Outcome<Recipe> {
    let name = |path: &Path| named(path, args);
    let method = args.strategy.unwrap_or(match args.weights.is_empty() {
        true => Method::Average,
        false => Method::Linear,
    });
    if method.needs_base() && !method.begins_at_first() && args.base.is_none() {
        return Err(Failure::Usage(format!(
            "{method} needs the base model of the others: pass --base MODEL"
        )));
    }
    if args.base.is_some() && !method.compares() {
        return Err(Failure::Usage(format!(
            "{method} compares no models with a base: drop --base"
        )));
    }
    let first = args.models.first().filter(|_| method.begins_at_first());
    let base = args.base.as_ref().or(first).map(|path| name(path));
    let sources = args.models.iter().map(|path| Source { model: name(path), ..Source::default() });
    let mut recipe = Recipe::new(method, sources.collect());
    recipe.base = base;
    recipe.seed = args.seed.unwrap_or_default();
    recipe.tokenizer = args.tokenizer.as_deref().map(|source| match source {
        "union" => Tokenizer::Union,
        "base" => Tokenizer::Base,
        model => Tokenizer::Model(name(Path::new(model))),
    });
    spread(&mut recipe, args)?;
    let mut set = |name: &str, value: Option<f64>| {
        if let Some(value) = value {
            recipe.settings.insert(name.to_owned(), value.into());
        }
    };
    set("t", args.t.or((method == Method::Slerp).then_some(0.5)));
    set("lambda", args.lambda);
    set("normalize", args.normalize.map(|normalize| f64::from(u8::from(normalize))));
    for (name, value) in &args.parameter {
        set(name, Some(*value));
    }
    for name in recipe.settings.keys() {
        if !method.has(name) {
            return Err(Failure::Usage(format!("unknown parameter '{name}' of {method}")));
        }
    }
    if method == Method::NearSwap && args.t.is_none() {
        return Err(Failure::Usage("nearswap needs a threshold: pass --t 0.001".to_owned()));
    }
    recipe.text = recipe.to_yaml();
    Ok(recipe)
}

/// Returns the name of a model to which the command line or a plan refers by this path.
pub(super) fn named(path: &Path, args: &MergeArgs) -> String {
    let folder = Some(&args.plan_folder).filter(|folder| !folder.as_os_str().is_empty());
    let inside = folder.and_then(|folder| path.strip_prefix(folder).ok());
    inside.unwrap_or(path).display().to_string()
}

/// The folder of the models that a configuration names.
pub(super) fn models_dir(args: &MergeArgs) -> Option<&Path> {
    let of_plan = Some(args.plan_folder.as_path()).filter(|path| !path.as_os_str().is_empty());
    args.models_dir.as_deref().or(of_plan)
}

/// Lets values be computed in single precision and rounded once, to the dtype that is requested.
pub(super) fn compute_for(recipe: &mut Recipe, precision: DType) {
    let is_computed = recipe.method != Method::Passthrough;
    if is_computed && [DType::F64, DType::F32, DType::F16, DType::BF16].contains(&precision) {
        let wide = if precision == DType::F64 { precision } else { DType::F32 };
        recipe.dtype.get_or_insert(wide);
        recipe.out_dtype.get_or_insert(precision);
    }
}

/// Assigns each model its weight and density.
fn spread(recipe: &mut Recipe, args: &MergeArgs) -> Outcome {
    let method = recipe.method;
    let base = recipe.base.clone().filter(|_| method.needs_base() || args.base.is_some());
    let apr_merge::Parts::Models(sources) = &mut recipe.parts else { return Ok(()) };
    let is_base = |source: &Source| method.compares() && base.as_deref() == Some(&source.model);
    let count = sources.iter().filter(|source| !is_base(source)).count();
    let lists: [(&str, &[f64], bool); 2] =
        [("weight", &args.weights, true), ("density", &args.density, false)];
    for (name, values, is_needed) in lists {
        if !method.has(name) {
            if values.is_empty() {
                continue;
            }
            return Err(Failure::Usage(format!("unknown parameter '{name}' of {method}")));
        }
        let values: Vec<f64> = match values {
            [] if is_needed => vec![1.0; count],
            [] => continue,
            [one] if !is_needed => vec![*one; count],
            several => several.to_vec(),
        };
        if values.len() != count {
            let beside = if count < sources.len() { " that are not the base" } else { "" };
            return Err(Failure::Usage(format!(
                "{} values of '{name}' for {count} models{beside}",
                values.len()
            )));
        }
        for (source, value) in sources.iter_mut().filter(|source| !is_base(source)).zip(values) {
            let settings: &mut Settings = &mut source.settings;
            settings.insert(name.to_owned(), Setting::from(value));
        }
    }
    Ok(())
}

/// Location of a model that a merge names.
pub(super) struct Location {
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// Adapters that are merged into it before.
    pub(super) adapters: Vec<PathBuf>,
}

/// Returns the locations of the models that merges name, except for results of earlier merges.
pub(super) fn locations(recipes: &[Recipe], folder: Option<&Path>) -> Outcome<Vec<Location>> {
    let mut found: Vec<Location> = Vec::new();
    let mut made: Vec<&str> = Vec::new();
    for recipe in recipes {
        for name in recipe.models() {
            if made.contains(&name) || found.iter().any(|known| known.name == name) {
                continue;
            }
            found.push(Location::named(name, folder)?);
        }
        made.extend(recipe.name.as_deref());
    }
    Ok(found)
}

impl Location {
    /// Returns the location of a model that the command line or a plan names.
    pub(super) fn given(name: &str, args: &MergeArgs) -> Self {
        let path = match is_remote(Path::new(name)) {
            true => PathBuf::from(name),
            false => args.plan_folder.join(name),
        };
        Self { name: name.to_owned(), path, adapters: Vec::new() }
    }

    /// Returns the location of a model that a configuration names, with the adapters after it.
    pub(super) fn named(name: &str, folder: Option<&Path>) -> Outcome<Self> {
        let mut parts = name.split('+').map(|part| within(part, folder));
        let path = parts.next().unwrap_or_else(|| within(name, folder))?;
        let adapters = parts.collect::<Outcome<_>>()?;
        Ok(Self { name: name.to_owned(), path, adapters })
    }
}

/// Returns the path of a model that a configuration names: within the folder, or on a hub.
///
/// A configuration can come from an untrusted source.
fn within(name: &str, folder: Option<&Path>) -> Outcome<PathBuf> {
    let path = Path::new(name);
    if name.contains("://") {
        return Ok(path.to_path_buf());
    }
    let leaves = path.components().any(|part| part == Component::ParentDir);
    let is_inside = folder.is_some_and(|folder| path.starts_with(folder));
    // On Windows `\m` and `C:m` begin elsewhere, too, and are not absolute.
    let first = path.components().next();
    let is_elsewhere = matches!(first, Some(Component::RootDir | Component::Prefix(_)));
    if leaves || (is_elsewhere && !is_inside) {
        return Err(Failure::Usage(format!(
            "'{}' is outside the folder of the configuration's models: pass --models-dir DIR",
            Escaped::short(name)
        )));
    }
    let local = folder.map_or_else(|| path.to_path_buf(), |folder| folder.join(path));
    let parts: Vec<&str> = name.split('/').collect();
    let is_repository = parts.len() == 2 && parts.iter().all(|part| !part.is_empty());
    if !local.exists() && is_repository {
        return Ok(PathBuf::from(format!("hf://{name}")));
    }
    Ok(local)
}
