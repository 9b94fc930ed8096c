//! State of the live view, which snapshots and keys change; independent of the terminal.

use std::collections::HashMap;

use esp_client::control::{ConnectionStatus, Status};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::columns::{Column, Row};
use super::groups::{Grouping, groups};
use super::rates::{Key, Rates};
use crate::filter::{Filter, Socket};
use crate::names::Names;

/// Maximum length of a typed filter, in bytes.
const MAX_FILTER: usize = 1000;

/// Returns the name of a user.
pub(super) type UserName = fn(u32) -> Option<String>;

/// Returns the job of a process.
pub(super) type JobOf = fn(u32) -> Option<String>;

/// View on the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum View {
    /// All connections.
    #[default]
    List,
    /// One connection with its history.
    Details(Key),
    /// Keys and columns.
    Help,
}

/// A filter that is being typed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Prompt {
    pub(super) text: String,
    /// Reason why the text is not a valid filter.
    pub(super) error: Option<String>,
}

/// Order of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) by: Column,
    pub(super) reversed: bool,
}

/// State of the live view.
pub(super) struct App {
    status: Option<Status>,
    rates: Rates,
    names: Names,
    user_name: UserName,
    users: HashMap<u32, Option<String>>,
    job_of: JobOf,
    /// Jobs of the processes of the last snapshot, if jobs are shown.
    jobs: HashMap<u32, Option<String>>,
    pub(super) grouping: Grouping,
    /// Reason why there is currently no snapshot.
    gone: Option<String>,
    pub(super) view: View,
    pub(super) prompt: Option<Prompt>,
    pub(super) order: Order,
    pub(super) paused: bool,
    filter: Filter,
    filter_text: String,
    selected: Option<Key>,
    /// Name of the selected group.
    chosen: Option<String>,
    /// Position of the selected row when it was last seen.
    position: usize,
    /// First row shown.
    pub(super) offset: usize,
    /// Rows that the screen has for the list.
    pub(super) page: usize,
}

impl App {
    pub(super) fn new(
        names: Names,
        (user_name, job_of): (UserName, JobOf),
        order: Order,
        grouping: Grouping,
    ) -> App {
        App {
            status: None,
            rates: Rates::default(),
            names,
            user_name,
            users: HashMap::new(),
            job_of,
            jobs: HashMap::new(),
            grouping,
            gone: None,
            view: View::default(),
            prompt: None,
            order,
            paused: false,
            filter: Filter::default(),
            filter_text: String::new(),
            selected: None,
            chosen: None,
            position: 0,
            offset: 0,
            page: 1,
        }
    }

    /// Shows only connections that the filter accepts.
    pub(super) fn set_filter(&mut self, text: &str, filter: Filter) {
        text.trim().clone_into(&mut self.filter_text);
        self.filter = filter;
    }

    /// Handles a snapshot of this time, in seconds, or the reason why there is none.
    pub(super) fn feed(&mut self, at: f64, snapshot: Result<Status, String>) {
        let status = match snapshot {
            Ok(status) => status,
            Err(why) => {
                self.gone = Some(why);
                return;
            }
        };
        self.gone = None;
        if self.paused {
            return;
        }
        let kept = match &self.view {
            View::Details(key) => Some(key),
            View::List | View::Help => None,
        };
        self.rates.feed(at, &status, kept);
        for uid in status.connections.iter().filter_map(|c| c.owner.uid) {
            self.users
                .entry(uid)
                .or_insert_with(|| (self.user_name)(uid));
        }
        self.status = Some(status);
        self.find_jobs();
        self.follow();
    }

    /// Looks up the jobs of new processes, and forgets those of ended ones, if jobs are shown.
    fn find_jobs(&mut self) {
        if self.grouping != Grouping::Job {
            return;
        }
        let connections = self.status.iter().flat_map(|status| &status.connections);
        let mut before = std::mem::take(&mut self.jobs);
        for pid in connections.filter_map(|c| c.owner.pid) {
            let known = before.remove(&pid);
            let job = self.jobs.entry(pid);
            job.or_insert_with(|| known.unwrap_or_else(|| (self.job_of)(pid)));
        }
    }

    /// Returns the job of a connection's process, if known.
    pub(super) fn job(&self, connection: &ConnectionStatus) -> Option<&str> {
        self.jobs.get(&connection.owner.pid?)?.as_deref()
    }

    /// Returns the last snapshot.
    pub(super) fn status(&self) -> Option<&Status> {
        self.status.as_ref()
    }

    /// Returns the rates of connections and interfaces.
    pub(super) fn rates(&self) -> &Rates {
        &self.rates
    }

    /// Returns the reason why there is currently no snapshot.
    pub(super) fn gone(&self) -> Option<&str> {
        self.gone.as_deref()
    }

    /// Returns the text of the filter.
    pub(super) fn filter_text(&self) -> &str {
        &self.filter_text
    }

    /// Returns the row of a connection.
    pub(super) fn row<'a>(&'a self, connection: &'a ConnectionStatus) -> Row<'a> {
        let name = connection.peer.parse().ok();
        let name = name.and_then(|addr| self.names.of(addr));
        let user = connection.owner.uid.and_then(|uid| self.users.get(&uid));
        Row {
            connection,
            history: self.rates.history(&Key::of(connection)),
            peer: name.unwrap_or(&connection.peer),
            user: user.and_then(Option::as_deref),
        }
    }

