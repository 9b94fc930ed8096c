//! The start: tries every transport with every peer, chooses rails, and keeps the reasons.

use std::time::Duration;

use btl::{PeerInfo, Rank, Unreachable};

use crate::config::Config;
use crate::engine::{
    Contact, Engine, MAX_RAILS, Peer, Peers, Protocol, Rail, Transports, eager_limit,
    is_much_faster, window,
};
use crate::error::{NotStarted, StartError};
use crate::ids::{PeerId, TransportId};
use crate::probes::{Probes, pairs};
use crate::types::{PathReport, Setup, TransportAddress};
use crate::wire;

/// Minimum of [`Config::unexpected_bytes`].
const MIN_UNEXPECTED: usize = 64 << 10;

/// First and maximum pause between two polls for answers.
const PAUSES: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(1));

/// Bytes for each rank in the exchange of [`P2p::start_agreed`](crate::P2p::start_agreed).
///
/// They have four bits for each address of the reporting process, beginning with the first: 0, or 1
/// plus the index of the other process's address that its transport reaches.
pub const REACH_BYTES: usize = 8;
/// Maximum number of addresses of a process in that exchange.
const MAX_REACH: u8 = 15;
/// Bytes of a peer that is not tried at the start, in that exchange. They are not valid indices.
pub const NOT_TRIED: [u8; REACH_BYTES] = [0xff; REACH_BYTES];

/// Reachability of all ranks from a process, for [`P2p::start_agreed`](crate::P2p::start_agreed).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// [`REACH_BYTES`] for each rank.
    pub all: Vec<u8>,
    /// [`REACH_BYTES`] for each rank, without transports of a lower class, such as Ethernet below
    /// shared memory: they are not used if the others work in both directions.
    pub best: Vec<u8>,
}

impl Reach {
    /// Returns the reachability of a process that reaches no rank of a job of `size`.
    #[must_use]
    pub fn none(size: u32) -> Reach {
        let none = vec![0; size as usize * REACH_BYTES];
        Reach {
            all: none.clone(),
            best: none,
        }
    }
}

/// Exchange of reachability: see [`crate::P2p::start_agreed`].
pub(crate) type Agree<'a> = Box<dyn FnOnce(&Reach) -> Result<Option<Vec<u8>>, String> + 'a>;

/// A transport that reaches a peer.
struct Offer {
    transport: TransportId,
    info: PeerInfo,
    /// Indices of the two addresses, among those of this process and of the peer.
    own_address: u8,
    peer_address: u8,
}

/// Results of all transports for one peer.
#[derive(Default)]
pub(crate) struct Reached {
    offers: Vec<Offer>,
    /// Reports of the transports, in order.
    pub(crate) reports: Vec<PathReport>,
    /// The peer is not tried before it is used.
    on_use: bool,
}

impl Reached {
    /// Encodes the addresses that this process reaches, see [`REACH_BYTES`]; without those of
    /// transports of a lower class if `best`.
    fn encode(&self, best: bool) -> [u8; REACH_BYTES] {
        if self.on_use {
            return NOT_TRIED;
        }
        let limit = self.class_limit().filter(|_| best);
        let fits = |offer: &&Offer| {
            offer.own_address.max(offer.peer_address) < MAX_REACH
                && limit.is_none_or(|limit| offer.info.exclusivity >= limit)
        };
        let bits = |offer: &Offer| u64::from(offer.peer_address + 1) << (4 * offer.own_address);
        self.offers
            .iter()
            .filter(fits)
            .map(bits)
            .fold(0, |all, one| all | one)
            .to_le_bytes()
    }

    /// Returns the minimum exclusivity of the best class of transports that reach the peer.
    fn class_limit(&self) -> Option<u32> {
        let exclusivity = self.offers.iter().map(|offer| offer.info.exclusivity);
        exclusivity.max().map(|best| best.div_ceil(2))
    }

