//! How messages are gone through.

use apr_core::protobuf::{Field, Message, Walker};
use apr_core::{Error, Result};

/// Calls `take` for each field of a message.
pub(crate) fn each(
    walker: &mut Walker<'_>,
    mut message: Message,
    mut take: impl FnMut(&mut Walker<'_>, &Field) -> Result<()>,
) -> Result<()> {
    while let Some(field) = message.next(walker)? {
        take(walker, &field)?;
    }
    Ok(())
}

/// Appends what is read, and counts the memory that it takes in the list.
pub(crate) fn push<'a, T>(
    walker: &mut Walker<'a>,
    list: &mut Vec<T>,
    read: impl FnOnce(&mut Walker<'a>) -> Result<T>,
) -> Result<()> {
    walker.keep(size_of::<T>() as u64)?;
    list.push(read(walker)?);
    Ok(())
}

/// A 32-bit number, as enumerations are.
pub(crate) fn small(field: &Field) -> Result<i32> {
    i32::try_from(field.signed()?).map_err(|_| {
        Error::format("a number exceeds the 32 bits that the format gives it").at(field.span.offset)
    })
}
