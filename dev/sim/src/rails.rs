//! Stations with several interfaces: each interface is a node of the network, and connections move
//! between those of one station.

use crate::plan::Side;
use crate::world::{Node, Todo, World};
use esp_proto::rails::{Rails, serve};
use esp_proto::{ConnId, Endpoint, MacAddr, Port};

/// The interfaces of one station.
struct Station<'a> {
    nodes: &'a mut [Node],
    members: &'a [usize],
    moved: Vec<((usize, ConnId), (usize, ConnId))>,
}

impl Rails for Station<'_> {
    fn count(&self) -> usize {
        self.members.len()
    }

    fn endpoint(&mut self, rail: usize) -> Option<&mut Endpoint> {
        self.nodes
            .get_mut(*self.members.get(rail)?)
            .map(|node| &mut node.endpoint)
    }

    /// Without effect here: failures are silent.
    fn usable(&self, _rail: usize, _port: Port) -> bool {
        true
    }

    fn moved(&mut self, from: (usize, ConnId), to: (usize, ConnId)) {
        self.moved
            .push(((self.members[from.0], from.1), (self.members[to.0], to.1)));
    }
}

impl World {
    /// Makes these nodes the interfaces of one station. Rules that span frames are checked for each
    /// connection until it moves; contents always are.
    pub fn join(&mut self, members: &[usize]) {
        for member in members {
            self.nodes[*member].station = Some(self.stations.len());
        }
        self.stations.push(members.to_vec());
        self.announce_rails(self.stations.len() - 1);
    }

    /// Makes the endpoints of a station know its interfaces.
    pub(crate) fn announce_rails(&mut self, station: usize) {
        let members = &self.stations[station];
        let macs: Vec<MacAddr> = members.iter().map(|at| self.nodes[*at].mac).collect();
        for member in members {
            let node = &mut self.nodes[*member];
            let others: Vec<MacAddr> = macs
                .iter()
                .copied()
                .filter(|mac| *mac != node.mac)
                .collect();
            node.endpoint.set_rails(&others);
        }
    }

    /// Returns the interfaces of a node's station; the node alone if it is in none.
    pub(crate) fn members(&self, number: usize) -> Vec<usize> {
        let station = self.nodes[number].station;
        station.map_or_else(|| vec![number], |station| self.stations[station].clone())
    }

    /// Returns the number of moves completed by a node's endpoint.
    pub fn moves(&self, node: usize) -> u64 {
        self.nodes[node].endpoint.counters().connections_moved
    }

    /// Processes moves between the interfaces of a node's station.
    pub(crate) fn serve_station(&mut self, number: usize) {
        let Some(station) = self.nodes[number].station else {
            return;
        };
        let members = self.stations[station].clone();
        let mut view = Station {
            nodes: &mut self.nodes,
            members: &members,
            moved: Vec::new(),
        };
        serve(&mut view, self.now);
        for (from, to) in view.moved {
            self.follow(from, to);
        }
    }

    /// Moves the program of a connection to another node.
    fn follow(&mut self, from: (usize, ConnId), to: (usize, ConnId)) {
        let Some(mut conn) = self.nodes[from.0]
            .conns
            .remove(&from.1.slot)
            .filter(|conn| conn.id == from.1)
        else {
            self.fail(&format!("{:?} moved, which the host does not have", from.1));
        };
        conn.id = to.1;
        if let Some(at) = conn.wake_at {
            self.queue.push(at, Todo::Act(to.0, to.1));
        }
        if let Some((flow, side)) = conn.role {
            let flow = &mut self.flows[flow];
            let status = flow.side_mut(side);
            status.conn = Some(to.1);
            status.moved_to = Some(to.0);
        }
        if self.nodes[to.0].conns.insert(to.1.slot, conn).is_some() {
            self.fail(&format!("slot {} given out again before Closed", to.1.slot));
        }
        self.nodes[to.0].dirty.push_back(to.1);
    }

    /// Returns the nodes to be drained with this one.
    pub(crate) fn station_of(&self, number: usize) -> Vec<usize> {
        self.nodes[number]
            .station
            .map_or_else(Vec::new, |station| self.stations[station].clone())
    }

    /// Returns the node of a side of a flow.
    pub fn node_of(&self, flow: usize, side: Side) -> usize {
        self.flows[flow].node(side)
    }
}
