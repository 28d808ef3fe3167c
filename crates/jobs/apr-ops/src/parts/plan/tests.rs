//! Plans that come back, and plans that are refused.

use apr_registry::Code;
use apr_testkit::corrupt;
use serde_json::json;

use super::*;
use crate::parts::PartResult;

/// Two shards, with one tensor each.
fn sound() -> PartsPlan {
    let part = |number: usize| PlannedPart {
        file: Some(format!("o-0000{number}-of-00002.apr")),
        size: Some(64),
        units: None,
        reads: vec![Read { input: 0, file: 0, offset: 8, len: 4 }],
    };
    let shard =
        |number: usize| json!({ "file": part(number).file, "size": 64, "crc32": "00000000" });
    let tensor = |name: &str| json!({ "name": name, "dtype": "u8", "shape": [4] });
    let manifest = json!({
        "apr_version": "2.0.0", "sharded": true, "shard_count": 2, "shards": [shard(1), shard(2)],
        "tensor_shard_map": { "a": 0, "b": 1 }, "metadata": {}, "companions": [],
        "tensors": [tensor("a"), tensor("b")],
    });
    let zeros = "00".repeat(32);
    PartsPlan {
        apr_plan: FORMAT_VERSION,
        apr: "0.1.0".into(),
        job: JobWords { command: "convert".into(), options: [("model".into(), "m".into())].into() },
        inputs: vec![Input {
            path: "m".into(),
            files: vec![FileInput { name: "m".into(), size: 16, modified: Some(7), etag: None }],
            companions: vec![CompanionInput { name: "c".into(), size: 1, blake3: zeros.clone() }],
            front: zeros.clone(),
            tensors: vec![TensorInput { name: "a".into(), blake3: zeros }],
        }],
        settings: Vec::new(),
        output: Some(OutputPlan {
            path: "f/o.apr".into(),
            shard_size: 4,
            manifest: Some(manifest),
        }),
        encryption: None,
        parts: vec![part(1), part(2)],
    }
}

fn parse(bytes: &[u8]) -> Result<PartsPlan> {
    PartsPlan::parse(bytes, "plan.json", &Limits::default())
}

#[track_caller]
fn refused(change: impl FnOnce(&mut PartsPlan), code: Code, says: &str) {
    let mut plan = sound();
    change(&mut plan);
    let error = parse(&plan.encode()).expect_err(says);
    assert_eq!(error.code(), code, "{error}");
    assert!(error.to_string().contains(says) && error.to_string().contains("plan.json"), "{error}");
}

#[test]
fn a_plan_comes_back_as_it_was() {
    assert_eq!(parse(&sound().encode()).expect("a sound plan"), sound());
    let manifest = sound().manifest(&Limits::default()).expect("a manifest").expect("there is one");
    assert_eq!(manifest.shards.len(), 2);
}

#[test]
fn a_plan_that_is_cut_or_flipped_is_refused_or_another_sound_plan() {
    let bytes = sound().encode();
    // The last byte is the end of the line.
    for cut in corrupt::truncations(&bytes[..bytes.len() - 1]) {
        let error = parse(&cut).expect_err("it is not whole");
        assert_eq!(error.code(), Code::Format, "{error}");
    }
    for flipped in corrupt::bit_flips(&bytes, 0..bytes.len()) {
        let Ok(plan) = parse(&flipped) else { continue };
        let output = plan.output.expect("nothing removes it");
        check_relative(&output.path).expect("it was checked");
        assert!(
            plan.parts
                .iter()
                .all(|part| part.file.as_deref().is_some_and(|file| !file.contains('/')))
        );
    }
}

#[test]
fn a_result_that_is_cut_or_flipped_is_refused_or_another_sound_result() {
    let file = super::super::WrittenFile { name: "f".into(), bytes: 1, blake3: "ab".repeat(32) };
    let bytes = PartResult::new("cd".repeat(32), 1, Some(file), json!({ "tensors": 1 })).encode();
    let parse = |bytes: &[u8]| PartResult::parse(bytes, "r.json", &Limits::default());
    parse(&bytes).expect("a sound result");
    corrupt::truncations(&bytes[..bytes.len() - 1]).for_each(|cut| assert!(parse(&cut).is_err()));
    corrupt::bit_flips(&bytes, 0..bytes.len()).for_each(|flipped| drop(parse(&flipped)));
}

