//! Code that is compiled for several kinds of processors.

/// Compiles a function again for processors with wider vectors.
macro_rules! for_several_targets {
    ($($function:tt)*) => {
        #[cfg_attr(feature = "simd", multiversion::multiversion(targets(
            "x86_64+avx2+avx512f+avx512bw+avx512dq+avx512vl",
            "x86_64+avx2",
        )))]
        $($function)*
    };
}

pub(crate) use for_several_targets;
