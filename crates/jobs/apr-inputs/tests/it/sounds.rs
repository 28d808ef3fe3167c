//! Sounds, beside libsndfile, torchaudio and transformers: `fixtures/sound/make.py`.

use apr_core::Code;
use apr_inputs::sound::{LogMel, MelSettings, Sound, decode, resample};
use apr_testkit::locate;
use serde_json::Value as Json;

const MOST: usize = 10_000_000;

fn file(name: &str) -> Vec<u8> {
    std::fs::read(locate::fixture(&format!("sound/{name}"))).unwrap()
}

fn expected() -> Json {
    serde_json::from_slice(&file("expected.json")).unwrap()
}

fn numbers(json: &Json) -> Vec<f32> {
    json.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
}

fn furthest<'f>(ours: impl IntoIterator<Item = &'f f32>, theirs: &[f32]) -> f32 {
    let ours: Vec<&f32> = ours.into_iter().collect();
    assert_eq!(ours.len(), theirs.len());
    ours.iter().zip(theirs).map(|(a, b)| (**a - b).abs()).fold(0.0, f32::max)
}

/// The sound at 16 kHz, as torchaudio makes it.
fn resampled() -> Vec<f32> {
    numbers(&expected()["resampled"])
}

#[test]
fn files_of_every_kind_have_the_samples_of_libsndfile() {
    for (name, values) in expected()["decoded"].as_object().unwrap() {
        let (sound, warnings) = decode(file(name), MOST).unwrap();
        assert_eq!(
            (sound.rate, sound.channels, warnings),
            (22_050, 2, Vec::<String>::new()),
            "{name}"
        );
        let theirs = numbers(values);
        // MP3 has no exact length, and decoders differ in their last digits.
        let tolerance = if name.ends_with("mp3") { 1e-3 } else { 1e-5 };
        let ours: Vec<f32> = sound.samples.iter().step_by(7).copied().collect();
        let count = ours.len().min(theirs.len());
        assert!(
            name.ends_with("mp3") || ours.len() == theirs.len(),
            "{name}: {} and {}",
            ours.len(),
            theirs.len()
        );
        assert!(count * 10 >= theirs.len() * 9, "{name}: {count}");
        let off = furthest(&ours[..count], &theirs[..count]);
        assert!(off <= tolerance, "{name}: {off}");
    }
}

/// RF64, G.711, AIFF, and FLAC with wrong block lengths: `fixtures/sound/kinds.py`.
#[test]
fn kinds_of_files_have_the_samples_of_libsndfile() {
    let expected: Json = serde_json::from_slice(&file("kinds.json")).unwrap();
    for (name, row) in expected.as_object().unwrap() {
        let (sound, warnings) = decode(file(&format!("kinds/{name}")), MOST).unwrap();
        assert_eq!(warnings, Vec::<String>::new(), "{name}");
        assert_eq!(Some(sound.samples.len() as u64), row["count"].as_u64(), "{name}");
        let ours = sound.samples.iter().step_by(row["step"].as_u64().unwrap() as usize);
        let off = furthest(ours, &numbers(&row["samples"]));
        assert!(off <= 1e-6, "{name}: {off}");
    }
}

#[test]
fn resampled_audio_matches_torchaudio() {
    let expected = expected();
    let (sound, _) = decode(file("a.wav"), MOST).unwrap();
    // It computes its filter in single precision.
    assert!(furthest(&sound.at_rate(16_000).unwrap().samples, &resampled()) <= 1e-5);
    let raised = resample(&sound.samples, 22_050, 48_000).unwrap();
    assert!(furthest(raised.iter().step_by(11), &numbers(&expected["raised"])) <= 1e-5);
}

#[test]
fn normalized_samples_match_transformers() {
    let sound = Sound { rate: 16_000, channels: 1, samples: resampled() };
    assert!(
        furthest(sound.normalized().iter().step_by(5), &numbers(&expected()["normalized"])) <= 1e-5
    );
}

