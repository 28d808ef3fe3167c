//! Pictures, beside Pillow and transformers: `fixtures/picture/make.py`.

use apr_core::Code;
use apr_inputs::picture::{Filter, Picture, PixelSettings, decode};
use apr_testkit::locate;
use serde_json::Value as Json;

const MOST: u64 = 100 << 20;

fn file(name: &str) -> Vec<u8> {
    std::fs::read(locate::fixture(&format!("picture/{name}"))).unwrap()
}

fn expected() -> Json {
    serde_json::from_slice(&file("expected.json")).unwrap()
}

/// The bytes of a text in base64.
fn bytes(json: &Json) -> Vec<u8> {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut made, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for letter in json.as_str().unwrap().bytes().filter(|letter| *letter != b'=') {
        bits = bits << 6 | LETTERS.iter().position(|there| *there == letter).unwrap() as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            made.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    made
}

fn furthest(picture: &Picture, theirs: &Json) -> u8 {
    let (ours, theirs) = (picture.pixels.iter().step_by(5), bytes(theirs));
    assert_eq!(ours.len(), theirs.len());
    ours.zip(theirs).map(|(a, b)| a.abs_diff(b)).max().unwrap()
}

#[test]
fn files_of_every_kind_have_the_pixels_of_pillow() {
    for (name, row) in expected()["decoded"].as_object().unwrap() {
        let picture = decode(&file(name), MOST).unwrap();
        let sides = serde_json::json!([picture.height, picture.width, 3]);
        assert_eq!(sides, row["shape"], "{name}");
        assert_eq!(furthest(&picture, &row["bytes"]), 0, "{name}");
    }
}

/// EXIF data, first frames, 16 bits, and JPEG's ways to sample colours:
/// `fixtures/picture/kinds.py`.
#[test]
fn kinds_of_files_have_the_pixels_of_pillow() {
    let expected: Json = serde_json::from_slice(&file("kinds.json")).unwrap();
    let mut off = Vec::new();
    for (name, row) in expected.as_object().unwrap() {
        let picture = match decode(&file(&format!("kinds/{name}")), MOST) {
            Ok(picture) => picture,
            Err(error) => {
                off.push(format!("{name}: {error}"));
                continue;
            }
        };
        let sides = serde_json::json!([picture.height, picture.width, 3]);
        assert_eq!(sides, row["shape"], "{name}");
        let theirs = bytes(&row["bytes"]);
        let step = if picture.pixels.len() < 999 { 3 } else { 7 };
        let ours = picture.pixels.iter().step_by(step);
        assert_eq!(ours.len(), theirs.len(), "{name}");
        let furthest = ours.zip(&theirs).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
        let tolerance = u8::from(name == "cmyk.jpg");
        if furthest > tolerance {
            off.push(format!("{name}: {furthest}"));
        }
    }
    assert!(off.is_empty(), "{}", off.join(", "));
}

#[test]
fn other_sizes_have_the_pixels_of_pillow_with_every_filter() {
    let picture = decode(&file("a.png"), MOST).unwrap();
    for row in expected()["resized"].as_array().unwrap() {
        let number = |key: &str| row[key].as_u64().unwrap();
        let filter = Filter::by_number(number("filter")).unwrap();
        let made =
            picture.resized(number("width") as usize, number("height") as usize, filter).unwrap();
        assert_eq!(
            furthest(&made, &row["bytes"]),
            0,
            "{filter:?} {} x {}",
            made.width,
            made.height
        );
    }
}

/// Sizes that follow from the image, and tiles: `fixtures/picture/processors.py`.
#[test]
fn preprocessors_of_vision_language_models_make_the_pixels_of_transformers() {
    let rows: Json = serde_json::from_slice(&file("processors.json")).unwrap();
    for row in rows.as_array().unwrap() {
        let (config, name) = (&row["config"], row["picture"].as_str().unwrap());
        let picture = decode(&file(name), MOST).unwrap();
        let settings = PixelSettings::from_json(config, (30, 30)).unwrap();
        let (mut shapes, mut ours) = (Vec::new(), Vec::new());
        for picture in settings.tiled(picture).unwrap().pictures {
            let (values, height, width) = settings.apply(&picture).unwrap();
            shapes.push([3, height, width]);
            ours.extend(values.into_iter().step_by(29));
        }
        assert_eq!(serde_json::json!(shapes), row["shapes"], "{name}: {config}");
        let theirs = row["values"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap());
        assert_eq!(ours.len(), theirs.len(), "{name}: {config}");
        let off = ours.iter().zip(theirs).map(|(a, b)| (f64::from(*a) - b).abs());
        let off = off.fold(0.0, f64::max);
        assert!(off <= 2e-5, "{off}: {name}: {config}");
    }
}

#[test]
fn sizes_that_no_processor_of_vision_language_models_has_are_refused() {
    let of = |class: &str, more: Json| {
        let mut config = serde_json::json!({ "image_processor_type": class });
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        PixelSettings::from_json(&config, (30, 30))
    };
    for (class, more) in [
        ("Qwen2VLImageProcessor", serde_json::json!({ "patch_size": 0 })),
        ("Qwen2VLImageProcessor", serde_json::json!({ "size": { "height": 8, "width": 8 } })),
        ("Qwen2VLImageProcessorFast", serde_json::json!({ "min_pixels": 0 })),
        ("PixtralImageProcessor", serde_json::json!({ "size": { "height": 8, "width": 8 } })),
        ("PixtralImageProcessor", serde_json::json!({ "patch_size": 0 })),
        ("GotOcr2ImageProcessor", serde_json::json!({ "size": { "shortest_edge": 8 } })),
    ] {
        assert!(of(class, more.clone()).is_err(), "{class}: {more}");
    }
    let narrow = Picture { width: 1, height: 201, pixels: vec![0; 603] };
    let settings = of("Qwen2VLImageProcessor", serde_json::json!({})).unwrap();
    assert_eq!(settings.apply(&narrow).unwrap_err().code(), Code::Version);
    let huge = serde_json::json!({ "min_pixels": u64::from(u32::MAX), "max_pixels": u64::MAX });
    let settings = of("Qwen2VLImageProcessor", huge).unwrap();
    let square = Picture { width: 9, height: 9, pixels: vec![0; 243] };
    assert!(settings.apply(&square).is_err());
}

#[test]
fn preprocessors_make_the_pixels_of_transformers() {
    let picture = decode(&file("a.png"), MOST).unwrap();
    for row in expected()["prepared"].as_array().unwrap() {
        let settings = PixelSettings::from_json(&row["config"], (30, 30)).unwrap();
        let (values, height, width) = settings.apply(&picture).unwrap();
        assert_eq!(serde_json::json!([height, width, 3]), row["shape"]);
        let theirs = row["values"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap());
        let ours = values.iter().step_by(7);
        assert_eq!(ours.len(), theirs.len());
        let off = ours.zip(theirs).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
        assert!(off <= 1e-5, "{off}: {}", row["config"]);
    }
}

#[test]
fn pictures_that_are_too_large_are_refused_before_they_are_read() {
    // A PNG of 100,000 x 100,000 pixels: its header, and no data.
    let mut header = file("a.png")[..33].to_vec();
    header[16..24].copy_from_slice(&[0, 1, 0x86, 0xa0, 0, 1, 0x86, 0xa0]);
    let crc = crc32(&header[12..29]);
    header[29..33].copy_from_slice(&crc.to_be_bytes());
    assert_eq!(decode(&header, MOST).unwrap_err().code(), Code::Memory);
    header[16..24].copy_from_slice(&[0, 0, 0x7f, 0xff, 0, 0, 0x7f, 0xff]);
    let crc = crc32(&header[12..29]);
    header[29..33].copy_from_slice(&crc.to_be_bytes());
    header.extend_from_slice(&file("a.png")[33..]);
    assert_eq!(decode(&header, MOST).unwrap_err().code(), Code::Memory);
    assert_eq!(decode(&file("a.png"), 1000).unwrap_err().code(), Code::Memory);
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = apr_core::digest::Crc32::new();
    crc.update(bytes);
    crc.value()
}

#[test]
fn empty_and_damaged_pictures_are_errors() {
    assert!(decode(b"", MOST).unwrap_err().message().contains("empty"));
    assert_eq!(decode(b"no picture", MOST).unwrap_err().code(), Code::Version);
    let kinds = ["kinds/420.jpg", "kinds/420_progressive.jpg", "kinds/restarts.jpg"];
    let other = ["kinds/frames.gif", "kinds/a.bmp"];
    for name in ["a.png", "a.webp", "a.jpg", "palette.png"].into_iter().chain(kinds).chain(other) {
        let whole = file(name);
        for len in (1..whole.len() * 9 / 10).step_by(whole.len() / 60 + 1) {
            // A JPEG that is cut off is shown as far as it goes by all decoders, and what is cut
            // off a GIF may be its second frame.
            if let Ok(picture) = decode(&whole[..len], MOST) {
                assert!(
                    name.ends_with("jpg") || name.ends_with("gif"),
                    "{name} {len} {}",
                    picture.width
                );
            }
        }
        for at in (0..whole.len()).step_by(whole.len() / 150 + 1) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            let _ = decode(&bytes, MOST);
        }
    }
}

#[test]
fn unknown_settings_are_rejected() {
    for config in [
        serde_json::json!({ "resample": 9 }),
        serde_json::json!({ "size": { "max_height": 3 } }),
        serde_json::json!({ "do_pad": true }),
    ] {
        assert_eq!(PixelSettings::from_json(&config, (8, 8)).unwrap_err().code(), Code::Version);
    }
    let picture = Picture { width: 2, height: 1, pixels: vec![0; 6] };
    assert!(picture.resized(0, 5, Filter::Bicubic).is_err());
    assert!(picture.resized(usize::MAX, 5, Filter::Bicubic).is_err());
    assert!(picture.middle(1 << 30, 1).is_err());
}
