//! Models that CTranslate2's converter wrote of a Whisper of transformers (`fixtures/ctranslate2`):
//! names and values are those of the Whisper.

use std::collections::BTreeMap;
use std::path::PathBuf;

use apr_bin::ctranslate2::{FORMAT, open};
use apr_core::{CheckpointReader, Code, DType, Limits};
use apr_testkit::{corrupt, peak_memory, read_everything};
use serde_json::Value;

fn fixture(path: &str) -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures");
    std::fs::read(folder.join(path)).expect("the fixture is in the repository")
}

/// The tensors of the model that was converted, all of half precision.
fn source() -> BTreeMap<String, (Vec<u64>, Vec<u8>)> {
    let file = fixture("run/tiny-whisper/model.safetensors");
    let (len, rest) = file.split_first_chunk().expect("a length");
    let (header, data) = rest.split_at(usize::try_from(u64::from_le_bytes(*len)).expect("small"));
    let header: BTreeMap<String, Value> = serde_json::from_slice(header).expect("JSON");
    let tensors = header.into_iter().filter(|(name, _)| name != "__metadata__");
    tensors
        .map(|(name, info)| {
            let dims = serde_json::from_value(info["shape"].clone()).expect("dimensions");
            let place: [usize; 2] =
                serde_json::from_value(info["data_offsets"].clone()).expect("a range");
            (name, (dims, data[place[0]..place[1]].to_vec()))
        })
        .collect()
}

fn bytes_of(reader: &dyn CheckpointReader, tensor: usize, piece: usize) -> Vec<u8> {
    let len = reader.tensors()[tensor].byte_len().expect("a possible length");
    let mut bytes = vec![0; usize::try_from(len).expect("a small tensor")];
    for (at, chunk) in bytes.chunks_mut(piece).enumerate() {
        reader.read_tensor(tensor, (at * piece) as u64, chunk).expect("within the tensor");
    }
    bytes
}

#[test]
fn a_whisper_has_the_tensors_of_transformers() {
    let file = fixture("ctranslate2/whisper/model.bin");
    assert!((FORMAT.recognises)(&file));
    let reader = open(file, "model.bin", &Limits::default()).expect("a whole file");
    let mut source = source();
    for (tensor, info) in reader.tensors().iter().enumerate() {
        let (dims, bytes) = source.remove(&info.name).unwrap_or_else(|| panic!("{}", info.name));
        assert_eq!((info.shape.dims(), info.dtype), (&dims[..], DType::F16), "{}", info.name);
        assert_eq!(bytes_of(&reader, tensor, 1000), bytes, "{}", info.name);
        assert_eq!(reader.tensor_slice(tensor), Some(&bytes[..]), "{}", info.name);
    }
    assert!(source.is_empty(), "{:?} are missing", source.keys());
    let config = reader.metadata().object("architecture").expect("an object");
    for (key, value) in [
        ("encoder_layers", 2),
        ("decoder_layers", 2),
        ("encoder_attention_heads", 2),
        ("decoder_attention_heads", 3),
        ("encoder_ffn_dim", 40),
        ("decoder_ffn_dim", 36),
        ("vocab_size", 344),
        ("d_model", 24),
        ("num_mel_bins", 16),
        ("max_source_positions", 50),
        ("max_target_positions", 28),
    ] {
        assert_eq!(config.get(key), Some(&value.into()), "{key}");
    }
}

#[test]
fn weights_of_8_bits_are_within_half_a_step_of_their_values() {
    let file = fixture("ctranslate2/int8/model.bin");
    let reader = open(file, "model.bin", &Limits::default()).expect("a whole file");
    let source = source();
    let mut coded = 0;
    for (tensor, info) in reader.tensors().iter().enumerate() {
        let (dims, bytes) = &source[&info.name];
        assert_eq!(info.shape.dims(), &dims[..], "{}", info.name);
        if info.dtype == DType::F16 {
            assert_eq!(&bytes_of(&reader, tensor, 10), bytes, "{}", info.name);
            continue;
        }
        coded += 1;
        assert_eq!(info.dtype, DType::F32, "{}", info.name);
        let width = usize::try_from(dims[1..].iter().product::<u64>()).expect("small");
        let values: Vec<f32> = bytes
            .as_chunks()
            .0
            .iter()
            .map(|bytes| half::f16::from_le_bytes(*bytes).to_f32())
            .collect();
        let read = bytes_of(&reader, tensor, 7);
        let read = read.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        for (at, (read, value)) in read.zip(&values).enumerate() {
            let row = &values[at / width * width..][..width];
            let largest = row.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
            let step = largest / 127.0;
            assert!((read - value).abs() <= 0.501 * step, "{} at {at}: {read}", info.name);
        }
    }
    assert!(coded > 20, "{coded}");
    assert_eq!(reader.tensors().len(), source.len());
}

#[test]
fn broken_files_are_errors_and_take_no_memory() {
    let file = fixture("ctranslate2/int8/model.bin");
    // Lengths of texts and data, dimensions, types, and the aliases at the end.
    let flips = corrupt::bit_flips(&file, 0..600);
    let last = corrupt::bit_flips(&file, file.len() - 600..file.len());
    let short = corrupt::truncations(&file[..2000]);
    for broken in flips.chain(last).chain(short) {
        let ((), peak) = peak_memory(|| {
            if let Ok(reader) = open(broken, "model.bin", &Limits::default()) {
                let _ = read_everything(&reader);
            }
        });
        assert!(peak < 2 << 20, "{peak} bytes");
    }
    let mut other = file;
    other[0] = 9;
    let error = open(other, "model.bin", &Limits::default()).expect_err("another version");
    assert_eq!(error.code(), Code::Version);
}

#[test]
fn a_head_of_its_own_is_kept_and_one_that_is_the_table_is_not() {
    let text = |text: &str| {
        let len = u16::try_from(text.len() + 1).expect("short");
        [&len.to_le_bytes()[..], text.as_bytes(), b"\0"].concat()
    };
    let table = |name: &str, byte: u8| {
        // Two dimensions, 1 and 2; half precision; four bytes.
        [text(name), vec![2, 1, 0, 0, 0, 2, 0, 0, 0, 4, 4, 0, 0, 0], vec![byte; 4]].concat()
    };
    let (embeddings, head) = ("decoder/embeddings/weight", "decoder/projection/weight");
    let names = |variables: &[Vec<u8>], aliases: &[Vec<u8>]| {
        let mut file = [6_u32.to_le_bytes().to_vec(), text("WhisperSpec")].concat();
        file.extend(3_u32.to_le_bytes());
        for list in [variables, aliases] {
            file.extend(u32::try_from(list.len()).expect("few").to_le_bytes());
            file.extend(list.concat());
        }
        let reader = open(file, "model.bin", &Limits::default()).expect("a whole file");
        reader.tensors().iter().map(|info| info.name.clone()).collect::<Vec<_>>()
    };
    let alias = [text(head), text(embeddings)].concat();
    assert_eq!(names(&[table(embeddings, 1)], &[alias]), ["model.decoder.embed_tokens.weight"]);
    let own = [table(embeddings, 1), table(head, 2)];
    assert_eq!(names(&own, &[]), ["model.decoder.embed_tokens.weight", "proj_out.weight"]);
}
