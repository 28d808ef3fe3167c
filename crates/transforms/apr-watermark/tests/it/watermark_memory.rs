//! What marking holds at once, whatever the model's size.

use apr_core::{
    CheckpointReader, Container, DType, FileInfo, Format, Metadata, Result, Serial, Stored,
    StoredRange, TensorInfo, has_no,
};
use apr_testkit::peak_memory;
use apr_watermark::{Carriers, MarkKey, Marked, detect};

const MIB: usize = 1 << 20;

/// Reader with one tensor of 64 MiB, whose bytes are generated when they are read.
struct Generated {
    metadata: Metadata,
    tensors: [TensorInfo; 1],
}

impl CheckpointReader for Generated {
    has_no!(companions, left_out, slices, warnings);

    fn format(&self) -> &'static Format {
        &apr_registry::safetensors::FORMAT
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn stored(&self, _: usize) -> Stored<'_> {
        Stored::plain(StoredRange { file: 0, offset: 0, len: 64 << 20 })
    }

    fn read_tensor(&self, _: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        for (value, at) in buf.as_chunks_mut::<4>().0.iter_mut().zip(offset / 4..) {
            let mixed = at.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            *value = ((mixed >> 40) as f32 / (1 << 24) as f32 - 0.5).to_le_bytes();
        }
        Ok(())
    }

    fn files(&self) -> &[FileInfo] {
        &[]
    }

    fn container(&self) -> Container<'_> {
        Container::default()
    }
}

#[test]
fn marking_and_detecting_64_mib_takes_8() {
    let info =
        TensorInfo { name: "w".to_owned(), dtype: DType::F32, shape: vec![4096, 4096].into() };
    let model = Generated { metadata: Metadata::default(), tensors: [info] };
    let key = MarkKey::from_secret(b"sixteen secret bytes").expect("long enough");
    let (found, peak) = peak_memory(|| {
        let carriers = Carriers::survey(&model, None, &Serial, &())?;
        let marked = Marked::new(&model, &carriers, &key, "buyer", None)?;
        detect(&marked, &Carriers::survey(&marked, None, &Serial, &())?, &key, None, &Serial, &())
    });
    assert_eq!(found.expect("readable").id.as_deref(), Some("buyer"));
    assert!(peak < 8 * MIB, "{peak}");
}