    /// Drops the peer at transports of a lower class: neither side uses them, but they would check
    /// that it lives.
    fn drop_lower(&mut self, transports: &mut Transports, peer: Rank) {
        let Some(limit) = self.class_limit() else {
            return;
        };
        let reports = &mut self.reports;
        self.offers.retain(|offer| {
            let is_lower = offer.info.exclusivity < limit;
            if is_lower {
                transports[offer.transport].btl.drop_peer(peer);
                let report = &mut reports[offer.transport.place()];
                report.reason = "another transport reaches it with much higher exclusivity".into();
            }
            !is_lower
        });
    }

    /// Removes the offers for which the peer did not report this pair of transports.
    fn keep_agreed(&mut self, theirs: Option<&[u8; REACH_BYTES]>) {
        let theirs = theirs.copied().filter(|theirs| *theirs != NOT_TRIED);
        let theirs = u64::from_le_bytes(theirs.unwrap_or_default());
        let reports = &mut self.reports;
        self.offers.retain(|offer| {
            let shifted = theirs.checked_shr(4 * u32::from(offer.peer_address));
            let reported = shifted.unwrap_or(0) & 15;
            let both =
                offer.own_address < MAX_REACH && reported == u64::from(offer.own_address) + 1;
            if !both {
                let report = &mut reports[offer.transport.place()];
                report.path = None;
                report.reason =
                    "the peer cannot use it for this process, though this process reaches it"
                        .into();
            }
            both
        });
    }
}

/// Starts the layer. `addresses` returns `None` for a peer that is reached when it is used. On an
/// error the transports are returned.
pub(crate) fn start(
    setup: Setup,
    addresses: impl FnMut(Rank) -> Option<Result<Vec<TransportAddress>, String>>,
    agree: Option<Agree<'_>>,
) -> Result<Engine, NotStarted> {
    let Setup {
        rank,
        size,
        transports,
        config,
    } = setup;
    let mut transports = Transports::new(transports);
    let started = check(rank, size, transports.len(), &config).and_then(|own| {
        let (peers, reports) = connect(own, size, &mut transports, (&config, addresses, agree))?;
        Ok((own, peers, reports))
    });
    match started {
        Ok((own, peers, reports)) => {
            let protocol = Protocol::new(own, peers, config);
            let mut engine = Engine::new(protocol, transports);
            engine.paths = reports;
            Ok(engine)
        }
        Err(error) => Err(NotStarted {
            error,
            transports: transports.into_btls(),
        }),
    }
}

/// Checks rank, size and configuration.
pub(crate) fn check(
    rank: Rank,
    size: u32,
    transports: usize,
    config: &Config,
) -> Result<PeerId, StartError> {
    let invalid = |reason: String| Err(StartError::Invalid(reason));
    if size > i32::MAX as u32 {
        return invalid(format!("a job of {size} ranks"));
    }
    if transports > usize::from(u8::MAX) {
        return invalid(format!("{transports} transports"));
    }
    if config.unexpected_bytes < MIN_UNEXPECTED {
        return invalid(format!(
            "unexpected_bytes is {}: at least {MIN_UNEXPECTED} are needed for messages without a \
             receive",
            config.unexpected_bytes
        ));
    }
    match PeerId::new(rank, size) {
        Some(own) => Ok(own),
        None => invalid(format!("rank {rank} in a job of {size}")),
    }
}

