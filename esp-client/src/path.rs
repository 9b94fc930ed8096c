//! [`Path`]: the setting that selects a lease or the daemon.

use crate::error::EspError;

/// Environment variable with the default [`Path`] of streams: `auto`, `lease` or `daemon`.
pub const PATH_VARIABLE: &str = "ESP_PATH";

/// Data path of a stream within its own node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Path {
    /// A lease if the node's policy allows one, else the daemon.
    #[default]
    Auto,
    /// A lease; connecting fails without one. Streams within this node, which send no frame, still
    /// use the daemon. A stream over a lease survives a restart of the daemon.
    Lease,
    /// Through the daemon.
    Daemon,
}

impl Path {
    /// Returns the value of [`PATH_VARIABLE`], or `Auto` if it is not set or empty.
    ///
    /// # Errors
    /// [`EspError::BadArgument`] for any other value. Opening a [`Client`](crate::Client) makes the
    /// same check.
    pub fn from_environment() -> Result<Path, EspError> {
        match std::env::var_os(PATH_VARIABLE) {
            Some(value) => Path::parse(&value.to_string_lossy()),
            None => Ok(Path::Auto),
        }
    }

    fn parse(value: &str) -> Result<Path, EspError> {
        match value {
            "" | "auto" => Ok(Path::Auto),
            "lease" => Ok(Path::Lease),
            "daemon" => Ok(Path::Daemon),
            _ => Err(EspError::BadArgument(format!(
                "invalid {PATH_VARIABLE}={value:?}: expected auto, lease or daemon"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_path_is_an_error_that_names_the_valid_ones() {
        assert_eq!(Path::parse("lease"), Ok(Path::Lease));
        assert_eq!(Path::parse(""), Ok(Path::Auto));
        let error = Path::parse("nonsense").map_err(|error| error.to_string());
        let text = "invalid ESP_PATH=\"nonsense\": expected auto, lease or daemon";
        assert_eq!(error, Err(text.to_owned()));
    }
}
