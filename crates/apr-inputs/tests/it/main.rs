//! What goes into models, beside what other programs make of the same.

mod chats;
mod pictures;
mod sounds;
mod tokens;