    /// Returns the connections that the filter accepts, in order.
    pub(super) fn rows(&self) -> Vec<Row<'_>> {
        let Some(status) = &self.status else {
            return Vec::new();
        };
        let connections = status.connections.iter();
        let shown = connections.filter(|c| self.filter.accepts(&Socket::connection(status, c)));
        let mut rows: Vec<_> = shown.map(|connection| self.row(connection)).collect();
        let Order { by, reversed } = self.order;
        rows.sort_by(|left, right| {
            let order = by.compare(left, right);
            let order = if reversed { order.reverse() } else { order };
            order.then_with(|| Key::of(left.connection).cmp(&Key::of(right.connection)))
        });
        rows
    }

    /// Returns the position of the selected row.
    pub(super) fn position(&self) -> usize {
        self.position
    }

    /// Finds the selected row again after rows have changed: the connection or group, or the
    /// position if it is gone.
    fn follow(&mut self) {
        let (found, count) = if self.grouping == Grouping::Connection {
            let rows = self.rows();
            let is_selected = |row: &Row<'_>| Some(Key::of(row.connection)) == self.selected;
            (rows.iter().position(is_selected), rows.len())
        } else {
            let groups = groups(self);
            let name = self.chosen.as_ref();
            let found = groups.iter().position(|group| Some(&group.name) == name);
            (found, groups.len())
        };
        self.position = found.unwrap_or(self.position).min(count.saturating_sub(1));
    }

    /// Handles a key; returns true to end the program.
    pub(super) fn key(&mut self, key: KeyEvent) -> bool {
        if key.kind == KeyEventKind::Release {
            return false;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && key.code == KeyCode::Char('c') {
            return true;
        }
        if self.prompt.is_some() {
            self.typed(key.code, control);
            return false;
        }
        match key.code {
            KeyCode::Char('q') => return true,
            KeyCode::Esc if self.view == View::List => self.set_filter("", Filter::default()),
            KeyCode::Esc | KeyCode::Backspace => self.view = View::List,
            KeyCode::Char('?' | 'h') if self.view == View::Help => self.view = View::List,
            KeyCode::Char('?' | 'h') => self.view = View::Help,
            KeyCode::Char(' ') => self.paused = !self.paused,
            code if self.view == View::List => self.list_key(code),
            _ => {}
        }
        self.follow();
        false
    }

    fn list_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char('/') => {
                self.prompt = Some(Prompt {
                    text: self.filter_text.clone(),
                    error: None,
                });
            }
            KeyCode::Enter if self.grouping == Grouping::Connection => {
                let rows = self.rows();
                let key = rows.get(self.position).map(|row| Key::of(row.connection));
                if let Some(key) = key {
                    self.view = View::Details(key);
                }
            }
            KeyCode::Enter => self.open_group(),
            KeyCode::Tab => {
                self.grouping = self.grouping.next();
                self.find_jobs();
            }
            KeyCode::Char('r') => self.order.reversed = !self.order.reversed,
            KeyCode::Left | KeyCode::Char('<') => self.sort_by(self.grouping.columns().len() - 1),
            KeyCode::Right | KeyCode::Char('>') => self.sort_by(1),
            KeyCode::Up | KeyCode::Char('k') => self.select(self.position.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(self.position + 1),
            KeyCode::PageUp => self.select(self.position.saturating_sub(self.page)),
            KeyCode::PageDown => self.select(self.position + self.page),
            KeyCode::Home | KeyCode::Char('g') => self.select(0),
            KeyCode::End | KeyCode::Char('G') => self.select(usize::MAX),
            _ => {}
        }
    }

    /// Sorts by the column this number of places to the right; the first column follows the last
    /// one.
    fn sort_by(&mut self, places: usize) {
        let columns = self.grouping.columns();
        let now = columns.iter().position(|column| *column == self.order.by);
        let next = columns.get((now.unwrap_or(0) + places) % columns.len());
        self.order = Order {
            by: next.copied().unwrap_or(self.order.by),
            reversed: false,
        };
    }

    fn select(&mut self, position: usize) {
        if self.grouping == Grouping::Connection {
            let rows = self.rows();
            let position = position.min(rows.len().saturating_sub(1));
            let selected = rows.get(position).map(|row| Key::of(row.connection));
            self.position = position;
            self.selected = selected;
        } else {
            let groups = groups(self);
            self.position = position.min(groups.len().saturating_sub(1));
            self.chosen = groups.get(self.position).map(|group| group.name.clone());
        }
    }

    /// Shows only the connections of the selected group.
    fn open_group(&mut self) {
        let groups = groups(self);
        let group = groups.get(self.position);
        let Some(within) = group.and_then(|group| group.filter(self.grouping)) else {
            return;
        };
        let text = match self.filter_text.as_str() {
            "" => within,
            before => format!("({before}) and ({within})"),
        };
        if let Ok(filter) = Filter::parse(&text) {
            self.set_filter(&text, filter);
            self.grouping = Grouping::Connection;
        }
    }

    /// Handles a key of the filter's prompt.
    fn typed(&mut self, code: KeyCode, control: bool) {
        let Some(prompt) = &mut self.prompt else {
            return;
        };
        match code {
            KeyCode::Esc => self.prompt = None,
            KeyCode::Enter => match Filter::parse(&prompt.text) {
                Ok(filter) => {
                    let text = std::mem::take(&mut prompt.text);
                    self.prompt = None;
                    self.set_filter(&text, filter);
                    self.follow();
                }
                Err(error) => prompt.error = Some(error.why().to_owned()),
            },
            KeyCode::Backspace => {
                prompt.text.pop();
                prompt.error = None;
            }
            KeyCode::Char('u') if control => *prompt = Prompt::default(),
            KeyCode::Char(c) if !control && prompt.text.len() < MAX_FILTER => {
                prompt.text.push(c);
                prompt.error = None;
            }
            _ => {}
        }
    }
}