#[test]
fn spectra_match_the_feature_extractor_of_whisper() {
    let expected = expected();
    let filterbank = numbers(&expected["filterbank"]);
    let mel = LogMel::new(MelSettings { points: 400, hop: 160, mels: 16, filterbank }).unwrap();
    let mut samples = resampled();
    samples.resize(16_000, 0.0);
    let made = mel.spectrum(&samples).unwrap();
    let ours: Vec<f32> =
        made.chunks_exact(100).flat_map(|row| row.iter().step_by(3).copied()).collect();
    let off = furthest(&ours, &numbers(&expected["mel"]));
    assert!(off <= 1e-5, "{off}");
}

#[test]
fn qa_64_empty_and_damaged_files_are_errors() {
    assert!(decode(Vec::new(), MOST).unwrap_err().message().contains("empty"));
    assert_eq!(
        decode(b"no sound at all, but some text".to_vec(), MOST).unwrap_err().code(),
        Code::Version
    );
    assert_eq!(decode(file("a.flac"), 1000).unwrap_err().code(), Code::Memory);
    let kinds = ["kinds/rf64.wav", "kinds/a_law_extensible.wav", "kinds/24.aiff"];
    for name in ["a.wav", "a.flac", "a.mp3", "a.ogg", "c.wav", "d.wav"].into_iter().chain(kinds) {
        let whole = file(name);
        let (length, _) =
            decode(whole.clone(), MOST).map(|(sound, rest)| (sound.samples.len(), rest)).unwrap();
        for len in (0..whole.len()).step_by(whole.len() / 60 + 1) {
            if let Ok((sound, warnings)) = decode(whole[..len].to_vec(), MOST) {
                assert!(sound.samples.len() <= length);
                let said = !warnings.is_empty()
                    || sound.samples.len() + 2500 >= length
                    || name.ends_with("mp3");
                assert!(said, "{name} cut at {len}: {} of {length}", sound.samples.len());
            }
        }
        for at in (0..whole.len()).step_by(whole.len() / 120 + 1) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            if let Ok((sound, _)) = decode(bytes, MOST) {
                let _ = sound.check();
                let _ = sound.at_rate(16_000).map(|sound| sound.samples.len());
            }
        }
    }
}

#[test]
fn qa_40_samples_out_of_range_are_said() {
    let of = |samples: Vec<f32>| Sound { rate: 16_000, channels: 1, samples };
    assert!(of(vec![0.0, -10.0]).check().unwrap()[0].contains("reach 10"));
    assert!(of(vec![0.0; 9]).check().unwrap()[0].contains("silent"));
    assert!(of(vec![0.1, f32::NAN]).check().is_err());
    assert!(of(Vec::new()).check().is_err());
    assert!(of(vec![1.0, -0.2]).check().unwrap().is_empty());
}

#[test]
fn speech_has_the_spectrum_of_transformers() {
    let Some(path) = locate::shared_data("audio/ggml-org_whisper.cpp__jfk.wav") else { return };
    let Some(filters) = locate::shared_data("whisper/openai_whisper__mel_filters.npz") else {
        return;
    };
    let (sound, warnings) = decode(std::fs::read(path).unwrap(), MOST).unwrap();
    assert_eq!((sound.rate, warnings.len()), (16_000, 0));
    let reader = apr_numpy::open(
        std::fs::read(filters).unwrap(),
        "mel_filters.npz",
        &apr_core::Limits::default(),
    );
    let reader = reader.unwrap();
    use apr_core::CheckpointReader;
    let position = reader.tensors().iter().position(|info| info.name.contains("80")).unwrap();
    let mut bytes = vec![0; 80 * 201 * 4];
    reader.read_tensor(position, 0, &mut bytes).unwrap();
    let filterbank =
        bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
    let mel = LogMel::new(MelSettings { points: 400, hop: 160, mels: 80, filterbank }).unwrap();
    let mut samples = sound.samples;
    samples.resize(480_000, 0.0);
    let made = mel.spectrum(&samples).unwrap();
    let off = furthest(made.iter().step_by(997), &numbers(&expected()["speech"]));
    assert!(off <= 1e-5, "{off}");
}
