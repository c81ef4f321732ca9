//! Who may ask: API keys (`--api-key`, `--api-key-file`). A layer around the whole router, so that a new route is
//! guarded unless the table of routes says that it is open.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, Response, header};
use axum::middleware::Next;
use penstock_core::scheduler::Priority;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use crate::config::{ApiKey, RouterArgs};
use crate::http::error::{ApiError, Cause, Family};
use crate::http::{routes, unplaced};
use crate::limits::{FlagError, PRIORITIES};

/// The API keys of this server, and what is open without one.
pub struct Auth {
    keys: Keys,
    args: RouterArgs,
}

impl Auth {
    pub fn of(args: &RouterArgs) -> Result<Self, FlagError> {
        if args.guard_metrics && !args.is_guarded() {
            return Err(FlagError("--guard-metrics needs --api-key or --api-key-file".into()));
        }
        Ok(Self { keys: Keys::read(args)?, args: args.clone() })
    }
}

/// The files of secrets that users other than the operator may read, each with its flag, as ssh looks at its keys.
pub fn readable_by_others(args: &RouterArgs) -> Vec<(&'static str, &Path)> {
    let files = [("--api-key-file", &args.api_key_file), ("--tls-key", &args.tls_key)];
    let named = files.into_iter().filter_map(|(flag, path)| Some((flag, path.as_deref()?)));
    let is_open = |path: &Path| std::fs::metadata(path).is_ok_and(|file| file.mode() & 0o004 != 0);
    named.filter(|(_, path)| is_open(path)).collect()
}

/// The keys of this server; none when it is open to all.
pub struct Keys(Vec<Key>);

struct Key {
    /// All of one length, so that a comparison tells nothing of a key's.
    digest: [u8; 32],
    /// What it is called where it must not be shown.
    name: KeyName,
    priority: Option<Priority>,
}

/// Which key a request came with, in metrics and in the log. `flag-2` is the second `--api-key`, `file-1` the
/// first of the file, unless its line gives it a name; `none` where no key is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyName(pub Arc<str>);

impl KeyName {
    /// The name on a line `NAME: KEY`.
    fn parse(name: &str) -> Result<Self, String> {
        let fits = (1..=LONGEST_NAME).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        if fits {
            Ok(Self(name.into()))
        } else {
            Err(format!("a key's name must be 1 to {LONGEST_NAME} letters, digits, `-`, `_` or `.`"))
        }
    }
}

impl Default for KeyName {
    fn default() -> Self {
        Self("none".into())
    }
}

const LONGEST_NAME: usize = 64;

/// What a line of the file says before a key: `NAME`, `priority=N`, or both.
fn parse_label(label: &str) -> Result<(Option<KeyName>, Option<Priority>), String> {
    let (name, priority) = match label.rsplit_once(' ').unwrap_or(("", label)) {
        (name, last) if last.starts_with("priority=") => (name.trim_end(), last.strip_prefix("priority=")),
        _ => (label, None),
    };
    let parse = |text: &str| {
        let number = text.parse().ok().filter(|number| PRIORITIES.contains(number));
        let (least, most) = (PRIORITIES.start(), PRIORITIES.end());
        number
            .map(Priority)
            .ok_or_else(|| format!("a key's priority must be a whole number from {least} to {most}"))
    };
    let priority = priority.map(parse).transpose()?;
    let name = if name.is_empty() && priority.is_some() { None } else { Some(KeyName::parse(name)?) };
    Ok((name, priority))
}

impl Keys {
    pub fn read(args: &RouterArgs) -> Result<Self, FlagError> {
        let numbered = |kind: &str, index: usize| KeyName(format!("{kind}-{}", index + 1).into());
        let of_flags = args.api_key.iter().enumerate();
        let of_flag =
            |(index, key)| Key { digest: digest(key), name: numbered("flag", index), priority: None };
        let mut keys: Vec<_> = of_flags.map(of_flag).collect();
        if let Some(path) = &args.api_key_file {
            let wrong = |why: &str| FlagError(format!("--api-key-file {}: {why}", path.display()));
            let text = std::fs::read_to_string(path).map_err(|error| wrong(&error.to_string()))?;
            let before = keys.len();
            for (number, line) in text.lines().map(str::trim).enumerate() {
                if line.is_empty() || line.starts_with('#') {
                    continue;
                }
                let at = |why: &str| wrong(&format!("line {}: {why}", number + 1));
                let (label, key) =
                    line.split_once(": ").map_or((None, line), |(label, key)| (Some(label), key));
                let label = label.map(parse_label).transpose().map_err(|why| at(&why))?;
                let (name, priority) = label.unwrap_or_default();
                let name = name.unwrap_or_else(|| numbered("file", keys.len() - before));
                if keys.iter().any(|other| other.name == name) {
                    return Err(at(&format!("another key is called {}", name.0)));
                }
                keys.push(Key { digest: digest(&key.trim_start().parse().map_err(at)?), name, priority });
            }
            if keys.len() == before {
                return Err(wrong("it holds no key"));
            }
        }
        Ok(Self(keys))
    }

