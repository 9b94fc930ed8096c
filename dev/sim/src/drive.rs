//! The hosts: pass frames and time to their endpoints, drain the output, and run the programs.

mod events;
mod frames;
mod protect;
mod script;

pub(crate) use protect::new_layer;

use crate::host::Call;
use crate::world::{Todo, World};
use esp_proto::{ConnId, Duration};

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

    /// Handles one batch of received frames.
    fn wake(&mut self, number: usize) {
        let now = self.now;
        let mut handled = 0;
        while (handled as usize) < self.nodes[number].config.host.batch {
            let Some((frame, looped)) = self.nodes[number].ring.pop_front() else {
                break;
            };
            self.hand_over(number, frame, looped);
            handled += 1;
        }
        self.checker.process_moves();
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

    fn timer(&mut self, number: usize) {
        let now = self.now;
        let node = &mut self.nodes[number];
        if node.timer_at.is_some_and(|at| at > now) {
            // This entry is obsolete: the current timer is later, and has its own entry.
            return;
        }
        node.timer_at = None;
        if node.poll_timeout().is_some_and(|at| at <= now) {
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
            if let Some(layer) = &mut node.layer {
                layer.handle_timeout(now);
            }
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
        let Some(due) = node.poll_timeout() else {
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

    fn trace(&self, line: impl FnOnce(&World) -> String) {
        if self.trace {
            eprintln!("{}", line(self));
        }
    }
}
