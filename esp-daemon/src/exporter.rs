//! The HTTP endpoint of the metrics: `GET /metrics`, on a Unix socket or one address.
//!
//! Requests are hostile until checked. Each connection serves one request of at most 8 KiB within
//! five seconds, and there are at most eight connections; further ones wait in the kernel.

use std::convert::Infallible;
use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use constant_time_eq::constant_time_eq;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::Metrics;
use crate::error::StartError;
use crate::node::Node;

/// Maximum number of connections at a time.
const CONNECTIONS: usize = 8;
/// Time for a request and its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Buffer of a connection in bytes; a longer request is refused.
const BUFFER: usize = 8192;
/// Pause after an accept that failed for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Version of the text format.
const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Bounds of a token's length; a shorter one can be guessed.
const TOKEN: std::ops::RangeInclusive<usize> = 16..=1024;

/// A listening socket.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// The secret that requests must bear, if there is one.
#[derive(Clone)]
pub(crate) struct Token(Option<Arc<[u8]>>);

impl Token {
    /// Admits every request.
    pub(crate) fn none() -> Token {
        Token(None)
    }

    /// Returns the token in the configured file, if there is one.
    ///
    /// # Errors
    /// Those of [`Token::load`].
    pub(crate) fn of(options: &Metrics) -> Result<Token, StartError> {
        let file = options.token_file.as_deref();
        file.map_or_else(|| Ok(Token::none()), Token::load)
    }

    /// Reads the token from a file that others cannot read.
    ///
    /// # Errors
    /// The file cannot be read, others can read it, or it holds no token.
    fn load(file: &Path) -> Result<Token, StartError> {
        let failed = |what: &str| {
            StartError::new(format_args!(
                "metrics.token_file: {}: {what}",
                file.display()
            ))
        };
        let found = std::fs::metadata(file).map_err(|e| failed(&e.to_string()))?;
        if !found.is_file() || found.len() > 4096 {
            return Err(failed("expected a regular file of at most 4096 bytes"));
        }
        if found.permissions().mode() & 0o004 != 0 {
            return Err(failed("every user can read it: chmod o-r"));
        }
        let text = std::fs::read(file).map_err(|e| failed(&e.to_string()))?;
        let token = text.trim_ascii();
        if !TOKEN.contains(&token.len()) || !token.iter().all(u8::is_ascii_graphic) {
            return Err(failed(
                "expected one word of 16 to 1024 characters, such as `openssl rand -hex 32` prints",
            ));
        }
        Ok(Token(Some(token.into())))
    }

    /// Returns true if the value of the header Authorization bears the token. The time does not
    /// depend on where the two differ.
    fn admits(&self, authorization: Option<&HeaderValue>) -> bool {
        let Some(token) = &self.0 else {
            return true;
        };
        let Some((scheme, rest)) =
            authorization.and_then(|value| value.as_bytes().split_at_checked(7))
        else {
            return false;
        };
        scheme.eq_ignore_ascii_case(b"Bearer ") && constant_time_eq(rest, token)
    }
}

/// Serves requests until dropped.
pub(crate) async fn serve(
    listener: Listener,
    token: Token,
    metrics: PrometheusHandle,
    node: Arc<Node>,
) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    while let Ok(slot) = Arc::clone(&slots).acquire_owned().await {
        let answer = Answer {
            token: token.clone(),
            metrics: metrics.clone(),
            node: Arc::clone(&node),
        };
        let accepted: Result<Pin<Box<dyn Future<Output = ()> + Send>>, _> = match &listener {
            Listener::Tcp(listener) => match listener.accept().await {
                Ok((stream, _)) => Ok(Box::pin(connection(stream, answer, slot))),
                Err(error) => Err(error),
            },
            Listener::Unix(listener) => match listener.accept().await {
                Ok((stream, _)) => Ok(Box::pin(connection(stream, answer, slot))),
                Err(error) => Err(error),
            },
        };
        match accepted {
            Ok(connection) => drop(tokio::spawn(connection)),
            Err(_) => {
                node.stats.accept_errors.add();
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves one connection.
async fn connection(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    answer: Answer,
    slot: OwnedSemaphorePermit,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let response = answer.to(&request);
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .keep_alive(false)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(stream), service);
    // Ignored: a client that ends early, or does not speak HTTP, does not affect the node.
    let _ = tokio::time::timeout(PATIENCE, connection).await;
    drop(slot);
}

/// Sources of the answers to requests.
struct Answer {
    token: Token,
    metrics: PrometheusHandle,
    node: Arc<Node>,
}

impl Answer {
    fn to<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        // First, so that a request without the token reveals nothing.
        if !self.token.admits(request.headers().get(AUTHORIZATION)) {
            self.node.stats.metrics_unauthorized.add();
            let mut response = text(
                StatusCode::UNAUTHORIZED,
                "send `Authorization: Bearer TOKEN`\n",
            );
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
            return response;
        }
        if request.uri().path() != "/metrics" {
            return text(StatusCode::NOT_FOUND, "the metrics are at /metrics\n");
        }
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return text(StatusCode::METHOD_NOT_ALLOWED, "use GET\n");
        }
        let mut response = text(StatusCode::OK, self.metrics.render());
        let format = HeaderValue::from_static(FORMAT);
        response.headers_mut().insert(CONTENT_TYPE, format);
        response
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    fn load(text: &str, mode: u32) -> Result<Token, String> {
        let dir = TempDir::new();
        let file = dir.path().join("token");
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        Token::load(&file).map_err(|e| e.to_string())
    }

    fn admits(token: &Token, header: &'static str) -> bool {
        token.admits(Some(&HeaderValue::from_static(header)))
    }

    #[test]
    fn only_the_token_is_admitted() {
        let token = load("0123456789abcdef\n", 0o640).unwrap();
        assert!(admits(&token, "Bearer 0123456789abcdef"));
        assert!(admits(&token, "bearer 0123456789abcdef"));
        for header in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
            "Bearer  0123456789abcdef",
            "Bearer 0123456789abcdeg",
            "Basic 0123456789abcdef",
            "0123456789abcdef",
        ] {
            assert!(!admits(&token, header), "{header}");
        }
        assert!(!token.admits(None));
        assert!(Token::none().admits(None));
    }

    #[test]
    fn files_without_a_token_are_refused() {
        for text in [
            "",
            "\n",
            "short",
            "0123456789 abcdef",
            "0123456789abcde\u{e9}",
        ] {
            assert!(
                load(text, 0o600).is_err_and(|e| e.contains("16 to 1024")),
                "{text}"
            );
        }
        assert!(load(&"x".repeat(1025), 0o600).is_err());
        assert!(load(&"x".repeat(5000), 0o600).is_err_and(|e| e.contains("4096")));
        assert!(load("0123456789abcdef", 0o644).is_err_and(|e| e.contains("chmod")));
        assert!(Token::load(Path::new("/nonexistent")).is_err());
        assert!(Token::load(Path::new("/")).is_err());
    }
}
