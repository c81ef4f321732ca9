//! The hosts that this server answers for (`--allowed-hosts`).

use std::str::FromStr;

use axum::http::uri::Authority;

/// A name that this server answers for: `example.com`, or `*.example.com` for all below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedHost {
    name: String,
    is_suffix: bool,
}

impl FromStr for AllowedHost {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, is_suffix) = match text.strip_prefix("*.") {
            Some(name) => (name, true),
            None => (text, false),
        };
        match name.parse::<Authority>() {
            Ok(authority) if authority.host() == name && !name.contains('*') => {
                Ok(Self { name: name.to_ascii_lowercase(), is_suffix })
            }
            _ => Err("must be a host's name without a port, an address, or such as *.example.com"),
        }
    }
}

impl AllowedHost {
    pub fn is(&self, host: &str) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        match self.is_suffix {
            false => host == self.name,
            true => host.strip_suffix(&self.name).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.')),
        }
    }
}
