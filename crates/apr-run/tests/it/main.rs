//! Models that run as programs run them.

#[cfg(all(feature = "text", feature = "chat"))]
mod conversation;
#[cfg(all(feature = "text", feature = "chat"))]
mod support;
