//! Counters for Prometheus.

use std::collections::HashMap;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use esp_client::control::CounterStatus;
use metrics::{Counter, Key, KeyName, Label, Level, Metadata, Recorder, SharedString, Unit};
use metrics_exporter_prometheus::{
    BuildError, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};

use crate::accounts::Resource;
use crate::node::Node;
use crate::status;

const METADATA: Metadata<'static> = Metadata::new("esp_daemon", Level::INFO, None);

/// The HTTP server; runs until dropped.
pub type Exporter = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Names and values as exported.
pub struct Telemetry {
    recorder: PrometheusRecorder,
    counters: HashMap<(String, String), Counter>,
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
        Ok((
            Telemetry {
                recorder,
                counters: HashMap::new(),
            },
            server,
        ))
    }

    /// Creates a recorder without a server.
    pub fn local() -> Telemetry {
        Telemetry {
            recorder: PrometheusBuilder::new().build_recorder(),
            counters: HashMap::new(),
        }
    }

    /// Returns the handle that renders the values.
    pub fn handle(&self) -> PrometheusHandle {
        self.recorder.handle()
    }

    /// Updates the values every `interval`, until the engine ends.
    pub async fn run(mut self, node: Arc<Node>, interval: Duration) {
        let mut tick = tokio::time::interval(interval);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            if !self.refresh(&node).await {
                return;
            }
        }
    }

    /// Updates the values once; returns false when the engine has ended.
    pub async fn refresh(&mut self, node: &Node) -> bool {
        let Ok(snapshot) = node.snapshot().await else {
            return false;
        };
        for counter in status::counters(node, &snapshot) {
            self.count(counter);
        }
        for link in &snapshot.links {
            let gauges = [
                (
                    "esp_link_up",
                    "1 when the link is up",
                    f64::from(u8::from(link.up)),
                ),
                (
                    "esp_link_mtu_bytes",
                    "bytes after the EtherType",
                    f64::from(link.mtu),
                ),
                (
                    "esp_connections",
                    "connections, including those being opened or closed",
                    link.connections.len() as f64,
                ),
                (
                    "esp_listeners",
                    "listening ports",
                    link.listeners.len() as f64,
                ),
                (
                    "esp_edp_ports",
                    "bound datagram ports",
                    link.edp_ports.len() as f64,
                ),
            ];
            for (name, help, value) in gauges {
                let label = Label::new("interface", link.interface.clone());
                self.gauge(name, help, vec![label], value);
            }
        }
        let held = |what| node.accounts.total(what) as f64;
        let gauges = [
            (
                "esp_programs",
                "connected programs",
                held(Resource::Programs),
            ),
            (
                "esp_users",
                "users with charges",
                node.accounts.users() as f64,
            ),
            (
                "esp_ring_bytes",
                "bytes of all rings",
                held(Resource::RingBytes),
            ),
            (
                "esp_uptime_seconds",
                "time since the start",
                node.started.elapsed().as_secs_f64(),
            ),
        ];
        for (name, help, value) in gauges {
            self.gauge(name, help, vec![], value);
        }
        let version = vec![Label::new("version", env!("CARGO_PKG_VERSION"))];
        let help = "always 1; the version is the label";
        self.gauge("esp_build_info", help, version, 1.0);
        true
    }

    fn count(&mut self, counter: CounterStatus) {
        let CounterStatus {
            interface,
            name,
            help,
            value,
        } = counter;
        let recorder = &self.recorder;
        let handle =
            self.counters
                .entry((interface, name))
                .or_insert_with_key(|(interface, name)| {
                    let shown = format!("esp_{name}_total");
                    let labels = match interface.as_str() {
                        "" => vec![],
                        interface => vec![Label::new("interface", interface.to_owned())],
                    };
                    recorder.describe_counter(
                        KeyName::from(shown.clone()),
                        Some(Unit::Count),
                        SharedString::from(help),
                    );
                    recorder.register_counter(&Key::from_parts(shown, labels), &METADATA)
                });
        handle.absolute(value);
    }

    fn gauge(&self, name: &'static str, help: &'static str, labels: Vec<Label>, value: f64) {
        self.recorder.describe_gauge(
            KeyName::from_const_str(name),
            None,
            SharedString::from(help),
        );
        self.recorder
            .register_gauge(&Key::from_parts(name, labels), &METADATA)
            .set(value);
    }
}
