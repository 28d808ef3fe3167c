//! The files that aprender 0.20.0 wrote.

use apr_core::{CheckpointReader, DType};
use apr_format::aprn::{
    Compression, LoadOptions, ModelType, inspect, load_from_bytes, load_from_bytes_with, to_bytes,
};
use apr_testkit::read_everything;

use super::support::{
    LinearRegression, as_published, bytes_of, fitted, open, open_with, sample, with_password,
};

const NAMES: [&str; 4] =
    ["linreg", "linreg-zstd", "linreg-signed-sk07x32", "linreg-enc-password-hunter2"];

#[test]
fn every_sample_loads_with_the_values_it_was_saved_with() {
    for name in NAMES {
        let Some(file) = sample(name) else { return };
        let model: LinearRegression =
            load_from_bytes_with(&file, ModelType::LinearRegression, &with_password("hunter2"))
                .expect(name);
        assert_eq!(model, fitted(), "{name}");
    }
}

#[test]
fn every_sample_shows_header_and_metadata() {
    for name in NAMES {
        let Some(file) = sample(name) else { return };
        let info = inspect(&file).expect(name);
        assert_eq!(info.model_type(), Some(ModelType::LinearRegression));
        assert_eq!((info.header.uncompressed_size, info.header.quality_score), (22, 0), "{name}");
        assert_eq!(info.metadata.created_at, "1795218935");
        assert_eq!(info.metadata.aprender_version, "0.20.0");
        assert_eq!(info.metadata.model_name.as_deref(), (name == "linreg").then_some("lr"));
        assert_eq!(info.encrypted(), name.contains("enc"));
        assert_eq!(info.signed_by.is_some(), name.contains("signed"));
        assert!(info.warnings.is_empty(), "{name}: {:?}", info.warnings);
    }
}

#[test]
fn every_sample_is_a_checkpoint_of_its_arrays() {
    for name in NAMES {
        let Some(file) = sample(name) else { return };
        let reader = open_with(file, &with_password("hunter2"));
        let tensors: Vec<_> = reader
            .tensors()
            .iter()
            .map(|info| (&*info.name, info.dtype, info.shape.dims()))
            .collect();
        assert_eq!(
            tensors,
            [("coefficients", DType::F32, &[2][..]), ("intercept", DType::F32, &[])],
            "{name}"
        );
        assert_eq!(bytes_of(&reader, "coefficients"), [4, 0, 0x80, 0x3f, 0, 0, 0, 0x40]);
        assert_eq!(bytes_of(&reader, "intercept"), [0xeb, 5, 0xd1, 0xb5]);
        assert_eq!(reader.metadata().text("model_type"), Some("linear_regression"));
        let aprn = reader.metadata().object("aprn").expect("what the file says");
        assert_eq!(aprn["fields"], serde_json::json!({"fit_intercept": true}));
        read_everything(&reader).expect(name);
    }
}

#[test]
fn saving_the_same_model_gives_the_same_bytes() {
    let cases = [
        ("linreg", as_published(Compression::None).with_name("lr")),
        ("linreg-signed-sk07x32", as_published(Compression::None).with_signing_key([7; 32])),
    ];
    for (name, options) in cases {
        let Some(file) = sample(name) else { return };
        assert_eq!(
            to_bytes(&fitted(), ModelType::LinearRegression, &options).expect(name),
            file,
            "{name}"
        );
    }
    // Encoders of Zstandard differ; everything before the frame does not.
    let Some(file) = sample("linreg-zstd") else { return };
    let ours = to_bytes(&fitted(), ModelType::LinearRegression, &as_published(Compression::Zstd))
        .expect("zstd");
    assert_eq!((&ours[..12], &ours[16..79]), (&file[..12], &file[16..79]));
    let model: LinearRegression =
        load_from_bytes(&ours, ModelType::LinearRegression).expect("our own file");
    assert_eq!(model, fitted());
}

