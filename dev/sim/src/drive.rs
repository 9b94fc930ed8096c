//! The hosts: pass frames and time to their endpoints, drain the output, and run the programs.

use crate::host::{Call, Conn, Delivery};
use crate::link::Frame;
use crate::pattern;
use crate::plan::Side;
use crate::trace;
use crate::world::{Action, Todo, World};
use esp_proto::{
    CloseReason, ConnId, ConnOptions, Duration, EdpKind, Endpoint, Event, HEAD_LEN, MacAddr,
    PREFIX_LEN, Payload, Port, Progress, ResetReason, RxFrame, Transmit,
};

/// Rounds of draining after which an endpoint and its programs must be idle.
const ROUNDS: usize = 200;
/// Calls of `handle_timeout` at one instant after which time must advance.
const SPINS: u32 = 100;

impl World {
    pub(crate) fn perform(&mut self, todo: Todo) {
        match todo {
            Todo::AtSwitch { from, frame } => self.at_switch(from, &frame),
            Todo::Arrive {
                node,
                frame,
                looped,
            } => self.arrive(node, frame, looped),
            Todo::Wake(node) => self.wake(node),
            Todo::Timer(node) => self.timer(node),
            Todo::Room(node) => {
                self.nodes[node].waits_for_room = false;
                self.drain(node);
            }
            Todo::Act(node, id) => {
                let now = self.now;
                // An entry that was replaced by an earlier one has no effect.
                if let Some(conn) = self.nodes[node]
                    .conn(id)
                    .filter(|conn| conn.wake_at == Some(now))
                {
                    conn.wake_at = None;
                    self.nodes[node].dirty.push_back(id);
                    self.drain(node);
                }
            }
            Todo::Attach(node, conn) => self.attach(node, conn),
            Todo::Script(action) => {
                self.scripts_left -= 1;
                self.act(action);
            }
            Todo::Watch => self.watch(),
        }
    }

    fn at_switch(&mut self, from: usize, frame: &Frame) {
        for node in self.net.outputs(from, frame).filter(|node| *node != from) {
            let mut arrivals = std::mem::take(&mut self.arrivals);
            let fate = self.net.down(node, self.now, frame.clone(), &mut arrivals);
            self.trace(|world| {
                trace::line(
                    world.now,
                    &format!("switch>{node}"),
                    &frame.bytes,
                    Some(fate),
                )
            });
            for (at, frame) in arrivals.drain(..) {
                self.queue.push(
                    at,
                    Todo::Arrive {
                        node,
                        frame,
                        looped: false,
                    },
                );
            }
            self.arrivals = arrivals;
        }
    }

    fn arrive(&mut self, number: usize, frame: Frame, looped: bool) {
        let now = self.now;
        let node = &mut self.nodes[number];
        if node.ring.len() >= node.config.host.ring {
            node.ring_dropped += 1;
            return;
        }
        node.ring.push_back((frame, looped));
        if node.wake_at.is_none() {
            let at = now
                + Duration::from_nanos(node.rng.below(node.config.host.wake.as_nanos() as u64 + 1));
            let at = at.max(node.busy_until);
            node.wake_at = Some(at);
            self.queue.push(at, Todo::Wake(number));
        }
    }

    /// Handles one batch of received frames.
    fn wake(&mut self, number: usize) {
        let now = self.now;
        let mut handled = 0;
        while (handled as usize) < self.nodes[number].config.host.batch {
            let Some((frame, looped)) = self.nodes[number].ring.pop_front() else {
                break;
            };
            self.hand_over(number, &frame, looped);
            handled += 1;
        }
        self.drain(number);
        let node = &mut self.nodes[number];
        node.wake_at = None;
        node.busy_until = now + node.config.host.per_frame * handled;
        if !node.ring.is_empty() {
            let at = node.busy_until;
            node.wake_at = Some(at);
            self.queue.push(at, Todo::Wake(number));
        }
    }

