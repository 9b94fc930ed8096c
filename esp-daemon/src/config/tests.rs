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

#[test]
fn example_shows_the_defaults() {
    assert_eq!(parse(EXAMPLE).unwrap(), Config::default());
    assert_eq!(parse("").unwrap(), Config::default());
}

/// Tables of the file, with the number of keys and tables of each.
const TABLES: [(&str, usize); 12] = [
    ("", 16),
    ("socket", 3),
    ("ethertypes", 2),
    ("limits", 9),
    ("limits.uid.0", 7),
    ("limits.node", 3),
    ("rings", 2),
    ("timers", 5),
    ("idle", 2),
    ("metrics", 2),
    ("lease", 4),
    ("auth", 3),
];

#[test]
fn example_shows_every_key() {
    parse(&everything()).unwrap();
    let shown: toml::Table = everything().parse().unwrap();
    for (name, keys) in TABLES {
        let path = name.split('.').filter(|part| !part.is_empty());
        let table = path.fold(&shown, |table, key| table[key].as_table().unwrap());
        let error = parse(&format!("[{name}]\nsurprise = 1\n").replace("[]", "")).unwrap_err();
        let error = error.to_string();
        let expected = error.rsplit("expected ").next().unwrap();
        for key in table.keys() {
            assert!(
                expected.contains(&format!("`{key}`")),
                "{name}.{key}: {error}"
            );
        }
        assert_eq!(
            (table.len(), expected.matches('`').count()),
            (keys, 2 * keys),
            "{name}"
        );
    }
}

#[test]
fn defaults_are_those_of_the_protocol() {
    let (timers, proto) = (Timers::default(), esp_proto::EndpointConfig::default());
    assert_eq!(timers.connect_timeout.0, proto.connect_timeout);
    assert_eq!(timers.peer_timeout.0, proto.peer_timeout);
    assert_eq!(timers.keepalive.0, proto.keepalive);
    assert_eq!(
        (timers.min_rto.0, timers.max_rto.0),
        (proto.min_rto, proto.max_rto)
    );
    assert_eq!(
        Ethertypes::default(),
        Ethertypes {
            esp: proto.esp_ethertype,
            edp: proto.edp_ethertype
        }
    );
    let idle = esp_engine::IdleConfig::default();
    assert_eq!(Idle::default().spin.0, idle.spin);
}

#[test]
fn unknown_keys_are_refused_at_every_level() {
    for (table, _) in TABLES {
        let header = format!("[{table}]").replace("[]", "");
        let error = parse(&format!("{header}\n# c\nsurprise = 1\n"))
            .unwrap_err()
            .to_string();
        let key = format!("{table}.surprise");
        let start = format!(
            "test.toml:3: {}: unknown key `surprise`",
            key.trim_start_matches('.')
        );
        assert!(error.starts_with(&start), "{error}");
        assert!(!error.contains('\n'), "{error}");
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
            "invalid duration \"5 parsecs\"",
        ),
        (
            "[timers]\nmin_rto = \"1s\"\n",
            2,
            "timers.min_rto",
            "out of range",
        ),
        (
            "[timers]\nmax_rto = \"2min\"\n",
            2,
            "timers.max_rto",
            "out of range",
        ),
        (
            "interfaces = [\n  \"a\",\n  7,\n]\n",
            3,
            "interfaces",
            "string",
        ),
        ("engines = 0\n", 1, "engines", "1 to 16"),
        ("engines = 17\n", 1, "engines", "1 to 16"),
        (
            "pcap = \"/x\"\nengines = 2\n",
            2,
            "engines",
            "with a pcap file (`pcap`)",
        ),
        (
            "engines = 2\nudp = [\"on-link\"]\n",
            1,
            "engines",
            "with ESP in UDP (`udp`)",
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
        ("[rings]\nmax = 5000\n", 2, "rings.max", "power of two"),
        (
            "[rings]\ndefault = \"32MiB\"\n",
            2,
            "rings.default",
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
            "[limits.uid.7]\nrequests_per_second = 0\n",
            2,
            "limits.uid.7.requests_per_second",
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
            "[metrics]\nlisten = \"run/esp/metrics.sock\"\n",
            2,
            "metrics.listen",
            "path of a Unix socket",
        ),
        (
            "[metrics]\ntoken_file = \"/etc/esp/token\"\n",
            2,
            "metrics.token_file",
            "no effect without metrics.listen",
        ),
        (
            "[lease]\nallow = \"off\"\nusers = [1000]\n",
            3,
            "lease.users",
            "no effect",
        ),
        (
            "checksum = \"require\"\n[auth]\nkey_files = [\"/k\"]\n",
            1,
            "checksum",
            "no effect with auth.key_files",
        ),
        (
            "checksum = \"offer\"\n[lease]\nallow = \"all\"\n",
            3,
            "lease.allow",
            "send no checksums",
        ),
        (
            "checksum = \"on\"\n",
            1,
            "checksum",
            "expected one of `off`, `offer`, `require`",
        ),
        ("[socket\n", 1, "", ""),
        ("a = 1\na = 2\n", 1, "a", ""),
    ];
    for (text, line, key, what) in cases {
        let shown = parse(text).unwrap_err().to_string();
        let place = match what.is_empty() {
            true => "test.toml:".to_owned(),
            false => format!("test.toml:{line}: {key}: "),
        };
        assert!(shown.starts_with(&place), "{shown}");
        assert!(shown.contains(what), "{shown}");
        assert!(!shown.contains('\n'), "{shown}");
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
