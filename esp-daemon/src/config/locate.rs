//! Locates keys in the text of a config file, for error messages only: if it misses a key, the
//! message lacks the line.

/// Returns the line (from 1) of the byte at `offset`, and the key there.
pub(super) fn at(text: &str, offset: usize) -> (Option<usize>, Option<String>) {
    let before = text.as_bytes().get(..offset).unwrap_or(text.as_bytes());
    let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
    let mut key = None;
    let mut table = String::new();
    for (_, entry) in entries(text).take_while(|(at, _)| *at <= line) {
        match entry {
            Entry::Table(name) => (table, key) = (name.to_owned(), None),
            Entry::Key(name) => key = Some(name),
        }
    }
    let path = match (table.is_empty(), key) {
        (true, None) => None,
        (false, None) => Some(table),
        (true, Some(key)) => Some(key.to_owned()),
        (false, Some(key)) => Some(format!("{table}.{key}")),
    };
    (Some(line), path)
}

/// Returns the line (from 1) of the key with this full name.
pub(super) fn key(text: &str, wanted: &str) -> Option<usize> {
    let mut table = String::new();
    for (line, entry) in entries(text) {
        match entry {
            Entry::Table(name) => table = format!("{name}."),
            Entry::Key(name) if wanted.strip_prefix(&table) == Some(name) => return Some(line),
            Entry::Key(_) => {}
        }
    }
    None
}

enum Entry<'a> {
    Table(&'a str),
    Key(&'a str),
}

/// Returns the lines that begin a table or a key, counted from 1.
fn entries(text: &str) -> impl Iterator<Item = (usize, Entry<'_>)> {
    text.lines().enumerate().filter_map(|(index, line)| {
        let line = line.trim();
        if let Some(rest) = line.strip_prefix('[') {
            let name = rest
                .trim_start_matches('[')
                .split(']')
                .next()
                .unwrap_or_default()
                .trim();
            // A continuation line of an array may begin with a bracket, too.
            return is_name(name).then_some((index + 1, Entry::Table(name)));
        }
        let name = line.split('=').next().unwrap_or_default().trim();
        (line.contains('=') && is_name(name)).then_some((index + 1, Entry::Key(name)))
    })
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_-.\"".contains(c))
}
