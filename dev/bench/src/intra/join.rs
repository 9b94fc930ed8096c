//! Starts a rank with the settings of its contender, by the fixed bootstrap, over shared memory.

use btl::Btl;
use job::{Job, Options, Transport};
use shm_btl::{ShmBtl, ShmConfig, Thresholds};

use super::contender::{Contender, Ours};
use cli::out::{Context, Failure};

/// Threshold of contenders with one copy: shorter messages take less time than the system call.
const ONE_COPY_FROM: usize = 4096;
/// Key of the exchanged addresses.
const CARD: &str = "card";

/// Joins with the settings of the contender. `cores`: number of cores of all ranks; each rank is
/// pinned to one and would consider it the only one.
pub fn job(who: Contender, cores: usize) -> Result<Job, Failure> {
    let mut options = Options::from_env().doing("joining")?;
    options.transports = vec![Transport::Shm];
    options.p2p.cpus = u32::try_from(cores).ok();
    match who {
        Contender::P2p(Ours::TwoCopy) => {
            (options.p2p.tuning.get, options.p2p.tuning.put) = (false, false);
        }
        Contender::P2p(ours @ (Ours::OneCopy | Ours::OneCopyNoSkew)) => {
            let from = ONE_COPY_FROM;
            options.thresholds = Some(Thresholds {
                shared_cache: from,
                same_socket: from,
                other_socket: from,
            });
            options.p2p.skew = ours == Ours::OneCopy;
        }
        _ => {}
    }
    job::join_with(options).doing("joining")
}

/// Returns the source of the thresholds.
pub fn thresholds() -> Result<String, Failure> {
    Ok(Options::from_env().doing("thresholds")?.thresholds_from)
}

/// Creates the transport alone, with its peers added.
pub fn bare() -> Result<(ShmBtl, u32), Failure> {
    let mut boot = boot::detect().doing("joining")?;
    let rank = boot.rank();
    let mut shm =
        ShmBtl::new(ShmConfig::new(rank, boot.size(), boot.job())).doing("shared memory")?;
    boot.put(CARD, &shm.address()).doing("joining")?;
    boot.fence().doing("joining")?;
    for peer in (0..boot.size()).filter(|peer| *peer != rank) {
        let card = boot.get(peer, CARD).doing("its card")?.unwrap_or_default();
        shm.add_peer(peer, &card).doing("the transport")?;
    }
    Ok((shm, rank))
}
