//! Any range of a tensor that is pruned, cut or stored sparse is that of the whole.

use apr_arch::Families;
use apr_core::{CheckpointReader, DType, Limits, Serial, Shape};
use apr_prune::{
    Amount, Pruning, Scope, SparseLayout, Sparsity, WidthChoice, plan, plan_widths, sparsify,
};
use apr_source::Source;
use apr_tensor::sparse::{Matrix, encode};
use apr_testkit::locate;

const ROWS: u64 = 37;
const COLUMNS: u64 = 53;

/// A matrix with many zeros, and some equal magnitudes.
fn matrix() -> Vec<f32> {
    let value = |at: u64| match at * 2_654_435_761 % 11 {
        0 => 1.5,
        1 => -1.5,
        2 => (at % 97) as f32,
        _ => 0.0,
    };
    (0..ROWS * COLUMNS).map(value).collect()
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

/// Returns ranges within `len` bytes: short, long, and at odd offsets.
fn ranges(len: usize) -> impl Iterator<Item = (usize, usize)> {
    let starts = (0..len).step_by(len / 23 + 1).chain([0, 1, len - 1]);
    starts.flat_map(move |start| [1, 3, 64, 1000, len].map(|count| (start, count.min(len - start))))
}

#[test]
fn any_range_of_a_sparse_tensor_matches_the_whole() {
    let values = matrix();
    let dense: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let shape = Shape::from([ROWS, COLUMNS]);
    for layout in [SparseLayout::Csr, SparseLayout::Bsr { block: 2 }] {
        let sparsity = Sparsity { layout, targets: None };
        let (sparse, report) = sparsify(model(&values), &sparsity, &Serial, &()).expect("sparse");
        let whole = encode(Matrix::new(DType::F32, &shape).expect("a matrix"), layout, &dense);
        let whole = whole.expect("it fits");
        if whole.len() >= dense.len() {
            assert_eq!(report.not_smaller, 1, "{layout:?}");
            continue;
        }
        assert_eq!(report.tensors[0].bytes, whole.len() as u64);
        let stored = sparse.stored(0);
        let encoded = stored.encoded().expect("another form");
        for (start, count) in ranges(whole.len()) {
            let mut found = vec![0xff; count];
            encoded.read_form(start as u64, &mut found).expect("within");
            assert!(found == whole[start..][..count], "{layout:?}: {count} from {start}");
        }
        let mut beyond = [0; 2];
        encoded.read_form(whole.len() as u64 - 1, &mut beyond).expect_err("past the end");
    }
}

#[test]
fn any_range_of_a_pruned_tensor_matches_and_the_share_is_exact() {
    let values = matrix();
    let families = Families::builtin();
    for amount in [
        Amount::Share { share: 0.8, scope: Scope::Tensor },
        Amount::Share { share: 0.93, scope: Scope::Global },
        Amount::Threshold(1.6),
    ] {
        let model = model(&values);
        let planned = plan(&Source::new(&*model, &families), Pruning::new(amount)).expect("a plan");
        let (pruned, report) = planned.apply(model, &Serial, &()).expect("pruned");
        let mut whole = vec![0; values.len() * 4];
        pruned.read_tensor(0, 0, &mut whole).expect("within");
        let zeros = whole.chunks(4).filter(|value| **value == [0; 4]).count() as u64;
        assert_eq!(report.tensors[0].zeros, zeros);
        if let Amount::Share { share, .. } = amount {
            let before = values.iter().filter(|value| **value == 0.0).count() as f64;
            let all = (ROWS * COLUMNS) as f64;
            assert_eq!(zeros as f64, (share * all).round_ties_even().max(before));
        }
        for (start, count) in ranges(whole.len()) {
            let mut found = vec![0xff; count];
            pruned.read_tensor(0, start as u64, &mut found).expect("within");
            assert!(found == whole[start..][..count], "{amount:?}: {count} from {start}");
        }
        pruned.read_tensor(0, whole.len() as u64 - 1, &mut [0; 2]).expect_err("past the end");
    }
}

#[test]
fn any_range_of_a_narrower_tensor_matches_the_whole() {
    let folder = locate::fixture("tiny-llama");
    let open = || {
        let bytes = std::fs::read(folder.join("model.safetensors")).expect("a fixture");
        let weights = apr_registry::open(bytes, "model.safetensors", &Limits::default());
        let config = std::fs::read(folder.join("config.json")).expect("a fixture");
        let with = apr_registry::with_config(
            weights.expect("a model"),
            Box::new(config),
            &Limits::default(),
        );
        Box::new(with.expect("a configuration"))
    };
    let families = Families::builtin();
    let model = open();
    let mut choice = WidthChoice::default();
    (choice.heads, choice.neurons) = (2, 31);
    let planned = plan_widths(&Source::new(&*model, &families), choice, None, &Serial, &());
    let (narrow, report) = planned.expect("a plan").apply(model).expect("narrower");
    assert_eq!((report.heads, report.neurons), (Some([4, 2]), Some([256, 225])));
    for (tensor, info) in narrow.tensors().iter().enumerate() {
        let len = usize::try_from(info.byte_len().expect("a length")).expect("small");
        let mut whole = vec![0; len];
        narrow.read_tensor(tensor, 0, &mut whole).expect("within");
        for (start, count) in ranges(len).take(40) {
            let mut found = vec![0xff; count];
            narrow.read_tensor(tensor, start as u64, &mut found).expect("within");
            assert!(found == whole[start..][..count], "{}: {count} from {start}", info.name);
        }
    }
}
