//! Something that is computed in the background.

/// State of a requested value.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) enum Loaded<T> {
    #[default]
    Nothing,
    Waiting,
    Ready(T),
    Failed(String),
}

impl<T> Loaded<T> {
    pub(crate) fn ready(&self) -> Option<&T> {
        match self {
            Self::Ready(report) => Some(report),
            _ => None,
        }
    }

    pub(crate) fn is_nothing(&self) -> bool {
        matches!(self, Self::Nothing)
    }

    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self, Self::Waiting)
    }

    /// Resets a pending value to `Nothing`, so that it is requested again.
    pub(crate) fn give_up(&mut self) {
        if self.is_waiting() {
            *self = Self::Nothing;
        }
    }
}
