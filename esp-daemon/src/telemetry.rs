//! Counters for Prometheus.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use metrics::{counter, describe_counter, describe_gauge, gauge};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use crate::config::Resource;
use crate::node::Node;
use crate::status;

/// Interval at which values are fetched from the engine.
const INTERVAL: Duration = Duration::from_secs(1);

/// Names of gauges and their help texts.
const GAUGES: [(&str, &str); 10] = [
    ("esp_link_up", "1 when the link is up"),
    ("esp_link_mtu_bytes", "bytes after the EtherType"),
    ("esp_connections", "connections, in any state"),
    ("esp_listeners", "listening ports"),
    ("esp_edp_ports", "bound datagram ports"),
    ("esp_programs", "connected programs"),
    ("esp_users", "users with charges"),
    (
        "esp_ring_bytes",
        "bytes of all rings, and of data that waits for lost packets",
    ),
    (
        "esp_start_time_seconds",
        "start of the daemon, since the Unix epoch",
    ),
    ("esp_build_info", "always 1; the version is the label"),
];

/// Name of the counters `rx_drop_…`, whose reason is a label.
const DROPPED: &str = "esp_rx_dropped_frames_total";
const DROPPED_HELP: &str =
    "received frames dropped, by reason; espstat --counters explains the reasons";

/// Names and values as exported.
pub struct Telemetry {
    recorder: PrometheusRecorder,
    /// Start of the daemon, since the Unix epoch.
    started: Duration,
}

impl Default for Telemetry {
    fn default() -> Telemetry {
        Telemetry::new()
    }
}

impl Telemetry {
    /// Creates a recorder.
    pub fn new() -> Telemetry {
        Telemetry {
            recorder: PrometheusBuilder::new().build_recorder(),
            started: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default(),
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
                if let Some(reason) = found.name.strip_prefix("rx_drop_") {
                    let reason = reason.to_owned();
                    describe_counter!(DROPPED, DROPPED_HELP);
                    counter!(DROPPED, "interface" => found.interface, "reason" => reason)
                        .absolute(found.value);
                    continue;
                }
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
            gauge!("esp_start_time_seconds").set(self.started.as_secs_f64());
            gauge!("esp_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
        });
        true
    }
}
