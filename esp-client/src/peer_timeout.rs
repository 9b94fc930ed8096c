//! Time that a peer may be silent before it counts as dead, from the environment.

use std::ffi::OsStr;
use std::time::Duration;

use esp_proto::EndpointConfig;

use crate::error::EspError;

/// Environment variable with the time that a peer may be silent, in seconds.
pub const PEER_TIMEOUT_VARIABLE: &str = "ESP_PEER_TIMEOUT";

/// Maximum peer timeout in seconds: a year.
const MAX_SECONDS: u64 = 365 * 24 * 3600;

/// Returns the time after which a peer that does not answer counts as dead if no daemon configures
/// it: `ESP_PEER_TIMEOUT` in seconds, else 30 s.
///
/// # Errors
/// The variable is not a number from 1 to 31536000.
pub fn peer_timeout() -> Result<Duration, EspError> {
    parse(std::env::var_os(PEER_TIMEOUT_VARIABLE).as_deref())
}

fn parse(value: Option<&OsStr>) -> Result<Duration, EspError> {
    let Some(value) = value.filter(|value| !value.is_empty()) else {
        return Ok(EndpointConfig::default().peer_timeout);
    };
    let seconds = value.to_str().and_then(|value| value.parse().ok());
    match seconds.filter(|seconds| (1..=MAX_SECONDS).contains(seconds)) {
        Some(seconds) => Ok(Duration::from_secs(seconds)),
        None => Err(EspError::BadArgument(format!(
            "{PEER_TIMEOUT_VARIABLE}={}: expected a number of seconds from 1 to {MAX_SECONDS}",
            value.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_timeout_is_a_number_of_seconds() {
        let parsed = |value: &str| parse(Some(OsStr::new(value))).map(|time| time.as_secs());
        assert_eq!(parsed("3600").unwrap(), 3600);
        assert_eq!(parsed("1").unwrap(), 1);
        assert_eq!(parsed("").unwrap(), parse(None).unwrap().as_secs());
        for bad in ["0", "-1", "1.5", "10s", "31536001", "99999999999999999999"] {
            let error = parsed(bad).unwrap_err().to_string();
            assert!(
                error.contains(&format!("ESP_PEER_TIMEOUT={bad}")),
                "{error}"
            );
        }
    }
}
