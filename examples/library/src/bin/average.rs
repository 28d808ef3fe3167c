//! Averages two models, compares the result with the first one, and writes it:
//! `cargo run -p library --bin average -- A B OUTPUT`.

use std::env::args;

use apr::merge::{Method, Recipe, Source};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [a, b, output] =
        args().skip(1).collect::<Vec<_>>().try_into().or(Err("average A B OUT"))?;
    let sources = [&a, &b].map(|model| Source { model: model.clone(), ..Source::default() });
    let opened = vec![apr::Model::open(&a)?, apr::Model::open(&b)?];
    let (merged, _) = apr::merge::models(&Recipe::new(Method::Average, sources.into()), opened)?;
    let diff = merged.diff(&apr::Model::open(&a)?, &Default::default())?;
    println!("similarity to {a}: {:?}", diff.similarity);
    apr::convert(merged).write(output)?;
    Ok(())
}
