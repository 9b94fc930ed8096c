//! The start: every peer's transports are tried, the best are chosen, and the reasons are kept.

use btl::{Btl, PeerInfo, Rank, Unreachable};

use crate::config::Config;
use crate::engine::{Core, Engine, Lane, MOST, Peer, Transport, eager_limit, window};
use crate::error::{NotStarted, StartError};
use crate::types::{Card, PathReport, Setup};

/// A transport with less than this part of the best one's bandwidth would only be in the way.
const WORTH: u32 = 8;

/// Bytes for each rank of what processes tell each other: for each card of the one that says it, from the first one on, four bits: 0, or 1 and the
/// place of the addressee's card that its transport reaches.
pub const REACH_BYTES: usize = 8;
/// Cards of a process that can be told so.
const MOST_CARDS: u8 = 15;

/// Tells the peers what was reached, and hears what they reached: see [`crate::P2p::start_agreed`].
pub(crate) type Agree<'a> = Box<dyn FnOnce(&[u8]) -> Result<Vec<u8>, String> + 'a>;

/// What one transport said about one peer.
struct Offer {
    transport: u8,
    path: PeerInfo,
    /// Places of the cards, among the own ones and among the peer's.
    own_card: u8,
    card: u8,
}

/// What all said about one peer.
#[derive(Default)]
struct Found {
    offers: Vec<Offer>,
    reports: Vec<PathReport>,
}

impl Found {
    /// See [`REACH_BYTES`].
    fn reach(&self) -> [u8; REACH_BYTES] {
        let told = |offer: &&Offer| offer.own_card.max(offer.card) < MOST_CARDS;
        let four = |offer: &Offer| u64::from(offer.card + 1) << (4 * offer.own_card);
        self.offers
            .iter()
            .filter(told)
            .map(four)
            .fold(0, |all, one| all | one)
            .to_le_bytes()
    }

    /// Strikes out what the peer does not reach us by, and the same pair of transports: it would never listen there.
    fn keep(&mut self, theirs: Option<&[u8; REACH_BYTES]>) {
        let theirs = u64::from_le_bytes(theirs.copied().unwrap_or_default());
        let reports = &mut self.reports;
        self.offers.retain(|offer| {
            let said = theirs.checked_shr(4 * u32::from(offer.card)).unwrap_or(0) & 15;
            let both = offer.own_card < MOST_CARDS && said == u64::from(offer.own_card) + 1;
            if !both && let Some(report) = reports.get_mut(usize::from(offer.transport)) {
                report.path = None;
                report.reason =
                    "the peer cannot use it for this process, though this process reaches it"
                        .into();
            }
            both
        });
    }
}

/// Place of a transport's card among those that [`crate::P2p::cards`] gives; `None`: it has none.
fn own_card(transports: &[Transport], number: u8) -> Option<u8> {
    let there = |transport: &Transport| !transport.btl.address().is_empty();
    let (before, at) = (
        transports.get(..number.into())?,
        transports.get(usize::from(number))?,
    );
    let count = before.iter().filter(|transport| there(transport)).count();
    u8::try_from(count).ok().filter(|_| there(at))
}

pub(crate) fn start(
    setup: Setup,
    cards: impl FnMut(Rank) -> Result<Vec<Card>, String>,
    agree: Option<Agree<'_>>,
) -> Result<(Core, Vec<PathReport>), NotStarted> {
    let Setup {
        rank: own,
        size,
        transports,
        config,
    } = setup;
    let mut transports: Vec<Transport> = transports
        .into_iter()
        .map(|btl| Transport {
            capabilities: btl.capabilities(),
            btl,
        })
        .collect();
    match reach_all(own, size, &mut transports, (&config, cards, agree)) {
        Ok((peers, reports)) => {
            let matched = transports
                .iter()
                .any(|transport| transport.capabilities.posted_receives);
            Ok((
                Core::new(Engine::new(own, peers, matched, config), transports),
                reports,
            ))
        }
        Err(error) => Err(NotStarted {
            error,
            transports: into_btls(transports),
        }),
    }
}

