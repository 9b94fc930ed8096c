//! esptop in a terminal, with daemons: the contents of the screen, and the terminal after its end.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use esp_tests::process::{Daemon, bare_lab, output, programs, signal};
use esp_tests::{lab_or_skip, pair, wait_until};
use lab::{Lab, LabOptions};
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use vt100::Parser;

/// Columns and lines at the start.
const SIZE: (u16, u16) = (80, 24);

/// esptop in a pseudo-terminal.
struct Terminal {
    program: Child,
    keyboard: File,
    screen: Arc<Mutex<Parser>>,
    /// Keeps the terminal after esptop's end.
    line: File,
}

impl Terminal {
    /// Starts esptop in node 0.
    fn start(lab: &Lab) -> Terminal {
        Terminal::start_with(lab, false)
    }

    /// Starts esptop in node 0, with or without `NO_COLOR`.
    fn start_with(lab: &Lab, no_color: bool) -> Terminal {
        let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&keyboard).expect("the terminal's rights");
        unlockpt(&keyboard).expect("the terminal is unlocked");
        let name = ptsname(&keyboard, Vec::new()).expect("the terminal's name");
        let open = || {
            let path = name.to_str().expect("a path");
            let mut options = File::options();
            options.read(true).write(true).open(path).expect("the line")
        };
        let line = open();
        tcsetwinsize(&line, winsize(SIZE)).expect("the size");
        // With a session of its own, so that this is its controlling terminal.
        let mut command = lab.command(0, "setsid").expect("a command of the node");
        command
            .arg("--ctty")
            .arg(programs().join("esptop"))
            .args(["--interval", "0.1"])
            .env("TERM", "xterm-256color")
            .env_remove("NO_COLOR")
            .stdin(open())
            .stdout(open())
            .stderr(open());
        if no_color {
            command.env("NO_COLOR", "1");
        }
        let program = command.spawn().expect("start esptop");
        let keyboard = File::from(keyboard);
        let [lines, columns] = extent(SIZE);
        let screen = Arc::new(Mutex::new(Parser::new(lines, columns, 0)));
        let mut pipe = keyboard.try_clone().expect("another descriptor");
        let shown = Arc::clone(&screen);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            // An error: the line is closed.
            while let Ok(n @ 1..) = pipe.read(&mut bytes) {
                let mut screen = shown.lock().unwrap_or_else(PoisonError::into_inner);
                screen.process(&bytes[..n]);
            }
        });
        Terminal {
            program,
            keyboard,
            screen,
            line,
        }
    }

    fn with_parser<T>(&self, at: impl FnOnce(&Parser) -> T) -> T {
        at(&self.screen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn text(&self) -> String {
        self.with_parser(|parser| parser.screen().contents())
    }

    #[track_caller]
    fn shows(&self, part: &str) {
        wait_until(&format!("the screen shows {part:?}"), || {
            self.text().contains(part)
        });
    }

    /// Returns the number of cells that have a colour.
    fn coloured(&self) -> usize {
        let (columns, lines) = SIZE;
        let cells = (0..lines).flat_map(|line| (0..columns).map(move |column| (line, column)));
        self.with_parser(|parser| {
            let screen = parser.screen();
            let cells = cells.filter_map(|(line, column)| screen.cell(line, column));
            let plain = vt100::Color::Default;
            cells
                .filter(|cell| cell.fgcolor() != plain || cell.bgcolor() != plain)
                .count()
        })
    }

    fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("type");
    }

    fn resize(&self, size: (u16, u16)) {
        let [lines, columns] = extent(size);
        let mut screen = self.screen.lock().unwrap_or_else(PoisonError::into_inner);
        screen.screen_mut().set_size(lines, columns);
        tcsetwinsize(&self.line, winsize(size)).expect("the size");
    }

    fn is_raw(&self) -> bool {
        let modes = tcgetattr(&self.line).expect("the modes").local_modes;
        !modes.contains(LocalModes::ICANON | LocalModes::ECHO)
    }

    /// Waits until esptop has ended and has left the terminal as it found it.
    #[track_caller]
    fn ends(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("esptop ends", || {
            status = self.program.try_wait().expect("its status");
            status.is_some()
        });
        wait_until("the screen is restored", || {
            self.with_parser(|parser| {
                !parser.screen().alternate_screen() && !parser.screen().hide_cursor()
            })
        });
        assert!(!self.is_raw(), "the terminal is in raw mode");
        status.expect("just seen")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// Returns lines and columns.
fn extent((columns, lines): (u16, u16)) -> [NonZero<u16>; 2] {
    [lines, columns].map(|n| NonZero::new(n).expect("not zero"))
}

fn winsize((columns, lines): (u16, u16)) -> Winsize {
    Winsize {
        ws_row: lines,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

#[test]
fn the_screen_follows_keys_sizes_and_the_daemon() {
    let Some(lab) = bare_lab("the_screen_follows", 2) else {
        return;
    };
    let mut daemon = Daemon::start(&lab, 0, "");
    let _other = Daemon::start(&lab, 1, "");
    let streams = pair(&lab, 0, 1, 7000);
    let mut terminal = Terminal::start(&lab);
    terminal.shows("node1:7000");
    terminal.shows("eth0 up 1500");
    terminal.shows("/ filter");
    assert!(terminal.with_parser(|parser| parser.screen().alternate_screen()));
    assert!(terminal.is_raw());

    terminal.types("/dport 1\r");
    terminal.shows("no connection matches the filter");
    terminal.types("\x1b");
    terminal.shows("node1:7000");
    terminal.types("\r");
    terminal.shows("shortest RTT");
    terminal.types("?");
    terminal.shows("select a connection");
    terminal.types("?");
    terminal.shows("Rate▼");

    terminal.resize((120, 30));
    terminal.shows("Send-Q");
    for size in [(20, 5), (20, 4)] {
        terminal.resize(size);
        terminal.shows("esptop needs");
    }
    terminal.resize((1, 1));
    terminal.resize((60, 10));
    terminal.shows("node1:7000");
    terminal.resize(SIZE);
    terminal.shows("node1:7000");

    daemon.kill();
    terminal.shows("trying again");
    drop(streams);
    let _daemon = Daemon::start(&lab, 0, "");
    terminal.shows("no connections");
    assert!(!terminal.text().contains("trying again"));

    terminal.types("q");
    assert_eq!(terminal.ends().code(), Some(0));
}

#[test]
fn keys_and_signals_leave_the_terminal_as_it_was() {
    let Some(lab) = lab_or_skip("keys_and_signals_leave", &LabOptions::new(1)) else {
        return;
    };
    let ended_by = |end: &dyn Fn(&mut Terminal)| {
        let mut terminal = Terminal::start(&lab);
        terminal.shows("no connections");
        end(&mut terminal);
        assert_eq!(terminal.ends().code(), Some(0));
    };
    ended_by(&|terminal| terminal.types("\x03"));
    for number in [Signal::TERM, Signal::INT] {
        ended_by(&|terminal| {
            signal(
                i32::try_from(terminal.program.id()).expect("a process id"),
                number,
            );
        });
    }
}

#[test]
fn no_color_means_no_colour() {
    let Some(lab) = lab_or_skip("no_color_means", &LabOptions::new(2)) else {
        return;
    };
    let _streams = pair(&lab, 0, 1, 7000);
    for (no_color, coloured) in [(false, true), (true, false)] {
        let mut terminal = Terminal::start_with(&lab, no_color);
        terminal.shows("node1:7000");
        // An error is red.
        terminal.types("/dport x\r");
        terminal.shows("invalid port");
        assert_eq!(terminal.coloured() > 0, coloured, "NO_COLOR: {no_color}");
        terminal.types("\x03");
        assert_eq!(terminal.ends().code(), Some(0));
    }
}

#[test]
fn without_a_terminal_one_snapshot_is_printed() {
    let Some(lab) = lab_or_skip("without_a_terminal", &LabOptions::new(2)) else {
        return;
    };
    let _streams = pair(&lab, 0, 1, 7000);
    let run = |args: &[&str]| {
        let mut command = lab
            .command(0, programs().join("esptop"))
            .expect("a command of the node");
        output(command.args(["-i", "0.05"]).args(args))
    };
    let shown = run(&[]);
    assert_eq!((shown.code, shown.err.as_str()), (Some(0), ""), "{shown:?}");
    let lines: Vec<_> = shown.out.lines().collect();
    assert_eq!(lines.len(), 2, "{shown:?}");
    assert!(
        lines[0].starts_with("Peer") && lines[1].starts_with("node1:7000"),
        "{shown:?}"
    );
    assert!(!shown.out.contains('\x1b'), "{shown:?}");
    let none = run(&["--once", "dport", "1"]);
    assert_eq!(none.out, "no connection matches the filter\n");
    let wrong = run(&["dport", "x"]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
}
