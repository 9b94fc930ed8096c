//! Parser of filter expressions. Its errors contain the position of the wrong word.

use std::fmt;
use std::ops::Range;

use esp_client::{MacAddr, NodeAddr};
use nix::unistd::User;

use super::{BOUND, Comparison, Expr, Host, LISTENING, Number, Side, Text};
use crate::names::Names;
use crate::suggest::did_you_mean;
use crate::units;

/// Maximum depth of parentheses and `not`.
const DEPTH: usize = 32;
/// Words that start a condition.
const WORDS: [&str; 15] = [
    "state", "sport", "dport", "src", "dst", "dev", "path", "user", "pid", "program", "rtt",
    "cwnd", "retrans", "sendq", "recvq",
];
/// States of a connection, with the daemon's names.
const CONNECTED: [&str; 10] = [
    "syn-sent",
    "syn-received",
    "established",
    "fin-wait-1",
    "fin-wait-2",
    "close-wait",
    "closing",
    "last-ack",
    "time-wait",
    "closed",
];

/// An error in an expression, and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    text: String,
    at: Range<usize>,
    why: String,
}

impl Error {
    /// Returns the error in one line.
    pub fn why(&self) -> &str {
        &self.why
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |range: Range<usize>| self.text.get(range).unwrap_or_default().chars().count();
        let (before, marked) = (width(0..self.at.start), width(self.at.clone()).max(1));
        let marks = "^".repeat(marked);
        write!(
            f,
            "filter: {}\n  {}\n  {:before$}{marks}",
            self.why, self.text, ""
        )
    }
}

impl std::error::Error for Error {}

/// Names that an expression may contain.
pub(super) trait Lookup {
    /// Returns the address of a node's name.
    fn node(&self, name: &str) -> Result<NodeAddr, String>;
    /// Returns the UID of a user's name.
    fn user(&self, name: &str) -> Option<u32>;
}

/// The names of this system.
pub(super) struct System(Names);

impl System {
    pub(super) fn new() -> System {
        System(Names::load())
    }
}

impl Lookup for System {
    fn node(&self, name: &str) -> Result<NodeAddr, String> {
        esp_client::resolve(name, None).map_err(|error| {
            let hint = did_you_mean(name, self.0.all());
            if hint.is_empty() {
                error.to_string()
            } else {
                format!("unknown node `{name}`{hint}")
            }
        })
    }

    fn user(&self, name: &str) -> Option<u32> {
        let user = User::from_name(name).ok().flatten();
        user.map(|user| user.uid.as_raw())
    }
}

/// Parses an expression; returns `None` for an empty one.
pub(super) fn parse(text: &str, lookup: &dyn Lookup) -> Result<Option<Expr>, Error> {
    let mut parser = Parser {
        text,
        tokens: tokens(text),
        next: 0,
        lookup,
    };
    if parser.tokens.is_empty() {
        return Ok(None);
    }
    let expr = parser.any(0)?;
    match parser.take() {
        None => Ok(Some(expr)),
        Some(token) => Err(parser.error(&token, "unmatched `)`: remove it, or add `(`".into())),
    }
}

/// A word or an operator, and its position.
#[derive(Clone, Copy, Debug)]
struct Token<'a> {
    text: &'a str,
    at: usize,
}