fn into_btls(transports: Vec<Transport>) -> Vec<Box<dyn Btl>> {
    transports
        .into_iter()
        .map(|transport| transport.btl)
        .collect()
}

fn reach_all(
    own: Rank,
    size: u32,
    transports: &mut [Transport],
    (config, mut cards, agree): (
        &Config,
        impl FnMut(Rank) -> Result<Vec<Card>, String>,
        Option<Agree<'_>>,
    ),
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
        found.push(ask(transports, peer, &theirs, own < peer));
    }
    if let Some(agree) = agree {
        let mine: Vec<u8> = found.iter().flat_map(Found::reach).collect();
        let theirs = agree(&mine).map_err(StartError::NoAgreement)?;
        let (theirs, _) = theirs.as_chunks::<REACH_BYTES>();
        for (peer, found) in found.iter_mut().enumerate() {
            found.keep(theirs.get(peer));
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
        let chosen = choose(
            &offers,
            config,
            transports,
            reports.get_mut(first..).unwrap_or_default(),
        );
        if chosen.is_empty() {
            let lines = reports
                .iter()
                .skip(first)
                .map(|report| format!("{}: {}", report.transport, report.reason));
            let mut lines: Vec<String> = lines.collect();
            if lines.is_empty() {
                lines.push("there is no transport".into());
            }
            return Err(StartError::Unreachable {
                peer,
                reasons: lines.join("\n"),
            });
        }
        let first = chosen.first().map(|offer| &offer.path);
        // The peer must take the same ones for lanes, whatever it measured: what is not used stands by.
        let used = |offer: &&Offer| chosen.iter().any(|one| one.transport == offer.transport);
        let rest = equals(&offers).into_iter().filter(|offer| !used(offer));
        let lane =
            |offer: &Offer| Lane::new(offer.transport, offer.own_card, offer.card, &offer.path);
        let lanes = chosen.iter().copied().chain(rest).map(lane).collect();
        let window = window(size);
        peers.push(Peer::new(
            lanes,
            first,
            chosen.len(),
            config,
            eager_limit(window),
            window,
        ));
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

/// Offers every transport the peer's cards of its kind, until one is reached by it. Both sides go through the pairs in the same order, that of the
/// lower rank's transports first, so they find the same ones where what one reaches, the other does.
fn ask(transports: &mut [Transport], peer: Rank, cards: &[Card], lower: bool) -> Found {
    let mut all = Found::default();
    let mut answers: Vec<Result<(PeerInfo, u8), String>> = Vec::new();
    for transport in &mut *transports {
        let name = transport.btl.name();
        let there = cards.iter().any(|card| card.transport == name);
        answers.push(Err(if there {
            "all of the peer's cards of this kind are others'".into()
        } else {
            "the peer has no such transport".into()
        }));
    }
    let mut pairs: Vec<(usize, usize)> = Vec::new();
    for (number, transport) in transports.iter().enumerate() {
        let same = |(_, card): &(usize, &Card)| card.transport == transport.btl.name();
        pairs.extend(
            cards
                .iter()
                .enumerate()
                .filter(same)
                .map(|(place, _)| (number, place)),
        );
    }
    pairs.sort_by_key(|(number, place)| {
        if lower {
            (*number, *place)
        } else {
            (*place, *number)
        }
    });
    let mut used = vec![false; cards.len()];
    for (number, place) in pairs {
        let (Some(transport), Some(card)) = (transports.get_mut(number), cards.get(place)) else {
            continue;
        };
        let (Some(answer), Some(used)) = (answers.get_mut(number), used.get_mut(place)) else {
            continue;
        };
        let Ok(place) = u8::try_from(place) else {
            continue;
        };
        if answer.is_ok() || *used {
            continue;
        }
        let result = if card.address.len() > btl::MAX_ADDRESS {
            Err(Unreachable {
                reason: format!("a card of {} bytes", card.address.len()),
            })
        } else {
            transport
                .btl
                .add_peer(peer, &card.address)
                .and_then(|path| sane(&path).map(|()| path))
        };
        *used = result.is_ok();
        *answer = result
            .map(|path| (path, place))
            .map_err(|unreachable| unreachable.reason);
    }
    for (number, answer) in (0u8..).zip(answers) {
        let transport = transports
            .get(usize::from(number))
            .map_or("?", |transport| transport.btl.name());
        let (path, reason) = match answer {
            Ok((path, card)) => {
                // One without a card reaches peers and is not reached: it has no name to speak of.
                let own_card = own_card(transports, number).unwrap_or(u8::MAX);
                all.offers.push(Offer {
                    transport: number,
                    path: path.clone(),
                    own_card,
                    card,
                });
                (Some(path), String::new())
            }
            Err(reason) => (None, reason),
        };
        all.reports.push(PathReport {
            peer,
            transport: transport.into(),
            used: false,
            path,
            reason,
        });
    }
    all
}

/// What the contract promises of a path and this layer relies on.
fn sane(path: &PeerInfo) -> Result<(), Unreachable> {
    if path.max_send < 1024 + btl::MAX_HEADER {
        return Err(Unreachable {
            reason: format!("takes messages of {} bytes only", path.max_send),
        });
    }
    Ok(())
}

/// Those of the highest exclusivity, few enough to count. Both sides have the same ones.
fn equals(offers: &[Offer]) -> Vec<&Offer> {
    let highest = offers.iter().map(|offer| offer.path.exclusivity).max();
    let mut equal: Vec<&Offer> = offers
        .iter()
        .filter(|offer| Some(offer.path.exclusivity) == highest)
        .collect();
    equal.sort_by_key(|offer| {
        (
            offer.own_card.min(offer.card),
            offer.own_card.max(offer.card),
        )
    });
    equal.truncate(MOST);
    equal
}

/// Of the highest exclusivity the one of least latency, and others of it that add to its bandwidth.
fn choose<'a>(
    offers: &'a [Offer],
    config: &Config,
    transports: &[Transport],
    reports: &mut [PathReport],
) -> Vec<&'a Offer> {
    let name = |offer: &Offer| {
        transports
            .get(usize::from(offer.transport))
            .map_or("?", |t| t.btl.name())
    };
    let Some(exclusivity) = offers.iter().map(|offer| offer.path.exclusivity).max() else {
        return Vec::new();
    };
    let mut chosen = equals(offers);
    chosen.sort_by_key(|offer| {
        (
            offer.path.latency_ns,
            std::cmp::Reverse(offer.path.bandwidth),
        )
    });
    let Some(&best) = chosen.first() else {
        return Vec::new();
    };
    let worth = |offer: &Offer| {
        u64::from(offer.path.bandwidth) * u64::from(WORTH) >= u64::from(best.path.bandwidth)
    };
    chosen.retain(|offer| worth(offer));
    chosen.truncate(config.lanes);
    for offer in offers {
        let Some(report) = reports.get_mut(usize::from(offer.transport)) else {
            continue;
        };
        let path = &offer.path;
        let place = chosen
            .iter()
            .position(|other| other.transport == offer.transport);
        report.used = place.is_some();
        report.reason = match place {
            Some(0) if offers.len() == 1 => "the only transport that reaches it".into(),
            Some(0) => format!(
                "exclusivity {exclusivity} is the highest, and its latency of {} ns the least",
                path.latency_ns
            ),
            Some(_) => format!(
                "same exclusivity as {}: long messages are striped over both {}, and it takes over should that fail",
                name(best),
                if config.adapt {
                    "while that is measured to be faster"
                } else {
                    "(`adapt` is off)"
                }
            ),
            None if path.exclusivity < exclusivity => {
                format!(
                    "{} reaches it with higher exclusivity ({exclusivity} over {})",
                    name(best),
                    path.exclusivity
                )
            }
            None if !worth(offer) => {
                format!(
                    "{} MB/s add too little to the {} MB/s of {}; it stands by, should that fail",
                    path.bandwidth,
                    best.path.bandwidth,
                    name(best)
                )
            }
            None => {
                format!(
                    "{} transports are used already (`lanes`); it stands by, should they fail",
                    chosen.len()
                )
            }
        };
    }
    chosen
}
