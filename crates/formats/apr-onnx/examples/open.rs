//! Opens a model, and prints how many tensors and nodes it has:
//! `cargo run -p apr-onnx --example open -- model.onnx`.

use apr_core::{CheckpointReader, Limits};
use apr_io::ModelFolder;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::path::PathBuf::from(std::env::args_os().nth(1).ok_or("name a model")?);
    let folder = ModelFolder::open(path.parent().unwrap_or(std::path::Path::new(".")))?;
    let name = path.file_name().and_then(|name| name.to_str()).ok_or("the name is not UTF-8")?;
    let reader = apr_onnx::open_in(&folder, name, &Limits::default())?;
    let nodes =
        reader.model().and_then(|model| model.graph.as_ref()).map_or(0, |graph| graph.nodes.len());
    println!("{} tensors, {nodes} nodes", reader.tensors().len());
    Ok(())
}
