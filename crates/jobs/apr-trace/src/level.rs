//! How steps are grouped by their paths.

use serde::Serialize;

/// Granularity of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Level {
    /// A single operator.
    Op,
    /// A group within a layer: attention, a norm, an MLP.
    #[default]
    Block,
    /// A layer, and everything outside of the layers.
    Layer,
}

impl Level {
    /// The step of this level that the operator at a path belongs to.
    ///
    /// A component that ends in a number, such as `layers.3`, is a layer, where something follows
    /// it. Several in a row are one (`stages.0/layers.1`).
    #[must_use]
    pub fn step_of(self, path: &str) -> &str {
        if self == Self::Op {
            return path;
        }
        let ends: Vec<usize> =
            path.match_indices('/').map(|(at, _)| at).chain([path.len()]).collect();
        let component = |at: usize| {
            let start = if at == 0 { 0 } else { ends[at - 1] + 1 };
            &path[start..ends[at]]
        };

        let last = ends.len() - 1;
        let Some(first) = (0..last).find(|&at| is_numbered(component(at))) else {
            // Exporters of torch begin paths with a slash and the names of all modules around.
            let is_absolute = path.starts_with('/');
            let end = if is_absolute { last.saturating_sub(1) } else { 0 };
            return &path[..ends[end.max(usize::from(is_absolute)).min(last)]];
        };
        let layer = (first..last).take_while(|&at| is_numbered(component(at))).last();
        let layer = layer.unwrap_or(first);
        match self {
            Self::Layer => &path[..ends[layer]],
            _ => &path[..ends[(layer + 1).min(last)]],
        }
    }
}

/// Returns `true` if a component is one of several numbered ones: `layers.3`, `layer_._0`, `3`.
fn is_numbered(component: &str) -> bool {
    let digits = component.trim_end_matches(|c: char| c.is_ascii_digit());
    digits.len() < component.len()
        && (digits.is_empty() || digits.ends_with('.') || digits.ends_with("_._"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_many_exporters_have_blocks_and_layers() {
        for (path, block, layer) in [
            ("layers.3/attention/query/bias", "layers.3/attention", "layers.3"),
            ("layers.3/attention_sum", "layers.3/attention_sum", "layers.3"),
            ("stages.0/layers.1/mlp/up", "stages.0/layers.1/mlp", "stages.0/layers.1"),
            ("stages.0.layers.1/mlp/up", "stages.0.layers.1/mlp", "stages.0.layers.1"),
            ("text/layers.0/mlp/up", "text/layers.0/mlp", "text/layers.0"),
            ("embeddings/tokens", "embeddings", "embeddings"),
            ("token_count", "token_count", "token_count"),
            ("Conv_12", "Conv_12", "Conv_12"),
            (
                "/bert/encoder/layer.0/attention/self/query/MatMul",
                "/bert/encoder/layer.0/attention",
                "/bert/encoder/layer.0",
            ),
            (
                "/bert/embeddings/LayerNorm/Add_1",
                "/bert/embeddings/LayerNorm",
                "/bert/embeddings/LayerNorm",
            ),
            ("/Gather", "/Gather", "/Gather"),
            ("", "", ""),
        ] {
            assert_eq!(Level::Op.step_of(path), path);
            assert_eq!(Level::Block.step_of(path), block);
            assert_eq!(Level::Layer.step_of(path), layer);
        }
    }
}
