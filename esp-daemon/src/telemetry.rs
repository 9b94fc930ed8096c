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

/// Names of gauges and what they show.
const GAUGES: [(&str, &str); 10] = [
    ("esp_link_up", "1 when the link is up"),
    ("esp_link_mtu_bytes", "bytes after the EtherType"),
    ("esp_connections", "connections, in any state"),
    ("esp_listeners", "listening ports"),
    ("esp_edp_ports", "bound datagram ports"),
    ("esp_programs", "connected programs"),
    ("esp_users", "users with charges"),
    ("esp_ring_bytes", "bytes of all rings"),
    ("esp_uptime_seconds", "time since the start"),
    ("esp_build_info", "always 1; the version is the label"),
];

/// The HTTP server; runs until dropped.
pub type Exporter = Pin<Box<dyn Future<Output = ()> + Send>>;

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
            for (name, help) in GAUGES {
                describe_gauge!(name, help);
            }
            for link in &snapshot.links {
                let set = |name: &'static str, value: f64| {
                    gauge!(name, "interface" => link.interface.clone()).set(value);
                };
                set("esp_link_up", f64::from(u8::from(link.up)));
                set("esp_link_mtu_bytes", link.mtu.into());
                set("esp_connections", link.connections.len() as f64);
                set("esp_listeners", link.listeners.len() as f64);
                set("esp_edp_ports", link.edp_ports.len() as f64);
            }
            let accounts = &node.accounts;
            let programs = accounts.total(Resource::Programs);
            gauge!("esp_programs").set(programs as f64);
            gauge!("esp_users").set(accounts.users() as f64);
            let ring_bytes = accounts.total(Resource::RingBytes);
            gauge!("esp_ring_bytes").set(ring_bytes as f64);
            gauge!("esp_uptime_seconds").set(node.started.elapsed().as_secs_f64());
            gauge!("esp_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
        });
        true
    }
}
