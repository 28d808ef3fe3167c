//! Elements that mean nothing without a scale that another tensor has.

use apr_core::TensorInfo;

/// What follows a weight's name in that of its scale: as fine-grained FP8 checkpoints have it
/// (DeepSeek's), and compressed-tensors.
const AFTER: [&str; 2] = ["_scale_inv", "_scale"];

/// What stands in place of `weight` in the name of its scale.
const INSTEAD: [&str; 2] = ["scale_weight", "weight_scale"];

/// Returns the name of the tensor that has the scale of this one, where its elements have 8 bits
/// and there `is` such a tensor.
pub fn scale_beside(info: &TensorInfo, is: impl Fn(&str) -> bool) -> Option<String> {
    if info.dtype.block_bytes() != 1 || info.dtype.block_len() != 1 {
        return None;
    }
    let stem = info.name.strip_suffix("weight");
    let after = AFTER.iter().map(|end| format!("{}{end}", info.name));
    let instead = INSTEAD.iter().filter_map(|end| Some(format!("{}{end}", stem?)));
    after.chain(instead).find(|name| is(name))
}

#[cfg(test)]
mod tests {
    use apr_core::DType;

    use super::*;

    #[test]
    fn a_scale_is_found_by_the_names_that_writers_give_it() {
        let info = |dtype| TensorInfo { name: "q.weight".into(), dtype, shape: vec![2].into() };
        for name in ["q.weight_scale_inv", "q.weight_scale", "q.scale_weight"] {
            let found = scale_beside(&info(DType::F8_E4M3), |other| other == name);
            assert_eq!(found.as_deref(), Some(name));
        }
        assert_eq!(scale_beside(&info(DType::F8_E4M3), |other| other == "k.weight_scale"), None);
        assert_eq!(scale_beside(&info(DType::BF16), |_| true), None);
    }
}
