//! Tests that compare screens as text with the reviewed ones in `screens/`. `ESP_BLESS=1` writes
//! these again.

use std::path::Path;

use esp_client::MacAddr;
use esp_client::control::{ConnectionStatus, CounterStatus, InterfaceInfo, Owner, Status};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Modifier;

use super::app::{App, Order, View};
use super::columns::{COLUMNS, Column};
use super::groups::{Grouping, groups};
use super::{draw, picture, plain};
use crate::filter::Filter;
use crate::names::Names;

fn app() -> App {
    let order = Order {
        by: Column::Rate,
        reversed: false,
    };
    let user_name = |uid| (uid == 1000).then(|| "alice".to_owned());
    let job_of = |pid| (pid % 2 == 0).then(|| format!("slurm {}", pid / 10));
    let all = Grouping::Connection;
    App::new(Names::default(), (user_name, job_of), order, all)
}

/// Returns a connection, `seconds` after its start; the greater its number, the busier it is.
fn connection(number: u64, seconds: u64) -> ConnectionStatus {
    let peer = MacAddr([2, 0xe5, 0, 0, 0, (number % 200) as u8]);
    ConnectionStatus {
        interface: "eth0".into(),
        state: "established".into(),
        local_port: 40_000 + (number % 20_000) as u16,
        peer: peer.to_string(),
        peer_port: 5000,
        path: "daemon".into(),
        owner: Owner {
            uid: Some(1000 + (number % 3) as u32),
            pid: Some(4711),
            program: Some("solver\u{1b}[2J".into()),
        },
        srtt_us: Some(20.0 + 33.3 * number as f64),
        cwnd: Some(10),
        send_queue: Some(1000 * number),
        recv_queue: Some(0),
        bytes_acked: Some(12_500 * number * number * seconds * seconds),
        bytes_received: Some(1000 * seconds),
        retransmits: Some(number / 3 * seconds),
        ..ConnectionStatus::default()
    }
}

/// Returns a connection over a lease, of which the daemon knows only the ends.
fn lease() -> ConnectionStatus {
    ConnectionStatus {
        interface: "eth0".into(),
        state: "established".into(),
        local_port: 50_000,
        peer: "02:e5:00:00:00:c9".into(),
        peer_port: 6000,
        path: "lease".into(),
        ..ConnectionStatus::default()
    }
}

fn status(connections: Vec<ConnectionStatus>, seconds: u64) -> Status {
    let counter = |interface: &str, name: &str, value| CounterStatus {
        interface: interface.into(),
        name: name.into(),
        help: String::new(),
        value,
    };
    let interface = |name: &str, last, up| InterfaceInfo {
        name: name.into(),
        addr: MacAddr([2, 0xe5, 0, 0, 0, last]).into(),
        mtu: 1500,
        up,
    };
    Status {
        daemon: "0.1.0".into(),
        uptime_s: 3720.0 + seconds as f64,
        interfaces: vec![interface("eth0", 1, true), interface("eth1", 2, false)],
        connections,
        counters: vec![
            counter("eth0", "tx_data_bytes", 12_500_000 * seconds),
            counter("eth0", "rx_data_bytes", 4_000 * seconds),
            counter("eth0", "tx_frames", 8_900 * seconds),
            counter("eth0", "rx_frames", 4_500 * seconds),
            counter("eth0", "tx_retransmits", 3 * seconds),
            counter("eth0", "rx_drop_runt", 2 * seconds),
            counter("eth0", "socket_rx_dropped", 5 * seconds),
        ],
        ..Status::default()
    }
}

/// Returns an application that was fed with several seconds of `count` connections and one over a
/// lease.
fn fed(count: u64) -> App {
    let mut app = app();
    for seconds in 0..10 {
        let mut connections: Vec<_> = (1..=count).map(|n| connection(n, seconds)).collect();
        connections.push(lease());
        app.feed(seconds as f64, Ok(status(connections, seconds)));
    }
    app
}

fn key(app: &mut App, code: KeyCode) -> bool {
    app.key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn typed(app: &mut App, text: &str) {
    for c in text.chars() {
        assert!(!key(app, KeyCode::Char(c)));
    }
}

fn screen(app: &mut App, width: u16, height: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    let drawn = terminal.draw(|frame| draw::draw(app, frame));
    drawn.expect("the screen is drawn");
    terminal.backend().buffer().clone()
}

/// Returns the lines of a screen, without spaces at their ends.
fn text(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width).max(1);
    let lines = buffer.content.chunks(width);
    let line = |cells: &[ratatui::buffer::Cell]| -> String {
        cells.iter().map(ratatui::buffer::Cell::symbol).collect()
    };
    lines
        .map(|cells| line(cells).trim_end().to_owned() + "\n")
        .collect()
}

