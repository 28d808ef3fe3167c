//! APRN as a checkpoint: its tensors, its checksum, and back to APRN through APR2.

use apr_core::{
    CheckpointReader, CheckpointWriter, DType, ExtentKind, Limits, Metadata, Notes, TensorInfo,
};
use apr_format::apr2;
use apr_format::aprn::{self, Compression, Flags, ModelCard, ModelType, to_bytes, to_bytes_with};
use serde::{Deserialize, Serialize};

use super::support::{
    PAYLOAD, as_published, bytes_of, fitted, open, open_with, sample, seven, with_password,
};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Matrix {
    data: Vec<f32>,
    rows: usize,
    cols: usize,
}

/// Fields as the published library declares them.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct KMeans {
    n_clusters: usize,
    max_iter: usize,
    tol: f32,
    random_state: Option<u64>,
    centroids: Option<Matrix>,
    labels: Option<Vec<usize>>,
    inertia: f32,
    n_iter: usize,
}

fn kmeans() -> KMeans {
    KMeans {
        n_clusters: 2,
        max_iter: 300,
        tol: 1e-4,
        random_state: Some(u64::MAX),
        centroids: Some(Matrix { data: vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], rows: 2, cols: 3 }),
        labels: Some(vec![0, 1, 1]),
        inertia: f32::NAN,
        n_iter: 4,
    }
}

fn write(writer: &mut dyn CheckpointWriter, reader: &dyn CheckpointReader) -> Vec<u8> {
    let mut file = Vec::new();
    writer.begin(&mut file).expect("memory takes everything");
    for planned in writer.layout().tensors.clone() {
        for byte in bytes_of(reader, &reader.tensors()[planned.source].name) {
            writer.write_chunk(&mut file, &[byte], None).expect("a planned byte");
        }
    }
    writer.finish(&mut file, &Notes::default()).expect("all tensors are there");
    assert_eq!(file.len() as u64, writer.layout().total_len());
    file
}

/// Converts a checkpoint to APR2, and from there to APRN.
fn through_apr2(reader: &dyn CheckpointReader) -> Vec<u8> {
    let mut writer =
        apr2::plan(reader.tensors(), reader.metadata(), Vec::new(), &apr2::WriteOptions::default())
            .expect("a plan");
    let reader = apr2::open(write(&mut writer, reader), "model.apr", &Limits::default())
        .expect("our own file");
    let mut writer =
        aprn::plan(reader.tensors(), reader.metadata(), "model.aprn").expect("it was APRN");
    write(&mut writer, &reader)
}

#[test]
fn a_plain_file_goes_to_apr2_and_back_byte_for_byte() {
    let Some(published) = sample("linreg") else { return };
    let card = ModelCard { name: "k".into(), ..ModelCard::default() };
    let options = as_published(Compression::None).with_model_card(card).with_quality_score(50);
    let files = [
        published,
        to_bytes(&kmeans(), ModelType::KMeans, &options).expect("a file"),
        to_bytes(&fitted(), ModelType::Svm, &options).expect("a file"),
        to_bytes(&(), ModelType::Custom, &options).expect("a file"),
    ];
    for file in files {
        assert_eq!(through_apr2(&open(file.clone())), file);
    }
}

#[test]
fn a_packed_sealed_and_signed_file_comes_back_with_its_payload_alone() {
    let options =
        as_published(Compression::Zstd).with_password("hunter2").with_signing_key([7; 32]);
    let file = to_bytes_with(&fitted(), ModelType::LinearRegression, &options, &mut seven)
        .expect("a file");
    let reader = open_with(file, &with_password("hunter2"));
    let back = through_apr2(&reader);
    assert_eq!(&back[back.len() - 26..back.len() - 4], PAYLOAD);
    assert_eq!(aprn::inspect(&back).expect("our own file").header.flags, Flags::default());
    let writer = aprn::plan(reader.tensors(), reader.metadata(), "m").expect("it was APRN");
    let lost: Vec<_> = writer.layout().losses.iter().map(|loss| loss.what.as_str()).collect();
    assert_eq!(lost, ["signature", "encryption"]);
}

#[test]
fn metadata_in_another_order_come_back_as_they_were() {
    // {"z": 1, "created_at": "x"}: unknown keys, and not in the order of published programs.
    let metadata = b"\x82\xa1z\x01\xaacreated_at\xa1x";
    let mut file =
        to_bytes(&3_u8, ModelType::Custom, &as_published(Compression::None)).expect("a file");
    file.splice(32..79, *metadata);
    file[8..12].copy_from_slice(&17_u32.to_le_bytes());
    let file = super::support::resealed(file);
    assert_eq!(through_apr2(&open(file.clone())), file);
}

#[test]
fn the_arrays_of_kmeans_are_tensors() {
    for compression in
        [Compression::None, Compression::Lz4, Compression::Zstd, Compression::ZstdMax]
    {
        let file =
            to_bytes(&kmeans(), ModelType::KMeans, &as_published(compression)).expect("a file");
        let reader = open(file);
        let tensors: Vec<_> = reader
            .tensors()
            .iter()
            .map(|info| (&*info.name, info.dtype, info.shape.dims()))
            .collect();
        let expected = [
            ("tol", DType::F32, &[][..]),
            ("centroids", DType::F32, &[2, 3]),
            ("labels", DType::U64, &[3]),
            ("inertia", DType::F32, &[]),
        ];
        assert_eq!(tensors, expected);
        let centroids: Vec<u8> =
            (1..=6_u8).flat_map(|value| f32::from(value).to_le_bytes()).collect();
        assert_eq!(bytes_of(&reader, "centroids"), centroids);
        assert_eq!(bytes_of(&reader, "labels"), [0_u64, 1, 1].map(u64::to_le_bytes).concat());
        let fields = &reader.metadata().object("aprn").expect("it is there")["fields"];
        let expected =
            serde_json::json!({"n_clusters": 2, "max_iter": 300, "seed": u64::MAX, "n_iter": 4});
        assert_eq!(*fields, expected);
    }
}