    /// Compares with every key, each in constant time.
    fn admit(&self, headers: &HeaderMap) -> Admission {
        if self.0.is_empty() {
            return Admission::Open;
        }
        let Some(sent) = key(headers) else { return Admission::Refused };
        let sent: [u8; 32] = Sha256::digest(sent).into();
        let mut found = (Choice::from(0), 0);
        for (index, key) in (0u32..).zip(&self.0) {
            let equal = key.digest.ct_eq(&sent);
            found = (found.0 | equal, u32::conditional_select(&found.1, &index, equal));
        }
        if found.0.into() { Admission::With(KeyIndex(found.1)) } else { Admission::Refused }
    }
}

impl Keys {
    fn name(&self, KeyIndex(index): KeyIndex) -> KeyName {
        self.0.get(index as usize).map_or_else(KeyName::default, |key| key.name.clone())
    }

    fn facts(&self, KeyIndex(index): KeyIndex) -> KeyFacts {
        let key = self.0.get(index as usize);
        KeyFacts { priority: key.and_then(|key| key.priority), digest: key.map(|key| key.digest) }
    }
}

/// The index of a key among the server's: who asks, as far as anything outside of this file may know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyIndex(pub u32);

/// What follows from a request's key.
#[derive(Clone, Copy, Default)]
pub struct KeyFacts {
    /// What its line says of its requests' priority.
    pub priority: Option<Priority>,
    /// SHA-256 of it.
    pub digest: Option<[u8; 32]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    /// No key is asked for.
    Open,
    With(KeyIndex),
    Refused,
}

fn digest(key: &ApiKey) -> [u8; 32] {
    Sha256::digest(key.expose()).into()
}

/// Anthropic's header of a key.
pub const X_API_KEY: &str = "x-api-key";

/// The key of the one `Authorization: Bearer KEY`, or of the one `x-api-key` where there is none, as Anthropic's clients
/// send it.
fn key(headers: &HeaderMap) -> Option<&[u8]> {
    let one = |name: &str| {
        let mut values = headers.get_all(name).iter();
        values.next().filter(|_| values.next().is_none())
    };
    if !headers.contains_key(header::AUTHORIZATION) {
        return Some(one(X_API_KEY)?.as_bytes().trim_ascii());
    }
    let value = one(header::AUTHORIZATION.as_str())?;
    let (scheme, key) = value.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| key.trim_ascii())
}

/// Lets a request pass that needs no key or has one, and notes which. Others are answered here.
pub async fn require_key(State(auth): State<Arc<Auth>>, mut request: Request, next: Next) -> Response<Body> {
    let Auth { keys, args } = &*auth;
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    match keys.admit(request.headers()) {
        Admission::Open => {}
        Admission::With(key) => {
            if let Some(unplaced) = unplaced::of(request.extensions())
                && let Err(error) = unplaced.belongs_to(key)
            {
                return error.response(Family::of(request.uri().path()));
            }
            request.extensions_mut().insert(key);
            request.extensions_mut().insert(keys.name(key));
            request.extensions_mut().insert(keys.facts(key));
        }
        Admission::Refused if reads && routes::is_open(args, request.uri().path()) => {}
        Admission::Refused => {
            let family = Family::of(request.uri().path());
            return refusal(request.headers()).response(family);
        }
    }
    next.run(request).await
}

