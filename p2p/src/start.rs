//! The start: every peer's transports are tried, the best are chosen, and the reasons are kept.

use btl::{Btl, Path, Rank, Unreachable};

use crate::config::Config;
use crate::engine::{Core, Engine, Lane, Peer, Transport, eager_limit, window};
use crate::error::{NotStarted, StartError};
use crate::types::{Card, PathReport, Setup};

/// A transport with less than this part of the best one's bandwidth would only be in the way.
const WORTH: u32 = 8;

/// Tells the peers what was reached, and hears what they reached: see [`crate::P2p::start_agreed`].
pub(crate) type Agree<'a> = Box<dyn FnOnce(&[u8]) -> Result<Vec<u8>, String> + 'a>;

/// What one transport said about one peer.
struct Offer {
    transport: u8,
    path: Path,
    /// Place of the card among the peer's.
    card: u8,
}

/// What all said about one peer.
#[derive(Default)]
struct Found {
    offers: Vec<Offer>,
    reports: Vec<PathReport>,
}

impl Found {
    /// A bit for each card of this process that its transport reaches the peer by.
    fn mask(&self, transports: &[Transport]) -> u8 {
        let bit = |offer: &Offer| own_card(transports, offer.transport).and_then(|at| 1u8.checked_shl(at));
        self.offers.iter().filter_map(bit).fold(0, |mask, bit| mask | bit)
    }

    /// Strikes out what the peer does not reach us by: it would never listen there.
    fn keep(&mut self, theirs: u8) {
        let reports = &mut self.reports;
        self.offers.retain(|offer| {
            let both = 1u8.checked_shl(offer.card.into()).is_some_and(|bit| theirs & bit != 0);
            if !both && let Some(report) = reports.get_mut(usize::from(offer.transport)) {
                report.path = None;
                report.reason =
                    "the peer cannot use it for this process, though this process reaches it".into();
            }
            both
        });
    }
}

/// Place of a transport's card among those that [`crate::P2p::cards`] gives; `None`: it has none.
fn own_card(transports: &[Transport], number: u8) -> Option<u32> {
    let there = |transport: &Transport| !transport.btl.address().is_empty();
    let (before, at) = (transports.get(..number.into())?, transports.get(usize::from(number))?);
    there(at).then(|| before.iter().filter(|transport| there(transport)).count() as u32)
}

pub(crate) fn start(
    setup: Setup,
    cards: impl FnMut(Rank) -> Result<Vec<Card>, String>,
    agree: Option<Agree<'_>>,
) -> Result<(Core, Vec<PathReport>), NotStarted> {
    let Setup { rank: own, size, transports, config } = setup;
    let mut transports: Vec<Transport> =
        transports.into_iter().map(|btl| Transport { capabilities: btl.capabilities(), btl }).collect();
    match reach_all(own, size, &mut transports, (&config, cards, agree)) {
        Ok((peers, reports)) => {
            let matched = transports.iter().any(|transport| transport.capabilities.matched);
            Ok((Core::new(Engine::new(own, peers, matched, config), transports), reports))
        }
        Err(error) => Err(NotStarted { error, transports: into_btls(transports) }),
    }
}

fn into_btls(transports: Vec<Transport>) -> Vec<Box<dyn Btl>> {
    transports.into_iter().map(|transport| transport.btl).collect()
}

