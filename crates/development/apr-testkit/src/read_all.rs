use apr_core::{CheckpointReader, Result};

/// Reads every tensor and companion to its last byte, in pieces, as a pass would.
///
/// # Errors
/// The first error a read gives.
pub fn read_everything(reader: &dyn CheckpointReader) -> Result<()> {
    let mut buf = vec![0; 1 << 16];
    for (tensor, info) in reader.tensors().iter().enumerate() {
        let len = info.byte_len()?;
        let mut offset = 0;
        while offset < len {
            let piece = usize::try_from(len - offset).map_or(buf.len(), |left| left.min(buf.len()));
            reader.read_tensor(tensor, offset, &mut buf[..piece])?;
            offset += piece as u64;
        }
    }
    (0..reader.companions().len())
        .try_for_each(|companion| reader.read_companion(companion).map(drop))
}