/// Connects to all peers and chooses their rails.
fn connect(
    own: PeerId,
    size: u32,
    transports: &mut Transports,
    (config, mut addresses, agree): (
        &Config,
        impl FnMut(Rank) -> Option<Result<Vec<TransportAddress>, String>>,
        Option<Agree<'_>>,
    ),
) -> Result<(Peers, Vec<PathReport>), StartError> {
    let mut reached = Vec::new();
    reached.resize_with(size as usize, Reached::default);
    let mut all = Vec::new();
    for peer in (0..size).filter(|peer| *peer != own.rank()) {
        match addresses(peer) {
            Some(Ok(theirs)) => all.push((peer, theirs)),
            Some(Err(reason)) => return Err(StartError::NoAddresses { peer, reason }),
            None => reached[peer as usize].on_use = true,
        }
    }
    let mut probes = Probes::new(transports, all, own.rank());
    let mut pause = PAUSES.0;
    while !probes.poll(transports) {
        std::thread::sleep(pause);
        pause = (2 * pause).min(PAUSES.1);
    }
    // All peers are reached first, so that the results can be exchanged.
    for (peer, theirs) in probes.peers {
        reached[peer as usize] = reach(transports, peer, (&theirs, own.rank() < peer), |_, _| true);
    }
    if let Some(agree) = agree {
        let encode = |best| reached.iter().flat_map(|one| one.encode(best)).collect();
        let mine = Reach {
            all: encode(false),
            best: encode(true),
        };
        if let Some(theirs) = agree(&mine).map_err(StartError::NoAgreement)? {
            let (theirs, _) = theirs.as_chunks::<REACH_BYTES>();
            for (peer, reached) in reached.iter_mut().enumerate() {
                reached.keep_agreed(theirs.get(peer));
            }
        }
        for (peer, reached) in (0..).zip(&mut reached) {
            reached.drop_lower(transports, peer);
        }
    }
    let window = window(size);
    let (mut peers, mut reports) = (Vec::with_capacity(size as usize), Vec::new());
    for (peer, mut reached) in (0..).zip(reached) {
        if peer == own.rank() {
            peers.push(Peer::own());
            reports.push(PathReport {
                peer,
                transport: "self".into(),
                used: true,
                path: None,
                reason: "this rank itself: copied within the process".into(),
            });
            continue;
        }
        if reached.on_use {
            let mut on_use = Peer::without_rails(window);
            on_use.contact = Contact::OnUse;
            peers.push(on_use);
            continue;
        }
        let rails = choose(transports, &mut reached);
        if rails.is_empty() {
            return Err(StartError::Unreachable {
                peer,
                reasons: reasons(&reached.reports),
            });
        }
        reports.extend(reached.reports);
        peers.push(Peer::new(rails, config, eager_limit(window), window));
    }
    Ok((Peers(peers), reports))
}