#[test]
fn without_the_password_an_encrypted_sample_shows_only_its_size() {
    let Some(file) = sample("linreg-enc-password-hunter2") else { return };
    let reader = open(file.clone());
    let [payload] = reader.tensors() else { panic!("{:?}", reader.tensors()) };
    assert_eq!(
        (&*payload.name, payload.dtype, payload.shape.dims()),
        ("payload", DType::U8, &[22][..])
    );
    assert!(reader.warnings().iter().any(|warning| warning.contains("encrypted")));
    let error = reader.read_tensor(0, 0, &mut [0; 22]).expect_err("no password");
    assert_eq!((error.code().id(), error.tensor()), ("E005", Some("payload")));
    assert_eq!(reader.tensor_slice(0), None);
    let wrong =
        apr_format::aprn::open(file, "m", &apr_core::Limits::default(), &with_password("hunter3"));
    assert_eq!(wrong.map(drop).expect_err("another password").code().id(), "E005");
}

#[test]
fn the_signed_sample_is_trusted_only_through_its_own_key() {
    let Some(file) = sample("linreg-signed-sk07x32") else { return };
    let key = inspect(&file).expect("a sample").signed_by.expect("it is signed");
    // The public key of the secret 0x07 x 32, by an independent implementation.
    let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "ea4a6c63e29c520abef5507b132ec5f9954776aebebe7b92421eea691446d22c");
    let load = |trusted_keys: Vec<[u8; 32]>| {
        let options = LoadOptions { trusted_keys, ..LoadOptions::default() };
        load_from_bytes_with::<LinearRegression>(&file, ModelType::LinearRegression, &options)
    };
    assert_eq!(load(vec![key]), Ok(fitted()));
    assert_eq!(load(vec![]), Ok(fitted()));
    let stranger = load(vec![[1; 32]]).expect_err("signed by somebody else");
    assert_eq!(stranger.error().code().id(), "E006");
    assert!(stranger.to_string().contains("ea4a6c63"), "{stranger}");
}

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(apr_testkit::locate::fixture(&format!("valid/aprn/{name}.apr")))
        .expect("a fixture")
}

/// Returns the model as `fixtures/valid/aprn/make.rs` printed it when saving.
fn refitted() -> LinearRegression {
    LinearRegression {
        coefficients: Some(vec![1.000_000_1, 1.999_999_8]),
        intercept: 9.536_743e-7,
        fit_intercept: true,
    }
}

#[test]
fn a_file_for_a_recipient_opens_with_the_secret_key() {
    let options = LoadOptions { identity: Some([9; 32].into()), ..LoadOptions::default() };
    let file = fixture("recipient-x09");
    assert_eq!(load_from_bytes_with(&file, ModelType::LinearRegression, &options), Ok(refitted()));
    assert_eq!(bytes_of(&open_with(file, &options), "intercept"), 9.536_743e-7_f32.to_le_bytes());
}

#[test]
fn published_card_and_licence_are_read_and_the_missing_flag_is_reported() {
    let file = fixture("card-licence-zstd19");
    assert_eq!(load_from_bytes(&file, ModelType::LinearRegression), Ok(refitted()));
    let info = inspect(&file).expect("a fixture");
    let (card, license) =
        (info.metadata.model_card.expect("a card"), info.metadata.license.expect("a licence"));
    assert_eq!(
        (&*card.name, &*card.version, &card.metrics["acc"]),
        ("id", "1.0", &serde_json::json!(0.9))
    );
    assert_eq!(card.extra["framework_version"], "aprender 0.20.0");
    assert_eq!((&*license.uuid, license.seats), ("u", Some(3)));
    assert_eq!(info.warnings, ["the metadata hold a model card, but its flag is not set"]);
}

#[test]
fn the_arrays_of_a_published_kmeans_are_tensors() {
    let reader = open(fixture("kmeans"));
    assert_eq!(
        bytes_of(&reader, "centroids"),
        [3.5_f32, 8.0, 2.0, 3.0].map(f32::to_le_bytes).concat()
    );
    assert_eq!(bytes_of(&reader, "labels"), [1_u64, 1, 0, 0].map(u64::to_le_bytes).concat());
    assert_eq!(reader.metadata().object("aprn").expect("it is there")["fields"]["seed"], 3);
}
