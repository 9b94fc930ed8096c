//! How the end of a peer must be reported.

use btl::{PeerError, Rank};

use super::super::run::{Failure, Run, demand};

/// Waits for the failure of a peer that closed its transport, and fails unless it is reported as an
/// orderly end.
pub(super) fn has_left(run: &mut Run, peer: Rank) -> Result<(), Failure> {
    let error = run.until_failed(peer)?;
    let gone = run.ends_connections && error == PeerError::Gone;
    demand(gone || error == PeerError::Left, || {
        format!("a peer that closed gracefully: {error:?}")
    })
}

/// Waits for the failure of a killed rank, and fails unless it is reported as a death, and not as
/// an orderly end or a violation.
pub(super) fn has_died(run: &mut Run, peer: Rank) -> Result<(), Failure> {
    died(run, peer, run.ends_connections)
}

/// Like [`has_died`], for a rank to which there may have been no connection yet.
pub(super) fn has_died_or_gone(run: &mut Run, peer: Rank) -> Result<(), Failure> {
    died(run, peer, true)
}

fn died(run: &mut Run, peer: Rank, or_gone: bool) -> Result<(), Failure> {
    let error = run.until_failed(peer)?;
    let gone = or_gone && error == PeerError::Gone;
    let died = matches!(error, PeerError::Died | PeerError::Lost(_));
    demand(gone || died, || format!("a killed rank: {error:?}"))
}
