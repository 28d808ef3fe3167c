//! A factorized checkpoint: any range is that of the whole, and what can't be factorized is said.

use apr_arch::Families;
use apr_core::{CheckpointReader, Code, DType, Limits, Serial};
use apr_lowrank::{Amount, Factorization, InMemory, Method, plan};
use apr_source::Source;

const ROWS: usize = 37;
const COLUMNS: usize = 53;

/// Returns a matrix of rank 3, apart from rounding errors.
fn values() -> Vec<f32> {
    let value = |row: usize, column: usize| {
        let (row, column) = (row as f32, column as f32);
        (row * 0.3).sin() * (column * 0.2).cos() + row * 0.01 + column * 0.02
    };
    (0..ROWS * COLUMNS).map(|at| value(at / COLUMNS, at % COLUMNS)).collect()
}

fn model(values: &[f32]) -> Box<dyn CheckpointReader> {
    let end = values.len() * 4;
    let header = format!(
        r#"{{"a.weight":{{"dtype":"F32","shape":[{ROWS},{COLUMNS}],"data_offsets":[0,{end}]}}}}"#
    );
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    apr_registry::open(file, "model.safetensors", &Limits::default()).expect("a model")
}

#[test]
fn any_range_of_a_factorized_tensor_or_its_factors_matches_the_whole() {
    let families = Families::builtin();
    for (method, precision) in [(Method::Svd, None), (Method::Lora, Some(DType::BF16))] {
        let model = model(&values());
        let mut wanted = Factorization::to_rank(3);
        (wanted.method, wanted.precision) = (method, precision);
        let planned = plan(&Source::new(&*model, &families), wanted).expect("a plan");
        let applied = planned.apply(model, Box::new(InMemory::default()), &Serial, &());
        let (model, report) = applied.expect("factorizes");
        let dtype = precision.unwrap_or(DType::F32);
        assert_eq!(model.tensors()[0].dtype, dtype);
        let found = &report.tensors[0];
        let most = if precision.is_some() { 0.01 } else { 1e-5 };
        assert!(found.relative_error < most, "{}", found.relative_error);
        assert!(found.energy > 0.999_999 && found.rank == 3);

        let len = ROWS * COLUMNS * usize::try_from(dtype.block_bytes()).expect("small");
        let mut whole = vec![0; len];
        model.read_tensor(0, 0, &mut whole).expect("within");
        let stored = model.stored(0);
        let encoded = stored.encoded().expect("another form");
        let mut form = vec![0; usize::try_from(found.bytes).expect("small")];
        encoded.read_form(0, &mut form).expect("within");
        assert_eq!(form[..8], [3, 0, 0, 0, 0, 0, 0, 0]);
        for start in (0..len).step_by(len / 23 + 1).chain([0, 1, len - 1]) {
            for count in [1, 3, 64, 1000, len].map(|count| count.min(len - start)) {
                let mut part = vec![0xff; count];
                model.read_tensor(0, start as u64, &mut part).expect("within");
                assert!(part == whole[start..][..count], "{count} from {start}");
                let end = (start + count).min(form.len());
                if start < end {
                    let mut part = vec![0xff; end - start];
                    encoded.read_form(start as u64, &mut part).expect("within");
                    assert!(part == form[start..end], "{count} from {start}");
                }
            }
        }
        model.read_tensor(0, len as u64 - 1, &mut [0; 2]).expect_err("past the end");
        encoded.read_form(found.bytes - 1, &mut [0; 2]).expect_err("past the end");
    }
}

#[test]
fn a_matrix_that_needs_more_memory_than_there_may_be_is_refused_by_name() {
    let families = Families::builtin();
    let model = model(&values());
    let source = Source::new(&*model, &families);
    let mut wanted = Factorization::to_rank(3);
    wanted.memory = 10_000;
    let error = plan(&source, wanted.clone()).expect_err("too little");
    assert_eq!((error.code(), error.tensor()), (Code::Memory, Some("a.weight")));
    wanted.memory = 1 << 20;
    assert_eq!(plan(&source, wanted).expect("enough").len(), 1);
}

#[test]
fn tensors_that_do_not_shrink_or_are_not_finite_are_skipped_with_a_reason() {
    let families = Families::builtin();
    // 37 * 53 numbers are 1961, and factors have 90 for each of the rank: 22 of them are more.
    for (amount, values, said) in [
        (Amount::Rank(22), values(), "factors of rank 22 are not smaller than 37 x 53"),
        (Amount::Rank(0), values(), "the rank must be at least 1"),
        (Amount::Energy(1.5), values(), "a share of 1.5"),
        (Amount::Energy(f64::NAN), values(), "a share of NaN"),
    ] {
        let model = model(&values);
        let source = Source::new(&*model, &families);
        let error = plan(&source, Factorization::new(amount)).expect_err(said);
        assert!(error.message().contains(said), "{error}");
    }
    let noise = |at: usize| (at * 2_654_435_761 % 1009) as f32;
    let noise: Vec<f32> = (0..ROWS * COLUMNS).map(noise).collect();
    let with_nan: Vec<f32> =
        std::iter::once(f32::NAN).chain(values().into_iter().skip(1)).collect();
    for (amount, values, said) in [
        (Amount::Energy(0.999_999), noise, "are not smaller than 37 x 53, and 0.999999 of its"),
        (Amount::Rank(3), with_nan, "it has NaN or infinity"),
    ] {
        let model = model(&values);
        let planned = plan(&Source::new(&*model, &families), Factorization::new(amount));
        let store = Box::new(InMemory::default());
        let applied = planned.expect("a plan").apply(model, store, &Serial, &());
        let (model, report) = applied.expect("left alone");
        assert!(report.tensors.is_empty() && model.stored(0).form().is_none());
        assert!(report.left[0].why.contains(said), "{}", report.left[0].why);
    }
}
