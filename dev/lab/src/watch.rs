//! Events that holders wait for once their namespaces exist.
//!
//! A process in a node keeps the node's namespace alive and does not notice that the lab has ended.
//! So holders watch each other: the processes of a node are ended when the holder of its namespace
//! or that of the switch ends for any reason. If both end at once, no process knows the namespace
//! any more: its processes continue, and have to be ended by hand.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags};

use crate::inhabitants::{self, Namespace};
use crate::process::{self, ProcessRef};
use crate::state::State;
use crate::teardown;

/// Command words from the creator on standard input, one per line.
#[derive(Debug, Default)]
pub(crate) struct Words(Vec<u8>);

impl Words {
    /// Waits for the next word. Returns `None` when the creator has closed the pipe.
    pub(crate) fn next(&mut self) -> Option<String> {
        loop {
            if let Some(word) = self.take() {
                return Some(word);
            }
            if !self.read() {
                return None;
            }
        }
    }

    /// Reads once. Returns false at the end.
    fn read(&mut self) -> bool {
        let mut bytes = [0; 64];
        let count = rustix::io::retry_on_intr(|| rustix::io::read(io::stdin(), &mut bytes));
        let count = count.unwrap_or(0);
        self.0.extend_from_slice(&bytes[..count]);
        count > 0
    }

    /// Takes the next word that has been read.
    fn take(&mut self) -> Option<String> {
        let end = self.0.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.0.drain(..=end).collect();
        Some(String::from_utf8_lossy(&line[..end]).into_owned())
    }
}

/// Watches the switch from the holder of a node: ends the processes of the node when the switch
/// ends.
pub(crate) fn watch_switch(switch: ProcessRef) -> io::Result<()> {
    if let Some(ended) = switch.open() {
        process::wait_any(&[ended], None)?;
    }
    let me = ProcessRef::me()?;
    if let Some(namespace) = Namespace::of(me) {
        inhabitants::end(&[namespace], &[me]);
    }
    Ok(())
}

/// A node as the switch's holder sees it.
struct Node {
    /// Readable once the node's holder has ended.
    ended: OwnedFd,
    namespace: Namespace,
}

/// Watches the creator and the nodes of the lab in `dir` from the switch's holder. Returns when the
/// creator has ended without `keep`.
pub(crate) fn watch_nodes(dir: &Path, mut words: Words) -> io::Result<()> {
    let mut nodes = Vec::new();
    let mut kept = false;
    loop {
        while let Some(word) = words.take() {
            match &*word {
                "complete" => nodes = nodes_of(dir),
                "keep" => kept = true,
                _ => {}
            }
        }
        let ended = wait(&nodes, kept)?;
        if ended.creator && !words.read() {
            abandoned(dir);
            return Ok(());
        }
        let mut ended = ended.nodes.into_iter();
        nodes.retain(|node| {
            let ended = ended.next() == Some(true);
            if ended {
                inhabitants::end(std::slice::from_ref(&node.namespace), &[]);
            }
            !ended
        });
    }
}

/// Events that a watch has waited for.
struct Ended {
    /// The creator has written or ended.
    creator: bool,
    /// Nodes whose holders have ended.
    nodes: Vec<bool>,
}

/// Waits for the creator, unless the lab is kept, and for the end of a node.
fn wait(nodes: &[Node], kept: bool) -> io::Result<Ended> {
    let stdin = io::stdin();
    let descriptors = nodes.iter().map(|node| node.ended.as_fd());
    let mut fds: Vec<PollFd<'_>> = descriptors
        .chain((!kept).then_some(stdin.as_fd()))
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    process::wait_for(&mut fds, None)?;
    let mut nodes_ended: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
    let creator = !kept && nodes_ended.pop() == Some(true);
    Ok(Ended {
        creator,
        nodes: nodes_ended,
    })
}

/// Returns the nodes recorded in the lab's state.
fn nodes_of(dir: &Path) -> Vec<Node> {
    let state = State::read(dir).ok().flatten();
    let nodes = state.map(|state| state.nodes).unwrap_or_default();
    nodes
        .into_iter()
        .filter_map(|node| {
            Some(Node {
                namespace: Namespace::of(node.holder)?,
                ended: node.holder.open()?,
            })
        })
        .collect()
}

/// Removes a lab whose creator died before the first holder was recorded.
pub(crate) fn remove_unfinished(dir: &Path) {
    let unfinished = || State::read(dir).ok().flatten().filter(|s| !s.ready);
    let Some(creator) = unfinished().map(|state| state.creator) else {
        return;
    };
    // Its pipe is closed shortly before it has ended. A creator that lives ends this process.
    if let Some(process) = creator.open() {
        let mut ended = [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)];
        let _ = process::wait_for(&mut ended, None);
    }
    if let Some(state) = unfinished().filter(|state| state.creator == creator) {
        // No process is left to report an error to.
        let _ = teardown(&state, dir, ProcessRef::me().ok());
    }
}

/// Ends the lab except this process, after the creator died.
fn abandoned(dir: &Path) {
    if let Ok(Some(state)) = State::read(dir) {
        let me = ProcessRef::me().ok();
        if state.switch.is_some() && state.switch == me {
            // No process is left to report an error to.
            let _ = teardown(&state, dir, me);
        }
    }
}