    fn hand_over(&mut self, number: usize, frame: &Frame, looped: bool) {
        self.trace(|world| trace::line(world.now, &format!("     >{number}"), &frame.bytes, None));
        self.checker
            .delivered(number, &frame.bytes, frame.origin, frame.ce);
        let Some((dst, rest)) = frame.bytes.split_first_chunk::<6>() else {
            return;
        };
        let Some((src, body)) = rest.split_first_chunk::<6>() else {
            return;
        };
        let node = &mut self.nodes[number];
        let mut touched = Vec::new();
        let mut sink = Delivery {
            conns: &mut node.conns,
            streams: &mut self.streams,
            datagrams: &mut node.datagrams,
            touched: &mut touched,
            now: self.now,
            check: self.check_content,
            problem: None,
        };
        let frame = RxFrame {
            src: MacAddr(*src).into(),
            dst: MacAddr(*dst).into(),
            body,
            looped,
            ce: frame.ce,
        };
        node.endpoint.handle_frame(self.now, frame, &mut sink);
        if let Some(problem) = sink.problem {
            self.fail(&problem);
        }
        node.dirty.extend(&touched);
        for id in touched {
            self.note_delivery(number, id);
        }
    }

    fn note_delivery(&mut self, number: usize, id: ConnId) {
        let now = self.now;
        let Some(conn) = self.nodes[number].conn(id) else {
            return;
        };
        let (delivered, Some((flow, side))) = (conn.rx.delivered, conn.role) else {
            return;
        };
        let status = self.flows[flow].side_mut(side);
        status.delivered = delivered;
        let last = status.delivered_at.replace(now).unwrap_or(now);
        if now.since(last) > status.longest_gap {
            status.longest_gap = now.since(last);
            status.longest_gap_at = Some(now);
        }
    }

    fn timer(&mut self, number: usize) {
        let now = self.now;
        let node = &mut self.nodes[number];
        if node.timer_at.is_some_and(|at| at > now) {
            // An earlier timer was scheduled since; its own entry stands for it.
            return;
        }
        node.timer_at = None;
        if node.endpoint.poll_timeout().is_some_and(|at| at <= now) {
            node.spins = if node.spins.0 == now {
                (now, node.spins.1 + 1)
            } else {
                (now, 1)
            };
            if node.spins.1 > SPINS {
                self.fail(&format!(
                    "node {number}: poll_timeout does not advance after {SPINS} calls"
                ));
            }
            node.endpoint.handle_timeout(now);
        }
        self.drain(number);
    }

    /// Drains an endpoint and runs its programs, until both are idle.
    pub(crate) fn drain(&mut self, number: usize) {
        self.serve_station(number);
        for other in self.station_of(number) {
            self.drain_one(other);
        }
        self.drain_one(number);
    }

    fn drain_one(&mut self, number: usize) {
        for _ in 0..ROUNDS {
            let order = if self.nodes[number].config.host.any_order {
                self.nodes[number].rng.below(6)
            } else {
                0
            };
            let order = [
                [0, 1, 2],
                [0, 2, 1],
                [1, 0, 2],
                [1, 2, 0],
                [2, 0, 1],
                [2, 1, 0],
            ][order as usize];
            let mut moved = false;
            for output in order {
                moved |= match output {
                    0 => self.drain_progress(number),
                    1 => self.drain_events(number),
                    _ => self.drain_frames(number),
                };
            }
            moved |= self.play(number);
            if !moved {
                return self.plan_timer(number);
            }
        }
        self.fail(&format!("node {number} does not become idle"));
    }

    fn plan_timer(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        let Some(due) = node.endpoint.poll_timeout() else {
            return;
        };
        let slack = node.config.host.timer_slack.as_nanos() as u64;
        let at = due.max(self.now)
            + Duration::from_nanos(if slack > 0 { node.rng.below(slack) } else { 0 });
        if node
            .timer_at
            .is_none_or(|planned| at < planned || planned < self.now)
        {
            node.timer_at = Some(at);
            self.queue.push(at, Todo::Timer(number));
        }
    }

    fn drain_progress(&mut self, number: usize) -> bool {
        let mut any = false;
        while let Some(progress) = self.nodes[number].endpoint.poll_progress() {
            any = true;
            self.on_progress(number, progress);
        }
        any
    }

