//! OpenVINO models (IR: `model.xml` and `model.bin`), read as their constants, with their graph.
//!
//! ```text
//! model.xml
//! net              name, version (10 or 11)
//! ├─ layers        layer: id, name, type, version (the operator set)
//! │                ├─ data     the settings of the operator, as attributes
//! │                ├─ rt_info  what programs noted about it
//! │                ├─ input, output: port (id, precision, names), and in each its dim
//! │                └─ body, then_body, else_body: layers and edges of their own
//! ├─ edges         edge: from-layer, from-port, to-layer, to-port
//! └─ rt_info       what programs noted about the model
//! model.bin        the data of the layers of type Const, at their `offset`, `size` bytes each
//! ```
//!
//! Each `Const` layer is a tensor, under the name of the layer; constants of a body begin with the
//! names of the layer and of the body (`loop/body/weight`), and of several with one name the later
//! ones end in `#2`, `#3`. A weight that is stored compressed stays as it is stored, and so do its
//! zero points and scales: the graph computes with them (`Convert`, `Subtract`, `Multiply`).
//!
//! | type of the file | dtype of the tensor |
//! |---|---|
//! | floats of 16 to 64 bits, `f8e4m3`, `f8e5m2`, `f8e8m0` | the same |
//! | integers of 8 to 64 bits, `boolean` | the same |
//! | `u1`, `u2`, `u3`, `u4`, `u6` | u8 |
//! | `i4` | i8 |
//! | `nf4`, `f4e2m1` | f32, the values of the codes |
//!
//! # What is left out, by name
//!
//! Constants of texts and of types that are not in the table. The graph travels as the XML file
//! ([`graphs_of`]), where that is not larger than a companion may be.
//!
//! # Limits
//!
//! | what | most | |
//! |---|---|---|
//! | the XML file | [`Limits::max_program`](apr_core::Limits) | E008 |
//! | elements in each other | 128 | E001 |
//! | entities and types that an XML file declares | none: they read files, or grow | E001 |
//!
//! The format is described by OpenVINO's `docs/.../openvino-ir-format` and its operation sets 1 to
//! 16.
//!
//! ```
//! use apr_core::{CheckpointReader, Limits};
//!
//! let xml = br#"<net name="m" version="11"><layers><layer id="0" name="empty" type="Const"
//!     version="opset1"><data element_type="f32" shape="0" offset="0" size="0"/><output><port
//!     id="0" precision="FP32"><dim>0</dim></port></output></layer></layers><edges/></net>"#;
//! let reader = apr_runtimes::openvino::open(xml.to_vec(), "model.xml", &Limits::default())?;
//! assert_eq!(reader.tensors()[0].name, "empty");
//! # Ok::<(), apr_core::Error>(())
//! ```

mod element;
mod graph;
pub mod lower;
mod model;
mod open;
mod packed;
mod xml;

use apr_core::Format;

pub use graph::{DOMAIN, graphs_of};
pub use open::{open, open_in};

/// The key of the metadata: name and version, inputs and outputs, operators, notes.
pub const METADATA: &str = "openvino";

/// Format of an OpenVINO model, by its XML file.
pub static FORMAT: Format = Format {
    id: "openvino",
    name: "OpenVINO IR",
    recognises: |head| model::version_of(head).is_some(),
    ..Format::READ_ONLY
};
