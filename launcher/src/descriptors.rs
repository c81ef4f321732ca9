//! File descriptors (`ulimit -n`). Every connection is one, and what clients hold must not be what a new worker
//! needs: so connections get what is left of the limit, and never more.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use penstock_router::http::RESERVE;

/// Standard streams, pollers, signals, the listener, logs, the collector of traces, files that are read.
const OWN: u64 = 32;
/// Its pipes, its process, and the router's connections to it.
const OF_A_WORKER: u64 = 8;
/// While a worker is started, both ends of its pipes are open here.
const STARTING: u64 = 8;

/// How many connections there may be, of those that are wanted: takes what the system allows for them. Many systems
/// start programs with 1,024. The error is for the operator.
pub fn for_connections(wanted: u32, workers: u32) -> Result<u32, String> {
    let needed = OWN + OF_A_WORKER * u64::from(workers) + STARTING + RESERVE as u64;
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return Ok(wanted) };
    let limit = hard.min((needed + u64::from(wanted)).max(soft));
    let limit = match setrlimit(Resource::RLIMIT_NOFILE, limit, hard) {
        Ok(()) => limit,
        Err(_) => soft,
    };
    share(limit, needed, wanted)
}

fn share(limit: u64, needed: u64, wanted: u32) -> Result<u32, String> {
    match limit.saturating_sub(needed) {
        0 => Err(format!(
            "the system allows {limit} open files (`ulimit -n`): {needed} are needed besides those of connections"
        )),
        left => Ok(u32::try_from(left).map_or(wanted, |left| left.min(wanted))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_get_what_is_left() {
        assert_eq!(share(1 << 40, 64, 8192), Ok(8192));
        assert_eq!(share(8256, 64, 8192), Ok(8192));
        assert_eq!(share(100, 64, 8192), Ok(36));
        let error = share(64, 64, 8192).expect_err("none is left");
        assert!(error.contains("64 open files"), "{error}");
    }
}