/// Splits an expression at white space and operators.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let is_operator = |c: char| "()=!<>&|".contains(c);
    let mut tokens = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        let at = text.len() - rest.len();
        let len = match ["==", "!=", "<=", ">=", "&&", "||"]
            .iter()
            .find(|operator| rest.starts_with(**operator))
        {
            Some(operator) => operator.len(),
            None if rest.starts_with(is_operator) => 1,
            None => rest
                .find(|c: char| c.is_whitespace() || is_operator(c))
                .unwrap_or(rest.len()),
        };
        let (token, after) = rest.split_at(len);
        if token.is_empty() {
            return tokens;
        }
        tokens.push(Token { text: token, at });
        rest = after;
    }
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Token<'a>>,
    next: usize,
    lookup: &'a dyn Lookup,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.tokens.get(self.next).map(|token| token.text)
    }

    fn take(&mut self) -> Option<Token<'a>> {
        let token = self.tokens.get(self.next).copied();
        self.next += usize::from(token.is_some());
        token
    }

    /// Takes the next token if it is one of these.
    fn takes(&mut self, words: &[&str]) -> bool {
        let is_one = self.peek().is_some_and(|token| words.contains(&token));
        self.next += usize::from(is_one);
        is_one
    }

    fn error(&self, token: &Token<'_>, why: String) -> Error {
        Error {
            text: self.text.to_owned(),
            at: token.at..token.at + token.text.len(),
            why,
        }
    }

    /// Returns the next token; at the end of the expression, the error `why`.
    fn expect(&mut self, why: &str) -> Result<Token<'a>, Error> {
        self.take().ok_or_else(|| Error {
            text: self.text.to_owned(),
            at: self.text.len()..self.text.len(),
            why: why.to_owned(),
        })
    }

    /// Parses parts joined by `or`.
    fn any(&mut self, depth: usize) -> Result<Expr, Error> {
        let mut parts = vec![self.all(depth)?];
        while self.takes(&["or", "|", "||"]) {
            parts.push(self.all(depth)?);
        }
        Ok(joined(parts, Expr::Any))
    }

    /// Parses parts joined by `and`, or by nothing.
    fn all(&mut self, depth: usize) -> Result<Expr, Error> {
        let mut parts = vec![self.one(depth)?];
        loop {
            let has_and = self.takes(&["and", "&", "&&"]);
            let ends = matches!(self.peek(), None | Some(")" | "or" | "|" | "||"));
            if !has_and && ends {
                return Ok(joined(parts, Expr::All));
            }
            parts.push(self.one(depth)?);
        }
    }

    /// Parses a condition, a negation or parentheses.
    fn one(&mut self, depth: usize) -> Result<Expr, Error> {
        let token = self.expect("a condition is missing at the end")?;
        if depth >= DEPTH {
            let why = format!("more than {DEPTH} levels of parentheses and `not`");
            return Err(self.error(&token, why));
        }
        match token.text {
            "not" | "!" => Ok(Expr::Not(Box::new(self.one(depth + 1)?))),
            "(" => {
                let expr = self.any(depth + 1)?;
                let close = self.expect("`)` is missing at the end")?;
                if close.text != ")" {
                    return Err(self.error(&close, "write `)` or another condition".into()));
                }
                Ok(expr)
            }
            _ => self.condition(token),
        }
    }

    fn condition(&mut self, word: Token<'a>) -> Result<Expr, Error> {
        if !WORDS.contains(&word.text) {
            let hint = did_you_mean(word.text, WORDS);
            let why = if hint.is_empty() {
                format!(
                    "`{}` does not start a condition: write one of {}",
                    word.text,
                    WORDS.join(", ")
                )
            } else {
                format!("unknown word `{}`{hint}", word.text)
            };
            return Err(self.error(&word, why));
        }
        let operator = self.tokens.get(self.next).copied();
        let comparison = self.comparison();
        let missing = format!("`{}` needs a value", word.text);
        let value = self.expect(&missing)?;
        if ["(", ")", "!", "&", "|", "&&", "||"].contains(&value.text) {
            return Err(self.error(&value, missing));
        }
        let number = self.number(word.text, value.text);
        if let Some(number) = number {
            let (number, than) = number.map_err(|why| self.error(&value, why))?;
            return Ok(Expr::Number(number, comparison, than));
        }
        let is = self
            .word(word.text, value.text)
            .map_err(|why| self.error(&value, why))?;
        match (comparison, operator) {
            (Comparison::Equal, _) => Ok(is),
            (Comparison::NotEqual, _) => Ok(Expr::Not(Box::new(is))),
            (_, operator) => {
                let why = format!("`{}` supports only = and !=", word.text);
                Err(self.error(&operator.unwrap_or(word), why))
            }
        }
    }

    /// Takes a comparison; equality if there is none.
    fn comparison(&mut self) -> Comparison {
        let comparison = match self.peek() {
            Some("=" | "==" | "eq") => Comparison::Equal,
            Some("!=" | "ne" | "neq") => Comparison::NotEqual,
            Some("<" | "lt") => Comparison::Less,
            Some("<=" | "le") => Comparison::LessOrEqual,
            Some(">" | "gt") => Comparison::Greater,
            Some(">=" | "ge") => Comparison::GreaterOrEqual,
            _ => return Comparison::Equal,
        };
        self.next += 1;
        comparison
    }

    /// Parses the value of a property that is a number; `None` for other properties.
    fn number(&self, word: &str, value: &str) -> Option<Result<(Number, f64), String>> {
        let count = |number, what: &str| {
            let parsed = value.parse::<u32>();
            let parsed = parsed.map(|n| (number, f64::from(n)));
            parsed.map_err(|_| format!("invalid {what} `{value}`: write a number"))
        };
        let bytes = |number| units::bytes(value).map(|n| (number, n as f64));
        Some(match word {
            "sport" => port(value).map(|port| (Number::LocalPort, port)),
            "dport" => port(value).map(|port| (Number::PeerPort, port)),
            "pid" => count(Number::Pid, "process id"),
            "cwnd" => count(Number::Cwnd, "number of packets"),
            "retrans" => count(Number::Retransmits, "number of packets"),
            "rtt" => units::seconds(value).map(|time| (Number::Rtt, time.as_secs_f64() * 1e6)),
            "sendq" => bytes(Number::SendQueue),
            "recvq" => bytes(Number::RecvQueue),
            _ => return None,
        })
    }

    /// Parses the value of a property that is not a number.
    fn word(&self, word: &str, value: &str) -> Result<Expr, String> {
        match word {
            "state" => state(value),
            "src" => self.node(Side::Local, value),
            "dst" => self.node(Side::Peer, value),
            "user" => {
                let uid = value.parse().ok().or_else(|| self.lookup.user(value));
                let uid = uid.ok_or_else(|| {
                    format!("unknown user `{value}`: write the name or the number of a user")
                })?;
                Ok(Expr::User(uid))
            }
            "path" if !["daemon", "lease"].contains(&value) => {
                Err(format!("unknown path `{value}`: write daemon or lease"))
            }
            "path" => Ok(Expr::Text(Text::Path, value.to_owned())),
            "program" => Ok(Expr::Text(Text::Program, value.to_owned())),
            _ => Ok(Expr::Text(Text::Interface, value.to_owned())),
        }
    }

    /// Parses `NODE` or `NODE:PORT`.
    fn node(&self, side: Side, value: &str) -> Result<Expr, String> {
        if let Some(host) = address(value) {
            return Ok(Expr::Node(side, host));
        }
        let (name, at) = match value.rsplit_once(':') {
            Some((name, digits)) => (name, Some(port(digits)?)),
            None => (value, None),
        };
        let host = match address(name) {
            Some(host) => host,
            None => match self.lookup.node(name)? {
                NodeAddr::Udp(at) => Host::Ip(at.ip()),
                addr => Host::Node(addr),
            },
        };
        let number = match side {
            Side::Local => Number::LocalPort,
            Side::Peer => Number::PeerPort,
        };
        let node = Expr::Node(side, host);
        Ok(match at {
            Some(port) => Expr::All(vec![node, Expr::Number(number, Comparison::Equal, port)]),
            None => node,
        })
    }
}