/// Compares a screen with the reviewed one.
#[track_caller]
fn shows(app: &mut App, width: u16, height: u16, name: &str) {
    let found = text(&screen(app, width, height));
    is_reviewed(&found, &format!("src/esptop/screens/{name}.txt"));
}

/// Compares a text with that of a file of this crate.
#[track_caller]
fn is_reviewed(found: &str, file: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::env::var_os("ESP_BLESS").is_some() {
        std::fs::write(&file, found).expect("write the screen");
    }
    let wanted = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(
        found,
        wanted,
        "{} differs; after an intended change run this test with ESP_BLESS=1\n{found}",
        file.display()
    );
}

#[test]
fn the_list_fits_common_terminals() {
    shows(&mut fed(5), 80, 24, "list-80x24");
    shows(&mut fed(5), 120, 40, "list-120x40");
    shows(&mut fed(5), 40, 10, "list-40x10");
    shows(&mut fed(5), 25, 4, "list-25x4");
}

/// The pictures of docs/tools.md are the screens that the tests above compare as text.
#[test]
fn the_documentation_has_pictures_of_these_screens() {
    let mut app = fed(5);
    let list = picture::svg(&screen(&mut app, 80, 24));
    is_reviewed(&list, "../docs/esptop/list.svg");
    key(&mut app, KeyCode::Enter);
    let details = picture::svg(&screen(&mut app, 80, 24));
    is_reviewed(&details, "../docs/esptop/details.svg");
}

#[test]
fn nothing_to_show_is_said() {
    shows(&mut app(), 80, 24, "no-snapshot-80x24");
    let mut empty = app();
    empty.feed(0.0, Ok(status(Vec::new(), 0)));
    shows(&mut empty, 80, 24, "no-connections-80x24");
}

#[test]
fn every_size_is_drawn() {
    for (width, height) in [
        (0, 0),
        (1, 1),
        (29, 5),
        (30, 5),
        (31, 6),
        (300, 3),
        (500, 200),
    ] {
        let mut app = fed(50);
        for code in [
            KeyCode::Char('/'),
            KeyCode::Esc,
            KeyCode::Enter,
            KeyCode::Char('?'),
        ] {
            screen(&mut app, width, height);
            key(&mut app, code);
        }
        screen(&mut app, width, height);
    }
}

#[test]
fn long_lists_scroll_with_the_selection() {
    let mut app = fed(300);
    shows(&mut app, 80, 24, "many-80x24");
    key(&mut app, KeyCode::PageDown);
    key(&mut app, KeyCode::PageDown);
    shows(&mut app, 80, 24, "many-scrolled-80x24");
    key(&mut app, KeyCode::End);
    let end = text(&screen(&mut app, 80, 24));
    assert!(end.contains("02:e5:00:00:00:c9:6000"), "{end}");
    key(&mut app, KeyCode::Home);
    let start = text(&screen(&mut app, 80, 24));
    assert!(start.contains("02:e5:00:00:00:64:5000"), "{start}");
    key(&mut app, KeyCode::Up);
    assert_eq!(text(&screen(&mut app, 80, 24)), start);
}

#[test]
fn the_selection_follows_its_connection() {
    let mut app = fed(5);
    for _ in 0..2 {
        key(&mut app, KeyCode::Down);
    }
    let selected = |app: &mut App| {
        let buffer = screen(app, 80, 24);
        let lines = text(&buffer);
        let is_reversed = |y: usize| {
            let at = y * usize::from(buffer.area.width);
            buffer.content[at].modifier.contains(Modifier::REVERSED)
        };
        let line = lines.lines().enumerate().find(|(y, _)| is_reversed(*y));
        line.map(|(_, line)| line.chars().take(22).collect::<String>())
    };
    let third = Some("02:e5:00:00:00:03:5000".to_owned());
    assert_eq!(selected(&mut app), third);
    key(&mut app, KeyCode::Char('r'));
    assert_eq!(selected(&mut app), third);
    // The connection ends: the row at its position is selected.
    let mut rest: Vec<_> = [1, 2, 4, 5].map(|n| connection(n, 10)).to_vec();
    rest.push(lease());
    app.feed(10.0, Ok(status(rest, 10)));
    assert_eq!(
        selected(&mut app).as_deref(),
        Some("02:e5:00:00:00:04:5000")
    );
    app.feed(11.0, Ok(status(Vec::new(), 11)));
    assert_eq!(selected(&mut app), None);
}

