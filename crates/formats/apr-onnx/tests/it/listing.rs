//! What we read from a model, as the lines that `fixtures/onnx/listing.py` prints of it.

use std::fmt::Write;

use apr_core::protobuf::{Span, Walker};
use apr_core::{CheckpointReader, Limits, TensorInfo};
use apr_onnx::OnnxReader;
use apr_onnx::proto::{
    Attribute, AttributeKind, Graph, Model, Node, OperatorSet, Property, Tensor, Type, TypeKind,
    ValueInfo,
};
use sha2::{Digest, Sha256};

/// The lines of a model; `bytes` is its file.
pub(crate) fn lines(reader: &OnnxReader, bytes: &[u8]) -> Vec<String> {
    let mut lister = Lister { walker: Walker::new(&bytes, &Limits::default()), lines: Vec::new() };
    let tensors = tensors(reader);
    match reader.model() {
        Some(model) => lister.model(model, tensors),
        None => lister.lines = tensors,
    }
    lister.lines
}

fn tensors(reader: &OnnxReader) -> Vec<String> {
    let line = |(position, info): (usize, &TensorInfo)| {
        let bytes = data(reader, position);
        format!(
            "tensor\t{}\t{}\t{}\t{}",
            info.name,
            info.dtype,
            info.shape,
            hex(&Sha256::digest(&bytes))
        )
    };
    reader.tensors().iter().enumerate().map(line).collect()
}

/// A tensor's bytes, which are the same whatever pieces they are read in.
fn data(reader: &OnnxReader, position: usize) -> Vec<u8> {
    const ODD: usize = 7;
    let info = &reader.tensors()[position];
    let len = usize::try_from(info.byte_len().expect("a length")).expect("a small tensor");
    let mut whole = vec![0; len];
    reader.read_tensor(position, 0, &mut whole).expect("readable data");
    let mut piece = [0; ODD];
    for start in (0..len).step_by(ODD).take(50) {
        let end = len.min(start + ODD);
        reader
            .read_tensor(position, start as u64, &mut piece[..end - start])
            .expect("readable data");
        assert_eq!(piece[..end - start], whole[start..end], "{}", info.name);
    }
    if let Some(slice) = reader.tensor_slice(position) {
        assert_eq!(slice, whole);
    }
    whole
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes all");
        text
    })
}

fn joined<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(",")
}

struct Lister<'a> {
    walker: Walker<'a>,
    lines: Vec<String>,
}