    fn on_progress(&mut self, number: usize, progress: Progress) {
        let now = self.now;
        let Progress {
            conn: id,
            acked,
            delivered,
            epoch: _,
        } = progress;
        let Some(conn) = self.nodes[number].conn(id) else {
            if (acked, delivered) == (0, 0) {
                return; // opened and closed within one batch; Incoming and Closed follow
            }
            self.fail(&format!(
                "node {number}: progress of {id:?}, which the host does not have"
            ));
        };
        let sound =
            acked >= conn.tx.acked && acked <= conn.tx.written && delivered == conn.rx.delivered;
        let (tx, role) = (conn.tx.clone(), conn.role);
        if acked > conn.tx.acked {
            conn.tx.acked = acked;
            conn.moved = now;
        }
        self.nodes[number].dirty.push_back(id);
        if !sound {
            self.fail(&format!("{progress:?} does not fit {tx:?}"));
        }
        let arrived = self
            .streams
            .get(tx.stream)
            .map_or(0, |stream| stream.delivered);
        if self.check_content && acked >= pattern::NAME_LEN && acked > arrived {
            self.fail(&format!("{acked} bytes acknowledged, {arrived} delivered"));
        }
        if let Some((flow, side)) = role {
            self.flows[flow].side_mut(side).acked = acked;
        }
    }

    fn drain_events(&mut self, number: usize) -> bool {
        let mut any = false;
        while let Some(event) = self.nodes[number].endpoint.poll_event() {
            any = true;
            self.trace(|world| trace::note(world.now, number, &format!("{event:?}")));
            self.nodes[number].events.push((self.now, event.clone()));
            match event {
                Event::Connected(id) => self.on_connected(number, id),
                Event::Incoming {
                    conn,
                    port,
                    peer,
                    peer_port,
                } => {
                    self.on_incoming(
                        number,
                        conn,
                        port,
                        (peer.mac().unwrap_or_default(), peer_port),
                    );
                }
                Event::PeerFinished(id) => self.on_peer_finished(number, id),
                Event::Closed { conn, reason } => self.on_closed(number, conn, reason),
            }
        }
        any
    }

    fn on_connected(&mut self, number: usize, id: ConnId) {
        let now = self.now;
        let Some(conn) = self.nodes[number].conn(id) else {
            self.fail(&format!("Connected {id:?} is unknown"))
        };
        if conn.open_since.replace(now).is_some() {
            self.fail(&format!("Connected {id:?} twice"));
        }
        conn.moved = now;
        let role = conn.role;
        self.opened(role);
        self.nodes[number].dirty.push_back(id);
    }

    fn opened(&mut self, role: Option<(usize, Side)>) {
        let now = self.now;
        if let Some((flow, side)) = role {
            let status = self.flows[flow].side_mut(side);
            status.opened = true;
            status.opened_at = Some(now);
        }
    }

    fn on_incoming(&mut self, number: usize, id: ConnId, port: Port, peer: (MacAddr, Port)) {
        if self.nodes[number].conns.contains_key(&id.slot) {
            self.fail(&format!("slot {} given out again before Closed", id.slot));
        }
        let own = (self.nodes[number].mac, port);
        let flow = self.flows.iter().rposition(|flow| {
            let plan = &flow.plan;
            flow.started
                && (plan.to, plan.to_port, plan.from_port) == (number, port, peer.1)
                && crate::net::mac_of(plan.from) == peer.0
        });
        let plan = flow
            .map(|flow| self.flows[flow].plan.passive.clone())
            .unwrap_or_default();
        let attach_at = self.now + plan.attach_after;
        let mut conn = Conn::new(id, own, peer, plan, &mut self.streams, self.now);
        conn.open_since = Some(self.now);
        conn.role = flow.map(|flow| (flow, Side::Passive));
        if let Some(flow) = flow {
            let status = &self.flows[flow].passive;
            if status.conn.is_some() && !self.flows[flow].plan.may_fail {
                self.fail(&format!("W-26: flow {flow} was accepted twice"));
            }
            self.flows[flow].passive.conn = Some(id);
            self.flows[flow].passive.closed = None;
        }
        self.opened(conn.role);
        self.nodes[number].conns.insert(id.slot, conn);
        self.queue.push(attach_at, Todo::Attach(number, id));
    }

