//! Without the feature `seals`, the commands about keys, signatures and licences are refused.

/// `apr keygen`.
pub(super) mod keygen {
    use crate::context::Context;
    use crate::failure::Outcome;
    use crate::secrets::absent;

    pub(in crate::commands) fn run<A>(_args: &A, _context: &Context) -> Outcome {
        absent()
    }
}

/// `apr license`.
pub(super) mod license {
    pub(in crate::commands) use super::keygen::run;
}

/// `apr sign` and `apr verify`.
pub(super) mod sign {
    pub(in crate::commands) use super::keygen::run as sign;
    pub(in crate::commands) use super::keygen::run as verify;
}