#[test]
fn contradictions_and_paths_outside_the_folder_are_rejected() {
    for path in ["../o.apr", "/o.apr", "f//o.apr", "f/../o.apr", "", "f\\o.apr", "C:o.apr"] {
        refused(
            |plan| plan.output.as_mut().expect("one").path = path.into(),
            Code::Format,
            "below the folder",
        );
    }
    let file = |name: &str| Some(name.to_owned());
    refused(|plan| plan.parts[0].file = file("../o.apr"), Code::Format, "not a plain file name");
    refused(|plan| plan.parts[0].file = file("other.apr"), Code::Format, "not the output's");
    refused(
        |plan| plan.parts[1].file = plan.parts[0].file.clone(),
        Code::Format,
        "not the output's",
    );
    refused(|plan| drop(plan.parts.pop()), Code::Format, "not the output's");
    refused(|plan| plan.parts.clear(), Code::Memory, "0 parts");
    refused(|plan| plan.output = None, Code::Format, "no output");
    refused(|plan| plan.apr_plan = 2, Code::Version, "version 2");
    refused(|plan| plan.parts[0].reads[0].len = u64::MAX, Code::Format, "part 0 reads bytes");
    refused(|plan| plan.parts[1].reads[0].input = 1, Code::Format, "part 1 reads bytes");
    refused(|plan| plan.inputs[0].front = "x".into(), Code::Format, "not a digest");
    refused(|plan| plan.output.as_mut().expect("one").shard_size = 0, Code::Format, "shard size");
    // Its own file would be replaced.
    let own = |plan: &mut PartsPlan| {
        let output = plan.output.as_mut().expect("one");
        (output.path, output.manifest) = ("plan.json".into(), None);
        plan.parts.truncate(1);
        plan.parts[0].file = file("plan.json");
    };
    refused(own, Code::Format, "not the output's");
}

#[test]
fn plans_with_too_many_parts_are_rejected_before_they_are_processed() {
    let mut plan =
        PartsPlan { output: None, parts: vec![PlannedPart::default(); MAX_PARTS + 1], ..sound() };
    plan.parts.iter_mut().for_each(|part| part.units = Some([0, 0]));
    let error = parse(&plan.encode()).expect_err("too many");
    assert_eq!(error.code(), Code::Memory, "{error}");
    plan.parts.truncate(2);
    plan.parts[1].units = Some([7, 1]);
    assert!(parse(&plan.encode()).expect_err("a gap").message().contains("gap"));
}

#[test]
fn ranges_that_touch_are_one() {
    let read = |offset, len| Read { input: 0, file: 0, offset, len };
    let joined = Read::joined(vec![read(8, 4), read(0, 8), read(20, 0), read(14, 2), read(10, 1)]);
    assert_eq!(joined, [read(0, 12), read(14, 2)]);
}

#[test]
fn numbers_that_no_tensor_has_are_refused_when_parts_are_put_together() {
    let measured = |count: u64, non_finite: u64| {
        json!({ "name": "a", "dtype": "q8_0", "bytes": 34, "count": count, "non_finite": non_finite,
                "sums": ["1.0", "inf", "2.5e-3"], "max_error": ["0.5"] })
    };
    let report = |measured: Vec<Value>| {
        json!({
            "tensor_count": usize::MAX, "elements": u64::MAX, "bytes_in": 1,
            "rounding": { "inexact": u64::MAX, "flushed": 0, "overflowed": 0 },
            "losses": [], "checked": 1, "violations": [], "odd": [],
            "siblings": [], "measured": measured, "warnings": ["w"],
        })
    };
    let finish = |measured: Vec<Value>| {
        let result = |part| PartResult::new(String::new(), part, None, report(measured.clone()));
        crate::parts::finish(&sound(), &[result(0), result(1)], &[1, 2], &Limits::default())
    };
    let (finished, manifest) =
        finish(vec![measured(32, 0)]).expect("numbers that a tensor may have");
    assert_eq!((finished.elements, finished.warnings.len()), (u64::MAX, 1));
    assert_eq!(manifest.expect("there is one").shards[1].crc32, 2);
    for (count, non_finite) in [(u64::MAX, 0), (1, 2)] {
        let error = finish(vec![measured(count, non_finite)]).expect_err("no tensor has them");
        assert_eq!(error.code(), Code::Format, "{error}");
    }
    assert!(finish(vec![json!({ "name": "a" })]).is_err());
}
