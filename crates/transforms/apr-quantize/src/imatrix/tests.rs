use apr_core::{
    Code, Container, FileInfo, Format, Limits, Stored, StoredRange, TensorInfo, has_no,
};
use apr_testkit::{corrupt, locate};
use serde_json::{Value as Json, json};

use super::*;

/// Returns the expected content of the fixtures, computed with NumPy.
fn expected() -> Json {
    let text =
        std::fs::read_to_string(locate::fixture("quantize/imatrix.json")).expect("the fixture");
    serde_json::from_str(&text).expect("JSON")
}

fn floats(json: &Json) -> Vec<f32> {
    let bits = json.as_array().expect("a list").iter().map(|bits| bits.as_u64().expect("bits"));
    bits.map(|bits| f32::from_bits(u32::try_from(bits).expect("32 bits"))).collect()
}

fn check(matrix: &Imatrix, expected: &Json) {
    let entries = expected["entries"].as_object().expect("entries");
    assert_eq!(matrix.entries.keys().collect::<Vec<_>>(), entries.keys().collect::<Vec<_>>());
    for (name, values) in entries {
        assert_eq!(matrix.entries[name], floats(values), "{name}");
    }
    let datasets: Vec<&str> =
        expected["datasets"].as_array().expect("a list").iter().filter_map(Json::as_str).collect();
    assert_eq!(matrix.datasets, datasets);
    assert_eq!(u64::from(matrix.chunk_count), expected["chunk_count"].as_u64().expect("a number"));
}

/// A checkpoint of f32 tensors in memory.
struct InMemory {
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    data: Vec<Vec<u8>>,
    file: FileInfo,
}

impl InMemory {
    fn new(tensors: &[(&str, &[u64], Vec<f32>)]) -> Self {
        let pairs = json!({"kv": [
            {"key": "general.type", "type": "string", "value": "imatrix"},
            {
                "key": "imatrix.datasets", "type": "array", "items": "string",
                "value": ["a.txt", "b.txt"],
            },
            {"key": "imatrix.chunk_count", "type": "u32", "value": 7},
            {"key": "imatrix.chunk_size", "type": "u32", "value": 512},
        ]});
        let mut metadata = Metadata::new();
        metadata.set(apr_core::keys::GGUF, pairs);
        let info = |(name, dims, _): &(&str, &[u64], Vec<f32>)| TensorInfo {
            name: (*name).to_owned(),
            dtype: DType::F32,
            shape: Shape::from(dims.to_vec()),
        };
        Self {
            metadata,
            tensors: tensors.iter().map(info).collect(),
            data: tensors
                .iter()
                .map(|(_, _, values)| values.iter().flat_map(|it| it.to_le_bytes()).collect())
                .collect(),
            file: FileInfo { name: String::new(), len: 0 },
        }
    }
}

impl CheckpointReader for InMemory {
    has_no!(companions, left_out, slices, warnings);

    fn format(&self) -> &'static Format {
        &apr_registry::gguf::FORMAT
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        Stored::plain(StoredRange { file: 0, offset: 0, len: self.data[tensor].len() as u64 })
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let offset = usize::try_from(offset).expect("a small offset");
        let bytes = self.data[tensor]
            .get(offset..offset + buf.len())
            .ok_or_else(|| Error::corrupt("past the end"))?;
        buf.copy_from_slice(bytes);
        Ok(())
    }

    fn files(&self) -> &[FileInfo] {
        std::slice::from_ref(&self.file)
    }

    fn container(&self) -> Container<'_> {
        Container::default()
    }
}

#[test]
fn the_gguf_form_gives_the_values_of_llama_quantize() {
    let bytes = std::fs::read(locate::fixture("quantize/imatrix.gguf")).expect("the fixture");
    let reader =
        apr_registry::open(bytes, "imatrix.gguf", &Limits::default()).expect("a GGUF file");
    let matrix = Imatrix::from_checkpoint(&*reader).expect("a matrix");
    check(&matrix, &expected()["gguf"]);
    assert_eq!(matrix.chunk_size, 512);
}

#[test]
fn the_tensors_of_the_gguf_form_give_the_values_of_llama_quantize() {
    let expected = expected();
    let stored = expected["stored"].as_object().expect("tensors");
    let tensors: Vec<_> = stored
        .iter()
        .map(|(name, tensor)| {
            let dims: Vec<u64> = tensor["shape"]
                .as_array()
                .expect("a list")
                .iter()
                .filter_map(Json::as_u64)
                .collect();
            (name.as_str(), dims, floats(&tensor["values"]))
        })
        .collect();
    let tensors: Vec<_> = tensors
        .iter()
        .map(|(name, dims, values)| (*name, dims.as_slice(), values.clone()))
        .collect();
    check(
        &Imatrix::from_checkpoint(&InMemory::new(&tensors)).expect("a matrix"),
        &expected["gguf"],
    );
}

#[test]
fn the_legacy_form_gives_the_values_of_llama_quantize() {
    let bytes = std::fs::read(locate::fixture("quantize/imatrix.dat")).expect("the fixture");
    check(&Imatrix::from_legacy(&bytes).expect("a matrix"), &expected()["legacy"]);
}