#[test]
fn an_unfitted_model_has_its_scalars_alone() {
    let unfitted = (None::<Vec<f32>>, 0.0_f32, true);
    let file = to_bytes(&unfitted, ModelType::LinearRegression, &as_published(Compression::None))
        .expect("a file");
    let reader = open(file.clone());
    assert_eq!(reader.tensors().len(), 1);
    assert_eq!(through_apr2(&reader), file);
}

#[test]
fn a_payload_with_a_layout_unlike_its_type_is_shown_as_bytes() {
    for (kind, payload) in
        [(ModelType::LinearRegression, vec![2, 0]), (ModelType::KMeans, vec![0; 3])]
    {
        let file = to_bytes(&payload, kind, &as_published(Compression::None)).expect("a file");
        let reader = open(file.clone());
        assert_eq!(reader.tensors()[0].name, "payload");
        assert!(reader.warnings().iter().any(|warning| warning.contains("laid out")));
        assert_eq!(through_apr2(&reader), file);
        let bytes = &reader.tensors()[0];
        let other_name = TensorInfo { name: "weights".into(), ..bytes.clone() };
        let other_dtype = TensorInfo { dtype: DType::I8, ..bytes.clone() };
        for tensors in
            [vec![other_name], vec![other_dtype], vec![bytes.clone(), bytes.clone()], Vec::new()]
        {
            let refused = aprn::plan(&tensors, reader.metadata(), "m").expect_err("another model");
            assert_eq!(refused.code().id(), "E001");
        }
    }
}

#[test]
fn the_checksum_covers_the_file_in_order_and_without_gaps() {
    for compression in [Compression::None, Compression::Zstd] {
        let options = as_published(compression).with_signing_key([7; 32]);
        let file = to_bytes(&kmeans(), ModelType::KMeans, &options).expect("a file");
        let reader = open(file.clone());
        let checksum = reader.container().checksum().expect("APRN has one");
        let mut covered = Vec::new();
        for extent in &checksum.extents {
            assert_eq!(extent.offset, covered.len() as u64);
            let mut bytes = vec![0; usize::try_from(extent.len).expect("a small part")];
            match extent.kind {
                ExtentKind::Tensor(tensor) => reader.read_tensor(tensor, 0, &mut bytes),
                _ => reader.container().read_raw(extent.offset, &mut bytes),
            }
            .expect("a sound file");
            covered.extend(bytes);
        }
        assert_eq!(covered, file[..file.len() - 4]);
        assert_eq!(checksum.crc32, crc32fast::hash(&covered));
        let tensors = checksum
            .extents
            .iter()
            .filter(|extent| matches!(extent.kind, ExtentKind::Tensor(_)))
            .count();
        assert_eq!(tensors, if compression == Compression::None { 4 } else { 0 });
    }
}

#[test]
fn only_what_came_from_aprn_and_still_is_that_model_becomes_aprn() {
    let weight = TensorInfo { name: "weight".into(), dtype: DType::F32, shape: [2].into() };
    let error = aprn::plan(std::slice::from_ref(&weight), &Metadata::new(), "m")
        .expect_err("never was APRN");
    assert!(
        error.message().contains("was read as one tensor")
            || error.message().contains("converted from APRN"),
        "{error}"
    );
    assert_eq!(error.code().id(), "E001");

    let file =
        to_bytes(&kmeans(), ModelType::KMeans, &as_published(Compression::None)).expect("a file");
    let reader = open(file);
    let refused = |change: &dyn Fn(&mut Vec<TensorInfo>)| {
        let mut tensors = reader.tensors().to_vec();
        change(&mut tensors);
        aprn::plan(&tensors, reader.metadata(), "m").expect_err("another model").code().id()
    };
    assert_eq!(refused(&|tensors| tensors.push(weight.clone())), "E001");
    assert_eq!(refused(&|tensors| drop(tensors.remove(0))), "E001");
    assert_eq!(refused(&|tensors| tensors[1].dtype = DType::F16), "E001");
    assert_eq!(refused(&|tensors| tensors[1].shape = [6].into()), "E001");
}

#[test]
fn damaged_origins_are_refused() {
    let file =
        to_bytes(&kmeans(), ModelType::KMeans, &as_published(Compression::None)).expect("a file");
    let reader = open(file);
    for broken in [
        serde_json::json!(3),
        serde_json::json!({
            "model_type": 6, "flags": 0, "quality_score": 0, "metadata": 4, "fields": {},
        }),
        serde_json::json!({
            "model_type": 6, "flags": 0, "quality_score": 0, "metadata": {}, "fields": {},
        }),
        serde_json::json!({
            "model_type": 999, "flags": 0, "quality_score": 0, "metadata": {}, "fields": {},
        }),
        serde_json::json!({
            "model_type": 6, "flags": 0, "quality_score": 0, "metadata": {}, "msgpack": "8g",
        }),
    ] {
        let mut metadata = reader.metadata().clone();
        metadata.set("aprn", broken);
        assert_eq!(
            aprn::plan(reader.tensors(), &metadata, "m").expect_err("damaged").code().id(),
            "E001"
        );
    }
}