    fn attach(&mut self, number: usize, id: ConnId) {
        let now = self.now;
        // After a restart an id may recur; its second `attach` is not called.
        let Some(conn) = self.nodes[number]
            .conn(id)
            .filter(|conn| conn.rx.capacity == 0)
        else {
            return;
        };
        let buffers = conn.plan.buffers();
        conn.rx.capacity = buffers.rx;
        conn.moved = now;
        if !self.nodes[number].endpoint.attach(now, id, buffers) {
            let reason = self.nodes[number].endpoint.info(id).map(|info| info.state);
            if reason.is_some() {
                self.fail(&format!("attach of {id:?} failed in {reason:?}"));
            }
        }
        self.nodes[number].dirty.push_back(id);
        self.drain(number);
    }

    fn on_peer_finished(&mut self, number: usize, id: ConnId) {
        let node = &mut self.nodes[number];
        let Some(conn) = node.conns.get_mut(&id.slot).filter(|conn| conn.id == id) else {
            self.fail(&format!("PeerFinished {id:?} is unknown"));
        };
        conn.moved = self.now;
        if let Err(problem) = conn.peer_finished(&self.streams)
            && self.check_content
        {
            self.fail(&problem);
        }
        node.dirty.push_back(id);
    }

    fn on_closed(&mut self, number: usize, id: ConnId, reason: CloseReason) {
        let Some(conn) = self.nodes[number]
            .conns
            .remove(&id.slot)
            .filter(|conn| conn.id == id)
        else {
            self.fail(&format!("Closed {id:?} is unknown"));
        };
        let all_acked = conn.tx.shut && conn.tx.acked == conn.tx.written;
        if self.check_content && reason == CloseReason::Finished && !(all_acked && conn.rx.finished)
        {
            self.fail(&format!("Finished, but {conn:?}"));
        }
        let Some((flow, side)) = conn.role else {
            return;
        };
        let may_fail = self.flows[flow].plan.may_fail;
        // Not a protocol violation: the last acknowledgement was lost until the peer's TIME-WAIT
        // was over. That all bytes arrived is checked at the end.
        let late =
            reason == CloseReason::Reset(ResetReason::Unknown) && conn.tx.shut && conn.rx.finished;
        if reason != CloseReason::Finished && !may_fail && !late {
            self.fail(&format!(
                "flow {flow}, {side:?}: {reason:?} without a cause"
            ));
        }
        let now = self.now;
        let status = self.flows[flow].side_mut(side);
        if status.conn == Some(id) {
            status.closed = Some(reason);
            status.closed_at = Some(now);
        }
    }

    /// Runs the programs whose connections changed.
    fn play(&mut self, number: usize) -> bool {
        let mut any = false;
        while let Some(id) = self.nodes[number].dirty.pop_front() {
            let now = self.now;
            let Some(conn) = self.nodes[number].conn(id) else {
                continue;
            };
            let stream = conn.tx.stream;
            for call in conn.act(now) {
                self.call(number, id, stream, call);
                any |= !matches!(call, Call::WakeAt(_));
            }
        }
        any
    }

    fn call(&mut self, number: usize, id: ConnId, stream: u64, call: Call) {
        let now = self.now;
        let endpoint = &mut self.nodes[number].endpoint;
        match call {
            Call::Written(total) => {
                endpoint.written(now, id, total);
                if let Some(stream) = self.streams.get_mut(stream) {
                    stream.written = total;
                }
            }
            Call::Consumed(total) => endpoint.consumed(now, id, total),
            Call::Shutdown => {
                endpoint.shutdown(now, id);
                if let Some(stream) = self.streams.get_mut(stream) {
                    stream.finished = true;
                }
            }
            Call::Abort(reason) => endpoint.abort(now, id, reason),
            Call::WakeAt(at) => {
                let Some(conn) = self.nodes[number].conn(id) else {
                    return;
                };
                if conn.wake_at.is_none_or(|planned| at < planned) {
                    conn.wake_at = Some(at);
                    self.queue.push(at, Todo::Act(number, id));
                }
            }
        }
    }