#[test]
fn a_cut_or_changed_legacy_file_is_rejected_or_read_partially() {
    let bytes = std::fs::read(locate::fixture("quantize/imatrix.dat")).expect("the fixture");
    for cut in corrupt::truncations(&bytes) {
        if let Err(error) = Imatrix::from_legacy(&cut) {
            assert!(matches!(error.code(), Code::Format | Code::Corrupt), "{error}");
        }
    }
    for flipped in corrupt::bit_flips(&bytes, 0..bytes.len().min(64)) {
        let _ = Imatrix::from_legacy(&flipped);
    }
}

#[test]
fn sizes_beyond_the_file_are_rejected_before_allocation() {
    let file = |numbers: &[i32]| {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>()
    };
    for (numbers, code) in [
        (&[0][..], Code::Format),
        (&[-1], Code::Format),
        (&[i32::MAX], Code::Corrupt),
        (&[1, -1], Code::Format),
        (&[1, i32::MAX, 0], Code::Corrupt),
        (&[1, 0, 1, i32::MAX, 0], Code::Corrupt),
        (&[1, 0, 1, 0], Code::Format),
    ] {
        assert_eq!(
            Imatrix::from_legacy(&file(numbers)).expect_err("hostile").code(),
            code,
            "{numbers:?}"
        );
    }
}

#[test]
fn sums_and_counts_must_go_together() {
    let refused = |tensors: &[(&str, &[u64], Vec<f32>)]| {
        let error = Imatrix::from_checkpoint(&InMemory::new(tensors)).expect_err("refused");
        assert_eq!(error.code(), Code::Format, "{error}");
        error.tensor().map(str::to_owned)
    };
    assert_eq!(refused(&[("w.in_sum2", &[1, 2], vec![1.0; 2])]), Some("w".to_owned()));
    assert_eq!(refused(&[("w.counts", &[1, 1], vec![1.0])]), Some("w".to_owned()));
    let counts = ("w.counts", &[2, 1][..], vec![1.0, 1.0]);
    assert_eq!(
        refused(&[("w.in_sum2", &[1, 3], vec![1.0; 3]), counts.clone()]),
        Some("w".to_owned())
    );
    assert_eq!(
        refused(&[("w.in_sum2", &[1, 2], vec![f32::NAN, 1.0]), counts]),
        Some("w".to_owned())
    );
    let nothing = ("w.counts", &[1, 1][..], vec![f32::INFINITY]);
    assert_eq!(refused(&[("w.in_sum2", &[1, 2], vec![1.0; 2]), nothing]), Some("w".to_owned()));
    assert_eq!(refused(&[("other", &[1], vec![1.0])]), None);
    let mut unnamed =
        InMemory::new(&[("w.in_sum2", &[1, 1], vec![1.0]), ("w.counts", &[1, 1], vec![1.0])]);
    unnamed.metadata = Metadata::new();
    assert_eq!(Imatrix::from_checkpoint(&unnamed).expect_err("no keys").code(), Code::Format);
}

#[test]
fn importance_is_found_by_row_and_of_another_length_refused() {
    let entries =
        [("blk.0.ffn_up_exps.weight", 6), ("token_embd.weight", 2), ("blk.0.attn_q.weight", 3)];
    let entries =
        entries.map(|(name, len)| (name.to_owned(), (0_u8..len).map(f32::from).collect()));
    let matrix = Imatrix { entries: entries.into(), ..Imatrix::default() };

    let experts = matrix
        .for_tensor("blk.0.ffn_up_exps.weight", &Shape::from([2, 4, 3]))
        .expect("fits")
        .expect("there");
    assert_eq!((experts.row(3), experts.row(4)), (&[0.0, 1.0, 2.0][..], &[3.0, 4.0, 5.0][..]));
    assert_eq!(experts.matrices().count(), 2);
    let plain = matrix
        .for_tensor("blk.0.attn_q.weight", &Shape::from([9, 3]))
        .expect("fits")
        .expect("there");
    assert_eq!(plain.row(8), [0.0, 1.0, 2.0]);

    assert_eq!(matrix.for_tensor("blk.1.attn_q.weight", &Shape::from([9, 3])), Ok(None));
    assert_eq!(matrix.for_tensor("token_embd.weight", &Shape::from([9, 3])), Ok(None));
    let error = matrix
        .for_tensor("blk.0.attn_q.weight", &Shape::from([9, 4]))
        .expect_err("another model's");
    assert_eq!((error.code(), error.tensor()), (Code::Format, Some("blk.0.attn_q.weight")));
    assert!(matrix.for_tensor("blk.0.attn_q.weight", &Shape::from([3, 0])).is_err());
}

#[test]
fn a_gguf_file_records_its_importance_matrix() {
    let matrix =
        Imatrix { datasets: vec!["wiki.txt".to_owned()], chunk_count: 7, ..Imatrix::default() };
    let pairs = matrix.gguf_keys("imatrix.dat");
    let texts: Vec<String> =
        pairs.iter().map(|pair| format!("{} {}", pair.key, pair.value)).collect();
    assert_eq!(
        texts,
        [
            "quantize.imatrix.file imatrix.dat",
            "quantize.imatrix.dataset wiki.txt",
            "quantize.imatrix.entries_count 0",
            "quantize.imatrix.chunks_count 7",
        ]
    );
}