fn reach_all(
    own: Rank,
    size: u32,
    transports: &mut [Transport],
    (config, mut cards, agree): (&Config, impl FnMut(Rank) -> Result<Vec<Card>, String>, Option<Agree<'_>>),
) -> Result<(Vec<Peer>, Vec<PathReport>), StartError> {
    check(own, size, transports.len(), config)?;
    // First all are tried, so that the others can be told.
    let mut found = Vec::with_capacity(size as usize);
    for peer in 0..size {
        if peer == own {
            found.push(Found::default());
            continue;
        }
        let theirs = cards(peer).map_err(|reason| StartError::NoCards { peer, reason })?;
        found.push(ask(transports, peer, &theirs));
    }
    if let Some(agree) = agree {
        let mine: Vec<u8> = found.iter().map(|found| found.mask(transports)).collect();
        let theirs = agree(&mine).map_err(StartError::NoAgreement)?;
        for (peer, found) in found.iter_mut().enumerate() {
            found.keep(theirs.get(peer).copied().unwrap_or(0));
        }
    }
    let (mut peers, mut reports) = (Vec::with_capacity(size as usize), Vec::new());
    for (peer, found) in (0..).zip(found) {
        if peer == own {
            peers.push(Peer::own());
            reports.push(PathReport {
                peer,
                transport: "self".into(),
                used: true,
                path: None,
                reason: "the own rank: copied within the process".into(),
            });
            continue;
        }
        let first = reports.len();
        let offers = found.offers;
        reports.extend(found.reports);
        let chosen = choose(&offers, config, transports, reports.get_mut(first..).unwrap_or_default());
        if chosen.is_empty() {
            let lines =
                reports.iter().skip(first).map(|report| format!("{}: {}", report.transport, report.reason));
            let mut lines: Vec<String> = lines.collect();
            if lines.is_empty() {
                lines.push("there is no transport".into());
            }
            return Err(StartError::Unreachable { peer, reasons: lines.join("\n") });
        }
        let lane = |offer: &&Offer| Lane {
            transport: offer.transport,
            max_send: offer.path.max_send,
            one_sided: offer.path.one_sided,
            left: false,
        };
        let lanes = chosen.iter().map(lane).collect();
        let paths: Vec<&Path> = chosen.iter().map(|offer| &offer.path).collect();
        let window = window(size);
        peers.push(Peer::new(lanes, &paths, config, eager_limit(window), window));
    }
    Ok((peers, reports))
}

fn check(own: Rank, size: u32, transports: usize, config: &Config) -> Result<(), StartError> {
    let invalid = |reason: String| Err(StartError::Invalid(reason));
    if own >= size {
        return invalid(format!("rank {own} in a job of {size}"));
    }
    if size > i32::MAX as u32 {
        return invalid(format!("a job of {size} ranks"));
    }
    if transports > usize::from(u8::MAX) {
        return invalid(format!("{transports} transports"));
    }
    if config.unexpected_bytes < 64 << 10 {
        return invalid(format!(
            "unexpected_bytes is {}: at least 65536 are needed for messages without a receive",
            config.unexpected_bytes
        ));
    }
    if config.lanes == 0 {
        return invalid("lanes is 0: no transport could be used".into());
    }
    Ok(())
}

/// Offers every transport every card of its kind.
fn ask(transports: &mut [Transport], peer: Rank, cards: &[Card]) -> Found {
    let mut all = Found::default();
    let mut used = vec![false; cards.len()];
    for (number, transport) in (0u8..).zip(transports) {
        let name = transport.btl.name();
        // Two transports of a kind take the peer's cards of that kind in order.
        let card = (0u8..).zip(cards).zip(&mut used);
        let card = card.into_iter().find(|((_, card), used)| card.transport == name && !**used);
        let place = card.as_ref().map_or(0, |((at, _), _)| *at);
        let result = match card {
            Some(((_, card), used)) => {
                *used = true;
                if card.address.len() > btl::MAX_ADDRESS {
                    Err(Unreachable { reason: format!("a card of {} bytes", card.address.len()) })
                } else {
                    transport.btl.add_peer(peer, &card.address).and_then(|path| sane(&path).map(|()| path))
                }
            }
            None => Err(Unreachable { reason: "the peer has no such transport".into() }),
        };
        let (path, reason) = match result {
            Ok(path) => (Some(path), String::new()),
            Err(unreachable) => (None, unreachable.reason),
        };
        all.offers.extend(path.clone().map(|path| Offer { transport: number, path, card: place }));
        all.reports.push(PathReport { peer, transport: name.into(), used: false, path, reason });
    }
    all
}

/// What the contract promises of a path and this layer relies on.
fn sane(path: &Path) -> Result<(), Unreachable> {
    if path.max_send < 1024 + btl::MAX_HEADER {
        return Err(Unreachable { reason: format!("takes messages of {} bytes only", path.max_send) });
    }
    Ok(())
}

/// Of the highest exclusivity the one of least latency, and others of it that add to its bandwidth.
fn choose<'a>(
    offers: &'a [Offer],
    config: &Config,
    transports: &[Transport],
    reports: &mut [PathReport],
) -> Vec<&'a Offer> {
    let name = |offer: &Offer| transports.get(usize::from(offer.transport)).map_or("?", |t| t.btl.name());
    let Some(exclusivity) = offers.iter().map(|offer| offer.path.exclusivity).max() else {
        return Vec::new();
    };
    let mut chosen: Vec<&Offer> =
        offers.iter().filter(|offer| offer.path.exclusivity == exclusivity).collect();
    chosen.sort_by_key(|offer| (offer.path.latency_ns, std::cmp::Reverse(offer.path.bandwidth)));
    let Some(&best) = chosen.first() else { return Vec::new() };
    let worth =
        |offer: &Offer| u64::from(offer.path.bandwidth) * u64::from(WORTH) >= u64::from(best.path.bandwidth);
    chosen.retain(|offer| worth(offer));
    chosen.truncate(config.lanes);
    for offer in offers {
        let Some(report) = reports.get_mut(usize::from(offer.transport)) else { continue };
        let path = &offer.path;
        let place = chosen.iter().position(|other| other.transport == offer.transport);
        report.used = place.is_some();
        report.reason = match place {
            Some(0) if offers.len() == 1 => "the only transport that reaches it".into(),
            Some(0) => format!(
                "exclusivity {exclusivity} is the highest, and its latency of {} ns the least",
                path.latency_ns
            ),
            Some(_) => format!("same exclusivity as {}: long messages are striped over both", name(best)),
            None if path.exclusivity < exclusivity => {
                format!(
                    "{} reaches it with higher exclusivity ({exclusivity} over {})",
                    name(best),
                    path.exclusivity
                )
            }
            None if !worth(offer) => {
                format!(
                    "{} MB/s add too little to the {} MB/s of {}",
                    path.bandwidth,
                    best.path.bandwidth,
                    name(best)
                )
            }
            None => format!("{} transports are used already (`lanes`)", chosen.len()),
        };
    }
    chosen
}