    fn drain_frames(&mut self, number: usize) -> bool {
        let mut any = false;
        let mut head = [0u8; HEAD_LEN];
        loop {
            if !self.net.may_send(number, self.now) {
                if !self.nodes[number].waits_for_room {
                    self.nodes[number].waits_for_room = true;
                    let at = self.net.room_at(number, self.now);
                    self.queue.push(at, Todo::Room(number));
                }
                return any;
            }
            let Some(transmit) = self.nodes[number]
                .endpoint
                .poll_transmit(self.now, &mut head)
            else {
                return any;
            };
            any = true;
            let bytes = self.assemble(number, &transmit, &head);
            self.send(number, transmit.dst.mac().unwrap_or_default(), bytes);
        }
    }

    fn assemble(&mut self, number: usize, transmit: &Transmit, head: &[u8; HEAD_LEN]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(1600);
        bytes.extend_from_slice(&head[..PREFIX_LEN]);
        match &transmit.payload {
            Payload::None => {}
            Payload::Filler { len } => bytes.resize(PREFIX_LEN + usize::from(*len), 0x5a),
            Payload::Owned(owned) => bytes.extend_from_slice(owned),
            Payload::Stream {
                conn: id,
                offset,
                len,
            } => {
                let Some(conn) = self.nodes[number].conn(*id) else {
                    self.fail(&format!(
                        "a frame with bytes of {id:?}, which the host does not have"
                    ));
                };
                let (tx, end) = (conn.tx.clone(), offset + u64::from(*len));
                if *offset < tx.acked || end > tx.written || *len == 0 {
                    self.fail(&format!(
                        "bytes {offset}..{end} of {tx:?} are not in the buffer"
                    ));
                }
                bytes.resize(PREFIX_LEN + usize::from(*len), 0);
                pattern::fill(tx.stream, *offset, &mut bytes[PREFIX_LEN..]);
            }
        }
        bytes.extend_from_slice(&head[PREFIX_LEN..PREFIX_LEN + transmit.tail_len]);
        bytes
    }

    fn send(&mut self, number: usize, dst: MacAddr, bytes: Vec<u8>) {
        let origin = match self.checker.sent(number, &bytes) {
            Ok(origin) => origin,
            Err(problem) => {
                let line = trace::line(self.now, &format!("{number}>"), &bytes, None);
                self.fail(&format!("{problem}\n{line}"));
            }
        };
        if bytes.get(..6) != Some(&dst.0[..]) {
            self.fail("Transmit::dst is not the frame's destination");
        }
        if let Some(recorded) = &mut self.recorded {
            recorded.push((self.now, number, bytes.clone()));
        }
        let frame = Frame {
            bytes,
            origin,
            ect: self.nodes[number].config.endpoint.ecn,
            ce: false,
        };
        if dst == self.nodes[number].mac {
            let at = self.now + Duration::from_micros(1);
            self.queue.push(
                at,
                Todo::Arrive {
                    node: number,
                    frame,
                    looped: true,
                },
            );
            return;
        }
        let mut arrivals = std::mem::take(&mut self.arrivals);
        let copy = if self.trace {
            frame.bytes.clone()
        } else {
            Vec::new()
        };
        let fate = self.net.up(number, self.now, frame, &mut arrivals);
        self.trace(|world| trace::line(world.now, &format!("{number}>switch"), &copy, Some(fate)));
        for (at, frame) in arrivals.drain(..) {
            self.queue.push(
                at,
                Todo::AtSwitch {
                    from: number,
                    frame,
                },
            );
        }
        self.arrivals = arrivals;
    }

    fn trace(&self, line: impl FnOnce(&World) -> String) {
        if self.trace {
            eprintln!("{}", line(self));
        }
    }