#[test]
fn keys_change_the_order() {
    let mut app = fed(5);
    let order = |by, reversed| Order { by, reversed };
    key(&mut app, KeyCode::Right);
    assert_eq!(app.order, order(Column::Retrans, false));
    key(&mut app, KeyCode::Char('r'));
    assert_eq!(app.order, order(Column::Retrans, true));
    key(&mut app, KeyCode::Left);
    assert_eq!(app.order, order(Column::Rate, false));
    for _ in 0..COLUMNS.len() {
        key(&mut app, KeyCode::Char('>'));
        let rows = app.rows();
        let in_order = rows
            .windows(2)
            .all(|pair| app.order.by.compare(&pair[0], &pair[1]).is_le());
        assert!(in_order, "{:?}", app.order);
    }
    assert_eq!(app.order, order(Column::Rate, false));
}

#[test]
fn filters_are_typed_and_cleared() {
    let mut app = fed(5);
    key(&mut app, KeyCode::Char('/'));
    typed(&mut app, "rtt > 100us q");
    shows(&mut app, 80, 24, "prompt-80x24");
    key(&mut app, KeyCode::Enter);
    shows(&mut app, 80, 24, "prompt-error-80x24");
    key(&mut app, KeyCode::Backspace);
    key(&mut app, KeyCode::Enter);
    assert_eq!((app.rows().len(), app.filter_text()), (3, "rtt > 100us"));
    shows(&mut app, 80, 24, "filtered-80x24");
    key(&mut app, KeyCode::Esc);
    assert_eq!((app.rows().len(), app.filter_text()), (6, ""));
    // Escape leaves the prompt without a change; the length of typed text is limited.
    key(&mut app, KeyCode::Char('/'));
    typed(&mut app, &"x".repeat(5000));
    assert!(
        app.prompt
            .as_ref()
            .is_some_and(|prompt| prompt.text.len() <= 1000)
    );
    key(&mut app, KeyCode::Esc);
    assert_eq!((app.rows().len(), app.prompt.is_some()), (6, false));
    app.set_filter("dport 1", Filter::parse("dport 1").expect("a filter"));
    let none = text(&screen(&mut app, 80, 24));
    assert!(none.contains("no connection matches the filter"), "{none}");
}

#[test]
fn details_have_values_and_history() {
    let mut app = fed(5);
    key(&mut app, KeyCode::Enter);
    shows(&mut app, 80, 24, "details-80x24");
    shows(&mut app, 120, 40, "details-120x40");
    shows(&mut app, 40, 10, "details-40x10");
    app.feed(10.0, Ok(status(Vec::new(), 10)));
    let ended = text(&screen(&mut app, 80, 24));
    assert!(
        ended.contains("ENDED") && ended.contains("sent b/s"),
        "{ended}"
    );
    key(&mut app, KeyCode::Esc);
    assert_eq!(app.view, View::List);
    // Without a connection there are no details.
    key(&mut app, KeyCode::Enter);
    assert_eq!(app.view, View::List);
}

#[test]
fn details_of_a_lease_have_dashes() {
    let mut app = fed(0);
    key(&mut app, KeyCode::Enter);
    shows(&mut app, 80, 24, "details-lease-80x24");
}

#[test]
fn the_help_fits_a_terminal() {
    let mut app = fed(5);
    key(&mut app, KeyCode::Char('?'));
    shows(&mut app, 80, 24, "help-80x24");
    key(&mut app, KeyCode::Char('?'));
    assert_eq!(app.view, View::List);
}

#[test]
fn a_daemon_that_goes_away_is_reported_until_it_is_back() {
    let mut app = fed(5);
    app.feed(
        10.0,
        Err("no such socket /run/esp/esp.sock: is esp-daemon running?".into()),
    );
    shows(&mut app, 80, 24, "gone-80x24");
    let mut new = status(vec![connection(1, 0)], 0);
    new.uptime_s = 0.5;
    app.feed(11.0, Ok(new));
    let back = text(&screen(&mut app, 80, 24));
    assert!(
        back.starts_with("esp-daemon 0.1.0 up 0 s: 1 connection, 0 listeners,"),
        "{back}"
    );
    // Rates of the new daemon need a second snapshot.
    assert!(
        app.rows()[0]
            .history
            .is_some_and(|history| history.latest().is_none())
    );
}

