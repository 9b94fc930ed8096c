//! Takes programs in.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use esp_client::control::{Envelope, Reply};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{debug, warn};

use crate::accounts::Resource;
use crate::node::Node;
use crate::peer::{Credentials, Identify};
use crate::refusal::Refusal;
use crate::session;
use crate::stats::Seldom;

/// Send buffer of a control connection, in bytes: what the kernel keeps of the replies (and descriptors) a program does not
/// read.
const SEND_BUFFER: usize = 16 << 10;
/// Pause when no connection can be taken for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// At the end the sessions get this long to say goodbye.
const GOODBYE: Duration = Duration::from_secs(1);

/// Serves programs until `stop` becomes true, then ends all sessions.
pub async fn serve(
    node: Arc<Node>,
    listener: UnixListener,
    identify: Identify,
    stop: watch::Receiver<bool>,
) {
    let mut sessions = JoinSet::new();
    let trouble = Seldom::default();
    let mut stopped = std::pin::pin!(until(stop.clone()));
    loop {
        tokio::select! {
            biased;
            () = &mut stopped => break,
            Some(_) = sessions.join_next(), if !sessions.is_empty() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    node.stats.control_connections.add();
                    let (node, identify, stop) = (Arc::clone(&node), Arc::clone(&identify), stop.clone());
                    admit(&mut sessions, node, stream, &identify, stop);
                }
                Err(error) => {
                    node.stats.accept_errors.add();
                    if trouble.now() {
                        warn!(%error, "cannot take a program in");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    let all = async { while sessions.join_next().await.is_some() {} };
    if tokio::time::timeout(GOODBYE, all).await.is_err() {
        sessions.shutdown().await;
    }
}

/// Resolves when the value is true, or can never become it.
pub(crate) async fn until(mut stop: watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Starts a session, if the user may have another.
fn admit(
    sessions: &mut JoinSet<()>,
    node: Arc<Node>,
    stream: UnixStream,
    identify: &Identify,
    stop: watch::Receiver<bool>,
) {
    let Ok(who) = identify(&stream) else {
        node.stats.control_socket_errors.add();
        return;
    };
    if let Err(error) = rustix::net::sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER) {
        debug!(%error, "send buffer of a program's connection stays as it is");
    }
    match node.accounts.charge(who.uid, Resource::Programs, 1) {
        Ok(program) => {
            sessions.spawn(session::serve(node, stream, who, program, stop));
        }
        Err(limit) => {
            node.stats.refused_limit.add();
            turn_away(&stream, who, limit.into());
        }
    }
}

/// Says why, if the socket takes it, and hangs up.
fn turn_away(stream: &UnixStream, who: Credentials, refusal: Refusal) {
    debug!(
        uid = who.uid,
        pid = who.pid,
        refusal.message,
        "program turned away"
    );
    let body = Reply::Error(refusal.into());
    if let Ok(bytes) = esp_client::io::encode(&Envelope { id: 0, body }) {
        // A new connection's buffer has room for it.
        let _: io::Result<usize> = esp_client::io::send(stream, &bytes, &[]);
    }
}