    fn act(&mut self, action: Action) {
        self.trace(|world| trace::note(world.now, 0, &format!("{action:?}")));
        let now = self.now;
        match action {
            Action::Open(flow) => self.open(flow),
            Action::Abort(flow, side, reason) => {
                let (node, status) = (self.flows[flow].node(side), self.flows[flow].side(side));
                if let Some(id) = status.conn.filter(|_| status.closed.is_none()) {
                    self.nodes[node].endpoint.abort(now, id, reason);
                }
                self.drain(node);
            }
            Action::Restart(node) => self.restart(node),
            Action::Lose(node, down) => self.lose(node, down),
            Action::Adopt(node) => self.adopt(node),
            Action::Inject(node, bytes) => {
                let frame = Frame {
                    bytes,
                    ..Frame::default()
                };
                self.arrive(node, frame, false);
            }
            Action::Unlisten(node, port) => {
                self.nodes[node].listeners.remove(&port);
                self.nodes[node].endpoint.unlisten(now, port);
                self.drain(node);
            }
            Action::SetMtu(node, mtu) => {
                self.checker.set_mtu(node, mtu);
                self.nodes[node].endpoint.set_mtu(now, mtu);
                self.drain(node);
            }
            Action::Abandon(node) => {
                self.nodes[node].endpoint.abandon(now, false);
                self.drain(node);
            }
            Action::ShutdownAll(node) => {
                self.nodes[node].endpoint.shutdown_all(now);
                self.drain(node);
            }
            Action::Datagram(node, port, dst, dst_port, kind, len) => {
                self.datagram(node, (port, dst, dst_port), kind, len);
            }
        }
    }

    fn datagram(
        &mut self,
        node: usize,
        (port, dst, dst_port): (Port, MacAddr, Port),
        kind: EdpKind,
        len: usize,
    ) {
        let mut head = [0u8; HEAD_LEN];
        let built = self.nodes[node].endpoint.edp_header(
            &mut head,
            port,
            (dst.into(), dst_port),
            kind,
            0,
            len,
        );
        let Some(transmit) = built else {
            self.fail(&format!("no header for {kind:?} of {len} bytes"))
        };
        let prefix = kind.prefix_len();
        let mut frame = head[..prefix].to_vec();
        frame.extend((0..len).map(|at| at as u8));
        frame.extend_from_slice(&head[prefix..prefix + transmit.tail_len]);
        self.send(node, transmit.dst.mac().unwrap_or_default(), frame);
    }

    fn open(&mut self, flow: usize) {
        self.flows[flow].started = true;
        let plan = self.flows[flow].plan.clone();
        self.connect(
            flow,
            Side::Active,
            (plan.from, plan.from_port),
            (plan.to, plan.to_port),
        );
        if plan.crossing {
            self.connect(
                flow,
                Side::Passive,
                (plan.to, plan.to_port),
                (plan.from, plan.from_port),
            );
        }
    }

    fn connect(&mut self, flow: usize, side: Side, own: (usize, Port), peer: (usize, Port)) {
        let now = self.now;
        let plan = self.flows[flow].side_plan(side).clone();
        let options = ConnOptions {
            buffers: plan.buffers(),
            key: self.flows[flow].plan.key.clone(),
        };
        let peer = (crate::net::mac_of(peer.0), peer.1);
        let node = &mut self.nodes[own.0];
        let id = match node
            .endpoint
            .connect(now, own.1, peer.0.into(), peer.1, options)
        {
            Ok(id) => id,
            Err(error) => self.fail(&format!("connect of flow {flow}: {error}")),
        };
        if node.conns.contains_key(&id.slot) {
            self.fail(&format!("slot {} given out again before Closed", id.slot));
        }
        let mut conn = Conn::new(id, (node.mac, own.1), peer, plan, &mut self.streams, now);
        conn.rx.capacity = conn.plan.rx_buffer;
        conn.role = Some((flow, side));
        node.conns.insert(id.slot, conn);
        self.flows[flow].side_mut(side).conn = Some(id);
        self.drain(own.0);
    }

    fn restart(&mut self, number: usize) {
        self.renew(number);
        for (_, conn) in std::mem::take(&mut self.nodes[number].conns) {
            self.end_program(&conn);
        }
        self.drain(number);
    }

    /// Replaces a node's endpoint by a new one with its listeners.
    pub(crate) fn renew(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        node.incarnation += 1;
        let (config, mtu) = (node.config.endpoint.clone(), node.endpoint.mtu());
        node.endpoint = Endpoint::new(config, node.mac, mtu, node.rng.seed32(), node.incarnation);
        for (port, options) in node.listeners.clone() {
            if node.endpoint.listen(port, options).is_err() {
                self.fail("listen after restart");
            }
        }
        self.checker.forget(node.mac);
        node.ring.clear();
        node.dirty.clear();
    }
}
