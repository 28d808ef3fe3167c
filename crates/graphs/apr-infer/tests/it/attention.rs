//! Attention that a graph spells out is the same bits whether its nodes run as one or by
//! themselves.

use apr_core::Limits;
use apr_graph::{Constant, Dim, ElementType, Graph, GraphBuilder, Meaning, Node};
use apr_infer::{Alone, Engine, Flow, Outcome, RunLimits, Step, Tap, Tensor, Unwatched, Value};
use apr_testkit::apr2::Apr2Builder;

/// A tap that watches one node.
struct Looks(&'static str, usize);

impl Tap for Looks {
    fn wants(&mut self, path: &str, _: &Node) -> bool {
        path == self.0
    }

    fn before(&mut self, _: &str, _: &Node) {}

    fn after(&mut self, _: &Step<'_>) -> Flow {
        self.1 += 1;
        Flow::Continue
    }
}

/// Parameters of a case, besides queries of `[2, 3, queries, 16]`, 37 keys and values of 9 columns.
#[derive(Clone)]
struct Case {
    queries: usize,
    /// `Mul` or `Div` after the products, and the shape of its second operand.
    number: Option<(&'static str, Vec<u64>)>,
    mask: Option<Vec<u64>>,
    axis: i64,
    element: ElementType,
    /// Shapes of the scores after their products, and of the probabilities before theirs, if three
    /// heads of two queries share one head of keys.
    groups: Option<[Vec<i64>; 2]>,
}

const PLAIN: Case = Case {
    queries: 129,
    number: None,
    mask: None,
    axis: -1,
    element: ElementType::F32,
    groups: None,
};

fn values(count: usize) -> Vec<f32> {
    (0..count).map(|n| (n * 7919 % 997) as f32 / 300.0 - 1.5).collect()
}

fn constant(shape: &[u64]) -> Constant {
    Constant {
        shape: shape.to_vec(),
        ..Constant::floats(&values(shape.iter().product::<u64>() as usize))
    }
}

fn shapes(case: &Case) -> [(&'static str, Vec<usize>); 3] {
    [("q", vec![2, 3, case.queries, 16]), ("k", vec![2, 3, 16, 37]), ("v", vec![2, 3, 37, 9])]
}

fn graph(case: &Case) -> Graph {
    let mut graph = GraphBuilder::new(17);
    let body = graph.body();
    let [q, k, v] = shapes(case).map(|(name, shape)| {
        let shape: Vec<_> = shape.iter().map(|&size| Dim::fixed(size as u64)).collect();
        body.input(name, case.element, shape, Meaning::Unknown)
    });
    let mut scores = body.op("MatMul", [q, k]).output("query_key");
    if let Some([flat, _]) = &case.groups {
        let shape = body.ints(flat);
        scores = body.op("Reshape", [scores, shape]).output("flat");
    }
    let cast = |body: &mut apr_graph::BodyBuilder, shape: &[u64]| {
        let value = body.constant(constant(shape));
        let to = if case.element == ElementType::F16 { 10 } else { 1 };
        body.op("Cast", [value]).attribute("to", to).output("cast")
    };
    if let Some((operator, shape)) = &case.number {
        let number = cast(body, shape);
        scores = body.op(operator, [scores, number]).output("scores");
    }
    if let Some(shape) = &case.mask {
        let mask = cast(body, shape);
        scores = body.op("Add", [mask, scores]).output("masked_scores");
    }
    let shares = body.op("Softmax", [scores]).attribute("axis", case.axis).output("probs");
    let shares = match &case.groups {
        Some([_, grouped]) => {
            let shape = body.ints(grouped);
            body.op("Reshape", [shares, shape]).output("groups")
        }
        None => shares,
    };
    let mixed = body.op("MatMul", [shares, v]).output("context");
    body.output("y", mixed, Meaning::Unknown);
    graph.finish()
}

fn run(case: &Case, tap: &mut dyn Tap) -> Outcome {
    let file = Apr2Builder::new().metadata("{}").build();
    let reader = apr_format::apr2::open(file, "empty.apr", &Limits::default()).expect("a model");
    let graph = graph(case);
    let session = Engine::prepare(&graph, &reader, RunLimits::default()).expect("a session");
    let given = shapes(case).map(|(name, shape)| {
        let tensor = Tensor::new(shape.clone(), values(shape.iter().product())).expect("a tensor");
        (name.to_owned(), Value::Tensor(tensor.cast(case.element).expect("a tensor")))
    });
    session.run(given.to_vec(), &["y"], &Alone, tap).expect("outputs")
}

fn bits(outcome: &Outcome) -> Vec<u32> {
    let tensor = outcome.outputs[0]
        .tensor()
        .and_then(|tensor| tensor.cast(ElementType::F32))
        .expect("a tensor");
    tensor.values::<f32>().expect("floats").iter().map(|value| value.to_bits()).collect()
}

#[test]
fn nodes_that_run_as_one_make_the_same_bits() {
    let mut cases = vec![PLAIN, Case { queries: 1, ..PLAIN }, Case { queries: 257, ..PLAIN }];
    let with = |number: &'static str, shape: &[u64]| Case {
        number: Some((number, shape.to_vec())),
        ..PLAIN
    };
    cases.extend([
        with("Mul", &[]),
        with("Mul", &[1]),
        with("Div", &[1, 1]),
        with("Mul", &[37]),
        with("Div", &[3, 1, 1]),
    ]);
    for mask in [
        &[][..],
        &[37],
        &[129, 1],
        &[2, 1, 1, 37],
        &[1, 1, 129, 37],
        &[3, 129, 37],
        &[1, 2, 3, 129, 37],
        &[4, 1, 1, 1, 1],
    ] {
        cases.push(Case { mask: Some(mask.to_vec()), ..with("Mul", &[]) });
    }
    cases.extend([
        Case { axis: 3, ..PLAIN },
        Case { axis: 2, ..PLAIN },
        Case { element: ElementType::F16, ..with("Mul", &[]) },
    ]);
    let groups = |flat: &[i64], grouped: &[i64]| Some([flat.to_vec(), grouped.to_vec()]);
    for mask in [&[129, 37][..], &[2, 1, 129, 37], &[2, 6, 129, 37], &[6, 1, 1], &[1]] {
        cases.push(Case {
            queries: 258,
            mask: Some(mask.to_vec()),
            groups: groups(&[0, 6, -1, 0], &[0, 3, -1, 0]),
            ..with("Mul", &[])
        });
    }
    cases.extend([
        // One query of each head.
        Case { queries: 2, groups: groups(&[0, 6, -1, 0], &[0, 3, -1, 0]), ..PLAIN },
        // Rows that are others, and shapes that are not taken back.
        Case { groups: groups(&[0, 3, 37, 129], &[0, 3, 129, 37]), ..PLAIN },
        Case { queries: 258, groups: groups(&[2, 3, 129, 2, 37], &[2, 3, 258, 37]), ..PLAIN },
    ]);
    for case in cases {
        let mut looks = Looks("probs", 0);
        let apart = run(&case, &mut looks);
        assert_eq!(looks.1, 1);
        let together = run(&case, &mut Unwatched);
        assert_eq!(
            bits(&together),
            bits(&apart),
            "{:?} {:?} {:?}",
            case.number,
            case.mask,
            case.groups
        );
    }
}

#[test]
fn scores_of_all_queries_are_never_there_at_once() {
    let case = Case { queries: 4000, ..PLAIN };
    let scores = 2 * 3 * 4000 * 37 * 4;
    assert!(run(&case, &mut Looks("query_key", 0)).peak_bytes > scores);
    let inputs = 2 * 3 * 4 * (4000 * 16 + 16 * 37 + 37 * 9);
    assert!(run(&case, &mut Unwatched).peak_bytes < inputs + scores);
    let groups = Some([vec![0, 6, -1, 0], vec![0, 3, -1, 0]]);
    assert!(run(&Case { groups, ..case }, &mut Unwatched).peak_bytes < inputs + scores);
}