#[test]
fn a_paused_screen_keeps_its_snapshot() {
    let mut app = fed(5);
    key(&mut app, KeyCode::Char(' '));
    app.feed(10.0, Ok(status(Vec::new(), 10)));
    let paused = text(&screen(&mut app, 80, 24));
    assert!(
        paused.contains("PAUSED") && app.rows().len() == 6,
        "{paused}"
    );
    key(&mut app, KeyCode::Char(' '));
    app.feed(11.0, Ok(status(Vec::new(), 11)));
    assert!(app.rows().is_empty());
}

#[test]
fn keys_end_the_program_except_in_the_prompt() {
    let mut app = fed(1);
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert!(key(&mut app, KeyCode::Char('q')));
    key(&mut app, KeyCode::Char('/'));
    assert!(!key(&mut app, KeyCode::Char('q')));
    assert!(app.key(control_c));
}

/// Returns an application with connections of several processes.
fn fed_with_jobs() -> App {
    let mut app = app();
    for seconds in 0..10 {
        let mut connections: Vec<_> = (1..=9).map(|n| connection(n, seconds)).collect();
        for (c, pid) in connections
            .iter_mut()
            .zip([40, 42, 41, 40, 42, 50, 52, 41, 40])
        {
            c.owner.pid = Some(pid);
        }
        connections.push(lease());
        app.feed(seconds as f64, Ok(status(connections, seconds)));
    }
    app
}

#[test]
fn connections_are_summed_up_by_user_and_by_job() {
    let mut app = fed_with_jobs();
    key(&mut app, KeyCode::Tab);
    shows(&mut app, 80, 24, "users-80x24");
    key(&mut app, KeyCode::Tab);
    shows(&mut app, 80, 24, "jobs-80x24");
    shows(&mut app, 40, 10, "jobs-40x10");
    let text = plain::text(&app);
    let lines: Vec<Vec<_>> = text
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    assert_eq!(lines[0][..3], ["Job", "Conns", "Tx"], "{text}");
    assert_eq!(lines[1][..3], ["slurm", "4", "5"], "{text}");
    key(&mut app, KeyCode::Tab);
    assert_eq!(app.grouping, Grouping::Connection);
}

#[test]
fn a_group_opens_to_its_connections() {
    let mut app = fed_with_jobs();
    app.set_filter("dport 5000", Filter::parse("dport 5000").expect("a filter"));
    for code in [KeyCode::Tab, KeyCode::Tab, KeyCode::End] {
        key(&mut app, code);
    }
    let last = text(&screen(&mut app, 80, 24));
    assert!(last.contains("slurm 5"), "{last}");
    key(&mut app, KeyCode::Enter);
    assert_eq!(app.grouping, Grouping::Connection);
    assert_eq!(app.filter_text(), "(dport 5000) and (pid 41)");
    assert_eq!(app.rows().len(), 2);
    // A group of connections whose owner is unknown cannot be opened.
    app.set_filter("path lease", Filter::parse("path lease").expect("a filter"));
    for code in [KeyCode::Tab, KeyCode::Enter] {
        key(&mut app, code);
    }
    assert_eq!(app.grouping, Grouping::User);
}

#[test]
fn groups_are_selected_and_sorted() {
    let mut app = fed_with_jobs();
    key(&mut app, KeyCode::Tab);
    let names = |app: &App| -> Vec<String> {
        let groups = groups(app).into_iter();
        groups.map(|group| group.name).collect()
    };
    let by_rate = names(&app);
    key(&mut app, KeyCode::Down);
    let chosen = by_rate[1].clone();
    key(&mut app, KeyCode::Char('r'));
    assert_eq!(names(&app)[app.position()], chosen);
    for _ in 0..Grouping::User.columns().len() {
        key(&mut app, KeyCode::Right);
        assert_eq!(names(&app)[app.position()], chosen, "{:?}", app.order);
    }
    assert_eq!(names(&app), by_rate);
    app.order.by = Column::Peer;
    assert_eq!(names(&app), ["-", "1001", "1002", "alice"]);
}

#[test]
fn a_snapshot_as_plain_text() {
    let text = plain::text(&fed(2));
    let lines: Vec<_> = text.lines().collect();
    let first: Vec<_> = lines[1].split_whitespace().collect();
    assert_eq!(
        first,
        [
            "02:e5:00:00:00:02:5000",
            "eth0:40002",
            "established",
            "daemon",
            "1002",
            "solver?[2J[4711]",
            "6.80M",
            "8.00k",
            "0",
            "86.6",
            "10",
            "2.00k",
            "0"
        ]
    );
    assert_eq!(lines.len(), 4, "{text}");
    assert!(lines[3].ends_with('-'), "{text}");
    assert_eq!(plain::text(&app()), "no connections");
}