fn joined(mut parts: Vec<Expr>, join: impl FnOnce(Vec<Expr>) -> Expr) -> Expr {
    match (parts.len(), parts.pop()) {
        (1, Some(only)) => only,
        (_, last) => {
            parts.extend(last);
            join(parts)
        }
    }
}

fn state(name: &str) -> Result<Expr, String> {
    let states = CONNECTED.into_iter().chain([LISTENING, BOUND]);
    if name == "connected" {
        return Ok(Expr::State(CONNECTED.to_vec()));
    }
    if let Some(state) = states.clone().find(|state| *state == name) {
        return Ok(Expr::State(vec![state]));
    }
    let hint = did_you_mean(name, states.clone().chain(["connected"]));
    Err(if hint.is_empty() {
        let known = states.collect::<Vec<_>>().join(", ");
        format!("unknown state `{name}`: write connected, {known}")
    } else {
        format!("unknown state `{name}`{hint}")
    })
}

/// Parses a port, with or without a colon before it.
fn port(text: &str) -> Result<f64, String> {
    let digits = text.strip_prefix(':').unwrap_or(text);
    let port = digits.parse::<u16>().map(f64::from);
    port.map_err(|_| format!("invalid port `{text}`: write a number from 0 to 65535"))
}

/// Parses an address that needs no lookup.
fn address(text: &str) -> Option<Host> {
    if let Ok(mac) = text.parse::<MacAddr>() {
        return Some(Host::Node(mac.into()));
    }
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    if let Ok(ip) = bare.unwrap_or(text).parse() {
        return Some(Host::Ip(ip));
    }
    match text.parse() {
        Ok(addr @ NodeAddr::Udp(_)) => Some(Host::Node(addr)),
        _ => None,
    }
}
