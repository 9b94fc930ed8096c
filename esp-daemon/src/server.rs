//! The control socket's server: accepts programs and starts their sessions.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use esp_client::control::{Envelope, Reply};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{debug, warn};

use crate::config::Resource;
use crate::node::Node;
use crate::peer::{Credentials, Identify};
use crate::refusal::Refusal;
use crate::session;
use crate::stats::LogLimiter;

/// Send buffer of a control connection in bytes; bounds the unread replies (and descriptors) in the
/// kernel.
const SEND_BUFFER: usize = 16 << 10;
/// Stands for the user of a connection whose user is not known.
const UNKNOWN_USER: u32 = u32::MAX;
/// Pause after an accept that failed for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Time for the sessions to end at shutdown.
const SESSIONS_END: Duration = Duration::from_secs(1);

/// Serves programs until `stop` becomes true, then ends all sessions.
pub async fn serve(
    node: Arc<Node>,
    listener: UnixListener,
    identify: Identify,
    stop: watch::Receiver<bool>,
) {
    let mut sessions = JoinSet::new();
    let logged = LogLimiter::default();
    let mut stopped = std::pin::pin!(until(stop.clone()));
    loop {
        tokio::select! {
            biased;
            () = &mut stopped => break,
            Some(_) = sessions.join_next(), if !sessions.is_empty() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    node.stats.control_connections.add();
                    let (node, stop) = (Arc::clone(&node), stop.clone());
                    start_session(&mut sessions, node, stream, &identify, stop);
                }
                Err(error) => {
                    node.stats.accept_errors.add();
                    if logged.allow() {
                        warn!(%error, "cannot accept a program");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    let all = async { while sessions.join_next().await.is_some() {} };
    if tokio::time::timeout(SESSIONS_END, all).await.is_err() {
        sessions.shutdown().await;
    }
}

/// Resolves when the value is true, or can no longer become true.
pub(crate) async fn until(mut stop: watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Starts a session, if the user may have another.
fn start_session(
    sessions: &mut JoinSet<()>,
    node: Arc<Node>,
    stream: UnixStream,
    identify: &Identify,
    stop: watch::Receiver<bool>,
) {
    let Ok(credentials) = identify(&stream) else {
        node.stats.control_socket_errors.add();
        session::close(&node.closer, UNKNOWN_USER, stream);
        return;
    };
    if let Err(error) = rustix::net::sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER) {
        debug!(%error, "cannot set the send buffer of a program's connection");
    }
    match node.accounts.charge(credentials.uid, Resource::Programs, 1) {
        Ok(program) => {
            sessions.spawn(session::serve(node, stream, credentials, program, stop));
        }
        Err(limit) => {
            node.stats.refused_limit.add();
            refuse(&stream, credentials, limit.into());
            session::close(&node.closer, credentials.uid, stream);
        }
    }
}

/// Sends the refusal, if the socket accepts it, and disconnects.
fn refuse(stream: &UnixStream, credentials: Credentials, refusal: Refusal) {
    debug!(
        uid = credentials.uid,
        pid = credentials.pid,
        refusal.message,
        "program refused"
    );
    let body = Reply::Error(refusal.into());
    if let Ok(bytes) = esp_client::control::codec::encode(&Envelope { id: 0, body }) {
        // A new connection's buffer has room for it.
        let _: io::Result<usize> = esp_client::control::codec::send(stream, &bytes, &[]);
    }
}
