//! Counters for Prometheus.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use metrics::{counter, describe_counter, describe_gauge, gauge};
use metrics_exporter_prometheus::{
    BuildError, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};

use crate::config::Resource;
use crate::node::Node;
use crate::status;

/// Interval at which values are fetched from the engine.
const INTERVAL: Duration = Duration::from_secs(1);

/// The HTTP server; runs until dropped.
pub type Exporter = Pin<Box<dyn Future<Output = ()> + Send>>;

type Labels = Vec<(&'static str, String)>;

/// Names and values as exported.
pub struct Telemetry {
    recorder: PrometheusRecorder,
}

impl Telemetry {
    /// Creates a recorder and the server that exposes it on `listen`. Call inside the runtime.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub fn new(listen: SocketAddr) -> Result<(Telemetry, Exporter), BuildError> {
        let (recorder, server) = PrometheusBuilder::new()
            .with_http_listener(listen)
            .build()?;
        let server = Box::pin(async move {
            if let Err(error) = server.await {
                tracing::warn!(?error, "metrics server ended");
            }
        });
        Ok((Telemetry { recorder }, server))
    }

    /// Creates a recorder without a server.
    pub fn local() -> Telemetry {
        Telemetry {
            recorder: PrometheusBuilder::new().build_recorder(),
        }
    }

    /// Returns the handle that renders the values.
    pub fn handle(&self) -> PrometheusHandle {
        self.recorder.handle()
    }

    /// Updates the values regularly, until the engine ends.
    pub async fn run(self, node: Arc<Node>) {
        while self.refresh(&node).await {
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Updates the values once; returns false when the engine has ended.
    pub async fn refresh(&self, node: &Node) -> bool {
        let Ok(snapshot) = node.snapshot().await else {
            return false;
        };
        metrics::with_local_recorder(&self.recorder, || {
            for found in status::counters(node, &snapshot) {
                let name = format!("esp_{}_total", found.name);
                describe_counter!(name.clone(), found.help.clone());
                match found.interface.is_empty() {
                    true => counter!(name),
                    false => counter!(name, "interface" => found.interface),
                }
                .absolute(found.value);
            }
            let set = |name: &'static str, help: &'static str, labels: &Labels, value: f64| {
                describe_gauge!(name, help);
                gauge!(name, labels).set(value);
            };
            for link in &snapshot.links {
                let labels = vec![("interface", link.interface.clone())];
                let count = |entries: usize| entries as f64;
                let open = "connections, including those being opened or closed";
                set(
                    "esp_link_up",
                    "1 when the link is up",
                    &labels,
                    f64::from(u8::from(link.up)),
                );
                set(
                    "esp_link_mtu_bytes",
                    "bytes after the EtherType",
                    &labels,
                    link.mtu.into(),
                );
                set(
                    "esp_connections",
                    open,
                    &labels,
                    count(link.connections.len()),
                );
                set(
                    "esp_listeners",
                    "listening ports",
                    &labels,
                    count(link.listeners.len()),
                );
                set(
                    "esp_edp_ports",
                    "bound datagram ports",
                    &labels,
                    count(link.edp_ports.len()),
                );
            }
            let (all, none) = (&node.accounts, Labels::new());
            let held = |what| all.total(what) as f64;
            let uptime = node.started.elapsed().as_secs_f64();
            set(
                "esp_programs",
                "connected programs",
                &none,
                held(Resource::Programs),
            );
            set("esp_users", "users with charges", &none, all.users() as f64);
            set(
                "esp_ring_bytes",
                "bytes of all rings",
                &none,
                held(Resource::RingBytes),
            );
            set("esp_uptime_seconds", "time since the start", &none, uptime);
            let version = vec![("version", env!("CARGO_PKG_VERSION").into())];
            set(
                "esp_build_info",
                "always 1; the version is the label",
                &version,
                1.0,
            );
        });
        true
    }
}