pub(crate) fn reasons(reports: &[PathReport]) -> String {
    if reports.is_empty() {
        return "there is no transport".into();
    }
    let line = |report: &PathReport| format!("{}: {}", report.transport, report.reason);
    reports.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Tries each transport with the peer's addresses of its kind until it reaches one.
///
/// Both sides try the pairs in the same order, sorted by the lower rank's transports, so both find
/// the same pairs if reachability is mutual. Pairs for which `answered` returns false are not
/// tried.
pub(crate) fn reach(
    transports: &mut Transports,
    peer: Rank,
    (addresses, lower): (&[TransportAddress], bool),
    answered: impl Fn(TransportId, u8) -> bool,
) -> Reached {
    let mut reached = Reached::default();
    let mut taken = Vec::new();
    let mut refusals: Vec<Option<String>> = vec![None; transports.len()];
    for (id, place, address) in pairs(transports, addresses, lower) {
        let reached_already = |offer: &Offer| offer.transport == id;
        if taken.contains(&place) || reached.offers.iter().any(reached_already) {
            continue;
        }
        if !answered(id, place) {
            refusals[id.place()] = Some("the peer has not answered yet".into());
            continue;
        }
        match add_peer(transports, id, peer, address) {
            Ok(info) => {
                taken.push(place);
                reached.offers.push(Offer {
                    transport: id,
                    info,
                    own_address: own_address(transports, id).unwrap_or(u8::MAX),
                    peer_address: place,
                });
            }
            Err(unreachable) => refusals[id.place()] = Some(unreachable.reason),
        }
    }
    reached.offers.sort_by_key(|offer| offer.transport.place());
    for (id, refusal) in transports.ids().zip(refusals) {
        let name = transports.name(id);
        let offer = reached.offers.iter().find(|offer| offer.transport == id);
        let same = addresses.iter().any(|address| address.transport == name);
        let reason = match (offer, refusal) {
            (Some(_), _) => String::new(),
            (None, Some(refusal)) => refusal,
            (None, None) if same => {
                "other transports use all of the peer's addresses of this kind".into()
            }
            (None, None) => "the peer has no such transport".into(),
        };
        reached.reports.push(PathReport {
            peer,
            transport: name.into(),
            used: false,
            path: offer.map(|offer| offer.info.clone()),
            reason,
        });
    }
    reached
}

/// Adds a peer to a transport, and checks the figures on which this layer relies.
pub(crate) fn add_peer(
    transports: &mut Transports,
    id: TransportId,
    peer: Rank,
    address: &TransportAddress,
) -> Result<PeerInfo, Unreachable> {
    if address.address.len() > btl::MAX_ADDRESS {
        return Err(Unreachable {
            reason: format!("an address of {} bytes", address.address.len()),
        });
    }
    let info = transports[id].btl.add_peer(peer, &address.address)?;
    if info.max_send < 1024 + btl::MAX_HEADER.max(wire::MAX_HEADER) {
        return Err(Unreachable {
            reason: format!("accepts messages of {} bytes only", info.max_send),
        });
    }
    Ok(info)
}

/// Returns the index of a transport's address among those of [`crate::P2p::addresses`]; `None` if
/// it has none.
fn own_address(transports: &Transports, id: TransportId) -> Option<u8> {
    let has_address = |id: &TransportId| !transports[*id].btl.address().is_empty();
    let mut with_address = transports.ids().filter(has_address);
    with_address
        .position(|other| other == id)
        .and_then(|place| u8::try_from(place).ok())
}

/// Chooses the rails of a peer, the primary first.
///
/// Only transports of the highest exclusivity are used. The primary is the one with the lowest
/// latency; others are added if they have at least half of the largest bandwidth. A slower one
/// would carry nothing ([`Peer::shares`]), and yet its failure would fail the peer.
pub(crate) fn choose(transports: &Transports, reached: &mut Reached) -> Vec<Rail> {
    let Reached {
        offers, reports, ..
    } = reached;
    let mut chosen: Vec<&Offer> = offers.iter().collect();
    // Both sides must break ties by the same rule.
    chosen.sort_by_key(|offer| {
        let places = (offer.own_address, offer.peer_address);
        let order = (places.0.min(places.1), places.0.max(places.1));
        let info = &offer.info;
        let bandwidth = std::cmp::Reverse(info.bandwidth);
        let exclusivity = std::cmp::Reverse(info.exclusivity);
        (exclusivity, info.latency_ns, bandwidth, order)
    });
    let Some(best) = chosen.first().map(|offer| (offer.transport, &offer.info)) else {
        return Vec::new();
    };
    chosen.retain(|offer| offer.info.exclusivity == best.1.exclusivity);
    let fastest = chosen.iter().max_by_key(|offer| offer.info.bandwidth);
    let fastest = fastest.map_or(best, |offer| (offer.transport, &offer.info));
    let enough = |offer: &Offer| !is_much_faster(fastest.1, &offer.info);
    chosen.retain(|offer| offer.transport == best.0 || enough(offer));
    chosen.truncate(MAX_RAILS);
    for offer in offers.iter() {
        let (info, name) = (&offer.info, transports.name(best.0));
        let report = &mut reports[offer.transport.place()];
        report.used = chosen.iter().any(|one| one.transport == offer.transport);
        report.reason = if offer.transport == best.0 && offers.len() == 1 {
            "the only transport that reaches it".into()
        } else if offer.transport == best.0 {
            format!(
                "exclusivity {} is the highest, and its latency of {} ns the least",
                info.exclusivity, info.latency_ns
            )
        } else if report.used {
            format!("same exclusivity as {name}: long messages are striped over both")
        } else if info.exclusivity < best.1.exclusivity {
            format!(
                "{name} reaches it with higher exclusivity ({} over {})",
                best.1.exclusivity, info.exclusivity
            )
        } else if !enough(offer) {
            format!(
                "{} MB/s are less than half of the {} MB/s of {}",
                info.bandwidth,
                fastest.1.bandwidth,
                transports.name(fastest.0)
            )
        } else {
            format!("{MAX_RAILS} rails are used already")
        };
    }
    chosen
        .into_iter()
        .map(|offer| Rail::new(offer.transport, offer.info.clone()))
        .collect()
}
