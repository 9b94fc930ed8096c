use super::*;

const EXAMPLE: &str = include_str!("../../esp-daemon.toml.example");

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text, Path::new("test.toml"))
}

/// Returns the example with its optional keys (lines like `#key = value`) enabled.
fn everything() -> String {
    let on = |line: &str| match line.strip_prefix('#') {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '[') => {
            rest.to_owned()
        }
        _ => line.to_owned(),
    };
    EXAMPLE.lines().map(on).collect::<Vec<_>>().join("\n")
}

fn keys(prefix: &str, value: &serde_json::Value, into: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (name, value) in fields {
                keys(&format!("{prefix}.{name}"), value, into);
            }
        }
        _ => into.push(prefix.to_owned()),
    }
}

#[test]
fn example_shows_the_defaults() {
    assert_eq!(parse(EXAMPLE).unwrap(), Config::default());
    assert_eq!(parse("").unwrap(), Config::default());
}

#[test]
fn example_shows_every_key() {
    let shown: toml::Table = everything().parse().unwrap();
    let config = parse(&everything()).unwrap();
    let (mut shown_keys, mut known_keys) = (Vec::new(), Vec::new());
    keys("", &serde_json::to_value(shown).unwrap(), &mut shown_keys);
    keys("", &serde_json::to_value(config).unwrap(), &mut known_keys);
    shown_keys.sort();
    known_keys.sort();
    assert!(
        known_keys.len() > 30,
        "only {} keys were looked at",
        known_keys.len()
    );
    assert_eq!(shown_keys, known_keys);
}

#[test]
fn defaults_are_those_of_the_protocol() {
    let (timers, proto) = (Timers::default(), esp_proto::EndpointConfig::default());
    assert_eq!(timers.connect_timeout.0, proto.connect_timeout);
    assert_eq!(timers.peer_timeout.0, proto.peer_timeout);
    assert_eq!(timers.keepalive.0, proto.keepalive);
    assert_eq!(timers.max_ack_delay.0, proto.max_ack_delay);
    assert_eq!(
        (timers.min_rto.0, timers.max_rto.0),
        (proto.min_rto, proto.max_rto)
    );
    assert_eq!(timers.time_wait.0, proto.time_wait);
    assert_eq!(
        Ethertypes::default(),
        Ethertypes {
            esp: proto.esp_ethertype,
            edp: proto.edp_ethertype
        }
    );
    assert_eq!(Protocol::default().max_window, proto.max_window);
    assert_eq!(
        Protocol::default().max_connections as usize,
        proto.max_connections
    );
    let idle = esp_engine::IdleConfig::default();
    assert_eq!(
        (Idle::default().spin.0, Idle::default().yield_for.0),
        (idle.spin, idle.yield_for)
    );
}

#[test]
fn unknown_keys_are_refused_at_every_level() {
    let tables = [
        "",
        "[socket]",
        "[ethertypes]",
        "[limits]",
        "[limits.uid.0]",
        "[limits.node]",
        "[rings]",
        "[timers]",
        "[protocol]",
        "[idle]",
        "[control]",
        "[metrics]",
    ];
    for table in tables {
        let error = parse(&format!("{table}\n# c\nsurprise = 1\n")).unwrap_err();
        assert_eq!(error.line, Some(3), "{error}");
        assert!(
            error
                .key
                .as_ref()
                .is_some_and(|key| key.ends_with("surprise")),
            "{error}"
        );
        assert!(error.what.contains("unknown key `surprise`"), "{error}");
        assert!(!error.to_string().contains('\n'), "{error}");
    }
    let error = parse("[surprise]\n").unwrap_err().to_string();
    assert!(
        error.starts_with(
            "test.toml:1: surprise: unknown key `surprise`, expected one of `interfaces`"
        ),
        "{error}"
    );
}

#[test]
fn errors_name_line_and_key() {
    let cases = [
        (
            "[timers]\nkeepalive = 5\n",
            2,
            "timers.keepalive",
            "duration",
        ),
        (
            "[timers]\n\nkeepalive = \"5 parsecs\"\n",
            3,
            "timers.keepalive",
            "invalid duration `5 parsecs`",
        ),
        (
            "[timers]\nmin_rto = \"1s\"\n",
            2,
            "timers.min_rto",
            "larger than timers.max_rto",
        ),
        (
            "[timers]\nmax_ack_delay = \"1s\"\n",
            2,
            "timers.max_ack_delay",
            "out of range",
        ),
        (
            "interfaces = [\n  \"a\",\n  7,\n]\n",
            3,
            "interfaces",
            "string",
        ),
        (
            "interfaces = [\"a\", \"a\"]\n",
            1,
            "interfaces",
            "duplicate",
        ),
        (
            "interfaces = [\"an-interface-name-too-long\"]\n",
            1,
            "interfaces",
            "name",
        ),
        (
            "[socket]\nmode = 438\n",
            2,
            "socket.mode",
            "permission bits",
        ),
        (
            "[ethertypes]\nesp = 0x0800\n",
            2,
            "ethertypes.esp",
            "another protocol",
        ),
        ("[ethertypes]\nesp = 70000\n", 2, "ethertypes.esp", "70000"),
        (
            "[ethertypes]\nedp = 0x88B5\n",
            2,
            "ethertypes.edp",
            "equal to",
        ),
        (
            "[rings]\nmax_tx = 5000\n",
            2,
            "rings.max_tx",
            "power of two",
        ),
        (
            "[rings]\ndefault_rx = \"32MiB\"\n",
            2,
            "rings.default_rx",
            "larger",
        ),
        ("[limits]\nstreams = -1\n", 2, "limits.streams", "-1"),
        (
            "[limits]\nrequests_per_second = 0\n",
            2,
            "limits.requests_per_second",
            "at least 1",
        ),
        (
            "[limits.uid.root]\nstreams = 1\n",
            1,
            "limits.uid.root",
            "user id",
        ),
        (
            "[metrics]\nlisten = \"everywhere\"\n",
            2,
            "metrics.listen",
            "address",
        ),
        (
            "[protocol]\nmax_window = 5000\n",
            2,
            "protocol.max_window",
            "4096",
        ),
        (
            "[lease]\nallow = \"off\"\nusers = [1000]\n",
            3,
            "lease.users",
            "no effect",
        ),
        ("[socket\n", 1, "", ""),
        ("a = 1\na = 2\n", 1, "a", ""),
    ];
    for (text, line, key, what) in cases {
        let error = parse(text).unwrap_err();
        let shown = error.to_string();
        assert!(shown.starts_with("test.toml:"), "{shown}");
        assert!(!shown.contains('\n'), "{shown}");
        assert!(error.what.contains(what), "{shown}");
        if !what.is_empty() {
            assert_eq!(
                (error.line, error.key.as_deref()),
                (Some(line), Some(key)),
                "{shown}"
            );
        }
    }
}

#[test]
fn missing_file_is_named() {
    let error = Config::load(Path::new("/nonexistent/esp.toml")).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("/nonexistent/esp.toml: cannot read the file"),
        "{error}"
    );
    assert!(
        Config::load(Path::new("/"))
            .unwrap_err()
            .to_string()
            .contains("not a config file")
    );
}