fn refusal(headers: &HeaderMap) -> ApiError {
    let is_sent = headers.contains_key(header::AUTHORIZATION) || headers.contains_key(X_API_KEY);
    // The first three words are OpenAI's: LiteLLM looks for them.
    let text = match key(headers) {
        _ if !is_sent => "an API key is required: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`",
        None => {
            "Incorrect API key provided: it is sent once, as `Authorization: Bearer KEY` or `x-api-key: KEY`"
        }
        Some(_) => "Incorrect API key provided: it is not valid here",
    };
    ApiError::new(Cause::Unauthorized, text)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn keys(keys: &[&str]) -> Keys {
        let named = |(index, key): (usize, &&str)| {
            let name = KeyName(format!("flag-{}", index + 1).into());
            Key { digest: digest(&key.parse().expect("a key")), name, priority: None }
        };
        Keys(keys.iter().enumerate().map(named).collect())
    }

    fn sent(values: &[&'static str]) -> HeaderMap {
        values.iter().map(|value| (header::AUTHORIZATION, HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn each_of_the_keys_opens_and_nothing_else_does() {
        let keys = keys(&["one", "Two"]);
        for (good, index) in [("Bearer one", 0), ("bearer Two", 1), ("BEARER  one ", 0)] {
            assert_eq!(keys.admit(&sent(&[good])), Admission::With(KeyIndex(index)), "{good}");
        }
        let bad = ["", "one", "Bearer", "Bearer ", "Bearer on", "Bearer onee", "Bearer two", "Basic one"];
        for bad in bad {
            assert_eq!(keys.admit(&sent(&[bad])), Admission::Refused, "{bad}");
        }
        assert_eq!(keys.admit(&sent(&[])), Admission::Refused);
        let two = keys.admit(&sent(&["Bearer one", "Bearer x"]));
        assert_eq!(two, Admission::Refused, "which of two is meant cannot be known");
    }

    #[test]
    fn a_wrong_key_is_told_from_one_that_is_missing() {
        let said = |headers: &HeaderMap| refusal(headers).to_string();
        let anthropic = [(X_API_KEY.parse().expect("a header"), HeaderValue::from_static("wrong"))];
        assert!(said(&sent(&[])).starts_with("an API key is required"));
        for headers in [sent(&["Bearer wrong"]), anthropic.into_iter().collect()] {
            assert!(said(&headers).starts_with("Incorrect API key provided: it is not valid"), "{headers:?}");
        }
        // Without its scheme, and twice.
        for headers in [sent(&["one"]), sent(&["Basic one"]), sent(&["Bearer one", "Bearer x"])] {
            let said = said(&headers);
            assert!(said.starts_with("Incorrect API key provided: it is sent once, as `Auth"), "{headers:?}");
        }
    }

    #[test]
    fn without_keys_everybody_may_ask() {
        assert_eq!(keys(&[]).admit(&sent(&[])), Admission::Open);
    }

    #[test]
    fn a_file_of_keys_that_others_may_read_is_named() {
        use clap::{Args, FromArgMatches};
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("keys");
        std::fs::write(&path, "one").expect("written");
        let command = RouterArgs::augment_args(clap::Command::new("penstock"));
        let line = ["penstock", "--api-key-file", path.to_str().expect("UTF-8")];
        let args = RouterArgs::from_arg_matches(&command.get_matches_from(line)).expect("flags");
        for (mode, is_open) in [(0o600, false), (0o700, false), (0o640, false), (0o604, true), (0o644, true)]
        {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("its owner's");
            let expected = if is_open { vec![("--api-key-file", &*path)] } else { Vec::new() };
            assert_eq!(readable_by_others(&args), expected, "{mode:o}");
        }
    }

    #[test]
    fn a_key_of_the_file_has_a_name_or_a_number_and_no_two_share_one() {
        use clap::{Args, FromArgMatches};
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("keys");
        let read = |text: &str| {
            std::fs::write(&path, text).expect("written");
            let command = RouterArgs::augment_args(clap::Command::new("penstock"));
            let file = path.to_str().expect("UTF-8");
            let line = ["penstock", "--api-key", "zero", "--api-key-file", file];
            let args = RouterArgs::from_arg_matches(&command.get_matches_from(line)).expect("flags");
            Keys::read(&args)
        };
        let keys = read("one\n# a comment\nteam-a:  two\nthree\n").unwrap_or_else(|error| panic!("{error}"));
        let names: Vec<_> = keys.0.iter().map(|key| &*key.name.0).collect();
        assert_eq!(names, ["flag-1", "file-1", "team-a", "file-3"]);
        let text = "batch priority=10: one\npriority=-5: two\npriority: three";
        let prioritized = read(text).unwrap_or_else(|error| panic!("{error}"));
        let of = |key: &Key| (key.name.0.to_string(), key.priority.map(|priority| priority.0));
        let [zero, others @ ..] = &prioritized.0[..] else { panic!("four keys") };
        assert_eq!(of(zero), ("flag-1".into(), None));
        let expected = [("batch", Some(10)), ("file-2", Some(-5)), ("priority", None)];
        assert_eq!(
            others.iter().map(of).collect::<Vec<_>>(),
            expected.map(|(name, it)| (name.to_string(), it))
        );
        let Admission::With(key) = keys.admit(&sent(&["Bearer two"])) else { panic!("a key") };
        assert_eq!(keys.name(key).0.as_ref(), "team-a");
        for (text, says) in [
            ("a: one\na: two", "line 2: another key is called a"),
            ("flag-1: one", "line 1: another key is called flag-1"),
            ("a b: one", "line 1: a key's name must be"),
            ("two words", "line 1: must be visible"),
            ("a priority=1001: one", "line 1: a key's priority must be a whole number from -1000 to 1000"),
            ("a priority=high: one", "line 1: a key's priority must be a whole number"),
            ("priority=1 a: one", "line 1: a key's name must be"),
        ] {
            let error = read(text).err().expect("an error").to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