impl Lister<'_> {
    fn add(&mut self, parts: &[&str]) {
        self.lines.push(parts.join("\t"));
    }

    fn text(&mut self, span: Span) -> String {
        String::from_utf8(self.walker.bytes(span).expect("it is in the file")).expect("a text")
    }

    fn hex(&mut self, span: Span) -> String {
        hex(&self.walker.bytes(span).expect("it is in the file"))
    }

    fn property(&mut self, property: &Property) -> String {
        self.text(property.value)
    }

    fn model(&mut self, model: &Model, tensors: Vec<String>) {
        let number = |number: Option<i64>| number.unwrap_or_default().to_string();
        let (ir, version) = (number(model.ir_version), number(model.model_version));
        self.add(&[
            "model",
            &ir,
            &model.producer_name,
            &model.producer_version,
            &model.domain,
            &version,
        ]);
        self.opsets(&model.opsets);
        for property in &model.properties {
            let value = self.property(property);
            self.add(&["metadata", &property.key, &value]);
        }
        self.lines.extend(tensors);
        self.graph(model.graph.as_ref().expect("a graph"));
        for function in &model.functions {
            let inputs =
                (joined(&function.inputs), joined(&function.outputs), joined(&function.attributes));
            let head = ["function", &function.domain, &function.name, &function.overload];
            self.add(&[&head[..], &[&inputs.0, &inputs.1, &inputs.2]].concat());
            self.opsets(&function.opsets);
            function.defaults.iter().for_each(|attribute| self.attribute(attribute));
            self.nodes(&function.nodes);
        }
    }

    fn opsets(&mut self, opsets: &[OperatorSet]) {
        for opset in opsets {
            self.add(&["opset", &opset.domain, &opset.version.to_string()]);
        }
    }

    fn graph(&mut self, graph: &Graph) {
        let (dense, sparse) =
            (graph.initializers.len().to_string(), graph.sparse_initializers.len().to_string());
        self.add(&["graph", &graph.name, &dense, &sparse]);
        self.infos("input", &graph.inputs);
        self.infos("output", &graph.outputs);
        self.infos("value", &graph.values);
        for annotation in &graph.quantization {
            let pairs: Vec<String> = annotation
                .parameters
                .iter()
                .map(|property| format!("{}={}", property.key, self.text(property.value)))
                .collect();
            self.add(&["quantized", &annotation.tensor, &pairs.join(",")]);
        }
        self.nodes(&graph.nodes);
    }

    fn infos(&mut self, what: &str, infos: &[ValueInfo]) {
        for info in infos {
            self.add(&[what, &info.name, &kind(&info.kind)]);
        }
    }

    fn nodes(&mut self, nodes: &[Node]) {
        for node in nodes {
            let (inputs, outputs) = (joined(&node.inputs), joined(&node.outputs));
            self.add(&[
                "node",
                &node.name,
                &node.domain,
                &node.op_type,
                &node.overload,
                &inputs,
                &outputs,
            ]);
            node.attributes.iter().for_each(|attribute| self.attribute(attribute));
        }
    }

    fn attribute(&mut self, attribute: &Attribute) {
        let bits = |number: &f32| hex(&number.to_le_bytes());
        let mut parts = Vec::new();
        parts.extend(attribute.float.iter().map(|number| format!("f={}", bits(number))));
        parts.extend(attribute.integer.map(|number| format!("i={number}")));
        if let Some(span) = attribute.text {
            parts.push(format!("s={}", self.hex(span)));
        }
        if !attribute.floats.is_empty() {
            parts.push(format!("floats={}", joined(attribute.floats.iter().map(bits))));
        }
        if !attribute.integers.is_empty() {
            parts.push(format!("ints={}", joined(&attribute.integers)));
        }
        if !attribute.texts.is_empty() {
            let texts: Vec<_> = attribute.texts.iter().map(|span| self.hex(*span)).collect();
            parts.push(format!("strings={}", joined(texts)));
        }
        let tensor = |tensor: &Tensor| format!("{}{:?}", tensor.data_type, tensor.dims);
        parts.extend(attribute.tensor.iter().map(|found| format!("t={}", tensor(found))));
        parts.extend(attribute.tensors.iter().map(|found| format!("tensor={}", tensor(found))));
        parts.extend(attribute.type_proto.iter().map(|found| format!("tp={}", kind(found))));
        parts.extend(attribute.type_protos.iter().map(|found| format!("type={}", kind(found))));
        let code = attribute.kind.map_or(0, AttributeKind::code).to_string();
        self.add(&["attribute", &attribute.name, &attribute.reference, &code, &parts.join(";")]);
        attribute.graph.iter().for_each(|graph| self.graph(graph));
        attribute.graphs.iter().for_each(|graph| self.graph(graph));
    }
}

fn kind(found: &Type) -> String {
    let shape = |dims: &Option<Vec<apr_onnx::proto::Dimension>>| match dims {
        None => "?".to_owned(),
        Some(dims) => {
            let dim = |dim: &apr_onnx::proto::Dimension| match dim.size {
                Some(size) => size.to_string(),
                None if dim.name.is_empty() => "?".to_owned(),
                None => dim.name.clone(),
            };
            format!("[{}]", joined(dims.iter().map(dim)))
        }
    };
    match &found.kind {
        TypeKind::Unknown => "?".to_owned(),
        TypeKind::Tensor(element, dims) => format!("tensor_type({element}){}", shape(dims)),
        TypeKind::SparseTensor(element, dims) => {
            format!("sparse_tensor_type({element}){}", shape(dims))
        }
        TypeKind::Sequence(inner) => format!("sequence_type({})", kind(inner)),
        TypeKind::Optional(inner) => format!("optional_type({})", kind(inner)),
        TypeKind::Map(key, value) => format!("map_type({key},{})", kind(value)),
        TypeKind::Opaque(domain, name) => format!("opaque_type({domain},{name})"),
    }
}
